//! Open file descriptions: what sets and pollers watch.
//!
//! A [`File`] is a counted reference to an *open file description* in the sense of `open(2)`. That
//! is an object that implements [`Pollable`], the number of references that keep it open, and the
//! list of epoll items that watch it. Cloning a `File` is `dup(2)`; dropping the last clone is the
//! last `close(2)`. Then the items that watch it are removed from their sets, and the object's
//! [`release`](Pollable::release) runs.
//!
//! # Open and alive
//! A description has two counts. `open` counts `File`s: at zero it is closed. `held` counts the
//! users of its memory. Each item is one, so a set may poll an object that is just being closed.
//! That needs no per-poll pin, and never accesses freed memory.

mod kernel_source;
mod time_source;
mod watchers;

pub use self::kernel_source::InKernel;
pub use self::kernel_source::KernelSource;
pub use self::time_source::InTime;
pub use self::time_source::TimeSource;
pub(crate) use self::watchers::WatcherLink;
pub use self::watchers::Watchers;

use alloc::boxed::Box;
use core::any::Any;
use core::fmt;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::{self, NonNull};

use crate::errno::Errno;
use crate::events::Events;
use crate::memory::{boxed, count_one_more};
use crate::sync::{AtomicUsize, Mutex, Ordering, fence};
use crate::trace;
use crate::wait::{Scope, WaitQueue};

/// An object that can be asked whether it is ready, and wakes its queues when that changes
/// (`file_operations.poll`).
///
/// # Example
/// ```
/// use upoll::{Events, Pollable, PollTable, WaitQueue};
/// use std::sync::Mutex;
///
/// #[derive(Default)]
/// struct Mailbox {
///     letters: Mutex<Vec<String>>,
///     arrived: WaitQueue,
/// }
///
/// impl Mailbox {
///     fn put(&self, letter: String) {
///         self.letters.lock().unwrap().push(letter);
///         self.arrived.wake(Events::IN);
///     }
/// }
///
/// impl Pollable for Mailbox {
///     fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
///         table.register(&self.arrived);
///         if self.letters.lock().unwrap().is_empty() {
///             Events::empty()
///         } else {
///             Events::IN
///         }
///     }
/// }
/// # Mailbox::default().put(String::new());
/// ```
pub trait Pollable: Any + Send + Sync {
    /// Registers every queue that may wake for this object with `table`, then returns the events that
    /// are ready now.
    ///
    /// In that order: a caller that registers first and checks second misses nothing. It may be called at
    /// any time, from any thread, with a set's lock held: it must not block, and must not call
    /// back into a set that watches the object. Queues are registered the same at each call. If it
    /// panics, the member is polled again by the next call on the set. Edge-triggered and oneshot reports that the call has
    /// of other members are lost.
    ///
    /// An object may return the state of another one, and pass `table` on to it. If that is a set, `ADD`
    /// does not see it, and neither finds loops through it nor counts it as a level. A set that is
    /// polled from within a call on itself, or at the end of a chain of several dozen sets, is `ERR`.
    /// A wake that comes around such a loop ends there. Without `std` such a loop must not be made. Some changes come
    /// without a wakeup, and are not passed on: see [`FileRef::poll`].
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events;

    /// Is called when the last reference to the open file description is gone and nothing watches it.
    ///
    /// Runs once, on the thread that drops the last reference, before the object is dropped. That may be a little
    /// later, when a call on another thread that polls the object is done. The end of a pipe wakes its peer here.
    /// An object wakes its own queues as well, by [`wake_all`](crate::WaitQueue::wake_all) with `HUP`: a `Readiness` or
    /// `Watch` learns of the close by that alone.
    ///
    /// [`poll`](Self::poll) may run at the same time on another thread, and after it: by a scan that began before the
    /// close, by a `Watch` or by a task's future. Its result concerns nobody then, but it must not
    /// panic. So leave what `poll` uses in place; `drop` ends it. The thread may hold locks of the program, and is
    /// not expected to wait: do not block.
    fn release(&self) {}

