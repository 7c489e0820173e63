//! Transfers the contents of a pipe or a pair of sockets to the kernel object behind it. The bytes are
//! transferred in the same pieces, so that as much room is left as before.
//!
//! A closed end has no fd any more, so the data that it has sent cannot be written into that kernel
//! object. A new kernel object then takes the place of the old one, under the fds of the open end.

use std::os::fd::RawFd;

use upoll::Errno;
use upoll::internal::{PageView, SocketContents};

use crate::kernel::{self, call, int, to_fd};

/// The fds of both ends of a pipe, or of both sockets of a pair; empty for a closed end.
#[derive(Default)]
pub(crate) struct Ends {
    /// The reader of a pipe; the first of two sockets.
    pub(crate) one: Vec<RawFd>,
    pub(crate) other: Vec<RawFd>,
}

/// Fds from this one on are out of the way of the lowest free one, mostly.
const HIGH: RawFd = 256;

/// An fd of a demotion's own, closed when it is dropped.
///
/// A fork waits for the demotion under way, and a child of `vfork` has it until `execve` at most. A file that
/// another thread puts under its fd meanwhile is closed. The demotion cannot hold the fds: a `dup2` that holds them may
/// wait for the demotion.
pub(crate) struct Own(RawFd);

impl Own {
    /// Returns an fd for the file of `fd`, out of the way of the lowest free one if possible.
    ///
    /// # Errors
    /// `EMFILE`: there is no free fd.
    pub(crate) fn copy(fd: RawFd) -> Result<Own, Errno> {
        // SAFETY: no pointers are involved.
        let copy = |first| to_fd(unsafe { call!(SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, first) });
        copy(HIGH).or_else(|_| copy(0)).map(Own)
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0
    }

    /// Moves both to fds that are out of the way of the lowest free one.
    fn pair([one, other]: [RawFd; 2]) -> [Own; 2] {
        [one, other].map(|low| {
            // SAFETY: no pointers are involved.
            let high = to_fd(unsafe { call!(SYS_fcntl, low, libc::F_DUPFD_CLOEXEC, HIGH) });
            let low = Own(low);
            match high {
                Ok(high) => Own(high),
                // It stays where it is.
                Err(_) => Own(std::mem::ManuallyDrop::new(low).0),
            }
        })
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // It is this module's own.
        let _ = kernel::close(self.0);
    }
}

/// The flags that `F_SETFL` sets.
const STATUS: i32 =
    libc::O_APPEND | libc::O_NONBLOCK | libc::O_ASYNC | libc::O_DIRECT | libc::O_NOATIME;

fn status(fd: RawFd) -> Result<i32, Errno> {
    // SAFETY: no pointers are involved.
    int(unsafe { call!(SYS_fcntl, fd, libc::F_GETFL) }).map(|flags| flags & STATUS)
}

fn set_status(fd: RawFd, flags: i32) -> Result<(), Errno> {
    // SAFETY: no pointers are involved.
    unsafe { call!(SYS_fcntl, fd, libc::F_SETFL, flags) }.map(drop)
}

/// Makes all of `fds` refer to the file of `new`.
fn replace(fds: &[RawFd], new: &Own) -> Result<(), Errno> {
    if let Some(&first) = fds.first() {
        set_status(new.0, status(first)?)?;
    }
    for &fd in fds {
        kernel::replace(fd, new.0);
    }
    Ok(())
}

/// # Errors
/// The kernel's, for lack of memory or of the right to make the pipe as large; nothing is changed
/// then.
pub(crate) fn pipe(
    pages: &mut dyn Iterator<Item = PageView<'_>>,
    capacity: usize,
    ends: &Ends,
) -> Result<(), Errno> {
    let mut pages = pages.peekable();
    let (end, fds) = match (ends.one.first(), ends.other.first()) {
        (Some(&reader), Some(&writer)) => return fill_pipe(&mut pages, capacity, [reader, writer]),
        (Some(&reader), None) => (reader, &ends.one),
        (None, Some(&writer)) => (writer, &ends.other),
        (None, None) => return Ok(()),
    };
    if pages.peek().is_none() {
        // A pipe smaller than the user-level one is not noticed: nobody reads, or nobody writes.
        return resize(end, capacity).or(Ok(()));
    }
    let mut pair = [-1; 2];
    // SAFETY: there is room for two fds.
    unsafe { call!(SYS_pipe2, pair.as_mut_ptr(), libc::O_CLOEXEC) }?;
    let [reader, writer] = Own::pair(pair);
    fill_pipe(&mut pages, capacity, [reader.0, writer.0])?;
    // The bytes that a closed reader has left still count (`FIONREAD`), and a new reader may open the pipe
    // in `/proc`.
    let is_read = ends.other.is_empty();
    replace(fds, if is_read { &reader } else { &writer })
}

