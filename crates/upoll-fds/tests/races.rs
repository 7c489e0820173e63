//! Calls on an fd against changes of what it means, by other threads and by signal handlers.

mod returns;

use std::io::Write;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Barrier};
use std::thread;

use returns::returns;
use upoll::{Errno, Event, Events, File, PollTable, Pollable};

/// The number of times that a race is tried.
const TRIES: usize = 20_000;

/// More than any test takes from it, one at a time and without waiting.
const PLENTY: u32 = u32::MAX;
const FLAGS: i32 = libc::EFD_SEMAPHORE | libc::EFD_NONBLOCK;

fn take_one(fd: RawFd) -> Result<usize, Errno> {
    let mut value = [0_u8; 8];
    // SAFETY: the buffer is live.
    unsafe { upoll_fds::read(fd, value.as_mut_ptr(), value.len()) }
}

#[test]
fn an_fd_that_is_replaced_all_the_time_is_always_one_of_the_two() {
    let sources = [PLENTY, PLENTY].map(|count| upoll_fds::eventfd(count, FLAGS).unwrap());
    let fd = upoll_fds::dup(sources[0]).unwrap();
    let ends = Arc::new(AtomicBool::new(false));
    let has_ended = Arc::clone(&ends);
    let reading = thread::spawn(move || {
        while !has_ended.load(Ordering::Relaxed) {
            assert_eq!(take_one(fd), Ok(8));
        }
    });
    for round in 0..TRIES {
        upoll_fds::dup2(sources[round % 2], fd).unwrap();
        // Does not come about.
        assert_eq!(upoll_fds::dup3(sources[0], fd, -1), Err(Errno::INVAL));
    }
    ends.store(true, Ordering::Relaxed);
    reading.join().unwrap();
}

#[test]
fn a_copy_of_an_fd_that_is_being_replaced_is_one_of_the_two() {
    let ours = upoll_fds::eventfd(PLENTY, FLAGS).unwrap();
    // SAFETY: no pointers are involved.
    let the_kernels = unsafe { libc::eventfd(PLENTY, FLAGS) };
    let fd = upoll_fds::dup(ours).unwrap();
    let place = upoll_fds::dup(ours).unwrap();
    let ends = Arc::new(AtomicBool::new(false));
    let has_ended = Arc::clone(&ends);
    let copying = thread::spawn(move || {
        while !has_ended.load(Ordering::Relaxed) {
            let copy = upoll_fds::dup(fd).unwrap();
            assert_eq!(take_one(copy), Ok(8), "dup");
            upoll_fds::close(copy).unwrap();
            upoll_fds::dup2(fd, place).unwrap();
            assert_eq!(take_one(place), Ok(8), "dup2");
        }
    });
    for round in 0..TRIES {
        upoll_fds::dup2([ours, the_kernels][round % 2], fd).unwrap();
    }
    ends.store(true, Ordering::Relaxed);
    copying.join().unwrap();
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);
static REFUSED: AtomicUsize = AtomicUsize::new(0);
static IN_HANDLER: AtomicI32 = AtomicI32::new(-1);

extern "C" fn takes_one(_: i32) {
    let fd = IN_HANDLER.load(Ordering::Relaxed);
    if take_one(fd) != Ok(8) {
        REFUSED.fetch_add(1, Ordering::Relaxed);
    }
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_handler_may_use_the_fd_that_the_code_under_it_is_changing() {
    returns(|| {
        let sources = [PLENTY, PLENTY].map(|count| upoll_fds::eventfd(count, FLAGS).unwrap());
        let fd = upoll_fds::dup(sources[0]).unwrap();
        IN_HANDLER.store(fd, Ordering::Relaxed);
        let takes_one: extern "C" fn(i32) = takes_one;
        // SAFETY: the handler makes only calls that handlers may make.
        let thread = unsafe {
            libc::signal(libc::SIGUSR1, takes_one as libc::sighandler_t);
            libc::pthread_self()
        };
        let ends = Arc::new(AtomicBool::new(false));
        let has_ended = Arc::clone(&ends);
        let signalling = thread::spawn(move || {
            while !has_ended.load(Ordering::Relaxed) {
                // SAFETY: the thread waits for this one.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
            }
        });
        let mut rounds = 0;
        // On a busy machine the other thread may begin late.
        while rounds < TRIES || HANDLED.load(Ordering::Relaxed) == 0 {
            upoll_fds::dup2(sources[rounds % 2], fd).unwrap();
            rounds += 1;
        }
        ends.store(true, Ordering::Relaxed);
        signalling.join().unwrap();
    });
    assert_eq!(REFUSED.load(Ordering::Relaxed), 0);
}

/// Records that its open file is gone.
struct Tells(Arc<AtomicBool>);

impl Pollable for Tells {
    fn poll<'q>(&'q self, _: &mut PollTable<'q>) -> Events {
        Events::empty()
    }
}

