//! System calls of one thread that another one answers, in place of the kernel: `SECCOMP_RET_USER_NOTIF`.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use libc::{seccomp_notif, seccomp_notif_resp, sock_filter, sock_fprog};

/// The answer to a system call.
pub enum Answer {
    /// The kernel executes the call.
    Kernels,
    /// Success: the call has been made in the caller's place.
    Done,
    /// This error.
    Error(i32),
}

/// A system call that waits for its answer.
pub struct Call {
    listener: i32,
    notified: seccomp_notif,
}

impl Call {
    pub fn number(&self) -> i32 {
        self.notified.data.nr
    }

    pub fn arguments(&self) -> [u64; 6] {
        self.notified.data.args
    }

    /// Returns whether the thread is still in the call: no signal has got it out.
    pub fn is_under_way(&self) -> bool {
        let id = &raw const self.notified.id;
        // SAFETY: the fd is live.
        unsafe { libc::ioctl(self.listener, libc::SECCOMP_IOCTL_NOTIF_ID_VALID, id) == 0 }
    }
}

/// The calls to answer: this system call, if its argument `argument` has one of these bits.
#[derive(Clone, Copy)]
pub struct Which {
    pub number: libc::c_long,
    pub argument: u32,
    pub bits: u32,
}

/// Makes `calls` in a thread whose system calls of that kind `answer` answers, and those of threads that it
/// begins.
pub fn answered<T: Send>(
    which: Which,
    mut answer: impl FnMut(&Call) -> Answer + Send,
    calls: impl FnOnce() -> T + Send,
) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            if let Ok(listener) = receiver.recv() {
                serve(&listener, &mut answer, &mut |_| {});
            }
        });
        let caller = scope.spawn(move || {
            sender.send(listen(which)).unwrap();
            calls()
        });
        caller
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Makes `calls` in a thread of which each system call is reported. `begun` runs before the call, while the thread waits. After
/// `goes_on` the thread is asleep only if the call, or a later one, lets it sleep.
pub fn reported<T: Send>(
    mut begun: impl FnMut(&Call) + Send,
    mut goes_on: impl FnMut(&Call) + Send,
    calls: impl FnOnce() -> T + Send,
) -> T {
    // A channel would make system calls.
    let listener = AtomicI32::new(-1);
    thread::scope(|scope| {
        let caller = scope.spawn(|| {
            listener.store(
                install(&mut [filter(RETURN, 0, 0, NOTIFY)]),
                Ordering::SeqCst,
            );
            calls()
        });
        while listener.load(Ordering::SeqCst) < 0 && !caller.is_finished() {
            thread::sleep(Duration::from_millis(1));
        }
        let listener = listener.load(Ordering::SeqCst);
        if listener >= 0 {
            // SAFETY: the fd is new, and this owns it.
            let listener = unsafe { OwnedFd::from_raw_fd(listener) };
            let mut answer = |call: &Call| {
                begun(call);
                Answer::Kernels
            };
            serve(&listener, &mut answer, &mut goes_on);
        }
        caller
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

const NOTIFY: u32 = 0x7fc0_0000;
const RETURN: u16 = 0x06;

fn filter(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// Returns the fd that reports such calls of this thread.
fn listen(which: Which) -> OwnedFd {
    const ALLOW: u32 = 0x7fff_0000;
    const LOAD: u16 = 0x20;
    const IF_EQUAL: u16 = 0x15;
    const IF_ANY_BIT: u16 = 0x45;
    let mut filters = [
        filter(LOAD, 0, 0, 0),
        filter(IF_EQUAL, 0, 3, u32::try_from(which.number).unwrap()),
        // The low half of the argument.
        filter(LOAD, 0, 0, 16 + 8 * which.argument),
        filter(IF_ANY_BIT, 0, 1, which.bits),
        filter(RETURN, 0, 0, NOTIFY),
        filter(RETURN, 0, 0, ALLOW),
    ];
    // SAFETY: the fd is new, and this owns it.
    unsafe { OwnedFd::from_raw_fd(install(&mut filters)) }
}

/// Filters the system calls of this thread. Returns the fd that reports them.
fn install(filters: &mut [sock_filter]) -> i32 {
    let program = sock_fprog {
        len: u16::try_from(filters.len()).unwrap(),
        filter: filters.as_mut_ptr(),
    };
    // SAFETY: the program is live; it concerns this thread alone.
    let listener = unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    assert!(listener >= 0, "{}", std::io::Error::last_os_error());
    i32::try_from(listener).unwrap()
}

/// Handles calls until the threads have ended. `answered` runs when a call has its answer.
fn serve(
    listener: &OwnedFd,
    answer: &mut impl FnMut(&Call) -> Answer,
    answered: &mut impl FnMut(&Call),
) {
    const CONTINUE: u32 = 1;
    let listener = listener.as_raw_fd();
    loop {
        let mut entry = libc::pollfd {
            fd: listener,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: the entry is live.
        unsafe { libc::poll(&raw mut entry, 1, -1) };
        if entry.revents & libc::POLLIN == 0 {
            return;
        }
        let mut call = Call {
            listener,
            // SAFETY: zero is a value of all of its fields, and the kernel wants them so.
            notified: unsafe { std::mem::zeroed() },
        };
        let notified = &raw mut call.notified;
        // SAFETY: the structure is live.
        if unsafe { libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_RECV, notified) } != 0 {
            continue;
        }
        let (error, flags) = match answer(&call) {
            Answer::Kernels => (0, CONTINUE),
            Answer::Done => (0, 0),
            Answer::Error(errno) => (-errno, 0),
        };
        let mut response = seccomp_notif_resp {
            id: call.notified.id,
            val: 0,
            error,
            flags,
        };
        // SAFETY: the structure is live. It fails for a thread that a signal has got out.
        unsafe { libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut response) };
        answered(&call);
    }
}
