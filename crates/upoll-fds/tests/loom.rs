//! Models of how numbers are looked up while they change, and of changes while the process forks, checked
//! by loom over all interleavings up to a bound on preemptions. Each has a deliberate break: with one rule
//! switched off, loom must find the fault.
//!
//! The modules are the library's own; what they look up and change is a model.
#![cfg(upoll_loom)]

#[path = "../src/change.rs"]
mod change;
#[path = "../src/counts.rs"]
mod counts;
#[path = "../../upoll/tests/loom/harness.rs"]
mod harness;
#[path = "../src/hazard.rs"]
#[expect(dead_code, reason = "only the library demotes")]
mod hazard;
#[path = "../src/plain_sets.rs"]
mod plain_sets;
#[path = "../../upoll/src/sync/sequenced.rs"]
mod sequenced;
#[path = "../src/slot/mod.rs"]
#[expect(dead_code, reason = "only the library has calls that block")]
mod slot;
#[path = "../src/sync.rs"]
mod sync;

use std::cell::Cell;
use std::mem;
use std::slice;
use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread::{self, JoinHandle};
use upoll::Errno;

use crate::change::{Change, begin_fork, end_fork, end_fork_in_the_child};
use crate::harness::{holds_without, model, must_fail_without, must_hang_without};
use crate::number::Number;
use crate::object::Object;
use crate::plain_sets::{Generations, Record};
use crate::slot::{Entry, Slot, in_use};
use crate::sync::{Rule, break_rule, handle_signal, signal_point};

/// Models have no signals.
mod signals {
    pub(crate) struct HeldBack;

    impl HeldBack {
        pub(crate) fn begin() -> Self {
            HeldBack
        }
    }

    impl Drop for HeldBack {
        fn drop(&mut self) {}
    }

    pub(crate) struct Section;

    impl Section {
        pub(crate) fn begin() -> Self {
            Section
        }
    }

    impl Drop for Section {
        fn drop(&mut self) {}
    }
}

mod object {
    use std::sync::Arc;

    use loom::cell::UnsafeCell;
    use loom::sync::atomic::{AtomicUsize, Ordering};

    /// An open file, which must not be used and closed at the same time, nor used after that.
    pub(crate) struct Object {
        is_closed: Arc<UnsafeCell<bool>>,
        /// The number of references, in models that copy them. One is the model's own.
        references: Option<Arc<AtomicUsize>>,
    }

    impl Clone for Object {
        fn clone(&self) -> Self {
            if let Some(references) = &self.references {
                references.fetch_add(1, Ordering::Relaxed);
            }
            Object {
                is_closed: Arc::clone(&self.is_closed),
                references: self.references.clone(),
            }
        }
    }

    impl Drop for Object {
        fn drop(&mut self) {
            // After a fault the model ends at once.
            if self.references.is_some() && !std::thread::panicking() {
                self.close();
            }
        }
    }

    impl Object {
        #[expect(clippy::arc_with_non_send_sync, reason = "the model is to find out")]
        pub(crate) fn new() -> Self {
            Object {
                is_closed: Arc::new(UnsafeCell::new(false)),
                references: None,
            }
        }

        /// An open file that closes with its last reference but one.
        pub(crate) fn with_references() -> Self {
            let mut object = Object::new();
            object.references = Some(Arc::new(AtomicUsize::new(1)));
            object
        }

        pub(crate) fn is(&self, other: &Self) -> bool {
            Arc::ptr_eq(&self.is_closed, &other.is_closed)
        }

        /// Returns the number of references. The caller sees what was done by former ones.
        pub(crate) fn references(&self) -> usize {
            let references = self.references.as_ref();
            references.map_or(0, |references| references.load(Ordering::Acquire))
        }

        pub(crate) fn is_closed(&self) -> bool {
            // SAFETY: loom finds it out if somebody writes it meanwhile.
            self.is_closed.with(|is_closed| unsafe { *is_closed })
        }

        pub(crate) fn be_used(&self) {
            assert!(!self.is_closed());
        }

        /// Its state is taken out: nobody else uses it.
        pub(crate) fn be_poured(&self) {
            // SAFETY: as below.
            self.is_closed
                .with_mut(|is_closed| assert!(!unsafe { *is_closed }));
        }

        /// A reference has gone, which is the last one if they are not counted: nobody else uses it.
        pub(crate) fn close(&self) {
            if let Some(references) = &self.references
                && references.fetch_sub(1, Ordering::AcqRel) != 2
            {
                return;
            }
            self.is_closed.with_mut(|is_closed| {
                // SAFETY: loom finds it out if somebody reads or writes it meanwhile.
                let is_closed = unsafe { &mut *is_closed };
                assert!(!*is_closed, "closed twice");
                *is_closed = true;
            });
        }
    }
}

mod number {
    use std::sync::Arc;

    use loom::cell::UnsafeCell;

    /// The meaning of an fd in the kernel and here. A fork must not meet a change of it half made.
    #[derive(Clone)]
    pub(crate) struct Number(Arc<[UnsafeCell<usize>; 2]>);

