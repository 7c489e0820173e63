//! Sets that watch sets with kernel fds in them, compared with kernel sets that are nested alike.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::thread;
use std::time::Duration;

use upoll::{Epoll, Event, EventFd, Events, Op, PollFd, Source, Target};

use super::host::alone;
use crate::host::{
    Both, Kernel, LONG, SHORT, data, edge, eventfd, eventfd_read, eventfd_write, input, sorted,
    try_wait, wait,
};

/// Adds `inner` to `outer`.
fn nest(outer: &Both, inner: &Both, interest: Event) {
    outer.ours.add(&inner.ours, interest).unwrap();
    outer.theirs.add(&inner.theirs.0, interest);
}

/// Returns all permutations of `0..count`.
fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![vec![]];
    }
    let mut all = Vec::new();
    for shorter in orders(count - 1) {
        for at in 0..count {
            let mut order = shorter.clone();
            order.insert(at, count - 1);
            all.push(order);
        }
    }
    all
}

#[test]
fn an_edge_below_is_reported_once_and_no_other_edge_repeats_it() {
    let _alone = alone();
    let [outer, middle, inner] = [(); 3].map(|()| Both::new());
    let (below, beside) = (eventfd(), eventfd());
    nest(&outer, &middle, input(1));
    nest(&middle, &inner, edge(2));
    inner.add(&below, input(3));
    middle.add(&beside, input(4));
    eventfd_write(&below);
    assert_eq!(outer.try_wait(), [(1, Events::IN)]);
    assert_eq!(middle.try_wait(), [(2, Events::IN)]);
    assert_eq!(outer.try_wait(), []);
    for _ in 0..3 {
        eventfd_write(&beside);
        assert_eq!(outer.try_wait(), [(1, Events::IN)]);
        // `inner` is still ready, but that is no new edge.
        assert_eq!(middle.try_wait(), [(4, Events::IN)]);
        eventfd_read(&beside);
        assert_eq!(outer.try_wait(), []);
        assert_eq!(middle.try_wait(), []);
    }
    eventfd_write(&below);
    assert_eq!(outer.try_wait(), [(1, Events::IN)]);
    assert_eq!(middle.try_wait(), [(2, Events::IN)]);
    assert_eq!(inner.try_wait(), [(3, Events::IN)]);
}

#[test]
fn an_edge_triggered_interest_in_a_set_sees_each_event_below() {
    let _alone = alone();
    let [outer, inner] = [(); 2].map(|()| Both::new());
    let (first, second, above) = (eventfd(), eventfd(), eventfd());
    inner.add(&first, input(1));
    inner.add(&second, edge(2));
    outer.add(&above, input(3));
    nest(&outer, &inner, edge(4));
    assert_eq!(outer.try_wait(), []);
    for _ in 0..3 {
        eventfd_write(&first);
        assert_eq!(outer.try_wait(), [(4, Events::IN)]);
        assert_eq!(outer.try_wait(), []);
        eventfd_write(&second);
        assert_eq!(outer.try_wait(), [(4, Events::IN)]);
        assert_eq!(inner.try_wait(), [(1, Events::IN), (2, Events::IN)]);
        assert_eq!(outer.try_wait(), []);
        eventfd_read(&first);
    }
}

#[test]
fn a_poll_of_a_set_in_between_hides_nothing_from_the_set_above() {
    let _alone = alone();
    let [outer, middle, inner] = [(); 3].map(|()| Both::new());
    let below = eventfd();
    nest(&middle, &inner, input(1));
    nest(&outer, &middle, input(2));
    inner.add(&below, input(3));
    assert_eq!(outer.try_wait(), []);
    eventfd_write(&below);
    let mut list = [PollFd::new(&middle.ours, Events::IN)];
    assert_eq!(upoll::poll(&mut list, Duration::ZERO), Ok(1));
    assert_eq!(inner.try_wait(), [(3, Events::IN)]);
    assert_eq!(outer.try_wait(), [(2, Events::IN)]);
}

#[test]
fn a_ready_set_added_edge_triggered_is_reported_once() {
    let _alone = alone();
    for harvests_before in 0..3 {
        let [outer, inner] = [(); 2].map(|()| Both::new());
        let (ready, above) = (eventfd(), eventfd());
        eventfd_write(&ready);
        inner.add(&ready, input(1));
        outer.add(&above, input(2));
        for _ in 0..harvests_before {
            assert_eq!(outer.try_wait(), []);
        }
        nest(&outer, &inner, edge(3));
        assert_eq!(outer.try_wait(), [(3, Events::IN)]);
        assert_eq!(outer.try_wait(), []);
    }
}