    /// Runs after [`release`](Self::release), once what that has woken was called. For drops of values of the program's,
    /// which may panic, and may wait for what they wake.
    #[doc(hidden)]
    #[inline]
    fn end_release(&self) {}

    /// Returns the part of the object that lives in the kernel. An object without such a part, as all objects
    /// of embedders are, keeps the default.
    #[doc(hidden)]
    #[inline]
    fn kernel_source(&self) -> Option<KernelSource<'_>> {
        None
    }

    /// Returns the schedules by which the object becomes ready as time passes. An object without timers of its own, as all
    /// objects of embedders are, keeps the default.
    #[doc(hidden)]
    #[inline]
    fn time_source(&self) -> Option<TimeSource<'_>> {
        None
    }

    /// Writes the lines that `/proc/PID/fdinfo` would show for the object itself.
    fn show_fdinfo(&self, _out: &mut dyn fmt::Write) -> fmt::Result {
        Ok(())
    }
}

/// Collects the wait queues that a [`Pollable`] registers (`poll_table`).
pub struct PollTable<'q> {
    on_register: Option<&'q mut dyn FnMut(&'q WaitQueue)>,
    /// The caller is an item in the object's wait queue: it need not be woken for what it learns here.
    for_item: bool,
}

impl<'q> PollTable<'q> {
    /// A table that registers nothing: only the readiness is wanted.
    #[must_use]
    #[inline]
    pub const fn without_waiter() -> Self {
        PollTable {
            on_register: None,
            for_item: false,
        }
    }

    /// The same table for a set that polls the object of one of its items.
    #[inline]
    pub(crate) const fn for_item(mut self) -> Self {
        self.for_item = true;
        self
    }

    /// Returns whether a set polls the object of one of its items.
    #[inline]
    pub(crate) const fn is_for_item(&self) -> bool {
        self.for_item
    }

    /// A table that hands each queue to `on_register`. For objects that wrap other objects.
    #[must_use]
    pub fn new(on_register: &'q mut dyn FnMut(&'q WaitQueue)) -> Self {
        PollTable {
            on_register: Some(on_register),
            for_item: false,
        }
    }

    /// Returns whether it is of use to register queues.
    #[inline]
    #[doc(hidden)]
    pub fn registers(&self) -> bool {
        self.on_register.is_some()
    }

    /// Registers the poller with `queue`, if it wants to be registered (`poll_wait`).
    #[inline]
    pub fn register(&mut self, queue: &'q WaitQueue) {
        if let Some(on_register) = &mut self.on_register {
            on_register(queue);
        }
    }
}

impl fmt::Debug for PollTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollTable")
            .field("registers", &self.registers())
            .finish()
    }
}

/// The open file description itself, in memory of its own.
pub struct Description<T: ?Sized = dyn Pollable> {
    /// `File`s that refer to this. Zero: closed, and it stays closed.
    open: AtomicUsize,
    /// The number of references that keep the memory: each [`Held`], and one for all `File`s
    /// together.
    held: AtomicUsize,
    /// The epoll items that watch this (`file->f_ep`). The lock nests inside a set's lock and
    /// outside the wait queues' locks.
    watchers: Mutex<Watchers>,
    object: T,
}

impl<T: ?Sized> Description<T> {
    #[inline]
    pub fn object(&self) -> &T {
        &self.object
    }

    pub fn watchers(&self) -> &Mutex<Watchers> {
        &self.watchers
    }

    /// One reference more to the memory.
    ///
    /// # Safety
    /// The description is alive.
    #[inline]
    unsafe fn hold(this: NonNull<Self>) {
        // SAFETY: the caller's contract.
        count_one_more(unsafe { &this.as_ref().held });
    }