    impl Number {
        #[expect(clippy::arc_with_non_send_sync, reason = "the model is to find out")]
        pub(crate) fn new() -> Self {
            Number(Arc::new([(); 2].map(|()| UnsafeCell::new(0))))
        }

        /// `meanwhile` happens when it means one thing in the kernel and another here.
        pub(crate) fn change(&self, meanwhile: impl FnOnce()) {
            let [kernel, here] = &*self.0;
            // SAFETY: loom finds it out if somebody else reads or writes it meanwhile.
            kernel.with_mut(|meaning| unsafe { *meaning += 1 });
            meanwhile();
            // SAFETY: as above.
            here.with_mut(|meaning| unsafe { *meaning += 1 });
        }

        /// How often it was changed.
        pub(crate) fn changes(&self) -> usize {
            // SAFETY: loom finds it out if somebody writes it meanwhile.
            let [kernel, here] =
                [0, 1].map(|side| self.0[side].with(|meaning| unsafe { *meaning }));
            assert_eq!(kernel, here, "a change is half made");
            here
        }
    }
}

fn slot_of(object: &Object) -> Arc<Slot> {
    let slot = Slot::empty();
    slot.install(Entry::new(object.clone()).unwrap());
    Arc::new(slot)
}

/// A call on a thread of its own; whether there was something to use.
fn use_from_a_thread(slot: &Arc<Slot>) -> JoinHandle<bool> {
    let slot = Arc::clone(slot);
    thread::spawn(move || slot.with(Object::be_used).is_some())
}

/// The same, of several numbers at once.
fn use_several_from_a_thread(slots: &[Arc<Slot>; 2]) -> JoinHandle<()> {
    let slots = slots.clone();
    thread::spawn(move || {
        let several = in_use::Several::new();
        let entries = slots.each_ref().map(|slot| several.add(slot));
        for entry in entries.into_iter().flatten() {
            entry.object.be_used();
        }
    })
}

/// The same, of two in one record.
fn use_two_from_a_thread(slots: &[Arc<Slot>; 2]) -> JoinHandle<()> {
    let slots = slots.clone();
    thread::spawn(move || {
        while let Some(in_use) = in_use::InUse::begin(&slots[0]) {
            let Ok(another) = in_use.add(&slots[1]) else {
                drop(in_use);
                slots[1].outlast_change();
                continue;
            };
            in_use.entry().object.be_used();
            if let Some(another) = another {
                another.object.be_used();
            }
            break;
        }
    })
}

fn close(slot: &Slot) {
    slot.change(false, || Ok::<_, ()>(((), None))).unwrap();
}

/// A change that the kernel refuses.
fn fail_to_change(slot: &Slot) {
    slot.change(true, || Err::<((), _), _>(())).unwrap_err();
}

/// A look-up against the close of the number: the open file goes once, after the last use, and not
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

#[test]
fn a_look_up_whose_record_is_not_seen_uses_what_is_gone() {
    must_fail_without(Rule::BarrierBeforeReading, using_against_closing);
}

#[test]
fn a_look_up_that_does_not_look_again_uses_what_is_gone() {
    must_fail_without(Rule::LookAgain, using_against_closing);
}

#[test]
fn a_close_that_waits_for_nobody_takes_the_open_file_away() {
    must_fail_without(Rule::WaitUntilUnused, using_against_closing);
}

#[test]
fn a_call_that_does_not_let_go_when_asked_leaves_the_file_open() {
    must_fail_without(Rule::LetGoWhenAsked, using_against_closing);
}

#[test]
fn a_close_that_does_not_look_again_after_asking_leaves_the_file_open() {
    must_fail_without(Rule::LookAgainAfterAsking, using_against_closing);
}

/// Two calls use an entry that another object replaces: the last call releases it. The calls take one
/// step: loom does not come to an end with two threads that wait for a third one.
fn two_using_against_closing() {
    model(3, || {
        let object = Object::new();
        let slot = slot_of(&object);
        let using = [(); 2].map(|()| use_from_a_thread(&slot));
        slot.install(Entry::new(Object::new()).unwrap());
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

#[test]
fn two_calls_of_which_none_lets_go_leave_the_file_open() {
    must_fail_without(Rule::LetGoWhenAsked, two_using_against_closing);
}

/// A number is copied and looked up while what it stands for gives way to another object.
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
        slot.install(Entry::new(Object::new()).unwrap());
        copying.join().unwrap();
        assert!(object.is_closed());
    });
}

#[test]
fn a_number_that_is_copied_is_closed_before_or_after() {
    copying_against_closing();
}

/// A call uses two objects at once while their numbers give way to others: each goes once the call is
/// over.
fn using_several_against_closing() {
    model(3, || {
        let objects = [Object::new(), Object::new()];
        let slots = objects.each_ref().map(slot_of);
        let using = use_several_from_a_thread(&slots);
        for slot in &slots {
            slot.install(Entry::new(Object::new()).unwrap());
        }
        using.join().unwrap();
        assert!(objects.iter().all(Object::is_closed));
    });
}

#[test]
fn what_a_call_uses_with_others_goes_when_the_call_is_over() {
    using_several_against_closing();
}

#[test]
fn several_that_are_not_looked_at_again_are_used_when_gone() {
    must_fail_without(Rule::LookAgain, using_several_against_closing);
}

