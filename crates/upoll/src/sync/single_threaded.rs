//! Atomics that need no locked instruction while the process has one thread.
//!
//! A locked instruction costs as much as ten others, and orders this thread with threads that there
//! may not be. The C library knows whether there are any: `__libc_single_threaded`
//! (`<sys/single_threaded.h>`, glibc 2.32), which it goes by itself, in `malloc` for one, as the
//! kernel goes by the number of its users when it looks a descriptor up. While there is one thread an
//! atomic operation here is one plain instruction: whole for a signal handler that comes between
//! two instructions, and what a second thread finds when it has been made, as making one orders all
//! before it with all that it does.
//!
//! What processes share needs the [atomics of `core`](core::sync::atomic): there is always another one.
//! Nor may a thread be made behind the C library's back, by a bare `clone(2)` or by a second C library
//! (`dlmopen(3)`): that breaks the C library's own locks, too.

use core::arch::asm;
use core::fmt;
use core::ops::{BitAnd, BitOr};
use core::sync::atomic::{self, Ordering, compiler_fence};

/// Whether this thread is the only one of the process.
#[inline(always)]
pub(super) fn is_only_thread() -> bool {
    let says: *const atomic::AtomicU8;
    // SAFETY: the linker puts the address of the C library's variable there, or null if the C library
    // has none, and that never changes.
    unsafe {
        asm!(
            ".weak __libc_single_threaded",
            "mov {}, qword ptr [rip + __libc_single_threaded@GOTPCREL]",
            out(reg) says,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    // SAFETY: it is null or a variable that is never freed. Another thread may write it only if there
    // is one already.
    unsafe { says.as_ref() }.is_some_and(|says| says.load(Ordering::Relaxed) != 0)
}

/// A fence, for the processor only if there is another thread.
#[inline(always)]
pub(crate) fn fence(order: Ordering) {
    if is_only_thread() {
        compiler_fence(order);
    } else {
        atomic::fence(order);
    }
}

/// What fits an atomic of this module.
trait Word: Copy + PartialEq {
    /// Compares and exchanges in one instruction, which no signal handler can come into the middle
    /// of; says what was there. `new` is there now if that was `current`.
    ///
    /// # Safety
    /// `at` is valid to read and write, and no other thread exists.
    unsafe fn compare_exchange(at: *mut Self, current: Self, new: Self) -> Self;

    /// Puts `change` of what is there in its place, and says what was there.
    ///
    /// # Safety
    /// `at` is valid to read and write, and no other thread exists.
    #[inline(always)]
    unsafe fn change(at: *mut Self, change: impl Fn(Self) -> Self) -> Self {
        // SAFETY: the caller's contract.
        let mut now = unsafe { at.read_volatile() };
        loop {
            // SAFETY: the caller's contract.
            let was = unsafe { Self::compare_exchange(at, now, change(now)) };
            if was == now {
                return was;
            }
            // A signal handler came between.
            now = was;
        }
    }
}

macro_rules! word {
    ([$($of:ident)?] $kind:ty, $class:ident, $instruction:literal, $register:tt) => {
        impl $(<$of>)? Word for $kind {
            #[inline(always)]
            unsafe fn compare_exchange(at: *mut Self, current: Self, new: Self) -> Self {
                let was;
                // SAFETY: the caller's contract.
                unsafe {
                    asm!(
                        $instruction,
                        at = in(reg) at,
                        new = in($class) new,
                        inout($register) current => was,
                        options(nostack)
                    );
                }
                was
            }
        }
    };
}

word!([] u8, reg_byte, "cmpxchg byte ptr [{at}], {new}", "al");
word!([] u32, reg, "cmpxchg dword ptr [{at}], {new:e}", "eax");
word!([] u64, reg, "cmpxchg qword ptr [{at}], {new:r}", "rax");
word!([] usize, reg, "cmpxchg qword ptr [{at}], {new:r}", "rax");
word!([T] *mut T, reg, "cmpxchg qword ptr [{at}], {new:r}", "rax");

impl Word for bool {
    #[inline(always)]
    unsafe fn compare_exchange(at: *mut Self, current: Self, new: Self) -> Self {
        // SAFETY: the caller's contract; a bool is a byte, and what is put there is one's.
        unsafe { u8::compare_exchange(at.cast(), current.into(), new.into()) != 0 }
    }
}

/// What every atomic has, with the interface of `core`'s.
macro_rules! atomic {
    ($name:ident $(<$of:ident>)?, $kind:ty) => {
        #[repr(transparent)]
        pub(crate) struct $name $(<$of>)? (atomic::$name $(<$of>)?);

        #[allow(dead_code, reason = "not every kind needs everything")]
        impl $(<$of>)? $name $(<$of>)? {
            #[inline(always)]
            pub(crate) const fn new(value: $kind) -> Self {
                $name(atomic::$name::new(value))
            }

            #[inline(always)]
            pub(crate) fn get_mut(&mut self) -> &mut $kind {
                self.0.get_mut()
            }

            #[inline(always)]
            pub(crate) fn as_ptr(&self) -> *mut $kind {
                self.0.as_ptr()
            }

            #[inline(always)]
            pub(crate) fn load(&self, order: Ordering) -> $kind {
                self.0.load(order)
            }

            #[inline(always)]
            pub(crate) fn store(&self, value: $kind, order: Ordering) {
                // To order it with a later load takes a locked instruction.
                if order == Ordering::SeqCst && is_only_thread() {
                    self.0.store(value, Ordering::Release);
                    compiler_fence(Ordering::SeqCst);
                } else {
                    self.0.store(value, order);
                }
            }

            #[inline(always)]
            pub(crate) fn compare_exchange(
                &self,
                current: $kind,
                new: $kind,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$kind, $kind> {
                if !is_only_thread() {
                    return self.0.compare_exchange(current, new, success, failure);
                }
                // SAFETY: the word is alive, and there is no other thread.
                let was = unsafe { Word::compare_exchange(self.0.as_ptr(), current, new) };
                if was == current { Ok(was) } else { Err(was) }
            }

            #[inline(always)]
            pub(crate) fn compare_exchange_weak(
                &self,
                current: $kind,
                new: $kind,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$kind, $kind> {
                self.compare_exchange(current, new, success, failure)
            }

            #[inline(always)]
            pub(crate) fn swap(&self, value: $kind, order: Ordering) -> $kind {
                if !is_only_thread() {
                    return self.0.swap(value, order);
                }
                // SAFETY: the word is alive, and there is no other thread.
                unsafe { Word::change(self.0.as_ptr(), |_| value) }
            }
        }

        impl $(<$of>)? fmt::Debug for $name $(<$of>)? {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

/// What those that count have besides.
macro_rules! changes {
    ($name:ident, $kind:ty: $($change:ident = $with:expr),*) => {
        #[allow(dead_code, reason = "not every kind needs everything")]
        impl $name {
            $(
                #[inline(always)]
                pub(crate) fn $change(&self, operand: $kind, order: Ordering) -> $kind {
                    if !is_only_thread() {
                        return self.0.$change(operand, order);
                    }
                    let with: fn($kind, $kind) -> $kind = $with;
                    // SAFETY: the word is alive, and there is no other thread.
                    unsafe { Word::change(self.0.as_ptr(), |now| with(now, operand)) }
                }
            )*
        }
    };
}

macro_rules! atomic_number {
    ($name:ident, $kind:ident) => {
        atomic!($name, $kind);
        changes!($name, $kind:
            fetch_add = $kind::wrapping_add,
            fetch_sub = $kind::wrapping_sub,
            fetch_and = BitAnd::bitand,
            fetch_or = BitOr::bitor,
            fetch_max = Ord::max
        );
    };
}

atomic_number!(AtomicU32, u32);
atomic_number!(AtomicU64, u64);
atomic_number!(AtomicUsize, usize);
atomic!(AtomicBool, bool);
changes!(AtomicBool, bool: fetch_and = BitAnd::bitand, fetch_or = BitOr::bitor);
atomic!(AtomicPtr<T>, *mut T);
