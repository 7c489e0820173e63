//! The settings, from the environment.
//!
//! `UPOLL_FAIR` is the policy, `UPOLL_FAIR_STATS` the place for statistics (empty: standard error),
//! `UPOLL_FAIR_SHARED` the file that the processes of one run share.

use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

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

/// The values of the environment.
struct Settings {
    policy: Policy,
    stats: Option<&'static CStr>,
    shared: Option<&'static CStr>,
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();

pub(crate) fn policy() -> Policy {
    SETTINGS
        .get()
        .map_or(Policy::Every(DEFAULT), |settings| settings.policy)
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
    SETTINGS.get()?.stats
}

/// Returns the file that the processes of the run share, if there is one.
pub(crate) fn shared() -> Option<&'static CStr> {
    SETTINGS.get()?.shared.filter(|path| !path.is_empty())
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
    // SAFETY: the caller's contract.
    let value = |name| unsafe { value(environment, name) };
    let policy = value("UPOLL_FAIR").map_or(Policy::Every(DEFAULT), |text| parse(text.to_bytes()));
    let _ = SETTINGS.set(Settings {
        policy,
        stats: value("UPOLL_FAIR_STATS"),
        shared: value("UPOLL_FAIR_SHARED"),
    });
}

/// Returns a copy of a variable's value. The program may change its environment later.
///
/// # Safety
/// That of `read`.
unsafe fn value(environment: *const *const c_char, name: &str) -> Option<&'static CStr> {
    let mut entry = environment;
    // SAFETY: the environment is an array of C strings that ends with a null pointer.
    while !entry.is_null() && !unsafe { *entry }.is_null() {
        // SAFETY: the entry is not the last one, so it is a C string.
        let text = unsafe { CStr::from_ptr(*entry) };
        let value = text.to_bytes().strip_prefix(name.as_bytes());
        if value.is_some_and(|value| value.starts_with(b"=")) {
            // SAFETY: the rest of a C string is one.
            let copy = unsafe { libc::strdup(text.as_ptr().add(name.len() + 1)) };
            // SAFETY: the copy is a C string that is never freed.
            return (!copy.is_null()).then(|| unsafe { CStr::from_ptr(copy) });
        }
        // SAFETY: the array goes on after an entry that is not the last one.
        entry = unsafe { entry.add(1) };
    }
    None
}

fn parse(value: &[u8]) -> Policy {
    let number = || {
        let wakeups = std::str::from_utf8(value).ok()?.parse().ok()?;
        (wakeups > 0).then_some(wakeups)
    };
    match value {
        b"every" => Policy::Every(1),
        b"adaptive" => Policy::Adaptive,
        b"exclusive" => Policy::Exclusive,
        b"observe" => Policy::Observe,
        _ => Policy::Every(number().unwrap_or(DEFAULT)),
    }
}
