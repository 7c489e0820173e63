//! `upoll run`: starts a program with `libupoll_preload.so` before its C library, or with
//! `libupoll_fair.so`.
//!
//! The program replaces this process, so standard input, signals and the exit status are its own.

pub(crate) mod fair;
mod program;
pub(crate) mod shared;

use std::ffi::{CStr, CString, OsString};
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use upoll_fair_state::{DEFAULT_POLICY, Policy};

/// The options of `upoll run`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The kinds of objects to serve in user space, with commas between.
    ///
    /// An epoll set is served when it holds such an object; with `epoll` it is from its start. With `none` all calls
    /// are passed on.
    #[arg(
        long,
        value_name = "KINDS",
        default_value = "eventfd",
        value_delimiter = ','
    )]
    user: Vec<Kind>,
    /// Makes workers that share a listening socket take turns, and has no other effect.
    ///
    /// A worker goes to the end of the line after each wakeup with POLICY `every`, after N wakeups with a
    /// number (8 if none is named), after a wakeup with `adaptive` if another worker is asleep, and never with
    /// `exclusive` (each connection wakes one worker, always the first that is idle). With `observe` each
    /// connection wakes every worker, as without the library, and `--stats` counts.
    ///
    /// Workers in `poll` or `select` go to the end of the line whenever they fall asleep.
    #[arg(
        long,
        value_name = "POLICY",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = DEFAULT_POLICY,
        value_parser = fair::policy,
        conflicts_with = "user"
    )]
    fair: Option<Policy>,
    /// With `--fair`, has workers take turns at datagram sockets, too: UDP and Unix ones.
    ///
    /// The library cannot know which of them the workers share, so it registers each one exclusively. Edge-triggered
    /// interests in them stay as they are. `--stats` counts no messages.
    #[arg(long, requires = "fair")]
    datagrams: bool,
    /// Reports the calls that were served in user space and those that the kernel served.
    ///
    /// A process reports when it ends by `exit` or `_exit`, on standard error or at the end of FILE. FILE is opened
    /// when the program starts, and must not be a symbolic link. If it cannot be opened, the program is not run. Its
    /// fd is one of the library's own.
    ///
    /// A process that has given up its rights since then writes to FILE all the same. A program that such a process
    /// executes opens FILE anew. If it may not write to FILE, it is not in the statistics, and says so on standard
    /// error when it starts: create FILE for its user beforehand.
    ///
    /// With `--fair` the first process of the run prints a table when it ends by `exit`. The table has for each
    /// worker its wakeups, those of them after which no connection was left, connections, share, turns given up, and
    /// connections found that another worker had been woken for. Jain's index of fairness follows.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    stats: Option<PathBuf>,
    /// Keeps figures for `upoll top`. With `--fair` they are always kept.
    ///
    /// The processes of the run copy the figures of their sets to a file in /dev/shm that the user of the run alone
    /// may read. Each process maps it when it starts, and the first one removes it when it ends by `exit` or `_exit`.
    /// The file of a process that was killed is removed by the next run with this option. Without the option nothing
    /// is counted.
    ///
    /// A filter of system calls has to allow getpid, gettid, tgkill and unlinkat in any process of the run.
    #[arg(long)]
    top: bool,
    /// The program and its arguments.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    Eventfd,
    Pipe,
    Socketpair,
    Epoll,
    All,
    None,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Eventfd => "eventfd",
            Kind::Pipe => "pipe",
            Kind::Socketpair => "socketpair",
            Kind::Epoll => "epoll",
            Kind::All => "all",
            Kind::None => "none",
        }
    }
}

const LIBRARY: &str = "libupoll_preload.so";
/// The variable that names the file for figures of sets.
const FIGURES: &str = "UPOLL_TOP";

