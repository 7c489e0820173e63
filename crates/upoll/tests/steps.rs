//! How the work of wakeups, polls and ADDs grows, by the steps that debug builds count.
#![cfg(feature = "std")]
#![cfg(debug_assertions)]

use std::time::Duration;

use upoll::internal::{Step, steps_of};
use upoll::{Clock, CreateFlags, Epoll, Errno, Event, EventFd, Events, Op, Source, Timers};

#[test]
fn arming_a_timer_calls_no_set_in_which_no_thread_waits() {
    const SETS: usize = 10;
    let timers = Timers::on(Clock::Monotonic).unwrap();
    let timer = timers.timer().unwrap();
    let sets: Vec<_> = (0..SETS).map(|_| Epoll::new().unwrap()).collect();
    for set in &sets {
        set.add(&timer, Event::new(Events::IN, 0)).unwrap();
    }
    let steps = || {
        let hour = Duration::from_secs(3600);
        let steps = steps_of(Step::Call, || _ = timer.arm(hour, Duration::ZERO));
        timer.disarm();
        steps
    };
    // None has been called yet.
    assert_eq!(steps(), SETS);
    assert_eq!(steps(), 0);
    for _ in 0..2 {
        let limit = Duration::from_millis(1);
        assert_eq!(sets[0].wait(&mut [Event::default()], limit), Ok(0));
    }
    assert_eq!(steps(), 1);
    assert_eq!(steps(), 0);
}

#[test]
fn a_wakeup_calls_no_worker_while_all_have_the_recheck_flag() {
    const WORKERS: usize = 10;
    let level = Event::new(Events::IN, 0);
    let source = EventFd::new(0).unwrap();
    let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
    rotating.add(&source, level).unwrap();
    let workers: Vec<_> = (0..WORKERS).map(|_| Epoll::new().unwrap()).collect();
    for worker in &workers {
        worker.add(&rotating, level).unwrap();
    }
    let steps = || steps_of(Step::Call, || source.try_write(1).unwrap());
    // The rotating set, then each worker twice: nobody waits, so each gets the flag.
    assert_eq!(steps(), 1 + 2 * WORKERS);
    assert_eq!(steps(), 1);
    source.try_read().unwrap();
    assert_eq!(workers[0].try_wait(&mut [Event::default()]), Ok(0));
    // One worker has used up its flag, and gets another one.
    assert_eq!(steps(), 1 + 2 * WORKERS);
    assert_eq!(steps(), 1);
}

#[test]
fn a_poll_from_above_does_not_walk_the_ready_list() {
    let set = Epoll::new().unwrap();
    let [nested, rotating] =
        [CreateFlags::empty(), CreateFlags::ROTATE].map(|flags| Epoll::create(flags).unwrap());
    let source = EventFd::new(1).unwrap();
    rotating.add(&source, Event::new(Events::IN, 0)).unwrap();
    let counters: Vec<_> = (0..1_000).map(|_| EventFd::new(1).unwrap()).collect();
    for counter in &counters {
        set.add(counter, Event::new(Events::IN, 0)).unwrap();
    }
    let steps = || {
        steps_of(Step::Poll, || {
            assert!(set.as_file_ref().is_ready(Events::IN))
        })
    };
    assert_eq!(steps(), 1);
    for inner in [&nested, &rotating] {
        set.ctl(Op::Add, inner.target(), Event::new(Events::IN, 0))
            .unwrap();
    }
    // One more for each rotating set.
    assert_eq!(steps(), 2);
    set.delete(&rotating).unwrap();
    assert_eq!(steps(), 1);
}

fn sets(count: usize) -> Vec<Epoll> {
    (0..count).map(|_| Epoll::new().unwrap()).collect()
}

fn steps_of_add(outer: &Epoll, inner: &Epoll) -> usize {
    steps_of(Step::Walk, || {
        outer.add(inner, Event::new(Events::IN, 0)).unwrap()
    })
}

/// Four layers in which each set watches all of the next layer.
#[test]
fn an_add_of_a_set_takes_steps_in_proportion_to_the_interests_it_meets() {
    for width in [10, 20, 40] {
        let layers: Vec<_> = (0..4).map(|_| sets(width)).collect();
        let mut interests = 0;
        for pair in layers.windows(2) {
            for outer in &pair[0] {
                for inner in &pair[1] {
                    outer.add(inner, Event::new(Events::IN, 0)).unwrap();
                    interests += 1;
                }
            }
        }
        // Down through all layers, up through all layers, and both.
        let [top, bottom] = [(); 2].map(|()| Epoll::new().unwrap());
        let down = steps_of_add(&top, &layers[0][0]);
        assert!(down <= 2 * interests, "{down} steps down, of {interests}");
        top.delete(&layers[0][0]).unwrap();
        let up = steps_of_add(&layers[3][0], &bottom);
        assert!(up <= 2 * interests, "{up} steps up, of {interests}");
        let among = steps_of_add(&layers[1][0], &Epoll::new().unwrap());
        assert!(among <= 2 * interests, "{among} steps, of {interests}");
    }
}

/// One file that is below by many paths is checked once.
#[test]
fn the_paths_of_a_file_are_counted_once() {
    let counter = EventFd::new(0).unwrap();
    let (bottom, middle) = (sets(10), sets(10));
    let top = Epoll::new().unwrap();
    for set in &bottom {
        set.add(&counter, Event::new(Events::IN, 0)).unwrap();
    }
    for outer in &middle {
        for inner in &bottom {
            outer.add(inner, Event::new(Events::IN, 0)).unwrap();
        }
    }
    // 100 paths of one link so far.
    let steps = steps_of_add(&top, &middle[0]);
    assert!(steps <= 1_000, "{steps} steps");
    // As a path of two links each, as many as there may be.
    for set in &middle[1..] {
        top.add(set, Event::new(Events::IN, 0)).unwrap();
    }
    let more = Epoll::new().unwrap();
    let added = more.add(&middle[0], Event::new(Events::IN, 0));
    assert_eq!(added, Err(Errno::INVAL));
}
