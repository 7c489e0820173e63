//! Finds a run that hangs: for a long time nothing ends, in no thread.
//!
//! The threads may hang in the memory allocator, so nothing here allocates but a post at its beginning.

use std::fs::File;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use rustix::thread::gettid;

use super::lock;
use super::tally::Tally;

/// The time between two checks. Only checks are counted: a process that does not get to run makes none.
const TICK: Duration = Duration::from_millis(100);

/// The number of checks in a row that find that nothing has ended, before that is a fault.
const TICKS: usize = 200;

/// The processor time of threads that do not sleep, before that is a fault.
const WORK: Duration = Duration::from_secs(5);

type Posts = Vec<(i32, String)>;

/// The task of each thread and child process, by its id.
static POSTS: Mutex<Posts> = Mutex::new(Vec::new());

/// Keeps the posts as they are. A child that is forked meanwhile can make its own.
pub(super) fn hold() -> MutexGuard<'static, Posts> {
    lock(&POSTS)
}

/// The entry of a thread in the report of a hang.
pub(super) struct Post(i32);

/// Makes the task of this thread known until the post is dropped.
pub(super) fn post(what: impl Into<String>) -> Post {
    post_of(gettid().as_raw_pid(), what)
}

/// Makes the task of a child process known until the post is dropped.
pub(super) fn post_of(thread: i32, what: impl Into<String>) -> Post {
    let entry = (thread, what.into());
    hold().push(entry);
    Post(thread)
}

impl Drop for Post {
    fn drop(&mut self) {
        let mut posts = hold();
        if let Some(at) = posts.iter().rposition(|(thread, _)| *thread == self.0) {
            posts.remove(at);
        }
    }
}

/// Ends the process with a report if the run hangs. Returns when the run is over.
pub(super) fn watch(seed: u64, tally: &Tally, is_over: &AtomicBool) {
    if hangs(TICKS, WORK, || tally.sum(), is_over) {
        let round = tally.rounds.load(Ordering::Relaxed);
        let time = TICK * TICKS as u32;
        eprintln!("FAULT: round {round}, seed {seed}: nothing has ended for {time:?}");
        report();
        // SAFETY: ends the process. Handlers that would run at an exit may hang, too.
        unsafe { libc::_exit(1) };
    }
}

/// Returns true as soon as `ended` has been the same for so many checks, in which the threads have slept or run
/// for `work`. Returns false once the run is over.
fn hangs(ticks: usize, work: Duration, ended: impl Fn() -> u64, is_over: &AtomicBool) -> bool {
    let (mut before, mut worked_before, mut checks) = (ended(), Duration::ZERO, 0);
    while !is_over.load(Ordering::SeqCst) {
        thread::park_timeout(TICK);
        let now = ended();
        if now != before {
            (before, checks) = (now, 0);
            continue;
        }
        if checks == 0 {
            worked_before = worked();
        }
        checks += 1;
        // Threads that have run for less, and do not sleep, wait for a processor.
        if checks >= ticks && (worked().saturating_sub(worked_before) >= work || all_sleep()) {
            return true;
        }
    }
    false
}

/// Calls `each` with the threads that have a post.
fn for_each_post(mut each: impl FnMut(i32, &str)) {
    // A thread may hang while it makes one.
    let posts = match POSTS.try_lock() {
        Ok(posts) => posts,
        Err(_) => return,
    };
    for (thread, what) in &*posts {
        each(*thread, what);
    }
}

/// The processor time that all threads have used.
fn worked() -> Duration {
    let mut worked = 0;
    for_each_post(|thread, _| {
        let used = |text: &str| text.split(' ').next()?.parse::<u64>().ok();
        worked += read(thread, "schedstat", used).flatten().unwrap_or(0);
    });
    Duration::from_nanos(worked)
}

fn all_sleep() -> bool {
    let mut all = true;
    for_each_post(|thread, _| {
        all &= read(thread, "status", |text| text.contains("S (sleeping)")) != Some(false)
    });
    all
}

/// Prints the task and the state of each thread.
fn report() {
    for_each_post(|thread, what| {
        eprintln!("thread {thread}: {what}");
        read(thread, "status", |text| {
            let of_interest =
                |line: &&str| line.starts_with("State") || line.contains("ctxt_switches");
            for line in text.lines().filter(of_interest) {
                eprintln!("    {line}");
            }
        });
        read(thread, "syscall", |text| {
            eprintln!("    system call: {}", text.trim_end())
        });
    });
}

/// Calls `with` with the beginning of what the kernel writes of a thread. Returns None if that has ended.
fn read<T>(thread: i32, file: &str, with: impl FnOnce(&str) -> T) -> Option<T> {
    let (mut path, mut text) = ([0; 64], [0; 4096]);
    let mut rest = &mut path[..];
    write!(rest, "/proc/{thread}/{file}").ok()?;
    let left = rest.len();
    let path = str::from_utf8(&path[..path.len() - left]).ok()?;
    let length = File::open(path).ok()?.read(&mut text).ok()?;
    Some(with(str::from_utf8(&text[..length]).ok()?))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// Returns whether a run whose only thread does `what` hangs. The run is over when `ended` is 40.
    fn is_found(what: impl Fn(&AtomicU64) + Sync) -> bool {
        let (ended, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let _post = post("a thread of a test");
                while !is_over.load(Ordering::SeqCst) {
                    what(&ended);
                    is_over.fetch_or(ended.load(Ordering::SeqCst) == 40, Ordering::SeqCst);
                }
            });
            let is_found = hangs(10, TICK, || ended.load(Ordering::SeqCst), &is_over);
            is_over.store(true, Ordering::SeqCst);
            thread.thread().unpark();
            is_found
        })
    }

    #[test]
    fn only_a_run_in_which_nothing_ends_hangs() {
        assert!(is_found(|_| thread::park()));
        assert!(is_found(|_| std::hint::spin_loop()));
        assert!(!is_found(|ended| {
            thread::sleep(TICK / 10);
            ended.fetch_add(1, Ordering::SeqCst);
        }));
    }
}
