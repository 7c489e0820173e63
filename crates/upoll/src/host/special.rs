//! Events in a kernel set that are not for the user.
//!
//! A member's event carries the user's data as it is, so a wait can return the kernel's events
//! without a lookup of each. The few events of the library must be distinguishable from those:
//! their data is a random number of the set plus a multiple of a constant. User data that equals
//! such a value by chance would be lost. For a set with a thousand specials the chance is 2^-54 for
//! each different data, and no program can aim for it.

use std::hash::{BuildHasher, Hasher, RandomState};

use crate::eventfd::Direction;
use crate::sync::{AtomicU64, Ordering};

/// An odd number with well-mixed bits (2^64 divided by the golden ratio).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// The inverse of a multiplication by it.
const STEP_INVERSE: u64 = inverse(STEP);

/// Newton's method doubles the right bits each time; an odd number is right to three.
const fn inverse(odd: u64) -> u64 {
    let mut guess = odd;
    let mut round = 0;
    while round < 5 {
        guess = guess.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(guess)));
        round += 1;
    }
    guess
}

/// The meaning of an event that is not for the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Special {
    /// Something in the core became ready.
    Wake,
    /// Members are ready.
    Members,
    /// Something became ready in the kernel backend of the set that the item in this slot watches.
    Nested(u32),
    /// The source of the rotating set that the item in this slot watches chose this set.
    Chosen(u32),
    /// The shared counter that the item in this slot watches has changed.
    Changed(u32, Direction),
}

/// The encoding of the events that a set's kernel backend has for itself.
pub(super) struct Specials {
    first: u64,
    /// Indices below this one are in use.
    limit: AtomicU64,
}

impl Specials {
    pub(super) fn new() -> Self {
        Specials {
            first: RandomState::new().build_hasher().finish(),
            limit: AtomicU64::new(1),
        }
    }

    /// The data for a registration.
    pub(super) fn encode(&self, special: Special) -> u64 {
        let index = match special {
            Special::Wake => 0,
            Special::Members => 1,
            Special::Nested(slot) => 2 + 4 * u64::from(slot),
            Special::Chosen(slot) => 3 + 4 * u64::from(slot),
            Special::Changed(slot, Direction::In) => 4 + 4 * u64::from(slot),
            Special::Changed(slot, Direction::Out) => 5 + 4 * u64::from(slot),
        };
        // Known before the registration, hence before its first event.
        self.limit.fetch_max(index + 1, Ordering::SeqCst);
        self.first.wrapping_add(index.wrapping_mul(STEP))
    }

    /// Returns whether an event's data is not a user's.
    #[inline]
    pub(super) fn has(&self, data: u64) -> bool {
        self.index_of(data) < self.limit.load(Ordering::Relaxed)
    }

    #[inline]
    fn index_of(&self, data: u64) -> u64 {
        data.wrapping_sub(self.first).wrapping_mul(STEP_INVERSE)
    }

    /// Returns the meaning of an event's data; None if the data is a user's.
    pub(super) fn decode(&self, data: u64) -> Option<Special> {
        if !self.has(data) {
            return None;
        }
        let index = self.index_of(data);
        let Some(of_slot) = index.checked_sub(2) else {
            return Some(match index {
                0 => Special::Wake,
                _ => Special::Members,
            });
        };
        let slot = u32::try_from(of_slot / 4).ok()?;
        Some(match of_slot % 4 {
            0 => Special::Nested(slot),
            1 => Special::Chosen(slot),
            2 => Special::Changed(slot, Direction::In),
            _ => Special::Changed(slot, Direction::Out),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specials_come_back_as_encoded_and_other_data_is_the_users() {
        let specials = Specials::new();
        for special in [Special::Wake, Special::Members] {
            assert_eq!(specials.decode(specials.encode(special)), Some(special));
        }
        for slot in [0, 1, 2, 1000, u32::MAX] {
            for special in [
                Special::Nested(slot),
                Special::Chosen(slot),
                Special::Changed(slot, Direction::In),
                Special::Changed(slot, Direction::Out),
            ] {
                assert_eq!(specials.decode(specials.encode(special)), Some(special));
            }
        }
        let fresh = Specials::new();
        let mut users = (0..1000).chain((0..1000).map(|n| u64::MAX - n));
        assert!(users.all(|data| fresh.decode(data).is_none()));
    }
}