/// Three sets in a chain. Ours have members of both kinds, the kernel's have only kernel members.
struct Chain {
    sets: Vec<Option<Both>>,
    descriptors: Vec<OwnedFd>,
    counters: Vec<(EventFd, OwnedFd)>,
}

impl Chain {
    const LENGTH: usize = 3;
    const STEPS: usize = 3 * Self::LENGTH - 1;

    fn new() -> Self {
        Chain {
            sets: (0..Self::LENGTH).map(|_| Some(Both::new())).collect(),
            descriptors: (0..Self::LENGTH).map(|_| eventfd()).collect(),
            counters: (0..Self::LENGTH)
                .map(|_| (EventFd::new(0).unwrap(), eventfd()))
                .collect(),
        }
    }

    /// Adds or removes a member of the chain; `step` selects which.
    fn ctl(&self, op: Op, step: usize) {
        let at = step / 3;
        let Some(set) = &self.sets[at] else { return };
        let interest = input(step as u64);
        let both = |ours: Target<'_>, theirs: i32| {
            set.ours.ctl(op, ours, interest).unwrap();
            set.theirs.ctl(op, theirs, interest).unwrap();
        };
        match step % 3 {
            0 => {
                let fd = self.descriptors[at].as_fd();
                both(Target::Kernel(fd), fd.as_raw_fd());
            }
            1 => {
                let (counter, twin) = &self.counters[at];
                both(counter.target(), twin.as_raw_fd());
            }
            _ => {
                let Some(below) = &self.sets[at + 1] else {
                    return;
                };
                both(below.ours.target(), below.theirs.0.as_raw_fd());
            }
        }
    }

    /// Makes each member ready in turn, and compares the reports at the top and at the bottom.
    fn check(&self) {
        for at in 0..Self::LENGTH {
            eventfd_write(&self.descriptors[at]);
            self.compare();
            eventfd_read(&self.descriptors[at]);
            self.compare();
            let (counter, twin) = &self.counters[at];
            counter.try_write(1).unwrap();
            eventfd_write(twin);
            self.compare();
            counter.try_read().unwrap();
            eventfd_read(twin);
            self.compare();
        }
    }

    fn compare(&self) {
        let sets = self.sets.iter().flatten();
        for set in sets.clone().chain(sets.rev()) {
            set.try_wait();
        }
    }
}

#[test]
fn a_chain_of_sets_may_be_built_and_taken_apart_in_any_order() {
    let _alone = alone();
    // Idle sets behave differently, so half of the orders are checked only when all sets are built.
    for (round, order) in orders(Chain::STEPS).iter().enumerate().step_by(331) {
        let chain = Chain::new();
        for &step in order {
            chain.ctl(Op::Add, step);
            if round % 2 == 0 {
                chain.check();
            }
        }
        chain.check();
        for &step in order.iter().rev().step_by(2) {
            chain.ctl(Op::Del, step);
            chain.check();
        }
        for &step in order.iter().rev().step_by(2) {
            chain.ctl(Op::Add, step);
        }
        chain.check();
    }
}

#[test]
fn the_sets_of_a_chain_may_be_closed_in_any_order() {
    let _alone = alone();
    for order in orders(Chain::LENGTH) {
        let mut chain = Chain::new();
        for step in 0..Chain::STEPS {
            chain.ctl(Op::Add, step);
        }
        chain.check();
        for at in order {
            // The report of a ready member must not stay in the sets above when its set goes.
            eventfd_write(&chain.descriptors[at]);
            chain.sets[at] = None;
            chain.compare();
            eventfd_read(&chain.descriptors[at]);
            chain.check();
        }
    }
}

#[test]
fn a_thread_asleep_at_the_top_learns_of_whatever_comes_below() {
    let _alone = alone();
    for order in orders(4) {
        let [top, middle, bottom] = [(); 3].map(|()| Epoll::new().unwrap());
        let (low, beside) = (eventfd(), eventfd());
        let sleeper = thread::spawn({
            let top = top.clone();
            move || data(&wait(&top, 4, LONG))
        });
        thread::sleep(SHORT / 10);
        for step in order {
            match step {
                0 => top.add(&middle, input(1)).unwrap(),
                1 => middle.add(&bottom, input(2)).unwrap(),
                2 => bottom.add(&low, input(3)).unwrap(),
                _ => middle.add(&beside, input(4)).unwrap(),
            }
        }
        assert!(!sleeper.is_finished());
        eventfd_write(&low);
        assert_eq!(sleeper.join().unwrap(), [1]);
        assert_eq!(data(&wait(&middle, 4, LONG)), [2]);
    }
}

