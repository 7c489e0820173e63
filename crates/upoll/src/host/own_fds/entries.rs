//! The own fds that are there: the entry of each fd.

use std::io::Write;
use std::os::fd::RawFd;
use std::ptr;
#[cfg(not(upoll_loom))]
use std::sync::Mutex;

#[cfg(upoll_loom)]
use loom::sync::Mutex;

use super::is_protected;
use super::seal::Seal;
use crate::epoll::Op;
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::host::kernel;
use crate::memory::boxed;
use crate::sync::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Backoff, Ordering, statics};

use upoll_sys::syscall;

/// An array of null pointers.
macro_rules! all_null {
    ($length:expr) => {{
        #[cfg(not(upoll_loom))]
        let array = [const { AtomicPtr::new(ptr::null_mut()) }; $length];
        #[cfg(upoll_loom)]
        let array: [_; $length] = std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut()));
        array
    }};
}

/// The state of an own fd, found by the fd. Entries are never freed: a thread that moves an fd
/// away may read an entry that was just given up.
pub(super) struct Entry {
    /// The fd in the lower half: [`NONE`] if it was closed, or another own fd has it. The upper half
    /// counts how often the entry was given out, so that a change that was begun for an earlier fd fails.
    pub(super) state: AtomicU64,
    /// [`BRIEF`], [`SET`], [`SEAL`], [`KEPT`] or [`MEMBER`].
    pub(super) kind: AtomicU32,
    /// The seal that a set has in it; a seal's own. Null for other files.
    pub(super) seal: AtomicPtr<Seal>,
    /// The fd under which the seal is in the set; of a member, the fd of the set.
    pub(super) under: AtomicI32,
    /// The data of the event that wakes a thread in the set; of a member, the cookie of the socket, or 0.
    pub(super) data: AtomicU64,
    /// The events that the seal in the set is asked for.
    pub(super) asked: AtomicU32,
}

/// No fd; not -1, which a `BorrowedFd` cannot hold.
pub(super) const NONE: RawFd = RawFd::MIN;

/// A file that the call that opened it closes. It keeps its fd.
const BRIEF: u32 = 0;
/// A kernel set with a seal in it.
pub(super) const SET: u32 = 1;
/// The fd of a seal.
pub(super) const SEAL: u32 = 2;
/// An own fd that a child of a fork continues to use: a notifier of a shared eventfd, the set that
/// they are members of, or a file of an embedder.
pub(super) const KEPT: u32 = 3;
/// A member of a kernel set of the library's. Its entry has the fd of that set in `under`.
pub(super) const MEMBER: u32 = 4;

impl Entry {
    /// Returns an entry that is in no use.
    pub(super) fn take() -> Result<&'static Self, Errno> {
        let unused = UNUSED.try_lock().ok().and_then(|mut unused| unused.pop());
        let new = || boxed(Entry::new()).map(|entry| &*Box::leak(entry));
        unused.map_or_else(new, Ok)
    }

    fn new() -> Self {
        Entry {
            state: AtomicU64::new(NONE.cast_unsigned() as u64),
            kind: AtomicU32::new(BRIEF),
            seal: AtomicPtr::new(ptr::null_mut()),
            under: AtomicI32::new(NONE),
            data: AtomicU64::new(0),
            asked: AtomicU32::new(0),
        }
    }

    #[inline]
    pub(super) fn fd(&self) -> RawFd {
        fd_in(self.state.load(Ordering::SeqCst))
    }

    /// Reuses the entry, which is in no use, for another fd.
    pub(super) fn begin(&self, fd: RawFd) {
        self.kind.store(BRIEF, Ordering::Relaxed);
        self.seal.store(ptr::null_mut(), Ordering::Relaxed);
        self.asked.store(0, Ordering::Relaxed);
        let before = self.state.load(Ordering::Relaxed);
        let next = (before >> 32).wrapping_add(1) << 32;
        let state = next | u64::from(fd.cast_unsigned());
        self.state.store(state, Ordering::SeqCst);
    }

    /// Changes the fd if the state is still `before`.
    pub(super) fn change(&self, before: u64, fd: RawFd) -> Result<(), u64> {
        let state = before >> 32 << 32 | u64::from(fd.cast_unsigned());
        let changed =
            self.state
                .compare_exchange(before, state, Ordering::SeqCst, Ordering::SeqCst);
        changed.map(drop)
    }

    /// Takes the fd away, if `is_taken` agrees, and returns it: nobody else closes the file then.
    pub(super) fn take_if(&self, is_taken: impl Fn(RawFd) -> bool) -> Option<RawFd> {
        let mut state = self.state.load(Ordering::SeqCst);
        loop {
            let fd = fd_in(state);
            if fd == NONE || !is_taken(fd) {
                return None;
            }
            match self.change(state, NONE) {
                Ok(()) => return Some(fd),
                Err(now) => state = now,
            }
        }
    }

    pub(super) fn kind(&self) -> u32 {
        self.kind.load(Ordering::Acquire)
    }

    pub(super) fn seal(&self) -> Option<&'static Seal> {
        // SAFETY: null or a seal, which is never freed.
        unsafe { self.seal.load(Ordering::SeqCst).as_ref() }
    }
}

