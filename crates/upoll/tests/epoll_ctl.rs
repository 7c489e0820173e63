//! `epoll_ctl(2)`: its errors, their order, and the effect of each operation. Each rule is checked
//! on the host kernel too.
#![cfg(not(upoll_loom))]

mod kernel;

use std::collections::HashMap;

use upoll::{CreateFlags, Epoll, Errno, Event, EventFd, Events, Op, Target, WatchLimit};

use kernel::{Kernel, Twin, same};

const IN: Events = Events::IN;

/// A twin with a set at 0 and a counter at 1.
fn set_and_counter(initial: u32) -> Twin {
    let mut twin = Twin::new(4);
    twin.open_set(0);
    twin.open_counter(1, initial, false);
    twin
}

#[test]
fn of_the_flags_of_a_new_set_linux_knows_only_cloexec() {
    for bit in 0..32 {
        let flag = 1_u32 << bit;
        if flag == CreateFlags::ROTATE.bits() {
            // A flag of upoll's alone; it was never merged into Linux.
            continue;
        }
        let upoll = Epoll::create(CreateFlags::from_bits_retain(flag)).map(drop);
        // SAFETY: the call takes no pointers.
        let fd = unsafe { libc::epoll_create1(flag.cast_signed()) };
        let kernel = Kernel::result(fd.into()).map(drop);
        let _ = same(("flag", flag), upoll, kernel);
        if fd >= 0 {
            // SAFETY: the fd is this test's own.
            unsafe { libc::close(fd) };
        }
    }
}

#[test]
fn the_numbers_and_the_layout_are_the_kernels() {
    assert_eq!(Op::Add as i32, libc::EPOLL_CTL_ADD);
    assert_eq!(Op::Del as i32, libc::EPOLL_CTL_DEL);
    assert_eq!(Op::Mod as i32, libc::EPOLL_CTL_MOD);
    assert_eq!(size_of::<Event>(), size_of::<libc::epoll_event>());
    assert_eq!(align_of::<Event>(), align_of::<libc::epoll_event>());
    for (ours, theirs) in [
        (Events::IN, libc::EPOLLIN),
        (Events::PRI, libc::EPOLLPRI),
        (Events::OUT, libc::EPOLLOUT),
        (Events::ERR, libc::EPOLLERR),
        (Events::HUP, libc::EPOLLHUP),
        (Events::RDNORM, libc::EPOLLRDNORM),
        (Events::RDBAND, libc::EPOLLRDBAND),
        (Events::WRNORM, libc::EPOLLWRNORM),
        (Events::WRBAND, libc::EPOLLWRBAND),
        (Events::MSG, libc::EPOLLMSG),
        (Events::RDHUP, libc::EPOLLRDHUP),
        (Events::EXCLUSIVE, libc::EPOLLEXCLUSIVE),
        (Events::WAKEUP, libc::EPOLLWAKEUP),
        (Events::ONESHOT, libc::EPOLLONESHOT),
        (Events::ET, libc::EPOLLET),
    ] {
        assert_eq!(ours.bits(), theirs.cast_unsigned());
    }
}

#[test]
fn adding_twice_gives_eexist_and_changes_nothing() {
    let twin = set_and_counter(1);
    twin.add(0, 1, IN, 1).unwrap();
    assert_eq!(twin.add(0, 1, Events::OUT, 2), Err(Errno::EXIST));
    assert_eq!(twin.wait(0, 4).unwrap(), [(IN.bits(), 1)]);
    twin.fdinfo(0);
}

#[test]
fn modifying_or_deleting_what_is_not_watched_gives_enoent() {
    let twin = set_and_counter(1);
    assert_eq!(twin.modify(0, 1, IN, 0), Err(Errno::NOENT));
    assert_eq!(twin.delete(0, 1), Err(Errno::NOENT));
    twin.add(0, 1, IN, 0).unwrap();
    twin.delete(0, 1).unwrap();
    assert_eq!(twin.modify(0, 1, IN, 0), Err(Errno::NOENT));
    assert_eq!(twin.delete(0, 1), Err(Errno::NOENT));
    twin.add(0, 1, IN, 5).unwrap();
    assert_eq!(twin.data(0, 4), [5]);
}

