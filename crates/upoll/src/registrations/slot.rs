//! The entries that are kept, and their places in wait queues.

use alloc::boxed::Box;
use core::hash::BuildHasher;
use core::ptr::NonNull;

use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

use super::inbox::Inbox;
#[cfg(any(feature = "std", upoll_loom))]
use super::kernel_entries::Registration;
use crate::events::Events;
use crate::file::Held;
use crate::sync::Ordering;
use crate::target::Target;
use crate::wait::{Mode, Reply, WaitEntry, Wake};

/// The identity of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Key {
    /// The address of a user-level file; the identity of a kernel fd, zero if unknown.
    pub(super) identity: u64,
    /// The kernel fd, or one of the constants below.
    pub(super) fd: i32,
}

/// A user-level file.
pub(super) const USER: i32 = -1;
/// An entry that is passed over, and one that is not open.
pub(super) const NOTHING: Key = Key {
    identity: 0,
    fd: -2,
};

impl Key {
    #[inline]
    pub(super) fn of(target: Option<Target<'_>>) -> Self {
        match target {
            None => NOTHING,
            Some(Target::File(file)) => Key {
                identity: file.identity().addr() as u64,
                fd: USER,
            },
            #[cfg(any(feature = "std", upoll_loom))]
            Some(Target::Kernel(fd)) => Key {
                identity: 0,
                fd: std::os::fd::AsRawFd::as_raw_fd(&fd),
            },
            #[cfg(any(feature = "std", upoll_loom))]
            Some(Target::Descriptor(descriptor)) => Key {
                identity: descriptor.identity(),
                fd: std::os::fd::AsRawFd::as_raw_fd(&descriptor.fd()),
            },
        }
    }

    pub(super) fn hash(self) -> u64 {
        FxBuildHasher.hash_one(self)
    }
}

/// The registration of an entry.
pub(super) enum Kind {
    /// Nothing: the slot is free.
    Free,
    /// The wait queues of a user-level object.
    User(Held),
    /// The way in which the kernel is asked.
    #[cfg(any(feature = "std", upoll_loom))]
    Kernel(Registration),
}

/// One entry of the list of a call, as the next call will compare it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listed {
    pub(super) key: Key,
    pub(super) wanted: Events,
    pub(super) slot: u32,
}

/// The entry is in no list: between two, or on its way out.
pub(super) const NOWHERE: u32 = u32::MAX;

pub(super) const NOT_LISTED: Listed = Listed {
    key: NOTHING,
    wanted: Events::empty(),
    slot: NOWHERE,
};

/// One registered entry.
pub(super) struct Slot {
    pub(super) key: Key,
    pub(super) kind: Kind,
    /// The events that are polled for; `ERR` and `HUP` are in it if they count.
    pub(super) wanted: Events,
    /// The place of the entry in the list.
    pub(super) position: u32,
    /// It is on the list of active entries.
    pub(super) is_active: bool,
    /// The number of `hooks` that are in use: one for each queue that the object registers.
    pub(super) hooked: usize,
    /// Boxed, because wait queues link them where they are.
    pub(super) hooks: SmallVec<[Box<Hook>; 1]>,
}

/// A place in a wait queue. The entry's owner word holds the events that wake a sleeper.
#[repr(C)]
pub(super) struct Hook {
    /// First, so that a wake finds the rest.
    pub(super) entry: WaitEntry,
    pub(super) slot: u32,
    pub(super) inbox: NonNull<Inbox>,
}

// SAFETY: `inbox` leads to an `Inbox`, which is `Send` and `Sync`, of the `Registrations` that owns the hook.
unsafe impl Send for Hook {}
// SAFETY: as above.
unsafe impl Sync for Hook {}

/// A wake reached an entry that is kept (`pollwake`).
///
/// # Safety
/// As [`OnWake`](crate::wait::OnWake); the entry is a [`Hook`]'s.
pub(super) unsafe fn on_wake_kept(entry: NonNull<WaitEntry>, wake: &mut Wake<'_>) -> Reply {
    // SAFETY: `entry` is the first field of a `Hook`, which is unhooked, under the lock that is
    // held here, before it or its inbox ends.
    let (hook, inbox) = unsafe {
        let hook = entry.cast::<Hook>().as_ref();
        (hook, hook.inbox.as_ref())
    };
    let wanted = Events::from_bits_retain(hook.entry.owner_word.load(Ordering::SeqCst));
    // A poll may find events that no key has announced: a set wakes for `IN` and shows `RDNORM`,
    // too. So the mark is left in any case, but as in Linux it wakes no thread.
    let concerns = wake.key.is_empty() || wake.key.intersects(wanted);
    if wake.mode != Mode::Notify && !(concerns && inbox.is_awaited()) {
        // Between two calls nobody waits.
        return Reply::Declined;
    }
    if wake.mode != Mode::Query {
        inbox.mark(hook.slot, concerns, wake.deferred);
    }
    if concerns {
        Reply::Woken
    } else {
        Reply::Declined
    }
}
