//! Threads that wait for timers, beside user-level objects and kernel fds.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod threads;

use std::io::{PipeReader, PipeWriter, Write};
use std::mem;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use upoll::{
    Clock, CreateFlags, Epoll, Errno, Event, EventFd, Events, FdSet, PollContext, PollFd, SigSet,
    Source, Timeout, Timer, Timers, Watch,
};

use threads::asleep;

const LONG: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(2);
const ZERO: Duration = Duration::ZERO;
const IN: Event = Event::new(Events::IN, 0);

fn clocks() -> [Timers; 2] {
    [Clock::Monotonic, Clock::Realtime].map(|clock| Timers::on(clock).unwrap())
}

/// A kernel fd that never becomes ready, as long as its writer is kept.
fn idle_fd() -> (PipeReader, PipeWriter) {
    std::io::pipe().unwrap()
}

fn set_of(timer: &Timer) -> Epoll {
    let set = Epoll::new().unwrap();
    set.add(timer, IN).unwrap();
    set
}

fn wait(set: &Epoll) -> Result<usize, Errno> {
    set.wait(&mut [Event::default(); 4], LONG)
}

/// All the ways to wait for a timer. Each returns how many entries are ready.
#[derive(Clone, Copy, Debug)]
enum Way {
    Set,
    SetWithKernelFd,
    SetWithMask,
    NestedTwice,
    NestedWithKernelFdBelow,
    NestedWithKernelFdAbove,
    Rotating,
    WorkerOfRotating,
    Poll,
    PollWithKernelFd,
    PollWithMask,
    PollOfSet,
    PollOfNested,
    Select,
    SelectWithKernelFd,
    Context,
    ContextTwice,
    ContextWithKernelFd,
    ContextOfSet,
    Read,
}

const WAYS: [Way; 20] = [
    Way::Set,
    Way::SetWithKernelFd,
    Way::SetWithMask,
    Way::NestedTwice,
    Way::NestedWithKernelFdBelow,
    Way::NestedWithKernelFdAbove,
    Way::Rotating,
    Way::WorkerOfRotating,
    Way::Poll,
    Way::PollWithKernelFd,
    Way::PollWithMask,
    Way::PollOfSet,
    Way::PollOfNested,
    Way::Select,
    Way::SelectWithKernelFd,
    Way::Context,
    Way::ContextTwice,
    Way::ContextWithKernelFd,
    Way::ContextOfSet,
    Way::Read,
];

