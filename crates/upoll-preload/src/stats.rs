//! How many calls were served here, and how many by the kernel, said when the process ends.
//!
//! They are counted only if `UPOLL_STATS` is in the environment: empty for standard error, else the
//! file that a report is added to.

use std::ffi::CStr;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use crate::raw;
use crate::settings::variable;

macro_rules! calls {
    ($($name:ident = $shown:literal,)*) => {
        /// What is counted.
        #[derive(Clone, Copy)]
        pub(crate) enum Call { $($name),* }

        const NAMES: &[&str] = &[$($shown),*];
    };
}

calls! {
    EventFd = "eventfd",
    EpollCreate = "epoll_create",
    EpollCtl = "epoll_ctl",
    EpollWait = "epoll_wait",
    Poll = "poll",
    Select = "select",
    Read = "read",
    Write = "write",
    Close = "close",
    Dup = "dup",
    Control = "fcntl, ioctl",
}

const CALLS: usize = NAMES.len();
/// Threads are spread over as many sets of counters, so that they seldom write the same line.
const SHARDS: usize = 64;

/// Served here, served by the kernel.
#[repr(align(128))]
struct Shard([[AtomicU64; 2]; CALLS]);

static SHARDS_OF_ALL: [Shard; SHARDS] =
    [const { Shard([const { [const { AtomicU64::new(0) }; 2] }; CALLS]) }; SHARDS];

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;
static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

#[inline]
pub(crate) fn is_on() -> bool {
    match STATE.load(Ordering::Relaxed) {
        UNKNOWN => find_out(),
        state => state == ON,
    }
}

#[cold]
fn find_out() -> bool {
    let is_on = variable(c"UPOLL_STATS").is_some();
    STATE.store(if is_on { ON } else { OFF }, Ordering::Relaxed);
    if is_on {
        // SAFETY: the handler is never unloaded, as this library is not. Without memory for it a
        // child counts on from what its parent had.
        unsafe { libc::pthread_atfork(None, None, Some(begin_anew)) };
    }
    is_on
}

/// A child of `fork` counts its own calls.
extern "C" fn begin_anew() {
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
        count_as(call, upoll_fds::is_user_level(fd));
    }
}

/// Counts a call.
#[cold]
pub(crate) fn count_as(call: Call, is_user_level: bool) {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    if !is_on() {
        return;
    }
    let shard = SHARD.with(|shard| {
        if shard.get() == usize::MAX {
            shard.set(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
        }
        shard.get()
    });
    let place = usize::from(!is_user_level);
    SHARDS_OF_ALL[shard].0[call as usize][place].fetch_add(1, Ordering::Relaxed);
}

/// Says what was counted, once.
pub(crate) fn report() {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    if !is_on() || IS_SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    let text = text();
    let path = variable(c"UPOLL_STATS").filter(|path| !path.is_empty());
    let to = path.map_or(Some(libc::STDERR_FILENO), append_to);
    if let Some(to) = to {
        // There is nobody to tell if it cannot be written.
        let _ = raw::write_all(to, text.as_bytes());
    }
}

fn append_to(path: &CStr) -> Option<i32> {
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
    // SAFETY: the path is a live C string.
    let fd = unsafe { libc::open(path.as_ptr(), flags, 0o666) };
    (fd >= 0).then_some(fd)
}

fn text() -> String {
    let mut text = String::new();
    unsafe extern "C" {
        static program_invocation_short_name: *const libc::c_char;
    }
    // SAFETY: the C library's pointer to the name of the program, a C string.
    let name = unsafe { CStr::from_ptr(program_invocation_short_name) };
    let mut served = 0;
    let mut line = |text: &mut String, name: &str, [here, kernel]: [u64; 2]| {
        served += here;
        if here + kernel > 0 {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {name:<14}{here:>14}{kernel:>14}");
        }
    };
    let _ = writeln!(
        text,
        "upoll: {} ({})\n  {:<14}{:>14}{:>14}",
        name.to_string_lossy(),
        std::process::id(),
        "calls",
        "user space",
        "kernel"
    );
    for (call, name) in NAMES.iter().enumerate() {
        let mut sums = [0; 2];
        for shard in &SHARDS_OF_ALL {
            for (sum, counter) in sums.iter_mut().zip(&shard.0[call]) {
                *sum += counter.load(Ordering::Relaxed);
            }
        }
        line(&mut text, name, sums);
    }
    let _ = writeln!(text, "  {:<14}{served:>14}", "in all");
    text
}

extern "C" fn at_exit() {
    report();
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
