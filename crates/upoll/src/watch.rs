//! Callbacks in place of sleeping threads.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::ptr::NonNull;

use crate::awaited::{self, Awaited};
use crate::errno::Errno;
use crate::events::Events;
use crate::file::PollTable;
use crate::memory::{SharedBox, boxed};
use crate::sync::{Rule, broken};
use crate::target::{Source, Target};
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
///
/// A set with a kernel fd. The callback runs on the library's thread:
/// ```
/// # #[cfg(feature = "std")] {
/// use std::io::Write;
/// use std::sync::mpsc::channel;
/// use upoll::{Epoll, Event, Events, Watch};
///
/// let (reader, mut writer) = std::io::pipe()?;
/// let set = Epoll::new()?;
/// set.add(&reader, Event::new(Events::IN, 7))?;
/// let (send, receive) = channel();
/// let (_watch, _ready) = Watch::new(&set, Events::IN, move |_| send.send(()).unwrap_or_default())?;
/// writer.write_all(b"x")?;
/// receive.recv().expect("the callback keeps its end");
/// assert_eq!(set.try_wait(&mut [Event::default()])?, 1);
/// # }
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Watch {
    /// Boxed, because wait queues link them where they are.
    #[expect(clippy::vec_box, reason = "linked in place")]
    entries: Vec<Box<WatchEntry>>,
    /// The state that the entries point to. Boxed, so that it stays put.
    notify: Box<Notify>,
    /// Keeps the queues alive that the entries are hooked into.
    file: Awaited,
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
    /// # Kernel fds
    /// `source` may be a kernel fd, or a set that has kernel fds and shared eventfds, itself or in a set below. They may
    /// come after the callback. One thread of the library, the attendant, sleeps in the kernel for all callbacks and tasks
    /// of the process, from the first such wait on. It runs the callback after an event in the kernel:
    ///
    /// - A callback that takes long delays those of other kernel fds.
    /// - It may run for nothing, and until the object is polled a further event may not call it.
    /// - A panic of it is reported by the panic hook, and the attendant goes on.
    /// - An event of a user-level member still runs the callback in the call that made it.
    /// - A kernel fd is watched edge-triggered, by a copy of the fd. So the program may close its own one, and the file stays
    ///   open until the `Watch` is dropped. A file that `poll(2)` finds always ready, as regular files are, is that here.
    /// - If the program closes the copy, which it did not open, the events are `HUP` from then on.
    /// - The child of a `fork` has an attendant of its own, for what it registers itself. A `Watch` of the parent is not
    ///   called there for events in the kernel. A callback that forks must end the child.
    /// - The attendant is a thread of the program like others. So the child of a `fork` must neither use nor drop a `Watch`
    ///   of the parent: the attendant may have been in the midst of it.
    /// - The attendant blocks all signals but those of faults, and a thread or process that a callback starts there inherits
    ///   that. It has the CPU affinity and the scheduling policy of the thread that began the first wait.
    /// - A library that is unloaded by `dlclose(3)` must end all waits two seconds before.
    ///
    /// Without the feature `std` there are no kernel fds.
    ///
    /// # Without `std`
    /// The library cannot distinguish threads. If another thread is in a call of this
    /// library at the end of the wakeup, the callback may run at the end of that call instead. The
    /// callbacks that a callback wakes run within it. A callback must not drop its own `Watch`, and
    /// after a panic of it the callbacks behind it are not called for this wakeup.
    ///
    /// `ERR` and `HUP` always concern it.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    ///
    /// `EPERM`: `source` is a set with [`ROTATE`](crate::CreateFlags::ROTATE) and has, itself or in a set below, a kernel
    /// fd or a shared eventfd. Its threads take turns, which the attendant cannot: wait with
    /// [`Epoll::wait`](crate::Epoll::wait), or watch a set that watches it. A member that was closed, not deleted, may still
    /// count. While a `Watch` on a set with `ROTATE` exists the set takes no such member (`EBUSY`).
    ///
    /// With members in the kernel: `EAGAIN`, `EMFILE`, `ENFILE`, `ENOSPC`: the kernel has no thread, fd or watch for it.
    /// `EINVAL`, `ELOOP`: the kernel fds in sets below are nested too deep, as the attendant needs one level more.
    pub fn new<S: Source + ?Sized>(
        source: &S,
        interest: Events,
        callback: impl Fn(Events) + Send + Sync + 'static,
    ) -> Result<(Self, Events), Errno> {
        Self::on_target(source.target(), interest, callback)
    }

    fn on_target(
        target: Target<'_>,
        interest: Events,
        callback: impl Fn(Events) + Send + Sync + 'static,
    ) -> Result<(Self, Events), Errno> {
        let slot = CallbackSlot::new(boxed(callback)?)?;
        let interest = interest | Events::ALWAYS;
        let file = Awaited::begin(target, interest)?;
        let notify = boxed(Notify { interest, slot })?;
        let mut watch = Watch {
            entries: Vec::new(),
            notify,
            file,
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
            watch.file.object().poll(&mut table)
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
        self.file.object().poll(&mut PollTable::without_waiter()) & self.notify.interest
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
    let key = awaited::key_of(wake);
    if !key.is_empty() && !key.intersects(notify.interest) {
        return Reply::Declined;
    }
    if wake.mode != Mode::Query {
        wake.deferred.push_callback(&notify.slot, key);
    }
    Reply::Woken
}
