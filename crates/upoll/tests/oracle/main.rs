//! The host kernel as the oracle. The same operations run on upoll and, through system calls, on
//! the kernel. All results are compared, including the order of events.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

#[path = "../kernel/mod.rs"]
mod kernel;
#[path = "../random/mod.rs"]
mod random;
mod sequences;

use proptest::prelude::*;
use upoll::{CreateFlags, Epoll, Errno, Event, EventFd, EventFdFlags, Events, Op, WatchLimit};

use kernel::{Object, Twin};
use random::{config, confirm};
use sequences::{World, run, steps};

proptest! {
    #![proptest_config(config(20_000, "oracle"))]

    #[test]
    fn any_sequence_of_operations_gives_what_the_kernel_gives(steps in steps(false)) {
        confirm(|| run(&steps, World::Objects));
    }
}

proptest! {
    #![proptest_config(config(2_000, "oracle"))]

    #[test]
    fn any_sequence_with_descriptors_gives_what_the_kernel_gives(steps in steps(true)) {
        confirm(|| run(&steps, World::Descriptors));
    }

    #[test]
    fn any_sequence_with_descriptors_below_gives_what_the_kernel_gives(steps in steps(true)) {
        confirm(|| run(&steps, World::DescriptorsFromAbove));
    }
}

const IN: Events = Events::IN;

#[test]
fn more_ready_items_than_room_take_turns() {
    let mut twin = Twin::new(6);
    twin.open_set(0);
    for n in 1..6 {
        twin.open_counter(n, 1, false);
        twin.add(0, n, IN, n as u64).unwrap();
    }
    let rounds: Vec<_> = (0..5).map(|_| twin.data(0, 2)).collect();
    assert_eq!(rounds, [[1, 2], [3, 4], [5, 1], [2, 3], [4, 5]]);
}

#[test]
fn an_edge_triggered_counter_reports_every_write_read_or_not() {
    let mut twin = Twin::new(2);
    twin.open_set(0);
    twin.open_counter(1, 0, false);
    twin.add(0, 1, IN | Events::ET, 0).unwrap();
    for _ in 0..3 {
        twin.write(1, 1);
        assert_eq!(twin.data(0, 4).len(), 1);
        assert_eq!(twin.data(0, 4).len(), 0);
    }
    twin.write(1, 0);
    assert_eq!(twin.data(0, 4).len(), 1);
    twin.read(1);
    assert_eq!(twin.data(0, 4).len(), 0);
}

#[test]
fn an_item_keeps_the_place_that_the_first_of_two_changes_in_a_batch_gave_it() {
    for open in [
        (|twin, n| twin.open_counter(n, 0, false)) as fn(&mut Twin, usize),
        Twin::open_descriptor,
    ] {
        let mut twin = Twin::new(3);
        twin.open_set(0);
        for n in 1..3 {
            open(&mut twin, n);
        }
        twin.add(0, 1, IN, 1).unwrap();
        twin.batch(
            0,
            &[(Op::Mod, 1, Events::OUT, 1), (Op::Mod, 1, IN, 1)],
            None,
        );
        twin.add(0, 2, Events::OUT, 2).unwrap();
        twin.kernel.write(1, 1).unwrap();
        if let Some(Object::Counter(counter)) = &twin.objects[1] {
            counter.try_write(1).unwrap();
        }
        assert_eq!(twin.data(0, 4), [1, 2]);
    }
}

#[test]
fn a_oneshot_interest_is_silent_until_modified() {
    let mut twin = Twin::new(2);
    twin.open_set(0);
    twin.open_counter(1, 1, false);
    twin.add(0, 1, IN | Events::ONESHOT, 1).unwrap();
    assert_eq!(twin.data(0, 4), [1]);
    twin.write(1, 1);
    assert_eq!(twin.data(0, 4), []);
    twin.modify(0, 1, IN | Events::ONESHOT, 2).unwrap();
    assert_eq!(twin.data(0, 4), [2]);
}

