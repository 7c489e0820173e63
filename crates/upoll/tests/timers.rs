//! `timerfd(2)`: arming, counts, readiness and edges. Each rule is checked on the host kernel too.
//!
//! Without `std` the clock is a virtual one.
#![cfg(not(upoll_loom))]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proptest::prelude::*;
#[cfg(feature = "std")]
use upoll::Clock;
use upoll::{Epoll, Errno, Event, Events, PollFd, Timer, Timers, Watch, poll_now};

const HOUR: Duration = Duration::from_secs(3600);
const HALF: Duration = Duration::from_secs(1800);
const SECOND: Duration = Duration::from_secs(1);
const ZERO: Duration = Duration::ZERO;

/// The time of the wall clock, by which timers can be due hours ago.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// Whether the clock of a timer is virtual. Only with `std` there are others.
const CLOCKS: &[bool] = if cfg!(feature = "std") {
    &[true, false]
} else {
    &[true]
};

/// Times of which no two are closer than half an hour, so that the time that passes in a test does not matter.
#[derive(Clone, Copy, Debug)]
enum When {
    Zero,
    /// So many hours and a half ago, or from now.
    Past(u32),
    Future(u32),
}

impl When {
    fn at(self) -> Duration {
        match self {
            When::Zero => ZERO,
            When::Past(hours) => now() - hours * HOUR - HALF,
            When::Future(hours) => now() + hours * HOUR + HALF,
        }
    }