impl Way {
    fn wait(self, timer: &Timer) -> Result<usize, Errno> {
        let (reader, _writer) = idle_fd();
        match self {
            Way::Set => wait(&set_of(timer)),
            Way::SetWithKernelFd => {
                let set = set_of(timer);
                set.add(&reader, IN)?;
                wait(&set)
            }
            Way::SetWithMask => {
                set_of(timer).pwait(&mut [Event::default(); 4], LONG, &SigSet::empty())
            }
            Way::NestedTwice => {
                let outer = [Epoll::new()?, Epoll::new()?];
                outer[1].add(&outer[0], IN)?;
                let inner = Epoll::new()?;
                outer[0].add(&inner, IN)?;
                // The sets above learn of it.
                inner.add(timer, IN)?;
                wait(&outer[1])
            }
            Way::NestedWithKernelFdBelow => {
                let (inner, outer) = (set_of(timer), Epoll::new()?);
                inner.add(&reader, IN)?;
                outer.add(&inner, IN)?;
                wait(&outer)
            }
            Way::NestedWithKernelFdAbove => {
                let (inner, outer) = (set_of(timer), Epoll::new()?);
                outer.add(&inner, IN)?;
                outer.add(&reader, IN)?;
                wait(&outer)
            }
            Way::Rotating => {
                let set = Epoll::create(CreateFlags::ROTATE)?;
                set.add(timer, IN)?;
                wait(&set)
            }
            Way::WorkerOfRotating => {
                let (set, worker) = (Epoll::create(CreateFlags::ROTATE)?, Epoll::new()?);
                set.add(timer, IN)?;
                worker.add(&set, IN)?;
                wait(&worker)
            }
            Way::Poll => upoll::poll(&mut [PollFd::new(timer, Events::IN)], LONG),
            Way::PollWithKernelFd => upoll::poll(
                &mut [
                    PollFd::new(&reader, Events::IN),
                    PollFd::new(timer, Events::IN),
                ],
                LONG,
            ),
            Way::PollWithMask => upoll::ppoll(
                &mut [PollFd::new(timer, Events::IN)],
                LONG,
                &SigSet::empty(),
            ),
            Way::PollOfSet => upoll::poll(&mut [PollFd::new(&set_of(timer), Events::IN)], LONG),
            Way::PollOfNested => {
                let (inner, outer) = (set_of(timer), Epoll::new()?);
                outer.add(&inner, IN)?;
                upoll::poll(&mut [PollFd::new(&outer, Events::IN)], LONG)
            }
            Way::Select => {
                let read = &mut FdSet::from_iter([3]);
                let limit = &mut Timeout::from(LONG);
                upoll::select(4, Some(read), None, None, limit, |_| Some(timer.target()))
            }
            Way::SelectWithKernelFd => {
                let read = &mut FdSet::from_iter([3, 5]);
                let limit = &mut Timeout::from(LONG);
                upoll::select(6, Some(read), None, None, limit, |fd| match fd {
                    3 => Some(timer.target()),
                    _ => Some(reader.target()),
                })
            }
            Way::Context => PollContext::new().poll(&mut [PollFd::new(timer, Events::IN)], LONG),
            Way::ContextTwice => {
                let mut context = PollContext::new();
                let fds = &mut [PollFd::new(timer, Events::IN)];
                match context.poll(fds, ZERO)? {
                    0 => context.poll(fds, LONG),
                    ready => Ok(ready),
                }
            }
            Way::ContextWithKernelFd => PollContext::new().poll(
                &mut [
                    PollFd::new(&reader, Events::IN),
                    PollFd::new(timer, Events::IN),
                ],
                LONG,
            ),
            Way::ContextOfSet => {
                PollContext::new().poll(&mut [PollFd::new(&set_of(timer), Events::IN)], LONG)
            }
            Way::Read => timer.read().map(|_| 1),
        }
    }
}

#[test]
fn a_timer_ends_each_kind_of_wait_and_not_before_its_time() {
    for timers in clocks() {
        for way in WAYS {
            let timer = timers.timer().unwrap();
            let begun = timers.now();
            timer.arm_at(begun + SHORT, ZERO);
            assert_eq!(way.wait(&timer), Ok(1), "{way:?}");
            let took = timers.now() - begun;
            assert!((SHORT..LONG / 2).contains(&took), "{way:?} took {took:?}");
        }
    }
}

#[test]
fn a_timer_that_another_thread_arms_ends_each_kind_of_wait() {
    for timers in clocks() {
        for way in WAYS {
            // Another timer is armed already, for longer.
            for later in [None, Some(HOUR)] {
                let timer = timers.timer().unwrap();
                let other = timers.timer().unwrap();
                if let Some(later) = later {
                    other.arm(later, ZERO);
                }
                let armed = timer.clone();
                let (waiting, _) = asleep(move || way.wait(&timer));
                armed.arm(SHORT, ZERO);
                let begun = Instant::now();
                assert_eq!(waiting.join().unwrap(), Ok(1), "{way:?}");
                assert!(begun.elapsed() < LONG / 2, "{way:?} slept until its limit");
            }
        }
    }
}

