//! An opt-in spin before a thread sleeps in a set.

use std::time::Duration;

use super::Sleeper;
use super::timeout::Deadline;
use crate::Epoll;
use crate::epoll::Set;
use crate::epoll::backend::KernelBackend;
use crate::host::EpollBackend;
use crate::sync::Ordering;

impl Epoll {
    /// Sets for how long a thread that waits in this set spins before it sleeps; zero, as in a new set, for
    /// not at all.
    ///
    /// A thread that spins notices an event within a fraction of a microsecond, and the thread that caused the event
    /// makes no system call. It occupies a processor meanwhile: choose no more than the time that a sleep and a wakeup
    /// take, about five microseconds, unless processors are idle. On a machine with one processor it only costs time.
    ///
    /// The longest spin is four seconds. It never lasts longer than the time limit of the wait. In a set with kernel fds
    /// each round of the spin makes system calls, and finds events of all members. [`pwait`](Epoll::pwait) and waits in
    /// sets that are above a rotating set do not spin, nor do those in a rotating set with a kernel fd.
    ///
    /// A signal handler that runs during the spin does not end the wait with `EINTR`: it counts as having run before
    /// the call.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// use upoll::Epoll;
    ///
    /// let set = Epoll::new()?;
    /// assert_eq!(set.spin(), Duration::ZERO);
    /// set.set_spin(Duration::from_micros(5));
    /// assert_eq!(set.spin(), Duration::from_micros(5));
    /// # Ok::<(), upoll::Errno>(())
    /// ```
    pub fn set_spin(&self, spin: Duration) {
        let nanoseconds = u32::try_from(spin.as_nanos()).unwrap_or(u32::MAX);
        self.set().spin.store(nanoseconds, Ordering::Relaxed);
    }

    /// Returns for how long a thread that waits in this set spins before it sleeps.
    #[must_use]
    pub fn spin(&self) -> Duration {
        spin_of(self.set())
    }
}

fn spin_of(set: &Set) -> Duration {
    Duration::from_nanos(set.spin.load(Ordering::Relaxed).into())
}

/// Returns when the spin ends of a wait that begins to sleep now, if it spins.
fn end_of_spin(set: &Set, deadline: Deadline) -> Option<Deadline> {
    let spin = spin_of(set);
    (!spin.is_zero()).then(|| deadline.within(Some(spin)))
}

/// Waits on the sleeper's word for as long as the set spins. Returns whether it was woken meanwhile.
pub(super) fn spin(set: &Set, sleeper: &Sleeper, deadline: Deadline) -> bool {
    end_of_spin(set, deadline).is_some_and(|end| sleeper.spin(end))
}

/// Harvests until something is ready or the spin of the set is over, for a set whose members may be kernel fds.
/// Ends as well when the program has closed the set's own fds. Returns the number of events.
pub(super) fn harvest_repeatedly(
    set: &Set,
    backend: &EpollBackend,
    deadline: Deadline,
    mut harvest: impl FnMut() -> usize,
) -> usize {
    // The members of a set above a rotating one are another thread's to take.
    if set.takes_turns() {
        return 0;
    }
    let Some(end) = end_of_spin(set, deadline) else {
        return 0;
    };
    loop {
        let ready = harvest();
        if ready > 0 || backend.is_found_lost() || end.has_passed() {
            return ready;
        }
    }
}
