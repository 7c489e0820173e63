//! Demotion of objects while their fds are looked up, copied, moved or closed.

use std::cell::Cell;
use std::mem;
use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use upoll::Errno;

use super::look_ups::{close, slot_of, use_several_from_a_thread, use_two_from_a_thread};
use crate::counts;
use crate::harness::model;
use crate::hazard_records;
use crate::held::hold;
use crate::object::Object;
use crate::signals::Blocked;
use crate::slot::{self, Entry, Slot};
use crate::table;

/// A call uses one fd and then a second one of an object that is being demoted: it does not
/// wait for that, as that may wait for the call.
fn using_several_against_demoting() {
    model(3, || {
        let object = Object::new();
        let slots = [slot_of(&object), slot_of(&Object::new())];
        let using = use_several_from_a_thread(&slots);
        let [one, other] = slots.each_ref().map(|slot| slot.hold(|_| true).unwrap());
        assert!(hazard_records::wait_until_unused(one, usize::MAX));
        object.be_transferred();
        slots[0].give_back(one);
        slots[1].give_back(other);
        using.join().unwrap();
        assert!(!object.is_closed());
    });
}

#[test]
fn a_call_on_several_waits_for_no_change() {
    using_several_against_demoting();
}

broken_variants! { using_several_against_demoting =>
    an_object_that_is_demoted_while_it_is_used_with_others_is_used_by_two: must_fail_without WaitUntilUnused;
}

/// A call uses one fd and then a second one of an object that is being demoted.
fn using_two_against_demoting() {
    model(4, || {
        let object = Object::new();
        let slots = [slot_of(&object), slot_of(&object)];
        let using = use_two_from_a_thread(&slots);
        let held = slots.each_ref().map(|slot| slot.hold(|_| true).unwrap());
        for entry in held {
            assert!(hazard_records::wait_until_unused(entry, usize::MAX));
        }
        object.be_transferred();
        for (slot, entry) in slots.iter().zip(held) {
            slot.give_back(entry);
        }
        using.join().unwrap();
        assert!(!object.is_closed());
    });
}

#[test]
fn a_call_on_two_waits_for_no_change_while_it_uses_one() {
    using_two_against_demoting();
}

broken_variants! { using_two_against_demoting =>
    an_object_that_is_demoted_while_it_is_used_with_another_is_used_by_two: must_fail_without WaitUntilUnused;
}

/// A look-up against an object that is demoted: it has the object before, or finds
/// the kernel's fd after.
fn using_against_demoting() {
    model(4, || {
        let object = Object::new();
        let slot = slot_of(&object);
        let has_kernel_it = Arc::new(AtomicBool::new(false));
        let using = {
            let (slot, has_kernel_it) = (Arc::clone(&slot), Arc::clone(&has_kernel_it));
            thread::spawn(move || {
                if slot.with(Object::be_used).is_none() {
                    assert!(has_kernel_it.load(Ordering::Relaxed));
                }
            })
        };
        let held = slot.hold(|_| true).unwrap();
        assert!(hazard_records::wait_until_unused(held, usize::MAX));
        object.be_transferred();
        has_kernel_it.store(true, Ordering::Relaxed);
        slot.end_demotion(held);
        using.join().unwrap();
        assert!(object.is_closed());
    });
}

#[test]
fn an_object_that_is_demoted_is_used_before_or_found_to_be_the_kernels() {
    using_against_demoting();
}

broken_variants! { using_against_demoting =>
    a_look_up_that_does_not_wait_takes_an_object_that_is_being_demoted_for_the_kernels:
        must_fail_without WaitWhileChanging;
    an_object_that_is_demoted_while_it_is_used_is_used_by_two: must_fail_without WaitUntilUnused;
}

/// A call takes a reference to an object and goes on with that, while another thread demotes the object if nobody
/// else has one.
fn owning_against_demoting() {
    model(3, || {
        let object = Object::with_references();
        let slot = slot_of(&object);
        let using = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                if let Some(own) = slot.with(Object::clone) {
                    own.be_used();
                }
            })
        };
        let held = slot.hold(|_| true).unwrap();
        assert!(hazard_records::wait_until_unused(held, usize::MAX));
        // The slot's and the model's own.
        if object.references() == 2 {
            object.be_transferred();
        }
        slot.end_demotion(held);
        using.join().unwrap();
        assert!(object.is_closed());
    });
}

#[test]
fn an_object_without_other_owners_is_demoted_alone() {
    owning_against_demoting();
}

broken_variants! { owning_against_demoting =>
    owners_are_counted_too_early_if_calls_are_not_waited_for: must_fail_without WaitUntilUnused;
}

