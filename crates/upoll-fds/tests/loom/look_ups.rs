//! Look-ups of fds while the fds are closed or replaced.

use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread::{self, JoinHandle};

use crate::harness::{holds_without, model};
use crate::object::Object;
use crate::slot::{Entry, Slot, hazard};
use crate::sync::Rule;

pub(super) fn slot_of(object: &Object) -> Arc<Slot> {
    let slot = Slot::empty();
    slot.install(Entry::new(object.clone()).unwrap());
    Arc::new(slot)
}

/// A call on a thread of its own; whether there was something to use.
fn use_from_a_thread(slot: &Arc<Slot>) -> JoinHandle<bool> {
    let slot = Arc::clone(slot);
    thread::spawn(move || slot.with(Object::be_used).is_some())
}

/// The same, of several fds at once.
pub(super) fn use_several_from_a_thread(slots: &[Arc<Slot>; 2]) -> JoinHandle<()> {
    let slots = slots.clone();
    thread::spawn(move || {
        let several = hazard::Several::new();
        let entries = slots.each_ref().map(|slot| several.add(slot));
        for entry in entries.into_iter().flatten() {
            entry.object.be_used();
        }
    })
}

/// The same, of two in one record.
pub(super) fn use_two_from_a_thread(slots: &[Arc<Slot>; 2]) -> JoinHandle<()> {
    let slots = slots.clone();
    thread::spawn(move || {
        while let Some(hazard) = hazard::Hazard::begin(&slots[0]) {
            let Ok(another) = hazard.add(&slots[1]) else {
                drop(hazard);
                slots[1].outlast_change();
                continue;
            };
            hazard.entry().object.be_used();
            if let Some(another) = another {
                another.object.be_used();
            }
            break;
        }
    })
}

/// The fd comes to lead to a new object.
pub(super) fn replace(slot: &Slot) {
    slot.install(Entry::new(Object::new()).unwrap());
}

pub(super) fn close(slot: &Slot) {
    slot.change(false, || Ok::<_, ()>(((), None))).unwrap();
}

/// A change that the kernel refuses.
pub(super) fn fail_to_change(slot: &Slot) {
    slot.change(true, || Err::<((), _), _>(())).unwrap_err();
}

/// A look-up against the close of the fd: the open file goes once, after the last use, and not
/// later than that.
fn using_against_closing() {
    model(4, || {
        let object = Object::new();
        let slot = slot_of(&object);
        let using = use_from_a_thread(&slot);
        close(&slot);
        using.join().unwrap();
        assert!(object.is_closed());
    });
}

#[test]
fn an_open_file_goes_after_the_last_call_that_uses_it() {
    using_against_closing();
}

broken_variants! { using_against_closing =>
    a_look_up_whose_record_is_not_seen_uses_what_is_gone: must_fail_without BarrierBeforeReading;
    a_look_up_that_does_not_look_again_uses_what_is_gone: must_fail_without Recheck;
    a_close_that_waits_for_nobody_takes_the_open_file_away: must_fail_without WaitUntilUnused;
    a_call_that_does_not_let_go_when_asked_leaves_the_file_open: must_fail_without LetGoWhenAsked;
    a_close_that_does_not_look_again_after_asking_leaves_the_file_open: must_fail_without RecheckAfterAsking;
}

/// Two calls use an entry that another object replaces: the last call releases it. The calls take one
/// step: loom does not come to an end with two threads that wait for a third one.
fn two_using_against_closing() {
    model(3, || {
        let object = Object::new();
        let slot = slot_of(&object);
        let using = [(); 2].map(|()| use_from_a_thread(&slot));
        replace(&slot);
        for using in using {
            using.join().unwrap();
        }
        assert!(object.is_closed());
    });
}

#[test]
fn an_open_file_that_two_calls_use_goes_with_the_last() {
    two_using_against_closing();
}

broken_variants! { two_using_against_closing =>
    two_calls_of_which_none_lets_go_leave_the_file_open: must_fail_without LetGoWhenAsked;
}

/// An fd is copied and looked up while what it stands for gives way to another object.
fn copying_against_closing() {
    model(3, || {
        let object = Object::new();
        let slot = slot_of(&object);
        let copying = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                slot.kept(|object| {
                    // As a handler does that interrupts it.
                    slot.with(Object::be_used);
                    if let Some(object) = object {
                        object.be_used();
                    }
                });
            })
        };
        replace(&slot);
        copying.join().unwrap();
        assert!(object.is_closed());
    });
}

#[test]
fn an_fd_that_is_copied_is_closed_before_or_after() {
    copying_against_closing();
}

