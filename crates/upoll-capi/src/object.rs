//! Objects of an embedder's own in C: `poll` and `release` are its callbacks, the wait queue is ours.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use upoll::{Errno, Events, File, PollTable, Pollable, WaitQueue};

use crate::give;

/// `struct upoll_object_ops`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ObjectOps {
    /// The size of this structure, for those to come.
    pub size: usize,
    /// What is ready now.
    pub poll: Option<unsafe extern "C" fn(context: *mut c_void) -> u32>,
    /// The last reference is gone; may be null.
    pub release: Option<unsafe extern "C" fn(context: *mut c_void)>,
}

struct Object {
    poll: unsafe extern "C" fn(context: *mut c_void) -> u32,
    release: Option<unsafe extern "C" fn(context: *mut c_void)>,
    context: *mut c_void,
    /// It has a number, or had: from then on its end is told.
    is_created: AtomicBool,
    queue: WaitQueue,
}

// SAFETY: the header says that the callbacks come from any thread, several at once.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl Pollable for Object {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        // SAFETY: the header's contract: the context is the callback's until `release`.
        Events::from_bits_retain(unsafe { (self.poll)(self.context) })
    }
}

/// The object's end: no thread looks at it any more. (`Pollable::release` may come before that.)
impl Drop for Object {
    fn drop(&mut self) {
        if let Some(release) = self.release.filter(|_| *self.is_created.get_mut()) {
            // SAFETY: as above; this is the last call.
            unsafe { release(self.context) };
        }
    }
}

/// Makes an object of the caller's own pollable, and gives it a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upoll_object_create(
    ops: *const ObjectOps,
    context: *mut c_void,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's contract: null or a live structure.
    give(match unsafe { ops.as_ref() } {
        None => Err(Errno::FAULT),
        Some(ops) => create(ops, context, flags),
    })
}

fn create(ops: &ObjectOps, context: *mut c_void, flags: c_int) -> Result<c_int, Errno> {
    let is_known = ops.size == size_of::<ObjectOps>() && flags & !libc::O_CLOEXEC == 0;
    let Some(poll) = ops.poll.filter(|_| is_known) else {
        return Err(Errno::INVAL);
    };
    let file = File::try_new(Object {
        poll,
        release: ops.release,
        context,
        is_created: AtomicBool::new(false),
        queue: WaitQueue::new(),
    })?;
    let fd = upoll_fds::open(&file, flags != 0)?;
    file.is_created.store(true, Ordering::Relaxed);
    Ok(fd)
}

/// Tells whoever waits for the object that something has become ready.
#[unsafe(no_mangle)]
pub extern "C" fn upoll_object_wake(fd: c_int, events: u32) -> c_int {
    let key = Events::from_bits_retain(events);
    give(upoll_fds::with_own(fd, |object: &Object| {
        object.queue.wake(key);
    }))
}