/// Returns whether an fd stands for a kernel set or a seal of the library's, or for a file that the library has in one.
/// Takes system calls if it did once.
pub(in crate::host) fn is_set_or_seal(fd: RawFd) -> bool {
    entry_at(fd).is_some_and(|entry| {
        let is_listed = || is_listed(entry.set_of_member(), fd);
        entry.fd() == fd && entry.is_at(fd).unwrap_or_else(is_listed)
    })
}

/// Ends the use of an entry.
pub(super) fn give_back(entry: &'static Entry) {
    // If the lock is taken, or there is no memory, the entry is lost. A fork may have left the lock so.
    if let Ok(mut unused) = UNUSED.try_lock()
        && unused.try_reserve(1).is_ok()
    {
        unused.push(entry);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
fn fd_in(state: u64) -> RawFd {
    (state as u32).cast_signed()
}

const CHUNK: usize = if cfg!(upoll_loom) { 32 } else { 256 };
const CHUNKS: usize = if cfg!(upoll_loom) { 1 } else { 4096 };
type Chunk = [AtomicPtr<Entry>; CHUNK];

statics! {
    /// The entry of each own fd.
    static FDS: [AtomicPtr<Chunk>; CHUNKS] = all_null!(CHUNKS);
    /// No own fd was ever below this one.
    static LOWEST: AtomicI32 = AtomicI32::new(RawFd::MAX);
    /// Entries that are in no use.
    static UNUSED: Mutex<Vec<&'static Entry>> = Mutex::new(Vec::new());
}

fn place(fd: RawFd) -> Option<&'static AtomicPtr<Entry>> {
    let fd = usize::try_from(fd).ok()?;
    let chunk = FDS.get(fd / CHUNK)?.load(Ordering::Acquire);
    // SAFETY: null, or made in `make_place` and never freed.
    unsafe { chunk.as_ref() }.map(|chunk| &chunk[fd % CHUNK])
}

fn make_place(fd: RawFd) -> Option<&'static AtomicPtr<Entry>> {
    if let Some(place) = place(fd) {
        return Some(place);
    }
    let chunk = FDS.get(usize::try_from(fd).ok()? / CHUNK)?;
    let made = boxed(all_null!(CHUNK)).ok()?;
    let made = Box::into_raw(made);
    let published =
        chunk.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
    if published.is_err() {
        // SAFETY: made above, and known to nobody else.
        drop(unsafe { Box::from_raw(made) });
    }
    place(fd)
}

pub(super) fn entry_at(fd: RawFd) -> Option<&'static Entry> {
    // SAFETY: null or a leaked entry.
    unsafe { place(fd)?.load(Ordering::Acquire).as_ref() }
}

/// Records that an fd is the library's own. Returns false if it is too high for that.
///
/// An own fd that was here until now was closed by the program. It would be taken for the new one,
/// which has the seal in it as well, so it loses its fd now.
pub(super) fn record(fd: RawFd, entry: &'static Entry) -> bool {
    let Some(place) = make_place(fd) else {
        return false;
    };
    let before = place.swap(ptr::from_ref(entry).cast_mut(), Ordering::AcqRel);
    // SAFETY: null or a leaked entry.
    if let Some(lost) = unsafe { before.as_ref() }.filter(|before| !ptr::eq(*before, entry)) {
        lost.take_if(|known| known == fd);
    }
    LOWEST.fetch_min(fd, Ordering::Release);
    true
}

