//! `upoll run --fair`: workers that share a listening socket take turns.

use std::process::Command;
use std::str::FromStr;

use anyhow::Result;

use super::shared;

pub(super) const LIBRARY: &str = "libupoll_fair.so";
/// The variable that names the place for statistics.
pub(super) const STATISTICS: &str = "UPOLL_FAIR_STATS";

/// The point at which a worker that has taken a wakeup goes to the end of the line.
#[derive(Clone, Copy)]
pub(crate) enum Policy {
    Every(u32),
    Adaptive,
    Exclusive,
    Observe,
}

impl FromStr for Policy {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "every" => Ok(Policy::Every(1)),
            "adaptive" => Ok(Policy::Adaptive),
            "exclusive" => Ok(Policy::Exclusive),
            "observe" => Ok(Policy::Observe),
            _ => match text.parse() {
                Ok(wakeups @ 1..=1_000_000) => Ok(Policy::Every(wakeups)),
                _ => Err(
                    "a policy is every, adaptive, exclusive, observe or a number of wakeups up to 1000000",
                ),
            },
        }
    }
}

/// Sets the environment variables that the library reads.
pub(super) fn prepare(command: &mut Command, policy: Policy) -> Result<()> {
    let policy = match policy {
        Policy::Every(wakeups) => wakeups.to_string(),
        Policy::Adaptive => "adaptive".into(),
        Policy::Exclusive => "exclusive".into(),
        Policy::Observe => "observe".into(),
    };
    command.env("UPOLL_FAIR", policy);
    command.env("UPOLL_FAIR_SHARED", shared::FAIR.create()?);
    Ok(())
}
