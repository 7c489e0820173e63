//! Waits with a signal mask, with a clock, and after changes. Behaviour that Linux has is checked
//! on the host kernel in the same test.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod threads;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use threads::{asleep, tid, until_asleep};
use upoll::{
    BatchWait, Clock, CreateFlags, CtlCommand, Epoll, Errno, Event, EventFd, Events, SigSet,
    Timeout,
};

const LONG: Duration = Duration::from_secs(60);
const SIGNAL: i32 = libc::SIGWINCH;

/// The number of handler runs. One test at a time counts.
static HANDLED: AtomicUsize = AtomicUsize::new(0);
static ALONE: Mutex<()> = Mutex::new(());

extern "C" fn count(_signal: i32) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

fn handle(flags: i32) {
    // SAFETY: an action of all zeros is valid, and the handler only adds to an atomic.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as *const () as libc::sighandler_t;
        action.sa_flags = flags;
        let old = std::ptr::null_mut();
        assert_eq!(libc::sigaction(SIGNAL, &raw const action, old), 0);
    }
}

fn signal_thread(tid: i32) {
    // SAFETY: sends a signal that has a handler to a thread of this process.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, SIGNAL) };
}

/// Blocks the signal in the calling thread.
fn hold() {
    let set: libc::sigset_t = only_signal().into();
    // SAFETY: the set is live.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
}

fn only_signal() -> SigSet {
    let mut set = SigSet::empty();
    set.add(SIGNAL).unwrap();
    set
}

/// A set of upoll or of the kernel, with the objects that must stay open for it.
enum Set {
    Ours(
        Epoll,
        #[expect(dead_code, reason = "stays open")] (Vec<EventFd>, Vec<OwnedFd>),
    ),
    Kernel(OwnedFd, OwnedFd),
}

fn eventfd(count: u32) -> OwnedFd {
    // SAFETY: the fd is new, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(libc::eventfd(count, libc::EFD_NONBLOCK)) }
}

const INTEREST: Event = Event::new(Events::IN, 7);

impl Set {
    fn ours(flags: CreateFlags, user: bool, kernel: bool, ready: bool) -> Self {
        let set = Epoll::create(flags).unwrap();
        let (mut users, mut kernels) = (Vec::new(), Vec::new());
        if user {
            users.push(EventFd::new(ready.into()).unwrap());
            set.add(&users[0], INTEREST).unwrap();
        }
        if kernel {
            kernels.push(eventfd((ready && !user).into()));
            set.add(&kernels[0], INTEREST).unwrap();
        }
        Set::Ours(set, (users, kernels))
    }

    fn kernel(ready: bool) -> Self {
        // SAFETY: the fd is new, and nothing else owns it.
        let set = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        let counter = eventfd(ready.into());
        let mut event = libc::epoll_event {
            events: INTEREST.events().bits(),
            u64: INTEREST.data(),
        };
        // SAFETY: the event outlives the call.
        let added = unsafe {
            libc::epoll_ctl(
                set.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                counter.as_raw_fd(),
                &raw mut event,
            )
        };
        assert_eq!(added, 0);
        Set::Kernel(set, counter)
    }

    /// Returns the kernel's set first, then a set of upoll of every kind.
    fn all(ready: bool) -> Vec<Set> {
        let plain = CreateFlags::empty();
        let mut sets = vec![Set::kernel(ready)];
        for (user, kernel) in [(true, false), (false, true), (true, true)] {
            sets.push(Set::ours(plain, user, kernel, ready));
        }
        sets.push(Set::ours(CreateFlags::ROTATE, true, false, ready));
        sets.push(Set::ours(CreateFlags::ROTATE, false, true, ready));
        sets
    }

    fn pwait(&self, limit: Duration, mask: &SigSet) -> Result<usize, Errno> {
        match self {
            Set::Ours(set, ..) => set.pwait(&mut [Event::default(); 4], limit, mask),
            Set::Kernel(set, _) => {
                let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
                let mask: libc::sigset_t = (*mask).into();
                let limit = i32::try_from(limit.as_millis()).unwrap();
                // SAFETY: there is room for four events, and the mask outlives the call.
                let ready = unsafe {
                    libc::epoll_pwait(
                        set.as_raw_fd(),
                        events.as_mut_ptr(),
                        4,
                        limit,
                        &raw const mask,
                    )
                };
                usize::try_from(ready).map_err(|_| {
                    Errno::from_raw(std::io::Error::last_os_error().raw_os_error().unwrap())
                })
            }
        }
    }
}

