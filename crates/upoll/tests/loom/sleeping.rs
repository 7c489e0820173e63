//! Threads that sleep, against wakeups, time limits and signals. The kernel's futexes and clocks
//! are a model (`src/host/kernel_model.rs`). A lost wakeup is a deadlock.

use std::time::Duration;

use loom::thread;
use upoll::Source as _;
use upoll::kernel_model::{Source, interrupt, pass_time};
use upoll::{
    CreateFlags, Epoll, Errno, Event, EventFd, EventFdFlags, Events, FdSet, PollFd, Target,
    Timeout, end_thread, pipe, poll, select,
};

use super::sets::Flag;
use super::{EDGE, IN, harvest, model, set_of, writes};

pub(super) const LIMIT: Option<Duration> = Some(Duration::from_secs(1));
pub(super) const FOREVER: Option<Duration> = None;

pub(super) fn wait(set: &Epoll, limit: Option<Duration>) -> Result<usize, Errno> {
    set.wait(&mut [Event::default(); 2], limit)
}

/// Calls [`wait`] in a thread that ends afterwards.
fn wait_and_end(set: &Epoll, limit: Option<Duration>) -> Result<usize, Errno> {
    let ended = wait(set, limit);
    end_thread();
    ended
}

/// The limits of sleeps end at about the time of a write.
pub(super) fn time_passes_then_one_is_written(counter: &EventFd) -> thread::JoinHandle<()> {
    let counter = counter.clone();
    thread::spawn(move || {
        pass_time();
        counter.try_write(1).unwrap();
    })
}

#[test]
fn a_thread_that_goes_to_sleep_in_a_set_misses_no_arrival() {
    for interest in [IN, EDGE] {
        model(3, move || {
            let counter = EventFd::new(0).unwrap();
            let set = set_of(&counter, interest);
            let writing = thread::spawn(move || {
                counter.try_write(1).unwrap();
                counter
            });
            assert_eq!(wait(&set, FOREVER), Ok(1));
            writing.join().unwrap();
        });
    }
}

/// A thread sleeps in `stays`, and this one in `set` until its limit ends. Both have what is written.
pub(super) fn the_one_that_stays_is_woken(set: &Epoll, stays: Epoll, counter: &EventFd) {
    let staying = thread::spawn(move || wait(&stays, FOREVER));
    let writing = time_passes_then_one_is_written(counter);
    let taken = wait(set, LIMIT).unwrap();
    writing.join().unwrap();
    if taken == 1 {
        // Nobody sleeps in `set` any more.
        counter.try_write(1).unwrap();
    }
    assert_eq!(staying.join().unwrap(), Ok(1));
}

/// Two threads sleep in one set. One is woken as its limit ends.
#[test]
fn a_wake_is_not_lost_with_a_sleep_that_times_out() {
    model(2, || {
        let counter = EventFd::new(0).unwrap();
        let set = set_of(&counter, EDGE);
        the_one_that_stays_is_woken(&set, set.clone(), &counter);
    });
}

/// Two threads sleep in one set. One is woken as a signal comes for it.
#[test]
fn a_wake_is_not_lost_with_a_sleep_that_a_signal_ends() {
    model(2, || {
        let counter = EventFd::new(0).unwrap();
        let set = set_of(&counter, EDGE);
        let first = set.clone();
        let sleeping = thread::spawn(move || wait(&first, LIMIT));
        let writing = writes(&counter, 1);
        interrupt();
        writing.join().unwrap();
        match sleeping.join().unwrap() {
            Ok(1) => {}
            ended => {
                assert_eq!(ended, Err(Errno::INTR));
                assert_eq!(harvest(&set), 1);
            }
        }
    });
}

/// Two sets watch one file exclusively, and a thread sleeps in each. A thread is woken as its limit
/// ends.
#[test]
fn an_exclusive_wake_is_not_lost_with_a_sleep_that_times_out() {
    model(2, || {
        let exclusive = Event::new(Events::IN | Events::EXCLUSIVE, 0);
        let counter = EventFd::new(0).unwrap();
        let sets = [(); 2].map(|()| Epoll::new().unwrap());
        for set in &sets {
            set.add(&counter, exclusive).unwrap();
        }
        let [first, second] = sets;
        the_one_that_stays_is_woken(&first, second, &counter);
    });
}

/// A thread sleeps where only user-level members can wake it, while the set gets its first kernel
/// fd.
#[test]
fn a_thread_that_goes_to_sleep_in_a_set_learns_of_its_first_kernel_fd() {
    model(3, || {
        let source = Source::new();
        let set = Epoll::new().unwrap();
        let adder = set.clone();
        let adding = thread::spawn(move || {
            adder.ctl(upoll::Op::Add, source.target(), IN).unwrap();
            source.set_readable(true);
        });
        assert_eq!(wait(&set, FOREVER), Ok(1));
        adding.join().unwrap();
    });
}

/// Waits in `poll` until `target` can be read.
fn poll_one(target: Target<'_>, limit: Option<Duration>) -> Result<usize, Errno> {
    poll(&mut [PollFd::from_target(target, Events::IN)], limit)
}

