//! System calls of the program's.

use super::*;

/// `pipe(2)`: its read end. The write end has no fd.
pub fn pipe() -> Result<RawFd, Errno> {
    fd_for(open(Kind::Source), 0)
}

/// `socket(2)`.
pub fn socket() -> Result<RawFd, Errno> {
    fd_for(open(Kind::Socket), 0)
}

/// `epoll_create1(2)`.
pub fn epoll_create() -> Result<RawFd, Errno> {
    fd_for(open(Kind::Set), 0)
}

/// `dup(2)`.
pub fn dup(fd: RawFd) -> Result<RawFd, Errno> {
    fd_for(Used::of(fd)?, 0)
}

/// `dup2(2)` onto another fd.
pub fn dup2(fd: RawFd, onto: RawFd) -> Result<(), Errno> {
    let used = Used::of(fd)?;
    let entry = entry(onto)?;
    TAKEN.lock().unwrap().insert(onto);
    let before = entry.swap(used.kept() + 1, Ordering::SeqCst);
    drop_fd(before);
    Ok(())
}

/// `close(2)`.
pub fn close(fd: RawFd) -> Result<(), Errno> {
    let before = entry(fd)?.swap(0, Ordering::SeqCst);
    TAKEN.lock().unwrap().remove(&fd);
    match before {
        0 => Err(Errno::BADF),
        _ => {
            drop_fd(before);
            Ok(())
        }
    }
}

fn drop_fd(place: usize) {
    if place != 0 {
        let id = place - 1;
        drop(Used { id, file: file(id) });
    }
}

/// Writes a byte to the pipe whose read end this is.
pub fn write(fd: RawFd) -> Result<(), Errno> {
    let used = Used::of(fd)?;
    {
        let mut state = used.lock();
        state.is_readable = true;
        state.wake_pollers(readable(true));
    }
    tell(used.id, readable(true));
    Ok(())
}

/// Reads all that is in a pipe.
pub fn read_all(fd: RawFd) -> Result<(), Errno> {
    Used::of(fd)?.lock().is_readable = false;
    Ok(())
}

/// `epoll_ctl(2)`.
pub fn epoll_ctl(set: RawFd, op: Op, fd: RawFd, interest: Event) -> Result<(), Errno> {
    epoll_ctl_by_fd(set, op, fd, &interest)
}

/// `epoll_wait(2)` with a limit of zero.
pub fn epoll_wait_now(set: RawFd, events: &mut [Event]) -> Result<usize, Errno> {
    Ok(harvest(&Used::set(set)?, events))
}

/// `epoll_wait(2)` without a limit.
pub fn epoll_wait(set: RawFd, events: &mut [Event]) -> Result<usize, Errno> {
    wait_in(&Used::set(set)?, events, None)
}

/// `poll(2)` without a limit.
pub fn poll(list: &mut [libc::pollfd]) -> Result<usize, Errno> {
    ppoll(list, None, None)
}

/// `poll(2)` with a limit of zero.
pub fn poll_now(list: &mut [libc::pollfd]) -> Result<usize, Errno> {
    ppoll(list, AT_ONCE.as_ref(), None)
}

/// Returns the fds that are open.
pub fn open_fds() -> Vec<RawFd> {
    TAKEN.lock().unwrap().iter().copied().collect()
}

/// Returns how many members a set has (`/proc/self/fdinfo`).
pub fn number_of_members(set: RawFd) -> Result<usize, Errno> {
    Ok(Used::set(set)?.lock().members.len())
}