#[test]
fn modifying_a_ready_edge_triggered_item_reports_it_with_the_new_data() {
    let mut twin = Twin::new(2);
    twin.open_set(0);
    twin.open_counter(1, 1, false);
    twin.add(0, 1, IN | Events::ET, 1).unwrap();
    assert_eq!(twin.data(0, 4), [1]);
    assert_eq!(twin.data(0, 4), []);
    twin.modify(0, 1, IN | Events::ET, 2).unwrap();
    assert_eq!(twin.data(0, 4), [2]);
}

#[test]
fn fds_of_one_open_file_are_items_of_their_own_and_live_as_long_as_it_does() {
    let mut twin = Twin::new(4);
    twin.open_set(0);
    twin.open_counter(1, 0, false);
    twin.dup(1, 2);
    twin.add(0, 1, IN, 1).unwrap();
    twin.add(0, 2, IN, 2).unwrap();
    twin.write(1, 1);
    assert_eq!(twin.data(0, 4).len(), 2);
    twin.close(1);
    assert_eq!(twin.data(0, 4).len(), 2);
    // The fd is used again for another file, while the old item is still there.
    twin.open_counter(1, 1, false);
    assert_eq!(twin.delete(0, 1), Err(Errno::NOENT));
    twin.add(0, 1, IN, 3).unwrap();
    assert_eq!(twin.data(0, 4).len(), 3);
    twin.close(2);
    assert_eq!(twin.data(0, 4), [3]);
}

#[test]
fn sets_nest_to_the_kernels_depth_whichever_end_grows() {
    for downwards in [true, false] {
        let mut twin = Twin::new(7);
        for n in 0..7 {
            twin.open_set(n);
        }
        let mut results = Vec::new();
        for link in 0..6 {
            let link = if downwards { link } else { 5 - link };
            results.push(twin.add(link, link + 1, IN, 0));
        }
        assert_eq!(results[..4], [Ok(()); 4]);
        assert_eq!(results[4], Err(Errno::LOOP));
    }
}

#[test]
fn a_set_cannot_watch_itself_directly_or_through_others() {
    let mut twin = Twin::new(3);
    for n in 0..3 {
        twin.open_set(n);
    }
    assert_eq!(twin.add(0, 0, IN, 0), Err(Errno::INVAL));
    twin.add(0, 1, IN, 0).unwrap();
    twin.add(1, 2, IN, 0).unwrap();
    assert_eq!(twin.add(2, 0, IN, 0), Err(Errno::LOOP));
    assert_eq!(twin.add(1, 0, IN, 0), Err(Errno::LOOP));
}

#[test]
fn exclusive_interests_keep_to_their_rules() {
    let mut twin = Twin::new(3);
    twin.open_set(0);
    twin.open_set(1);
    twin.open_counter(2, 0, false);
    let exclusive = IN | Events::EXCLUSIVE;
    assert_eq!(twin.add(0, 1, exclusive, 0), Err(Errno::INVAL));
    assert_eq!(twin.modify(0, 2, exclusive, 0), Err(Errno::INVAL));
    for wrong in [Events::ONESHOT, Events::RDHUP, Events::PRI, Events::RDNORM] {
        assert_eq!(twin.add(0, 2, exclusive | wrong, 0), Err(Errno::INVAL));
    }
    twin.add(0, 2, exclusive | Events::ET | Events::OUT, 0)
        .unwrap();
    assert_eq!(twin.add(0, 2, exclusive, 0), Err(Errno::EXIST));
    assert_eq!(twin.modify(0, 2, IN, 0), Err(Errno::INVAL));
    twin.delete(0, 2).unwrap();
}

