//! Callbacks in place of sleeping threads.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::ptr::NonNull;

use crate::epoll::callbacks::SetCallback;
use crate::errno::Errno;

use crate::events::Events;
use crate::file::{FileRef, Held, PollTable};
use crate::memory::{SharedBox, boxed};
use crate::sync::{Rule, broken};
use crate::target::Source;
use crate::wait::{CallbackSlot, Mode, Place, Reply, Scope, WaitEntry, WaitQueue, Wake};

/// A callback in the wait queues of an open file. Dropping it takes the callback out: once the
/// drop has returned it is not called again.
///
/// It does not keep the file open; it does keep the object's memory.
///
/// # Example
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use upoll::{EventFd, Events, Watch};
///
/// let counter = EventFd::new(0)?;
/// let rang = Arc::new(AtomicU32::new(0));
/// let count = rang.clone();
/// let (watch, ready) = Watch::new(&counter, Events::IN, move |_| {
///     count.fetch_add(1, Ordering::Relaxed);
/// })?;
/// assert!(ready.is_empty());
/// counter.try_write(1)?;
/// drop(watch);
/// counter.try_write(1)?;
/// assert_eq!(rang.load(Ordering::Relaxed), 1);
/// # Ok::<(), upoll::Errno>(())
/// ```
pub struct Watch {
    /// Boxed, because wait queues link them where they are.
    #[expect(clippy::vec_box, reason = "linked in place")]
    entries: Vec<Box<WatchEntry>>,
    /// The state that the entries point to. Boxed, so that it stays put.
    notify: Box<Notify>,
    /// Keeps the queues alive that the entries are hooked into.
    file: Held,
    _set_callback: SetCallback,
}

struct Notify {
    interest: Events,
    slot: SharedBox<CallbackSlot>,
}

#[repr(C)]
struct WatchEntry {
    /// First, so that a wake finds the rest.
    entry: WaitEntry,
    notify: NonNull<Notify>,
}

// SAFETY: `notify` leads to a `Notify`, which is `Send` and `Sync`, in the `Watch` that owns the
// entry.
unsafe impl Send for WatchEntry {}
// SAFETY: as above.
unsafe impl Sync for WatchEntry {}

impl Watch {
    /// Calls `callback` after every wake of `source` that concerns `interest`. Returns the events of it
    /// that are ready now.
    ///
    /// The callback receives the wake's events, empty if the object does not name them. It runs at the end
    /// of the call that changed the object, on the same thread, with no lock of this crate held. So it may
    /// use the file and the sets that watch it. It must not block, as the caller does not expect that.
    ///
    /// - It is called by one thread at a time. Wakeups that come meanwhile, from any thread, are
    ///   delivered together by one more call on the thread that is calling it. So are the wakeups
    ///   that come before it has been called, with the events of all.
    /// - Callbacks may wake each other, one after the other, on one thread. If that does not end,
    ///   the call that began it returns after 256 rounds, and the remaining wakeups are delivered
    ///   together with the next one.
    /// - A panic of it is resumed in the call that changed the object, once all others have been
    ///   called.
    /// - A wakeup of an exclusive kind may have chosen it, and not have called it yet, when its
    ///   `Watch` is dropped. Poll the object afterwards, as a thread does whose wait ends.
    /// - It may drop its own `Watch`. Any other drop waits for a call that is under way on another
    ///   thread, so a lock that the callback takes must not be held there.
    ///
    /// A wakeup is a hint: poll the object, for instance with
    /// [`Epoll::try_wait`](crate::Epoll::try_wait).
    ///
    /// Without `std` the library cannot distinguish threads. If another thread is in a call of this
    /// library at the end of the wakeup, the callback may run at the end of that call instead. The
    /// callbacks that a callback wakes run within it. A callback must not drop its own `Watch`, and
    /// after a panic of it the callbacks behind it are not called for this wakeup.
    ///
    /// `ERR` and `HUP` always concern it.
    ///
    /// # Errors
    /// `EPERM`: `source` is a kernel fd, or a set that has, itself or in a set below, a kernel fd or a shared
    /// eventfd. Such a member wakes only threads that sleep in the kernel, so nobody would call the
    /// callback: wait with [`Epoll::wait`](crate::Epoll::wait) or [`poll`](crate::poll()). A member
    /// that was closed, not deleted, may still count. While the `Watch` exists the set takes no
    /// such member (`EBUSY`).
    ///
    /// `ENOMEM`: there is no memory for it.
    pub fn new<S: Source + ?Sized>(
        source: &S,
        interest: Events,
        callback: impl Fn(Events) + Send + Sync + 'static,
    ) -> Result<(Self, Events), Errno> {
        Self::on_file(source.target().file()?, interest, callback)
    }