/// The exit statuses of `env(1)`: the program cannot be run, or does not exist.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Replaces this process by the program. Returns only on failure.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if options.top && options.user == [Kind::None] {
        bail!(
            "with `--user none` the program has no user-level sets, so that `--top` has nothing to show"
        );
    }
    let library = library(if options.fair.is_some() {
        fair::LIBRARY
    } else {
        LIBRARY
    })?;
    let Some((name, arguments)) = options.command.split_first() else {
        bail!("no program to run");
    };
    let path = match program::find(name) {
        Ok(path) => path,
        Err(error) => {
            eprintln!("upoll run: {}: {error}", name.to_string_lossy());
            return Ok(ExitCode::from(NOT_FOUND));
        }
    };
    if let Err(obstacle) = program::check(&path) {
        eprintln!("upoll run: {}: {obstacle}", path.display());
        return Ok(ExitCode::from(CANNOT_RUN));
    }
    // For standard error the libraries have an empty name. A run that fails before this leaves no empty file.
    let stats = match &options.stats {
        Some(path) if path.as_os_str() == "-" => Some(PathBuf::new()),
        Some(path) => Some(place_for_statistics(path)?),
        None => None,
    };
    let mut command = Command::new(&path);
    command.arg0(name).args(arguments);
    command.env("LD_PRELOAD", preloaded(&library));
    let statistics = if let Some(policy) = options.fair {
        fair::prepare(&mut command, policy, options.datagrams)?;
        fair::STATISTICS
    } else {
        let kinds: Vec<_> = options.user.iter().map(|kind| kind.name()).collect();
        command.env("UPOLL_USER", kinds.join(","));
        match options.top {
            true => command.env(FIGURES, shared::SETS.create()?),
            false => command.env_remove(FIGURES),
        };
        "UPOLL_STATS"
    };
    match stats {
        Some(path) => command.env(statistics, path),
        None => command.env_remove(statistics),
    };
    let error = command.exec();
    eprintln!("upoll run: {}: {error}", path.display());
    Ok(ExitCode::from(CANNOT_RUN))
}

/// Checks that the file for statistics can be written, and creates it. Returns its absolute path.
fn place_for_statistics(path: &Path) -> Result<PathBuf> {
    let open = || {
        let path = std::path::absolute(path)?;
        // To open and close a FIFO would wait for its reader, and show that reader an end.
        let found = fs::symlink_metadata(&path).map(|found| found.file_type());
        if found.is_ok_and(|kind| kind.is_fifo() || kind.is_char_device() || kind.is_block_device())
        {
            return Ok(path);
        }
        let mut options = OpenOptions::new();
        // As the libraries open it.
        options.append(true).custom_flags(libc::O_NOFOLLOW);
        match options.clone().create_new(true).open(&path) {
            // Without O_CREAT: in a folder like /tmp the kernel may refuse that for another user's file.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => options.open(&path)?,
            result => result?,
        };
        Ok::<_, io::Error>(path)
    };
    open().with_context(|| format!("cannot write statistics to {}", path.display()))
}

/// Returns the value of `LD_PRELOAD`: the library, then the libraries that were named before.
fn preloaded(library: &Path) -> OsString {
    let mut list = by_glibc_only(library);
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

/// Returns an absolute path under which only glibc's loader finds the file. A child may be linked
/// to another C library. musl's loader refuses to start a program if a preloaded library needs
/// symbols of glibc, but ignores a library that it does not find. glibc replaces `$LIB` by the
/// system's library folder. That folder is at most as deep as the way back to the root is long.
fn by_glibc_only(path: &Path) -> OsString {
    const TO_THE_ROOT: &str = "/$LIB/../../../../../../../..";
    let mut found = OsString::from(if is_expanded(TO_THE_ROOT) {
        TO_THE_ROOT
    } else {
        ""
    });
    found.push(path);
    found
}

/// Returns whether glibc's loader expands `prefix` to the root, by loading the C library's own file
/// through it.
fn is_expanded(prefix: &str) -> bool {
    // SAFETY: all zeros is a valid value.
    let mut own: libc::Dl_info = unsafe { std::mem::zeroed() };
    let function = libc::getpid as unsafe extern "C" fn() -> libc::pid_t;
    // SAFETY: the call accepts any address, and `own` is live.
    if unsafe { libc::dladdr(function as *const libc::c_void, &raw mut own) } == 0 {
        return false;
    }
    // SAFETY: the loader's name for the file is a C string that lives as long as the file is
    // loaded.
    let own = unsafe { CStr::from_ptr(own.dli_fname) };
    let path = [prefix.as_bytes(), own.to_bytes()].concat();
    let Ok(path) = CString::new(path) else {
        return false;
    };
    // SAFETY: the path is a C string. The file is loaded already, so no initializer runs.
    let loaded = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    own.to_bytes().starts_with(b"/") && !loaded.is_null()
}

/// Finds a library next to this program, or in `lib/upoll` or `lib` beside its folder.
fn library(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("where this program is")?;
    let folder = own.parent().context("this program is in no folder")?;
    let places = ["", "../lib/upoll", "../lib"].map(|place| folder.join(place).join(name));
    let found = places.iter().find(|place| place.is_file());
    let found = found.with_context(|| {
        format!(
            "{name} is neither in {} nor in ../lib/upoll or ../lib from there",
            folder.display()
        )
    })?;
    // The loader splits its list at blanks and colons.
    if found.to_string_lossy().contains([' ', ':']) {
        bail!(
            "the loader takes no path with a blank or a colon: {}",
            found.display()
        );
    }
    Ok(found.canonicalize()?)
}