#[test]
fn a_pending_signal_that_the_mask_lets_through_ends_a_wait_only_if_nothing_is_ready() {
    let _alone = ALONE.lock();
    handle(libc::SA_RESTART);
    hold();
    for (which, (idle, ready)) in Set::all(false).iter().zip(Set::all(true)).enumerate() {
        HANDLED.store(0, Ordering::SeqCst);
        signal_thread(tid());
        assert_eq!(ready.pwait(LONG, &SigSet::empty()), Ok(1), "set {which}");
        assert_eq!(HANDLED.load(Ordering::SeqCst), 0, "set {which}");
        // Without a wait no signal is delivered.
        assert_eq!(
            idle.pwait(Duration::ZERO, &SigSet::empty()),
            Ok(0),
            "set {which}"
        );
        assert_eq!(HANDLED.load(Ordering::SeqCst), 0, "set {which}");
        assert_eq!(
            idle.pwait(LONG, &SigSet::empty()),
            Err(Errno::INTR),
            "set {which}"
        );
        assert_eq!(HANDLED.load(Ordering::SeqCst), 1, "set {which}");
        assert!(SigSet::of_this_thread().contains(SIGNAL), "set {which}");
    }
}

#[test]
fn a_signal_that_comes_during_the_wait_ends_it_if_the_mask_lets_it_through() {
    let _alone = ALONE.lock();
    handle(libc::SA_RESTART);
    for (which, set) in Set::all(false).into_iter().enumerate() {
        HANDLED.store(0, Ordering::SeqCst);
        let (thread, tid) = asleep(move || {
            hold();
            set.pwait(LONG, &SigSet::empty())
        });
        signal_thread(tid);
        assert_eq!(thread.join().unwrap(), Err(Errno::INTR), "set {which}");
        assert_eq!(HANDLED.load(Ordering::SeqCst), 1, "set {which}");
    }
}

/// The counter to which the handler of [`READYING`] writes.
static OURS_TO_WRITE: AtomicPtr<EventFd> = AtomicPtr::new(std::ptr::null_mut());
static THEIRS_TO_WRITE: AtomicI32 = AtomicI32::new(-1);
const READYING: i32 = libc::SIGUSR2;

extern "C" fn make_ready(_signal: i32) {
    // SAFETY: null, or a counter that is never freed.
    if let Some(counter) = unsafe { OURS_TO_WRITE.load(Ordering::SeqCst).as_ref() } {
        counter.try_write(1).unwrap();
    }
    let one = 1_u64;
    // SAFETY: eight bytes are read.
    unsafe {
        let fd = THEIRS_TO_WRITE.load(Ordering::SeqCst);
        libc::write(fd, (&raw const one).cast(), size_of::<u64>());
    }
}

#[test]
fn a_handler_that_makes_the_set_ready_ends_the_wait_as_any_other() {
    let _alone = ALONE.lock();
    // SAFETY: an action of all zeros is valid. The handler writes to counters whose locks are not
    // held while the signal is unblocked.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = make_ready as *const () as libc::sighandler_t;
        let old = std::ptr::null_mut();
        assert_eq!(libc::sigaction(READYING, &raw const action, old), 0);
    }
    let mut held = SigSet::empty();
    held.add(READYING).unwrap();
    let held: libc::sigset_t = held.into();
    // SAFETY: the set is live.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const held, std::ptr::null_mut()) };

    let ours = |flags, has_descriptor: bool| {
        let counter: &'static EventFd = Box::leak(Box::new(EventFd::new(0).unwrap()));
        let set = Epoll::create(flags).unwrap();
        set.add(counter, INTEREST).unwrap();
        let descriptors = Vec::from_iter(has_descriptor.then(|| eventfd(0)));
        for descriptor in &descriptors {
            set.add(descriptor, INTEREST).unwrap();
        }
        let counter = std::ptr::from_ref(counter).cast_mut();
        (Set::Ours(set, (Vec::new(), descriptors)), counter)
    };
    let plain = CreateFlags::empty();
    for (which, (set, counter)) in [
        (Set::kernel(false), std::ptr::null_mut()),
        ours(plain, false),
        ours(plain, true),
        ours(CreateFlags::ROTATE, false),
    ]
    .into_iter()
    .enumerate()
    {
        let theirs = match &set {
            Set::Kernel(_, counter) => counter.as_raw_fd(),
            Set::Ours(..) => -1,
        };
        OURS_TO_WRITE.store(counter, Ordering::SeqCst);
        THEIRS_TO_WRITE.store(theirs, Ordering::SeqCst);
        // SAFETY: sends a signal that has a handler to this thread.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid(), READYING) };
        let ended = set.pwait(LONG, &SigSet::empty());
        assert_eq!(ended, Err(Errno::INTR), "set {which}");
        assert_eq!(set.pwait(LONG, &SigSet::empty()), Ok(1), "set {which}");
    }
}

