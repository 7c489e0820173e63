//! Threads that sleep in `poll` and `select`: which events wake them, and the effect of signals.
//! Behaviour that Linux has is checked on the host kernel in the same test.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod threads;

use std::io::{PipeReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use threads::{asleep, tid, until_asleep};
use upoll::{
    Epoll, Errno, Event, EventFd, EventFdFlags, Events, FdSet, File, PollFd, PollTable, Pollable,
    SigSet, Source, Target, WaitQueue,
};

const LONG: Duration = Duration::from_secs(60);

fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

fn result(result: i32) -> Result<usize, Errno> {
    usize::try_from(result)
        .map_err(|_| Errno::from_raw(std::io::Error::last_os_error().raw_os_error().unwrap()))
}

fn idle_pipe() -> (PipeReader, std::io::PipeWriter) {
    std::io::pipe().unwrap()
}

/// Polls until an entry is ready. An event must end the call, not the time limit.
fn poll_in_time(fds: &mut [PollFd<'_>]) -> Result<usize, Errno> {
    let begun = Instant::now();
    let ready = upoll::poll(fds, LONG);
    assert!(begun.elapsed() < LONG, "a wake was lost");
    ready
}

/// The kinds of members that a thread sleeps for.
#[derive(Clone, Copy, Debug)]
struct Members {
    user: bool,
    kernel: bool,
}

const MIXTURES: [Members; 4] = [
    Members {
        user: true,
        kernel: false,
    },
    Members {
        user: false,
        kernel: true,
    },
    Members {
        user: true,
        kernel: true,
    },
    Members {
        user: false,
        kernel: false,
    },
];

/// Waits for idle members, by `poll` or by `select`.
fn wait_idle(
    by_select: bool,
    members: Members,
    limit: Duration,
    mask: Option<SigSet>,
) -> Result<usize, Errno> {
    let counter = EventFd::new(0)?;
    let (reader, _writer) = idle_pipe();
    if by_select {
        let list = [(0, members.user), (1, members.kernel)];
        let members = list.into_iter().filter(|(_, is_in)| *is_in);
        let mut set: FdSet = members.map(|(fd, _)| fd).collect();
        let resolve = |fd| {
            Some(match fd {
                0 => counter.target(),
                _ => reader.target(),
            })
        };
        match mask {
            Some(mask) => upoll::pselect(2, Some(&mut set), None, None, limit, &mask, resolve),
            None => upoll::select(2, Some(&mut set), None, None, &mut limit.into(), resolve),
        }
    } else {
        let mut fds = [PollFd::ignored(); 2];
        if members.user {
            fds[0] = PollFd::new(&counter, Events::IN);
        }
        if members.kernel {
            fds[1] = PollFd::new(&reader, Events::IN);
        }
        match mask {
            Some(mask) => upoll::ppoll(&mut fds, limit, &mask),
            None => upoll::poll(&mut fds, limit),
        }
    }
}

#[test]
fn a_sleep_in_a_mixture_is_ended_by_any_member() {
    for which in 0..3 {
        let counter = EventFd::new(0).unwrap();
        let source = EventFd::new(0).unwrap();
        let set = Epoll::new().unwrap();
        set.add(&source, Event::new(Events::IN, 0)).unwrap();
        let (stream, mut peer) = tcp();
        let ours = counter.clone();
        let (thread, _) = asleep(move || {
            let mut fds = [
                PollFd::new(&ours, Events::IN),
                PollFd::new(&set, Events::IN),
                PollFd::new(&stream, Events::IN),
            ];
            let ready = poll_in_time(&mut fds);
            (ready, fds.map(|fd| fd.revents()))
        });
        match which {
            0 => counter.write(1).unwrap(),
            1 => source.write(1).unwrap(),
            _ => peer.write_all(b"x").unwrap(),
        }
        let mut masks = [Events::empty(); 3];
        masks[which] = Events::IN;
        assert_eq!(thread.join().unwrap(), (Ok(1), masks));
    }
}

#[test]
fn a_sleeping_select_is_ended_by_any_member() {
    for which in 0..2 {
        let counter = EventFd::new(0).unwrap();
        let (stream, mut peer) = tcp();
        let ours = counter.clone();
        let (thread, _) = asleep(move || {
            let mut read = FdSet::from_iter([5, 6]);
            let mut except = FdSet::from_iter([5, 6]);
            let sets = (Some(&mut read), Some(&mut except));
            let begun = Instant::now();
            let ready = upoll::select(7, sets.0, None, sets.1, &mut LONG.into(), |fd| {
                Some(match fd {
                    5 => ours.target(),
                    _ => stream.target(),
                })
            });
            assert!(begun.elapsed() < LONG, "a wake was lost");
            (ready, read, except)
        });
        match which {
            0 => counter.write(1).unwrap(),
            _ => peer.write_all(b"x").unwrap(),
        }
        let read = FdSet::from_iter([5 + which]);
        assert_eq!(thread.join().unwrap(), (Ok(1), read, FdSet::new()));
    }
}

#[test]
fn a_select_for_writing_sleeps_on_a_descriptor_that_has_only_hung_up() {
    let counter = EventFd::new(0).unwrap();
    let hung_up = idle_pipe().0;
    let fd = hung_up.as_raw_fd();
    let limit = Duration::from_millis(20);
    let mut write = FdSet::from_iter([0]);
    let mut read = FdSet::from_iter([1]);
    let (r, w) = (Some(&mut read), Some(&mut write));
    let ready = upoll::select(2, r, w, None, &mut limit.into(), |fd| {
        Some(match fd {
            0 => hung_up.target(),
            _ => counter.target(),
        })
    });
    let mut words = [0_u64; 16];
    words[usize::try_from(fd).unwrap() / 64] |= 1 << (fd % 64);
    let mut kernel_limit = libc::timeval {
        tv_sec: 0,
        tv_usec: limit.subsec_micros().into(),
    };
    let null = std::ptr::null_mut();
    let words = words.as_mut_ptr().cast();
    // SAFETY: the set holds 1024 fds, and the limit is the call's to write.
    let kernel = result(unsafe { libc::select(fd + 1, null, words, null, &raw mut kernel_limit) });
    assert_eq!((ready, kernel), (Ok(0), Ok(0)));
}

#[test]
fn no_wake_is_lost_between_threads_that_answer_each_other_over_mixtures() {
    const ROUNDS: usize = 5_000;
    let bell = || EventFd::with_flags(0, EventFdFlags::NONBLOCK).unwrap();
    let (there, back) = (bell(), bell());
    let (mut client, mut server) = tcp();
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let echo = thread::spawn({
        let (there, back) = (there.clone(), back.clone());
        move || {
            for _ in 0..ROUNDS {
                let mut fds = [
                    PollFd::new(&there, Events::IN),
                    PollFd::new(&server, Events::IN),
                ];
                assert_eq!(poll_in_time(&mut fds), Ok(1));
                if fds[0].revents() == Events::IN {
                    assert_eq!(there.read(), Ok(1));
                    // Replies through the socket.
                    server.write_all(b"y").unwrap();
                } else {
                    server.read_exact(&mut [0]).unwrap();
                    back.write(1).unwrap();
                }
            }
        }
    });
    for round in 0..ROUNDS {
        let by_user = round % 3 != 0;
        if by_user {
            there.write(1).unwrap();
        } else {
            client.write_all(b"x").unwrap();
        }
        let mut fds = [
            PollFd::new(&back, Events::IN),
            PollFd::new(&client, Events::IN),
        ];
        assert_eq!(poll_in_time(&mut fds), Ok(1));
        if by_user {
            assert_eq!(fds[1].revents(), Events::IN);
            client.read_exact(&mut [0]).unwrap();
        } else {
            assert_eq!(fds[0].revents(), Events::IN);
            assert_eq!(back.read(), Ok(1));
        }
    }
    echo.join().unwrap();
}

#[test]
fn no_token_is_lost_among_many_writers_and_many_pollers() {
    const TOKENS: usize = 6_000;
    let flags = EventFdFlags::NONBLOCK | EventFdFlags::SEMAPHORE;
    let source = EventFd::with_flags(0, flags).unwrap();
    let taken = AtomicUsize::new(0);
    let done = EventFd::new(0).unwrap();
    thread::scope(|scope| {
        for poller in 0..4 {
            let (source, taken, done) = (&source, &taken, &done);
            scope.spawn(move || {
                let (reader, _writer) = idle_pipe();
                loop {
                    let mut fds = [
                        PollFd::new(source, Events::IN),
                        PollFd::new(done, Events::IN),
                        PollFd::ignored(),
                    ];
                    if poller % 2 == 0 {
                        fds[2] = PollFd::new(&reader, Events::IN);
                    }
                    assert!(poll_in_time(&mut fds).unwrap() > 0);
                    if fds[1].revents() == Events::IN {
                        return;
                    }
                    if source.try_read().is_ok()
                        && taken.fetch_add(1, Ordering::Relaxed) == TOKENS - 1
                    {
                        done.write(1).unwrap();
                    }
                }
            });
        }
        for _ in 0..3 {
            scope.spawn(|| (0..TOKENS / 3).for_each(|_| source.try_write(1).unwrap()));
        }
    });
    assert_eq!(taken.into_inner(), TOKENS);
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(_: i32) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn ignore(_: i32) {}

fn handle(signal: i32, handler: extern "C" fn(i32), flags: i32) {
    // SAFETY: a zeroed sigaction is valid, and the handlers are async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags;
        let old = std::ptr::null_mut();
        assert_eq!(libc::sigaction(signal, &raw const action, old), 0);
    }
}

fn signal_thread(tid: i32, signal: i32) {
    // SAFETY: sends a signal that has a handler to a thread of this process.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, signal) };
}

/// Runs `body` in a thread, and sends it signals until it ends. A signal may come before the thread
/// sleeps.
fn interrupted<T: Send + 'static>(signal: i32, body: impl FnOnce() -> T + Send + 'static) -> T {
    let (thread, tid) = asleep(body);
    while !thread.is_finished() {
        signal_thread(tid, signal);
        thread::sleep(Duration::from_millis(1));
    }
    thread.join().unwrap()
}

/// Blocks or unblocks `signal` in the calling thread.
fn hold(how: i32, signal: i32) {
    let mut set = SigSet::empty();
    set.add(signal).unwrap();
    let set: libc::sigset_t = set.into();
    // SAFETY: the set is live.
    unsafe { libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut()) };
}

