//! An allocator that fails one allocation, and a runner that repeats a scenario once for each
//! allocation.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};

use upoll::Errno;

/// The system's allocator, which fails one allocation.
struct Failing;

/// The number of allocations that succeed before one fails. Negative after the failure, or if none
/// is to fail.
static BEFORE: AtomicIsize = AtomicIsize::new(-1);
static BYTES: AtomicUsize = AtomicUsize::new(0);
/// True if all later allocations of the operation fail, too.
static LASTS: AtomicBool = AtomicBool::new(false);
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

fn fails_now() -> bool {
    let lasts = LASTS.load(Ordering::Relaxed) && HAS_FAILED.load(Ordering::Relaxed);
    let is_next =
        BEFORE.load(Ordering::Relaxed) >= 0 && BEFORE.fetch_sub(1, Ordering::Relaxed) == 0;
    if is_next {
        HAS_FAILED.store(true, Ordering::Relaxed);
    }
    is_next || lasts
}

// SAFETY: forwards every call to the system's allocator, or fails it.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if fails_now() {
            return std::ptr::null_mut();
        }
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is that of `System.alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is that of `System.dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

/// Runs operations, one allocation of which fails.
pub struct Fault {
    /// The number of allocations that succeed before it.
    before: isize,
    was_met: bool,
}

impl Fault {
    /// Runs an operation, and runs it again if it fails with `ENOMEM`.
    pub fn during<T: Debug>(&mut self, mut operation: impl FnMut() -> Result<T, Errno>) -> T {
        BEFORE.store(self.before, Ordering::Relaxed);
        let result = operation();
        // Negative: the allocation has failed.
        self.before = BEFORE.swap(-1, Ordering::Relaxed);
        self.was_met |= HAS_FAILED.swap(false, Ordering::Relaxed);
        match result {
            Err(errno) => {
                assert!(self.was_met, "{errno} without a failure");
                assert!(matches!(errno, Errno::NOMEM | Errno::NOBUFS), "{errno}");
                operation().expect("there is memory again")
            }
            Ok(value) => value,
        }
    }
}

const FAILED: i32 = 1;
const MET: i32 = 2;
const DONE: i32 = 3;

/// Runs `scenario` and fails one allocation after `before` others. Returns whether the scenario
/// reached that allocation.
fn fail_once(name: &str, most_left: isize, scenario: &impl Fn(&mut Fault), before: isize) -> i32 {
    let mut none = Fault {
        before: -1,
        was_met: false,
    };
    // Allocates what is allocated once a process and never freed.
    scenario(&mut none);
    scenario(&mut none);
    let bytes = BYTES.load(Ordering::Relaxed);
    let mut fault = Fault {
        before,
        was_met: false,
    };
    scenario(&mut fault);
    let left = BYTES.load(Ordering::Relaxed).wrapping_sub(bytes) as isize;
    assert!(left <= most_left, "{name}, {before}: {left} bytes are left");
    if fault.was_met { MET } else { DONE }
}

/// Runs `scenario` in child processes. The first allocation fails in the first child, the second
/// one in the next, until the scenario makes no more. Messages of the children show with
/// `--nocapture`.
pub fn each_allocation_fails(name: &str, scenario: impl Fn(&mut Fault)) {
    each_allocation_fails_with_leaks(name, 0, scenario);
}

/// As [`each_allocation_fails`]. With the allocation all later ones of the same operation fail.
#[allow(dead_code, reason = "not every test uses all of it")]
pub fn all_allocations_fail_from_each_on(name: &str, scenario: impl Fn(&mut Fault)) {
    LASTS.store(true, Ordering::Relaxed);
    each_allocation_fails(name, scenario);
    LASTS.store(false, Ordering::Relaxed);
}

/// As [`each_allocation_fails`], for a scenario that leaves that many bytes at most.
pub fn each_allocation_fails_with_leaks(
    name: &str,
    most_left: isize,
    scenario: impl Fn(&mut Fault),
) {
    for before in 0..2_000 {
        // SAFETY: the child runs the scenario and exits. No other thread of this process holds a
        // lock that the child needs, because the tests of a file run one after the other.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let in_child = AssertUnwindSafe(|| fail_once(name, most_left, &scenario, before));
            // If the only thread panicked the child would exit as if it had succeeded.
            let status = catch_unwind(in_child).unwrap_or(FAILED);
            // SAFETY: ends the child.
            unsafe { libc::_exit(status) };
        }
        assert!(child > 0);
        let mut status = 0;
        // SAFETY: the status is written to a variable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(
            libc::WIFEXITED(status),
            "{name}: the allocation {before} fails, and the process ends by signal {}",
            libc::WTERMSIG(status)
        );
        match libc::WEXITSTATUS(status) {
            DONE => return,
            status => assert_eq!(status, MET, "{name}, {before}"),
        }
    }
    panic!("{name} has no end");
}