#[test]
fn a_signal_that_the_mask_holds_back_comes_when_the_wait_is_over() {
    let _alone = ALONE.lock();
    handle(0);
    for which in 0..Set::all(false).len() {
        // Until the signal has come before the limit has ended.
        for tries in 1.. {
            HANDLED.store(0, Ordering::SeqCst);
            let (set, limit) = (
                Set::all(false).swap_remove(which),
                tries * Duration::from_millis(100),
            );
            let begun = Instant::now();
            let (thread, tid) = asleep(move || {
                let ended = set.pwait(limit, &only_signal());
                (ended, HANDLED.load(Ordering::SeqCst))
            });
            signal_thread(tid);
            until_asleep(tid);
            let handled = HANDLED.load(Ordering::SeqCst);
            // The wait has not begun before `begun`.
            let is_in_time = begun.elapsed() < limit;
            let ended = thread.join().unwrap();
            if is_in_time {
                assert_eq!((handled, ended), (0, (Ok(0), 1)), "set {which}");
                break;
            }
        }
    }
}

#[test]
fn a_write_wakes_a_wait_with_a_mask() {
    for flags in [CreateFlags::empty(), CreateFlags::ROTATE] {
        let counter = EventFd::new(0).unwrap();
        let set = Epoll::create(flags).unwrap();
        set.add(&counter, INTEREST).unwrap();
        let (thread, tid) = asleep(move || {
            let mut events = [Event::default(); 4];
            let ready = set.pwait(&mut events, LONG, &only_signal())?;
            Ok::<_, Errno>((ready, events[0].data()))
        });
        until_asleep(tid);
        counter.try_write(1).unwrap();
        assert_eq!(thread.join().unwrap(), Ok((1, 7)));
    }
}

#[test]
fn a_wait_without_room_is_invalid_and_changes_nothing() {
    let set = Epoll::new().unwrap();
    let counter = EventFd::new(1).unwrap();
    set.add(&counter, INTEREST).unwrap();
    assert_eq!(set.pwait1(&mut [], Timeout::NEVER, None), Err(Errno::INVAL));
    let mut commands = [CtlCommand::delete(&counter)];
    let refused = set.ctl_batch_wait(&mut commands, &mut [], Timeout::NEVER, None);
    assert_eq!(refused, Err(Errno::INVAL));
    assert_eq!(set.len(), 1);
    // The longest limit that there is.
    let longest = Duration::new(u64::MAX, 999_999_999);
    for clock in [Clock::Realtime, Clock::Monotonic] {
        let timeout = Timeout::after(clock, longest);
        let mut events = [Event::default(); 4];
        assert_eq!(set.pwait1(&mut events, timeout, None), Ok(1));
    }
}

#[test]
fn a_limit_by_either_clock_is_never_early_in_any_set() {
    for clock in [Clock::Realtime, Clock::Monotonic] {
        for set in Set::all(false) {
            let Set::Ours(set, ..) = set else { continue };
            for mask in [None, Some(&SigSet::empty())] {
                let limit = Duration::from_micros(1500);
                let timeout = Timeout::after(clock, limit);
                let begun = Instant::now();
                let ready = set.pwait1(&mut [Event::default(); 4], timeout, mask);
                assert_eq!(ready, Ok(0));
                // The wall clock may be slewed during the wait, by much less than this.
                assert!(begun.elapsed() >= limit - Duration::from_micros(15));
            }
        }
    }
}

#[test]
fn changes_and_a_wait_in_one_call() {
    let parts = |outcome: BatchWait| (outcome.done, outcome.ready);
    let set = Epoll::new().unwrap();
    let (first, second) = (EventFd::new(0).unwrap(), EventFd::new(1).unwrap());
    let mut events = [Event::default(); 4];
    let mut commands = [
        CtlCommand::add(&first, INTEREST),
        CtlCommand::add(&second, INTEREST),
    ];
    let both = set.ctl_batch_wait(&mut commands, &mut events, Timeout::NEVER, None);
    assert_eq!(both.map(parts), Ok((2, Some(Ok(1)))));
    // The batch ends at its first failure, without a wait, which would not return.
    let mut commands = [
        CtlCommand::delete(&second),
        CtlCommand::add(&first, INTEREST),
    ];
    let failed = set.ctl_batch_wait(&mut commands, &mut events, Timeout::NEVER, None);
    assert_eq!(failed.map(parts), Ok((1, None)));
    assert_eq!(commands[1].result, Err(Errno::EXIST));
    // Without changes the call is a plain wait.
    first.try_write(1).unwrap();
    let plain = set.ctl_batch_wait(&mut [], &mut events, Timeout::NEVER, None);
    assert_eq!(plain.map(parts), Ok((0, Some(Ok(1)))));
}