#[test]
fn a_signal_ends_a_sleep_even_if_its_handler_asks_for_restarts() {
    handle(libc::SIGUSR1, ignore, libc::SA_RESTART);
    handle(libc::SIGUSR2, ignore, 0);
    for signal in [libc::SIGUSR1, libc::SIGUSR2] {
        for members in MIXTURES {
            for (by_select, mask) in [
                (false, None),
                (true, None),
                (false, Some(SigSet::empty())),
                (true, Some(SigSet::empty())),
            ] {
                let outcome =
                    interrupted(signal, move || wait_idle(by_select, members, LONG, mask));
                assert_eq!(outcome, Err(Errno::INTR), "{members:?}");
            }
        }
        // SAFETY: the list is empty.
        let kernel = || result(unsafe { libc::poll(std::ptr::null_mut(), 0, 60_000) });
        assert_eq!(interrupted(signal, kernel), Err(Errno::INTR));
    }
}

/// One test at a time, because all use [`HANDLED`].
static SIGNALS: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Waits with all signals unblocked, for a file that is ready or idle.
type Call<'a> = dyn Fn(bool, Duration) -> Result<usize, Errno> + 'a;

#[test]
fn a_mask_lets_a_pending_signal_through_only_if_nothing_is_ready() {
    let _alone = SIGNALS.lock().unwrap();
    const SIGNAL: i32 = libc::SIGWINCH;
    handle(SIGNAL, count, 0);
    hold(libc::SIG_BLOCK, SIGNAL);
    let ready = EventFd::new(1).unwrap();
    let idle = EventFd::new(0).unwrap();
    let (reader, _writer) = idle_pipe();
    let hung_up = idle_pipe().0;
    let open = SigSet::empty();
    let kernel = |fd: i32, limit: Duration| {
        let mut list = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let limit = libc::timespec {
            tv_sec: limit.as_secs().cast_signed(),
            tv_nsec: limit.subsec_nanos().into(),
        };
        let open: libc::sigset_t = open.into();
        // SAFETY: a list of one; the limit and the mask outlive the call.
        result(unsafe { libc::ppoll(&raw mut list, 1, &raw const limit, &raw const open) })
    };
    let user = |counter: &EventFd, limit| {
        upoll::ppoll(&mut [PollFd::new(counter, Events::IN)], limit, &open)
    };
    let mixed = |counter: &EventFd, limit| {
        let mut fds = [
            PollFd::new(counter, Events::IN),
            PollFd::new(&reader, Events::IN),
        ];
        upoll::ppoll(&mut fds, limit, &open)
    };
    let select = |counter: &EventFd, limit| {
        let mut set = FdSet::from_iter([0]);
        upoll::pselect(1, Some(&mut set), None, None, limit, &open, |_| {
            Some(counter.target())
        })
    };
    let calls: [(&str, &Call<'_>); 4] = [
        ("kernel", &|is_ready, limit| {
            let end = if is_ready { &hung_up } else { &reader };
            kernel(end.as_raw_fd(), limit)
        }),
        ("user", &|is_ready, limit| {
            user(if is_ready { &ready } else { &idle }, limit)
        }),
        ("mixed", &|is_ready, limit| {
            mixed(if is_ready { &ready } else { &idle }, limit)
        }),
        ("select", &|is_ready, limit| {
            select(if is_ready { &ready } else { &idle }, limit)
        }),
    ];
    for (name, call) in calls {
        for limit in [Duration::ZERO, LONG] {
            HANDLED.store(0, Ordering::SeqCst);
            signal_thread(tid(), SIGNAL);
            assert_eq!(call(true, limit), Ok(1), "{name}");
            assert_eq!(HANDLED.load(Ordering::SeqCst), 0, "{name}");
            assert_eq!(call(false, limit), Err(Errno::INTR), "{name}");
            assert_eq!(HANDLED.load(Ordering::SeqCst), 1, "{name}");
            assert!(SigSet::of_this_thread().contains(SIGNAL), "{name}");
        }
    }
}

/// An object that wakes its waiters without being ready.
struct Restless {
    queue: WaitQueue,
    ready: AtomicBool,
}

impl Pollable for Restless {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        if self.ready.load(Ordering::SeqCst) {
            Events::IN
        } else {
            Events::empty()
        }
    }
}

