//! Objects of an embedder in C. `poll` and `release` are callbacks of the embedder; the wait queue
//! belongs to this library.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use upoll::{Errno, Events, File, PollTable, Pollable, WaitQueue};

use crate::give;

/// `struct upoll_object_ops`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ObjectOps {
    /// The size of this structure, which tells later versions apart.
    pub size: usize,
    /// Returns the events that are ready.
    pub poll: Option<unsafe extern "C" fn(context: *mut c_void) -> u32>,
    /// Called after the last use of the object; may be null.
    pub release: Option<unsafe extern "C" fn(context: *mut c_void)>,
}

struct Object {
    poll: unsafe extern "C" fn(context: *mut c_void) -> u32,
    release: Option<unsafe extern "C" fn(context: *mut c_void)>,
    context: *mut c_void,
    /// Set once the object has an fd. From then on `release` is called at its end.
    is_created: AtomicBool,
    queue: WaitQueue,
}

// SAFETY: the header requires callbacks that any thread may call, several at once.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl Pollable for Object {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        // SAFETY: the header requires a context that the callback may use until `release`.
        Events::from_bits_retain(unsafe { (self.poll)(self.context) })
    }
}

/// Calls `release` when no thread uses the object any more. `Pollable::release` may run before
/// that.
impl Drop for Object {
    fn drop(&mut self) {
        if let Some(release) = self.release.filter(|_| *self.is_created.get_mut()) {
            // SAFETY: the header requires a context that `release` may use; this is the last call.
            unsafe { release(self.context) };
        }
    }
}

/// Creates an object of the embedder. Returns its fd.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upoll_object_create(
    ops: *const ObjectOps,
    context: *mut c_void,
    flags: c_int,
) -> c_int {
    // SAFETY: the header requires null or a live structure.
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

/// Wakes the waiters of the object that wait for `events`.
#[unsafe(no_mangle)]
pub extern "C" fn upoll_object_wake(fd: c_int, events: u32) -> c_int {
    let key = Events::from_bits_retain(events);
    give(upoll_fds::with_own(fd, |object: &Object| {
        object.queue.wake(key);
    }))
}