    fn on_file(
        file: FileRef<'_>,
        interest: Events,
        callback: impl Fn(Events) + Send + Sync + 'static,
    ) -> Result<(Self, Events), Errno> {
        let slot = CallbackSlot::new(boxed(callback)?)?;
        let interest = interest | Events::ALWAYS;
        let set_callback = SetCallback::begin(file, interest)?;
        if let Some(source) = file.description().kernel_source() {
            source.prepare_queue()?;
        }
        let notify = boxed(Notify { interest, slot })?;
        let mut watch = Watch {
            entries: Vec::new(),
            notify,
            file: file.keep(),
            _set_callback: set_callback,
        };
        let notify = NonNull::from(&*watch.notify);
        let entries = &mut watch.entries;
        let mut is_short = false;
        let mut on_register = |queue: &WaitQueue| {
            let entry = boxed(WatchEntry {
                entry: WaitEntry::new(on_wake_watch),
                notify,
            });
            let (Ok(entry), Ok(())) = (entry, entries.try_reserve(1)) else {
                is_short = true;
                return;
            };
            entries.push(entry);
            let entry = &entries[entries.len() - 1].entry;
            // SAFETY: the entry is boxed and unhooked in `drop`, before the box goes; `file` keeps
            // the object whose queue this is.
            unsafe { entry.hook(queue, Place::Shared) };
        };
        let ready = {
            // Wakers of others run when the object's `poll` has released its locks.
            let _scope = Scope::enter();
            let mut table = PollTable::new(&mut on_register);
            file.description().object().poll(&mut table)
        };
        if is_short {
            return Err(Errno::NOMEM);
        }
        if broken(Rule::LookAfterRegistering) {
            return Ok((watch, Events::empty()));
        }
        Ok((watch, ready & interest))
    }

    /// Returns the events of the interest that are ready now.
    #[must_use]
    pub fn ready(&self) -> Events {
        if !self.file.is_open() {
            return Events::HUP;
        }
        self.file.object().poll(&mut PollTable::look_only()) & self.notify.interest
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        /// Waits for a call of the callback that is under way.
        struct Cancel<'a>(&'a CallbackSlot);

        impl Drop for Cancel<'_> {
            fn drop(&mut self) {
                self.0.cancel();
            }
        }

        // After the scope, in which wakers of others wait.
        let _cancel = Cancel(&self.notify.slot);
        // A waker that panics does so when all entries are out.
        let _scope = Scope::enter();
        for entry in &self.entries {
            entry.entry.unhook();
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("interest", &self.notify.interest)
            .field("queues", &self.entries.len())
            .finish_non_exhaustive()
    }
}

/// # Safety
/// As [`OnWake`](crate::wait::OnWake); the entry is a [`WatchEntry`]'s.
unsafe fn on_wake_watch(entry: NonNull<WaitEntry>, wake: &mut Wake<'_>) -> Reply {
    // SAFETY: `entry` is the first field of a `WatchEntry`, which is unhooked, under the lock that
    // is held here, before it or what it points to ends.
    let notify = unsafe { entry.cast::<WatchEntry>().as_ref().notify.as_ref() };
    if !wake.key.is_empty() && !wake.key.intersects(notify.interest) {
        return Reply::Declined;
    }
    if wake.mode != Mode::Query {
        wake.deferred.push_callback(&notify.slot, wake.key);
    }
    Reply::Woken
}
