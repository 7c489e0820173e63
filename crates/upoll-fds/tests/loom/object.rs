//! A model of an open file.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use upoll::internal::SharedBox;

/// An open file, which must not be used and closed at the same time, nor used after that.
pub(crate) struct Object {
    is_closed: Arc<UnsafeCell<bool>>,
    /// The number of references, in models that copy them. One is the model's own.
    references: Option<Arc<AtomicUsize>>,
    /// This owner's part of a set, until it is closed: whether the set has members.
    set: Option<UnsafeCell<Option<SharedBox<AtomicBool>>>>,
}

impl Clone for Object {
    fn clone(&self) -> Self {
        if let Some(references) = &self.references {
            references.fetch_add(1, Ordering::Relaxed);
        }
        Object {
            is_closed: Arc::clone(&self.is_closed),
            references: self.references.clone(),
            set: self.set.as_ref().map(|set| {
                // SAFETY: loom finds it out if somebody closes it meanwhile.
                UnsafeCell::new(set.with(|set| unsafe { (*set).clone() }))
            }),
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // After a fault the model ends at once.
        if std::thread::panicking() {
            std::mem::forget(self.set.take());
        } else if self.references.is_some() {
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
            set: None,
        }
    }

    /// A set without members, which its owners count. It has no other end.
    pub(crate) fn new_set() -> Self {
        let mut object = Object::new();
        let set = SharedBox::new(AtomicBool::new(false)).unwrap();
        object.set = Some(UnsafeCell::new(Some(set)));
        object
    }

    pub(crate) fn is_set(&self) -> bool {
        self.set.is_some()
    }

    fn with_set<R>(&self, call: impl FnOnce(&SharedBox<AtomicBool>) -> R) -> Option<R> {
        // SAFETY: loom finds it out if somebody closes it meanwhile.
        let call = |set: *const Option<_>| unsafe { (*set).as_ref() }.map(call);
        self.set.as_ref()?.with(call)
    }

    pub(crate) fn owners(&self) -> Option<usize> {
        self.with_set(SharedBox::owners)
    }

    pub(crate) fn has_members(&self) -> bool {
        self.with_set(|set| set.load(Ordering::SeqCst)) == Some(true)
    }

    pub(crate) fn set_has_members(&self, has_members: bool) {
        self.with_set(|set| set.store(has_members, Ordering::SeqCst));
    }

    pub(crate) fn tie(&self) -> usize {
        Arc::as_ptr(&self.is_closed).addr()
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

    /// Returns the fd of references. The caller sees what was done by former ones.
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
    pub(crate) fn be_transferred(&self) {
        // SAFETY: as below.
        self.is_closed
            .with_mut(|is_closed| assert!(!unsafe { *is_closed }));
    }

    /// A reference has gone, which is the last one if they are not counted: nobody else uses it.
    pub(crate) fn close(&self) {
        if let Some(set) = &self.set {
            // SAFETY: loom finds it out if somebody uses it meanwhile.
            drop(set.with_mut(|set| unsafe { (*set).take() }));
            return;
        }
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