/// Returns whether the kernel reports `fd` as readable, at the latest when `LONG` has passed.
fn is_readable_for_the_kernel(fd: &impl AsRawFd) -> bool {
    let (fd, events) = (fd.as_raw_fd(), libc::POLLIN);
    let mut entry = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    let limit = i32::try_from(LONG.as_millis()).unwrap();
    // SAFETY: there is one entry.
    unsafe { libc::poll(&raw mut entry, 1, limit) == 1 }
}

#[test]
fn a_thread_that_keeps_the_time_wakes_callbacks_and_loops_of_the_kernel() {
    for timers in clocks() {
        let (timer, watched) = (timers.timer().unwrap(), timers.timer().unwrap());
        let set = set_of(&timer);
        let fd = set.readiness_fd().unwrap();
        let (send, rang) = mpsc::channel();
        let ring = move |_| send.send(()).unwrap();
        let (_watch, _) = Watch::new(&watched, Events::IN, ring).unwrap();
        let stop = EventFd::new(0).unwrap();
        let (keeper, _) = {
            let (timers, stop) = (timers.clone(), stop.clone());
            asleep(move || timers.keep_time(&stop))
        };
        // Both are armed while the thread sleeps without a limit, and then until a later timer.
        timers.timer().unwrap().arm(HOUR, ZERO);
        for _ in 0..3 {
            timer.arm(SHORT, ZERO);
            // A timer that is armed may show as well, until somebody has looked.
            while set.try_wait(&mut [Event::default()]) == Ok(0) {
                assert!(is_readable_for_the_kernel(&fd));
            }
            assert_eq!(timer.try_read(), Ok(1));
            watched.arm(SHORT, ZERO);
            assert_eq!(rang.recv_timeout(LONG), Ok(()));
        }
        stop.signal();
        assert_eq!(keeper.join().unwrap(), Ok(()));
    }
    let virtual_ones = Timers::new().unwrap();
    let stop = EventFd::new(1).unwrap();
    assert_eq!(virtual_ones.keep_time(&stop), Err(Errno::INVAL));
}

#[test]
fn a_callback_that_panics_ends_the_call_that_keeps_the_time() {
    let timers = Timers::on(Clock::Monotonic).unwrap();
    let timer = timers.timer().unwrap();
    let (_watch, _) = Watch::new(&timer, Events::IN, |_| panic!("callback breaks")).unwrap();
    timer.arm(SHORT, ZERO);
    let stop = EventFd::new(0).unwrap();
    let keeping = AssertUnwindSafe(|| timers.keep_time(&stop));
    assert!(catch_unwind(keeping).is_err());
    assert_eq!(timer.try_read(), Ok(1));
    // It may be called again.
    stop.try_write(1).unwrap();
    assert_eq!(timers.keep_time(&stop), Ok(()));
}

#[test]
fn a_limit_ends_a_wait_before_a_later_timer() {
    let timers = Timers::on(Clock::Monotonic).unwrap();
    let timer = timers.timer().unwrap();
    timer.arm(HOUR, ZERO);
    let (reader, _writer) = idle_fd();
    let set = set_of(&timer);
    for _ in 0..2 {
        let begun = Instant::now();
        assert_eq!(set.wait(&mut [Event::default()], SHORT), Ok(0));
        let fds = &mut [PollFd::new(&timer, Events::IN)];
        assert_eq!(upoll::poll(fds, SHORT), Ok(0));
        assert_eq!(PollContext::new().poll(fds, SHORT), Ok(0));
        assert!(begun.elapsed() >= 3 * SHORT);
        // The second time in the kernel.
        set.add(&reader, IN).unwrap_or_default();
    }
}

/// A timer that is no member fires, and the wait goes on.
#[test]
fn a_wait_goes_on_when_another_timer_of_the_same_clock_fires() {
    for with_kernel_fd in [false, true] {
        let timers = Timers::on(Clock::Monotonic).unwrap();
        let [member, other] = [(); 2].map(|()| timers.timer().unwrap());
        let set = set_of(&member);
        let (reader, _writer) = idle_fd();
        if with_kernel_fd {
            set.add(&reader, IN).unwrap();
        }
        other.arm(SHORT, ZERO);
        let due = timers.now() + 3 * SHORT;
        member.arm_at(due, ZERO);
        assert_eq!(set.wait(&mut [Event::default()], LONG), Ok(1));
        assert!(timers.now() >= due);
        assert_eq!(other.try_read(), Ok(1));
    }
}

