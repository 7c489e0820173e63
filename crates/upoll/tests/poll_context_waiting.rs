//! A context that is kept between calls: threads that sleep in it, and moves of the context to other
//! threads and processes.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod processor_time;
mod returns;
mod threads;

use std::io::{PipeReader, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use processor_time::processor_time;
use threads::{asleep, in_child, tid, until_asleep};
use upoll::{
    Descriptor, Epoll, Errno, Event, EventFd, Events, FdSet, PollContext, PollFd, SigSet, Source,
    Timeout,
};

const LONG: Duration = Duration::from_secs(60);

/// The sources that a thread may sleep for: a user-level object, a [`Descriptor`] and a bare fd, in
/// any combination.
struct Sources {
    counter: EventFd,
    known: Descriptor<PipeReader>,
    fd: PipeReader,
}

impl Sources {
    fn entries(&self, which: &[usize]) -> Vec<PollFd<'_>> {
        let entry = |&which: &usize| match which {
            0 => PollFd::new(&self.counter, Events::IN),
            1 => PollFd::new(&self.known, Events::IN),
            _ => PollFd::new(&self.fd, Events::IN),
        };
        which.iter().map(entry).collect()
    }

    fn take(&self, which: usize) {
        match which {
            0 => drop(self.counter.read().unwrap()),
            1 => (&*self.known).read_exact(&mut [0]).unwrap(),
            _ => (&self.fd).read_exact(&mut [0]).unwrap(),
        }
    }
}

/// Calls `select` or `poll` for all of `which`. Returns those that were ready.
fn wait(
    context: &mut PollContext,
    sources: &Sources,
    which: &[usize],
    selects: bool,
    limit: Duration,
) -> Result<Vec<usize>, Errno> {
    if selects {
        let mut set = FdSet::from_iter(which.iter().map(|&which| i32::try_from(which).unwrap()));
        let resolve = |fd| {
            Some(match fd {
                0 => sources.counter.target(),
                1 => sources.known.target(),
                _ => sources.fd.target(),
            })
        };
        let mut timeout = Timeout::from(limit);
        let ready = context.select(3, Some(&mut set), None, None, &mut timeout, resolve)?;
        let found: Vec<_> = set.iter().map(|at| usize::try_from(at).unwrap()).collect();
        assert_eq!(found.len(), ready);
        return Ok(found);
    }
    let mut fds = sources.entries(which);
    let ready = context.poll(&mut fds, limit)?;
    let found = fds.iter().zip(which);
    let found = found.filter(|(fd, _)| !fd.revents().is_empty());
    let found: Vec<_> = found.map(|(_, &which)| which).collect();
    assert_eq!(found.len(), ready);
    Ok(found)
}

const MIXTURES: [&[usize]; 6] = [&[0], &[1], &[2], &[0, 1], &[0, 2], &[0, 1, 2]];

#[test]
fn a_sleeper_is_woken_by_each_of_its_sources_time_and_again() {
    for which in MIXTURES {
        for selects in [false, true] {
            let (known, mut known_writer) = std::io::pipe().unwrap();
            let (fd, mut fd_writer) = std::io::pipe().unwrap();
            let sources = Sources {
                counter: EventFd::new(0).unwrap(),
                known: Descriptor::new(known),
                fd,
            };
            let (sleeper, begun) = (tid(), Instant::now());
            let (done, next) = mpsc::channel();
            let shared = &sources;
            thread::scope(|scope| {
                scope.spawn(move || {
                    for &one in which.iter().cycle().take(6) {
                        until_asleep(sleeper);
                        match one {
                            0 => shared.counter.write(1).unwrap(),
                            1 => known_writer.write_all(b"x").unwrap(),
                            _ => fd_writer.write_all(b"x").unwrap(),
                        }
                        next.recv().unwrap();
                    }
                });
                let mut context = PollContext::new();
                for &one in which.iter().cycle().take(6) {
                    let found = wait(&mut context, &sources, which, selects, LONG);
                    assert_eq!(found, Ok(vec![one]));
                    sources.take(one);
                    done.send(()).unwrap();
                }
            });
            assert!(begun.elapsed() < LONG, "it slept until its limit");
        }
    }
}

