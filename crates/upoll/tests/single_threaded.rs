//! A process of one thread, where atomic operations are plain instructions: upoll gives there what the
//! kernel gives, handlers of signals find it in order, and so do threads that are made later.
//!
//! The usual test harness has threads of its own, so this program is run without it. It takes a part
//! of a test's name as its argument, and ignores the harness's options.

#[cfg(not(loom))]
#[path = "kernel/mod.rs"]
mod kernel;
#[cfg(not(loom))]
#[path = "oracle/sequences.rs"]
mod sequences;

#[cfg(loom)]
fn main() {}

#[cfg(not(loom))]
fn main() {
    let wanted = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    for (name, test) in tests::ALL {
        if wanted.as_ref().is_none_or(|part| name.contains(part)) {
            test();
            println!("test {name} ... ok");
        }
    }
}

#[cfg(not(loom))]
mod tests {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;
    use std::time::Duration;

    use proptest::test_runner::TestRunner;
    use upoll::{Epoll, Errno, Event, EventFd, Events, Timeout};

    use crate::sequences::{World, config, run, steps};

    /// In this order: from the last one on there are two threads.
    pub(super) const ALL: [(&str, fn()); 6] = [
        ("any_sequence_gives_what_the_kernel_gives", || {
            any_sequence(false, World::Objects);
        }),
        (
            "any_sequence_with_descriptors_gives_what_the_kernel_gives",
            || {
                any_sequence(true, World::Descriptors);
            },
        ),
        (
            "any_sequence_with_descriptors_below_gives_what_the_kernel_gives",
            || any_sequence(true, World::DescriptorsFromAbove),
        ),
        ("a_wait_ends_in_time_and_no_earlier", a_wait_ends_in_time),
        (
            "handlers_that_write_what_they_interrupt_lose_no_count",
            handlers_lose_no_count,
        ),
        (
            "a_thread_made_later_finds_all_that_one_thread_did",
            a_thread_made_later_finds_all,
        ),
    ];

    /// What the C library says; None if it does not say.
    fn is_only_thread() -> Option<bool> {
        // SAFETY: the name is a C string.
        let says = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
        // SAFETY: it is null or leads to a `char`.
        unsafe { says.cast::<u8>().as_ref() }.map(|says| *says != 0)
    }

    #[track_caller]
    fn assert_only_thread() {
        assert_ne!(is_only_thread(), Some(false), "the test shows nothing");
    }

    fn any_sequence(with_descriptors: bool, world: World) {
        assert_only_thread();
        let ran = TestRunner::new(config(2000)).run(&steps(with_descriptors), |steps| {
            run(&steps, world);
            Ok(())
        });
        if let Err(failure) = ran {
            panic!("{failure}");
        }
        assert_only_thread();
    }

    fn a_wait_ends_in_time() {
        let set = Epoll::new().unwrap();
        let limit = Duration::from_millis(2);
        let begun = std::time::Instant::now();
        assert_eq!(set.wait(&mut [Event::default()], limit), Ok(0));
        assert!(begun.elapsed() >= limit);
        assert_only_thread();
    }

    static INTERRUPTED: OnceLock<EventFd> = OnceLock::new();
    static WRITTEN_BY_HANDLERS: AtomicU64 = AtomicU64::new(0);

    extern "C" fn write_one(_: libc::c_int) {
        if let Some(counter) = INTERRUPTED.get()
            && counter.try_write(1).is_ok()
        {
            WRITTEN_BY_HANDLERS.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn handlers_lose_no_count() {
        assert_only_thread();
        let counter = INTERRUPTED.get_or_init(|| EventFd::new(0).unwrap());
        let handler: extern "C" fn(libc::c_int) = write_one;
        let every = |microseconds| {
            let every = libc::timeval {
                tv_sec: 0,
                tv_usec: microseconds,
            };
            let timer = libc::itimerval {
                it_interval: every,
                it_value: every,
            };
            // SAFETY: the timer is live, and nobody wants the old one.
            unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) }
        };
        // SAFETY: what the handler does may be done in one.
        unsafe { libc::signal(libc::SIGALRM, handler as libc::sighandler_t) };
        assert_eq!(every(20), 0);
        let (mut written, mut read) = (0, 0);
        while WRITTEN_BY_HANDLERS.load(Ordering::Relaxed) < 10_000 {
            for _ in 0..64 {
                counter.try_write(1).unwrap();
                written += 1;
                counter.try_write(1).unwrap();
                written += 1;
                read += counter.try_read().unwrap();
            }
        }
        assert_eq!(every(0), 0);
        read += match counter.try_read() {
            Ok(rest) => rest,
            Err(Errno::AGAIN) => 0,
            Err(errno) => panic!("{errno}"),
        };
        assert_eq!(read, written + WRITTEN_BY_HANDLERS.load(Ordering::Relaxed));
        assert_only_thread();
    }

    fn a_thread_made_later_finds_all() {
        const ROUNDS: u64 = 20_000;

        assert_only_thread();
        let (set, there, back) = (
            Epoll::new().unwrap(),
            EventFd::new(0).unwrap(),
            EventFd::new(0).unwrap(),
        );
        set.add(&there, Event::new(Events::IN | Events::ET, 7))
            .unwrap();
        let members: Vec<_> = (0..100).map(|_| EventFd::new(0).unwrap()).collect();
        for member in &members {
            set.add(member, Event::new(Events::IN, 1)).unwrap();
        }
        drop(members);
        there.write(5).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut events = [Event::default(); 4];
                let mut read = 0;
                while read < 5 + ROUNDS {
                    let found = set.wait(&mut events, Timeout::NEVER).unwrap();
                    assert_eq!(found, 1);
                    assert_eq!(events[0].data(), 7);
                    if let Ok(count) = there.try_read() {
                        read += count;
                        back.write(count).unwrap();
                    }
                }
                assert_eq!(there.try_read(), Err(Errno::AGAIN));
            });
            assert_eq!(back.read(), Ok(5));
            for round in 0..ROUNDS {
                there.write(1).unwrap();
                if round % 2 == 0 {
                    assert!(back.read().unwrap() > 0);
                }
            }
        });
    }
}
