//! The kernel's own calls, as this layer needs them: each with its error as an [`Errno`].
//!
//! They are made inline, not through the C library: its names may be this library's own (a program
//! that has them replaced), and `errno` is the user's.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use upoll_sys::{interruptible, syscall};

use crate::epoll::Op;
use crate::errno::Errno;
use crate::events::{Event, Events};

fn check(result: Result<usize, i32>) -> Result<usize, Errno> {
    result.map_err(Errno::from_raw)
}

pub(crate) use super::own_fds::OwnFd as Descriptor;
use super::own_fds::{first_fds, hold_protected_fds, may_be_lost};

/// `close(2)` of an fd that is known to be the library's own.
pub(super) fn close(fd: RawFd) {
    // SAFETY: the fd is the library's own, and nobody uses it after this.
    let _ = unsafe { syscall!(SYS_close, fd) };
}

/// Moves the result of a call that opens something to a high fd. Programs rely on getting the
/// lowest free fd, and an fd that they have closed must not become an own fd of the library.
fn opened(result: Result<usize, i32>) -> Result<Descriptor, Errno> {
    let low = RawFd::try_from(check(result)?).expect("fds are ints");
    let _held = hold_protected_fds();
    match duplicate_high(low) {
        Ok(high) => {
            close(low);
            Descriptor::brief(high)
        }
        // If no fd is left up there, the low one has to do.
        Err(_) => Descriptor::brief(low),
    }
}

/// Returns the limit of the process's fds (`RLIMIT_NOFILE`). There is none if the kernel refuses the call.
pub(crate) fn most_fds() -> libc::rlim64_t {
    let mut limit = libc::rlimit64 {
        rlim_cur: libc::RLIM64_INFINITY,
        rlim_max: libc::RLIM64_INFINITY,
    };
    let (resource, new) = (libc::RLIMIT_NOFILE, 0);
    // SAFETY: the call fills the structure.
    let _ = unsafe { syscall!(SYS_prlimit64, 0, resource, new, &raw mut limit) };
    limit.rlim_cur
}

/// `F_DUPFD_CLOEXEC`: a new fd for the same open file, out of the way.
pub(super) fn duplicate_high(fd: RawFd) -> Result<RawFd, Errno> {
    let mut result = Err(Errno::MFILE);
    for from in first_fds() {
        // SAFETY: no pointers are involved.
        result = check(unsafe { syscall!(SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, from) });
        if !matches!(result, Err(Errno::MFILE | Errno::INVAL)) {
            break;
        }
    }
    result.map(|fd| RawFd::try_from(fd).expect("fds are ints"))
}

/// Checks that a file is open under `fd` (`fcntl(F_GETFD)`).
///
/// # Errors
/// `EBADF`: none is.
pub fn check_open(fd: RawFd) -> Result<(), Errno> {
    // SAFETY: no pointers are involved.
    check(unsafe { syscall!(SYS_fcntl, fd, libc::F_GETFD) }).map(drop)
}

/// An own fd for the open file that `fd` stands for.
pub(super) fn duplicate(fd: RawFd) -> Result<Descriptor, Errno> {
    let _held = hold_protected_fds();
    Descriptor::brief(duplicate_high(fd)?)
}

/// `epoll_create1(EPOLL_CLOEXEC)`.
pub(crate) fn epoll_create() -> Result<Descriptor, Errno> {
    // SAFETY: no pointers are involved.
    let set = opened(unsafe { syscall!(SYS_epoll_create1, libc::EPOLL_CLOEXEC) })?;
    Descriptor::sealed(set, false)
}

/// Makes another kernel set for one that was lost, under a different fd, so that users of the old
/// fd notice.
pub(super) fn epoll_create_elsewhere(lost: &Descriptor) -> Result<Descriptor, Errno> {
    // The first one may take over the fd, which is not that of `lost` any more then.
    let before = lost.as_raw_fd();
    let set = epoll_create()?;
    if set.as_raw_fd() != before {
        return Ok(set);
    }
    // While the first one has that fd.
    epoll_create()
}

