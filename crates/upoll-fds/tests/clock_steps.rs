//! Steps of the wall clock during a wait.
//!
//! The clock of the machine stays as it is. This program defines `clock_gettime`, and the libraries in it use
//! that definition, too. A seccomp filter passes each `futex(2)` that waits by the wall clock to the test. The
//! test implements the call as the kernel does: the wait ends when the clock reaches the limit, even if the
//! clock is set.
#![cfg(not(upoll_loom))]

mod notified;

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use self::notified::{Answer, Call, Which, answered};
use upoll::{Errno, Event, Events, File, PollTable, Pollable, WaitQueue};
use upoll_fds::{EpollWaitParams, UserSets};

/// The number of nanoseconds by which the wall clock was set forward.
static STEP: AtomicI64 = AtomicI64::new(0);
/// The number of times that the wall clock was read.
static READS: AtomicUsize = AtomicUsize::new(0);
/// The time by the wall clock when it was last read, by the call or by the kernel for the call.
static LAST_READ: AtomicI64 = AtomicI64::new(0);
/// The number of waits by the wall clock that the kernel was asked for.
static SLEEPS: AtomicUsize = AtomicUsize::new(0);
/// The thread that waits.
static WAITER: AtomicI32 = AtomicI32::new(0);

const HOUR: Duration = Duration::from_secs(3600);
/// Longer than any wait here takes, also on a busy machine.
const FOR_EVER: Duration = Duration::from_secs(60);

/// The C library's, with a wall clock that this program sets.
#[unsafe(no_mangle)]
extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> libc::c_int {
    // SAFETY: the caller passes a timespec to be filled.
    if unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) } != 0 {
        return -1;
    }
    if clock == libc::CLOCK_REALTIME {
        READS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: as above.
        let time = unsafe { &mut *time };
        let now = nanoseconds(time) + STEP.load(Ordering::SeqCst);
        LAST_READ.store(now, Ordering::SeqCst);
        time.tv_sec = now / 1_000_000_000;
        time.tv_nsec = now % 1_000_000_000;
    }
    0
}

fn nanoseconds(time: &libc::timespec) -> i64 {
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Returns the wall clock in nanoseconds; not counted as a read.
fn wall() -> i64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the time is to be filled.
    unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_REALTIME, &raw mut now) };
    nanoseconds(&now) + STEP.load(Ordering::SeqCst)
}

fn step(by: i64) {
    STEP.fetch_add(by, Ordering::SeqCst);
}

fn count(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap()
}

/// One test at a time sets the clock.
fn alone() -> MutexGuard<'static, ()> {
    static CLOCK: Mutex<()> = Mutex::new(());
    CLOCK
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Does what the kernel does for a thread that waits for a futex by the wall clock.
fn wait_for_futex(call: &Call) -> Answer {
    SLEEPS.fetch_add(1, Ordering::SeqCst);
    let [word, _, expected, limit, ..] = call.arguments();
    let pointer =
        |address| std::ptr::with_exposed_provenance_mut::<()>(usize::try_from(address).unwrap());
    // SAFETY: the thread is in the call, so that its word and its limit are there.
    let (word, limit) = unsafe {
        let word = AtomicU32::from_ptr(pointer(word).cast());
        (word, nanoseconds(&*pointer(limit).cast()))
    };
    loop {
        if !call.is_under_way() || u64::from(word.load(Ordering::SeqCst)) != expected {
            return Answer::Error(libc::EAGAIN);
        }
        let now = wall();
        LAST_READ.store(now, Ordering::SeqCst);
        if now >= limit {
            return Answer::Error(libc::ETIMEDOUT);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Such waits.
const BY_THE_WALL_CLOCK: Which = Which {
    number: libc::SYS_futex,
    argument: 1,
    bits: libc::FUTEX_CLOCK_REALTIME.cast_unsigned(),
};

/// Makes a call in a thread of its own while `meanwhile` sets the clock. Returns what the call returned,
/// how long it took, and how far the wall clock had moved when the call read it last.
fn during<T: Send + 'static>(
    what: &str,
    call: impl FnOnce() -> T + Send + 'static,
    meanwhile: impl FnOnce(&AtomicBool),
) -> (T, Duration, i64) {
    let (sender, receiver) = mpsc::channel();
    READS.store(0, Ordering::SeqCst);
    SLEEPS.store(0, Ordering::SeqCst);
    let has_ended: &AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let waiter = thread::spawn(move || {
        let ended = answered(BY_THE_WALL_CLOCK, wait_for_futex, move || {
            // SAFETY: no pointers are involved.
            WAITER.store(unsafe { libc::gettid() }, Ordering::SeqCst);
            let (begun, shown) = (Instant::now(), wall());
            let result = call();
            (
                result,
                begun.elapsed(),
                LAST_READ.load(Ordering::SeqCst) - shown,
            )
        });
        has_ended.store(true, Ordering::SeqCst);
        sender.send(ended).unwrap();
    });
    meanwhile(has_ended);
    let ended = match receiver.recv_timeout(FOR_EVER) {
        Ok(ended) => ended,
        Err(RecvTimeoutError::Timeout) => panic!("{what} hangs"),
        Err(RecvTimeoutError::Disconnected) => panic!("{what} failed"),
    };
    waiter.join().unwrap();
    STEP.store(0, Ordering::SeqCst);
    ended
}

/// An object that wakes threads and is never ready.
#[derive(Default)]
struct Never(WaitQueue);

impl Pollable for Never {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.0);
        Events::empty()
    }
}

