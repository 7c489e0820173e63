//! Sleeps in the kernel set of a set, and harvests of both of its sides.

use std::ptr;

use arrayvec::ArrayVec;

use super::own_fds::limit_of_sleep;
use super::special::Special;
use super::{EpollBackend, Heard, NESTING_ROOM, SignalMask, harvest_of, kernel, own_fds};
use crate::epoll::Set;
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::sync::{Ordering, fence_after_rmw};

impl EpollBackend {
    /// Sleeps in the kernel set until something happens; what of it is the user's is in `out`
    /// afterwards, and what is the core's has been queued there.
    ///
    /// `EINTR`: a signal handler ran.
    pub(crate) fn sleep(
        &self,
        set: &Set,
        out: &mut [Event],
        limit: impl FnOnce() -> Option<libc::timespec>,
        mask: SignalMask<'_>,
    ) -> Result<usize, Errno> {
        let place = self.sleep_set();
        place.asleep.fetch_add(1, Ordering::SeqCst);
        fence_after_rmw();
        // Counted, now look: a thread that queued something, or made the nesting fd, before that did not see
        // this one.
        let moved = !ptr::eq(place, self.sleep_set());
        let limit = if moved || set.is_pending() {
            kernel::AT_ONCE
        } else {
            limit()
        };
        let in_nesting = !ptr::eq(place, &self.first);
        // The nesting fd learns through the first set what members do.
        let limit = match in_nesting && own_fds::may_be_lost() && !self.first.fd.is_in_place() {
            true => kernel::AT_ONCE,
            false => limit,
        };
        let mut of_nesting = [Event::default(); NESTING_ROOM];
        let events = if in_nesting {
            &mut of_nesting[..]
        } else {
            &mut *out
        };
        let found = kernel::epoll_wait(&place.fd, events, limit_of_sleep(limit), mask);
        place.asleep.fetch_sub(1, Ordering::SeqCst);
        self.vacate();
        let found = match found {
            // The program has closed the set: the caller finds that out before the next sleep.
            Err(Errno::BADF | Errno::INVAL) if place.fd.is_lost_after_failure() => 0,
            found => found?,
        };
        let (mut kept, heard) = self.sift(set, &mut events[..found]);
        if heard.members {
            kept = self.empty_members(set, out).0;
        }
        if heard.queued {
            set.wake_watchers();
        }
        if kept == out.len() {
            self.wake_another(set);
        }
        Ok(kept)
    }

    /// Keeps the user's events, in their order, and acts on the others.
    #[inline]
    pub(super) fn sift(&self, set: &Set, events: &mut [Event]) -> (usize, Heard) {
        let is_ours = |event: &Event| self.specials.has(event.data());
        match events.iter().position(is_ours) {
            None => (events.len(), Heard::default()),
            Some(first) => self.sift_from(first, set, events),
        }
    }

    /// The events before `first` are the user's.
    #[cold]
    pub(super) fn sift_from(
        &self,
        first: usize,
        set: &Set,
        events: &mut [Event],
    ) -> (usize, Heard) {
        let mut kept = first;
        let mut heard = Heard::default();
        // Takes no memory: the sets below are looked at part by part.
        let mut below = ArrayVec::<(Special, Events), 16>::new();
        for at in first..events.len() {
            let event = events[at];
            match self.specials.decode(event.data()) {
                None => {
                    events[kept] = event;
                    kept += 1;
                }
                Some(Special::Wake) => {
                    self.wakes_sent.store(0, Ordering::Relaxed);
                    heard.core = true;
                }
                Some(Special::Members) => heard.members = true,
                Some(special) => {
                    heard.core = true;
                    below.push((special, event.events()));
                    if below.is_full() {
                        heard.queued |= self.kick(set, &below);
                        below.clear();
                    }
                }
            }
        }
        if !below.is_empty() {
            heard.queued |= self.kick(set, &below);
        }
        (kept, heard)
    }

    /// As [`KernelBackend::harvest_both`], with `core` to fill in what is ready in the core.
    #[inline]
    pub(crate) fn harvest_with(
        &self,
        set: &Set,
        out: &mut [Event],
        core: impl FnMut(&mut [Event]) -> usize,
    ) -> usize {
        self.begin_harvest();
        let filled = self.harvest_unsettled(set, out, core);
        self.end_harvest(set, filled > 0);
        filled
    }