impl Drop for Tells {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn tells() -> (RawFd, Arc<AtomicBool>) {
    let is_gone = Arc::new(AtomicBool::new(false));
    let file = File::new(Tells(Arc::clone(&is_gone)));
    (upoll_fds::open(&file, true).unwrap(), is_gone)
}

#[test]
fn an_open_file_that_is_closed_in_a_call_on_it_goes_with_the_end_of_the_call() {
    let (fd, is_gone) = tells();
    upoll_fds::with_own(fd, |_: &Tells| {
        // As a signal handler would.
        upoll_fds::close(fd).unwrap();
        assert!(!is_gone.load(Ordering::SeqCst));
    })
    .unwrap();
    assert!(is_gone.load(Ordering::SeqCst));
}

/// Closes an fd in the midst of a look at it, as a signal handler would.
struct Closes(AtomicI32, Arc<AtomicBool>);

impl Pollable for Closes {
    fn poll<'q>(&'q self, _: &mut PollTable<'q>) -> Events {
        let fd = self.0.swap(-1, Ordering::SeqCst);
        if fd >= 0 {
            upoll_fds::close(fd).unwrap();
            assert!(!self.1.load(Ordering::SeqCst));
        }
        Events::empty()
    }
}

impl Drop for Closes {
    fn drop(&mut self) {
        self.1.store(true, Ordering::SeqCst);
    }
}

#[test]
fn both_fds_of_a_change_may_be_closed_in_the_midst_of_it() {
    for closes_the_set in [false, true] {
        let is_gone = Arc::new(AtomicBool::new(false));
        let file = File::new(Closes(AtomicI32::new(-1), Arc::clone(&is_gone)));
        let fd = upoll_fds::open(&file, true).unwrap();
        let set = upoll_fds::epoll_create1(0).unwrap();
        ctl(set, libc::EPOLL_CTL_ADD, fd);
        let closes = if closes_the_set { set } else { fd };
        file.0.store(closes, Ordering::SeqCst);
        drop(file);
        ctl(set, libc::EPOLL_CTL_MOD, fd);
        // The closed object goes with the end of the change.
        assert_eq!(is_gone.load(Ordering::SeqCst), !closes_the_set);
        // The closed fd may be another test's by now.
        let other = if closes_the_set { fd } else { set };
        assert!(upoll_fds::is_user_level(other));
        upoll_fds::close(other).unwrap();
        assert!(is_gone.load(Ordering::SeqCst));
    }
}

#[test]
fn an_open_file_that_is_closed_while_a_call_does_not_get_on_goes_with_the_end_of_the_call() {
    let (fd, is_gone) = tells();
    let (begun, has_begun) = mpsc::channel();
    let (end, may_end) = mpsc::channel::<()>();
    let using = thread::spawn(move || {
        upoll_fds::with_own(fd, |_: &Tells| {
            begun.send(()).unwrap();
            may_end.recv().unwrap();
        })
        .unwrap();
    });
    has_begun.recv().unwrap();
    upoll_fds::close(fd).unwrap();
    assert!(!is_gone.load(Ordering::SeqCst));
    end.send(()).unwrap();
    using.join().unwrap();
    assert!(is_gone.load(Ordering::SeqCst));
}

