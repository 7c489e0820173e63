//! Nested sets: loops, depth, paths, and the readiness of a set as seen from the sets above it.
//! Each rule is checked on the host kernel too.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod kernel;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use upoll::{CreateFlags, Epoll, Errno, Event, EventFd, Events};

use kernel::Twin;

const IN: Events = Events::IN;
const ET: Events = Events::ET;
const ONESHOT: Events = Events::ONESHOT;
/// The events of a set with at least one ready member.
const READY: Events = Events::IN.union(Events::RDNORM);

/// A twin with `sets` sets at the numbers from 0, and `others` free numbers after them.
fn sets(sets: usize, others: usize) -> Twin {
    let mut twin = Twin::new(sets + others);
    for set in 0..sets {
        twin.open_set(set);
    }
    twin
}

/// A set at 0 that watches a set at 1 for `outer`, which watches a counter at 2 for `inner`.
fn nested(outer: Events, inner: Events, initial: u32) -> Twin {
    let mut twin = sets(2, 3);
    twin.open_counter(2, initial, false);
    twin.add(1, 2, inner, 12).unwrap();
    twin.add(0, 1, outer, 1).unwrap();
    twin
}

#[test]
fn chains_join_to_five_sets_and_no_more() {
    for above in 0..=5 {
        for below in 0..=5 {
            // `above` links above the upper set, `below` links below the lower one.
            let twin = sets(above + below + 2, 0);
            let links = (0..above).chain(above + 1..=above + below);
            if links.map(|n| twin.add(n, n + 1, IN, 0)).any(|r| r.is_err()) {
                continue;
            }
            let joined = twin.add(above, above + 1, IN, 0);
            let expected = if above + 1 + below > 4 {
                Err(Errno::LOOP)
            } else {
                Ok(())
            };
            assert_eq!(joined, expected, "{above} above, {below} below");
        }
    }
}

#[test]
fn the_longest_of_many_chains_counts_above_and_below() {
    // Bug f2e467a48287: the kernel checked only one path, and only downwards.
    let twin = sets(10, 0);
    // Set 1 is watched directly by 0 and by a chain of 2, 3 and 4; the direct link is added last.
    for (set, target) in [(2, 3), (3, 4), (4, 1), (0, 1)] {
        twin.add(set, target, IN, 0).unwrap();
    }
    // Set 5 watches 9 directly, and a chain of 6 and 7.
    for (set, target) in [(5, 6), (6, 7), (5, 9)] {
        twin.add(set, target, IN, 0).unwrap();
    }
    assert_eq!(twin.add(1, 5, IN, 0), Err(Errno::LOOP));
    assert_eq!(twin.add(1, 6, IN, 0), Err(Errno::LOOP));
    twin.add(1, 7, IN, 0).unwrap();
    twin.add(0, 5, IN, 0).unwrap();
}

#[test]
fn a_dense_graph_of_sets_is_checked_against_the_same_limits() {
    // Every set of a layer watches every set of the next: many paths, no long chain.
    let (layers, width) = (5, 6);
    let twin = sets(layers * width, 1);
    for layer in 0..layers - 1 {
        for upper in 0..width {
            for lower in 0..width {
                let set = layer * width + upper;
                twin.add(set, (layer + 1) * width + lower, IN, 0).unwrap();
            }
        }
    }
    assert_eq!(
        twin.add((layers - 1) * width, (layers - 1) * width + 1, IN, 0),
        Err(Errno::LOOP)
    );
    assert_eq!(
        twin.add((layers - 1) * width, 0, IN, 0),
        Err(Errno::LOOP),
        "a loop"
    );
}

#[test]
fn deleting_or_closing_a_set_of_a_chain_makes_room_for_another() {
    for close in [true, false] {
        let mut twin = sets(6, 0);
        for set in 0..4 {
            twin.add(set, set + 1, IN, 0).unwrap();
        }
        assert_eq!(twin.add(4, 5, IN, 0), Err(Errno::LOOP));
        if close {
            twin.close(0);
        } else {
            twin.delete(0, 1).unwrap();
        }
        twin.add(4, 5, IN, 0).unwrap();
    }
}

#[test]
fn a_file_at_the_bottom_is_not_counted() {
    let mut twin = sets(5, 1);
    twin.open_counter(5, 1, false);
    for set in 0..5 {
        twin.add(set, set + 1, IN, 0).unwrap();
    }
    assert_eq!(twin.data(0, 1), [0]);
}

#[test]
fn a_loop_is_refused_through_any_number_of_sets_and_any_number_of_theirs() {
    let mut twin = sets(5, 1);
    twin.dup(0, 5);
    for set in 0..4 {
        twin.add(set, set + 1, IN, 0).unwrap();
        // The duplicate fd means the same set.
        assert_eq!(twin.add(set + 1, 0, IN, 0), Err(Errno::LOOP));
        assert_eq!(twin.add(set + 1, 5, IN, 0), Err(Errno::LOOP));
    }
    twin.delete(0, 1).unwrap();
    twin.add(1, 0, IN, 0).unwrap();
}