#[test]
fn all_that_watch_a_set_learn_of_what_is_below_it() {
    let _alone = alone();
    let [middle, bottom] = [(); 2].map(|()| Epoll::new().unwrap());
    let low = eventfd();
    bottom.add(&low, edge(1)).unwrap();
    middle.add(&bottom, input(2)).unwrap();
    for _ in 0..20 {
        let sleepers: Vec<_> = (0..3)
            .map(|_| {
                let above = Epoll::new().unwrap();
                above.add(&middle, edge(3)).unwrap();
                thread::spawn(move || data(&wait(&above, 4, LONG)))
            })
            .collect();
        thread::sleep(SHORT / 10);
        eventfd_write(&low);
        for sleeper in sleepers {
            assert_eq!(sleeper.join().unwrap(), [3]);
        }
        assert_eq!(data(&try_wait(&middle, 4)), [2]);
        assert_eq!(data(&try_wait(&bottom, 4)), [1]);
        assert!(try_wait(&middle, 4).is_empty());
    }
}

#[test]
fn a_set_watched_under_two_fds_is_reported_under_both() {
    let _alone = alone();
    let (outer, inner) = (Epoll::new().unwrap(), Epoll::new().unwrap());
    let kernel_outer = Kernel::new();
    let kernel_inner = Kernel::new();
    let second = kernel_inner.0.try_clone().unwrap();
    let fd = eventfd();
    inner.add(&fd, input(1)).unwrap();
    kernel_inner.add(&fd, input(1));
    let again = inner.as_file_ref().with_fd(1);
    outer.add(&inner, edge(2)).unwrap();
    outer.add(&again, edge(3)).unwrap();
    kernel_outer.add(&kernel_inner.0, edge(2));
    kernel_outer.add(&second, edge(3));
    let compare = |expected: &[u64]| {
        let ours = sorted(&wait(&outer, 8, Duration::from_millis(1)));
        assert_eq!(ours, sorted(&kernel_outer.try_wait(8)));
        assert_eq!(ours.iter().map(|pair| pair.0).collect::<Vec<_>>(), expected);
    };
    eventfd_write(&fd);
    compare(&[2, 3]);
    compare(&[]);
    // The first set above is deleted; the other one must be notified from then on.
    outer.delete(&inner).unwrap();
    kernel_outer
        .ctl(Op::Del, kernel_inner.0.as_raw_fd(), Event::default())
        .unwrap();
    eventfd_write(&fd);
    compare(&[3]);
    compare(&[]);
}

#[test]
fn a_set_below_that_adopts_a_kernel_set_reports_its_members_above() {
    let _alone = alone();
    for sleeps in [false, true] {
        let [outer, inner] = [(); 2].map(|()| Both::new());
        nest(&outer, &inner, input(1));
        let (kernel_set, member) = (Kernel::new(), eventfd());
        kernel_set.add(&member, input(2));
        inner.theirs.add(&member, input(2));
        assert_eq!(outer.try_wait(), []);
        let adopt = || {
            let adopted = kernel_set.0.as_fd();
            inner.ours.adopt_kernel_set(adopted, 1).unwrap();
        };
        let found = if sleeps {
            thread::scope(|scope| {
                let waiter = scope.spawn(|| wait(&outer.ours, 4, LONG));
                thread::sleep(SHORT);
                adopt();
                thread::sleep(SHORT);
                eventfd_write(&member);
                waiter.join().unwrap()
            })
        } else {
            adopt();
            eventfd_write(&member);
            wait(&outer.ours, 4, SHORT)
        };
        assert_eq!(found, outer.theirs.try_wait(4));
        assert_eq!(inner.try_wait(), [(2, Events::IN)]);
    }
}

#[test]
fn many_chains_of_sets_with_descriptors_nest_as_deep_as_in_the_kernel() {
    let _alone = alone();
    let mut chains = Vec::new();
    for _ in 0..12 {
        let (reader, writer) = std::io::pipe().unwrap();
        let kernel: [Kernel; 5] = std::array::from_fn(|_| Kernel::new());
        let ours: [Epoll; 5] = std::array::from_fn(|_| Epoll::new().unwrap());
        kernel[0].add(&reader, input(0));
        ours[0].add(&reader, input(0)).unwrap();
        for level in 1..5 {
            kernel[level].add(&kernel[level - 1].0, input(0));
            ours[level].add(&ours[level - 1], input(0)).unwrap();
        }
        chains.push((reader, writer, kernel, ours));
    }
    for (_, writer, kernel, ours) in &mut chains {
        writer.write_all(b"u").unwrap();
        assert_eq!(data(&kernel[4].wait(1, LONG)), [0]);
        assert_eq!(data(&wait(&ours[4], 1, LONG)), [0]);
    }
}