/// Waits in `select` until `target` can be read.
fn select_one(target: Target<'_>, limit: Option<Duration>) -> Result<usize, Errno> {
    let mut read = FdSet::from_iter([0]);
    let limit = &mut Timeout::from(limit);
    let found = select(1, Some(&mut read), None, None, limit, |_| Some(target));
    assert_eq!(read.contains(0), found == Ok(1) || found.is_err());
    found
}

/// A thread waits for an object that orders its state no more than it must. The object is raised meanwhile.
fn misses_no_change(
    wait: fn(Target<'_>, Option<Duration>) -> Result<usize, Errno>,
    limit: Option<Duration>,
    raise: fn(&Flag),
) {
    model(3, move || {
        let flag = Flag::new();
        let changed = flag.clone();
        let raising = thread::spawn(move || raise(&changed));
        assert_eq!(wait(flag.target(), limit), Ok(1));
        raising.join().unwrap();
    });
}

/// The thread polls again after a spurious wakeup.
fn raise_after_a_spurious_wakeup(flag: &Flag) {
    flag.queue.wake(Events::IN);
    flag.set(true);
}

fn raise_before_the_limit(flag: &Flag) {
    flag.set(true);
    pass_time();
}

#[test]
fn a_thread_that_goes_to_sleep_in_poll_misses_no_change() {
    misses_no_change(poll_one, FOREVER, |flag| flag.set(true));
}

#[test]
fn a_thread_in_poll_that_is_woken_for_nothing_misses_no_change() {
    misses_no_change(poll_one, FOREVER, raise_after_a_spurious_wakeup);
}

#[test]
fn what_is_ready_when_a_poll_times_out_is_reported() {
    misses_no_change(poll_one, LIMIT, raise_before_the_limit);
}

#[test]
fn a_thread_that_goes_to_sleep_in_select_misses_no_change() {
    misses_no_change(select_one, FOREVER, |flag| flag.set(true));
}

#[test]
fn a_thread_in_select_that_is_woken_for_nothing_misses_no_change() {
    misses_no_change(select_one, FOREVER, raise_after_a_spurious_wakeup);
}

#[test]
fn what_is_ready_when_a_select_times_out_is_reported() {
    misses_no_change(select_one, LIMIT, raise_before_the_limit);
}

/// A pipe hangs up while a thread goes to sleep for it.
#[test]
fn a_thread_that_goes_to_sleep_in_poll_or_select_misses_no_close() {
    for selects in [false, true] {
        model(3, move || {
            let (reader, writer) = pipe().unwrap();
            let closing = thread::spawn(move || drop(writer));
            if selects {
                assert_eq!(select_one(reader.target(), FOREVER), Ok(1));
            } else {
                let mut fds = [PollFd::new(&reader, Events::IN)];
                assert_eq!(poll(&mut fds, FOREVER), Ok(1));
                assert_eq!(fds[0].revents(), Events::HUP);
            }
            closing.join().unwrap();
        });
    }
}

/// A blocking read races with a write; of two reads each gets one value.
#[test]
fn a_thread_that_goes_to_sleep_in_read_misses_no_write() {
    model(2, || {
        let counter = EventFd::with_flags(0, EventFdFlags::SEMAPHORE).unwrap();
        let reading = [(); 2].map(|()| {
            let reader = counter.clone();
            thread::spawn(move || reader.read())
        });
        counter.try_write(1).unwrap();
        counter.try_write(1).unwrap();
        for reading in reading {
            assert_eq!(reading.join().unwrap(), Ok(1));
        }
    });
}

/// Events come as a thread sleeps in a rotating set, before it looks at the one that it was chosen for, and as it
/// sleeps again.
#[test]
fn a_thread_that_comes_back_to_a_rotating_set_learns_of_what_comes_after_that() {
    model(2, || {
        let counter = EventFd::new(0).unwrap();
        let set = Epoll::create(CreateFlags::ROTATE).unwrap();
        set.add(&counter, IN).unwrap();
        let writer = counter.clone();
        let writing = thread::spawn(move || {
            for _ in 0..3 {
                writer.try_write(1).unwrap();
            }
        });
        let mut units = 0;
        while units < 3 {
            assert_eq!(wait(&set, FOREVER), Ok(1));
            units += counter.try_read().unwrap_or(0);
        }
        writing.join().unwrap();
        end_thread();
    });
}

/// Two threads sleep in a rotating set. An event chooses one of them as its limit ends.
#[test]
fn a_claim_is_not_lost_with_a_sleep_that_times_out() {
    model(2, || {
        let counter = EventFd::new(0).unwrap();
        let set = Epoll::create(CreateFlags::ROTATE).unwrap();
        set.add(&counter, EDGE).unwrap();
        let second = set.clone();
        let staying = thread::spawn(move || wait_and_end(&second, FOREVER));
        let writing = time_passes_then_one_is_written(&counter);
        let taken = wait_and_end(&set, LIMIT).unwrap();
        writing.join().unwrap();
        if taken == 1 {
            counter.try_write(1).unwrap();
        }
        assert_eq!(staying.join().unwrap(), Ok(1));
    });
}
