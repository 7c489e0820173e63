//! `upoll run --fair`: workers that share a listening socket take turns.

use std::process::Command;

use anyhow::Result;
use upoll_fair_state::Policy;

use super::shared;

pub(super) const LIBRARY: &str = "libupoll_fair.so";
/// The variable that names the place for statistics.
pub(super) const STATISTICS: &str = "UPOLL_FAIR_STATS";

/// Returns the policy of a name.
pub(crate) fn policy(text: &str) -> Result<Policy, &'static str> {
    match Policy::parse(text) {
        Some(Policy::Every(1_000_001..)) | None => Err(
            "a policy is every, adaptive, exclusive, observe or a number of wakeups up to 1000000",
        ),
        Some(policy) => Ok(policy),
    }
}

/// Sets the environment variables that the library reads.
pub(super) fn prepare(command: &mut Command, policy: Policy, datagrams: bool) -> Result<()> {
    let policy = match policy {
        Policy::Every(wakeups) => wakeups.to_string(),
        Policy::Adaptive => "adaptive".into(),
        Policy::Exclusive => "exclusive".into(),
        Policy::Observe => "observe".into(),
    };
    command.env("UPOLL_FAIR", policy);
    command.env("UPOLL_FAIR_DATAGRAMS", if datagrams { "1" } else { "" });
    command.env("UPOLL_FAIR_SHARED", shared::FAIR.create()?);
    Ok(())
}
