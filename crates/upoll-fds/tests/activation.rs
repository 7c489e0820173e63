//! A set that becomes active while the process has no free fd. In a process of its own, whose limit of fds is changed.
#![cfg(not(upoll_loom))]

mod notified;

use std::cell::Cell;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use self::notified::{Answer, Call, Which, answered};
use upoll::{Epoll, Errno, Event, Events, Op};

/// One test at a time: each changes the limit of fds.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the limit of open files, and returns the one before.
fn limit_of_files(limit: libc::rlim_t) -> libc::rlim_t {
    let mut now = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure is live.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut now), 0);
        let before = std::mem::replace(&mut now.rlim_cur, limit);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const now), 0);
        before
    }
}

/// The number of seconds that threads with [`LIVES_AHEAD`] are ahead.
static AHEAD: AtomicI64 = AtomicI64::new(0);

thread_local! {
    static LIVES_AHEAD: Cell<bool> = const { Cell::new(false) };
}

/// The C library's, with another clock for some threads. The libraries in this program use it, too.
#[unsafe(no_mangle)]
extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> libc::c_int {
    // SAFETY: the caller passes a timespec to be filled.
    if unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) } != 0 {
        return -1;
    }
    if LIVES_AHEAD.get() {
        // SAFETY: as above.
        unsafe { (*time).tv_sec += AHEAD.load(Ordering::SeqCst) };
    }
    0
}

fn polled(epfd: RawFd) -> Result<usize, Errno> {
    let mut entry = libc::pollfd {
        fd: epfd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the entry is live.
    unsafe { upoll_fds::poll(&raw mut entry, 1, 1) }
}

/// Runs `call` while the process has no free fd.
fn without_fds<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: the call takes no pointers.
    let open = || unsafe { libc::fcntl(0, libc::F_DUPFD_CLOEXEC, 0) };
    let before = limit_of_files(64);
    let taken: Vec<RawFd> = std::iter::repeat_with(open)
        .take_while(|&fd| fd >= 0)
        .collect();
    let result = call();
    for fd in taken {
        // SAFETY: it was opened above.
        assert_eq!(unsafe { libc::close(fd) }, 0);
    }
    limit_of_files(before);
    result
}

fn wait(epfd: RawFd, timeout: i32) -> Result<usize, Errno> {
    let mut events = [Event::default(); 4];
    // SAFETY: the events are live.
    unsafe { upoll_fds::epoll_wait(epfd, events.as_mut_ptr(), 4, timeout) }
}

fn add(epfd: RawFd, fd: RawFd) -> Result<(), Errno> {
    let interest = Event::new(Events::IN, 7);
    // SAFETY: the interest is live.
    unsafe { upoll_fds::epoll_ctl(epfd, Op::Add as i32, fd, &raw const interest) }
}

/// The file that shows which system call a thread of this process is in.
fn calls_of(thread: libc::pid_t) -> File {
    File::open(format!("/proc/self/task/{thread}/syscall")).unwrap()
}

fn is_in(calls: &File, any: &[libc::c_long]) -> bool {
    let mut text = [0; 32];
    let length = calls.read_at(&mut text, 0).unwrap_or(0);
    let text = String::from_utf8_lossy(&text[..length]);
    let number = text.split(' ').next().and_then(|word| word.parse().ok());
    number.is_some_and(|number| any.contains(&number))
}