#[test]
fn nothing_ready_ends_with_the_limit_and_a_signal_ends_the_sleep() {
    extern "C" fn ignore(_: i32) {}
    // SAFETY: a zeroed sigaction is valid, and the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART;
        let old = std::ptr::null_mut();
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, old), 0);
    }
    for which in MIXTURES {
        for selects in [false, true] {
            let (known, _known_writer) = std::io::pipe().unwrap();
            let (fd, _fd_writer) = std::io::pipe().unwrap();
            let sources = Sources {
                counter: EventFd::new(0).unwrap(),
                known: Descriptor::new(known),
                fd,
            };
            let mut context = PollContext::new();
            let limit = Duration::from_millis(3);
            let begun = Instant::now();
            let found = wait(&mut context, &sources, which, selects, limit);
            assert_eq!(found, Ok(vec![]));
            assert!(begun.elapsed() >= limit);
            let (thread, tid) = asleep(move || wait(&mut context, &sources, which, selects, LONG));
            while !thread.is_finished() {
                // SAFETY: sends a signal that has a handler to a thread of this process.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, libc::SIGUSR1) };
                thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(thread.join().unwrap(), Err(Errno::INTR));
        }
    }
}

#[test]
fn a_signal_that_only_the_mask_lets_through_is_not_missed_without_a_wait() {
    thread::spawn(|| {
        let mut held = SigSet::empty();
        held.add(libc::SIGUSR2).unwrap();
        let held: libc::sigset_t = held.into();
        let (reader, _writer) = std::io::pipe().unwrap();
        let known = Descriptor::new(reader);
        let mut context = PollContext::new();
        extern "C" fn ignore(_: i32) {}
        let raise = || {
            // SAFETY: a zeroed sigaction is valid, the handler does nothing, the set is one to
            // read, and the signal is this thread's.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = ignore as extern "C" fn(i32) as usize;
                let old = std::ptr::null_mut();
                assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, old), 0);
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const held, std::ptr::null_mut());
                libc::syscall(
                    libc::SYS_tgkill,
                    libc::getpid(),
                    libc::gettid(),
                    libc::SIGUSR2,
                );
            }
        };
        let mut fds = [PollFd::new(&known, Events::IN)];
        raise();
        let kept = context.ppoll(&mut fds, Duration::ZERO, &SigSet::empty());
        raise();
        let anew = upoll::ppoll(&mut fds, Duration::ZERO, &SigSet::empty());
        raise();
        let mut list = libc::pollfd {
            fd: known.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let zero = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let none: libc::sigset_t = SigSet::empty().into();
        // SAFETY: a list of one, a limit and a mask that outlive the call.
        let kernel = unsafe { libc::ppoll(&raw mut list, 1, &raw const zero, &raw const none) };
        assert_eq!(kernel, -1);
        let kernel = std::io::Error::last_os_error().raw_os_error().unwrap();
        assert_eq!((kept, anew), (Err(Errno::INTR), Err(Errno::INTR)));
        assert_eq!(Errno::from_raw(kernel), Errno::INTR);
    })
    .join()
    .unwrap();
}

/// A pipe's reader reports `HUP` as long as there is no writer. `HUP` does not make it writable.
#[test]
fn select_sleeps_beside_what_has_only_hung_up_and_sees_it_wake() {
    let (reader, writer) = std::io::pipe().unwrap();
    let (other, mut other_writer) = std::io::pipe().unwrap();
    let (reader, other) = (Descriptor::new(reader), Descriptor::new(other));
    drop(writer);
    let mut context = PollContext::new();
    let mut call = |limit: Duration| {
        let (mut read, mut write) = (FdSet::from_iter([1]), FdSet::from_iter([0]));
        let resolve = |fd| match fd {
            0 => Some(reader.target()),
            _ => Some(other.target()),
        };
        let timeout = &mut Timeout::from(limit);
        let ready = context.select(2, Some(&mut read), Some(&mut write), None, timeout, resolve);
        (ready, read, write)
    };
    let (limit, before) = (Duration::from_millis(200), processor_time());
    let begun = Instant::now();
    assert_eq!(call(limit), (Ok(0), FdSet::new(), FdSet::new()));
    assert!(begun.elapsed() >= limit);
    assert!(processor_time() - before < limit / 20, "it does not sleep");
    other_writer.write_all(b"x").unwrap();
    assert_eq!(call(LONG), (Ok(1), FdSet::from_iter([1]), FdSet::new()));
}