#[test]
fn an_exclusive_source_that_nobody_waits_for_is_queued_in_every_set() {
    let mut twin = Twin::new(5);
    twin.open_counter(4, 0, false);
    for set in 0..4 {
        twin.open_set(set);
        twin.add(set, 4, IN | Events::EXCLUSIVE | Events::ET, 0)
            .unwrap();
    }
    twin.write(4, 1);
    for set in 0..4 {
        assert_eq!(twin.data(set, 1).len(), 1);
    }
}

#[test]
fn an_outer_edge_triggered_set_reports_each_wake_of_the_inner_one() {
    let mut twin = Twin::new(3);
    twin.open_set(0);
    twin.open_set(1);
    twin.open_counter(2, 0, false);
    twin.add(1, 2, IN, 0).unwrap();
    twin.add(0, 1, IN | Events::ET, 0).unwrap();
    for _ in 0..3 {
        twin.write(2, 1);
        assert_eq!(twin.data(0, 1).len(), 1);
        assert_eq!(twin.data(0, 1).len(), 0);
        assert_eq!(twin.data(1, 1).len(), 1);
        assert_eq!(twin.data(0, 1).len(), 0);
    }
}

#[test]
fn modifying_an_item_that_is_queued_already_is_no_wake_for_the_sets_above() {
    let mut twin = Twin::new(3);
    twin.open_set(0);
    twin.open_set(1);
    twin.open_counter(2, 0, false);
    twin.add(0, 1, IN | Events::ET, 7).unwrap();
    twin.add(1, 2, Events::OUT, 0).unwrap();
    assert_eq!(twin.data(0, 1), [7]);
    twin.modify(1, 2, Events::OUT | Events::HUP, 0).unwrap();
    assert_eq!(twin.data(0, 1), []);
}

#[test]
fn a_select_that_fails_for_one_fd_has_not_polled_any_set() {
    let mut twin = Twin::new(4);
    twin.open_set(0);
    for n in [1, 2, 3] {
        twin.open_counter(n, 0, false);
    }
    twin.add(0, 1, Events::OUT, 1).unwrap();
    twin.add(0, 2, Events::OUT, 2).unwrap();
    // The item is queued and idle: a poll of the set takes it off the list.
    twin.modify(0, 1, IN, 1).unwrap();
    twin.close(3);
    let readable = [Some(vec![0, 3]), None, None];
    assert_eq!(twin.select(4, &readable, false), Err(Errno::BADF));
    twin.write(1, 1);
    assert_eq!(twin.data(0, 2), [1, 2]);
}

#[test]
fn a_wait_with_room_reports_a_descriptor_and_the_set_that_it_makes_ready() {
    for idle_waits in 0..4 {
        let mut twin = Twin::new(3);
        twin.rank = |&(_, data)| (data, 0);
        twin.open_set(0);
        twin.open_set(1);
        twin.open_descriptor(2);
        twin.add(1, 2, IN, 12).unwrap();
        twin.add(0, 1, IN, 1).unwrap();
        twin.add(0, 2, IN, 2).unwrap();
        for _ in 0..idle_waits {
            assert_eq!(twin.data(0, 8), []);
        }
        twin.kernel.write(2, 1).unwrap();
        assert_eq!(twin.data(0, 8), [1, 2]);
    }
}

#[test]
fn a_wait_in_the_middle_of_a_chain_leaves_a_descriptors_event_to_the_top() {
    let mut twin = Twin::new(4);
    for set in 0..3 {
        twin.open_set(set);
    }
    twin.open_descriptor(3);
    twin.add(2, 3, IN, 23).unwrap();
    twin.add(1, 2, IN, 12).unwrap();
    twin.add(0, 1, IN, 1).unwrap();
    for set in [0, 1, 2] {
        assert_eq!(twin.data(set, 8), []);
    }
    twin.kernel.write(3, 1).unwrap();
    assert_eq!(twin.data(1, 8), [12]);
    assert_eq!(twin.data(0, 8), [1]);
    assert_eq!(twin.data(2, 8), [23]);
}