/// Forgets an fd, unless it has come to be another entry's.
pub(super) fn forget(fd: RawFd, entry: &'static Entry) {
    if let Some(place) = place(fd) {
        let entry = ptr::from_ref(entry).cast_mut();
        let _ = place.compare_exchange(entry, ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Returns whether an fd is the library's own and [protected](super::protect), so that calls of the program on it are
/// to fail with `EBADF`.
#[inline]
#[must_use]
pub fn is_own(fd: RawFd) -> bool {
    may_be_own(fd) && is_recorded(fd)
}

/// Returns whether [`is_own`] may be true of an fd. This is one comparison, without a call.
#[inline]
#[must_use]
pub fn may_be_own(fd: RawFd) -> bool {
    fd >= LOWEST.load(Ordering::Relaxed)
}

/// Returns the lowest fd that was ever an own one.
pub(super) fn lowest() -> RawFd {
    LOWEST.load(Ordering::Relaxed)
}

#[cold]
fn is_recorded(fd: RawFd) -> bool {
    is_protected() && settled_entry(fd).is_some()
}

/// Returns the entry whose fd this is. An fd whose entry has another one is just being
/// closed or replaced. Until that is done it cannot be distinguished from an fd of the
/// program's.
fn settled_entry(fd: RawFd) -> Option<&'static Entry> {
    let mut entry = entry_at(fd)?;
    let mut backoff = Backoff::new();
    while entry.fd() != fd && backoff.waits() < MOST_WAITS {
        backoff.wait();
        entry = entry_at(fd)?;
    }
    Some(entry)
}

/// About a second, for another thread that is in the midst of a few instructions and a system call. The thread that is
/// waited for may be the one that waits, if this is a signal handler.
pub(super) const MOST_WAITS: u32 = 1100;

/// The first own fd from `first` to `last`, if they are protected.
#[must_use]
pub fn next_own(first: u32, last: u32) -> Option<RawFd> {
    match is_protected() {
        true => recorded(first, last).find(|&fd| is_recorded(fd)),
        false => None,
    }
}

/// The fds from `first` to `last` that have an entry.
pub(super) fn recorded(first: u32, last: u32) -> impl Iterator<Item = RawFd> {
    let lowest = LOWEST.load(Ordering::Relaxed).cast_unsigned();
    let last = last.min((CHUNK * CHUNKS) as u32 - 1);
    let mut next = first.max(lowest);
    std::iter::from_fn(move || {
        while next <= last {
            let fd = next.cast_signed();
            if place(fd).is_none() {
                // Nothing in the whole chunk.
                next = (next / CHUNK as u32 + 1) * CHUNK as u32;
                continue;
            }
            next += 1;
            if entry_at(fd).is_some() {
                return Some(fd);
            }
        }
        None
    })
}

/// Calls `replace`, which puts another file under `fd`. An own fd there is moved to
/// another fd before. The caller [holds](super::hold_fds) the fds.
///
/// # Errors
/// Those of `replace`. `EBUSY`: there is no other fd for the own one, or it is just being closed.
pub fn replace<R>(fd: RawFd, replace: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
    let mut backoff = Backoff::new();
    while backoff.waits() < MOST_WAITS {
        let Some(entry) = entry_at(fd) else {
            return replace();
        };
        let state = entry.state.load(Ordering::SeqCst);
        if fd_in(state) == fd && entry.kind() != BRIEF {
            match duplicate_for(entry, fd) {
                Ok(moved) if entry.change(state, moved).is_ok() => {
                    return replace_moved(fd, entry, replace);
                }
                // It was closed, or moved, meanwhile.
                Ok(moved) => {
                    kernel::close(moved);
                    forget(moved, entry);
                }
                Err(_) if entry.state.load(Ordering::SeqCst) == state => return Err(Errno::BUSY),
                Err(_) => {}
            }
        }
        // Another thread is in the midst of closing or replacing it.
        backoff.wait();
    }
    Err(Errno::BUSY)
}

/// Another fd for the own fd `fd`.
fn duplicate_for(entry: &'static Entry, fd: RawFd) -> Result<RawFd, Errno> {
    let moved = kernel::duplicate_high(fd)?;
    match record(moved, entry) {
        true => Ok(moved),
        false => {
            kernel::close(moved);
            Err(Errno::MFILE)
        }
    }
}

/// The own fd of `entry` has moved by now. Calls of the program on the old one wait until it is
/// forgotten here.
fn replace_moved<R>(
    fd: RawFd,
    entry: &'static Entry,
    replace: impl FnOnce() -> Result<R, Errno>,
) -> Result<R, Errno> {
    if let Some(seal) = entry.seal().filter(|_| entry.kind() == SEAL) {
        seal.follow_from(fd);
    }
    let replaced = replace();
    if replaced.is_err() {
        kernel::close(fd);
    }
    forget(fd, entry);
    replaced
}

/// Closes the own fds that this process, which was just forked, has from its parent, but for those
/// that it continues to use. The structures that used the closed fds are left without one.
///
/// To be called before anything else of the library is, and by the only thread. Async-signal-safe.
pub(in crate::host) fn close_inherited() {
    // The set whose members were closed as far as `/proc` lists them.
    let mut listed = NONE;
    // A member is known by its set, and a set by its seal: the seals come last.
    for kind in [MEMBER, SET, SEAL] {
        for fd in recorded(0, u32::MAX) {
            let Some(entry) = entry_at(fd) else {
                continue;
            };
            if entry.fd() != fd {
                // A thread was in the midst of closing or moving it.
                forget(fd, entry);
            } else if entry.kind() == kind && !entry.is_needed_in_children() {
                entry.close_in_child(fd, &mut listed);
            }
        }
    }
    Seal::forget_all();
}

impl Entry {
    /// Returns whether the entry is a seal of a set that a child goes on to use.
    fn is_needed_in_children(&self) -> bool {
        let seal = self.seal.load(Ordering::Relaxed);
        let needs_seal =
            |entry: &Entry| entry.kind() == KEPT && entry.seal.load(Ordering::Relaxed) == seal;
        self.kind() == SEAL && recorded(0, u32::MAX).filter_map(entry_at).any(needs_seal)
    }

    /// The fd of the set that a member is in.
    fn set_of_member(&self) -> RawFd {
        self.under.load(Ordering::SeqCst)
    }

    /// Returns whether its fd, of a set, of a member or of a seal, still stands for that. Returns None for a member
    /// that only the list in `/proc` can show.
    fn is_at(&self, fd: RawFd) -> Option<bool> {
        if is_protected() {
            return Some(self.kind() == MEMBER || self.seal().is_some());
        }
        match self.kind() {
            MEMBER => self.is_member_at(fd),
            SEAL => Some(self.seal().is_some_and(|seal| seal.socket.is(fd))),
            _ => Some(
                self.seal()
                    .is_some_and(|seal| seal.is_intact() && has_member(fd, seal.fd())),
            ),
        }
    }

    /// As [`is_at`](Self::is_at), of a member. The set must not change, as a child asks for its parent's. Another thread may have
    /// a member at that fd at any moment, and one that is there for a moment only makes the fd look like the
    /// library's.
    fn is_member_at(&self, fd: RawFd) -> Option<bool> {
        let cookie = self.data.load(Ordering::SeqCst);
        if cookie != 0
            && let Some(is_same) = kernel::has_cookie(fd, cookie)
        {
            return Some(is_same);
        }
        let set = self.set_of_member();
        let is_set = |entry: &&Entry| entry.kind() == SET && entry.fd() == set;
        match entry_at(set)
            .filter(is_set)
            .and_then(|entry| entry.is_at(set))
        {
            // The kernel looks through the set from its first member on.
            Some(true) => kernel::is_member_of(set, fd),
            _ => Some(false),
        }
    }

    /// Ends the use of the fd in a child. Where only `/proc` tells of members, that is read once for each set: those of the
    /// set `listed` were closed by then. A file that has its inode with others stays open.
    fn close_in_child(&'static self, fd: RawFd, listed: &mut RawFd) {
        if self.seal().is_none() && self.kind() != MEMBER {
            return;
        }
        match self.is_at(fd) {
            Some(true) => kernel::close(fd),
            Some(false) => {}
            None => {
                let set = self.set_of_member();
                if std::mem::replace(listed, set) != set {
                    each_listed(set, |fd, inode| {
                        let is_unknown = |entry: &&Entry| {
                            entry.kind() == MEMBER
                                && entry.set_of_member() == set
                                && entry.fd() == fd
                                && entry.is_at(fd).is_none()
                        };
                        if let Some(entry) = entry_at(fd).filter(is_unknown)
                            && kernel::unshared_inode(fd) == Some(inode)
                        {
                            kernel::close(fd);
                            entry.leave_in_child(fd);
                        }
                        true
                    });
                }
            }
        }
        self.leave_in_child(fd);
    }

    fn leave_in_child(&'static self, fd: RawFd) {
        self.take_if(|known| known == fd);
        forget(fd, self);
    }
}

/// Returns whether the set `set` has the file `fd` as a member. Changes nothing in a set of the library's.
pub(super) fn has_member(set: RawFd, fd: RawFd) -> bool {
    // Asks for no events. An error or a hang-up, which a member may show unasked, is an edge then.
    let nothing = Event::new(Events::ET, 0);
    match kernel::epoll_ctl_by_fd(set, Op::Add, fd, &nothing) {
        Err(errno) => errno == Errno::EXIST,
        Ok(()) => {
            let _ = kernel::epoll_ctl_by_fd(set, Op::Del, fd, &Event::default());
            false
        }
    }
}

/// Returns whether `/proc` lists a member of the set `set` by this fd, with the inode of the file that the fd stands
/// for. Changes nothing in the set, and takes no memory. Without `/proc` nothing is listed.
fn is_listed(set: RawFd, fd: RawFd) -> bool {
    let mut is_found = false;
    each_listed(set, |listed, inode| {
        is_found = listed == fd && kernel::inode(fd) == Some(inode);
        !is_found
    });
    is_found
}

/// Calls `goes_on` with the fd and the inode of each member of the set `set` that `/proc` lists, until it returns false.
/// Changes nothing in the set, and takes no memory. Apart, so that a child which needs no list takes no stack for it: a fork
/// may be on the small stack of a signal handler.
#[inline(never)]
fn each_listed(set: RawFd, mut goes_on: impl FnMut(RawFd, u64) -> bool) {
    let mut path = [0; 40];
    // The byte behind the path stays zero.
    if write!(&mut path[..39], "/proc/self/fdinfo/{set}").is_err() {
        return;
    }
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the path ends with a zero byte.
    let opened = unsafe { syscall!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
    let Ok(file) = opened else {
        return;
    };
    // A line has about 90 bytes.
    let mut buffer = [0_u8; 4096];
    let (mut filled, mut is_over) = (0, false);
    while !is_over {
        let room = &mut buffer[filled..];
        // SAFETY: the buffer has as much room as is claimed.
        match unsafe { syscall!(SYS_read, file, room.as_mut_ptr(), room.len()) } {
            Ok(read @ 1..) => filled += read,
            _ => break,
        }
        let mut begin = 0;
        while let Some(length) = buffer[begin..filled].iter().position(|&byte| byte == b'\n')
            && !is_over
        {
            let line = &buffer[begin..begin + length];
            is_over = member_in(line).is_some_and(|(fd, inode)| !goes_on(fd, inode));
            begin += length + 1;
        }
        buffer.copy_within(begin..filled, 0);
        filled -= begin;
    }
    // SAFETY: opened above, and known to nobody else.
    let _ = unsafe { syscall!(SYS_close, file) };
}

/// The fd and the inode of the member that a line about a set in `/proc` is about. Before Linux 4.13 it has no inode.
fn member_in(line: &[u8]) -> Option<(RawFd, u64)> {
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let fd = words
        .next()
        .filter(|&word| word == "tfd:")
        .and(words.next())?;
    let inode = words.find_map(|word| word.strip_prefix("ino:"))?;
    Some((fd.parse().ok()?, u64::from_str_radix(inode, 16).ok()?))
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.fd().fmt(f)
    }
}

#[cfg(all(test, not(upoll_loom)))]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_member_is_listed_by_its_fd_and_file_among_many() {
        let new = || std::io::pipe().unwrap();
        // SAFETY: the call takes no pointers.
        let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        let pipes = [(); 40].map(|()| new());
        let members = pipes.each_ref().map(|(reader, _)| reader.as_raw_fd());
        for fd in members {
            assert!(!is_listed(set, fd));
            kernel::epoll_ctl_by_fd(set, Op::Add, fd, &Event::default()).unwrap();
        }
        assert!(members.iter().all(|&fd| is_listed(set, fd)));
        // The file lives on, and its fd is another one's.
        let _lives_on = pipes[7].0.try_clone().unwrap();
        let (other, _writer) = new();
        // SAFETY: both are this test's.
        let replaced = unsafe { libc::dup2(other.as_raw_fd(), members[7]) };
        assert_eq!(replaced, members[7]);
        let listed = members.map(|fd| is_listed(set, fd));
        assert_eq!(listed.iter().filter(|&&is_listed| !is_listed).count(), 1);
        assert!(!listed[7]);
        kernel::close(set);
        assert!(!is_listed(set, members[0]));
    }
}