/// Threads sleep in one set, and one of them at a time is woken by an event and leaves.
#[test]
fn threads_that_leave_a_set_hand_the_time_on() {
    for with_kernel_fd in [false, true] {
        let timers = Timers::on(Clock::Monotonic).unwrap();
        let timer = timers.timer().unwrap();
        let counter = EventFd::new(0).unwrap();
        let set = set_of(&timer);
        set.add(&counter, Event::new(Events::IN | Events::ET, 1))
            .unwrap();
        let (reader, _writer) = idle_fd();
        if with_kernel_fd {
            set.add(&reader, IN).unwrap();
        }
        timer.arm(HOUR, ZERO);
        let (send, ended) = mpsc::channel();
        for _ in 0..3 {
            let (set, send) = (set.clone(), send.clone());
            asleep(move || {
                let mut events = [Event::default()];
                let ready = set.wait(&mut events, LONG);
                send.send((ready, events[0].data())).unwrap();
            });
        }
        for _ in 0..2 {
            counter.try_write(1).unwrap();
            assert_eq!(ended.recv().unwrap(), (Ok(1), 1));
        }
        let begun = Instant::now();
        timer.arm(SHORT, ZERO);
        assert_eq!(ended.recv().unwrap(), (Ok(1), 0));
        assert!(
            begun.elapsed() < LONG / 2,
            "the last thread slept until its limit"
        );
    }
}

/// The first thread keeps the time, and leaves when its limit ends.
#[test]
fn the_last_thread_that_sleeps_keeps_the_time() {
    for with_kernel_fd in [false, true] {
        let timers = Timers::on(Clock::Monotonic).unwrap();
        let timer = timers.timer().unwrap();
        let set = set_of(&timer);
        let (reader, _writer) = idle_fd();
        if with_kernel_fd {
            set.add(&reader, IN).unwrap();
        }
        let begun = timers.now();
        timer.arm(Duration::from_secs(4), ZERO);
        let threads = [Duration::from_secs(2), LONG].map(|limit| {
            let set = set.clone();
            asleep(move || set.wait(&mut [Event::default()], limit)).0
        });
        let [first, last] = threads.map(|thread| thread.join().unwrap().unwrap());
        assert!(first <= 1 && last == 1);
        assert!(timers.now() - begun < LONG / 2, "it slept until its limit");
    }
}

#[test]
fn the_first_timer_of_a_set_reaches_a_thread_that_sleeps_there() {
    let timers = Timers::on(Clock::Monotonic).unwrap();
    for nested in [false, true] {
        for polls in [false, true] {
            let timer = timers.timer().unwrap();
            timer.arm(SHORT, ZERO);
            let (inner, outer) = (Epoll::new().unwrap(), Epoll::new().unwrap());
            outer.add(&inner, IN).unwrap();
            let waited = if nested { outer.clone() } else { inner.clone() };
            let (waiting, _) = asleep(move || match polls {
                true => upoll::poll(&mut [PollFd::new(&waited, Events::IN)], LONG),
                false => wait(&waited),
            });
            let begun = Instant::now();
            inner.add(&timer, IN).unwrap();
            assert_eq!(waiting.join().unwrap(), Ok(1));
            assert!(begun.elapsed() < LONG / 2, "it slept until its limit");
        }
    }
}

