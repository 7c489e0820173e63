//! The source of a rotating set that is a descriptor of the kernel.
//!
//! Each worker's kernel set watches the source by itself, edge-triggered and exclusive, so the
//! kernel wakes one worker that sleeps, the first in line, and passes over those that do not. A
//! worker that was chosen registers anew before it sleeps again, which makes it the last in line.
//!
//! # The alias
//! The user may close the source's number at any time, and the number may mean another file the
//! next moment, perhaps one that a worker watches under that number. So the registrations go by a
//! number of our own, the *alias*. It stands for the source only while a registration is changed;
//! otherwise it stands for a placeholder, so the source closes when the user closes it.
//! If the user's number means another file by then, that file is held open for that moment.
//! A source whose number was closed counts as gone, also while its file lives on under another one:
//! a second source may then be added.

use std::os::fd::{AsRawFd, RawFd};

use once_cell::race::OnceBox;

use super::kernel::Descriptor;
use super::nested::Renew;
use super::{KernelSide, kernel};
use crate::epoll::nesting::sets_above;
use crate::epoll::{Epoll, Op};
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::sync::{Mutex, is_held_by_this_thread};

/// What the kernel side of a rotating set has in addition.
pub(super) struct Rotation {
    /// A kernel set with the source alone, and nobody sleeping in it: it keeps the interest, and
    /// says whether the source is ready by it.
    pub(super) members: Descriptor,
    /// What the alias stands for while it does not stand for the source.
    placeholder: Descriptor,
    alias: Descriptor,
    /// A kernel set with `members` and the set that workers' sets nest, once somebody polls.
    for_pollers: OnceBox<Descriptor>,
    /// Guards the alias and the registrations under it. Nests inside the workers' sets' locks and
    /// the lock of the rotating set.
    source: Mutex<Option<SourceFd>>,
}

#[derive(Clone, Copy)]
struct SourceFd {
    /// The user's number.
    number: RawFd,
    wanted: Events,
    /// Workers are to forget it.
    leaving: bool,
}

impl Rotation {
    pub(super) fn new() -> Result<Self, Errno> {
        let placeholder = Descriptor::idle()?;
        Ok(Rotation {
            members: kernel::epoll_create()?,
            alias: Descriptor::idle()?,
            placeholder,
            for_pollers: OnceBox::new(),
            source: Mutex::new(None),
        })
    }

    /// A kernel set that is readable when the source is, or `nested`. If the kernel has no more
    /// descriptors it is that of the source alone.
    pub(super) fn for_pollers(&self, nested: &Descriptor) -> &Descriptor {
        let made = self.for_pollers.get_or_try_init(|| {
            let both = kernel::epoll_create()?;
            for fd in [&self.members, nested] {
                let interest = Event::new(Events::IN, 0);
                kernel::epoll_ctl(&both, Op::Add, fd.as_raw_fd(), &interest)?;
            }
            Ok::<_, Errno>(Box::new(both))
        });
        made.unwrap_or(&self.members)
    }

    /// Whether there is a source that its number still stands for.
    pub(super) fn has_source(&self) -> bool {
        let source = self.source.lock();
        source.is_some_and(|source| self.is_current(source))
    }

    /// Whether the code that this call, in a signal handler, has interrupted holds the source's lock.
    pub(super) fn is_locked_here(&self) -> bool {
        is_held_by_this_thread(&self.source)
    }

    /// The user's number of the source.
    pub(super) fn number(&self) -> Option<RawFd> {
        self.source.lock().map(|source| source.number)
    }

    /// Runs `act` while the alias stands for the open file of `number`. `source` is locked.
    ///
    /// `EBADF`: `number` is not open.
    fn as_alias<R>(&self, number: RawFd, act: impl FnOnce(RawFd) -> R) -> Result<R, Errno> {
        kernel::duplicate_to(number, &self.alias)?;
        let result = act(self.alias.as_raw_fd());
        // Both are ours and open.
        let _ = kernel::duplicate_to(self.placeholder.as_raw_fd(), &self.alias);
        Ok(result)
    }

    /// Whether the source still is what its number says. `source` is locked.
    fn is_current(&self, source: SourceFd) -> bool {
        let current = self.as_alias(source.number, |alias| self.holds(alias));
        current.unwrap_or(false)
    }

    /// Whether the alias stands for the source right now.
    fn holds(&self, alias: RawFd) -> bool {
        match kernel::epoll_ctl(&self.members, Op::Add, alias, &Event::default()) {
            Err(errno) => errno == Errno::EXIST,
            Ok(()) => {
                let _ = kernel::epoll_ctl(&self.members, Op::Del, alias, &Event::default());
                false
            }
        }
    }

    /// Has the worker whose kernel set is `worker` watch the source; says whether there is one.
    pub(super) fn watch(&self, worker: &Descriptor, data: u64) -> Result<bool, Errno> {
        let source = self.source.lock();
        let Some(source) = source.filter(|source| !source.leaving) else {
            return Ok(false);
        };
        let watched = self.as_alias(source.number, |alias| {
            if !self.holds(alias) {
                return Ok(false);
            }
            kernel::epoll_ctl(worker, Op::Add, alias, &source.interest(data)).map(|()| true)
        });
        watched.unwrap_or(Ok(false))
    }