    /// One reference less; the last one frees the memory.
    ///
    /// # Safety
    /// The description is alive, the reference was counted, and is used no more.
    #[inline]
    unsafe fn let_go(this: NonNull<Self>) {
        // SAFETY: the caller's contract.
        if unsafe { this.as_ref() }
            .held
            .fetch_sub(1, Ordering::Release)
            == 1
        {
            // The accesses of other threads before they released it happen before the end.
            fence(Ordering::Acquire);
            // SAFETY: it was made by `Box::into_raw`, and this was the last reference.
            drop(unsafe { Box::from_raw(this.as_ptr()) });
        }
    }

    /// Returns whether any `File` still refers to this.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed) != 0
    }
}

/// A reference to an open file description.
///
/// All that come from one [`File::new`] by [`Clone`] or [`File::erase`] are the same open file. When the last of them drops,
/// the file is closed: it disappears from every set that watches it.
pub struct File<T: Pollable + ?Sized = dyn Pollable>(NonNull<Description<T>>);

// SAFETY: it is a shared reference to a description, and any thread may release the last one. An
// object is `Send` and `Sync`, and the rest is atomic or behind a lock.
unsafe impl<T: Pollable + ?Sized> Send for File<T> {}
// SAFETY: as above.
unsafe impl<T: Pollable + ?Sized> Sync for File<T> {}

impl<T: Pollable> File<T> {
    /// Opens `object`: a new open file description. Without memory for it the process ends, as with `Box::new`;
    /// see [`try_new`](Self::try_new).
    #[must_use]
    pub fn new(object: T) -> Self {
        Self::from_box(Box::new(Self::describe(object)))
    }

    /// Opens `object` as [`new`](Self::new) does.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it. The object is dropped; its
    /// [`release`](Pollable::release) is not called.
    pub fn try_new(object: T) -> Result<Self, Errno> {
        Ok(Self::from_box(boxed(Self::describe(object))?))
    }

    fn describe(object: T) -> Description<T> {
        Description {
            open: AtomicUsize::new(1),
            held: AtomicUsize::new(1),
            watchers: Mutex::new(Watchers::new()),
            object,
        }
    }

    fn from_box(description: Box<Description<T>>) -> Self {
        File(NonNull::from(Box::leak(description)))
    }

    /// Another reference to the same open file, without its type.
    #[must_use]
    pub fn erase(&self) -> File {
        let description: NonNull<Description> = self.0;
        count_one_more(&self.description().open);
        File(description)
    }

    #[inline]
    pub(crate) fn as_description_ptr(&self) -> *const Description<T> {
        self.0.as_ptr()
    }

    /// A borrowed reference without the type.
    #[must_use]
    #[inline]
    pub fn as_file_ref(&self) -> FileRef<'_> {
        FileRef::new(self.0)
    }
}

impl<T: Pollable + ?Sized> File<T> {
    /// Returns whether no other `File` refers to the same description, and no set has an item for it. Then only a
    /// user of this `File` can change that, and what former users of the others have done is seen.
    pub fn is_alone(&self) -> bool {
        let Description { open, held, .. } = self.description();
        open.load(Ordering::Acquire) == 1 && held.load(Ordering::Acquire) == 1
    }

    #[inline]
    pub fn description(&self) -> &Description<T> {
        // SAFETY: files keep it alive.
        unsafe { self.0.as_ref() }
    }
}

impl File {
    /// A borrowed reference.
    #[must_use]
    #[inline]
    pub fn as_file_ref(&self) -> FileRef<'_> {
        FileRef::new(self.0)
    }
}

impl<T: Pollable + ?Sized> Clone for File<T> {
    fn clone(&self) -> Self {
        count_one_more(&self.description().open);
        File(self.0)
    }
}

impl<T: Pollable + ?Sized> Deref for File<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.description().object
    }
}

impl<T: Pollable + ?Sized> File<T> {
    /// The last file was dropped.
    #[inline(never)]
    fn close(&self) {
        /// Releases the memory reference that all files share, even if foreign code panics.
        struct LetGo<T: ?Sized>(NonNull<Description<T>>);

        impl<T: ?Sized> Drop for LetGo<T> {
            fn drop(&mut self) {
                // SAFETY: this was the last file.
                unsafe { Description::let_go(self.0) };
            }
        }

        /// Ends the release, even if foreign code panics.
        struct EndRelease<'a, T: Pollable + ?Sized>(&'a T);

