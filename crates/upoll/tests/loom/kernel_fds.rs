//! Sets that watch kernel fds, and threads that sleep in the kernel. The kernel's epoll is a model
//! (`src/host/kernel_model.rs`).

use std::sync::Arc;

use loom::thread;
use upoll::Source as _;
use upoll::kernel_model::Source;
use upoll::{
    Descriptor, Epoll, Event, EventFd, Events, FdSet, Op, PollContext, PollFd, Timeout, poll,
    select,
};

use super::sleeping::{FOREVER, the_one_that_stays_is_woken, wait};
use super::{EDGE, IN, model, writes};

/// Returns a set with a kernel fd that is not readable.
fn set_with_source() -> (Epoll, Source) {
    let source = Source::new();
    let set = Epoll::new().unwrap();
    set.ctl(Op::Add, source.target(), IN).unwrap();
    (set, source)
}

#[test]
fn a_thread_that_goes_to_sleep_in_the_kernel_misses_no_arrival() {
    for interest in [IN, EDGE] {
        model(3, move || {
            let (set, _source) = set_with_source();
            let counter = EventFd::new(0).unwrap();
            set.add(&counter, interest).unwrap();
            let writing = writes(&counter, 1);
            assert_eq!(wait(&set, FOREVER), Ok(1));
            writing.join().unwrap();
        });
    }
}

/// Two threads sleep in one kernel set. One is woken as its limit ends.
#[test]
fn a_wake_is_not_lost_with_a_sleep_in_the_kernel_that_times_out() {
    model(2, || {
        let (set, _source) = set_with_source();
        let counter = EventFd::new(0).unwrap();
        set.add(&counter, EDGE).unwrap();
        the_one_that_stays_is_woken(&set, set.clone(), &counter);
    });
}

/// The thread that the first event wakes waits once, and may run only after the second event.
#[test]
fn a_second_exclusive_event_wakes_a_thread_that_was_not_woken_yet() {
    model(2, || {
        let counter = EventFd::new(0).unwrap();
        let exclusive = Event::new(EDGE.events() | Events::EXCLUSIVE, 0);
        let waits = [(); 2].map(|()| {
            let (set, source) = set_with_source();
            set.add(&counter, exclusive).unwrap();
            thread::spawn(move || (wait(&set, FOREVER), source))
        });
        counter.try_write(1).unwrap();
        counter.try_write(1).unwrap();
        for waiting in waits {
            assert_eq!(waiting.join().unwrap().0, Ok(1));
        }
    });
}

/// A thread goes to sleep in a set while the set gets its nesting fd, which changes where the
/// thread sleeps.
#[test]
fn a_thread_that_goes_to_sleep_learns_of_a_set_below_with_kernel_fds() {
    for by_counter in [false, true] {
        model(2, move || {
            let (outer, _source) = set_with_source();
            let (inner, source) = set_with_source();
            let counter = EventFd::new(0).unwrap();
            inner.add(&counter, IN).unwrap();
            let adder = outer.clone();
            let adding = thread::spawn(move || {
                adder.add(&inner, IN).unwrap();
                match by_counter {
                    true => counter.try_write(1).unwrap(),
                    false => source.set_readable(true),
                }
                (inner, source, counter)
            });
            assert_eq!(wait(&outer, FOREVER), Ok(1));
            drop(adding.join().unwrap());
        });
    }
}

/// A poll from above takes a wakeup back to check whether a kernel fd is ready as well.
#[test]
fn a_poll_from_above_takes_no_wake_from_a_thread_that_sleeps() {
    model(2, || {
        let (set, _source) = set_with_source();
        let counter = EventFd::new(0).unwrap();
        set.add(&counter, IN).unwrap();
        let sleeper = set.clone();
        let sleeping = thread::spawn(move || wait(&sleeper, FOREVER));
        let writing = writes(&counter, 1);
        let _ = set.as_file_ref().is_ready(Events::IN);
        writing.join().unwrap();
        assert_eq!(sleeping.join().unwrap(), Ok(1));
    });
}

/// A thread polls a set with both kinds of members, and sleeps in the kernel's `ppoll` with its
/// wake fd.
#[test]
fn a_thread_in_poll_learns_of_both_kinds_of_members() {
    for by_counter in [false, true] {
        model(2, move || {
            let (set, source) = set_with_source();
            let counter = EventFd::new(0).unwrap();
            set.add(&counter, IN).unwrap();
            let changed = counter.clone();
            let changing = thread::spawn(move || {
                match by_counter {
                    true => changed.try_write(1).unwrap(),
                    false => source.set_readable(true),
                }
                source
            });
            let mut fds = [PollFd::new(&set, Events::IN)];
            assert_eq!(poll(&mut fds, FOREVER), Ok(1));
            changing.join().unwrap();
        });
    }
}

/// A thread waits for a counter and for a kernel fd, one of which becomes ready.
fn a_thread_hears_of_both_kinds(wait: impl Fn(&EventFd, &Source) + Copy + Send + Sync + 'static) {
    for by_counter in [false, true] {
        model(2, move || {
            let source = Arc::new(Source::new());
            let counter = EventFd::new(0).unwrap();
            let (changed, readable) = (counter.clone(), source.clone());
            let changing = thread::spawn(move || match by_counter {
                true => changed.try_write(1).unwrap(),
                false => readable.set_readable(true),
            });
            wait(&counter, &source);
            changing.join().unwrap();
        });
    }
}

#[test]
fn a_thread_in_select_learns_of_both_kinds_of_fds() {
    a_thread_hears_of_both_kinds(|counter, source| {
        let mut read = FdSet::from_iter([0, 1]);
        let resolve = |fd| match fd {
            0 => Some(counter.target()),
            _ => Some(source.target()),
        };
        let limit = &mut { Timeout::NEVER };
        let found = select(2, Some(&mut read), None, None, limit, resolve);
        assert_eq!((found, read.iter().count()), (Ok(1), 1));
    });
}

/// The context holds the kernel fd in a kernel set of its own.
#[test]
fn a_thread_with_a_poll_context_learns_of_both_kinds_of_fds() {
    a_thread_hears_of_both_kinds(|counter, source| {
        let source = Descriptor::new(source);
        let mut fds = [
            PollFd::new(counter, Events::IN),
            PollFd::new(&source, Events::IN),
        ];
        assert_eq!(PollContext::new().poll(&mut fds, Timeout::NEVER), Ok(1));
    });
}