#[test]
fn several_that_are_not_waited_for_are_taken_away() {
    must_fail_without(Rule::WaitUntilUnused, using_several_against_closing);
}

#[test]
fn a_call_on_several_that_does_not_let_go_leaves_one_open() {
    must_fail_without(Rule::LetGoWhenAsked, using_several_against_closing);
}

/// A call uses one number and then a second one of an object that is being handed over: it does not
/// wait for that, as that may wait for the call.
fn using_several_against_handing_over() {
    model(3, || {
        let object = Object::new();
        let slots = [slot_of(&object), slot_of(&Object::new())];
        let using = use_several_from_a_thread(&slots);
        let [one, other] = slots.each_ref().map(|slot| slot.hold(|_| true).unwrap());
        assert!(hazard::wait_until_unused(one, usize::MAX));
        object.be_poured();
        slots[0].give_back(one);
        slots[1].give_back(other);
        using.join().unwrap();
        assert!(!object.is_closed());
    });
}

#[test]
fn a_call_on_several_waits_for_no_change() {
    using_several_against_handing_over();
}

#[test]
fn what_is_handed_over_while_it_is_used_with_others_is_used_by_two() {
    must_fail_without(Rule::WaitUntilUnused, using_several_against_handing_over);
}

/// A call uses a second object besides the first one while their numbers give way to others.
fn using_two_against_closing() {
    model(3, || {
        let objects = [Object::new(), Object::new()];
        let slots = objects.each_ref().map(slot_of);
        let using = use_two_from_a_thread(&slots);
        for slot in &slots {
            slot.install(Entry::new(Object::new()).unwrap());
        }
        using.join().unwrap();
        assert!(objects.iter().all(Object::is_closed));
    });
}

#[test]
fn a_second_object_goes_when_the_call_is_over() {
    using_two_against_closing();
}

/// Where the kernel refuses barriers each look-up runs a fence instead.
#[test]
fn look_ups_with_fences_instead_of_barriers_use_nothing_that_is_gone() {
    for model in [using_against_closing, using_two_against_closing] {
        holds_without(Rule::KernelHasBarriers, model);
    }
}

#[test]
fn a_second_object_whose_record_is_not_seen_is_used_when_gone() {
    must_fail_without(Rule::BarrierBeforeReading, using_two_against_closing);
}

#[test]
fn a_second_object_that_is_not_looked_at_again_is_used_when_gone() {
    must_fail_without(Rule::LookAgain, using_two_against_closing);
}

#[test]
fn a_call_on_two_that_does_not_let_go_leaves_one_open() {
    must_fail_without(Rule::LetGoWhenAsked, using_two_against_closing);
}

/// A call uses one number and then a second one of an object that is being handed over.
fn using_two_against_handing_over() {
    model(4, || {
        let object = Object::new();
        let slots = [slot_of(&object), slot_of(&object)];
        let using = use_two_from_a_thread(&slots);
        let held = slots.each_ref().map(|slot| slot.hold(|_| true).unwrap());
        for entry in held {
            assert!(hazard::wait_until_unused(entry, usize::MAX));
        }
        object.be_poured();
        for (slot, entry) in slots.iter().zip(held) {
            slot.give_back(entry);
        }
        using.join().unwrap();
        assert!(!object.is_closed());
    });
}

#[test]
fn a_call_on_two_waits_for_no_change_while_it_uses_one() {
    using_two_against_handing_over();
}

#[test]
fn what_is_handed_over_while_it_is_used_with_another_is_used_by_two() {
    must_fail_without(Rule::WaitUntilUnused, using_two_against_handing_over);
}

/// A look-up against a number that is replaced, after an attempt that the kernel refuses: it finds
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
fn a_number_that_is_replaced_leads_to_the_one_or_the_other() {
    using_against_replacing();
}

#[test]
fn a_look_up_that_does_not_wait_for_a_change_finds_nothing() {
    must_fail_without(Rule::WaitWhileChanging, using_against_replacing);
}

/// A look-up against an object that is handed over to the kernel: it has the object before, or finds
/// the kernel's number after.
fn using_against_handing_over() {
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
        assert!(hazard::wait_until_unused(held, usize::MAX));
        object.be_poured();
        has_kernel_it.store(true, Ordering::Relaxed);
        slot.give_up(held);
        using.join().unwrap();
        assert!(object.is_closed());
    });
}

#[test]
fn what_is_handed_over_is_used_before_or_found_to_be_the_kernels() {
    using_against_handing_over();
}

#[test]
fn a_look_up_that_does_not_wait_takes_what_is_being_handed_over_for_the_kernels() {
    must_fail_without(Rule::WaitWhileChanging, using_against_handing_over);
}

#[test]
fn what_is_handed_over_while_it_is_used_is_used_by_two() {
    must_fail_without(Rule::WaitUntilUnused, using_against_handing_over);
}

/// A call takes a reference to an object and goes on with that, while another thread hands the object over if nobody
/// else has one.
fn owning_against_handing_over() {
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
        assert!(hazard::wait_until_unused(held, usize::MAX));
        // The slot's and the model's own.
        if object.references() == 2 {
            object.be_poured();
        }
        slot.give_up(held);
        using.join().unwrap();
        assert!(object.is_closed());
    });
}