#[test]
fn a_signal_that_the_mask_holds_back_waits_until_the_call_is_over() {
    let _alone = SIGNALS.lock().unwrap();
    const SIGNAL: i32 = libc::SIGURG;
    handle(SIGNAL, count, 0);
    for with_pipe in [false, true] {
        HANDLED.store(0, Ordering::SeqCst);
        let object = File::new(Restless {
            queue: WaitQueue::new(),
            ready: false.into(),
        });
        let ours = object.clone();
        let (thread, tid) = asleep(move || {
            let (reader, _writer) = idle_pipe();
            let mut fds = [PollFd::new(&ours, Events::IN), PollFd::ignored()];
            if with_pipe {
                fds[1] = PollFd::new(&reader, Events::IN);
            }
            let mut mask = SigSet::empty();
            mask.add(SIGNAL).unwrap();
            upoll::ppoll(&mut fds, LONG, &mask)
        });
        signal_thread(tid, SIGNAL);
        for _ in 0..20 {
            object.queue.wake(Events::IN);
            thread::sleep(Duration::from_millis(1));
        }
        until_asleep(tid);
        assert_eq!(HANDLED.load(Ordering::SeqCst), 0);
        object.ready.store(true, Ordering::SeqCst);
        object.queue.wake(Events::IN);
        assert_eq!(thread.join().unwrap(), Ok(1));
        assert_eq!(HANDLED.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn an_object_may_poll_others_while_it_is_polled() {
    /// An object whose `poll` polls a pipe with a short time limit.
    struct Slow {
        reader: PipeReader,
        inner: EventFd,
    }
    impl Pollable for Slow {
        fn poll<'q>(&'q self, _: &mut PollTable<'q>) -> Events {
            let mut fds = [
                PollFd::new(&self.reader, Events::IN),
                PollFd::new(&self.inner, Events::IN),
            ];
            upoll::poll(&mut fds, Duration::from_micros(200)).unwrap();
            Events::empty()
        }
    }
    let (reader, _inner) = idle_pipe();
    let slow = File::new(Slow {
        reader,
        inner: EventFd::new(0).unwrap(),
    });
    let (reader, mut writer) = idle_pipe();
    let (thread, _) = asleep(move || {
        let mut fds = [
            PollFd::new(&slow, Events::IN),
            PollFd::new(&reader, Events::IN),
        ];
        poll_in_time(&mut fds)
    });
    thread::sleep(Duration::from_millis(5));
    writer.write_all(b"x").unwrap();
    assert_eq!(thread.join().unwrap(), Ok(1));
}

#[test]
fn a_limit_holds_under_a_storm_of_wakes_that_make_nothing_ready() {
    const STORM: Duration = Duration::from_secs(60);
    let object = File::new(Restless {
        queue: WaitQueue::new(),
        ready: false.into(),
    });
    let (reader, _writer) = idle_pipe();
    let calm = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let begun = Instant::now();
            while !calm.load(Ordering::Relaxed) && begun.elapsed() < STORM {
                object.queue.wake(Events::IN);
            }
        });
        let begun = Instant::now();
        for _ in 0..5 {
            let mut fds = [PollFd::new(&object, Events::IN), PollFd::ignored()];
            let limit = Duration::from_millis(10);
            assert_eq!(upoll::poll(&mut fds, limit), Ok(0));
            fds[1] = PollFd::new(&reader, Events::IN);
            assert_eq!(upoll::poll(&mut fds, limit), Ok(0));
        }
        assert!(begun.elapsed() < STORM);
        calm.store(true, Ordering::Relaxed);
    });
}