#[test]
fn any_number_of_sets_may_watch_a_file_directly() {
    let watchers = 1_200;
    let mut twin = sets(watchers, 1);
    twin.open_counter(watchers, 0, false);
    for set in 0..watchers {
        twin.add(set, watchers, IN, set as u64).unwrap();
    }
    twin.write(watchers, 1);
    for set in 0..watchers {
        assert_eq!(twin.data(set, 1), [set as u64]);
    }
}

#[test]
fn a_set_shows_in_and_rdnorm_while_anything_in_it_is_ready() {
    let mut twin = nested(IN, IN, 0);
    assert_eq!(twin.mask(1), Events::empty());
    twin.write(2, 1);
    assert_eq!(twin.mask(1), READY);
    assert_eq!(twin.mask(0), READY);
    twin.read(2);
    assert_eq!(twin.mask(1), Events::empty());
    assert_eq!(twin.mask(0), Events::empty());
    // Any event of a member makes the set readable.
    twin.modify(1, 2, Events::OUT, 0).unwrap();
    assert_eq!(twin.mask(1), READY);
    twin.open_pipe(3, 4);
    twin.delete(1, 2).unwrap();
    twin.add(1, 3, Events::empty(), 0).unwrap();
    assert_eq!(twin.mask(1), Events::empty());
    twin.close(4);
    assert_eq!(twin.mask(1), READY);
}

#[test]
fn a_set_above_reports_what_it_wants_of_in_and_rdnorm() {
    for wanted in [IN, Events::RDNORM, READY, Events::OUT | Events::PRI] {
        let twin = nested(wanted, IN, 1);
        let reported: Vec<_> = match (wanted & READY).bits() {
            0 => vec![],
            bits => vec![(bits, 1)],
        };
        assert_eq!(twin.wait(0, 4).unwrap(), reported);
    }
}

#[test]
fn looking_from_above_consumes_nothing() {
    for inner in [IN | ET, IN | ONESHOT, IN] {
        let twin = nested(IN, inner, 0);
        twin.write(2, 1);
        for _ in 0..3 {
            assert_eq!(twin.data(0, 1), [1]);
            assert_eq!(twin.mask(1), READY);
        }
        assert_eq!(twin.data(1, 1), [12]);
        assert_eq!(twin.data(0, 1).is_empty(), inner != IN);
    }
}

#[test]
fn looking_from_above_drops_what_is_idle_again() {
    let mut twin = nested(IN, IN, 0);
    twin.open_counter(3, 0, false);
    twin.add(1, 3, IN, 13).unwrap();
    twin.write(2, 1);
    twin.write(3, 1);
    twin.read(2);
    // The poll from above takes 2 off the inner ready list, so it comes after 3 when it is ready
    // again.
    assert_eq!(twin.data(0, 1), [1]);
    twin.write(2, 1);
    assert_eq!(twin.data(1, 4), [13, 12]);
}

#[test]
fn a_level_triggered_outer_set_reports_while_the_inner_one_is_ready() {
    let twin = nested(IN, IN, 0);
    twin.write(2, 1);
    for _ in 0..2 {
        assert_eq!(twin.data(0, 1), [1]);
        assert_eq!(twin.data(1, 1), [12]);
    }
    twin.read(2);
    assert_eq!(twin.data(0, 1), []);
}

#[test]
fn an_edge_triggered_outer_set_reports_again_though_the_inner_item_is_still_queued() {
    let twin = nested(IN | ET, IN, 0);
    for _ in 0..3 {
        twin.write(2, 1);
        assert_eq!(twin.data(0, 1), [1]);
        assert_eq!(twin.data(0, 1), []);
    }
}

#[test]
fn an_inner_harvest_is_no_edge_for_the_outer_set() {
    let twin = nested(IN | ET, IN, 1);
    assert_eq!(twin.data(0, 1), [1]);
    // A level-triggered item goes back to the ready list after each report.
    for _ in 0..3 {
        assert_eq!(twin.data(1, 1), [12]);
        assert_eq!(twin.data(0, 1), []);
    }
}

#[test]
fn adding_or_modifying_to_something_ready_is_an_edge_for_the_outer_set() {
    let mut twin = sets(2, 2);
    twin.open_counter(2, 1, false);
    twin.open_counter(3, 1, false);
    twin.add(0, 1, IN | ET, 1).unwrap();
    twin.add(1, 2, IN, 0).unwrap();
    assert_eq!(twin.data(0, 1), [1]);
    twin.add(1, 3, Events::empty(), 0).unwrap();
    assert_eq!(twin.data(0, 1), []);
    twin.modify(1, 3, IN, 0).unwrap();
    assert_eq!(twin.data(0, 1), [1]);
}