/// Returns a set that both fds of the table stand for.
fn set_with_two_fds() -> Object {
    let set = Object::new_set();
    for fd in [0, 1] {
        let entry = Entry::new(set.clone()).unwrap();
        table::slot(fd).unwrap().install(entry);
    }
    set
}

/// A thread adds a member to a set that has none, by one of its fds, while another one demotes sets without members.
/// The member is closed soon, which needs no fd of the set.
fn adding_a_member_against_demoting() {
    model(3, || {
        let set = set_with_two_fds();
        let adding = {
            let set = set.clone();
            thread::spawn(move || {
                let slot = table::slot(0).unwrap();
                if slot.with(|found| found.set_has_members(true)).is_some() {
                    set.set_has_members(false);
                    slot.with(Object::be_used);
                }
            })
        };
        {
            let is_meant = |found: &Object| !found.has_members();
            let mut held = hold(is_meant, &Blocked::all()).unwrap();
            for group in held.groups() {
                assert_eq!(group.objects().count(), 2, "an fd still leads to the set");
                assert!(!set.has_members(), "the kernel's set lacks a member");
                set.be_transferred();
                group.release();
            }
        }
        adding.join().unwrap();
        let are_empty = [0, 1].map(|fd| table::slot(fd).unwrap().is_empty());
        assert_eq!(are_empty[0], are_empty[1]);
    });
}

#[test]
fn a_set_that_gets_a_member_before_it_is_demoted_stays_with_all_its_fds() {
    adding_a_member_against_demoting();
}

broken_variants! { adding_a_member_against_demoting =>
    a_set_is_demoted_without_one_of_its_fds_if_each_is_held_by_itself: must_fail_without HoldAllOfASet;
    a_set_is_demoted_with_a_member_if_nobody_asks_again: must_fail_without AskAgain;
    a_set_is_demoted_without_one_of_its_fds_if_each_is_asked_about: must_fail_without AskOnce;
}

/// A call becomes an owner of a set by one of its fds and goes on with that, while another thread demotes the set if it
/// has no other owners than the thread and the fds.
fn owning_a_set_against_demoting() {
    model(3, || {
        let set = set_with_two_fds();
        let using = thread::spawn(|| {
            if let Some(own) = table::slot(0).unwrap().with(Object::clone) {
                own.be_used();
            }
        });
        {
            let mut held = hold(|_| true, &Blocked::all()).unwrap();
            for group in held.groups() {
                if group.is_owned_by_one_more() {
                    set.be_transferred();
                    group.release();
                }
            }
        }
        using.join().unwrap();
        assert!(set.owners().is_some_and(|owners| [1, 3].contains(&owners)));
    });
}

#[test]
fn a_set_that_no_call_owns_is_demoted_alone() {
    owning_a_set_against_demoting();
}

broken_variants! { owning_a_set_against_demoting =>
    a_set_whose_owners_are_not_counted_is_demoted_while_a_call_uses_it: must_fail_without CountOwners;
    the_owners_of_a_set_are_counted_too_early_if_calls_are_not_waited_for: must_fail_without WaitUntilUnused;
}

/// Demotes `object`, if the slots lead to it. Returns which slots were held.
fn demote(slots: &[Arc<Slot>; 2], object: &Object) -> [bool; 2] {
    let held = slots
        .each_ref()
        .map(|slot| slot.hold(|found| found.is(object)));
    for &entry in held.iter().flatten() {
        assert!(hazard_records::wait_until_unused(entry, usize::MAX));
    }
    if held.iter().any(Option::is_some) {
        object.be_transferred();
    }
    for (slot, entry) in slots.iter().zip(held) {
        if let Some(entry) = entry {
            slot.end_demotion(entry);
        }
    }
    held.map(|entry| entry.is_some())
}

/// An object is demoted while its fd is closed by another thread, or comes to stand for another object.
fn demoting_against_changing(replaces: bool) {
    model(4, move || {
        let (old, new) = (Object::new(), Object::new());
        let slots = [slot_of(&old), Arc::new(Slot::empty())];
        let changing = {
            let (slot, new) = (Arc::clone(&slots[0]), new.clone());
            thread::spawn(move || match replaces {
                true => slot
                    .change(true, || {
                        Ok::<_, ()>(((), Some(Entry::new(new.clone()).unwrap())))
                    })
                    .unwrap(),
                false => close(&slot),
            })
        };
        demote(&slots, &old);
        changing.join().unwrap();
        assert!(old.is_closed());
        assert_eq!(slots[0].with(Object::be_used).is_some(), replaces);
    });
}

