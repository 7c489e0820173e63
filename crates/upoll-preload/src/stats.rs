//! Counts the calls served in user space and by the kernel, and reports them when the process ends.
//!
//! They are counted only if `UPOLL_STATS` is in the environment: empty for standard error, else the
//! file that a report is added to.

use std::ffi::CStr;
use std::fmt::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use upoll::Errno;
use upoll::internal::own_fds::{self, KeptFile};
use upoll_fds::internal;
use upoll_sys::text::Text;
use upoll_sys::warning;

pub(crate) use crate::calls::Call;
use crate::calls::NAMES;
use crate::settings::variable;
use crate::{handlers, kernel};

const CALLS: usize = NAMES.len();
/// Threads are spread over as many sets of counters, so that they seldom write the same line.
const SHARDS: usize = 64;

/// The counters of one shard: calls served in user space, calls served by the kernel.
#[repr(align(128))]
struct Shard([[AtomicU64; 2]; CALLS]);

static SHARDS_OF_ALL: [Shard; SHARDS] =
    [const { Shard([const { [const { AtomicU64::new(0) }; 2] }; CALLS]) }; SHARDS];

static IS_ON: AtomicBool = AtomicBool::new(false);
/// The file for the report, opened when the library is loaded.
static REPORT: OnceLock<KeptFile> = OnceLock::new();
/// The identity of that file (`st_dev`, `st_ino`, `st_rdev`). A program with inline system calls may close
/// the fd and open another file there.
static REPORT_IS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

#[inline]
pub(crate) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Begins to count if `UPOLL_STATS` is in the environment.
pub(crate) fn prepare() {
    let Some(path) = variable(c"UPOLL_STATS") else {
        return;
    };
    own_fds::protect();
    if let Err(error) = open_report(path)
        && !path.is_empty()
    {
        // The report of a program that another user executes would otherwise be missing without a word.
        warning::write("cannot write statistics to", path, error.raw());
        return;
    }
    IS_ON.store(true, Ordering::Relaxed);
    // SAFETY: the handler is never unloaded, as this library is not. If there is no memory for it,
    // a child starts with the counts of its parent.
    unsafe { libc::pthread_atfork(None, None, Some(begin_anew)) };
}

/// Resets the counters in a child of `fork`, which counts its own calls.
pub(crate) extern "C" fn begin_anew() {
    for counter in SHARDS_OF_ALL.iter().flat_map(|shard| &shard.0).flatten() {
        counter.store(0, Ordering::Relaxed);
    }
}

std::thread_local! {
    static SHARD: std::cell::Cell<usize> = const { std::cell::Cell::new(usize::MAX) };
}

/// Counts a call on `fd`.
#[inline]
pub(crate) fn count(call: Call, fd: i32) {
    if is_on() {
        count_as(call, internal::is_active_user_level(fd));
    }
}

/// Returns whether `fd` is user-level, or an own fd. A call on another fd is passed on, and counted by this function.
#[inline]
pub(crate) fn is_user_level_or_counted(call: Call, fd: i32) -> bool {
    let is_user_level = internal::is_user_level_or_own(fd);
    if !is_user_level {
        count_as(call, false);
    }
    is_user_level
}

/// Counts a change of `fd` in a set.
#[inline]
pub(crate) fn count_ctl(epfd: i32, fd: i32) {
    if is_on() {
        let is_user_level =
            internal::is_active_user_level(epfd) || internal::is_active_user_level(fd);
        count_as(Call::EpollCtl, is_user_level);
    }
}

/// Counts a call as served in user space or by the kernel.
#[inline]
pub(crate) fn count_as(call: Call, is_user_level: bool) {
    if is_on() {
        add(call, is_user_level);
    }
}

