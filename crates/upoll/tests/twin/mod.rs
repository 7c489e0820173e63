//! The kernel's half of a comparison: fds, byte streams and sets by system calls, and the
//! assertions.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod changes;
#[cfg(feature = "std")]
pub mod poll;

use std::fmt::Debug;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use upoll::{Epoll, Errno, Event, Events, FileRef, PipeFlags, Shutdown, SocketFlags};

/// Asserts that both worlds returned the same, and returns it.
#[track_caller]
pub fn same<T: PartialEq + Debug>(what: impl Debug, upoll: T, kernel: T) -> T {
    assert_eq!(upoll, kernel, "{what:?}: upoll left, kernel right");
    upoll
}

pub fn result(result: isize) -> Result<usize, Errno> {
    usize::try_from(result)
        .map_err(|_| Errno::from_raw(std::io::Error::last_os_error().raw_os_error().unwrap()))
}

/// A kernel fd.
pub struct Fd(OwnedFd);

impl Fd {
    pub fn new(raw: i32) -> Self {
        assert!(raw >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the caller has just opened the fd.
        Fd(unsafe { OwnedFd::from_raw_fd(raw) })
    }

    pub fn raw(&self) -> i32 {
        self.0.as_raw_fd()
    }

    pub fn into_raw(self) -> i32 {
        self.0.into_raw_fd()
    }

    pub fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        // SAFETY: the buffer has the room that is claimed.
        result(unsafe { libc::read(self.raw(), buffer.as_mut_ptr().cast(), buffer.len()) })
    }

    pub fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        // SAFETY: the buffer has as many bytes as is claimed.
        result(unsafe { libc::write(self.raw(), bytes.as_ptr().cast(), bytes.len()) })
    }

    pub fn writev(&self, parts: [&[u8]; 2]) -> Result<usize, Errno> {
        let vectors = parts.map(|part| libc::iovec {
            iov_base: part.as_ptr().cast_mut().cast(),
            iov_len: part.len(),
        });
        // SAFETY: two vectors that describe live bytes, which a write does not change.
        result(unsafe { libc::writev(self.raw(), vectors.as_ptr(), 2) })
    }

    pub fn readv(&self, parts: [&mut [u8]; 2]) -> Result<usize, Errno> {
        let vectors = parts.map(|part| libc::iovec {
            iov_base: part.as_mut_ptr().cast(),
            iov_len: part.len(),
        });
        // SAFETY: two vectors that describe live buffers.
        result(unsafe { libc::readv(self.raw(), vectors.as_ptr(), 2) })
    }

    pub fn fcntl(&self, command: i32, argument: i32) -> Result<usize, Errno> {
        // SAFETY: the commands in use take a number.
        result(unsafe { libc::fcntl(self.raw(), command, argument) } as isize)
    }

    /// `FIONREAD`.
    pub fn available(&self) -> usize {
        let mut count = 0_i32;
        // SAFETY: the call writes an int.
        result(unsafe { libc::ioctl(self.raw(), libc::FIONREAD, &raw mut count) } as isize)
            .unwrap();
        usize::try_from(count).unwrap()
    }

    /// Returns all events that `poll` reports.
    pub fn events(&self) -> Events {
        let mut poll = libc::pollfd {
            fd: self.raw(),
            events: 0x7fff,
            revents: 0,
        };
        // SAFETY: one live entry.
        result(unsafe { libc::poll(&raw mut poll, 1, 0) } as isize).unwrap();
        Events::from_bits_retain(poll.revents.cast_unsigned().into())
    }
}

/// Opens a kernel pipe. Returns the read end first.
pub fn kernel_pipe(flags: PipeFlags) -> Result<(Fd, Fd), Errno> {
    let mut fds = [0; 2];
    // SAFETY: the call writes two fds.
    let made = unsafe { libc::pipe2(fds.as_mut_ptr(), flags.bits().cast_signed()) };
    result(made as isize)?;
    Ok((Fd::new(fds[0]), Fd::new(fds[1])))
}

/// Opens two connected kernel sockets.
pub fn kernel_pair(flags: SocketFlags) -> Result<[Fd; 2], Errno> {
    let mut fds = [0; 2];
    let kind = libc::SOCK_STREAM | flags.bits().cast_signed();
    // SAFETY: the call writes two fds.
    let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) };
    result(made as isize)?;
    Ok(fds.map(Fd::new))
}