#[test]
fn an_fd_is_closed_before_or_after_its_object_is_demoted() {
    demoting_against_changing(false);
}

#[test]
fn an_fd_is_replaced_before_or_after_its_object_is_demoted() {
    demoting_against_changing(true);
}

/// The kernel opens an fd again that was closed unseen, while its old object is held.
#[test]
fn an_object_that_is_installed_over_a_held_one_stays() {
    for gives_back in [false, true] {
        model(4, move || {
            let (old, new) = (Object::new(), Object::new());
            let slot = slot_of(&old);
            let installing = {
                let (slot, new) = (Arc::clone(&slot), new.clone());
                thread::spawn(move || slot.install(Entry::new(new).unwrap()))
            };
            if let Some(held) = slot.hold(|found| found.is(&old)) {
                assert!(hazard_records::wait_until_unused(held, usize::MAX));
                old.be_transferred();
                match gives_back {
                    true => slot.give_back(held),
                    false => slot.end_demotion(held),
                }
            }
            installing.join().unwrap();
            assert!(old.is_closed());
            assert!(slot.with(|found| found.is(&new)).unwrap());
        });
    }
}

/// The ends of a pipe are installed while another thread holds all fds, in passes over the slots until one finds none.
#[test]
fn both_ends_of_a_pipe_are_held_or_none() {
    for first in [0, 1] {
        model(3, move || {
            let slots = Arc::new([Slot::empty(), Slot::empty()]);
            let installing = {
                let slots = Arc::clone(&slots);
                thread::spawn(move || {
                    let ends = [Object::new(), Object::new()].map(|end| Entry::new(end).unwrap());
                    Slot::install_both([&slots[first], &slots[1 - first]], ends);
                })
            };
            let mut held = [None; 2];
            loop {
                let before = held;
                for (slot, held) in slots.iter().zip(&mut held) {
                    if held.is_none() && !slot.is_empty() {
                        *held = slot.hold(|_| true);
                    }
                }
                if held == before {
                    break;
                }
            }
            assert_eq!(held[0].is_some(), held[1].is_some());
            for (slot, held) in slots.iter().zip(held) {
                if let Some(held) = held {
                    slot.end_demotion(held);
                }
            }
            installing.join().unwrap();
        });
    }
}

/// Returns an array of slots of which the first leads to `object`.
fn slots_of<const COUNT: usize>(object: &Object) -> Arc<[Slot; COUNT]> {
    let slots = [(); COUNT].map(|()| Slot::empty());
    slots[0].install(Entry::new(object.clone()).unwrap());
    Arc::new(slots)
}

/// Empties the slots of objects to which nothing but one slot and the model refers. Runs `transfer` before. Returns whether
/// there were any.
fn empty_unused(slots: &[Slot], transfer: impl Fn()) -> bool {
    let is_any = Cell::new(false);
    let take = |_, object: &Object| {
        let is_alone = object.references() == 2;
        if is_alone {
            object.be_transferred();
            transfer();
            is_any.set(true);
        }
        is_alone
    };
    slot::empty_unused(slots, &mut Vec::new(), |_| true, take);
    is_any.get()
}

/// A call uses an object, and goes on with a reference of its own, while the slot is emptied unless it is used.
fn using_against_emptying() {
    model(4, || {
        let object = Object::with_references();
        let slots = slots_of::<1>(&object);
        let is_kernels = Arc::new(AtomicBool::new(false));
        let using = {
            let (slots, is_kernels) = (Arc::clone(&slots), Arc::clone(&is_kernels));
            thread::spawn(move || match slots[0].with(Object::clone) {
                Some(own) => own.be_used(),
                None => assert!(is_kernels.load(Ordering::Relaxed)),
            })
        };
        let is_emptied = empty_unused(&*slots, || is_kernels.store(true, Ordering::Relaxed));
        using.join().unwrap();
        assert_eq!(slots[0].is_empty(), is_emptied);
        assert_eq!(object.is_closed(), is_emptied);
    });
}

#[test]
fn an_unused_object_is_the_kernels_before_or_after_a_call_that_uses_it() {
    using_against_emptying();
}

broken_variants! { using_against_emptying =>
    a_slot_that_is_emptied_is_taken_for_the_kernels_before_that_by_a_look_up_that_does_not_wait:
        must_fail_without WaitWhileChanging;
    a_slot_is_emptied_though_its_object_is_used_if_no_record_is_checked: must_fail_without WaitUntilUnused;
}

