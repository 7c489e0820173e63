//! A model of what an fd means to the kernel and to the library.

use std::sync::Arc;

use loom::cell::UnsafeCell;

/// The meaning of an fd in the kernel and here. A fork must not meet a change of it half made.
#[derive(Clone)]
pub(crate) struct Fd(Arc<[UnsafeCell<usize>; 2]>);

impl Fd {
    #[expect(clippy::arc_with_non_send_sync, reason = "the model is to find out")]
    pub(crate) fn new() -> Self {
        Fd(Arc::new([(); 2].map(|()| UnsafeCell::new(0))))
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

    /// Returns the number of times that it was changed.
    pub(crate) fn changes(&self) -> usize {
        // SAFETY: loom finds it out if somebody writes it meanwhile.
        let [kernel, here] = [0, 1].map(|side| self.0[side].with(|meaning| unsafe { *meaning }));
        assert_eq!(kernel, here, "a change is half made");
        here
    }
}