/// A socket without a connection reports `HUP`, which is not exceptional for `select`. Urgent data
/// is.
#[test]
fn select_goes_on_to_report_what_counts_after_what_does_not() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let std::net::SocketAddr::V4(address) = listener.local_addr().unwrap() else {
        unreachable!("bound to an IPv4 address");
    };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: the fd is new, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_INET, kind, 0)) };
    let socket = Descriptor::new(socket);
    let mut context = PollContext::new();
    let mut exceptional = |limit: Duration| {
        let mut except = FdSet::from_iter([0]);
        let resolve = |_| Some(socket.target());
        let timeout = &mut Timeout::from(limit);
        context.select(1, None, None, Some(&mut except), timeout, resolve)
    };
    assert_eq!(exceptional(Duration::from_millis(1)), Ok(0));
    let to = libc::sockaddr_in {
        sin_family: libc::sa_family_t::try_from(libc::AF_INET).unwrap(),
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from(*address.ip()).to_be(),
        },
        sin_zero: [0; 8],
    };
    let length = libc::socklen_t::try_from(size_of_val(&to)).unwrap();
    // SAFETY: an address of that length.
    let connected = unsafe { libc::connect(socket.as_raw_fd(), (&raw const to).cast(), length) };
    assert_eq!(connected, 0);
    let (peer, _) = listener.accept().unwrap();
    assert_eq!(exceptional(Duration::from_millis(1)), Ok(0));
    // SAFETY: the call reads one byte.
    let sent = unsafe { libc::send(peer.as_raw_fd(), c"!".as_ptr().cast(), 1, libc::MSG_OOB) };
    assert_eq!(sent, 1);
    for _ in 0..3 {
        assert_eq!(exceptional(LONG), Ok(1));
    }
}

#[test]
fn a_set_that_gains_kernel_fds_between_calls_is_polled() {
    let (inner, outer) = (Epoll::new().unwrap(), Epoll::new().unwrap());
    outer.add(&inner, Event::new(Events::IN, 0)).unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut context = PollContext::new();
    let mut call = || {
        let mut fds = [
            PollFd::new(&inner, Events::IN),
            PollFd::new(&outer, Events::IN),
        ];
        context.poll(&mut fds, Duration::ZERO)
    };
    assert_eq!(call(), Ok(0));
    inner.add(&reader, Event::new(Events::IN, 0)).unwrap();
    assert_eq!(call(), Ok(0));
    writer.write_all(b"x").unwrap();
    assert_eq!(call(), Ok(2));
    (&reader).read_exact(&mut [0]).unwrap();
    assert_eq!(call(), Ok(0));
    writer.write_all(b"x").unwrap();
    assert_eq!(call(), Ok(2));
}

/// Returns the length of the longest chain of kernel sets that watch each other, with the first one
/// polled.
fn longest_chain(mut poll: impl FnMut(&Descriptor<OwnedFd>)) -> usize {
    let mut sets: Vec<Descriptor<OwnedFd>> = Vec::new();
    loop {
        // SAFETY: the fd is new, and nothing else owns it.
        let set = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        if let Some(last) = sets.last() {
            let mut event = libc::epoll_event {
                events: Events::IN.bits(),
                u64: 0,
            };
            let (outer, inner) = (last.as_raw_fd(), set.as_raw_fd());
            // SAFETY: both are open, and the event outlives the call.
            let added =
                unsafe { libc::epoll_ctl(outer, libc::EPOLL_CTL_ADD, inner, &raw mut event) };
            if added != 0 {
                return sets.len();
            }
        }
        sets.push(Descriptor::new(set));
        poll(&sets[0]);
    }
}

#[test]
fn a_set_of_the_kernels_does_not_notice_that_a_context_polls_it() {
    let mut context = PollContext::new();
    let with = longest_chain(|set| {
        let mut fds = [PollFd::new(set, Events::IN)];
        assert_eq!(context.poll(&mut fds, Duration::ZERO), Ok(0));
    });
    assert_eq!(with, longest_chain(|_| {}));
}