/// An object that runs a closure in the middle of one of its polls, unknown to the polling thread.
struct Afterthought<F> {
    queue: WaitQueue,
    looks: AtomicUsize,
    at: usize,
    then: F,
    /// The events that it reports afterwards.
    afterwards: Events,
}

impl<F: Fn(&WaitQueue) + Send + Sync + 'static> Pollable for Afterthought<F> {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        let look = self.looks.fetch_add(1, Ordering::SeqCst);
        if look == self.at {
            (self.then)(&self.queue);
        }
        if look > self.at {
            self.afterwards
        } else {
            Events::empty()
        }
    }
}

#[test]
fn a_wake_between_the_last_poll_and_the_sleep_is_not_lost() {
    let (reader, _writer) = idle_pipe();
    for with_pipe in [false, true] {
        let object = File::new(Afterthought {
            queue: WaitQueue::new(),
            looks: AtomicUsize::new(0),
            at: 1,
            then: |queue: &WaitQueue| {
                queue.wake(Events::IN);
            },
            afterwards: Events::IN,
        });
        let mut fds = [PollFd::new(&object, Events::IN), PollFd::ignored()];
        if with_pipe {
            fds[1] = PollFd::new(&reader, Events::IN);
        }
        assert_eq!(poll_in_time(&mut fds), Ok(1));
    }
}