/// Starts a thread that waits in the set. Returns when it sleeps there.
fn asleep_in(epfd: RawFd) -> mpsc::Receiver<Result<usize, Errno>> {
    let (send, receive) = mpsc::channel();
    let (send_tid, tid) = mpsc::channel();
    thread::spawn(move || {
        // SAFETY: the call takes no arguments.
        send_tid.send(unsafe { libc::gettid() }).unwrap();
        send.send(wait(epfd, 120_000)).unwrap();
    });
    let calls = calls_of(tid.recv().unwrap());
    for _ in 0..60_000 {
        if is_in(&calls, &[libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2]) {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    receive
}

#[test]
fn a_thread_that_waits_in_a_set_learns_of_a_change_that_had_no_fd_for_its_wakeup_at_first() {
    let _alone = alone();
    let epfd = upoll_fds::epoll_create1(0).unwrap();
    let counter = upoll_fds::eventfd(0, 0).unwrap();
    let waits = asleep_in(epfd);
    assert_eq!(without_fds(|| polled(epfd)), Err(Errno::MFILE));

    add(epfd, counter).unwrap();
    let one = 1_u64.to_ne_bytes();
    // SAFETY: the bytes are live.
    assert_eq!(unsafe { upoll_fds::write(counter, one.as_ptr(), 8) }, Ok(8));
    assert_eq!(waits.recv_timeout(Duration::from_secs(60)), Ok(Ok(1)));
}

#[test]
fn a_set_without_an_fd_for_its_change_is_waited_in_as_before() {
    let _alone = alone();
    let epfd = upoll_fds::epoll_create1(0).unwrap();
    let waits = asleep_in(epfd);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let reader = std::os::fd::AsRawFd::as_raw_fd(&reader);
    let found = without_fds(|| {
        assert_eq!(polled(epfd), Err(Errno::MFILE));
        assert_eq!(wait(epfd, 0), Ok(0));
        add(epfd, reader).unwrap();
        assert_eq!(polled(epfd), Err(Errno::MFILE));
        assert_eq!(wait(epfd, 0), Ok(0));
        std::io::Write::write_all(&mut writer, b"x").unwrap();
        wait(epfd, 60_000)
    });
    assert_eq!(found, Ok(1));
    assert_eq!(waits.recv_timeout(Duration::from_secs(60)), Ok(Ok(1)));
    assert_eq!(polled(epfd), Ok(1));
    assert_eq!(wait(epfd, 60_000), Ok(1));
}

const COPIES: Which = Which {
    number: libc::SYS_fcntl,
    // The command is `F_DUPFD_CLOEXEC`.
    argument: 1,
    bits: 1 << 10,
};

/// Opens a set in which a thread sleeps. The file that interrupts waits is open as well: it comes with the first kernel fd.
fn set_with_a_sleeper() -> (RawFd, mpsc::Receiver<Result<usize, Errno>>) {
    let epfd = upoll_fds::epoll_create1(0).unwrap();
    let waits = asleep_in(epfd);
    let (reader, _writer) = std::io::pipe().unwrap();
    let first = Epoll::new().unwrap();
    first.add(&reader, Event::new(Events::IN, 0)).unwrap();
    (epfd, waits)
}

/// Makes the set active without an fd for it. `meanwhile` runs at that moment. Returns the error, and the `outcome` of what
/// another thread did meanwhile.
fn change_without_fds<T: Send + 'static>(
    epfd: RawFd,
    meanwhile: impl FnMut(&Call) -> Answer + Send,
    outcome: mpsc::Receiver<T>,
) -> (Result<usize, Errno>, Result<T, mpsc::RecvTimeoutError>) {
    answered(COPIES, meanwhile, move || {
        without_fds(|| {
            let changed = polled(epfd);
            (changed, outcome.recv_timeout(Duration::from_secs(60)))
        })
    })
}

/// Another thread is about to make the set active, and gets no fd for it.
#[test]
fn a_kernel_fd_is_added_beside_a_change_that_has_no_fd() {
    let _alone = alone();
    let (epfd, _waits) = set_with_a_sleeper();
    let (reader, _writer) = std::io::pipe().unwrap();
    let reader = reader.as_raw_fd();
    let (send, added) = mpsc::channel();
    let mut send = Some(send);
    let adds = |call: &Call| {
        // The test itself takes any fd.
        if call.arguments()[2] != 0
            && let Some(send) = send.take()
        {
            let adds = thread::spawn(move || send.send(add(epfd, reader)).unwrap());
            for _ in 0..100 {
                if adds.is_finished() {
                    break;
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
        Answer::Kernels
    };
    let (changed, added) = change_without_fds(epfd, adds, added);
    assert_eq!(changed, Err(Errno::MFILE));
    assert_eq!(added, Ok(Ok(())));
}

/// Its limit passes while another thread is about to make the set active, and gets no fd for it.
#[test]
fn a_wait_that_cannot_begin_beside_a_change_that_has_no_fd_ends_by_its_limit() {
    const HOUR: i32 = 3_600_000;
    let _alone = alone();
    let (epfd, _waits) = set_with_a_sleeper();
    let (send, waited) = mpsc::channel();
    let (send_tid, tid) = mpsc::channel();
    let (begin, begins) = mpsc::channel();
    let waits = thread::spawn(move || {
        LIVES_AHEAD.set(true);
        // SAFETY: the call takes no arguments.
        send_tid.send(unsafe { libc::gettid() }).unwrap();
        begins.recv().unwrap();
        let _ = send.send(wait(epfd, HOUR));
    });
    let calls = calls_of(tid.recv().unwrap());
    let waits_as_well = |call: &Call| {
        // The test itself takes any fd.
        if call.arguments()[2] != 0 && begin.send(()).is_ok() {
            // It has no fd either, and tries again.
            while !is_in(&calls, &[libc::SYS_nanosleep]) && !waits.is_finished() {
                thread::yield_now();
            }
            AHEAD.store(2 * i64::from(HOUR) / 1000, Ordering::SeqCst);
        }
        Answer::Kernels
    };
    let (changed, waited) = change_without_fds(epfd, waits_as_well, waited);
    assert_eq!(changed, Err(Errno::MFILE));
    // On a very busy machine the wait has given up before the change did.
    assert!(
        matches!(waited, Ok(Ok(0) | Err(Errno::MFILE))),
        "{waited:?}"
    );
}
