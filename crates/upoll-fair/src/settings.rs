//! The settings, from the environment.
//!
//! `UPOLL_FAIR` is the policy, `UPOLL_FAIR_STATS` the place for statistics (empty: standard error),
//! `UPOLL_FAIR_SHARED` the file that the processes of one run share.

use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

/// The time at which a worker that has taken a wakeup goes to the end of the line.
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

unsafe extern "C" {
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

/// Reads the settings. Called once, by the constructor. In secure-execution mode (as for a set-user-ID program) the
/// environment is another user's, and all settings stay the default.
pub(crate) fn read() {
    let _ = SETTINGS.set(Settings {
        policy: value(c"UPOLL_FAIR").map_or(Policy::Every(DEFAULT), |text| parse(text.to_bytes())),
        stats: value(c"UPOLL_FAIR_STATS"),
        shared: value(c"UPOLL_FAIR_SHARED"),
    });
}

/// Returns a copy of a variable's value. The program may change its environment later.
fn value(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: the name is a C string.
    let value = unsafe { secure_getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: the value is a C string.
    let copy = unsafe { libc::strdup(value) };
    // SAFETY: the copy is a C string that is never freed.
    (!copy.is_null()).then(|| unsafe { CStr::from_ptr(copy) })
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
