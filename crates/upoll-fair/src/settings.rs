//! The settings, from the environment.
//!
//! `UPOLL_FAIR` is the policy, `UPOLL_FAIR_STATS` the place for statistics (empty: standard error),
//! `UPOLL_FAIR_SHARED` the file that the processes of one run share.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// When a worker that has taken a wakeup goes to the end of the line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// After each so many wakeups.
    Every(u32),
    /// After each wakeup, if another worker is asleep.
    Adaptive,
    /// Never: the kernel's order for `EPOLLEXCLUSIVE`.
    Exclusive,
    /// Every worker is woken, as without the library, which only counts.
    Observe,
}

/// The number of wakeups after which a worker goes to the end of the line if no policy is named.
const DEFAULT: u32 = match u32::from_str_radix(upoll_fair_state::DEFAULT_POLICY, 10) {
    Ok(wakeups) => wakeups,
    Err(_) => panic!("the default policy is a number"),
};
const ADAPTIVE: u32 = 0;
const EXCLUSIVE: u32 = u32::MAX;
const OBSERVE: u32 = u32::MAX - 1;

static POLICY: AtomicU32 = AtomicU32::new(DEFAULT);
static STATS: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());
static SHARED: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());

pub(crate) fn policy() -> Policy {
    match POLICY.load(Ordering::Relaxed) {
        ADAPTIVE => Policy::Adaptive,
        EXCLUSIVE => Policy::Exclusive,
        OBSERVE => Policy::Observe,
        wakeups => Policy::Every(wakeups),
    }
}

/// Returns whether a worker that was woken goes to the end of the line at some time.
pub(crate) fn takes_turns() -> bool {
    !matches!(policy(), Policy::Exclusive | Policy::Observe)
}

/// Returns whether registrations stay as the program made them.
pub(crate) fn is_observing() -> bool {
    policy() == Policy::Observe
}

/// Returns the file for statistics, if they are asked for; empty for standard error.
pub(crate) fn stats() -> Option<&'static CStr> {
    text(&STATS)
}

/// Returns the file that the processes of the run share, if there is one.
pub(crate) fn shared() -> Option<&'static CStr> {
    text(&SHARED).filter(|path| !path.is_empty())
}

fn text(variable: &AtomicPtr<c_char>) -> Option<&'static CStr> {
    let text = variable.load(Ordering::Relaxed);
    // SAFETY: `read` stored a C string that is never freed.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// Reads the settings. Called once, by the constructor. In secure-execution mode (as for a set-user-ID program) the
/// environment is another user's, and all settings stay the default.
///
/// # Safety
/// `environment` must be the environment of the process.
pub(crate) unsafe fn read(environment: *const *const c_char) {
    // SAFETY: no pointers are involved.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return;
    }
    let mut entry = environment;
    // SAFETY: the environment is an array of C strings that ends with a null pointer.
    while !entry.is_null() && !unsafe { *entry }.is_null() {
        // SAFETY: the entry is not the last one, so it is a C string.
        let text = unsafe { CStr::from_ptr(*entry) };
        if let Some(value) = text.to_bytes().strip_prefix(b"UPOLL_FAIR=") {
            POLICY.store(parse(value), Ordering::Relaxed);
        }
        for (name, variable) in [
            (c"UPOLL_FAIR_STATS=", &STATS),
            (c"UPOLL_FAIR_SHARED=", &SHARED),
        ] {
            if text.to_bytes().starts_with(name.to_bytes()) {
                // The program may change its environment later. This copy is never freed.
                // SAFETY: the rest of a C string is one.
                let copy = unsafe { libc::strdup(text.as_ptr().add(name.count_bytes())) };
                variable.store(copy, Ordering::Relaxed);
            }
        }
        // SAFETY: the array goes on after an entry that is not the last one.
        entry = unsafe { entry.add(1) };
    }
}

fn parse(value: &[u8]) -> u32 {
    match value {
        b"every" => 1,
        b"adaptive" => ADAPTIVE,
        b"exclusive" => EXCLUSIVE,
        b"observe" => OBSERVE,
        _ => {
            let number = std::str::from_utf8(value)
                .ok()
                .and_then(|text| text.parse().ok());
            number
                .filter(|wakeups| (1..OBSERVE).contains(wakeups))
                .unwrap_or(DEFAULT)
        }
    }
}