/// A member of all sets that have user-level members.
static NEVER: LazyLock<File<Never>> = LazyLock::new(|| File::new(Never::default()));

/// Wakes the thread that waits, for nothing.
fn wake_for_nothing() {
    NEVER.0.wake(Events::IN);
}

/// Sets of all kinds, with members that are never ready.
fn sets() -> [(&'static str, i32); 4] {
    const ROTATE: i32 = 1;
    let event = Event::new(Events::IN, 5);
    // SAFETY: no pointers are involved, or live ones.
    unsafe {
        let add = |set, member| {
            upoll_fds::epoll_ctl(set, libc::EPOLL_CTL_ADD, member, &raw const event).unwrap();
            set
        };
        let [user, both, passive] = [0; 3].map(|flags| upoll_fds::epoll_create1(flags).unwrap());
        let rotating = upoll_fds::epoll_create1(ROTATE).unwrap();
        let never = upoll_fds::open(&NEVER, true).unwrap();
        let kernels = libc::eventfd(0, 0);
        add(both, kernels);
        [
            ("a user-level set", add(user, never)),
            ("a set of both kinds", add(both, never)),
            ("a passive set", add(passive, kernels)),
            ("a rotating set", add(rotating, never)),
        ]
    }
}

fn time(limit: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap(),
        tv_nsec: limit.subsec_nanos().into(),
    }
}

fn pwait1(set: i32, clockid: i32, limit: Duration) -> Result<usize, Errno> {
    let mut events = [Event::default(); 4];
    let limit = time(limit);
    let params = EpollWaitParams {
        size: 0,
        clockid,
        timeout: &raw const limit,
        sigmask: std::ptr::null(),
        sigsetsize: 8,
    };
    // SAFETY: there is room for four; all is live.
    unsafe { upoll_fds::epoll_pwait1(set, 0, events.as_mut_ptr(), 4, &raw const params) }
}

/// Waits until the call has computed its limit: it has read the clock, and its thread sleeps.
fn wait_for_its_begin() {
    while READS.load(Ordering::SeqCst) == 0 {
        thread::yield_now();
    }
    wait_until_it_sleeps();
}