#[test]
fn an_object_without_other_owners_is_handed_over_alone() {
    owning_against_handing_over();
}

#[test]
fn owners_are_counted_too_early_if_calls_are_not_waited_for() {
    must_fail_without(Rule::WaitUntilUnused, owning_against_handing_over);
}

/// Hands over what the slots lead to, as far as it is `object`. Returns which slots were held.
fn hand_over(slots: &[Arc<Slot>; 2], object: &Object) -> [bool; 2] {
    let held = slots
        .each_ref()
        .map(|slot| slot.hold(|found| found.is(object)));
    for &entry in held.iter().flatten() {
        assert!(hazard::wait_until_unused(entry, usize::MAX));
    }
    if held.iter().any(Option::is_some) {
        object.be_poured();
    }
    for (slot, entry) in slots.iter().zip(held) {
        if let Some(entry) = entry {
            slot.give_up(entry);
        }
    }
    held.map(|entry| entry.is_some())
}

/// An object is handed over while its number is closed by another thread, or comes to stand for another object.
fn handing_over_against_changing(replaces: bool) {
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
        hand_over(&slots, &old);
        changing.join().unwrap();
        assert!(old.is_closed());
        assert_eq!(slots[0].with(Object::be_used).is_some(), replaces);
    });
}

#[test]
fn a_number_is_closed_before_or_after_what_it_stands_for_is_handed_over() {
    handing_over_against_changing(false);
}