/// Makes the kernel's pipe as large as the user-level one.
fn resize(fd: RawFd, capacity: usize) -> Result<(), Errno> {
    // SAFETY: no pointers are involved.
    let now = unsafe { call!(SYS_fcntl, fd, libc::F_GETPIPE_SZ) }?;
    if now == capacity {
        return Ok(());
    }
    // SAFETY: no pointers are involved.
    unsafe { call!(SYS_fcntl, fd, libc::F_SETPIPE_SZ, capacity) }.map(drop)
}

fn fill_pipe<'a>(
    pages: &mut impl Iterator<Item = PageView<'a>>,
    capacity: usize,
    [reader, writer]: [RawFd; 2],
) -> Result<(), Errno> {
    // If it cannot be as large, the contents may still fit.
    let resized = resize(writer, capacity);
    let mut pages = pages.peekable();
    if pages.peek().is_none() {
        return Ok(());
    }
    let flags = status(writer)?;
    let mut result = Ok(());
    for page in pages {
        result = fill_page(&page, [reader, writer], flags);
        if let Err(errno) = result {
            let has_no_room = errno == Errno::AGAIN && resized.is_err();
            result = if has_no_room { resized } else { result };
            empty(reader);
            break;
        }
    }
    set_status(writer, flags)?;
    result
}

/// Writes a whole page, then reads the part that the user has read: the rest takes the room of a
/// whole page.
fn fill_page(page: &PageView<'_>, [reader, writer]: [RawFd; 2], flags: i32) -> Result<(), Errno> {
    let packet = if page.is_packet { libc::O_DIRECT } else { 0 };
    set_status(writer, flags & !libc::O_DIRECT | packet | libc::O_NONBLOCK)?;
    // SAFETY: the bytes are live.
    unsafe { call!(SYS_write, writer, page.bytes.as_ptr(), page.bytes.len()) }?;
    discard(reader, page.read);
    Ok(())
}

/// The size of the buffer for discarded bytes. It is small because threads that fork may have small
/// stacks.
const NOTHING: usize = 512;

/// Reads and discards all that is in a pipe. A read discards the rest of a packet as well, so it is asked before each
/// whether there is more: it would block otherwise.
fn empty(reader: RawFd) {
    loop {
        let mut left = 0_i32;
        // SAFETY: there is room for the fd.
        let asked = unsafe { call!(SYS_ioctl, reader, libc::FIONREAD, &raw mut left) };
        let left = usize::try_from(left).unwrap_or(0);
        if asked.is_err() || left == 0 || discard_some(reader, left) == 0 {
            return;
        }
    }
}

/// Reads and discards `count` bytes, which are available, or a packet of as many.
fn discard(fd: RawFd, count: usize) {
    let mut left = count;
    while left > 0 {
        match discard_some(fd, left) {
            0 => return,
            read => left -= read,
        }
    }
}

/// Reads and discards at most `most` bytes, which are available. Returns how many were read.
#[inline(never)]
fn discard_some(fd: RawFd, most: usize) -> usize {
    let mut nothing = [0_u8; NOTHING];
    let most = most.min(nothing.len());
    // SAFETY: the buffer has that much room.
    unsafe { call!(SYS_read, fd, nothing.as_mut_ptr(), most) }.unwrap_or(0)
}

/// # Errors
/// The kernel's, for lack of memory; nothing is changed then.
pub(crate) fn sockets([one, other]: &[SocketContents; 2], ends: &Ends) -> Result<(), Errno> {
    match (ends.one.first(), ends.other.first()) {
        (Some(&first), Some(&second)) => {
            set_send_buffer(first, one.send_buffer);
            set_send_buffer(second, other.send_buffer);
            if let Err(errno) = send(one, second, first).and_then(|()| send(other, first, second)) {
                drain(first);
                drain(second);
                return Err(errno);
            }
            let shut = |is_shut: bool, how: i32| match is_shut {
                // SAFETY: no pointers are involved.
                true => unsafe { call!(SYS_shutdown, first, how) }.map(drop),
                false => Ok(()),
            };
            shut(one.is_shut[0], libc::SHUT_RD)?;
            shut(one.is_shut[1], libc::SHUT_WR)
        }
        (Some(_), None) => leave_behind(one, other, &ends.one),
        (None, Some(_)) => leave_behind(other, one, &ends.other),
        (None, None) => Ok(()),
    }
}

