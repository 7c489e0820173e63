//! `epoll_pwait1` by fd, by both clocks: on a set with user-level members, on one without, and on a
//! kernel set. The kernel's `epoll_pwait2` on the last one is the oracle.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use upoll::{Errno, Event, Events};
use upoll_fds::EpollWaitParams;

const CLOCKS: [i32; 2] = [libc::CLOCK_MONOTONIC, libc::CLOCK_REALTIME];

/// Sets of all kinds with one member each, an eventfd, that is ready once it is written to.
struct Sets(Vec<(&'static str, i32, i32)>);

impl Sets {
    fn new() -> Self {
        let event = Event::new(Events::IN, 5);
        let [active, passive] = [0, 1].map(|_| upoll_fds::epoll_create1(0).unwrap());
        // SAFETY: no pointers are involved.
        let kernels = unsafe { libc::epoll_create1(0) };
        let ours = upoll_fds::eventfd(0, 0).unwrap();
        // SAFETY: no pointers are involved.
        let [one, other] = [0, 1].map(|_| unsafe { libc::eventfd(0, 0) });
        let sets = [
            ("active", active, ours),
            ("passive", passive, one),
            ("the kernel's", kernels, other),
        ];
        for (_, set, member) in sets {
            // SAFETY: the event is live.
            unsafe { upoll_fds::epoll_ctl(set, 1, member, &raw const event) }.unwrap();
        }
        Sets(sets.into())
    }
}

impl Drop for Sets {
    fn drop(&mut self) {
        for (_, set, member) in self.0.drain(..) {
            upoll_fds::close(set).unwrap();
            upoll_fds::close(member).unwrap();
        }
    }
}

fn time(limit: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap(),
        tv_nsec: limit.subsec_nanos().into(),
    }
}

fn params(clockid: i32, timeout: Option<&libc::timespec>) -> EpollWaitParams {
    EpollWaitParams {
        size: 0,
        clockid,
        timeout: timeout.map_or(std::ptr::null(), std::ptr::from_ref),
        sigmask: std::ptr::null(),
        sigsetsize: 8,
    }
}

fn pwait1(set: i32, room: i32, params: &EpollWaitParams) -> Result<usize, Errno> {
    let mut events = [Event::default(); 4];
    // SAFETY: there is room for four.
    unsafe { upoll_fds::epoll_pwait1(set, 0, events.as_mut_ptr(), room, params) }
}

/// The kernel's wait with the same arguments but for the clock.
fn pwait2(set: i32, room: i32, params: &EpollWaitParams) -> Result<usize, Errno> {
    let mut events = [Event::default(); 4];
    // SAFETY: there is room for four; the kernel checks the other pointers.
    let result = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            set,
            events.as_mut_ptr(),
            room,
            params.timeout,
            params.sigmask,
            params.sigsetsize,
        )
    };
    usize::try_from(result)
        .map_err(|_| Errno::from_raw(std::io::Error::last_os_error().raw_os_error().unwrap()))
}

#[test]
fn a_wait_lasts_as_long_as_its_clock_says() {
    let sets = Sets::new();
    for (kind, set, member) in &sets.0 {
        for clock in CLOCKS {
            let limit = Duration::from_millis(15);
            let timeout = time(limit);
            let (begun, begun_by_the_wall) = (Instant::now(), SystemTime::now());
            assert_eq!(
                pwait1(*set, 4, &params(clock, Some(&timeout))),
                Ok(0),
                "{kind}"
            );
            if clock == libc::CLOCK_REALTIME {
                // Nobody sets the clock of the machine back during a test.
                assert!(begun_by_the_wall.elapsed().unwrap() >= limit, "{kind}");
            } else {
                assert!(begun.elapsed() >= limit, "{kind}");
            }
            upoll_fds::eventfd_write(*member, 1).unwrap();
            for timeout in [Some(&time(Duration::MAX / 4)), Some(&timeout), None] {
                assert_eq!(pwait1(*set, 4, &params(clock, timeout)), Ok(1), "{kind}");
            }
            assert_eq!(
                pwait1(*set, 4, &params(clock, Some(&time(Duration::ZERO)))),
                Ok(1)
            );
            let mut value = 0;
            // SAFETY: the value is live.
            unsafe { upoll_fds::eventfd_read(*member, &raw mut value) }.unwrap();
            assert_eq!(
                pwait1(*set, 4, &params(clock, Some(&time(Duration::ZERO)))),
                Ok(0)
            );
        }
    }
}

/// Longer than the kernel is let sleep in one go.
#[test]
fn a_wait_of_more_than_a_second_ends_when_it_is_to_and_when_something_happens() {
    let sets = Sets::new();
    for (kind, set, member) in &sets.0 {
        let limit = Duration::from_millis(1200);
        let begun = SystemTime::now();
        assert_eq!(
            pwait1(*set, 4, &params(libc::CLOCK_REALTIME, Some(&time(limit)))),
            Ok(0)
        );
        assert!(begun.elapsed().unwrap() >= limit, "{kind}");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let timeout = time(Duration::from_secs(3600));
                pwait1(*set, 4, &params(libc::CLOCK_REALTIME, Some(&timeout)))
            });
            std::thread::sleep(Duration::from_millis(1100));
            upoll_fds::eventfd_write(*member, 1).unwrap();
            assert_eq!(waiter.join().unwrap(), Ok(1), "{kind}");
        });
    }
}