/// Adds one path more than Linux allows up from a file, through `links` links between sets.
fn exceed_paths(links: usize, limit: usize) {
    // A chain of `links` sets above the file, and `limit + 1` sets that watch its top.
    let tops = limit + 1;
    let mut twin = Twin::new(1 + links + tops);
    twin.open_counter(0, 0, false);
    for n in 1..1 + links + tops {
        twin.open_set(n);
    }
    for n in 0..links {
        twin.add(n + 1, n, IN, 0).unwrap();
    }
    for top in 0..limit {
        assert_eq!(twin.add(1 + links + top, links, IN, 0), Ok(()), "{top}");
    }
    assert_eq!(twin.add(links + tops, links, IN, 0), Err(Errno::INVAL));
}

#[test]
fn too_many_paths_up_from_a_file_are_refused() {
    // SAFETY: raises this process's own limit of fds.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
    exceed_paths(1, 500);
    exceed_paths(2, 100);
    exceed_paths(3, 50);
    exceed_paths(4, 10);
}

#[test]
fn an_account_that_is_used_up_gives_enospc_until_something_goes() {
    let account = WatchLimit::new(3);
    let first = Epoll::create_within(CreateFlags::empty(), account.clone()).unwrap();
    let second = Epoll::create_within(CreateFlags::empty(), account.clone()).unwrap();
    let counters: Vec<_> = (0..4).map(|_| EventFd::new(0).unwrap()).collect();
    let interest = Event::new(IN, 0);
    first.add(&counters[0], interest).unwrap();
    first.add(&counters[1], interest).unwrap();
    second.add(&counters[2], interest).unwrap();
    assert_eq!(second.add(&counters[3], interest), Err(Errno::NOSPC));
    first.delete(&counters[0]).unwrap();
    second.add(&counters[3], interest).unwrap();
    assert_eq!(first.add(&counters[0], interest), Err(Errno::NOSPC));
    drop(second);
    first.add(&counters[0], interest).unwrap();
    drop((first, counters));
    assert_eq!(account.used(), 0);
}

#[test]
fn flags_that_linux_does_not_know_are_invalid() {
    // SAFETY: the calls fail.
    unsafe {
        assert_eq!(libc::epoll_create1(2), -1);
        assert_eq!(libc::eventfd(0, 2), -1);
    }
    let set = Epoll::create(CreateFlags::from_bits_retain(2));
    assert_eq!(set.err(), Some(Errno::INVAL));
    let counter = EventFd::with_flags(0, EventFdFlags::from_bits_retain(2));
    assert_eq!(counter.err(), Some(Errno::INVAL));
}

#[test]
fn a_rotating_set_watches_one_source_and_any_number_of_sets() {
    let rotating = Epoll::create(CreateFlags::ROTATE | CreateFlags::CLOEXEC).unwrap();
    let (one, two) = (EventFd::new(0).unwrap(), EventFd::new(0).unwrap());
    let interest = Event::new(IN, 0);
    rotating.add(&one, interest).unwrap();
    assert_eq!(rotating.add(&one, interest), Err(Errno::EXIST));
    assert_eq!(rotating.add(&two, interest), Err(Errno::INVAL));
    rotating.add(&Epoll::new().unwrap(), interest).unwrap();
    rotating.delete(&one).unwrap();
    rotating.add(&two, interest).unwrap();
}

#[test]
fn many_changes_leave_nothing_behind() {
    let account = WatchLimit::new(10_000);
    let set = Epoll::create_within(CreateFlags::empty(), account.clone()).unwrap();
    let counters: Vec<_> = (0..10).map(|_| EventFd::new(1).unwrap()).collect();
    for round in 0..100_000 {
        let counter = &counters[round % 10];
        set.add(counter, Event::new(IN, 0)).unwrap();
        set.delete(counter).unwrap();
    }
    assert!(set.is_empty());
    assert_eq!(set.try_wait(&mut [Event::default()]), Ok(0));
    drop(set);
    assert_eq!(account.used(), 0);
}