#[test]
fn every_operation_on_the_set_itself_is_invalid_whatever_the_event_says() {
    let mut twin = Twin::new(2);
    twin.open_set(0);
    twin.dup(0, 1);
    for target in [0, 1] {
        for events in [IN, IN | Events::EXCLUSIVE, IN | Events::ONESHOT] {
            assert_eq!(twin.add(0, target, events, 0), Err(Errno::INVAL));
            assert_eq!(twin.modify(0, target, events, 0), Err(Errno::INVAL));
            assert_eq!(twin.delete(0, target), Err(Errno::INVAL));
        }
    }
}

#[test]
fn the_exclusive_rules_are_checked_before_loops_and_the_lookup() {
    let mut twin = Twin::new(3);
    twin.open_set(0);
    twin.open_set(1);
    twin.open_counter(2, 0, false);
    let exclusive = IN | Events::EXCLUSIVE;
    twin.add(0, 1, IN, 0).unwrap();
    // A loop that also exists already.
    assert_eq!(twin.add(1, 0, IN, 0), Err(Errno::LOOP));
    assert_eq!(twin.add(1, 0, exclusive, 0), Err(Errno::INVAL));
    assert_eq!(twin.add(0, 1, exclusive, 0), Err(Errno::INVAL));
    // A target that is not watched, or that is watched already.
    assert_eq!(twin.modify(0, 2, exclusive, 0), Err(Errno::INVAL));
    twin.add(0, 2, IN, 0).unwrap();
    let wrong = exclusive | Events::ONESHOT;
    assert_eq!(twin.add(0, 2, wrong, 0), Err(Errno::INVAL));
    assert_eq!(twin.add(0, 2, exclusive, 0), Err(Errno::EXIST));
}

#[test]
fn what_is_watched_already_gives_eexist_even_if_the_account_is_used_up() {
    // The kernel's limit counts the watches of the whole machine, so only upoll's can be exhausted
    // here.
    let set = Epoll::create_within(CreateFlags::empty(), WatchLimit::new(1)).unwrap();
    let (one, two) = (EventFd::new(0).unwrap(), EventFd::new(0).unwrap());
    let interest = Event::new(IN, 0);
    set.add(&one, interest).unwrap();
    assert_eq!(set.add(&one, interest), Err(Errno::EXIST));
    assert_eq!(set.add(&two, interest), Err(Errno::NOSPC));
    assert_eq!(set.add(&set, interest), Err(Errno::INVAL));
}

#[test]
fn an_account_serves_as_many_sets_as_it_has_watches() {
    let watches = 10_000;
    let account = WatchLimit::new(watches);
    let counter = EventFd::new(0).unwrap();
    let interest = Event::new(IN, 0);
    let mut sets = Vec::new();
    let mut watch_in_a_new_set = || {
        let set = Epoll::create_within(CreateFlags::empty(), account.clone()).unwrap();
        let added = set.add(&counter, interest);
        sets.push(set);
        added
    };
    for _ in 0..watches {
        watch_in_a_new_set().unwrap();
    }
    assert_eq!(watch_in_a_new_set(), Err(Errno::NOSPC));
    drop(sets);
    assert_eq!(account.used(), 0);
}

#[test]
fn an_add_that_is_refused_leaves_nothing_behind() {
    let mut twin = Twin::new(8);
    for set in 0..6 {
        twin.open_set(set);
    }
    twin.open_counter(6, 0, false);
    for set in 0..4 {
        twin.add(set, set + 1, IN, 0).unwrap();
    }
    let refused = |twin: &Twin, set, target, errno| {
        assert_eq!(twin.add(set, target, IN, 9), Err(errno));
        assert_eq!(twin.delete(set, target), Err(Errno::NOENT));
        twin.fdinfo(set);
    };
    refused(&twin, 4, 5, Errno::LOOP);
    refused(&twin, 4, 0, Errno::LOOP);
    // The same ADD succeeds as soon as the reason is gone.
    twin.delete(0, 1).unwrap();
    twin.add(4, 5, IN, 9).unwrap();
    twin.write(6, 1);
    twin.add(5, 6, IN, 1).unwrap();
    assert_eq!(twin.data(4, 1), [9]);
}

/// A file at 0, a chain of sets from 1 up to 4, and `above` sets that watch its top.
fn chain_of_four(above: usize) -> Twin {
    let mut twin = Twin::new(5 + above);
    twin.open_counter(0, 1, false);
    for set in 1..5 + above {
        twin.open_set(set);
    }
    for set in 1..4 {
        twin.add(set + 1, set, IN, 0).unwrap();
    }
    twin
}