/// Transfers the contents of a socket whose peer is closed.
fn leave_behind(
    contents: &SocketContents,
    of_the_peer: &SocketContents,
    fds: &[RawFd],
) -> Result<(), Errno> {
    // The call that has closed the peer may not have released it yet.
    let is_reset = contents.is_reset || !of_the_peer.bytes.is_empty();
    if contents.bytes.is_empty() && !is_reset {
        return Ok(());
    }
    let mut pair = [-1; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: there is room for two fds.
    unsafe { call!(SYS_socketpair, libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) }?;
    let [new, peer] = Own::pair(pair);
    set_send_buffer(new.0, contents.send_buffer);
    send(contents, peer.0, new.0)?;
    if is_reset {
        // The peer closes with this byte unread, which resets the connection.
        send_bytes(new.0, &[0])?;
    }
    drop(peer);
    replace(fds, &new)
}

/// The size of the option's value, as the calls take it.
const SIZE_OF_SIZE: libc::socklen_t = size_of::<i32>() as libc::socklen_t;

/// Returns the size of a socket's send buffer.
fn send_buffer(fd: RawFd) -> Option<i32> {
    let mut bytes = 0_i32;
    let mut size = SIZE_OF_SIZE;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_SNDBUF);
    let (value, length) = (&raw mut bytes, &raw mut size);
    // SAFETY: both places are live.
    let asked = unsafe { call!(SYS_getsockopt, fd, level, option, value, length) };
    asked.is_ok().then_some(bytes)
}

/// Sets the send buffer of the kernel's socket to the size of the user-level one's.
fn set_send_buffer(fd: RawFd, bytes: usize) {
    let wanted = i32::try_from(bytes).unwrap_or(i32::MAX);
    if send_buffer(fd).is_some_and(|now| now != wanted) {
        // The kernel doubles the value, and limits it.
        let half = wanted / 2;
        let (level, option, value) = (libc::SOL_SOCKET, libc::SO_SNDBUF, &raw const half);
        // SAFETY: the value is live.
        let _ = unsafe { call!(SYS_setsockopt, fd, level, option, value, SIZE_OF_SIZE) };
    }
}

/// Sends the bytes of `contents` in the same pieces.
fn send(contents: &SocketContents, from: RawFd, to: RawFd) -> Result<(), Errno> {
    let mut rest = &contents.bytes[..];
    let mut piece = Vec::new();
    for message in &contents.messages {
        let (unread, later) = rest.split_at(message.unread);
        rest = later;
        let read = message.size - message.unread;
        piece.clear();
        piece
            .try_reserve(read + unread.len())
            .map_err(|_| Errno::NOMEM)?;
        piece.resize(read, 0);
        piece.extend_from_slice(unread);
        send_bytes(from, &piece)?;
        discard(to, read);
    }
    Ok(())
}

/// Reads and discards all available bytes.
#[inline(never)]
fn drain(fd: RawFd) {
    let mut nothing = [0_u8; NOTHING];
    let (place, most) = (nothing.as_mut_ptr(), nothing.len());
    // SAFETY: the buffer has that much room.
    while unsafe { call!(SYS_recvfrom, fd, place, most, libc::MSG_DONTWAIT, 0, 0) }
        .is_ok_and(|read| read > 0)
    {}
}

fn send_bytes(fd: RawFd, bytes: &[u8]) -> Result<(), Errno> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let mut done = 0;
    while done < bytes.len() {
        let rest = &bytes[done..];
        // SAFETY: the bytes are live.
        let sent = unsafe { call!(SYS_sendto, fd, rest.as_ptr(), rest.len(), flags, 0, 0) };
        match sent {
            Ok(sent) => done += sent,
            Err(errno) => {
                // On other hardware a message may be charged more, so that less fits.
                if errno != Errno::AGAIN || !grow(fd) {
                    return Err(errno);
                }
            }
        }
    }
    Ok(())
}

/// Increases the send buffer of a socket. Returns whether it is larger than before.
fn grow(fd: RawFd) -> bool {
    let Some(before) = send_buffer(fd) else {
        return false;
    };
    set_send_buffer(fd, usize::try_from(before).unwrap_or(0).saturating_mul(2));
    send_buffer(fd).is_some_and(|now| now > before)
}

#[cfg(all(test, not(upoll_loom)))]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// A read discards the rest of a packet, so fewer bytes are read than were written.
    #[test]
    fn a_pipe_with_packets_is_emptied_without_blocking() {
        for packets in [&[600; 3][..], &[10, 600, 10], &[4096], &[]] {
            let mut pair = [-1; 2];
            // SAFETY: there is room for two fds.
            unsafe {
                call!(
                    SYS_pipe2,
                    pair.as_mut_ptr(),
                    libc::O_CLOEXEC | libc::O_DIRECT
                )
            }
            .expect("there are fds");
            let [reader, writer] = pair.map(Own);
            for &size in packets {
                let packet = vec![7_u8; size];
                // SAFETY: the bytes are live.
                let written = unsafe { call!(SYS_write, writer.0, packet.as_ptr(), size) };
                assert_eq!(written, Ok(size));
            }
            let (done, ended) = mpsc::channel();
            let emptying = thread::spawn(move || {
                empty(reader.0);
                done.send(reader).expect("the test waits for it");
            });
            let reader = ended
                .recv_timeout(Duration::from_secs(60))
                .expect("it ends");
            emptying.join().expect("it has ended");
            let mut left = 1_i32;
            // SAFETY: there is room for the fd.
            unsafe { call!(SYS_ioctl, reader.0, libc::FIONREAD, &raw mut left) }.expect("a pipe");
            assert_eq!(left, 0);
        }
    }
}
