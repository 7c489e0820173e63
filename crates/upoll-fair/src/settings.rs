//! The settings, from the environment.
//!
//! `UPOLL_FAIR` is the policy, `UPOLL_FAIR_STATS` the place for statistics (empty: standard error),
//! `UPOLL_FAIR_SHARED` the file that the processes of one run share. With `UPOLL_FAIR_DATAGRAMS`, if it is not empty, workers
//! take turns at datagram sockets, too.

use std::env::var_os;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStringExt;
use std::sync::LazyLock;

pub(crate) use upoll_fair_state::Policy;

/// The values of the environment.
struct Settings {
    policy: Policy,
    stats: Option<CString>,
    shared: Option<CString>,
    datagrams: bool,
}

/// The constructor is the first to look at them. The program may change its environment later.
static SETTINGS: LazyLock<Settings> = LazyLock::new(|| {
    // SAFETY: no pointers are involved.
    let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    // In secure-execution mode (as for a set-user-ID program) the environment is another user's.
    let value = |name| var_os(name).filter(|_| !is_secure);
    let path = |name| CString::new(value(name)?.into_vec()).ok();
    let policy = value("UPOLL_FAIR").and_then(|text| Policy::parse(text.to_str()?));
    Settings {
        policy: policy.unwrap_or_default(),
        stats: path("UPOLL_FAIR_STATS"),
        shared: path("UPOLL_FAIR_SHARED"),
        datagrams: value("UPOLL_FAIR_DATAGRAMS").is_some_and(|text| !text.is_empty()),
    }
});

pub(crate) fn policy() -> Policy {
    SETTINGS.policy
}

/// Returns whether a worker that was woken goes to the end of the line at some time.
pub(crate) fn takes_turns() -> bool {
    !matches!(policy(), Policy::Exclusive | Policy::Observe)
}

/// Returns whether registrations stay as the program made them.
pub(crate) fn is_observing() -> bool {
    policy() == Policy::Observe
}

/// Returns whether workers take turns at datagram sockets, too.
pub(crate) fn with_datagrams() -> bool {
    SETTINGS.datagrams
}

/// Returns the file for statistics, if they are asked for; empty for standard error.
pub(crate) fn stats() -> Option<&'static CStr> {
    SETTINGS.stats.as_deref()
}

/// Returns the file that the processes of the run share, if there is one.
pub(crate) fn shared() -> Option<&'static CStr> {
    let path = SETTINGS.shared.as_deref();
    path.filter(|path| !path.is_empty())
}