#[test]
fn a_oneshot_outer_interest_fires_once_until_modified() {
    let twin = nested(IN | ONESHOT, IN, 1);
    assert_eq!(twin.data(0, 1), [1]);
    twin.write(2, 1);
    assert_eq!(twin.data(0, 1), []);
    twin.modify(0, 1, IN | ONESHOT, 2).unwrap();
    assert_eq!(twin.data(0, 1), [2]);
}

#[test]
fn every_set_above_a_set_gets_its_events() {
    for outer in [IN, IN | ET] {
        let mut twin = sets(4, 1);
        twin.open_counter(4, 0, false);
        twin.add(3, 4, IN, 0).unwrap();
        for above in 0..3 {
            twin.add(above, 3, outer, above as u64).unwrap();
        }
        twin.write(4, 1);
        for above in 0..3 {
            assert_eq!(twin.data(above, 1), [above as u64]);
        }
    }
}

#[test]
fn an_event_climbs_through_every_level_and_leaves_them_all() {
    let mut twin = sets(5, 1);
    twin.open_counter(5, 0, false);
    for set in 0..5 {
        twin.add(set, set + 1, IN, set as u64).unwrap();
    }
    let sleeper = twin.sleep_in(0, 4);
    twin.write(5, 1);
    assert_eq!(sleeper.join().unwrap(), [(IN.bits(), 0)]);
    twin.read(5);
    for set in 0..5 {
        assert_eq!(twin.data(set, 1), []);
    }
}

#[test]
fn closing_an_inner_set_takes_it_out_of_the_outer_one_and_wakes_nobody() {
    let mut twin = nested(IN, IN, 0);
    let sleeper = twin.sleep_in(0, 4);
    twin.close(1);
    assert!(sleeper.undisturbed());
    twin.write(2, 1);
    assert!(sleeper.undisturbed());
    twin.fdinfo(0);
    twin.add(0, 2, IN, 2).unwrap();
    assert_eq!(sleeper.join().unwrap(), [(IN.bits(), 2)]);
}

#[test]
fn fds_of_one_set_share_its_interests_and_its_ready_list() {
    let mut twin = nested(IN, IN | ET, 0);
    twin.dup(1, 3);
    assert_eq!(twin.add(3, 2, IN, 0), Err(Errno::EXIST));
    twin.write(2, 1);
    assert_eq!(twin.data(3, 4), [12]);
    assert_eq!(twin.data(1, 4), []);
    // The outer set has added one fd of the file. The interest stays while any fd is open.
    twin.close(1);
    twin.write(2, 1);
    assert_eq!(twin.data(0, 4), [1]);
    twin.close(3);
    assert_eq!(twin.data(0, 4), []);
    twin.fdinfo(0);
}

#[test]
fn a_rotating_set_nests_by_the_same_rules() {
    // EPOLL_ROTATE was never merged, so there is no kernel to compare with.
    let create = || Epoll::create(CreateFlags::ROTATE).unwrap();
    let chain: Vec<_> = (0..6).map(|_| create()).collect();
    let interest = Event::new(IN, 0);
    for link in 0..4 {
        chain[link].add(&chain[link + 1], interest).unwrap();
        assert_eq!(chain[link + 1].add(&chain[0], interest), Err(Errno::LOOP));
    }
    assert_eq!(chain[4].add(&chain[5], interest), Err(Errno::LOOP));
    assert_eq!(chain[0].add(&chain[0], interest), Err(Errno::INVAL));
    let source = EventFd::new(1).unwrap();
    chain[4].add(&source, interest).unwrap();
    assert_eq!(chain[0].try_wait(&mut [Event::default(); 2]), Ok(1));
}

#[test]
fn a_set_that_another_watches_under_two_fds_may_watch_a_set_of_kernel_fds() {
    let input = Event::new(IN, 1);
    let (reader, _writer) = std::io::pipe().unwrap();
    let add = |set, fd| {
        let mut event = libc::epoll_event {
            events: IN.bits(),
            u64: 1,
        };
        // SAFETY: the event is live.
        unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) }
    };
    let new = || {
        // SAFETY: the call takes no pointers, and the fd is new.
        unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) }
    };
    let [inner, set, outer] = [(); 3].map(|()| new());
    let second = set.try_clone().unwrap();
    let [inner, set, second, outer] = [&inner, &set, &second, &outer].map(|fd| fd.as_raw_fd());
    let reader_fd = reader.as_raw_fd();
    let links = [
        (inner, reader_fd),
        (set, reader_fd),
        (outer, set),
        (outer, second),
        (set, inner),
    ];
    for (set, fd) in links {
        assert_eq!(add(set, fd), 0);
    }

    let [inner, set, outer] = [(); 3].map(|()| Epoll::new().unwrap());
    inner.add(&reader, input).unwrap();
    set.add(&reader, input).unwrap();
    outer.add(&set, input).unwrap();
    outer.add(&set.as_file_ref().with_fd(1), input).unwrap();
    set.add(&inner, input).unwrap();
}