#[test]
fn what_is_wrong_is_said_as_the_kernel_says_it() {
    let sets = Sets::new();
    let mut all: Vec<i32> = sets.0.iter().map(|&(_, set, _)| set).collect();
    // No set, and nothing at all.
    let (_, _, counter) = sets.0[0];
    let (_, kernels, kernels_counter) = sets.0[2];
    all.extend([counter, kernels_counter, -1, 100_000]);
    let good = time(Duration::from_millis(1));
    let nowhere: *const libc::timespec = std::ptr::without_provenance(8);
    let no_mask: *const libc::sigset_t = std::ptr::without_provenance(8);
    for set in all {
        // The oracle is asked about its own kind of thing.
        let theirs = match set {
            set if set == counter => kernels_counter,
            set if sets.0.iter().any(|&(_, ours, _)| ours == set) => kernels,
            set => set,
        };
        for clock in CLOCKS {
            for room in [1, 0, -1, i32::MAX] {
                for timespec in [(0, 1_000_000_000), (-1, 0), (0, -1), (0, 0), (0, 1000)] {
                    let timeout = libc::timespec {
                        tv_sec: timespec.0,
                        tv_nsec: timespec.1,
                    };
                    let params = params(clock, Some(&timeout));
                    let expected = pwait2(theirs, room, &params);
                    assert_eq!(pwait1(set, room, &params), expected, "{timespec:?} {room}");
                }
                let wild = EpollWaitParams {
                    timeout: nowhere,
                    ..params(clock, None)
                };
                let masked = |sigsetsize| EpollWaitParams {
                    sigmask: no_mask,
                    sigsetsize,
                    ..params(clock, Some(&good))
                };
                for params in [wild, masked(8), masked(4), masked(16)] {
                    let expected = pwait2(theirs, room, &params);
                    assert_eq!(pwait1(set, room, &params), expected, "{room}");
                }
            }
        }
        assert_eq!(
            pwait1(set, 1, &params(libc::CLOCK_BOOTTIME, None)),
            Err(Errno::INVAL)
        );
    }
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count_signal(_: i32) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

/// One test, as both use the process's handler.
#[test]
fn a_signal_ends_a_wait_and_the_mask_is_what_it_was() {
    let handler: extern "C" fn(i32) = count_signal;
    // SAFETY: the handler only adds to an atomic; all zeros is a valid sigaction.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
    }
    let sets = Sets::new();
    for (kind, set, _) in &sets.0 {
        for clock in CLOCKS {
            // Blocked by the thread and let in by the wait, pending from before it.
            let before = HANDLED.load(Ordering::SeqCst);
            let mut held = upoll::SigSet::empty();
            held.add(libc::SIGUSR1).unwrap();
            let held = libc::sigset_t::from(held);
            // SAFETY: the mask is live.
            unsafe {
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const held, std::ptr::null_mut());
                libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1);
            }
            let timeout = time(Duration::from_secs(3600));
            let none = 0_u64;
            let params = EpollWaitParams {
                sigmask: (&raw const none).cast(),
                ..params(clock, Some(&timeout))
            };
            assert_eq!(pwait1(*set, 4, &params), Err(Errno::INTR), "{kind}");
            assert_eq!(HANDLED.load(Ordering::SeqCst), before + 1, "{kind}");
            assert!(upoll::SigSet::of_this_thread().contains(libc::SIGUSR1));
            // SAFETY: the mask is live.
            unsafe {
                libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const held, std::ptr::null_mut())
            };

            // Without a mask, while it waits; and it is not restarted.
            let params = EpollWaitParams {
                sigmask: std::ptr::null(),
                ..params
            };
            // SAFETY: no pointers are involved.
            let waiting = unsafe { libc::gettid() };
            let is_over = std::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|scope| {
                let is_over = &is_over;
                scope.spawn(move || {
                    while !is_over.load(Ordering::SeqCst) {
                        std::thread::sleep(Duration::from_millis(5));
                        // SAFETY: no pointers are involved; the thread waits for this one's end.
                        unsafe {
                            libc::syscall(libc::SYS_tgkill, libc::getpid(), waiting, libc::SIGUSR1)
                        };
                    }
                });
                assert_eq!(pwait1(*set, 4, &params), Err(Errno::INTR), "{kind}");
                is_over.store(true, Ordering::SeqCst);
            });
            assert!(!upoll::SigSet::of_this_thread().contains(libc::SIGUSR1));
        }
    }
}

/// A thread waits by the wall clock in a passive set that becomes active: it goes on, by that clock.
#[test]
fn a_wait_goes_on_when_the_set_changes_hands() {
    let set = upoll_fds::epoll_create1(0).unwrap();
    // SAFETY: no pointers are involved.
    let theirs = unsafe { libc::eventfd(0, 0) };
    let event = Event::new(Events::IN, 1);
    // SAFETY: the event is live.
    unsafe { upoll_fds::epoll_ctl(set, 1, theirs, &raw const event) }.unwrap();
    let limit = Duration::from_millis(300);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let begun = SystemTime::now();
            let found = pwait1(set, 4, &params(libc::CLOCK_REALTIME, Some(&time(limit))));
            (found, begun.elapsed().unwrap())
        });
        std::thread::sleep(Duration::from_millis(50));
        let ours = upoll_fds::eventfd(0, 0).unwrap();
        // SAFETY: the event is live.
        unsafe { upoll_fds::epoll_ctl(set, 1, ours, &raw const event) }.unwrap();
        let (found, passed) = waiter.join().unwrap();
        assert_eq!(found, Ok(0));
        assert!(passed >= limit);
        upoll_fds::close(ours).unwrap();
    });
    upoll_fds::close(set).unwrap();
    upoll_fds::close(theirs).unwrap();
}