        impl<T: Pollable + ?Sized> Drop for EndRelease<'_, T> {
            fn drop(&mut self) {
                self.0.end_release();
            }
        }

        let _let_go = LetGo(self.0);
        let description = self.description();
        let _end_release = EndRelease(&description.object);
        // A waker that panics runs only once all waiters of the object have been told.
        let _scope = Scope::enter();
        let on_close = description.watchers.lock().on_close();
        if let Some(on_close) = on_close {
            on_close(FileId::of(description), &description.watchers);
        }
        description.object.release();
        trace::closed(FileId::of(description));
    }
}

impl<T: Pollable + ?Sized> Drop for File<T> {
    #[inline]
    fn drop(&mut self) {
        if self.description().open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.close();
        }
    }
}

impl<T: Pollable + ?Sized> fmt::Debug for File<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("identity", &FileId::of(self.description()))
            .field("open", &self.description().open.load(Ordering::Relaxed))
            .finish()
    }
}

/// Keeps a description's memory, but does not keep it open.
pub struct Held<T: ?Sized = dyn Pollable>(NonNull<Description<T>>);

// SAFETY: as a `File`.
unsafe impl<T: Pollable + ?Sized> Send for Held<T> {}
// SAFETY: as above.
unsafe impl<T: Pollable + ?Sized> Sync for Held<T> {}

impl<T: ?Sized> Held<T> {
    /// # Safety
    /// The description is alive.
    #[inline]
    pub unsafe fn new(description: NonNull<Description<T>>) -> Self {
        // SAFETY: the caller's contract.
        unsafe { Description::hold(description) };
        Held(description)
    }
}

impl<T: ?Sized> Deref for Held<T> {
    type Target = Description<T>;

    #[inline]
    fn deref(&self) -> &Description<T> {
        // SAFETY: the reference that `self` has keeps it alive.
        unsafe { self.0.as_ref() }
    }
}

impl<T: ?Sized> Clone for Held<T> {
    fn clone(&self) -> Self {
        // SAFETY: `self` keeps it alive.
        unsafe { Held::new(self.0) }
    }
}

impl<T: ?Sized> Drop for Held<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this is the reference that `self` has.
        unsafe { Description::let_go(self.0) };
    }
}

/// The identity of an open file: equal for all references to one, under whatever fd, and different for any two that
/// are open at the same time. A key of maps.
///
/// # Example
/// ```
/// use upoll::EventFd;
/// let (one, other) = (EventFd::new(0)?, EventFd::new(0)?);
/// assert_eq!(one.as_file_ref().identity(), one.clone().as_file_ref().identity());
/// assert_ne!(one.as_file_ref().identity(), other.as_file_ref().identity());
/// # Ok::<(), upoll::Errno>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(usize);

impl FileId {
    #[inline]
    #[doc(hidden)]
    pub fn of<T: ?Sized>(description: &Description<T>) -> Self {
        FileId(ptr::from_ref(description).cast::<()>().addr())
    }

    #[doc(hidden)]
    pub fn addr(self) -> usize {
        self.0
    }
}

/// The key of an interest: an open file, and the fd that it goes by.
pub(crate) type Key = (FileId, i32);

/// A borrowed [`File`] and the fd that it goes by, which together are the key of an interest.
///
/// A set may watch one open file under several fds, as Linux watches `dup`'ed fds
/// separately. Without [`with_fd`](Self::with_fd) the fd is 0.
#[derive(Clone, Copy)]
pub struct FileRef<'a> {
    description: NonNull<Description>,
    fd: i32,
    borrow: PhantomData<&'a Description>,
}

// SAFETY: it is a borrowed `File`, which is `Send` and `Sync`.
unsafe impl Send for FileRef<'_> {}
// SAFETY: as above.
unsafe impl Sync for FileRef<'_> {}