/// Opens an idle file at an fd that no other code in this process uses.
fn idle_at(fd: i32) -> BorrowedFd<'static> {
    // SAFETY: opens fds; the test closes this one.
    unsafe {
        let fresh = libc::eventfd(0, 0);
        assert_eq!(libc::dup2(fresh, fd), fd);
        libc::close(fresh);
        BorrowedFd::borrow_raw(fd)
    }
}

fn close(fd: i32) {
    // SAFETY: the fd is the test's own.
    assert_eq!(unsafe { libc::close(fd) }, 0);
}

#[test]
fn a_descriptor_closed_during_a_wait_shows_as_nval_when_that_ends() {
    let counter = EventFd::new(0).unwrap();
    let (polled, selected, kernel) = (idle_at(900), idle_at(901), idle_at(902));
    let kernel_counter = idle_at(903).as_raw_fd();
    let ours = counter.clone();
    let (poll, _) = asleep(move || {
        let mut fds = [
            PollFd::new(&ours, Events::IN),
            PollFd::new(&polled, Events::IN),
        ];
        let ready = poll_in_time(&mut fds);
        (ready, fds.map(|fd| fd.revents()))
    });
    let ours = counter.clone();
    let (select, _) = asleep(move || {
        let mut read = FdSet::from_iter([0]);
        let mut except = FdSet::from_iter([1]);
        let sets = (Some(&mut read), Some(&mut except));
        let ready = upoll::select(2, sets.0, None, sets.1, &mut LONG.into(), |fd| {
            Some(match fd {
                0 => ours.target(),
                _ => Target::Kernel(selected),
            })
        });
        (ready, read, except)
    });
    let (host, _) = asleep(move || {
        let mut list = [kernel_counter, kernel.as_raw_fd()].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        // SAFETY: a list of two.
        let ready = result(unsafe { libc::poll(list.as_mut_ptr(), 2, 60_000) });
        let mask = |fd: libc::pollfd| Events::from_bits_retain(fd.revents.cast_unsigned().into());
        (ready, list.map(mask))
    });
    (900..903).for_each(close);
    counter.write(1).unwrap();
    let one = 1_u64;
    // SAFETY: eight bytes are read from `one`.
    let written = unsafe { libc::write(kernel_counter, (&raw const one).cast(), 8) };
    assert_eq!(written, 8);
    let host = host.join().unwrap();
    assert_eq!(host, (Ok(2), [Events::IN, Events::NVAL]));
    assert_eq!(poll.join().unwrap(), host);
    let found = (Ok(2), FdSet::from_iter([0]), FdSet::from_iter([1]));
    assert_eq!(select.join().unwrap(), found);
    close(903);
}

#[test]
fn a_descriptor_closed_between_two_sleeps_of_a_select_does_not_hide_the_others() {
    let (closed, idle) = (idle_at(910), idle_at(911));
    let object = File::new(Afterthought {
        queue: WaitQueue::new(),
        looks: AtomicUsize::new(0),
        at: 2,
        then: |_: &WaitQueue| close(910),
        afterwards: Events::empty(),
    });
    let ours = object.clone();
    let (select, _) = asleep(move || {
        let mut read = FdSet::from_iter([0, 1, 2]);
        let resolve = |fd| {
            Some(match fd {
                0 => ours.target(),
                1 => Target::Kernel(closed),
                _ => Target::Kernel(idle),
            })
        };
        let ready = upoll::select(3, Some(&mut read), None, None, &mut LONG.into(), resolve);
        (ready, read)
    });
    object.queue.wake(Events::IN);
    assert_eq!(select.join().unwrap(), (Ok(1), FdSet::from_iter([1])));
    close(911);
}