/// A `signalfd` reports to each thread the signals of that thread.
#[test]
fn a_context_that_comes_to_another_thread_sees_what_that_thread_sees() {
    let signal = libc::SIGRTMIN();
    let (known, hold) = {
        let mut set = SigSet::empty();
        set.add(signal).unwrap();
        let set: libc::sigset_t = set.into();
        // SAFETY: the set is live; the fd is new, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(libc::signalfd(-1, &raw const set, 0)) };
        let hold = move || {
            // SAFETY: the set is live.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        };
        (Arc::new(Descriptor::new(fd)), hold)
    };
    let look = |context: &mut PollContext, known: &Descriptor<OwnedFd>| {
        let mut fds = [PollFd::new(known, Events::IN)];
        let kept = context.poll(&mut fds, Duration::ZERO);
        assert_eq!(kept, upoll::poll(&mut fds, Duration::ZERO));
        kept
    };
    hold();
    let mut context = PollContext::new();
    assert_eq!(look(&mut context, &known), Ok(0));
    let (send, receive) = mpsc::channel::<PollContext>();
    let (ready, other) = mpsc::channel();
    let theirs = known.clone();
    let thread = thread::spawn(move || {
        hold();
        ready.send(tid()).unwrap();
        look(&mut receive.recv().unwrap(), &theirs)
    });
    let other = other.recv().unwrap();
    // SAFETY: the thread blocks the signal.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), other, signal) };
    assert_eq!(look(&mut context, &known), Ok(0));
    send.send(context).unwrap();
    assert_eq!(thread.join().unwrap(), Ok(1));
}

#[test]
fn a_child_of_fork_leaves_the_parents_registrations_alone() {
    in_child(|| {
        let counter = EventFd::new(0).unwrap();
        let pipes = [(); 2].map(|()| std::io::pipe().unwrap());
        let [(one, mut to_one), (two, mut to_two)] = pipes;
        let (one, two) = (Descriptor::new(one), Descriptor::new(two));
        let entries = || {
            [
                PollFd::new(&counter, Events::IN),
                PollFd::new(&one, Events::IN),
                PollFd::new(&two, Events::IN),
            ]
        };
        let mut context = PollContext::new();
        assert_eq!(context.poll(&mut entries()[..2], Duration::ZERO), Ok(0));
        in_child(|| {
            // Removes one entry, adds another, and restores the first list.
            assert_eq!(context.poll(&mut entries()[2..], Duration::ZERO), Ok(0));
            assert_eq!(context.poll(&mut entries(), Duration::ZERO), Ok(0));
            to_two.write_all(b"x").unwrap();
            assert_eq!(context.poll(&mut entries(), Duration::ZERO), Ok(1));
            counter.write(1).unwrap();
            assert_eq!(context.poll(&mut entries(), Duration::ZERO), Ok(2));
            assert_eq!(context.poll(&mut entries()[..1], None), Ok(1));
            context.clear();
        });
        // The child's writes to a user-level object are not visible here; the pipe is shared with
        // it.
        assert_eq!(context.poll(&mut entries()[..2], Duration::ZERO), Ok(0));
        to_one.write_all(b"x").unwrap();
        assert_eq!(context.poll(&mut entries()[..2], Duration::ZERO), Ok(1));
        assert_eq!(context.poll(&mut entries(), Duration::ZERO), Ok(2));
    });
}

/// Returns the kernel sets that this process has open.
fn kernel_sets() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let is_set = |path: &std::path::Path| {
        std::fs::read_link(path).is_ok_and(|file| file.ends_with("anon_inode:[eventpoll]"))
    };
    let mut sets: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| is_set(path))
        .map(|path| path.file_name().unwrap().to_str().unwrap().parse().unwrap())
        .collect();
    sets.sort_unstable();
    sets
}