#[test]
fn a_call_of_the_same_thread_keeps_a_slot_from_being_emptied() {
    model(1, || {
        let object = Object::with_references();
        let slots = slots_of::<1>(&object);
        let is_emptied = slots[0].with(|_| empty_unused(&*slots, || ()));
        assert_eq!(is_emptied, Some(false));
        assert!(!object.is_closed() && !slots[0].is_empty());
        assert!(empty_unused(&*slots, || ()) && object.is_closed());
    });
}

#[test]
fn a_slot_is_not_emptied_in_the_midst_of_a_copy() {
    model(1, || {
        let object = Object::with_references();
        let slots = slots_of::<1>(&object);
        let is_emptied = slots[0].kept(|_| empty_unused(&*slots, || ()));
        assert_eq!(is_emptied, Some(false));
        assert_eq!(slots[0].with(|found| found.is(&object)), Some(true));
    });
}

/// The child of another thread's fork would find it held.
#[test]
fn a_slot_whose_object_stays_is_not_held_even_for_a_moment() {
    model(1, || {
        let object = Object::with_references();
        let slots = slots_of::<1>(&object);
        let stays = |_: &Object| {
            assert!(slots[0].unless_changing().is_some(), "it is held");
            false
        };
        slot::empty_unused(&*slots, &mut Vec::new(), stays, |_, _| true);
        assert_eq!(slots[0].with(|found| found.is(&object)), Some(true));
    });
}

/// A thread copies an fd, or closes it, or installs another object, while its slot is emptied.
#[test]
fn a_slot_is_emptied_before_or_after_a_change() {
    for change in 0..3 {
        model(4, move || {
            let (object, other) = (Object::with_references(), Object::with_references());
            let slots = slots_of::<2>(&object);
            let changing = {
                let (slots, other) = (Arc::clone(&slots), other.clone());
                thread::spawn(move || match change {
                    0 => {
                        let copy = slots[1].replace_by_copy(Some(&slots[0]), || Ok(()));
                        assert_eq!(copy, Ok(()));
                    }
                    1 => close(&slots[0]),
                    _ => slots[0].install(Entry::new(other).unwrap()),
                })
            };
            let is_emptied = empty_unused(&*slots, || ());
            changing.join().unwrap();
            let leads_to = |at: usize, to: &Object| slots[at].with(|found| found.is(to));
            match change {
                0 => {
                    let found = [0, 1].map(|at| leads_to(at, &object));
                    // As an object of both fds, or as none of either.
                    let expected = if is_emptied { None } else { Some(true) };
                    assert_eq!(found, [expected; 2]);
                    assert_eq!(object.is_closed(), is_emptied);
                }
                1 => assert!(object.is_closed() && slots[0].is_empty()),
                _ if leads_to(0, &other).is_some() => {
                    assert_eq!(leads_to(0, &other), Some(true));
                    assert!(object.is_closed() && !other.is_closed());
                }
                // The new object was taken instead.
                _ => assert!(is_emptied && object.is_closed()),
            }
        });
    }
}

/// Copies the first slot's fd to the second one's, as `dup2` does. Returns whether the fd was open.
fn copy_down(slots: &[Arc<Slot>; 2], is_open: &AtomicBool) -> bool {
    let copy = || match is_open.load(Ordering::Acquire) {
        true => Ok(()),
        false => Err(Errno::BADF),
    };
    counts::while_adding(|| slots[1].replace_by_copy(Some(&slots[0]), copy)).is_ok()
}

/// An object is demoted while its fd is copied by `dup`.
#[test]
fn an_object_that_is_demoted_while_it_is_copied_is_demoted_with_the_copy() {
    model(3, || {
        let object = Object::with_references();
        let slots = [slot_of(&object), Arc::new(Slot::empty())];
        let copying = {
            let slots = slots.clone();
            thread::spawn(move || {
                let copy = |object: Option<&Object>| {
                    if let Some(object) = object {
                        slots[1].install(Entry::new(object.clone()).unwrap());
                    }
                };
                while slots[0].kept(copy).is_none() {
                    thread::yield_now();
                }
            })
        };
        assert!(demote(&slots, &object)[0]);
        copying.join().unwrap();
        assert!(object.is_closed());
        assert!(slots.iter().all(|slot| slot.is_empty()));
    });
}

/// Closes the first slot's fd.
fn close_first(slots: &[Arc<Slot>; 2], is_open: &AtomicBool) {
    let close = || {
        is_open.store(false, Ordering::Release);
        Ok::<_, ()>(((), None))
    };
    slots[0].change(false, close).unwrap();
}

