//! `upoll run --fair`: workers that share a listening socket take turns.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

pub(super) const LIBRARY: &str = "libupoll_fair.so";
/// The variable that names the place for statistics.
pub(super) const STATISTICS: &str = "UPOLL_FAIR_STATS";

/// The point at which a worker that has taken a wakeup goes to the end of the line.
#[derive(Clone, Copy)]
pub(super) enum Policy {
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
    command.env("UPOLL_FAIR_SHARED", shared_file()?);
    Ok(())
}

/// The first part of the name of a file that the processes of a run share.
pub(crate) const PREFIX: &str = "upoll-fair-";

/// Removes the files of runs whose first process was killed and could not remove its own. This may
/// also remove the file of a run in another PID namespace. Programs that such a run executes
/// afterwards share state only with their own children.
fn remove_stale(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let ended = |process| test_kill_process(process) == Err(Errno::SRCH);
        if first_process(&entry.file_name()).is_some_and(ended) {
            // Fails for another user's file.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Returns the first process of the run that the file belongs to.
fn first_process(name: &OsStr) -> Option<Pid> {
    let (process, _) = name.to_str()?.strip_prefix(PREFIX)?.split_once('-')?;
    Pid::from_raw(process.parse().ok()?)
}

/// Creates the file that the processes of the run share. The library unlinks it when the first
/// process ends.
fn shared_file() -> Result<PathBuf> {
    /// The library ignores a file that is too short for its state.
    const SIZE: u64 = 1 << 17;
    let folder = Path::new("/dev/shm");
    let folder = if folder.is_dir() {
        folder.to_owned()
    } else {
        std::env::temp_dir()
    };
    remove_stale(&folder);
    // This process becomes the program, so its PID is that of the first process of the run.
    let path = folder.join(format!(
        "{PREFIX}{}-{:x}",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_file_of_a_run_that_has_ended_is_removed() {
        let folder = std::env::temp_dir().join(format!("upoll-stale-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("the name is unique");
        let mut ended = Command::new("true").spawn().expect("it starts");
        ended.wait().expect("it is a child");
        let place = |process: u32, rest: &str| folder.join(format!("{PREFIX}{process}{rest}"));
        let stale = place(ended.id(), "-1f");
        let others = [place(std::process::id(), "-1f"), place(ended.id(), "")];
        for path in others.iter().chain([&stale]) {
            std::fs::write(path, "").expect("the folder is there");
        }
        remove_stale(&folder);
        assert!(!stale.exists());
        assert!(others.iter().all(|path| path.exists()));
        std::fs::remove_dir_all(folder).expect("it was there");
    }
}
