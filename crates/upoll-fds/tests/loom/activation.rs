//! A set that becomes active while threads wait in its kernel set, and add members there.

use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;

use crate::harness::model;
use crate::hazard_records::{BlockedOn, wait_until_none_blocked_on};
use crate::look_ups::slot_of;
use crate::object::Object;
use crate::passivity::Passivity;

/// A set, and what the kernel set behind it has.
struct Set {
    passivity: Passivity,
    is_interrupted: Mutex<bool>,
    interrupts: Condvar,
    has_member: AtomicBool,
    is_adopted: AtomicBool,
}

impl Set {
    fn new() -> Arc<Self> {
        Arc::new(Set {
            passivity: Passivity::passive(),
            is_interrupted: Mutex::new(false),
            interrupts: Condvar::new(),
            has_member: AtomicBool::new(false),
            is_adopted: AtomicBool::new(false),
        })
    }

    fn blocked_on(&self) -> BlockedOn {
        BlockedOn::of(self)
    }

    /// Waits in the kernel set, if that serves the set, until it is interrupted.
    fn wait(&self) {
        let slot = slot_of(&Object::new());
        let blocked_on = |_: &Object| self.passivity.stays_passive().then(|| self.blocked_on());
        slot.while_blocked_on(blocked_on, || {
            let mut is_interrupted = self.is_interrupted.lock().unwrap();
            while !*is_interrupted {
                is_interrupted = self.interrupts.wait(is_interrupted).unwrap();
            }
        });
    }

    /// Makes the set active. An interruption is prepared, if `has_fds`.
    fn activate(&self, has_fds: bool) -> Result<(), ()> {
        let interrupts = self.passivity.activate(|| {
            let is_awaited = !wait_until_none_blocked_on(self.blocked_on(), false);
            if is_awaited && !has_fds {
                return Err(());
            }
            if self.passivity.members() > 0 {
                self.is_adopted.store(true, Ordering::Relaxed);
            }
            Ok(is_awaited)
        })?;
        if interrupts == Some(true) {
            *self.is_interrupted.lock().unwrap() = true;
            self.interrupts.notify_all();
        }
        Ok(())
    }

    fn add(&self) {
        self.passivity.add(|| {
            self.has_member.store(true, Ordering::Relaxed);
            Ok::<(), ()>(())
        });
    }
}

/// A thread begins to wait in the kernel set while the set becomes active: it is interrupted, or does not wait there.
fn waiting_against_activating() {
    model(4, || {
        let set = Set::new();
        let waiter = {
            let set = set.clone();
            thread::spawn(move || set.wait())
        };
        set.activate(true).unwrap();
        waiter.join().unwrap();
    });
}

#[test]
fn no_thread_waits_in_the_kernel_set_of_an_active_set() {
    waiting_against_activating();
}

broken_variants! { waiting_against_activating =>
    a_wait_that_begins_during_an_uncounted_activation_is_not_interrupted: must_fail_without CountActivations;
}

/// An activation without fds beside another one: it either has nobody to interrupt, or changes nothing.
#[test]
fn an_activation_without_fds_changes_nothing_while_a_thread_waits() {
    model(3, || {
        let set = Set::new();
        let [waiter, activates] = [true, false].map(|waits| {
            let set = set.clone();
            thread::spawn(move || match waits {
                true => set.wait(),
                false => drop(set.activate(false)),
            })
        });
        activates.join().unwrap();
        set.activate(true).unwrap();
        waiter.join().unwrap();
        assert!(!set.passivity.is_passive());
    });
}

/// A member is added to the kernel set while the set becomes active: it is adopted.
fn adding_against_activating() {
    model(4, || {
        let set = Set::new();
        let adds = {
            let set = set.clone();
            thread::spawn(move || set.add())
        };
        set.activate(true).unwrap();
        adds.join().unwrap();
        let is_adopted = set.is_adopted.load(Ordering::Relaxed);
        assert!(is_adopted || !set.has_member.load(Ordering::Relaxed));
    });
}

#[test]
fn an_active_set_has_adopted_all_members() {
    adding_against_activating();
}

broken_variants! { adding_against_activating =>
    a_member_that_comes_during_an_uncounted_activation_is_not_adopted: must_fail_without CountActivations;
}