impl<'a> FileRef<'a> {
    #[inline]
    fn new(description: NonNull<Description>) -> Self {
        FileRef {
            description,
            fd: 0,
            borrow: PhantomData,
        }
    }

    /// Of one whose memory is kept: the file may have been closed.
    #[cfg(any(feature = "std", upoll_loom))]
    pub fn of(description: &'a Held) -> Self {
        FileRef::new(description.0)
    }

    /// Splits it into its parts, which are passed in registers.
    #[inline]
    pub(crate) fn into_parts(self) -> (NonNull<Description>, i32) {
        (self.description, self.fd)
    }

    /// # Safety
    /// The parts are those of a `FileRef` whose borrow lasts for `'a`.
    #[inline]
    pub(crate) unsafe fn from_parts(description: NonNull<Description>, fd: i32) -> Self {
        FileRef::new(description).with_fd(fd)
    }

    /// The same open file under another fd.
    #[must_use]
    pub const fn with_fd(mut self, fd: i32) -> Self {
        self.fd = fd;
        self
    }

    /// Returns an address that is the same for all references to one open file, and differs for any two
    /// that are open at the same time.
    #[must_use]
    pub fn address(self) -> usize {
        self.identity().addr()
    }

    /// Registers the queues of the object with `table`, and returns the events that are ready now.
    #[inline]
    pub fn poll(self, table: &mut PollTable<'a>) -> Events {
        self.description().object().poll(table)
    }

    #[inline]
    pub fn fd(self) -> i32 {
        self.fd
    }

    #[inline]
    pub(crate) fn key(self) -> Key {
        (self.identity(), self.fd)
    }

    /// Returns the identity of the open file.
    #[must_use]
    #[inline]
    pub fn identity(self) -> FileId {
        FileId(self.description.as_ptr().cast::<()>().addr())
    }

    #[inline]
    pub fn description(self) -> &'a Description {
        // SAFETY: `'a` borrows the `File`, which keeps the description alive.
        unsafe { self.description.as_ref() }
    }

    /// Keeps the description's memory, but does not keep it open.
    #[inline]
    pub fn keep(self) -> Held {
        // SAFETY: `'a` borrows what keeps it alive.
        unsafe { Held::new(self.description) }
    }

    /// An owned reference to the same open file.
    #[must_use]
    pub fn to_file(self) -> File {
        count_one_more(&self.description().open);
        File(self.description)
    }
}

impl fmt::Debug for FileRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileRef")
            .field("identity", &self.identity())
            .field("fd", &self.fd)
            .finish()
    }
}

#[cfg(all(test, feature = "std", not(upoll_loom)))]
mod tests {
    use std::panic::catch_unwind;

    use super::{Events, File, Held, Ordering, PollTable, Pollable};

    struct Idle;

    impl Pollable for Idle {
        fn poll<'q>(&'q self, _: &mut PollTable<'q>) -> Events {
            Events::empty()
        }
    }

    /// With 32-bit counts a program can come there, by `mem::forget` of clones.
    #[test]
    fn references_beyond_what_can_be_counted_are_refused_and_the_file_stays_open() {
        let file = File::new(Idle);
        let description = file.description();
        let another: [fn(&File<Idle>); 4] = [
            |file| drop(file.clone()),
            |file| drop(file.erase()),
            |file| drop(file.as_file_ref().to_file()),
            // SAFETY: the file keeps it alive.
            |file| drop(unsafe { Held::new(file.0) }),
        ];
        for count in [&description.open, &description.held] {
            count.store(usize::MAX, Ordering::Relaxed);
        }
        for another in another {
            let file = std::panic::AssertUnwindSafe(&file);
            assert!(catch_unwind(|| another(&file)).is_err());
            assert!(file.description().is_open());
        }
        for count in [&description.open, &description.held] {
            assert_eq!(count.swap(1, Ordering::Relaxed), usize::MAX);
        }
        drop(file.clone());
    }
}