/// `shutdown(2)`
pub fn kernel_shutdown(fd: &Fd, how: Shutdown) {
    let how = match how {
        Shutdown::Read => libc::SHUT_RD,
        Shutdown::Write => libc::SHUT_WR,
        Shutdown::Both => libc::SHUT_RDWR,
    };
    // SAFETY: the call takes no pointers.
    result(unsafe { libc::shutdown(fd.raw(), how) } as isize).unwrap();
}

/// Returns all events of a user-level file.
pub fn events(file: FileRef<'_>) -> Events {
    let bits = (0..15).map(|bit| Events::from_bits_retain(1 << bit));
    bits.filter(|&bit| file.is_ready(bit)).collect()
}

/// A set in both worlds.
pub struct Sets {
    pub upoll: Epoll,
    kernel: Fd,
}

impl Sets {
    pub fn new() -> Self {
        Sets {
            upoll: Epoll::new().unwrap(),
            // SAFETY: the call takes no pointers.
            kernel: Fd::new(unsafe { libc::epoll_create1(0) }),
        }
    }

    pub fn ctl(
        &self,
        op: i32,
        file: FileRef<'_>,
        fd: &Fd,
        events: Events,
        data: u64,
    ) -> Result<(), Errno> {
        let event = Event::new(events, data);
        let upoll = match op {
            libc::EPOLL_CTL_ADD => self.upoll.add(&file, event),
            libc::EPOLL_CTL_MOD => self.upoll.modify(&file, event),
            _ => self.upoll.delete(&file),
        };
        let mut event = libc::epoll_event {
            events: events.bits(),
            u64: data,
        };
        // SAFETY: the event outlives the call.
        let kernel =
            unsafe { libc::epoll_ctl(self.kernel.raw(), op, fd.raw(), &raw mut event) } as isize;
        same(("ctl", op, events), upoll, result(kernel).map(drop))
    }

    pub fn add(&self, file: FileRef<'_>, fd: &Fd, events: Events, data: u64) {
        self.ctl(libc::EPOLL_CTL_ADD, file, fd, events, data)
            .unwrap();
    }

    /// Compares the ready events and their data, and returns them.
    #[track_caller]
    pub fn wait(&self) -> Vec<(Events, u64)> {
        let mut ours = [Event::default(); 8];
        let ready = self.upoll.try_wait(&mut ours).unwrap();
        let ours: Vec<_> = ours[..ready]
            .iter()
            .map(|event| (event.events(), event.data()))
            .collect();
        let mut theirs = [libc::epoll_event { events: 0, u64: 0 }; 8];
        // SAFETY: the buffer holds eight events.
        let ready = unsafe { libc::epoll_wait(self.kernel.raw(), theirs.as_mut_ptr(), 8, 0) };
        let theirs = theirs[..result(ready as isize).unwrap()]
            .iter()
            .map(|event| (Events::from_bits_retain(event.events), event.u64))
            .collect();
        same("wait", ours, theirs)
    }

    #[track_caller]
    pub fn data(&self) -> Vec<u64> {
        self.wait().into_iter().map(|(_, data)| data).collect()
    }
}

/// A byte pattern that depends on the position in the stream, so that a misplaced byte is detected.
pub struct Pattern(u32);

impl Pattern {
    pub fn new() -> Self {
        Pattern(0)
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let next = || {
            self.0 += 1;
            (self.0 ^ (self.0 >> 8) ^ (self.0 >> 16)).to_le_bytes()[0]
        };
        std::iter::repeat_with(next).take(count).collect()
    }
}

/// The number of signals that were handled.
static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_signal(_: i32) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

/// Sends a signal to thread `tid`, with or without `SA_RESTART` in its action, and waits until it
/// was handled. One test at a time.
pub fn signal(tid: i32, restart: bool) {
    let handled = HANDLED.load(Ordering::SeqCst);
    let number = if restart {
        libc::SIGUSR1
    } else {
        libc::SIGUSR2
    };
    // SAFETY: a zeroed sigaction is valid, the handler does nothing, and the thread is this
    // process's own.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as extern "C" fn(i32) as usize;
        action.sa_flags = if restart { libc::SA_RESTART } else { 0 };
        let installed = libc::sigaction(number, &raw const action, std::ptr::null_mut());
        assert_eq!(installed, 0);
        let sent = libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, number);
        assert_eq!(sent, 0);
    }
    while HANDLED.load(Ordering::SeqCst) == handled {
        thread::yield_now();
    }
}