/// Waits until the thread of [`during`] sleeps. On a busy machine a thread that does not run is not asleep, but still
/// between two reads of the clock.
fn wait_until_it_sleeps() {
    let stat = format!("/proc/self/task/{}/stat", WAITER.load(Ordering::SeqCst));
    let is_asleep = || {
        let stat = std::fs::read_to_string(&stat).unwrap_or_default();
        // It has ended if it has no state.
        let state = stat.rsplit_once(") ").map_or("S", |(_, state)| state);
        state.starts_with('S')
    };
    let mut samples = 0;
    while samples < 5 {
        samples = if is_asleep() { samples + 1 } else { 0 };
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_wait_by_the_wall_clock_ends_after_a_step_forward() {
    let _alone = alone();
    for (kind, set) in sets() {
        let wait = move || pwait1(set, libc::CLOCK_REALTIME, HOUR);
        let (found, took, shown) = during(kind, wait, |_| {
            wait_for_its_begin();
            step(count(HOUR));
        });
        assert_eq!(found, Ok(0), "{kind}");
        assert!(took < HOUR && shown >= count(HOUR), "{kind}: {took:?}");
    }
}

#[test]
fn a_wait_by_the_wall_clock_goes_on_after_a_step_back() {
    let _alone = alone();
    let (limit, back) = (Duration::from_millis(150), Duration::from_millis(400));
    for (kind, set) in sets() {
        let wait = move || pwait1(set, libc::CLOCK_REALTIME, limit);
        let (found, took, shown) = during(kind, wait, |_| {
            wait_for_its_begin();
            step(-count(back));
        });
        assert_eq!(found, Ok(0), "{kind}");
        // The step may come when the call is over on a busy machine. Otherwise the wait is longer by the step, as the
        // clock has to show the limit.
        assert!(shown >= count(limit), "{kind}: {shown}");
        assert!(took >= limit, "{kind}: {took:?}");
    }
}

/// Changes what the thread that waits is woken for, and waits until it sleeps again or has ended.
fn disturb(has_ended: &AtomicBool, change: impl Fn()) {
    let looks = || (READS.load(Ordering::SeqCst), SLEEPS.load(Ordering::SeqCst));
    let (before, begun) = (looks(), Instant::now());
    change();
    while looks() == before && !has_ended.load(Ordering::SeqCst) && begun.elapsed() < FOR_EVER {
        thread::sleep(Duration::from_millis(1));
    }
    wait_until_it_sleeps();
}

/// A limit by the wall clock counts from the call, whatever the thread is woken for meanwhile.
#[test]
fn a_wait_by_the_wall_clock_keeps_its_limit_when_it_is_woken() {
    let _alone = alone();
    let add = |set, member| {
        let event = Event::new(Events::IN, 5);
        // SAFETY: the event is live.
        unsafe { upoll_fds::epoll_ctl(set, libc::EPOLL_CTL_ADD, member, &raw const event) }
            .unwrap();
    };
    for gets_another_kind in [false, true] {
        for (kind, set) in sets() {
            let is_passive = kind == "a passive set";
            // A rotating set has one member.
            let gets_another_kind = gets_another_kind && kind != "a rotating set";
            let wait = move || pwait1(set, libc::CLOCK_REALTIME, HOUR);
            let (found, took, shown) = during(kind, wait, |has_ended| {
                wait_for_its_begin();
                step(count(HOUR / 2));
                match (gets_another_kind, is_passive) {
                    // The thread begins to wait anew, for members of both kinds.
                    (true, true) => disturb(has_ended, || {
                        add(set, upoll_fds::eventfd(0, 0).unwrap());
                    }),
                    (true, false) => disturb(has_ended, || {
                        // SAFETY: no pointers are involved.
                        add(set, unsafe { libc::eventfd(0, 0) });
                    }),
                    // A kernel set wakes nobody for nothing.
                    (false, true) => {}
                    (false, false) => {
                        for _ in 0..3 {
                            disturb(has_ended, wake_for_nothing);
                        }
                    }
                }
                assert!(!has_ended.load(Ordering::SeqCst), "{kind} ends early");
                step(count(HOUR / 2));
            });
            assert_eq!(found, Ok(0), "{kind}");
            assert!(took < HOUR && shown >= count(HOUR), "{kind}: {took:?}");
        }
    }
}

/// Sets the clock back and forth and wakes the thread for nothing until the call has ended.
fn shake(has_ended: &AtomicBool) {
    let mut by = count(HOUR);
    let begun = Instant::now();
    while !has_ended.load(Ordering::SeqCst) && begun.elapsed() < FOR_EVER {
        step(by);
        wake_for_nothing();
        by = -by;
        thread::sleep(Duration::from_millis(5));
        // Now an hour ahead or, every other time, an hour behind.
        if by > 0 {
            step(-2 * count(HOUR));
            thread::sleep(Duration::from_millis(5));
            step(2 * count(HOUR));
        }
    }
}

/// Sets, and entries and bitmaps of one user-level fd, of one that the kernel serves, and of both.
#[test]
fn no_other_limit_depends_on_the_wall_clock() {
    type Call = Box<dyn FnOnce() -> Result<usize, Errno> + Send>;
    const LIMIT: Duration = Duration::from_millis(60);
    let _alone = alone();
    let mut calls: Vec<(String, Call)> = Vec::new();
    let milliseconds = i32::try_from(LIMIT.as_millis()).unwrap();
    for (kind, set) in sets() {
        let room = || vec![Event::default(); 4];
        let mask: u64 = 0;
        // SAFETY: what the calls are given is live during the call.
        unsafe {
            calls.push((
                format!("epoll_wait in {kind}"),
                Box::new(move || upoll_fds::epoll_wait(set, room().as_mut_ptr(), 4, milliseconds)),
            ));
            calls.push((
                format!("epoll_pwait in {kind}"),
                Box::new(move || {
                    let mask = (&raw const mask).cast();
                    upoll_fds::epoll_pwait(set, room().as_mut_ptr(), 4, milliseconds, mask, 8)
                }),
            ));
            calls.push((
                format!("epoll_pwait2 in {kind}"),
                Box::new(move || {
                    let limit = time(LIMIT);
                    let none = std::ptr::null();
                    upoll_fds::epoll_pwait2(set, room().as_mut_ptr(), 4, &raw const limit, none, 8)
                }),
            ));
        }
        calls.push((
            format!("epoll_pwait1 by CLOCK_MONOTONIC in {kind}"),
            Box::new(move || pwait1(set, libc::CLOCK_MONOTONIC, LIMIT)),
        ));
    }
    let never = upoll_fds::open(&NEVER, true).unwrap();
    // SAFETY: no pointers are involved.
    let kernels = unsafe { libc::eventfd(0, 0) };
    for fds in [vec![never], vec![never, kernels]] {
        for (name, masked) in [("poll", false), ("ppoll", true)] {
            let fds = fds.clone();
            calls.push((
                format!("{name} of {}", fds.len()),
                Box::new(move || {
                    let entry = |&fd| libc::pollfd {
                        fd,
                        events: libc::POLLIN,
                        revents: 0,
                    };
                    let mut entries: Vec<_> = fds.iter().map(entry).collect();
                    let (limit, mask) = (time(LIMIT), 0_u64);
                    let (at, count) = (entries.as_mut_ptr(), entries.len());
                    // SAFETY: all is live.
                    unsafe {
                        match masked {
                            false => upoll_fds::poll(at, count, milliseconds),
                            true => upoll_fds::ppoll(
                                at,
                                count,
                                &raw const limit,
                                (&raw const mask).cast(),
                                8,
                            ),
                        }
                    }
                }),
            ));
        }
        for (name, masked) in [("select", false), ("pselect", true)] {
            let fds = fds.clone();
            calls.push((
                format!("{name} of {}", fds.len()),
                Box::new(move || {
                    let mut bits = [0_u64; 16];
                    for fd in fds {
                        let fd = usize::try_from(fd).unwrap();
                        bits[fd / 64] |= 1 << (fd % 64);
                    }
                    let none = std::ptr::null_mut();
                    let sets: UserSets = [bits.as_mut_ptr().cast(), none, none];
                    let (limit, mask) = (time(LIMIT), 0_u64);
                    let mut rest = libc::timeval {
                        tv_sec: 0,
                        tv_usec: limit.tv_nsec / 1000,
                    };
                    // SAFETY: all is live.
                    unsafe {
                        match masked {
                            false => upoll_fds::select(1024, sets, &raw mut rest),
                            true => upoll_fds::pselect(
                                1024,
                                sets,
                                &raw const limit,
                                (&raw const mask).cast(),
                                8,
                            ),
                        }
                    }
                }),
            ));
        }
    }
    calls.push((
        "recv with SO_RCVTIMEO".into(),
        Box::new(|| {
            let mut pair = [0; 2];
            let limit = libc::timeval {
                tv_sec: 0,
                tv_usec: i64::try_from(LIMIT.as_micros()).unwrap(),
            };
            let size = u32::try_from(size_of_val(&limit)).unwrap();
            let limit = (&raw const limit).cast();
            // SAFETY: all is live.
            unsafe {
                upoll_fds::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, &raw mut pair).unwrap();
                let option = libc::SO_RCVTIMEO;
                upoll_fds::setsockopt(pair[0], libc::SOL_SOCKET, option, limit, size).unwrap();
                let mut byte = 0;
                match upoll_fds::recv(pair[0], &raw mut byte, 1, 0) {
                    Err(Errno::AGAIN) => Ok(0),
                    other => other,
                }
            }
        }),
    ));
    for (what, call) in calls {
        let (found, took, _) = during(&what, call, shake);
        assert_eq!(found, Ok(0), "{what}");
        assert!(took >= LIMIT, "{what}: {took:?}");
        assert_eq!(
            READS.load(Ordering::SeqCst),
            0,
            "{what} reads the wall clock"
        );
        assert_eq!(
            SLEEPS.load(Ordering::SeqCst),
            0,
            "{what} sleeps by the wall clock"
        );
    }
}

/// Calls that block without a limit end when they have done what they are to do.
#[test]
fn steps_end_no_call_that_blocks_without_a_limit() {
    type Blocked = Box<dyn FnOnce() -> Result<u64, Errno> + Send>;
    type Release = Box<dyn FnOnce()>;
    let _alone = alone();
    let full = upoll_fds::eventfd(0, 0).unwrap();
    upoll_fds::eventfd_write(full, u64::MAX - 1).unwrap();
    let empty = upoll_fds::eventfd(0, 0).unwrap();
    let mut pipe = [0; 2];
    // SAFETY: the fds have a place.
    unsafe { upoll_fds::pipe(&raw mut pipe) }.unwrap();
    let read = |fd| {
        move || {
            let mut value = 0_u64;
            // SAFETY: the value is live.
            unsafe { upoll_fds::read(fd, (&raw mut value).cast(), 8) }?;
            Ok(value)
        }
    };
    let calls: [(&str, Blocked, Release, u64); 3] = [
        (
            "eventfd_write",
            Box::new(move || upoll_fds::eventfd_write(full, 5).map(|()| 5)),
            Box::new(move || assert_eq!(read(full)(), Ok(u64::MAX - 1))),
            5,
        ),
        (
            "eventfd_read",
            Box::new(read(empty)),
            Box::new(move || upoll_fds::eventfd_write(empty, 7).unwrap()),
            7,
        ),
        (
            "a read of a pipe",
            Box::new(read(pipe[0])),
            Box::new(move || {
                let value = 9_u64;
                // SAFETY: the value is live.
                let written = unsafe { upoll_fds::write(pipe[1], (&raw const value).cast(), 8) };
                assert_eq!(written, Ok(8));
            }),
            9,
        ),
    ];
    for (what, call, release, expected) in calls {
        let (found, ..) = during(what, call, |has_ended| {
            for _ in 0..20 {
                step(count(HOUR));
                thread::sleep(Duration::from_millis(2));
                step(-2 * count(HOUR));
                thread::sleep(Duration::from_millis(2));
                step(count(HOUR));
            }
            assert!(!has_ended.load(Ordering::SeqCst), "{what} ends early");
            release();
        });
        assert_eq!(found, Ok(expected), "{what}");
        assert_eq!(
            READS.load(Ordering::SeqCst),
            0,
            "{what} reads the wall clock"
        );
        assert_eq!(
            SLEEPS.load(Ordering::SeqCst),
            0,
            "{what} sleeps by the wall clock"
        );
    }
}