/// Two fds give way to others while a thread uses their objects.
fn closing_two_against(use_both: fn(&[Arc<Slot>; 2]) -> JoinHandle<()>) {
    model(3, move || {
        let objects = [Object::new(), Object::new()];
        let slots = objects.each_ref().map(slot_of);
        let using = use_both(&slots);
        slots.iter().for_each(|slot| replace(slot));
        using.join().unwrap();
        assert!(objects.iter().all(Object::is_closed));
    });
}

/// A call uses two objects at once: each goes once the call is over.
fn using_several_against_closing() {
    closing_two_against(use_several_from_a_thread);
}

#[test]
fn an_object_that_a_call_uses_with_others_goes_when_the_call_is_over() {
    using_several_against_closing();
}

broken_variants! { using_several_against_closing =>
    several_that_are_not_looked_at_again_are_used_when_gone: must_fail_without Recheck;
    several_that_are_not_waited_for_are_taken_away: must_fail_without WaitUntilUnused;
    a_call_on_several_that_does_not_let_go_leaves_one_open: must_fail_without LetGoWhenAsked;
}

/// A call uses a second object besides the first one.
fn using_two_against_closing() {
    closing_two_against(use_two_from_a_thread);
}

#[test]
fn a_second_object_goes_when_the_call_is_over() {
    using_two_against_closing();
}

/// Each look-up runs a fence instead if the kernel refuses barriers.
#[test]
fn look_ups_with_fences_instead_of_barriers_use_nothing_that_is_gone() {
    for model in [using_against_closing, using_two_against_closing] {
        holds_without(Rule::KernelHasBarriers, model);
    }
}

broken_variants! { using_two_against_closing =>
    a_second_object_whose_record_is_not_seen_is_used_when_gone: must_fail_without BarrierBeforeReading;
    a_second_object_that_is_not_looked_at_again_is_used_when_gone: must_fail_without Recheck;
    a_call_on_two_that_does_not_let_go_leaves_one_open: must_fail_without LetGoWhenAsked;
}

/// A look-up against an fd that is replaced, after an attempt that the kernel refuses: it finds
/// the one or the other.
fn using_against_replacing() {
    model(3, || {
        let (old, new) = (Object::new(), Object::new());
        let slot = slot_of(&old);
        let using = use_from_a_thread(&slot);
        fail_to_change(&slot);
        slot.change(true, || {
            Ok::<_, ()>(((), Some(Entry::new(new.clone()).unwrap())))
        })
        .unwrap();
        assert!(using.join().unwrap());
        assert!(old.is_closed() && !new.is_closed());
    });
}

#[test]
fn an_fd_that_is_replaced_leads_to_the_one_or_the_other() {
    using_against_replacing();
}

broken_variants! { using_against_replacing =>
    a_look_up_that_does_not_wait_for_a_change_finds_nothing: must_fail_without WaitWhileChanging;
}

/// Two threads begin, with one record free that an ended thread has left, while the fd
/// comes to lead to another object.
fn taking_records_against_closing() {
    model(2, || {
        let object = Object::new();
        let slot = slot_of(&object);
        assert!(use_from_a_thread(&slot).join().unwrap());
        let using = [(); 2].map(|()| use_from_a_thread(&slot));
        replace(&slot);
        for using in using {
            using.join().unwrap();
        }
        assert!(object.is_closed());
    });
}

#[test]
fn a_record_that_changes_hands_is_one_threads_at_a_time() {
    taking_records_against_closing();
}

broken_variants! { taking_records_against_closing =>
    a_record_that_two_threads_take_hides_that_one_of_them_uses_the_file: must_fail_without TakeInOneStep;
}

/// The kernel opens an fd again while its close is about to end, and the new object is changed.
fn closing_against_the_next_change() {
    model(3, || {
        let (old, new) = (Object::new(), Object::new());
        let slot = slot_of(&old);
        let is_free = Arc::new(AtomicBool::new(false));
        let opening = {
            let (slot, is_free, new) = (Arc::clone(&slot), Arc::clone(&is_free), new.clone());
            thread::spawn(move || {
                if is_free.load(Ordering::Acquire) {
                    slot.install(Entry::new(new).unwrap());
                    fail_to_change(&slot);
                    assert!(slot.with(Object::be_used).is_some());
                }
            })
        };
        slot.change(false, || {
            is_free.store(true, Ordering::Release);
            Ok::<_, ()>(((), None))
        })
        .unwrap();
        opening.join().unwrap();
        assert!(old.is_closed() && !new.is_closed());
    });
}

#[test]
fn a_close_does_not_end_the_change_of_the_fds_next_object() {
    closing_against_the_next_change();
}

broken_variants! { closing_against_the_next_change =>
    changes_that_are_not_told_apart_end_each_other: must_fail_without OwnTag;
}
