//! `poll(2)` without the wait: the entries, and one pass over them.
//!
//! A pass polls each user-level object once. Its [`Viewer`] does the rest, such as the registration
//! with the objects' wait queues. Sleeping, and kernel fds, belong to the layer above.

use core::fmt;

#[cfg(any(not(feature = "std"), upoll_loom))]
use crate::errno::Errno;
use crate::events::Events;
#[cfg(any(feature = "std", upoll_loom))]
use crate::file::Description;
use crate::file::PollTable;
use crate::open_file::FileRef;
use crate::target::{Source, Target};

/// One entry of a [`poll`](crate::poll()): an object, and the events to poll it for (`struct pollfd`).
///
/// The entry borrows what it watches, so it stays open as long as the entry exists.
#[derive(Clone, Copy)]
pub struct PollFd<'a> {
    subject: Subject<'a>,
    /// Sixteen bits, as in `struct pollfd`.
    events: u16,
    revents: u16,
}

#[derive(Clone, Copy)]
enum Subject<'a> {
    Ignored,
    NotOpen,
    Open(Target<'a>),
}

impl<'a> PollFd<'a> {
    /// Polls `source` for `events`, and for `ERR` and `HUP`, which cannot be left out.
    ///
    /// Only the low 16 bits of `events` count, as in `struct pollfd`.
    #[must_use]
    #[inline]
    pub fn new(source: &'a (impl Source + ?Sized), events: Events) -> Self {
        Self::from_target(source.target(), events)
    }

    /// The same for a target.
    #[must_use]
    #[inline]
    pub fn from_target(target: Target<'a>, events: Events) -> Self {
        PollFd {
            subject: Subject::Open(target),
            events: low(events),
            revents: 0,
        }
    }

    /// An entry that is passed over, as one with a negative fd: its `revents` become empty.
    #[must_use]
    pub const fn ignored() -> Self {
        PollFd {
            subject: Subject::Ignored,
            events: 0,
            revents: 0,
        }
    }

    /// An entry for an fd that is not open: it is ready at once, with `NVAL`.
    #[must_use]
    pub const fn not_open() -> Self {
        PollFd {
            subject: Subject::NotOpen,
            events: 0,
            revents: 0,
        }
    }

    /// Returns the events that are polled for.
    #[must_use]
    #[inline]
    pub fn events(&self) -> Events {
        Events::from_bits_retain(self.events.into())
    }

    /// Polls for `events` from now on.
    #[inline]
    pub fn set_events(&mut self, events: Events) {
        self.events = low(events);
    }

    /// Returns the result of the last poll: of [`events`](Self::events), and of `ERR`, `HUP` and `NVAL`.
    #[must_use]
    #[inline]
    pub fn revents(&self) -> Events {
        Events::from_bits_retain(self.revents.into())
    }

    /// Returns the object of the entry, if that is open.
    pub(crate) fn target(&self) -> Option<Target<'a>> {
        match self.subject {
            Subject::Open(target) => Some(target),
            Subject::Ignored | Subject::NotOpen => None,
        }
    }

    /// Clears the last result. Returns whether the entry is ready by itself, as an entry that is
    /// not open is.
    #[inline]
    pub(crate) fn clear_revents(&mut self) -> bool {
        let not_open = matches!(self.subject, Subject::NotOpen);
        self.revents = if not_open { low(Events::NVAL) } else { 0 };
        not_open
    }

    pub(crate) fn set_revents(&mut self, revents: Events) {
        self.revents = low(revents);
    }
}

impl fmt::Debug for PollFd<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("PollFd");
        match &self.subject {
            Subject::Ignored => out.field("target", &"ignored"),
            Subject::NotOpen => out.field("target", &"not open"),
            Subject::Open(target) => out.field("target", target),
        };
        out.field("events", &self.events())
            .field("revents", &self.revents())
            .finish()
    }
}

#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "struct pollfd has sixteen bits"
)]
fn low(events: Events) -> u16 {
    events.bits() as u16
}

