//! Numbers the processes of a line of forks: the protocol of `host::generation`, apart from the place of
//! its two words.

use crate::sync::{AtomicU32, Ordering, Rule, broken};

/// This process's number. `count` is at least the numbers of all processes before it; `mark` is this one's
/// plus one, and zero in a child that has not asked before.
#[inline]
pub fn generation(count: &AtomicU32, mark: &AtomicU32) -> u32 {
    match mark.load(Ordering::Acquire) {
        0 => begin(count, mark),
        known => known.wrapping_sub(1),
    }
}

/// In a child that may not have asked before.
#[cold]
fn begin(count: &AtomicU32, mark: &AtomicU32) -> u32 {
    let is_counted_late = broken(Rule::CountThenMark);
    // Before the mark: a thread that sees that goes on, and may make a child that has to have another.
    let before = match is_counted_late {
        true => count.load(Ordering::Relaxed),
        false => count.fetch_add(1, Ordering::Relaxed),
    };
    let next = before.wrapping_add(1);
    let mark_of_next = next.wrapping_add(1);
    let made = mark.compare_exchange(0, mark_of_next, Ordering::Release, Ordering::Acquire);
    if is_counted_late {
        count.store(next, Ordering::Relaxed);
    }
    // Another thread of the child may have been quicker. Numbers that are left out do no harm.
    made.map_or_else(|there| there.wrapping_sub(1), |_| next)
}