    #[inline]
    pub(super) fn harvest_unsettled(
        &self,
        set: &Set,
        out: &mut [Event],
        mut core: impl FnMut(&mut [Event]) -> usize,
    ) -> usize {
        let has_members = self.members.load(Ordering::Relaxed) > 0;
        if self.nesting().is_some() || set.is_pending() || !has_members {
            return self.harvest_all(set, out, &mut core);
        }
        // Only members can be ready, unless the data of an event shows something else.
        let found = harvest_of(&self.first.fd, out);
        let is_ours = |event: &Event| self.specials.has(event.data());
        if !out[..found].iter().any(is_ours) {
            return found;
        }
        self.harvest_more(set, out, found, &mut core)
    }

    /// The rest of a harvest whose first `found` events are not all the user's. If some are, the members
    /// have been asked: those that stay ready would be reported twice.
    #[cold]
    pub(super) fn harvest_more(
        &self,
        set: &Set,
        out: &mut [Event],
        found: usize,
        mut core: impl FnMut(&mut [Event]) -> usize,
    ) -> usize {
        let (mut filled, heard) = self.sift(set, &mut out[..found]);
        if heard.core {
            self.vacate();
        }
        if filled == 0 {
            filled = self.harvest_all(set, out, &mut core);
        } else if filled < out.len() && set.is_pending() {
            filled += core(&mut out[filled..]);
        }
        if heard.core {
            self.wake_another(set);
        }
        filled
    }

    #[inline(never)]
    pub(super) fn harvest_all(
        &self,
        set: &Set,
        out: &mut [Event],
        mut core: impl FnMut(&mut [Event]) -> usize,
    ) -> usize {
        let had_nesting = self.nesting.get().is_some();
        // First of all, so that the core knows what is ready below.
        let below = self.empty_nesting(set);
        if below.queued {
            // The kernel has woken the sets above, but it drops that event if they poll later.
            set.wake_watchers();
        }
        // Two threads that read the same take the same turn; the next one does not.
        let core_first = self.core_first.load(Ordering::Relaxed);
        self.core_first.store(!core_first, Ordering::Relaxed);
        let mut filled = 0;
        if core_first && set.is_pending() {
            filled = core(out);
        }
        // The nesting fd knows whether members are ready, as long as it has their set.
        let is_known_idle = || {
            !below.members && self.rotation.is_none() && had_nesting && self.first.fd.is_in_place()
        };
        let may_have_members = self.members.load(Ordering::Relaxed) > 0 && !is_known_idle();
        let mut members = Heard::default();
        if may_have_members {
            let taken;
            (taken, members) = self.take_members(set, &mut out[filled..]);
            filled += taken;
        }
        if !core_first && filled < out.len() && set.is_pending() {
            filled += core(&mut out[filled..]);
        }
        // Another thread takes the items that this one had no room for, or has queued itself when it began to wait.
        if below.core || members.core || filled == out.len() {
            self.wake_another(set);
        }
        if self.shown.get().is_some() || below.members {
            self.take_back_stale_wake(set);
        }
        filled
    }

    /// Takes back a wakeup that came too late for the thread it was meant for, where no harvest of members takes
    /// it: whoever watches the kernel set would find that readable for ever.
    pub(super) fn take_back_stale_wake(&self, set: &Set) {
        if self.rotation.is_some()
            || self.members.load(Ordering::Relaxed) > 0
            || !self.first.fd.is_rung()
        {
            return;
        }
        let is_taken = {
            let _taking_back = self.taking_back.lock();
            self.first.fd.take_back_wake()
        };
        if is_taken {
            self.wakes_sent.store(0, Ordering::Relaxed);
            self.vacate();
            self.wake_another(set);
        }
    }

    /// Returns whether members are ready. Consumes nothing.
    pub(super) fn has_ready_members(&self, set: &Set) -> bool {
        let members = &self.first;
        let _taking_back = self.taking_back.lock();
        if !kernel::is_readable(&members.fd) {
            return false;
        }
        if !members.fd.take_back_wake() {
            return true;
        }
        self.wakes_sent.store(0, Ordering::Relaxed);
        // The wakeup alone may have made it readable.
        let ready = kernel::is_readable(&members.fd);
        // The wake that was taken back may have been meant for a sleeping thread.
        self.vacate();
        self.wake_another(set);
        ready
    }
}