#[test]
fn kernel_fds_and_timers_end_the_same_wait() {
    let timers = Timers::on(Clock::Monotonic).unwrap();
    let timer = timers.timer().unwrap();
    let (reader, mut writer) = idle_fd();
    let set = set_of(&timer);
    set.add(&reader, Event::new(Events::IN, 1)).unwrap();
    timer.arm(HOUR, ZERO);
    let waited = set.clone();
    let (waiting, _) = asleep(move || {
        let mut events = [Event::default(); 2];
        let ready = waited.wait(&mut events, LONG);
        (ready, events[0].data())
    });
    writer.write_all(b"x").unwrap();
    assert_eq!(waiting.join().unwrap(), (Ok(1), 1));
    timer.arm_at(Duration::from_nanos(1), ZERO);
    assert_eq!(set.wait(&mut [Event::default(); 2], LONG), Ok(2));
}

#[test]
fn two_timers_end_a_wait_each_on_a_clock_of_its_own() {
    let [monotonic, wall] = clocks();
    for nearer_first in [false, true] {
        let [one, two] = [&monotonic, &wall].map(|timers| timers.timer().unwrap());
        let set = Epoll::new().unwrap();
        set.add(&one, Event::new(Events::IN, 1)).unwrap();
        set.add(&two, Event::new(Events::IN, 2)).unwrap();
        let limits = if nearer_first {
            [SHORT, HOUR]
        } else {
            [HOUR, SHORT]
        };
        one.arm(limits[0], ZERO);
        two.arm(limits[1], ZERO);
        let mut events = [Event::default(); 2];
        assert_eq!(set.wait(&mut events, LONG), Ok(1));
        assert_eq!(events[0].data(), if nearer_first { 1 } else { 2 });
    }
}

/// As many expirations are read as periods have passed, whatever the waits find.
#[test]
fn the_expirations_of_a_periodic_timer_are_counted_once() {
    const PERIOD: Duration = Duration::from_micros(300);
    let timers = Timers::on(Clock::Monotonic).unwrap();
    let timer = timers.timer().unwrap();
    let set = Epoll::new().unwrap();
    set.add(&timer, Event::new(Events::IN | Events::ET, 0))
        .unwrap();
    let begun = timers.now();
    timer.arm_at(begun + PERIOD, PERIOD);
    let mut count = 0;
    for _ in 0..100 {
        assert_eq!(set.wait(&mut [Event::default()], LONG), Ok(1));
        let passed = (timers.now() - begun).as_nanos() / PERIOD.as_nanos();
        count += u128::from(timer.try_read().unwrap());
        let passed_by_now = (timers.now() - begun).as_nanos() / PERIOD.as_nanos();
        assert!((passed..=passed_by_now).contains(&count));
    }
}

/// Many threads fire the timers of one clock at once.
#[test]
fn each_expiration_is_counted_once_by_threads_that_fire_at_once() {
    let timers = Timers::new().unwrap();
    let all: Vec<_> = (0..50).map(|_| timers.timer().unwrap()).collect();
    for round in 1..50_u32 {
        for timer in &all {
            timer.arm_at(round * SHORT, ZERO);
        }
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| timers.advance(round * SHORT).unwrap());
            }
        });
        assert!(all.iter().all(|timer| timer.try_read() == Ok(1)));
    }
}

#[test]
fn threads_that_share_a_set_find_each_expiration_once() {
    const EXPIRATIONS: usize = 200;
    let timers = Timers::on(Clock::Monotonic).unwrap();
    let timer = timers.timer().unwrap();
    let stop = EventFd::new(0).unwrap();
    let set = Epoll::new().unwrap();
    set.add(&timer, Event::new(Events::IN | Events::ET, 0))
        .unwrap();
    set.add(&stop, Event::new(Events::IN, 1)).unwrap();
    let found = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut events = [Event::default()];
                loop {
                    assert_eq!(
                        set.wait(&mut events, LONG),
                        Ok(1),
                        "a thread slept until its limit"
                    );
                    if events[0].data() == 1 {
                        return;
                    }
                    if timer.try_read() == Ok(1) {
                        match found.fetch_add(1, Ordering::Relaxed) + 1 {
                            EXPIRATIONS => stop.try_write(1).unwrap(),
                            _ => _ = timer.arm(Duration::from_micros(100), ZERO),
                        }
                    }
                }
            });
        }
        timer.arm(SHORT, ZERO);
    });
    assert_eq!(found.into_inner(), EXPIRATIONS);
}