    /// Has the worker forget the source. If it was closed the kernel has done so already.
    pub(super) fn unwatch(&self, worker: &Descriptor) {
        let source = self.source.lock();
        if let Some(source) = *source {
            let _ = self.as_alias(source.number, |alias| {
                kernel::epoll_ctl(worker, Op::Del, alias, &Event::default())
            });
        }
    }

    /// Makes the worker the last in line; says whether it watches the source still.
    pub(super) fn renew(&self, worker: &Descriptor, data: u64) -> Result<bool, Errno> {
        let source = self.source.lock();
        let Some(source) = source.filter(|source| !source.leaving) else {
            return Ok(false);
        };
        let renewed = self.as_alias(source.number, |alias| {
            // If this fails the number means something else by now.
            if kernel::epoll_ctl(worker, Op::Del, alias, &Event::default()).is_err() {
                return Ok(false);
            }
            kernel::epoll_ctl(worker, Op::Add, alias, &source.interest(data)).map(|()| true)
        });
        // A number that is not open: the file may live on under another one, and its registration
        // with it.
        renewed.unwrap_or(Ok(true))
    }

    /// `epoll_ctl` on a rotating set.
    pub(super) fn ctl(
        &self,
        epoll: &Epoll,
        op: Op,
        number: RawFd,
        interest: Event,
    ) -> Result<(), Errno> {
        match op {
            Op::Add => {
                self.add(epoll, number, interest)?;
                self.tell_workers(epoll).inspect_err(|_| {
                    let _ = self.delete(epoll, number);
                })
            }
            Op::Mod => {
                let mut source = self.source.lock();
                let changed = source.filter(|source| source.number == number);
                let Some(mut changed) = changed else {
                    // Not registered under this number: the kernel finds the right error.
                    return kernel::epoll_ctl(&self.members, op, number, &interest);
                };
                self.as_alias(number, |alias| {
                    kernel::epoll_ctl(&self.members, op, alias, &interest)
                })??;
                changed.wanted = interest.events();
                *source = Some(changed);
                drop(source);
                self.tell_workers(epoll)
            }
            Op::Del => self.delete(epoll, number),
        }
    }

    fn add(&self, epoll: &Epoll, number: RawFd, interest: Event) -> Result<(), Errno> {
        let interests = epoll.set().inner.lock();
        let mut source = self.source.lock();
        let added = self.as_alias(number, |alias| {
            kernel::epoll_ctl(&self.members, Op::Add, alias, &interest)
        })?;
        let is_second = match (added, *source) {
            (Err(Errno::EXIST), Some(old)) => old.number != number,
            (Err(errno), _) => return Err(errno),
            (Ok(()), Some(old)) => old.number != number && self.is_current(old),
            (Ok(()), None) => interests.len() > interests.nested,
        };
        if is_second {
            if added.is_ok() {
                let _ = self.as_alias(number, |alias| {
                    kernel::epoll_ctl(&self.members, Op::Del, alias, &Event::default())
                });
            }
            return Err(Errno::INVAL);
        }
        added?;
        *source = Some(SourceFd {
            number,
            wanted: interest.events(),
            leaving: false,
        });
        Ok(())
    }

    fn delete(&self, epoll: &Epoll, number: RawFd) -> Result<(), Errno> {
        let mut source = self.source.lock();
        let leaving = source.filter(|source| source.number == number && !source.leaving);
        let Some(mut leaving) = leaving.filter(|&source| self.is_current(source)) else {
            return kernel::epoll_ctl(&self.members, Op::Del, number, &Event::default());
        };
        leaving.leaving = true;
        *source = Some(leaving);
        drop(source);
        // The workers first, while the alias can still be told from a stranger.
        self.tell_workers(epoll)?;
        let mut source = self.source.lock();
        if source.is_none_or(|source| !source.leaving) {
            // Closed meanwhile, and another one came.
            return Err(Errno::NOENT);
        }
        *source = None;
        self.as_alias(number, |alias| {
            kernel::epoll_ctl(&self.members, Op::Del, alias, &Event::default())
        })?
    }

    /// The source came, changed or leaves: every worker's kernel set learns of it.
    fn tell_workers(&self, epoll: &Epoll) -> Result<(), Errno> {
        let rotating = epoll.description();
        for worker in sets_above(rotating.watchers()) {
            let side = KernelSide::ensure_hub(&worker)?;
            let interests = worker.object().inner.lock();
            side.link(worker.object(), &interests, rotating, Renew::Source)?;
        }
        Ok(())
    }
}

impl SourceFd {
    /// What a worker's kernel set wants of the source.
    ///
    /// Beside `EXCLUSIVE` the kernel takes `IN` and `OUT` only. The finer bits never come without
    /// one of these in a wake; whether the source is ready by the finer ones is looked at later.
    fn interest(self, data: u64) -> Event {
        let mut events = Events::EXCLUSIVE | Events::ET;
        let writes = Events::OUT | Events::WRNORM | Events::WRBAND;
        if self.wanted.intersects(writes) {
            events |= Events::OUT;
        }
        if !(self.wanted - writes).is_empty() {
            events |= Events::IN;
        }
        Event::new(events, data)
    }
}