#[test]
fn a_set_that_would_make_too_many_paths_is_rolled_back() {
    let twin = chain_of_four(11);
    twin.add(1, 0, IN, 0).unwrap();
    for top in 5..15 {
        twin.add(top, 4, IN, 0).unwrap();
    }
    assert_eq!(twin.add(15, 4, IN, 0), Err(Errno::INVAL));
    assert_eq!(twin.delete(15, 4), Err(Errno::NOENT));
    assert_eq!(twin.data(15, 1), []);
    twin.fdinfo(15);
    twin.delete(5, 4).unwrap();
    twin.add(15, 4, IN, 15).unwrap();
    assert_eq!(twin.data(15, 1), [15]);
}

#[test]
fn a_file_that_would_have_too_many_paths_is_rolled_back() {
    let twin = chain_of_four(11);
    // Without a file at the bottom there is no path to count.
    for top in 5..16 {
        twin.add(top, 4, IN, 0).unwrap();
    }
    assert_eq!(twin.add(1, 0, IN, 0), Err(Errno::INVAL));
    assert_eq!(twin.delete(1, 0), Err(Errno::NOENT));
    assert_eq!(twin.data(15, 1), []);
    twin.fdinfo(1);
    twin.delete(5, 4).unwrap();
    twin.add(1, 0, IN, 1).unwrap();
    assert_eq!(twin.data(1, 1), [1]);
}

#[test]
fn err_and_hup_are_always_wanted() {
    let mut twin = set_and_counter(0);
    twin.open_pipe(2, 3);
    twin.add(0, 1, Events::empty(), 1).unwrap();
    twin.add(0, 2, Events::empty(), 2).unwrap();
    // The mask in fdinfo has both bits, after ADD and after MOD.
    twin.fdinfo(0);
    twin.modify(0, 2, Events::empty(), 3).unwrap();
    twin.fdinfo(0);
    twin.send(3, 1);
    assert_eq!(twin.data(0, 4), []);
    twin.close(3);
    assert_eq!(twin.wait(0, 4).unwrap(), [(Events::HUP.bits(), 3)]);
}

#[test]
fn bits_without_a_name_are_accepted_and_kept() {
    let mut twin = Twin::new(33);
    twin.open_set(0);
    for bit in 0..32 {
        let flag = Events::from_bits_retain(1 << bit);
        // The configuration of the kernel decides whether it keeps WAKEUP.
        if flag == Events::WAKEUP {
            continue;
        }
        twin.open_counter(bit + 1, 1, false);
        // The rules of exclusive interests have a test of their own.
        twin.add(0, bit + 1, flag, bit as u64).unwrap();
        twin.fdinfo(0);
    }
    assert_eq!(twin.data(0, 40).len(), 2, "the counters show IN and OUT");
}

#[test]
fn an_interest_reports_what_it_asked_for_and_no_more() {
    let mut twin = Twin::new(7);
    twin.open_set(0);
    let wanted = [IN, Events::OUT, IN | Events::OUT, Events::PRI];
    for (n, wanted) in wanted.into_iter().enumerate() {
        twin.open_counter(n + 1, 1, false);
        twin.add(0, n + 1, wanted, n as u64).unwrap();
    }
    assert_eq!(twin.wait(0, 8).unwrap(), [(1, 0), (4, 1), (5, 2)]);
    twin.open_pipe(5, 6);
    twin.send(6, 1);
    twin.add(0, 5, Events::RDNORM | Events::RDBAND, 5).unwrap();
    let events = twin.wait(0, 8).unwrap();
    assert_eq!(events.last(), Some(&(Events::RDNORM.bits(), 5)));
}

#[test]
fn modifying_replaces_mask_data_and_mode() {
    let twin = set_and_counter(1);
    twin.add(0, 1, IN | Events::ET, 1).unwrap();
    assert_eq!(twin.wait(0, 4).unwrap(), [(1, 1)]);
    twin.modify(0, 1, Events::OUT, 2).unwrap();
    for _ in 0..2 {
        assert_eq!(twin.wait(0, 4).unwrap(), [(4, 2)], "level-triggered now");
    }
    twin.modify(0, 1, IN | Events::OUT | Events::ONESHOT, 3)
        .unwrap();
    assert_eq!(twin.wait(0, 4).unwrap(), [(5, 3)]);
    assert_eq!(twin.wait(0, 4).unwrap(), []);
    twin.fdinfo(0);
}