#[test]
fn what_has_the_fd_of_a_set_that_the_program_closed_is_left_alone() {
    in_child(|| {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let known = Descriptor::new(reader);
        let mut fds = [PollFd::new(&known, Events::IN)];
        // The thread opens its wake fd for sleeping first, and keeps it.
        let idle = EventFd::new(0).unwrap();
        let mut both = [fds[0], PollFd::new(&idle, Events::IN)];
        assert_eq!(upoll::poll(&mut both, Duration::from_millis(1)), Ok(0));
        let before = kernel_sets();
        let mut context = PollContext::new();
        assert_eq!(context.poll(&mut fds, Duration::ZERO), Ok(0));
        let mut made = kernel_sets();
        made.retain(|set| !before.contains(set));
        let fd = made[0];
        let other = EventFd::new(0).unwrap();
        let (stays, _stays_writer) = std::io::pipe().unwrap();
        // SAFETY: the fd is the context's, which a program may close by mistake.
        assert_eq!(unsafe { libc::dup2(stays.as_raw_fd(), fd) }, fd);
        assert_eq!(context.poll(&mut fds, Duration::ZERO), Ok(0));
        writer.write_all(b"x").unwrap();
        assert_eq!(context.poll(&mut fds, None), Ok(1));
        let mut both = [fds[0], PollFd::new(&other, Events::IN)];
        assert_eq!(context.poll(&mut both, None), Ok(1));
        drop(context);
        // SAFETY: the call takes no pointers.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        assert_eq!(flags, libc::O_RDONLY);
        assert_eq!(kernel_sets(), before);
    });
}

#[test]
fn contexts_come_and_go_while_others_write_and_poll_the_same_files() {
    let counters: Vec<_> = (0..4).map(|_| EventFd::new(0).unwrap()).collect();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for counter in &counters {
                    let _ = counter.try_write(1);
                    let _ = counter.try_read();
                }
            }
        });
        let poll = |rounds: usize, limit: Duration| {
            let mut context = PollContext::new();
            for round in 0..rounds {
                let entry = |counter| PollFd::new(counter, Events::IN);
                let mut fds: Vec<_> = counters[round % 4..].iter().map(entry).collect();
                let ready = context.poll(&mut fds, limit).unwrap();
                assert!(ready <= fds.len());
                if round % 50 == 0 {
                    context = PollContext::new();
                }
            }
        };
        let other = scope.spawn(move || poll(3_000, Duration::ZERO));
        poll(1_000, Duration::from_micros(10));
        other.join().unwrap();
        stop.store(true, Ordering::Relaxed);
    });
    for counter in &counters {
        let _ = counter.try_read();
        counter.write(1).unwrap();
    }
    let mut context = PollContext::new();
    let mut fds: Vec<_> = counters
        .iter()
        .map(|at| PollFd::new(at, Events::IN))
        .collect();
    assert_eq!(context.poll(&mut fds, None), Ok(4));
}

/// The eventfd that a signal handler writes.
static WRITTEN: std::sync::OnceLock<EventFd> = std::sync::OnceLock::new();

extern "C" fn write_one(_: libc::c_int) {
    if let Some(counter) = WRITTEN.get() {
        counter.signal();
    }
}

#[test]
fn a_signal_handler_writes_an_eventfd_whatever_it_has_interrupted() {
    returns::returns(polls_while_a_handler_writes);
}

fn polls_while_a_handler_writes() {
    const MANY: usize = 2_000;
    let counters: Vec<_> = (0..MANY).map(|_| EventFd::new(0).unwrap()).collect();
    let written = WRITTEN.get_or_init(|| counters[0].clone());
    // SAFETY: the handler only writes an eventfd.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = write_one as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(
            libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()),
            0
        );
    }
    // SAFETY: the call takes no arguments.
    let thread = unsafe { libc::pthread_self() };
    let (is_over, has_ended) = mpsc::channel::<()>();
    let sender = thread::spawn(move || {
        while has_ended.try_recv() == Err(mpsc::TryRecvError::Empty) {
            // SAFETY: the thread waits for this one before it ends.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
        }
    });
    let mut context = PollContext::new();
    for _ in 0..300 {
        // All are marked, so that the look at the marks takes long.
        counters.iter().for_each(|counter| {
            counter.signal();
        });
        let mut fds: Vec<_> = counters
            .iter()
            .map(|counter| PollFd::new(counter, Events::IN))
            .collect();
        assert_eq!(context.poll(&mut fds, Timeout::NOW), Ok(MANY));
        drop(fds);
        counters.iter().for_each(|counter| {
            let _ = counter.try_read();
        });
    }
    drop(is_over);
    sender.join().unwrap();
    // The write of the last handler is seen.
    written.signal();
    let mut fds = [PollFd::new(written, Events::IN)];
    assert_eq!(context.poll(&mut fds, LONG), Ok(1));
}
