//! The file that the processes of a run share.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// A kind of shared file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// The first part of the names of such files.
    prefix: &'static str,
    /// The size of the state in it. The library ignores a file of another size.
    pub(crate) size: usize,
}

/// The state of `libupoll_fair`.
pub(crate) const FAIR: Kind = Kind {
    prefix: "upoll-fair-",
    size: size_of::<upoll_fair_state::State>(),
};

/// The figures of sets.
pub(crate) const SETS: Kind = Kind {
    prefix: "upoll-sets-",
    size: size_of::<upoll_fds::internal::figures::Page>(),
};

const KINDS: [Kind; 2] = [FAIR, SETS];

impl Kind {
    /// Returns the kind of a shared file.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.as_encoded_bytes();
        KINDS
            .into_iter()
            .find(|kind| name.starts_with(kind.prefix.as_bytes()))
    }

    /// Creates the file that the processes of the run share. The library unlinks it when the first process ends.
    pub(super) fn create(self) -> Result<PathBuf> {
        let folder = Path::new("/dev/shm");
        let folder = if folder.is_dir() {
            folder.to_owned()
        } else {
            // The program may go to another directory.
            std::path::absolute(std::env::temp_dir())?
        };
        remove_stale(&folder);
        // This process becomes the program, so its PID is that of the first process of the run.
        let path = folder.join(format!(
            "{}{}-{:x}",
            self.prefix,
            std::process::id(),
            fastrand::u64(..)
        ));
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let file = options.open(&path);
        let mut file = file.with_context(|| format!("cannot create {}", path.display()))?;
        // All of it now: without room for it later, the program would end by SIGBUS.
        if let Err(error) = file.write_all(&vec![0; self.size]) {
            let _ = std::fs::remove_file(&path);
            return Err(error).with_context(|| format!("cannot write {}", path.display()));
        }
        Ok(path)
    }
}

/// Removes the files of runs whose first process was killed and could not remove its own. This may
/// also remove the file of a run in another PID namespace. Programs that such a run executes
/// afterwards share state only with their own children.
fn remove_stale(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let ended = |process| test_kill_process(process) == Err(Errno::SRCH);
        if first_process(&entry.path()).is_some_and(ended) {
            // Fails for another user's file.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Returns the first process of the run that the file belongs to.
fn first_process(path: &Path) -> Option<Pid> {
    let name = path.file_name().and_then(OsStr::to_str)?;
    let (process, _) = name.strip_prefix(Kind::of(path)?.prefix)?.split_once('-')?;
    Pid::from_raw(process.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Above all process IDs. That of a child that has ended may be another process's by now.
    const ENDED: u32 = i32::MAX.cast_unsigned();

    #[test]
    fn only_the_file_of_a_run_that_has_ended_is_removed() {
        let folder = std::env::temp_dir().join(format!("upoll-stale-{}", std::process::id()));
        // A process with this ID may have left it.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).expect("the name is unique");
        let place = |prefix: &str, process: u32, rest: &str| {
            folder.join(format!("{prefix}{process}{rest}"))
        };
        let stale = KINDS.map(|kind| place(kind.prefix, ENDED, "-1f"));
        let others = [
            place(FAIR.prefix, std::process::id(), "-1f"),
            place(SETS.prefix, ENDED, ""),
            place("upoll-", ENDED, "-1f"),
        ];
        for path in others.iter().chain(&stale) {
            std::fs::write(path, "").expect("the folder is there");
        }
        remove_stale(&folder);
        assert!(stale.iter().all(|path| !path.exists()));
        assert!(others.iter().all(|path| path.exists()));
        std::fs::remove_dir_all(folder).expect("it was there");
    }
}