/// Opens a socket that is always writable. A netlink socket cannot be shut down; after `shutdown(2)` a socket reports `EPOLLHUP`
/// for ever. A program that may open no such socket gets one of the Unix domain.
pub(super) fn idle_socket() -> Result<Descriptor, Errno> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers are involved.
    let open = |domain, protocol| opened(unsafe { syscall!(SYS_socket, domain, kind, protocol) });
    open(libc::AF_NETLINK, libc::NETLINK_USERSOCK).or_else(|_| open(libc::AF_UNIX, 0))
}

/// The identity of a socket among all open files.
#[derive(Debug)]
pub(super) struct Socket {
    /// Its number among all sockets that the kernel ever made (`SO_COOKIE`). None where a filter of
    /// system calls refuses to return it.
    cookie: Option<u64>,
    /// Compared in place of a missing cookie. Another socket can get the same inode once this one
    /// is closed everywhere.
    inode: u64,
}

impl Socket {
    /// Returns None if the fd stands for something else.
    pub(super) fn of(fd: RawFd) -> Option<Self> {
        Some(Socket {
            cookie: socket_cookie(fd).ok(),
            inode: match may_be_lost() {
                true => socket_inode(fd)?,
                // There is no other file to distinguish it from.
                false => 0,
            },
        })
    }

    /// Returns whether the fd stands for this socket.
    pub(super) fn is(&self, fd: RawFd) -> bool {
        match (self.cookie, socket_cookie(fd)) {
            (Some(known), Ok(cookie)) => known == cookie,
            (_, Err(errno)) if is_no_socket(errno) => false,
            _ => !may_be_lost() || socket_inode(fd) == Some(self.inode),
        }
    }
}

/// Returns whether the fd stands for the socket with this cookie, or None if the kernel does not tell.
pub(super) fn has_cookie(fd: RawFd, cookie: u64) -> Option<bool> {
    match socket_cookie(fd) {
        Ok(found) => Some(found == cookie),
        Err(errno) => is_no_socket(errno).then_some(false),
    }
}

fn is_no_socket(errno: Errno) -> bool {
    errno == Errno::BADF || errno.raw() == libc::ENOTSOCK
}

/// `SO_COOKIE`, never 0.
pub(super) fn socket_cookie(fd: RawFd) -> Result<u64, Errno> {
    const SO_COOKIE: libc::c_int = 57;
    let mut cookie = 0_u64;
    let mut length: libc::socklen_t = 8;
    // SAFETY: the call writes at most `length` bytes to `cookie`.
    let found = unsafe {
        syscall!(
            SYS_getsockopt,
            fd,
            libc::SOL_SOCKET,
            SO_COOKIE,
            &raw mut cookie,
            &raw mut length
        )
    };
    check(found).map(|_| cookie)
}

/// `epoll_ctl(2)`.
pub(crate) fn epoll_ctl(
    set: &Descriptor,
    op: Op,
    fd: RawFd,
    interest: &Event,
) -> Result<(), Errno> {
    set.call(|set| epoll_ctl_by_fd(set, op, fd, interest))
}

/// As [`epoll_ctl`], right behind a call on the same set that has succeeded: its fd is not checked again.
pub(super) fn epoll_ctl_once_more(
    set: &Descriptor,
    op: Op,
    fd: RawFd,
    interest: &Event,
) -> Result<(), Errno> {
    set.try_call(|set| epoll_ctl_by_fd(set, op, fd, interest))
}

/// `epoll_ctl(2)`.
#[inline]
pub(super) fn epoll_ctl_by_fd(
    set: RawFd,
    op: Op,
    fd: RawFd,
    interest: &Event,
) -> Result<(), Errno> {
    // SAFETY: `Event` has epoll_event's layout, and this one is live; the kernel checks the
    // descriptors.
    let result = unsafe { syscall!(SYS_epoll_ctl, set, op as i32, fd, ptr::from_ref(interest)) };
    check(result).map(drop)
}

