//! A model of an open file.

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