static TRAPPED: AtomicUsize = AtomicUsize::new(0);

/// Runs in place of a system call that the filter traps.
extern "C" fn on_trap(_: libc::c_int) {
    TRAPPED.fetch_add(1, Ordering::SeqCst);
}

/// Traps the system calls of this thread by which it could arm a timer, wake a thread or wait.
fn trap_calls() {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let calls = [
        libc::SYS_timerfd_create,
        libc::SYS_timerfd_settime,
        libc::SYS_timerfd_gettime,
        libc::SYS_timer_create,
        libc::SYS_timer_settime,
        libc::SYS_setitimer,
        libc::SYS_futex,
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_epoll_create1,
        libc::SYS_epoll_ctl,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_ppoll,
        libc::SYS_pselect6,
        libc::SYS_clock_nanosleep,
        libc::SYS_membarrier,
        libc::SYS_sched_yield,
    ];
    // SAFETY: both macros only fill in a structure.
    let filter = unsafe {
        let mut filter = vec![libc::BPF_STMT(
            LOAD,
            mem::offset_of!(libc::seccomp_data, nr) as u32,
        )];
        for (at, call) in calls.iter().enumerate() {
            let to_trap = u8::try_from(calls.len() - at).unwrap();
            filter.push(libc::BPF_JUMP(EQUAL, *call as u32, to_trap, 0));
        }
        filter.push(libc::BPF_STMT(RETURN, libc::SECCOMP_RET_ALLOW));
        filter.push(libc::BPF_STMT(RETURN, libc::SECCOMP_RET_TRAP));
        filter
    };
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).unwrap(),
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: `on_trap` is async-signal-safe; the kernel copies the action and the program during the calls.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_trap as extern "C" fn(libc::c_int) as libc::sighandler_t;
        assert_eq!(libc::sigaction(libc::SIGSYS, &action, ptr::null_mut()), 0);
        let (on, unused): (libc::c_ulong, libc::c_ulong) = (1, 0);
        let mode = libc::SECCOMP_MODE_FILTER as libc::c_ulong;
        let prepared = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, on, unused, unused, unused);
        assert_eq!(prepared, 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &program), 0);
    }
}

#[test]
fn arming_polling_and_reading_a_timer_make_no_system_call() {
    let worked = thread::spawn(|| {
        let timers = Timers::on(Clock::Monotonic).unwrap();
        let all: Vec<_> = (0..100).map(|_| timers.timer().unwrap()).collect();
        let set = Epoll::new().unwrap();
        for timer in &all {
            set.add(timer, IN).unwrap();
        }
        let mut events = [Event::default(); 200];
        trap_calls();
        for round in 0..20_u32 {
            for timer in &all {
                timer.arm((round + 1) * HOUR, HOUR);
            }
            for timer in &all[..50] {
                timer.arm_at(Duration::from_nanos(1), ZERO);
            }
            assert_eq!(set.try_wait(&mut events), Ok(50));
            // A wait that finds something does not sleep.
            assert_eq!(set.wait(&mut events, None), Ok(50));
            for timer in &all[..50] {
                timer.try_read().unwrap();
            }
            assert_eq!(set.try_wait(&mut events), Ok(0));
        }
        let before = TRAPPED.load(Ordering::SeqCst);
        // SAFETY: the call takes no arguments.
        unsafe { libc::syscall(libc::SYS_sched_yield) };
        (before, TRAPPED.load(Ordering::SeqCst))
    });
    assert_eq!(worked.join().unwrap(), (0, 1));
}
