//! Calls that wait until they can be done: the loop that all objects share.

use super::futex::{self, Scope};
use super::timeout::Deadline;
use super::{Outcome, Sleeper};
use crate::errno::Errno;
use crate::eventfd::Direction;
use crate::events::Events;
use crate::host::SharedCounter;
use crate::wait::{Place, WaitQueue};

/// Repeats `attempt` until it returns anything but `EAGAIN`, and sleeps in `queue` in between.
/// Fails with `EINTR` if a signal handler without `SA_RESTART` ran and one more attempt found
/// nothing.
///
/// `attempt` receives the deadline of the wait. An attempt that has done a part sets it to
/// [`Deadline::Never`], so that any signal handler ends the wait.
///
/// At an exclusive `place` the caller may have used up a wakeup that others wait for too. When this
/// function has returned, the caller must wake the next waiter if there is something left.
#[cold]
pub(super) fn until_done<T>(
    queue: &WaitQueue,
    place: Place,
    attempt: impl FnMut(&mut Deadline) -> Result<T, Errno>,
) -> Result<T, Errno> {
    until_done_or(queue, place, Deadline::NeverRestart, attempt)
}

/// As [`until_done`], with a deadline. Fails with `EAGAIN` if it has passed and one more attempt found nothing.
#[cold]
pub(super) fn until_done_or<T>(
    queue: &WaitQueue,
    place: Place,
    deadline: Deadline,
    attempt: impl FnMut(&mut Deadline) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let unwinding = Forwards(queue);
    let done = repeat(queue, place, deadline, attempt);
    core::mem::forget(unwinding);
    done
}

/// Wakes the next waiter: an attempt of one that has taken a wakeup has panicked, in foreign code that it woke.
struct Forwards<'a>(&'a WaitQueue);

impl Drop for Forwards<'_> {
    fn drop(&mut self) {
        self.0.forward_in_order(Events::empty());
    }
}

fn repeat<T>(
    queue: &WaitQueue,
    place: Place,
    mut deadline: Deadline,
    mut attempt: impl FnMut(&mut Deadline) -> Result<T, Errno>,
) -> Result<T, Errno> {
    loop {
        let sleeper = Sleeper::new();
        // SAFETY: the sleeper stays in this frame until it is unhooked, here or by its drop, and
        // the queue is borrowed for longer.
        unsafe { sleeper.entry.hook(queue, place) };
        // Registered, now look.
        match attempt(&mut deadline) {
            Err(Errno::AGAIN) => {}
            done => return done,
        }
        let outcome = sleeper.sleep(deadline);
        sleeper.entry.unhook();
        // Look however the sleep ended: a signal may have come together with a wake, which is
        // nobody else's now.
        match attempt(&mut deadline) {
            Err(Errno::AGAIN) => {}
            // The call would begin anew elsewhere, and wait on.
            Err(Errno::STALE) if outcome == Outcome::Interrupted => {}
            done => return done,
        }
        match outcome {
            Outcome::Woken => {}
            Outcome::TimedOut => return Err(Errno::AGAIN),
            Outcome::Interrupted => return Err(Errno::INTR),
        }
    }
}

/// As [`until_done`], for a counter that other processes change too.
#[cold]
pub(super) fn until_done_by_any<T>(
    counter: &SharedCounter,
    direction: Direction,
    attempt: impl Fn() -> Result<T, Errno>,
) -> Result<T, Errno> {
    loop {
        let expected = counter.enlist(direction);
        // Enlisted, now look.
        match attempt() {
            Err(Errno::AGAIN) => {}
            done => return done,
        }
        let word = counter.word(direction);
        let outcome = futex::wait(word, expected, Deadline::NeverRestart, Scope::Shared);
        // Look however the sleep ended, as above.
        match attempt() {
            Err(Errno::AGAIN) => {}
            done => return done,
        }
        if outcome == Outcome::Interrupted {
            return Err(Errno::INTR);
        }
    }
}