#[test]
fn an_event_comes_with_the_data_that_was_set_last() {
    let twin = set_and_counter(0);
    twin.add(0, 1, IN, 1).unwrap();
    twin.write(1, 1);
    twin.modify(0, 1, IN, 2).unwrap();
    assert_eq!(twin.data(0, 4), [2]);
    twin.modify(0, 1, IN, u64::MAX).unwrap();
    assert_eq!(twin.data(0, 4), [u64::MAX]);
}

#[test]
fn a_queued_item_modified_to_what_is_not_ready_is_not_reported() {
    let twin = set_and_counter(0);
    twin.add(0, 1, IN, 1).unwrap();
    twin.write(1, 1);
    twin.modify(0, 1, Events::PRI, 2).unwrap();
    assert_eq!(twin.data(0, 4), []);
    twin.modify(0, 1, IN, 3).unwrap();
    assert_eq!(twin.data(0, 4), [3]);
}

#[test]
fn a_deleted_item_that_was_ready_is_not_reported() {
    let mut twin = set_and_counter(1);
    twin.open_counter(2, 1, false);
    twin.add(0, 1, IN, 1).unwrap();
    twin.add(0, 2, IN, 2).unwrap();
    twin.delete(0, 1).unwrap();
    assert_eq!(twin.data(0, 4), [2]);
    twin.write(1, 1);
    assert_eq!(twin.data(0, 4), [2]);
}

#[test]
fn interests_of_several_sets_in_one_file_are_independent() {
    let mut twin = set_and_counter(1);
    twin.open_set(2);
    twin.add(0, 1, IN, 1).unwrap();
    twin.add(2, 1, Events::OUT | Events::ONESHOT, 2).unwrap();
    assert_eq!(twin.wait(0, 4).unwrap(), [(1, 1)]);
    assert_eq!(twin.wait(2, 4).unwrap(), [(4, 2)]);
    twin.delete(2, 1).unwrap();
    assert_eq!(twin.wait(0, 4).unwrap(), [(1, 1)]);
}

#[test]
fn the_operation_as_a_value_does_what_the_named_calls_do() {
    let twin = set_and_counter(1);
    let set = twin.set(0).unwrap();
    let steps = [
        (Op::Mod, Err(Errno::NOENT)),
        (Op::Add, Ok(())),
        (Op::Add, Err(Errno::EXIST)),
        (Op::Mod, Ok(())),
        (Op::Del, Ok(())),
        (Op::Del, Err(Errno::NOENT)),
    ];
    for (op, expected) in steps {
        let file = twin.counter(1).as_file_ref();
        let upoll = set.ctl(op, Target::File(file), Event::new(IN, 0));
        let kernel = twin.kernel.ctl(0, op as i32, 1, IN, 0);
        assert_eq!(same(op, upoll, kernel), expected);
    }
}

#[test]
fn fdinfo_shows_an_interest_as_the_kernel_does() {
    let twin = set_and_counter(0);
    let wanted = IN | Events::ET | Events::ONESHOT;
    twin.add(0, 1, wanted, 0x1234_5678_9abc_def0).unwrap();
    twin.fdinfo(0);
    twin.write(1, 1);
    assert_eq!(twin.data(0, 1).len(), 1);
    // After a oneshot interest has fired only its mode bits are left.
    twin.fdinfo(0);
    let text = twin.set(0).unwrap().fdinfo().unwrap();
    assert!(text.contains("events: c0000000 data: 123456789abcdef0  pos:0 ino:"));
}

#[test]
fn remove_is_delete() {
    let set = Epoll::new().unwrap();
    let counter = EventFd::new(1).unwrap();
    set.add(&counter, Event::new(Events::IN, 0)).unwrap();
    assert_eq!(set.remove(&counter), Ok(()));
    assert_eq!(set.remove(&counter), set.delete(&counter));
    assert!(set.is_empty());
}

#[test]
fn open_files_are_keys_of_maps() {
    let (one, other) = (EventFd::new(0).unwrap(), EventFd::new(0).unwrap());
    let mut names = HashMap::new();
    names.insert(one.as_file_ref().identity(), "one");
    names.insert(other.as_file_ref().identity(), "other");
    let again = one.clone();
    let found = names.get(&again.as_file_ref().with_fd(7).identity());
    assert_eq!(found, Some(&"one"));
    assert_eq!(names.len(), 2);
}