#[test]
fn a_number_is_replaced_before_or_after_what_it_stands_for_is_handed_over() {
    handing_over_against_changing(true);
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
                assert!(hazard::wait_until_unused(held, usize::MAX));
                old.be_poured();
                match gives_back {
                    true => slot.give_back(held),
                    false => slot.give_up(held),
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
                    slot.give_up(held);
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

/// Empties the slots of objects to which nothing but one slot and the model refers. Runs `pour` before. Returns whether
/// there were any.
fn empty_unused(slots: &[Slot], pour: impl Fn()) -> bool {
    let is_any = Cell::new(false);
    let take = |_, object: &Object| {
        let is_alone = object.references() == 2;
        if is_alone {
            object.be_poured();
            pour();
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

#[test]
fn a_slot_that_is_emptied_is_taken_for_the_kernels_before_that_by_a_look_up_that_does_not_wait() {
    must_fail_without(Rule::WaitWhileChanging, using_against_emptying);
}

#[test]
fn a_slot_is_emptied_though_its_object_is_used_if_no_record_is_checked() {
    must_fail_without(Rule::WaitUntilUnused, using_against_emptying);
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

/// An object is handed over while its number is copied by `dup`.
#[test]
fn what_is_handed_over_while_it_is_copied_is_handed_over_with_the_copy() {
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
        assert!(hand_over(&slots, &object)[0]);
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
fn moving_against_handing_over(closes_in_pass: bool) {
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
            held.into_iter().for_each(|held| slot.give_up(held));
        }
        moving.join().unwrap();
        assert!(object.is_closed());
        assert!(slots.iter().all(|slot| slot.is_empty()));
    });
}

#[test]
fn an_fd_that_moves_is_held_at_the_old_place_or_at_the_new_one() {
    moving_against_handing_over(false);
}

#[test]
fn an_fd_that_moves_is_missed_by_passes_that_do_not_look_for_copies() {
    must_fail_without(Rule::LookForCopies, || moving_against_handing_over(false));
}

#[test]
fn the_copy_of_an_fd_that_is_closed_meanwhile_is_held() {
    moving_against_handing_over(true);
}

#[test]
fn the_copy_of_an_fd_that_is_closed_is_missed_by_passes_that_do_not_look_for_copies() {
    must_fail_without(Rule::LookForCopies, || moving_against_handing_over(true));
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

#[test]
fn passes_that_do_not_keep_copies_from_beginning_do_not_end() {
    must_fail_without(Rule::PassWithoutCopies, copying_in_each_pass);
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

#[test]
fn a_copy_of_an_fd_that_is_closed_is_missed_by_a_look_that_does_not_look_for_copies() {
    must_fail_without(Rule::LookForCopies, copying_and_closing_against_looking);
}

/// Two threads begin, with one record free that an ended thread has left, while what the
/// number stands for gives way to another object.
fn taking_records_against_closing() {
    model(2, || {
        let object = Object::new();
        let slot = slot_of(&object);
        assert!(use_from_a_thread(&slot).join().unwrap());
        let using = [(); 2].map(|()| use_from_a_thread(&slot));
        slot.install(Entry::new(Object::new()).unwrap());
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

#[test]
fn a_record_that_two_threads_take_hides_that_one_of_them_uses_the_file() {
    must_fail_without(Rule::TakeInOneStep, taking_records_against_closing);
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
fn a_close_does_not_end_the_change_of_the_numbers_next_object() {
    closing_against_the_next_change();
}

#[test]
fn changes_that_are_not_told_apart_end_each_other() {
    must_fail_without(Rule::OwnMark, closing_against_the_next_change);
}

/// The process forks: all of `numbers` are as a child may have them.
fn fork(numbers: &[Number]) {
    begin_fork();
    assert!(Change::try_begin().is_none(), "the child is to have it");
    for number in numbers {
        number.changes();
    }
    end_fork();
}

fn change(number: &Number) {
    let _change = Change::begin();
    number.change(|| ());
}

fn change_in_a_thread(number: &Number) -> JoinHandle<()> {
    let number = number.clone();
    thread::spawn(move || change(&number))
}

/// A thread changes a number twice while another one forks.
fn changing_against_forking() {
    model(4, || {
        let number = Number::new();
        let changing = {
            let number = number.clone();
            thread::spawn(move || {
                change(&number);
                change(&number);
            })
        };
        fork(slice::from_ref(&number));
        changing.join().unwrap();
        assert_eq!(number.changes(), 2);
    });
}

#[test]
fn a_fork_takes_place_before_or_after_a_change() {
    changing_against_forking();
}

#[test]
fn a_change_that_looks_before_it_is_counted_is_met_by_a_fork() {
    must_fail_without(Rule::CountThenLook, changing_against_forking);
}

#[test]
fn a_fork_that_looks_before_it_says_so_meets_a_change() {
    must_fail_without(Rule::SayThenLook, changing_against_forking);
}

#[test]
fn a_fork_that_waits_for_nobody_meets_a_change() {
    must_fail_without(Rule::WaitForChanges, changing_against_forking);
}

#[test]
fn a_fork_that_is_not_ordered_after_changes_sees_one_half_made() {
    must_fail_without(Rule::ChangeBeforeFork, changing_against_forking);
}

#[test]
fn a_change_that_is_not_ordered_after_forks_is_seen_by_one_before() {
    must_fail_without(Rule::ForkBeforeChange, changing_against_forking);
}

#[test]
fn a_refused_change_that_stays_counted_is_waited_for_for_ever() {
    must_hang_without(Rule::CountNoMoreWhenRefused, changing_against_forking);
}

/// Two threads make numbers while a third one forks and then makes changes: what comes during the fork is
/// the kernel's from the start.
fn making_two_against_forking() {
    model(3, || {
        let numbers = [Number::new(), Number::new()];
        let making = numbers.clone().map(|number| {
            thread::spawn(move || {
                let change = Change::try_begin();
                if change.is_some() {
                    number.change(|| ());
                }
                change.is_some()
            })
        });
        fork(&numbers);
        let own = Number::new();
        change(&own);
        assert_eq!(own.changes(), 1);
        for (making, number) in making.into_iter().zip(&numbers) {
            let is_made = making.join().unwrap();
            assert_eq!(number.changes(), usize::from(is_made));
        }
    });
}

#[test]
fn a_fork_waits_for_changes_of_two_threads() {
    making_two_against_forking();
}

#[test]
fn of_two_changes_one_that_looks_before_it_is_counted_is_met_by_a_fork() {
    must_fail_without(Rule::CountThenLook, making_two_against_forking);
}

#[test]
fn a_fork_that_is_not_ordered_after_two_changes_sees_one_half_made() {
    must_fail_without(Rule::ChangeBeforeFork, making_two_against_forking);
}

/// Two threads fork, of which one then changes a number. (Not a third thread: loom does not come to an end
/// with two that wait for it.)
fn changing_against_two_forks() {
    model(4, || {
        let number = Number::new();
        let forking = {
            let number = number.clone();
            thread::spawn(move || fork(&[number]))
        };
        fork(slice::from_ref(&number));
        change(&number);
        forking.join().unwrap();
        assert_eq!(number.changes(), 1);
    });
}

#[test]
fn a_change_waits_for_the_end_of_both_forks() {
    changing_against_two_forks();
}

#[test]
fn a_change_that_waits_for_one_of_two_forks_is_met_by_the_other() {
    must_fail_without(Rule::CountForks, changing_against_two_forks);
}

/// A thread makes a change in the midst of another one, while a second thread forks and makes one in
/// the midst of that, as signal handlers do.
fn changing_within_changes_and_forks() {
    model(4, || {
        let numbers = [Number::new(), Number::new(), Number::new()];
        let changing = {
            let [outer, inner, _] = numbers.clone();
            thread::spawn(move || {
                let _change = Change::begin();
                outer.change(|| change(&inner));
            })
        };
        begin_fork();
        change(&numbers[2]);
        for number in &numbers {
            number.changes();
        }
        end_fork();
        changing.join().unwrap();
        assert!(numbers.iter().all(|number| number.changes() == 1));
    });
}

#[test]
fn changes_within_changes_and_forks_wait_for_nobody() {
    changing_within_changes_and_forks();
}

#[test]
fn a_change_within_another_that_waits_for_a_fork_waits_for_ever() {
    must_hang_without(Rule::ChangeWithinAChange, changing_within_changes_and_forks);
}

#[test]
fn a_change_within_a_fork_that_waits_for_that_waits_for_ever() {
    must_hang_without(Rule::ChangeWithinAFork, changing_within_changes_and_forks);
}

/// A thread forks in the midst of a change, as a signal handler does, while another one makes a change.
fn forking_within_a_change() {
    model(4, || {
        let numbers = [Number::new(), Number::new()];
        let changing = change_in_a_thread(&numbers[0]);
        {
            let _change = Change::begin();
            numbers[1].change(|| fork(&numbers[..1]));
        }
        changing.join().unwrap();
        assert!(numbers.iter().all(|number| number.changes() == 1));
    });
}

#[test]
fn a_fork_within_a_change_waits_for_others_only() {
    forking_within_a_change();
}

#[test]
fn a_fork_that_waits_for_a_change_of_its_own_thread_waits_for_ever() {
    must_hang_without(Rule::ForkWithinAChange, forking_within_a_change);
}

#[test]
fn a_fork_within_a_change_that_waits_for_nobody_meets_the_other() {
    must_fail_without(Rule::WaitForChanges, forking_within_a_change);
}

/// A signal handler forks, or makes a change, at each point of a change and of a fork that it interrupts: it waits
/// for nothing that its own thread has to end. (One thread: no other is waited for.)
#[test]
fn a_handler_waits_for_nothing_that_it_has_interrupted() {
    /// More points than a change and a fork have.
    const POINTS: usize = 6;
    for points in 0..POINTS {
        for forks in [false, true] {
            model(0, move || {
                let [number, of_handler] = [Number::new(), Number::new()];
                let handled = of_handler.clone();
                handle_signal(points, move || match forks {
                    true => fork(&[handled]),
                    false => change(&handled),
                });
                change(&number);
                fork(slice::from_ref(&number));
                assert_eq!(number.changes(), 1);
                change(&of_handler);
                fork(slice::from_ref(&of_handler));
            });
        }
    }
}

/// A signal handler forks in the midst of a change, or of another fork. In the child the interrupted
/// code continues. (One thread: the child has no other.)
#[test]
fn changes_and_forks_go_on_in_the_child_of_a_fork_within_them() {
    model(0, || {
        let number = Number::new();
        {
            let _change = Change::begin();
            number.change(|| {
                begin_fork();
                end_fork_in_the_child();
            });
        }
        begin_fork();
        begin_fork();
        end_fork_in_the_child();
        // It is the thread's own fork that is under way.
        change(&number);
        end_fork();
        change(&number);
        fork(slice::from_ref(&number));
        assert_eq!(number.changes(), 3);
    });
}

/// A thread makes a plain set while another one forks: a set that the child has is of a generation that has
/// ended.
fn making_a_set_against_forking() {
    model(4, || {
        let generations = Arc::new(Generations::new());
        let is_made = Arc::new(AtomicBool::new(false));
        let making = {
            let (generations, is_made) = (generations.clone(), is_made.clone());
            thread::spawn(move || {
                let generation = generations.begin_to_make();
                is_made.store(true, Ordering::Release);
                generation
            })
        };
        begin_fork();
        generations.end_before_fork(OTHER);
        let is_inherited = is_made.load(Ordering::Acquire);
        end_fork();
        let generation = making.join().unwrap();
        assert!(!is_inherited || generation != generations.now());
    });
}

#[test]
fn a_set_that_a_child_has_is_of_a_past_generation() {
    making_a_set_against_forking();
}

#[test]
fn a_set_whose_maker_looks_first_is_met_by_a_fork() {
    must_fail_without(Rule::NoteThenLook, making_a_set_against_forking);
}

/// Two threads make sets while a generation ends.
fn making_sets_in_two_generations() {
    model(4, || {
        let generations = Arc::new(Generations::new());
        let making = {
            let generations = generations.clone();
            thread::spawn(move || generations.begin_to_make())
        };
        generations.end(OTHER);
        let generation = generations.begin_to_make();
        making.join().unwrap();
        assert!(generation == generations.now() && generations.may_have_sets());
        begin_fork();
        generations.end_before_fork(OTHER);
        assert!(generation != generations.now());
        end_fork();
    });
}

#[test]
fn a_set_of_the_newest_generation_is_known_before_a_fork() {
    making_sets_in_two_generations();
}

#[test]
fn a_set_is_forgotten_for_one_of_an_older_generation() {
    must_fail_without(Rule::NoteTheNewest, making_sets_in_two_generations);
}

/// The state of a plain set that the model's threads use: its fds, the table and the kernel set.
struct PlainSet {
    record: Record,
    /// The table has it.
    is_user_level: AtomicBool,
    /// Calls under way that use the kernel set, which no set that is user-level may be used as.
    in_kernel: AtomicUsize,
}

/// Threads are even numbers.
const ONE: usize = 2;
const OTHER: usize = 4;
const TAKER: usize = 6;

impl PlainSet {
    fn new() -> Arc<Self> {
        let record = Record::new();
        record.begin(0);
        Arc::new(PlainSet {
            record,
            is_user_level: AtomicBool::new(false),
            in_kernel: AtomicUsize::new(0),
        })
    }

    /// Returns whether a call that has looked at the record is for the kernel.
    fn is_kernels(&self) -> bool {
        !self.is_user_level.load(Ordering::Acquire)
    }

    /// A call that uses the kernel set.
    fn use_kernel_set(&self) {
        self.in_kernel.fetch_add(1, Ordering::SeqCst);
        assert!(
            self.is_kernels(),
            "a user-level set is used as the kernel's"
        );
        signal_point();
        self.in_kernel.fetch_sub(1, Ordering::SeqCst);
    }

    fn wait(&self, me: usize) {
        let begun = self.record.begin_wait_again(me);
        match begun.or_else(|| self.record.begin_wait(me)) {
            Some(before) => {
                self.use_kernel_set();
                self.record.end_wait(me, before);
            }
            None if self.is_kernels() => self.use_kernel_set(),
            None => {}
        }
    }

    /// Returns whether the set was taken over, and if so whether it may have members.
    fn take_over(&self, me: usize) -> Option<bool> {
        let has_members = self.record.take(me, || 0);
        match has_members {
            Some(_) => {
                assert_eq!(
                    self.in_kernel.load(Ordering::SeqCst),
                    0,
                    "a thread waits in it"
                );
                self.is_user_level.store(true, Ordering::Release);
                self.record.end_take();
            }
            None => self.record.forget(me),
        }
        has_members
    }
}

/// A thread waits in a set that another one takes over. Before that `earlier` has waited there.
fn waiting_after(earlier: Option<usize>) {
    model(4, move || {
        let set = PlainSet::new();
        if let Some(earlier) = earlier {
            set.wait(earlier);
        }
        let other = Arc::clone(&set);
        let waiting = thread::spawn(move || {
            other.wait(ONE);
            other.wait(ONE);
        });
        let taken = set.take_over(TAKER);
        assert!(
            taken.is_none() || earlier != Some(OTHER),
            "two threads wait in it"
        );
        waiting.join().unwrap();
    });
}

fn waiting_against_taking_over() {
    waiting_after(None);
}

#[test]
fn no_thread_waits_in_the_kernel_set_of_a_set_that_was_taken_over() {
    waiting_against_taking_over();
}

#[test]
fn a_wait_that_does_not_outlast_a_takeover_uses_the_kernel_set() {
    must_fail_without(Rule::OutlastTake, waiting_against_taking_over);
}

#[test]
fn a_thread_takes_over_the_set_that_it_has_waited_in() {
    waiting_after(Some(TAKER));
}

#[test]
fn a_set_that_two_threads_have_waited_in_is_not_taken_over() {
    waiting_after(Some(OTHER));
}

/// A signal handler takes a set over, after a wait of its own in the set, at each point of a wait that it
/// interrupts. (One thread: no other is waited for.)
#[test]
fn a_handler_takes_a_set_over_before_or_after_the_wait_that_it_interrupts() {
    /// More points than a wait has.
    const POINTS: usize = 6;
    for points in 0..POINTS {
        for waits in [false, true] {
            for waits_again in [false, true] {
                model(0, move || {
                    let set = PlainSet::new();
                    if waits_again {
                        set.wait(ONE);
                    }
                    let handled = Arc::clone(&set);
                    handle_signal(points, move || {
                        if waits {
                            handled.wait(ONE);
                        }
                        handled.take_over(ONE);
                    });
                    set.wait(ONE);
                    // The handler has run by now.
                    (0..POINTS).for_each(|_| signal_point());
                    set.wait(ONE);
                });
            }
        }
    }
}

/// A thread adds a kernel member to a set that another one takes over.
fn adding_against_taking_over() {
    model(4, || {
        let set = PlainSet::new();
        let adding = {
            let set = Arc::clone(&set);
            thread::spawn(move || {
                set.record.note_member(ONE);
                set.is_kernels()
            })
        };
        let has_members = set.take_over(TAKER);
        let is_in_kernel_set = adding.join().unwrap();
        if is_in_kernel_set && has_members.is_some() {
            assert_eq!(has_members, Some(true), "the kernel set is not adopted");
        }
    });
}

#[test]
fn a_kernel_set_that_gets_a_member_is_adopted() {
    adding_against_taking_over();
}

#[test]
fn a_member_that_does_not_outlast_a_takeover_is_lost() {
    must_fail_without(Rule::OutlastTake, adding_against_taking_over);
}

#[test]
fn a_takeover_that_looks_for_members_before_its_claim_loses_one() {
    must_fail_without(Rule::ClaimThenLook, adding_against_taking_over);
}

/// A thread polls a set, as the kernel's if no fd may be user-level, while another one takes the set over, and a
/// third one ends its generation.
fn polling_against_taking_over() {
    model(2, || {
        let set = PlainSet::new();
        let generations = Arc::new(Generations::new());
        let generation = generations.begin_to_make();
        let taking = {
            let (set, generations) = (Arc::clone(&set), Arc::clone(&generations));
            thread::spawn(move || {
                assert!(generations.become_taker(TAKER));
                // The set's generation has the number 1, and not that of `PlainSet::new`.
                let now = || generations.now() - generation;
                let is_taken = set.record.take(TAKER, now).is_some();
                if is_taken {
                    counts::while_adding(|| set.is_user_level.store(true, Ordering::Release));
                    set.record.end_take();
                }
                generations.end_takeover();
            })
        };
        let ending = {
            let generations = Arc::clone(&generations);
            thread::spawn(move || generations.end(OTHER))
        };
        let is_polled_there = !generations.may_name_any(|| ONE);
        taking.join().unwrap();
        ending.join().unwrap();
        assert!(
            !is_polled_there || set.is_kernels(),
            "a user-level set is polled as the kernel's"
        );
    });
}

#[test]
fn a_set_that_is_polled_as_the_kernels_stays_the_kernels() {
    polling_against_taking_over();
}

/// A thread copies the number of a set that another one takes over.
fn copying_against_taking_over() {
    model(4, || {
        let set = PlainSet::new();
        let copying = {
            let set = Arc::clone(&set);
            thread::spawn(move || {
                if set.record.begin_copy(ONE, || true) {
                    // The kernel makes the number, which only a takeover after this one finds.
                    set.use_kernel_set();
                    set.record.end_copy();
                } else if set.is_kernels() {
                    set.use_kernel_set();
                }
            })
        };
        set.take_over(TAKER);
        copying.join().unwrap();
    });
}

#[test]
fn a_set_whose_number_is_being_copied_is_not_taken_over() {
    copying_against_taking_over();
}

#[test]
fn a_copy_that_does_not_outlast_a_takeover_is_not_in_the_table() {
    must_fail_without(Rule::OutlastTake, copying_against_taking_over);
}

#[test]
fn a_takeover_that_looks_for_copies_before_its_claim_misses_one() {
    must_fail_without(Rule::ClaimThenLook, copying_against_taking_over);
}

/// A thread copies a number of a set that another one closes, and opens another file there: the copy may be of
/// that file, and is not taken for the set then. (The set has one more number.)
#[test]
fn a_set_is_the_kernels_if_a_number_is_copied_that_another_file_takes() {
    model(4, || {
        let set = PlainSet::new();
        let numbers = Arc::new((sync::AtomicBool::new(true), AtomicBool::new(true)));
        let copying = {
            let (set, numbers) = (Arc::clone(&set), Arc::clone(&numbers));
            thread::spawn(move || {
                let (is_recorded, is_open) = &*numbers;
                let is_number = || is_recorded.load(Ordering::SeqCst);
                set.record.begin_copy(ONE, is_number).then(|| {
                    let is_of_the_set = is_open.load(Ordering::Acquire);
                    set.record.end_copy();
                    is_of_the_set
                })
            })
        };
        let (is_recorded, is_open) = &*numbers;
        is_recorded.store(false, Ordering::SeqCst);
        set.record.lose_number(OTHER);
        is_open.store(false, Ordering::Release);
        if copying.join().unwrap() == Some(false) {
            assert!(
                set.take_over(TAKER).is_none(),
                "another file is taken for the set"
            );
        }
    });
}

/// A table of two fds, of which the first one is searched first.
type Table = Arc<[sync::AtomicUsize; 2]>;

fn new_table(first: usize, second: usize) -> Table {
    Arc::new([first, second].map(sync::AtomicUsize::new))
}

fn has(table: &Table) -> bool {
    table.iter().any(|fd| fd.load(Ordering::SeqCst) != 0)
}

/// Copies the second fd to the first one, and closes the second one.
fn move_down(table: &Table) {
    counts::while_adding(|| table[0].store(1, Ordering::SeqCst));
    assert!(counts::has_any(), "the thread's own fd is not there");
    table[1].store(0, Ordering::SeqCst);
}

/// A thread adds an fd while two others look whether there are any.
#[test]
fn an_fd_that_is_added_is_seen_or_counted() {
    model(2, || {
        let table = new_table(0, 0);
        let threads = [(); 2].map(|()| {
            let table = Arc::clone(&table);
            thread::spawn(move || counts::is_none_left(|| has(&table)))
        });
        counts::while_adding(|| table[0].store(1, Ordering::SeqCst));
        assert!(counts::has_any());
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(counts::has_any() && !counts::is_none_left(|| has(&table)));
    });
}

/// An fd is copied and closed while another thread looks whether there are any: one of the two is there.
#[test]
fn an_fd_that_is_copied_and_closed_leaves_one() {
    model(4, || {
        let table = new_table(0, 0);
        counts::while_adding(|| table[1].store(1, Ordering::SeqCst));
        let moving = {
            let table = Arc::clone(&table);
            thread::spawn(move || move_down(&table))
        };
        assert!(!counts::is_none_left(|| has(&table)));
        moving.join().unwrap();
        assert!(counts::has_any());
    });
}

/// The last fd is closed: nobody looks for one any more, and a signal handler looks for the next one as soon as
/// the table has it.
#[test]
fn without_an_fd_there_is_none_until_the_next_one() {
    model(1, || {
        let table = new_table(0, 0);
        assert!(!counts::has_any());
        counts::while_adding(|| table[0].store(1, Ordering::SeqCst));
        assert!(!counts::is_none_left(|| has(&table)) && counts::has_any());
        table[0].store(0, Ordering::SeqCst);
        assert!(counts::is_none_left(|| has(&table)) && !counts::has_any());
        counts::while_adding(|| {
            table[0].store(1, Ordering::SeqCst);
            assert!(counts::has_any());
        });
    });
}