/// Returns the part of `room` that is put on the stack: all of it, but in a build that measures the gain
/// of the stack.
pub(crate) const fn on_stack(room: usize) -> usize {
    if cfg!(upoll_force_heap) { 0 } else { room }
}

/// The result of a pass of `poll` or `select`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// Entries, or for `select` bits, that are ready.
    pub(crate) ready: usize,
    /// User-level objects that were polled.
    pub(crate) objects: usize,
    /// Kernel fds, which were not polled.
    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) kernel: usize,
    /// User-level objects with a kernel source, which a thread that sleeps has to wait for too.
    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) sources: usize,
    /// The shared eventfds among `sources`.
    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) shared: usize,
}

impl Seen {
    #[inline]
    pub(crate) fn count(&mut self, target: Target<'_>) {
        match target {
            Target::File(_) => self.objects += 1,
            #[cfg(any(feature = "std", upoll_loom))]
            Target::Kernel(_) | Target::Descriptor(_) => self.kernel += 1,
        }
    }

    /// Counts the kernel source of `file`, if it has one that matters to a thread that is going to sleep
    /// for `wanted`. Returns whether it has.
    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) fn count_source(&mut self, file: &Description, wanted: Events) -> bool {
        let Some(source) = file.kernel_source() else {
            return false;
        };
        let is_shared = source.is_shared();
        let counts = is_shared || source.awaited_fd(file, wanted).is_some();
        self.shared += usize::from(is_shared);
        self.sources += usize::from(counts);
        counts
    }
}

/// The way in which a pass polls an object.
pub(crate) trait Viewer {
    /// True if the thread is going to sleep by the result of the pass.
    #[cfg_attr(
        all(not(feature = "std"), not(upoll_loom)),
        expect(dead_code, reason = "there are no threads that sleep")
    )]
    const SLEEPS: bool = true;

    /// Returns the ready events of `file`. Wakeups with another key than `wanted` are of no
    /// interest.
    fn view(&mut self, file: FileRef<'_>, wanted: Events) -> Events;

    /// The last poll found something to report.
    fn hit(&mut self) {}
}

/// Looks and leaves no trace.
pub(crate) struct CheckOnly;

impl Viewer for CheckOnly {
    const SLEEPS: bool = false;

    #[inline]
    fn view(&mut self, file: FileRef<'_>, _wanted: Events) -> Events {
        let object = file.description().object();
        object.poll(&mut PollTable::without_waiter())
    }
}

/// Looks at every user-level object once and fills in the `revents` of all entries; those of the
/// kernel fds show nothing (`do_pollfd`).
#[inline]
pub(crate) fn pass<V: Viewer>(fds: &mut [PollFd<'_>], viewer: &mut V) -> Seen {
    let mut seen = Seen::default();
    for fd in fds {
        let wanted = fd.events() | Events::ALWAYS;
        let found = match fd.subject {
            Subject::Ignored => Events::empty(),
            Subject::NotOpen => Events::NVAL,
            Subject::Open(target) => {
                seen.count(target);
                match target {
                    Target::File(file) => {
                        #[cfg(any(feature = "std", upoll_loom))]
                        if V::SLEEPS {
                            seen.count_source(file.description(), wanted);
                        }
                        viewer.view(file, wanted) & wanted
                    }
                    #[cfg(any(feature = "std", upoll_loom))]
                    Target::Kernel(_) | Target::Descriptor(_) => Events::empty(),
                }
            }
        };
        fd.revents = low(found);
        if !found.is_empty() {
            seen.ready += 1;
            viewer.hit();
        }
    }
    seen
}

/// `poll(2)` with a timeout of 0: fills in what is ready now, and returns the number of ready
/// entries.
///
/// # Errors
/// None without the feature `std`, with which the function also takes kernel fds.
#[cfg(any(not(feature = "std"), upoll_loom))]
pub fn poll_now(fds: &mut [PollFd<'_>]) -> Result<usize, Errno> {
    Ok(pass(fds, &mut CheckOnly).ready)
}
