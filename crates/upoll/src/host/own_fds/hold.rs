//! Holding the fds: no other thread opens an own fd meanwhile, or puts a file of the program's in the place of one.

use std::os::fd::RawFd;

use upoll_sys::signals::{self, AlternateStack};

use super::entries::{MOST_WAITS, lowest};
use super::is_protected;
use crate::sync::{AtomicU64, Backoff, Ordering, statics, this_thread};

/// Keeps other threads from opening own fds, and from putting files of the program's in their place,
/// until it is dropped.
#[derive(Debug)]
pub struct FdsHeld(u64);

statics! {
    /// The [`holder`] of the fds, or 0. A signal handler may have left the holder's call for good.
    static HOLDER: AtomicU64 = AtomicU64::new(0);
}

/// Stands for the thread, in the upper half, and for the depth of its stack.
fn holder() -> u64 {
    let here = 0_u8;
    let depth = (&raw const here).addr() as u64;
    u64::from(this_thread()) << 32 | depth & u64::from(u32::MAX)
}

/// Returns whether a handler has left the call of the holder `other`; None if that is another thread, or another stack. A call
/// that lasts is at a higher address than its callees, unless one is on the alternate signal stack of the thread.
fn is_over(
    other: u64,
    me: u64,
    alternate_stack: impl FnOnce() -> Option<AlternateStack>,
) -> Option<bool> {
    /// Stacks that lie closer are rare.
    const STACK: u32 = 1 << 20;
    if cfg!(upoll_loom) || other >> 32 != me >> 32 {
        return None;
    }
    let (other, me) = (other as u32, me as u32);
    if let Some(AlternateStack {
        addresses,
        is_in_use,
    }) = alternate_stack()
    {
        let first = addresses.start as u32;
        let lies_on_it = |depth: u32| (depth.wrapping_sub(first) as usize) < addresses.len();
        if is_in_use != lies_on_it(other) {
            // A handler on that stack interrupts the other one, and has ended before the other one goes on.
            return Some(!is_in_use);
        }
    }
    let above = other.wrapping_sub(me).cast_signed();
    (above.unsigned_abs() < STACK).then_some(above <= 0)
}

/// Holds the fds for a call that puts a file of the program's under `fd`, if that is among those
/// that the library may take.
#[inline]
#[must_use]
pub fn hold_fds(fd: RawFd) -> Option<FdsHeld> {
    match may_take(fd) {
        true => hold_protected_fds(),
        false => None,
    }
}

/// Returns whether an fd is among those that the library may take, if they are protected.
#[inline]
#[must_use]
pub fn may_take(fd: RawFd) -> bool {
    // The first own fd of a process may be opened at this moment. With such a low fd it is one of few.
    const LOWEST_OF_THE_FIRST: RawFd = 64;
    fd >= lowest().min(LOWEST_OF_THE_FIRST)
}

/// Holds the fds while one is opened and recorded.
#[cold]
pub(in crate::host) fn hold_protected_fds() -> Option<FdsHeld> {
    if !is_protected() {
        return None;
    }
    let me = holder();
    let (mut backoff, mut last) = (Backoff::new(), 0);
    loop {
        let mut taken = HOLDER.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed);
        if let Err(other) = taken {
            let is_over = match is_over(other, me, signals::alternate_stack) {
                // This is a signal handler, and the thread that it has interrupted holds them.
                Some(false) => return None,
                Some(true) => true,
                // The other one has left, or waits in the kernel.
                None => backoff.waits() >= MOST_WAITS && other == last,
            };
            if is_over {
                // From now on that one holds nothing.
                taken = HOLDER.compare_exchange(other, me, Ordering::Acquire, Ordering::Relaxed);
            }
        }
        if taken.is_ok() {
            return Some(FdsHeld(me));
        }
        // Each other holder has a time of its own.
        let now = taken.err().unwrap_or(0);
        if now != last {
            (backoff, last) = (Backoff::new(), now);
        }
        backoff.wait();
    }
}

impl Drop for FdsHeld {
    fn drop(&mut self) {
        let _ = HOLDER.compare_exchange(self.0, 0, Ordering::Release, Ordering::Relaxed);
    }
}

/// Ends a hold in the child of a fork: the holder may be a thread of the parent.
#[cfg(not(upoll_loom))]
pub(in crate::host) fn forget_holder() {
    if HOLDER.load(Ordering::Relaxed) != 0 {
        HOLDER.store(0, Ordering::Release);
    }
}

#[cfg(all(test, not(upoll_loom)))]
mod tests {
    use super::*;

    const THREAD: u64 = 7 << 32;
    const ANOTHER: u64 = 9 << 32;

    #[test]
    fn a_holder_at_a_higher_address_of_the_same_stack_goes_on() {
        assert_eq!(
            is_over(THREAD | 0x8000, THREAD | 0x7000, || None),
            Some(false)
        );
        assert_eq!(
            is_over(THREAD | 0x7000, THREAD | 0x8000, || None),
            Some(true)
        );
        assert_eq!(is_over(THREAD | 0x40_0000, THREAD | 0x7000, || None), None);
        assert_eq!(is_over(ANOTHER | 0x8000, THREAD | 0x7000, || None), None);
    }

    #[test]
    fn a_handler_on_the_alternate_stack_finds_the_interrupted_holder_wherever_the_stack_lies() {
        let stack = |is_in_use| {
            move || {
                Some(AlternateStack {
                    addresses: 0x7f00_1000_0000..0x7f00_1000_4000,
                    is_in_use,
                })
            }
        };
        let on_it = THREAD | 0x1000_2000;
        for elsewhere in [0x0fff_f000, 0x1000_5000, 0x6000_0000].map(|depth| THREAD | depth) {
            assert_eq!(is_over(elsewhere, on_it, stack(true)), Some(false));
            // The handler has ended by then.
            assert_eq!(is_over(on_it, elsewhere, stack(false)), Some(true));
        }
        assert_eq!(
            is_over(on_it, THREAD | 0x1000_1000, stack(true)),
            Some(false)
        );
    }
}