/// Returns whether `fd` is a kernel set. `other` is a kernel set as well, and not the same.
pub(crate) fn is_epoll(fd: RawFd, other: &Descriptor) -> bool {
    // SAFETY: deleting takes no event. The kernel looks at what kind of file `fd` is before it
    // finds that `other` is not a member: EINVAL or ENOENT.
    let deleted = other.call(|other| unsafe {
        check(syscall!(SYS_epoll_ctl, fd, Op::Del as i32, other, 0_usize))
    });
    deleted == Err(Errno::NOENT)
}

/// Returns whether `fd` stands for the open file that is the `which`th member of `set` by this fd (`kcmp(2)`). Returns
/// true if the kernel does not tell.
pub(super) fn is_member(set: &Descriptor, fd: RawFd, which: u32) -> bool {
    match compare_member(set.as_raw_fd(), fd, fd, which) {
        Ok(difference) => difference == 0,
        Err(errno) => errno != Errno::BADF && errno != Errno::NOENT,
    }
}

/// Returns whether `fd` stands for a file that is a member of the set `set` by this fd, or None if the kernel does not
/// tell. Searches the set, and changes nothing in it.
pub(super) fn is_member_of(set: RawFd, fd: RawFd) -> Option<bool> {
    // Further members by this fd are files that live on under others, after it was closed.
    for which in 0.. {
        match compare_member(set, fd, fd, which) {
            Ok(0) => return Some(true),
            Ok(_) => {}
            Err(Errno::BADF | Errno::NOENT) => break,
            Err(_) => return None,
        }
    }
    Some(false)
}

/// Returns whether `set` has a `which`th member by this fd, whatever the fd stands for by now. Returns None if the
/// kernel does not tell.
pub(super) fn has_member(set: &Descriptor, fd: RawFd, which: u32) -> Option<bool> {
    match compare_member(set.as_raw_fd(), set.as_raw_fd(), fd, which) {
        Ok(_) => Some(true),
        Err(Errno::NOENT) => Some(false),
        Err(_) => None,
    }
}

/// `kcmp(2)` of what `file` stands for and the `which`th member of `set` by `fd`.
fn compare_member(set: RawFd, file: RawFd, fd: RawFd, which: u32) -> Result<usize, Errno> {
    /// `struct kcmp_epoll_slot`.
    #[repr(C)]
    struct Member {
        set: u32,
        fd: u32,
        which: u32,
    }
    const KCMP_EPOLL_TFD: usize = 7;
    let member = Member {
        set: set.cast_unsigned(),
        fd: fd.cast_unsigned(),
        which,
    };
    // SAFETY: the call has no effect, and `member` is live.
    check(unsafe {
        let this = syscall!(SYS_getpid).unwrap_or(0);
        let member = &raw const member;
        syscall!(SYS_kcmp, this, this, KCMP_EPOLL_TFD, file, member)
    })
}