#[cold]
fn add(call: Call, is_user_level: bool) {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let shard = SHARD.with(|shard| {
        if shard.get() == usize::MAX {
            shard.set(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
        }
        shard.get()
    });
    let place = usize::from(!is_user_level);
    SHARDS_OF_ALL[shard].0[call as usize][place].fetch_add(1, Ordering::Relaxed);
}

/// Writes the report, once.
pub(crate) fn report() {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    // A child in its parent's memory leaves the report to the parent.
    if !is_on() || handlers::is_others() || IS_SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    let Some(text) = text() else {
        return;
    };
    let Some(to) = REPORT.get().map(|file| file.fd()) else {
        return;
    };
    if identity(to) == Some(known_identity()) {
        // Nobody could be told of an error.
        let _ = kernel::write_all(to, text.as_bytes());
    }
}

/// Opens the file that the report is appended to. An empty `path` stands for the current standard error.
/// The program cannot reach the fd. A symbolic link is not followed: the program may have more rights than
/// the users that can write to the directory.
fn open_report(path: &CStr) -> Result<(), Errno> {
    let flags =
        libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    let (low, is_opened) = match path.is_empty() {
        true => (libc::STDERR_FILENO, false),
        false => {
            let place = (libc::AT_FDCWD, path.as_ptr());
            let fd = kernel::call!(SYS_openat, place.0, place.1, flags, 0o666)?;
            (to_fd(fd), true)
        }
    };
    let kept = KeptFile::of(low);
    if is_opened {
        let _ = kernel::call!(SYS_close, low);
    }
    let kept = kept?;
    let found = identity(kept.fd()).ok_or(Errno::BADF)?;
    for (known, part) in REPORT_IS.iter().zip(found) {
        known.store(part, Ordering::Relaxed);
    }
    let _ = REPORT.set(kept);
    Ok(())
}

fn to_fd(fd: usize) -> i32 {
    i32::try_from(fd).expect("fds are ints")
}

fn known_identity() -> [u64; 3] {
    REPORT_IS
        .each_ref()
        .map(|part| part.load(Ordering::Relaxed))
}

/// Returns the identity of an open file. Returns `None` if the fd is not open.
fn identity(fd: i32) -> Option<[u64; 3]> {
    // SAFETY: all zeros is one.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    kernel::call!(SYS_fstat, fd, &raw mut found).ok()?;
    Some([found.st_dev, found.st_ino, found.st_rdev])
}

/// Returns how often one call was served in user space and by the kernel.
fn sums(call: usize) -> [u64; 2] {
    let mut sums = [0; 2];
    for shard in &SHARDS_OF_ALL {
        for (sum, counter) in sums.iter_mut().zip(&shard.0[call]) {
            *sum += counter.load(Ordering::Relaxed);
        }
    }
    sums
}

/// The text of the report. Not a `String`: a signal handler may call `_exit` in the midst of an
/// allocation.
type Report = Text<2048>;

/// Returns the report, or `None` if the program had nothing to do with objects that could be
/// user-level.
fn text() -> Option<Report> {
    let mut text = Report::new();
    unsafe extern "C" {
        static program_invocation_short_name: *const libc::c_char;
    }
    // SAFETY: the C library's pointer to the name of the program, a C string.
    let name = unsafe { CStr::from_ptr(program_invocation_short_name) };
    let mut served = 0;
    let mut line = |text: &mut Report, name: &str, [user_level, kernel]: [u64; 2]| {
        served += user_level;
        if user_level + kernel > 0 {
            // Text beyond the room is dropped.
            let _ = writeln!(text, "  {name:<14}{user_level:>14}{kernel:>14}");
        }
    };
    text.add(b"upoll: ");
    text.add(&name.to_bytes()[..name.count_bytes().min(256)]);
    let _ = writeln!(
        text,
        " ({})\n  {:<14}{:>14}{:>14}",
        kernel::call!(SYS_getpid).unwrap_or(0),
        "calls",
        "user space",
        "kernel"
    );
    for (call, name) in NAMES.iter().enumerate() {
        line(&mut text, name, sums(call));
    }
    let _ = writeln!(text, "  {:<14}{served:>14}", "in all");
    // Every shell has kernel pipes.
    let made_here = [Call::Pipe, Call::SocketPair];
    let has_made = made_here.iter().any(|&call| sums(call as usize)[0] > 0);
    let concerned = [
        Call::EventFd,
        Call::EpollCreate,
        Call::Poll,
        Call::Select,
        Call::EpollWait,
    ];
    let has_called = concerned.iter().any(|&call| sums(call as usize) != [0; 2]);
    (has_made || has_called).then_some(text)
}

#[unsafe(link_section = "upoll_fork")]
extern "C" fn at_exit() {
    report();
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
