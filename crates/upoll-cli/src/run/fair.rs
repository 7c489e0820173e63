//! `upoll run --fair`: workers that share a listening socket take turns.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result};

pub(super) const LIBRARY: &str = "libupoll_fair.so";
/// The variable that names the place for statistics.
pub(super) const STATISTICS: &str = "UPOLL_FAIR_STATS";

/// When a worker that has taken a wakeup goes to the end of the line.
#[derive(Clone, Copy)]
pub(super) enum Policy {
    Every(u32),
    Adaptive,
    Exclusive,
}

impl FromStr for Policy {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "every" => Ok(Policy::Every(1)),
            "adaptive" => Ok(Policy::Adaptive),
            "exclusive" => Ok(Policy::Exclusive),
            _ => match text.parse() {
                Ok(wakeups @ 1..=1_000_000) => Ok(Policy::Every(wakeups)),
                _ => Err(
                    "a policy is every, adaptive, exclusive or a number of wakeups up to 1000000",
                ),
            },
        }
    }
}

/// Sets what the library reads from the environment.
pub(super) fn prepare(command: &mut Command, policy: Policy) -> Result<()> {
    let policy = match policy {
        Policy::Every(wakeups) => wakeups.to_string(),
        Policy::Adaptive => "adaptive".into(),
        Policy::Exclusive => "exclusive".into(),
    };
    command.env("UPOLL_FAIR", policy);
    command.env("UPOLL_FAIR_SHARED", shared_file()?);
    Ok(())
}

/// Creates the file through which the processes of the run see each other, of which the library removes the
/// name when the first process ends.
fn shared_file() -> Result<PathBuf> {
    /// The library has no use for a file that is too short for its state.
    const SIZE: u64 = 1 << 17;
    let folder = Path::new("/dev/shm");
    let folder = if folder.is_dir() {
        folder.to_owned()
    } else {
        std::env::temp_dir()
    };
    // The process becomes the program, so its number is that of the first process of the run.
    let path = folder.join(format!(
        "upoll-fair-{}-{:x}",
        std::process::id(),
        fastrand::u64(..)
    ));
    let mut options = std::fs::OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.read(true).write(true).create_new(true).open(&path);
    let file = file.with_context(|| format!("cannot create {}", path.display()))?;
    file.set_len(SIZE)
        .with_context(|| format!("cannot extend {}", path.display()))?;
    Ok(path)
}