    /// The same from now on. The past is none.
    fn after(self) -> Duration {
        match self {
            When::Zero | When::Past(_) => ZERO,
            When::Future(hours) => hours * HOUR + HALF,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    ArmAt(When, u32),
    Arm(When, u32),
    Read,
    Setting,
    Wait,
    Modify(Events),
}

/// A timer in a set, here and in the kernel.
struct Twin {
    /// The clock of the timer here is virtual, and shows the same time.
    is_virtual: bool,
    timers: Timers,
    timer: Timer,
    set: Epoll,
    kernel_timer: OwnedFd,
    kernel_set: OwnedFd,
}

/// The remaining time in whole hours, and the interval.
type Setting = (u64, Duration);

impl Twin {
    fn new(is_virtual: bool, events: Events) -> Self {
        let timers = match is_virtual {
            true => Timers::new(),
            #[cfg(feature = "std")]
            false => Timers::on(Clock::Realtime),
            #[cfg(not(feature = "std"))]
            false => unreachable!("there is no other clock"),
        }
        .unwrap();
        let timer = timers.timer().unwrap();
        let set = Epoll::new().unwrap();
        set.add(&timer, Event::new(events, 7)).unwrap();
        // SAFETY: both fds are new.
        let (kernel_timer, kernel_set) = unsafe {
            (
                OwnedFd::from_raw_fd(libc::timerfd_create(
                    libc::CLOCK_REALTIME,
                    libc::TFD_NONBLOCK,
                )),
                OwnedFd::from_raw_fd(libc::epoll_create1(0)),
            )
        };
        let twin = Twin {
            is_virtual,
            timers,
            timer,
            set,
            kernel_timer,
            kernel_set,
        };
        twin.kernel_ctl(libc::EPOLL_CTL_ADD, events);
        twin
    }

    fn kernel_ctl(&self, op: i32, events: Events) {
        let mut event = libc::epoll_event {
            events: events.bits(),
            u64: 7,
        };
        let (set, timer) = (self.kernel_set.as_raw_fd(), self.kernel_timer.as_raw_fd());
        // SAFETY: the event outlives the call.
        let changed = unsafe { libc::epoll_ctl(set, op, timer, &raw mut event) };
        assert_eq!(changed, 0);
    }

    fn kernel_arm(&self, value: Duration, interval: Duration, flags: i32) -> Setting {
        let spec = |time: Duration| libc::timespec {
            tv_sec: time.as_secs().cast_signed(),
            tv_nsec: time.subsec_nanos().into(),
        };
        let new = libc::itimerspec {
            it_value: spec(value),
            it_interval: spec(interval),
        };
        let mut old = new;
        let timer = self.kernel_timer.as_raw_fd();
        // SAFETY: both outlive the call.
        let set = unsafe { libc::timerfd_settime(timer, flags, &raw const new, &raw mut old) };
        assert_eq!(set, 0);
        setting(old)
    }

    fn kernel_setting(&self) -> Setting {
        // SAFETY: zeroes are a valid value.
        let mut now: libc::itimerspec = unsafe { std::mem::zeroed() };
        // SAFETY: it outlives the call.
        let got = unsafe { libc::timerfd_gettime(self.kernel_timer.as_raw_fd(), &raw mut now) };
        assert_eq!(got, 0);
        setting(now)
    }

    fn kernel_read(&self) -> Result<u64, Errno> {
        let mut count = 0_u64;
        // SAFETY: eight bytes are written to `count`.
        let read = unsafe { libc::read(self.kernel_timer.as_raw_fd(), (&raw mut count).cast(), 8) };
        match read {
            8 => Ok(count),
            _ => Err(last_errno()),
        }
    }

    /// Waits until the kernel has fired its timer, if this one has fired. Compares whether both are ready.
    fn compare_readiness(&self) {
        let mut ours = [PollFd::new(&self.timer, Events::IN)];
        let is_ready = poll_now(&mut ours).unwrap();
        let kernel = self.kernel_poll(if is_ready > 0 { 60_000 } else { 0 });
        assert_eq!((is_ready, ours[0].revents().bits()), kernel);
    }

    /// Waits for the kernel's timer for so many milliseconds.
    fn kernel_poll(&self, limit: i32) -> (usize, u32) {
        let mut entry = libc::pollfd {
            fd: self.kernel_timer.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry.
        let ready = unsafe { libc::poll(&raw mut entry, 1, limit) };
        (
            usize::try_from(ready).unwrap(),
            entry.revents.cast_unsigned().into(),
        )
    }

    fn step(&self, step: Step) {
        if self.is_virtual {
            self.timers.advance(now()).unwrap();
        }
        let ours =
            |setting: upoll::TimerSetting| (setting.remaining.as_secs() / 3600, setting.interval);
        match step {
            Step::ArmAt(when, hours) => {
                let (at, interval) = (when.at(), hours * HOUR);
                let before = ours(self.timer.arm_at(at, interval));
                assert_eq!(
                    before,
                    self.kernel_arm(at, interval, libc::TFD_TIMER_ABSTIME)
                );
            }
            Step::Arm(when, hours) => {
                let (after, interval) = (when.after(), hours * HOUR);
                let before = ours(self.timer.arm(after, interval));
                assert_eq!(before, self.kernel_arm(after, interval, 0));
            }
            Step::Read => assert_eq!(self.timer.try_read(), self.kernel_read()),
            Step::Setting => assert_eq!(ours(self.timer.setting()), self.kernel_setting()),
            Step::Wait => {
                let mut events = [Event::default(); 2];
                let ready = self.set.try_wait(&mut events).unwrap();
                let ours: Vec<_> = events[..ready]
                    .iter()
                    .map(|e| (e.events().bits(), e.data()))
                    .collect();
                let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
                // SAFETY: the buffer holds two events.
                let ready = unsafe {
                    libc::epoll_wait(self.kernel_set.as_raw_fd(), events.as_mut_ptr(), 2, 0)
                };
                let ready = usize::try_from(ready).unwrap();
                let kernel: Vec<_> = events[..ready].iter().map(|e| (e.events, e.u64)).collect();
                assert_eq!(ours, kernel);
            }
            Step::Modify(events) => {
                self.set.modify(&self.timer, Event::new(events, 7)).unwrap();
                self.kernel_ctl(libc::EPOLL_CTL_MOD, events);
            }
        }
        self.compare_readiness();
    }
}

fn setting(of: libc::itimerspec) -> Setting {
    let time = |time: libc::timespec| {
        Duration::new(
            time.tv_sec.cast_unsigned(),
            u32::try_from(time.tv_nsec).unwrap(),
        )
    };
    (time(of.it_value).as_secs() / 3600, time(of.it_interval))
}

fn last_errno() -> Errno {
    Errno::from_raw(std::io::Error::last_os_error().raw_os_error().unwrap())
}

fn interests() -> impl Strategy<Value = Events> {
    prop_oneof![
        Just(Events::IN),
        Just(Events::IN | Events::ET),
        Just(Events::IN | Events::ONESHOT),
        Just(Events::IN | Events::ET | Events::ONESHOT),
        Just(Events::OUT),
    ]
}

fn whens() -> impl Strategy<Value = When> {
    prop_oneof![
        Just(When::Zero),
        (0_u32..5).prop_map(When::Past),
        (0_u32..5).prop_map(When::Future),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (whens(), 0_u32..4).prop_map(|(when, hours)| Step::ArmAt(when, hours)),
        1 => (whens(), 0_u32..4).prop_map(|(when, hours)| Step::Arm(when, hours)),
        3 => Just(Step::Read),
        2 => Just(Step::Setting),
        4 => Just(Step::Wait),
        1 => interests().prop_map(Step::Modify),
    ]
}

proptest! {
    #[test]
    fn a_timer_does_what_a_timerfd_does(
        is_virtual in prop::sample::select(CLOCKS),
        events in interests(),
        steps in prop::collection::vec(steps(), 1..40),
    ) {
        let twin = Twin::new(is_virtual, events);
        for step in steps {
            twin.step(step);
        }
    }
}

/// The steps of the test above that matter most, always.
#[test]
fn the_expirations_of_a_periodic_timer_count_from_its_first_time() {
    for &is_virtual in CLOCKS {
        let twin = Twin::new(is_virtual, Events::IN | Events::ET);
        twin.step(Step::ArmAt(When::Past(4), 1));
        twin.step(Step::Wait);
        twin.step(Step::Wait);
        assert_eq!(twin.timer.try_read(), Ok(5));
        assert_eq!(twin.kernel_read(), Ok(5));
        twin.step(Step::Wait);
        twin.step(Step::Setting);
    }
}

#[test]
fn arming_drops_the_expirations_and_so_does_disarming() {
    for &is_virtual in CLOCKS {
        for again in [Step::Arm(When::Future(1), 0), Step::Arm(When::Zero, 0)] {
            let twin = Twin::new(is_virtual, Events::IN);
            twin.step(Step::ArmAt(When::Past(1), 0));
            twin.step(Step::Wait);
            twin.step(again);
            twin.step(Step::Read);
            twin.step(Step::Wait);
        }
    }
}

/// The timer has expired, and only the kernel's was asked since.
#[cfg(feature = "std")]
#[test]
fn arming_returns_what_is_left_after_an_expiration_that_nobody_has_seen() {
    for again in [
        Step::Arm(When::Future(1), 0),
        Step::ArmAt(When::Future(1), 0),
        Step::Arm(When::Zero, 0),
    ] {
        let twin = Twin::new(false, Events::IN);
        let (at, interval) = (now() + Duration::from_millis(1), 2 * HOUR);
        twin.timer.arm_at(at, interval);
        twin.kernel_arm(at, interval, libc::TFD_TIMER_ABSTIME);
        twin.kernel_poll(60_000);
        twin.step(again);
    }
}

#[cfg(feature = "std")]
#[test]
fn a_time_too_long_to_count_is_the_latest_time() {
    let twin = Twin::new(false, Events::IN);
    let longest = Duration::from_secs(i64::MAX.cast_unsigned());
    twin.timer.arm_at(longest, ZERO);
    twin.kernel_arm(longest, ZERO, libc::TFD_TIMER_ABSTIME);
    twin.step(Step::Setting);
    twin.step(Step::Read);
    twin.timer.arm(Duration::MAX, Duration::MAX);
    twin.step(Step::Read);
}

#[test]
fn a_virtual_clock_fires_by_time_and_then_in_the_order_of_arming() {
    let timers = Timers::new().unwrap();
    let set = Epoll::new().unwrap();
    let fire_order = |times: &[u32]| {
        let all: Vec<_> = times
            .iter()
            .zip(0..)
            .map(|(&seconds, data)| {
                let timer = timers.timer().unwrap();
                set.add(&timer, Event::new(Events::IN | Events::ET, data))
                    .unwrap();
                timer.arm(seconds * SECOND, ZERO);
                timer
            })
            .collect();
        timers.advance(timers.now() + 100 * SECOND).unwrap();
        let mut events = [Event::default(); 64];
        let ready = set.try_wait(&mut events).unwrap();
        drop(all);
        events[..ready].iter().map(Event::data).collect::<Vec<_>>()
    };
    assert_eq!(fire_order(&[3, 1, 2, 1, 3, 2]), [1, 3, 2, 5, 0, 4]);
    assert_eq!(fire_order(&[5, 4, 3, 2, 1]), [4, 3, 2, 1, 0]);
    assert_eq!(fire_order(&[1; 7]), [0, 1, 2, 3, 4, 5, 6]);
}

/// Timers come, go and are armed anew in any order.
#[test]
fn the_next_time_is_that_of_the_first_armed_timer() {
    let mut runner = proptest::test_runner::TestRunner::default();
    let strategy = prop::collection::vec((0_usize..12, 0_u32..20), 1..80);
    runner
        .run(&strategy, |changes| {
            let timers = Timers::new().unwrap();
            let mut armed: Vec<Option<(Timer, u32)>> = (0..12).map(|_| None).collect();
            for (place, seconds) in changes {
                match &mut armed[place] {
                    Some(_) if seconds == 19 => armed[place] = None,
                    Some((timer, due)) => {
                        timer.arm_at(seconds * SECOND, ZERO);
                        *due = seconds;
                    }
                    none => {
                        let timer = timers.timer().unwrap();
                        timer.arm_at(seconds * SECOND, ZERO);
                        *none = Some((timer, seconds));
                    }
                }
                let next = armed
                    .iter()
                    .flatten()
                    .map(|&(_, due)| due)
                    .filter(|&due| due > 0)
                    .min();
                prop_assert_eq!(timers.next_due(), next.map(|due| due * SECOND));
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_time_at_the_end_of_a_virtual_clock_never_comes() {
    let timers = Timers::new().unwrap();
    let [periodic, late] = [(); 2].map(|()| timers.timer().unwrap());
    let period = Duration::from_nanos(1);
    periodic.arm(period, period);
    late.arm(Duration::MAX, ZERO);
    assert_eq!(timers.advance(Duration::MAX), Ok(None));
    assert!(periodic.try_read().is_ok());
    for _ in 0..2 {
        assert_eq!(timers.advance(Duration::MAX), Ok(None));
        assert_eq!(periodic.try_read(), Err(Errno::AGAIN));
        assert_eq!(late.try_read(), Err(Errno::AGAIN));
    }
}

#[test]
fn a_virtual_clock_does_not_go_back() {
    let timers = Timers::new().unwrap();
    assert_eq!(timers.advance(5 * SECOND), Ok(None));
    assert_eq!(timers.advance(3 * SECOND), Ok(None));
    assert_eq!(timers.now(), 5 * SECOND);
    timers.timer().unwrap().arm(SECOND, ZERO);
    assert_eq!(timers.next_due(), None, "the last reference disarms it");
}

#[cfg(feature = "std")]
#[test]
fn a_clock_of_the_kernel_is_not_advanced() {
    for clock in [Clock::Monotonic, Clock::Realtime] {
        let timers = Timers::on(clock).unwrap();
        assert_eq!(timers.advance(HOUR), Err(Errno::INVAL));
    }
}

#[test]
fn a_callback_on_a_timer_runs_when_the_owner_fires_it() {
    let timers = Timers::new().unwrap();
    let timer = timers.timer().unwrap();
    let rang = Arc::new(AtomicUsize::new(0));
    let count = rang.clone();
    let (_watch, ready) = Watch::new(&timer, Events::IN, move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    })
    .unwrap();
    assert!(ready.is_empty());
    timer.arm(SECOND, SECOND);
    assert_eq!(timers.advance(SECOND / 2), Ok(Some(SECOND)));
    assert_eq!(rang.load(Ordering::Relaxed), 0);
    timers.advance(SECOND).unwrap();
    assert_eq!(rang.load(Ordering::Relaxed), 1);
    // It is read within its callback as well as here.
    assert_eq!(timer.try_read(), Ok(1));
    assert_eq!(timers.next_due(), Some(2 * SECOND));
}

#[test]
fn a_callback_that_panics_keeps_no_timer_from_firing() {
    let timers = Timers::new().unwrap();
    let [first, second] = [(); 2].map(|()| timers.timer().unwrap());
    let (_watch, _) = Watch::new(&first, Events::IN, |_| panic!("callback breaks")).unwrap();
    let told = Arc::new(AtomicUsize::new(0));
    let counted = told.clone();
    let (_counting, _) = Watch::new(&second, Events::IN, move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
    })
    .unwrap();
    first.arm(SECOND, ZERO);
    second.arm(SECOND, ZERO);
    let advance = AssertUnwindSafe(|| timers.advance(SECOND));
    assert!(catch_unwind(advance).is_err());
    assert_eq!(second.as_file_ref().ready(), Events::IN);
    // Without `std` a panic cannot be caught.
    assert!(cfg!(not(feature = "std")) || told.load(Ordering::SeqCst) == 1);
}

#[cfg(feature = "std")]
#[test]
fn a_callback_that_panics_keeps_no_timer_from_being_armed() {
    let timers = Timers::on(Clock::Monotonic).unwrap();
    let [due, other] = [(); 2].map(|()| timers.timer().unwrap());
    let (_watch, _) = Watch::new(&due, Events::IN, |_| panic!("callback breaks")).unwrap();
    due.arm(Duration::from_nanos(1), ZERO);
    while timers.next_due().is_some_and(|due| timers.now() < due) {}
    let arm = AssertUnwindSafe(|| other.arm(HOUR, ZERO));
    assert!(catch_unwind(arm).is_err());
    assert_ne!(other.setting().remaining, ZERO);
}

/// The callback learns that the set goes by another clock.
#[cfg(feature = "std")]
#[test]
fn a_callback_that_panics_keeps_no_timer_from_being_added() {
    let timer = Timers::on(Clock::Monotonic).unwrap().timer().unwrap();
    let set = Epoll::new().unwrap();
    let (_watch, _) = Watch::new(&set, Events::IN, |_| panic!("callback breaks")).unwrap();
    let add = AssertUnwindSafe(|| set.add(&timer, Event::new(Events::IN, 0)));
    assert!(catch_unwind(add).is_err());
    assert_eq!(set.delete(&timer), Ok(()));
}

#[test]
fn a_callback_on_a_timer_learns_that_the_timer_is_closed() {
    let timer = Timers::new().unwrap().timer().unwrap();
    let told = Arc::new(AtomicUsize::new(0));
    let counted = told.clone();
    let (_watch, _) = Watch::new(&timer, Events::IN, move |events| {
        assert_eq!(events, Events::HUP);
        counted.fetch_add(1, Ordering::Relaxed);
    })
    .unwrap();
    drop(timer);
    assert_eq!(told.load(Ordering::Relaxed), 1);
}

#[test]
fn a_second_release_of_a_timer_leaves_its_successor_alone() {
    let timers = Timers::new().unwrap();
    let first = timers.timer().unwrap();
    first.as_file_ref().to_file().release();
    let second = timers.timer().unwrap();
    second.arm(SECOND, ZERO);
    first.arm(3 * SECOND, ZERO);
    assert_eq!(second.setting().remaining, SECOND);
    first.as_file_ref().to_file().release();
    assert_eq!(first.setting().remaining, ZERO);
    drop(first);
    assert_eq!(timers.advance(SECOND), Ok(None));
    assert_eq!(second.try_read(), Ok(1));
    // Its place is free once.
    let [one, other] = [(); 2].map(|()| timers.timer().unwrap());
    one.arm(SECOND, ZERO);
    assert_eq!(other.setting().remaining, ZERO);
}

#[cfg(feature = "std")]
#[test]
fn a_set_keeps_a_timer_that_is_closed_no_longer() {
    let timers = Timers::on(Clock::Monotonic).unwrap();
    let set = Epoll::new().unwrap();
    let timer = timers.timer().unwrap();
    set.add(&timer, Event::new(Events::IN, 0)).unwrap();
    timer.arm(HOUR, ZERO);
    drop(timer);
    assert!(set.is_empty());
    assert_eq!(timers.next_due(), None);
}

#[cfg(feature = "std")]
#[test]
fn a_set_that_knows_very_many_clocks_closes() {
    let set = Epoll::new().unwrap();
    // Each ADD goes through the clocks that are known: as few as would overflow the stack below.
    for _ in 0..2000 {
        let timer = Timers::on(Clock::Monotonic).unwrap().timer().unwrap();
        set.add(&timer, Event::new(Events::IN, 0)).unwrap();
    }
    let small = std::thread::Builder::new().stack_size(64 << 10);
    let closing = small.spawn(move || drop(set)).unwrap();
    closing.join().unwrap();
}