/// An fd moves by `dup2` and a close, while another thread holds all fds, as `table::hold` does, in passes over the
/// slots. The first pass looks at the new place first. If `closes_in_pass`, the second thread also closes the old place,
/// before that pass comes there. (Not a third thread: loom does not come to an end with two that wait for it.)
fn moving_against_demoting(closes_in_pass: bool) {
    model(4, move || {
        let object = Object::with_references();
        let slots = [slot_of(&object), Arc::new(Slot::empty())];
        let is_open = Arc::new(AtomicBool::new(true));
        let moving = {
            let (slots, is_open) = (slots.clone(), Arc::clone(&is_open));
            thread::spawn(move || {
                copy_down(&slots, &is_open);
                if !closes_in_pass {
                    close_first(&slots, &is_open);
                }
            })
        };
        let mut held = [None; 2];
        let mut closes = closes_in_pass;
        let pass = || {
            let mut is_any = false;
            for at in [1, 0] {
                if at == 0 && mem::take(&mut closes) {
                    close_first(&slots, &is_open);
                }
                if held[at].is_none() && !slots[at].is_empty() {
                    held[at] = slots[at].hold(|_| true);
                    is_any |= held[at].is_some();
                }
            }
            Ok::<_, ()>(is_any)
        };
        counts::repeat_passes(pass).unwrap();
        for (slot, held) in slots.iter().zip(held) {
            held.into_iter().for_each(|held| slot.end_demotion(held));
        }
        moving.join().unwrap();
        assert!(object.is_closed());
        assert!(slots.iter().all(|slot| slot.is_empty()));
    });
}

#[test]
fn an_fd_that_moves_is_held_at_the_old_place_or_at_the_new_one() {
    moving_against_demoting(false);
}

broken_variants! { || moving_against_demoting(false) =>
    an_fd_that_moves_is_missed_by_passes_that_do_not_look_for_copies: must_fail_without CheckForCopies;
}

#[test]
fn the_copy_of_an_fd_that_is_closed_meanwhile_is_held() {
    moving_against_demoting(true);
}

broken_variants! { || moving_against_demoting(true) =>
    the_copy_of_an_fd_that_is_closed_is_missed_by_passes_that_do_not_look_for_copies: must_fail_without CheckForCopies;
}

/// An fd is copied in each pass over the slots, as soon as that may be.
fn copying_in_each_pass() {
    model(3, || {
        let object = Object::with_references();
        let slots = [slot_of(&object), Arc::new(Slot::empty())];
        let mut passes = 0;
        let pass = || {
            passes += 1;
            assert!(passes < 4, "a pass without a copy is the last");
            slots[0].kept(|_| ());
            Ok::<_, ()>(false)
        };
        counts::repeat_passes(pass).unwrap();
        // After the passes it may be copied again.
        assert!(copy_down(&slots, &AtomicBool::new(true)));
        slots.iter().for_each(|slot| close(slot));
        assert!(object.is_closed());
    });
}

#[test]
fn passes_end_although_an_fd_is_copied_all_the_time() {
    copying_in_each_pass();
}

broken_variants! { copying_in_each_pass =>
    passes_that_do_not_keep_copies_from_beginning_do_not_end: must_fail_without PassWithoutCopies;
}

/// An fd is copied while another thread closes it, and a third one looks whether any fd is user-level.
fn copying_and_closing_against_looking() {
    model(5, || {
        let object = Object::with_references();
        let slots = [slot_of(&object), Arc::new(Slot::empty())];
        counts::while_adding(|| ());
        let is_open = Arc::new(AtomicBool::new(true));
        let copying = {
            let (slots, is_open) = (slots.clone(), Arc::clone(&is_open));
            thread::spawn(move || copy_down(&slots, &is_open))
        };
        let closing = {
            let (slots, is_open) = (slots.clone(), Arc::clone(&is_open));
            thread::spawn(move || close_first(&slots, &is_open))
        };
        // The copy's place is looked at first.
        let is_any = || !slots[1].is_empty() || !slots[0].is_empty();
        let is_none_left = counts::is_none_left(is_any);
        let is_copied = copying.join().unwrap();
        closing.join().unwrap();
        assert_eq!(object.is_closed(), !is_copied);
        assert!(!is_copied || counts::has_any() && !is_none_left);
    });
}

#[test]
fn a_copy_of_an_fd_that_is_closed_is_seen_or_counted() {
    copying_and_closing_against_looking();
}

broken_variants! { copying_and_closing_against_looking =>
    a_copy_of_an_fd_that_is_closed_is_missed_by_a_look_that_does_not_look_for_copies: must_fail_without CheckForCopies;
}