/// The inode of an open socket; None if the fd stands for something else.
pub(super) fn socket_inode(fd: RawFd) -> Option<u64> {
    let stat = stat(fd)?;
    (stat.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(stat.st_ino)
}

/// The inode of an open file. Eventfds, sets and their kin have one together.
pub(super) fn inode(fd: RawFd) -> Option<u64> {
    stat(fd).map(|stat| stat.st_ino)
}

/// As [`inode`]; None if it is the one that eventfds, sets and their kin have together.
pub(super) fn unshared_inode(fd: RawFd) -> Option<u64> {
    let stat = stat(fd)?;
    // That one is of no type.
    (stat.st_mode & libc::S_IFMT != 0).then_some(stat.st_ino)
}

/// `fstat(2)`.
fn stat(fd: RawFd) -> Option<libc::stat> {
    // SAFETY: a `stat` of zeros is one.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the call fills the structure.
    check(unsafe { syscall!(SYS_fstat, fd, &raw mut stat) }).ok()?;
    Some(stat)
}

/// The signals that may end a sleep: the mask of `ppoll(2)`, or None for the thread's own mask.
pub(crate) type SignalMask<'a> = Option<&'a libc::sigset_t>;

/// Returns the number of events that a call may ask for. A call for more than `EP_MAX_EVENTS` fails with `EINVAL`.
fn room_in(events: &[Event]) -> usize {
    let most = i32::MAX as usize / size_of::<libc::epoll_event>();
    events.len().min(most)
}

/// `epoll_wait(2)` with a limit of zero.
pub(crate) fn epoll_harvest(set: &Descriptor, events: &mut [Event]) -> Result<usize, Errno> {
    // The oldest of its calls is the fastest; newer machines do not have it.
    #[cfg(target_arch = "x86_64")]
    return set.call(|set| {
        let room = room_in(events);
        let buffer = events.as_mut_ptr();
        // SAFETY: `Event` has epoll_event's layout and takes any bits, and the buffer has at least
        // `room`.
        check(unsafe { syscall!(SYS_epoll_wait, set, buffer, room, 0) })
    });
    #[cfg(not(target_arch = "x86_64"))]
    epoll_wait(set, events, AT_ONCE, None)
}

/// `epoll_pwait2(2)`; a `limit` of None is none.
pub(crate) fn epoll_wait(
    set: &Descriptor,
    events: &mut [Event],
    limit: Option<libc::timespec>,
    mask: SignalMask<'_>,
) -> Result<usize, Errno> {
    set.call(|set| epoll_wait_by_fd(set, events, limit, mask))
}

#[inline]
fn epoll_wait_by_fd(
    set: RawFd,
    events: &mut [Event],
    limit: Option<libc::timespec>,
    mask: SignalMask<'_>,
) -> Result<usize, Errno> {
    let room = room_in(events);
    let buffer = events.as_mut_ptr();
    let limit_ptr = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
    let mask = mask.map_or(ptr::null(), ptr::from_ref);
    let in_milliseconds = |limit: libc::c_int| {
        // SAFETY: `Event` has epoll_event's layout and takes any bits, the buffer has at least
        // `room`, and the mask is null or live. The kernel's signal set has 64 bits, the first ones
        // of the C library's.
        check(unsafe {
            interruptible!(
                SYS_epoll_pwait,
                set,
                buffer,
                room,
                limit,
                mask,
                size_of::<u64>()
            )
        })
    };
    // These two need no finer measure, and the older call is the faster one.
    match limit {
        None => return in_milliseconds(-1),
        Some(limit) if limit.tv_sec == 0 && limit.tv_nsec == 0 => {
            let size = size_of::<u64>();
            // SAFETY: as above. This one does not sleep, and does not fail with `EINTR`.
            return check(unsafe { syscall!(SYS_epoll_pwait, set, buffer, room, 0, mask, size) });
        }
        Some(_) => {}
    }
    // SAFETY: as above, and the limit is live.
    let found = check(unsafe {
        interruptible!(
            SYS_epoll_pwait2,
            set,
            buffer,
            room,
            limit_ptr,
            mask,
            size_of::<u64>()
        )
    });
    // Filters of system calls may refuse with `EPERM` what they do not know; the call itself never does.
    if found != Err(Errno::NOSYS) && found != Err(Errno::PERM) {
        return found;
    }
    // Before Linux 5.11, and under valgrind.
    let limit = limit.map_or(-1, |limit| {
        let whole = i32::try_from(limit.tv_sec)
            .ok()
            .and_then(|s| s.checked_mul(1000));
        // Less than a second's worth; rounded up, for no wait may end early.
        let rest = i32::try_from((limit.tv_nsec + 999_999) / 1_000_000).unwrap_or(0);
        whole
            .and_then(|whole| whole.checked_add(rest))
            .unwrap_or(i32::MAX)
    });
    in_milliseconds(limit)
}

pub(crate) const AT_ONCE: Option<libc::timespec> = Some(libc::timespec {
    tv_sec: 0,
    tv_nsec: 0,
});

/// Calls `poll(2)` on one own fd for `POLLIN`, without waiting. An fd that the program has closed
/// is not readable, and is recorded as lost.
pub(super) fn is_readable(fd: &Descriptor) -> bool {
    ready_events(fd, Events::IN).is_ok_and(|ready| !ready.is_empty())
}

/// Calls `poll(2)` on one own fd, without waiting, and returns the events that are ready.
///
/// # Errors
/// `EBADF`: the program has closed the fd. That is recorded.
fn ready_events(fd: &Descriptor, wanted: Events) -> Result<Events, Errno> {
    let ready = fd.call(|fd| poll_by_fd(fd, wanted));
    ready.inspect_err(|_| {
        fd.is_lost_after_failure();
    })
}

/// Calls `poll(2)` on one fd, without waiting, and returns the events that are ready.
///
/// # Errors
/// `EBADF`: it is not open.
pub(super) fn poll_by_fd(fd: RawFd, wanted: Events) -> Result<Events, Errno> {
    let mut entry = libc::pollfd {
        fd,
        events: wanted.bits() as libc::c_short,
        revents: 0,
    };
    let mut limit = AT_ONCE;
    let limit = limit.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    // SAFETY: `entry` is one live pollfd, `limit` a live timespec, and there is no mask.
    let _ = unsafe { syscall!(SYS_ppoll, &raw mut entry, 1, limit, 0, 0) };
    match entry.revents & libc::POLLNVAL {
        0 => Ok(Events::from_bits_retain(
            entry.revents.cast_unsigned().into(),
        )),
        _ => Err(Errno::BADF),
    }
}

#[cfg(target_arch = "x86_64")]
fn is_zero(limit: Option<&libc::timespec>) -> bool {
    limit.is_some_and(|limit| limit.tv_sec == 0 && limit.tv_nsec == 0)
}

/// `ppoll(2)`; a `limit` of None is none.
pub(crate) fn ppoll(
    list: &mut [libc::pollfd],
    limit: Option<&libc::timespec>,
    mask: SignalMask<'_>,
) -> Result<usize, Errno> {
    #[cfg(target_arch = "x86_64")]
    if mask.is_none() && is_zero(limit) {
        // The kernel neither has a limit to read nor what is left of it to write.
        // SAFETY: the list is as long as is claimed.
        return check(unsafe { syscall!(SYS_poll, list.as_mut_ptr(), list.len(), 0) });
    }
    let mut limit = limit.copied();
    let limit = limit.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    let mask = mask.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: as above; limit and mask are null or live, as for `epoll_wait`.
    check(unsafe {
        interruptible!(
            SYS_ppoll,
            list.as_mut_ptr(),
            list.len(),
            limit,
            mask,
            size_of::<u64>()
        )
    })
}

/// `pselect(2)`; a `limit` of None is none.
///
/// # Safety
/// Each bitmap is null or holds all fds below `end`.
pub(crate) unsafe fn pselect(
    end: RawFd,
    [read, write, except]: [*mut libc::fd_set; 3],
    limit: Option<&libc::timespec>,
    mask: SignalMask<'_>,
) -> Result<usize, Errno> {
    #[cfg(target_arch = "x86_64")]
    if mask.is_none() && is_zero(limit) {
        // As in `ppoll`, without a mask.
        let mut limit = [0_i64; 2];
        let limit = limit.as_mut_ptr();
        // SAFETY: `limit` has a timeval's layout, the bitmaps are the caller's contract.
        return check(unsafe { syscall!(SYS_select, end, read, write, except, limit) });
    }
    let mut limit = limit.copied();
    let limit = limit.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    let mask = mask.map_or(ptr::null(), ptr::from_ref);
    let mask = [mask.expose_provenance(), size_of::<u64>()];
    // SAFETY: limit and mask are null or live, the bitmaps the caller's contract.
    check(unsafe { interruptible!(SYS_pselect6, end, read, write, except, limit, mask.as_ptr()) })
}

/// `eventfd(2)` with the flags `EFD_CLOEXEC | EFD_NONBLOCK`.
pub(crate) fn eventfd() -> Result<Descriptor, Errno> {
    // SAFETY: no pointers are involved.
    opened(unsafe { syscall!(SYS_eventfd2, 0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Adds one to an eventfd, unless its fd was lost.
pub(crate) fn eventfd_write(fd: &Descriptor) {
    if !fd.is_intact() {
        return;
    }
    let one = 1_u64;
    let fd = fd.as_raw_fd();
    // SAFETY: eight bytes of `one` are read. EAGAIN, a full counter, is as good.
    let _ = unsafe { syscall!(SYS_write, fd, &raw const one, size_of::<u64>()) };
}

/// A new fd for the kernel set that `fd` stands for.
pub(super) fn duplicate_set(fd: BorrowedFd<'_>) -> Result<Descriptor, Errno> {
    Descriptor::sealed(duplicate(fd.as_raw_fd())?, true)
}

/// Returns all of a file of `/proc`; nothing if it cannot be read.
///
/// # Errors
/// `ENOMEM`: there is no memory for it.
pub(super) fn read_proc(path: &CStr) -> Result<String, Errno> {
    let mut bytes = Vec::new();
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the path is a live C string.
    let file = opened(unsafe { syscall!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) });
    while let Ok(file) = &file {
        bytes.try_reserve(4096).map_err(|_| Errno::NOMEM)?;
        let room = bytes.spare_capacity_mut();
        // SAFETY: the buffer has as much room as is claimed.
        let read = unsafe { syscall!(SYS_read, file.as_raw_fd(), room.as_mut_ptr(), room.len()) };
        match read {
            Ok(0) | Err(_) => break,
            // SAFETY: the kernel has just filled as many bytes of the spare room.
            Ok(read) => unsafe { bytes.set_len(bytes.len() + read) },
        }
    }
    // The kernel writes nothing but ASCII there.
    Ok(String::from_utf8(bytes).unwrap_or_default())
}

/// Memory of zero bytes that children of `fork` share with this process: `mmap(2)`, by the C
/// library, as its arguments are passed in other ways on other machines.
pub(super) fn map_shared(size: usize) -> Result<NonNull<u8>, Errno> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: the kernel chooses a place where nothing is.
    let place = unsafe { libc::mmap(ptr::null_mut(), size, access, kind, -1, 0) };
    if place == libc::MAP_FAILED {
        return Err(Errno::NOMEM);
    }
    NonNull::new(place.cast()).ok_or(Errno::NOMEM)
}

/// Memory of zero bytes that each child with a copy of this memory has as zero again; none if the kernel
/// does not know that (4.14).
pub(super) fn map_wiped(size: usize) -> Option<NonNull<u8>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the kernel chooses a place where nothing is, which nobody else knows.
    unsafe {
        let place = libc::mmap(ptr::null_mut(), size, access, kind, -1, 0);
        if place == libc::MAP_FAILED {
            return None;
        }
        if libc::madvise(place, size, libc::MADV_WIPEONFORK) != 0 {
            libc::munmap(place, size);
            return None;
        }
        NonNull::new(place.cast())
    }
}

/// Takes it away from this process.
///
/// # Safety
/// It is from [`map_shared`] with that size, and nobody uses it after this.
pub(super) unsafe fn unmap(place: NonNull<u8>, size: usize) {
    // SAFETY: the caller's contract.
    unsafe { libc::munmap(place.as_ptr().cast(), size) };
}

/// Returns the milliseconds of a clock that takes no system call and is not the finest.
pub(super) fn coarse_milliseconds() -> u32 {
    static UNKNOWN: AtomicU32 = AtomicU32::new(0);
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call fills the structure.
    if unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) } != 0 {
        // Every check is old.
        return UNKNOWN.fetch_add(1000, Ordering::Relaxed);
    }
    (time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000) as u32
}