#[test]
fn a_set_that_is_demoted_to_the_kernel_is_waited_in_all_the_time() {
    let current = Arc::new(AtomicI32::new(-1));
    let waits = Arc::new(AtomicUsize::new(0));
    let (next, counted) = (Arc::clone(&current), Arc::clone(&waits));
    // The waiting thread lets go of a set when it is asked to.
    const LET_GO: i32 = 1 << 20;
    const END: i32 = -2;
    let waiting = thread::spawn(move || {
        loop {
            match next.load(Ordering::SeqCst) {
                END => break,
                LET_GO.. => next.store(-1, Ordering::SeqCst),
                -1 => {}
                fd => {
                    let mut event = [Event::default()];
                    // SAFETY: the event is live.
                    let found = unsafe { upoll_fds::epoll_wait(fd, event.as_mut_ptr(), 1, 0) };
                    assert!(found.is_ok(), "{found:?}");
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
    });
    let mut rounds = 0;
    while rounds < TRIES / 100 || waits.load(Ordering::SeqCst) == 0 {
        rounds += 1;
        let set = upoll_fds::epoll_create1(0).unwrap();
        let counter = upoll_fds::eventfd(1, 0).unwrap();
        let event = Event::new(Events::IN, 7);
        // SAFETY: the event is live.
        unsafe { upoll_fds::epoll_ctl(set, libc::EPOLL_CTL_ADD, counter, &raw const event) }
            .unwrap();
        current.store(set, Ordering::SeqCst);
        thread::yield_now();
        upoll_fds::demote(set).unwrap();
        current.store(set | LET_GO, Ordering::SeqCst);
        while current.load(Ordering::SeqCst) != -1 {
            thread::yield_now();
        }
        upoll_fds::close(set).unwrap();
        upoll_fds::close(counter).unwrap();
    }
    current.store(END, Ordering::SeqCst);
    waiting.join().unwrap();
}

#[test]
fn what_is_demoted_has_no_fd_left_here_that_was_just_copied() {
    let first = upoll_fds::eventfd(PLENTY, FLAGS).unwrap();
    for _ in 0..TRIES / 50 {
        let fd = upoll_fds::dup(first).unwrap();
        let next = upoll_fds::eventfd(PLENTY, FLAGS).unwrap();
        let together = Arc::new(Barrier::new(2));
        let waiting = Arc::clone(&together);
        let copying = thread::spawn(move || {
            waiting.wait();
            for _ in 0..10 {
                upoll_fds::dup2(next, fd)?;
            }
            Ok::<_, Errno>(())
        });
        together.wait();
        upoll_fds::demote(next).unwrap();
        copying.join().unwrap().unwrap();
        assert!(!upoll_fds::is_user_level(next) && !upoll_fds::is_user_level(fd));
        assert_eq!(take_one(fd), Ok(8));
        upoll_fds::close(next).unwrap();
        upoll_fds::close(fd).unwrap();
    }
}

fn kernel_ctl(set: RawFd, op: i32, fd: RawFd) {
    let mut event = libc::epoll_event {
        events: Events::IN.bits(),
        u64: 0,
    };
    // SAFETY: the event is live.
    assert_eq!(unsafe { libc::epoll_ctl(set, op, fd, &raw mut event) }, 0);
}

fn ctl(set: RawFd, op: i32, fd: RawFd) {
    let event = Event::new(Events::IN, fd.cast_unsigned().into());
    // SAFETY: the event is live.
    unsafe { upoll_fds::epoll_ctl(set, op, fd, &raw const event) }.unwrap();
}

#[test]
fn descriptors_added_while_a_set_gets_its_first_object_are_reported_until_the_last_goes() {
    // All of them stay ready.
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"x").unwrap();
    let members: Vec<_> = (0..8).map(|_| reader.try_clone().unwrap()).collect();
    let fds: Vec<RawFd> = members.iter().map(AsRawFd::as_raw_fd).collect();
    let counter = upoll_fds::eventfd(0, 0).unwrap();
    for _ in 0..TRIES / 20 {
        let set = upoll_fds::epoll_create1(0).unwrap();
        // SAFETY: no pointers are involved.
        let oracle = unsafe { libc::epoll_create1(0) };
        for &fd in &fds {
            kernel_ctl(oracle, libc::EPOLL_CTL_ADD, fd);
        }
        ctl(set, libc::EPOLL_CTL_ADD, fds[0]);
        let together = Arc::new(Barrier::new(2));
        let (waiting, later) = (Arc::clone(&together), fds[1..].to_vec());
        let adding = thread::spawn(move || {
            waiting.wait();
            for fd in later {
                ctl(set, libc::EPOLL_CTL_ADD, fd);
            }
        });
        together.wait();
        ctl(set, libc::EPOLL_CTL_ADD, counter);
        adding.join().unwrap();
        for &fd in &fds {
            let mut events = [Event::default(); 16];
            let room = i32::try_from(events.len()).unwrap();
            let buffer = events.as_mut_ptr();
            // SAFETY: there is room for as many.
            let (found, expected) = unsafe {
                (
                    upoll_fds::epoll_wait(set, buffer, room, 0).unwrap(),
                    libc::epoll_wait(oracle, buffer.cast(), room, 0),
                )
            };
            assert_eq!(i32::try_from(found), Ok(expected));
            ctl(set, libc::EPOLL_CTL_DEL, fd);
            kernel_ctl(oracle, libc::EPOLL_CTL_DEL, fd);
        }
        upoll_fds::close(set).unwrap();
        upoll_fds::close(oracle).unwrap();
    }
}
