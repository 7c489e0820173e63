//! The kernel's own calls, as this layer needs them: each with its error as an [`Errno`].

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};

use crate::epoll::Op;
use crate::errno::Errno;
use crate::events::Event;

fn last_errno() -> Errno {
    Errno::from_raw(io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

fn check(result: libc::c_int) -> Result<libc::c_int, Errno> {
    if result < 0 {
        Err(last_errno())
    } else {
        Ok(result)
    }
}

fn owned(result: libc::c_int) -> Result<OwnedFd, Errno> {
    let fd = check(result)?;
    // SAFETY: the kernel has just opened it for the caller, who is its only owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `epoll_create1(EPOLL_CLOEXEC)`.
pub(super) fn epoll_create() -> Result<OwnedFd, Errno> {
    // SAFETY: no pointers are involved.
    owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

/// `epoll_ctl(2)`.
pub(super) fn epoll_ctl(set: &OwnedFd, op: Op, fd: RawFd, interest: Event) -> Result<(), Errno> {
    let mut event = libc::epoll_event {
        events: interest.events().bits(),
        u64: interest.data(),
    };
    // SAFETY: `event` is a live epoll_event; the kernel checks the descriptors.
    let result = unsafe { libc::epoll_ctl(set.as_raw_fd(), op as i32, fd, &raw mut event) };
    check(result).map(drop)
}

/// What a sleep lets through: the signals of `ppoll(2)`, or those that are let through anyway.
pub(crate) type SignalMask<'a> = Option<&'a libc::sigset_t>;

/// `epoll_pwait2(2)`; a `limit` of None is none.
pub(super) fn epoll_wait(
    set: &OwnedFd,
    events: &mut [Event],
    limit: Option<libc::timespec>,
    mask: SignalMask<'_>,
) -> Result<usize, Errno> {
    // `EP_MAX_EVENTS`: with more the kernel gives EINVAL.
    let most = i32::MAX as usize / size_of::<libc::epoll_event>();
    let room = events.len().min(most) as libc::c_int;
    let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
    let mask = mask.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `Event` has epoll_event's layout and takes any bits, the buffer has at least `room`,
    // and limit and mask are null or live. The kernel's signal set has 64 bits, the first ones of
    // the C library's.
    let result = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            set.as_raw_fd(),
            events.as_mut_ptr().cast::<libc::epoll_event>(),
            room,
            limit,
            mask,
            size_of::<u64>(),
        )
    };
    usize::try_from(result).map_err(|_| last_errno())
}

pub(super) const AT_ONCE: Option<libc::timespec> = Some(libc::timespec {
    tv_sec: 0,
    tv_nsec: 0,
});

/// `poll(2)` of one descriptor for `POLLIN`, without waiting.
pub(super) fn is_readable(fd: &OwnedFd) -> bool {
    let mut entry = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: `entry` is one live pollfd.
    unsafe { libc::poll(&raw mut entry, 1, 0) == 1 }
}

/// `eventfd(2)` with the flags `EFD_CLOEXEC | EFD_NONBLOCK`.
pub(super) fn eventfd() -> Result<OwnedFd, Errno> {
    // SAFETY: no pointers are involved.
    owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Adds one to an eventfd.
pub(super) fn eventfd_write(fd: &OwnedFd) {
    // SAFETY: no memory of ours is involved. The counter is far from full: nobody writes it 2^64
    // times, so the write does not fail.
    unsafe { libc::eventfd_write(fd.as_raw_fd(), 1) };
}

/// Sets an eventfd to zero; says whether it was not.
pub(super) fn eventfd_drain(fd: &OwnedFd) -> bool {
    let mut count = 0;
    // SAFETY: `count` is a live counter. It fails with EAGAIN if it is zero already.
    unsafe { libc::eventfd_read(fd.as_raw_fd(), &raw mut count) == 0 }
}

/// `F_DUPFD_CLOEXEC`: a new number for the same open file.
pub(super) fn duplicate(fd: &OwnedFd) -> Result<OwnedFd, Errno> {
    fd.try_clone()
        .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))
}

/// `dup3(2)`: `number`, which is ours, stands for the open file of `fd` from now on.
pub(super) fn duplicate_to(fd: RawFd, number: &OwnedFd) -> Result<(), Errno> {
    // SAFETY: what `number` stood for was ours to close.
    check(unsafe { libc::dup3(fd, number.as_raw_fd(), libc::O_CLOEXEC) }).map(drop)
}

/// Memory of zero bytes that children of `fork` share with this process: `mmap(2)`.
pub(super) fn map_shared(size: usize) -> Result<NonNull<u8>, Errno> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: the kernel chooses a place where nothing is.
    let place = unsafe { libc::mmap(ptr::null_mut(), size, access, kind, -1, 0) };
    if place == libc::MAP_FAILED {
        return Err(last_errno());
    }
    NonNull::new(place.cast()).ok_or(Errno::NOMEM)
}

/// Takes it away from this process.
///
/// # Safety
/// It is from [`map_shared`] with that size, and nobody uses it after this.
pub(super) unsafe fn unmap(place: NonNull<u8>, size: usize) {
    // SAFETY: the caller's contract.
    unsafe { libc::munmap(place.as_ptr().cast(), size) };
}
