//! Atomics that pause at random, for `upoll soak` in builds with `--cfg upoll_jitter`.
//!
//! A race is lost where one thread is between two accesses while another one makes a certain step. Such a
//! window lasts nanoseconds, and few of many million runs hit it. Here a thread pauses before some of its
//! accesses, so that the windows are wide. A [plan](set_plan), which is replaced often, says where it pauses and for
//! how long. Most plans choose a sixteenth of the places in the source, and leave all others as fast as ever.
//!
//! During a pause between a store and a load the store becomes visible. So an order of the two that is too weak would
//! never show. Half of the plans keep the processor's store buffer full instead: some stores to memory outside of all
//! caches come first. The store waits behind them, and the load after it does not.

use core::hint::black_box;
use core::ops::Deref;
use core::panic::Location;
use core::ptr;
use core::sync::atomic::{self, AtomicU8};
use std::cell::Cell;
use std::ffi::c_long;

use crate::syscall;

pub use core::sync::atomic::Ordering;

/// The plan of all threads. 0: none pauses.
static PLAN: atomic::AtomicU64 = atomic::AtomicU64::new(0);

std::thread_local! {
    /// The state of a thread's random numbers.
    static STATE: Cell<u64> = const { Cell::new(0) };
}

/// Replaces the plan by a random one, made of `seed`. 0 ends all pauses.
///
/// The child of a fork has the plan of its parent.
pub fn set_plan(seed: u64) {
    PLAN.store(seed, Ordering::Relaxed);
}

/// An access before which a thread may pause.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Not ordered before the loads after it.
    Store,
    Other,
}

/// The use of the bits of a plan.
mod bits {
    /// Pauses come at the chosen places alone.
    pub(super) const PLACES: u64 = 0b1;
    /// Stores wait in the store buffer, and other pauses come seldom.
    pub(super) const STORES: u64 = 0b10;
    /// Without these, some pauses are sleeps. Each takes the time of a hundred races.
    pub(super) const NO_SLEEPS: u64 = 0b11100;
    /// The first of the two bits of the length of pauses, and of the four bits of the number of the chosen places.
    pub(super) const LENGTH: u32 = 5;
    pub(super) const NUMBER: u32 = 7;
}

/// In nanoseconds. The kernel adds about 50 microseconds.
const LONGEST_SLEEP: u64 = 100_000;

/// Most steps of a pause, of which each takes about a nanosecond.
const LENGTHS: [u64; 4] = [100, 500, 2_000, 10_000];

/// Memory of which no part stays in a cache that is near. The stores to it are never read.
static FAR: [Line; LINES] = [const { Line(AtomicU8::new(0)) }; LINES];

const LINES: usize = 1 << 19;

/// One line of a cache.
#[repr(align(64))]
struct Line(AtomicU8);

/// Most stores that come before one.
const STORES_BEFORE: u64 = 64;

#[track_caller]
#[inline(always)]
fn before(access: Access) {
    let plan = PLAN.load(Ordering::Relaxed);
    if plan != 0 {
        pause(plan, access, Location::caller());
    }
}

#[cold]
#[inline(never)]
fn pause(plan: u64, access: Access, place: &'static Location<'static>) {
    let mut rest = draw(plan);
    let mut draw = |bits: u32| {
        let drawn = rest & ((1 << bits) - 1);
        rest >>= bits;
        drawn
    };
    if plan & bits::STORES != 0 {
        if access == Access::Store && draw(1) == 0 {
            return fill_store_buffer(draw(32));
        }
        if draw(3) != 0 {
            return;
        }
    }
    let place = (ptr::from_ref(place).addr() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
    let pauses = match plan & bits::PLACES != 0 {
        true => place == plan >> bits::NUMBER & 0b1111 && draw(1) == 0,
        false => draw(5) == 0,
    };
    if !pauses {
        return;
    }
    if plan & bits::NO_SLEEPS == 0 && draw(3) == 0 {
        return sleep(draw(20) % LONGEST_SLEEP);
    }
    let length = plan >> bits::LENGTH & 0b11;
    for step in 0..draw(20) % LENGTHS[length as usize] {
        black_box(step);
    }
}

/// Returns the next random number of this thread (xorshift64*).
fn draw(plan: u64) -> u64 {
    STATE.with(|state| {
        let mut next = state.get();
        if next == 0 {
            next = plan ^ ptr::from_ref(state).addr() as u64 | 1;
        }
        next ^= next >> 12;
        next ^= next << 25;
        next ^= next >> 27;
        state.set(next);
        next.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    })
}

fn fill_store_buffer(mut draw: u64) {
    for _ in 0..draw % STORES_BEFORE {
        draw = draw.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        FAR[draw as usize % LINES].0.store(1, Ordering::Relaxed);
    }
}

fn sleep(nanoseconds: u64) {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: nanoseconds as c_long,
    };
    // SAFETY: the time is live. A signal may end it early, which does no harm.
    let _ = unsafe { syscall!(SYS_nanosleep, &raw const time, 0) };
}

/// The fence of `core`, after a pause.
#[track_caller]
#[inline(always)]
pub fn fence(order: Ordering) {
    before(Access::Other);
    atomic::fence(order);
}

/// That of `core`. A pause here would order what the processor may not.
#[inline(always)]
pub fn compiler_fence(order: Ordering) {
    atomic::compiler_fence(order);
}

macro_rules! atomics {
    ($($name:ident $([$parameter:ident])? of $value:ty: $($change:ident)*;)+) => {$(
        /// That of `core`, with pauses.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name $(<$parameter>)? (atomic::$name $(<$parameter>)?);

        impl $(<$parameter>)? $name $(<$parameter>)? {
            #[allow(missing_docs)]
            #[inline(always)]
            pub const fn new(value: $value) -> Self {
                $name(atomic::$name::new(value))
            }

            #[allow(missing_docs)]
            #[track_caller]
            #[inline(always)]
            pub fn load(&self, order: Ordering) -> $value {
                before(Access::Other);
                self.0.load(order)
            }

            #[allow(missing_docs)]
            #[track_caller]
            #[inline(always)]
            pub fn store(&self, value: $value, order: Ordering) {
                before(Access::Store);
                self.0.store(value, order);
            }

            #[allow(missing_docs)]
            #[track_caller]
            #[inline(always)]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                before(Access::Other);
                self.0.compare_exchange(current, new, success, failure)
            }

            #[allow(missing_docs)]
            #[track_caller]
            #[inline(always)]
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                before(Access::Other);
                self.0.compare_exchange_weak(current, new, success, failure)
            }

            #[allow(missing_docs)]
            #[track_caller]
            #[inline(always)]
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                mut new: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                self.0.fetch_update(set, fetch, |value| {
                    let new = new(value);
                    before(Access::Other);
                    new
                })
            }

            $(
                #[allow(missing_docs)]
                #[track_caller]
                #[inline(always)]
                pub fn $change(&self, value: $value, order: Ordering) -> $value {
                    before(Access::Other);
                    self.0.$change(value, order)
                }
            )*
        }

        impl $(<$parameter>)? Deref for $name $(<$parameter>)? {
            type Target = atomic::$name $(<$parameter>)?;

            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }
    )+};
}

atomics! {
    AtomicBool of bool: swap fetch_and fetch_or fetch_xor;
    AtomicPtr[T] of *mut T: swap;
    AtomicI32 of i32: swap fetch_add fetch_sub fetch_and fetch_or fetch_max fetch_min;
    AtomicU32 of u32: swap fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min;
    AtomicU64 of u64: swap fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min;
    AtomicUsize of usize: swap fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min;
}
