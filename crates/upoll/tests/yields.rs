//! The point at which a thread that wakes others yields the processor. Linux has no rotating sets,
//! so there is no oracle.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod one_processor;
mod threads;

use std::cell::Cell;
use std::future::Future;
use std::mem;
use std::pin::pin;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use upoll::{CreateFlags, Epoll, Event, EventFd, Events, Readiness};

use one_processor::run_on_one_processor;
use threads::{asleep, until_asleep};

const LONG: Duration = Duration::from_secs(60);

std::thread_local! {
    /// The task that the current write of this thread wakes.
    static WRITING: Cell<Option<Arc<Task>>> = const { Cell::new(None) };
}

static YIELDS: AtomicUsize = AtomicUsize::new(0);
static YIELDS_BEFORE_THE_TASK: AtomicUsize = AtomicUsize::new(0);

/// The first argument of a `sched_yield` that the filter lets through.
const REAL: libc::c_ulong = 0x7569_656c;

/// Runs in place of the system call: the filter raises `SIGSYS`.
extern "C" fn on_yield(_: libc::c_int) {
    let task = WRITING.try_with(Cell::take);
    if let Ok(Some(task)) = task {
        YIELDS.fetch_add(1, Ordering::SeqCst);
        if !task.0.load(Ordering::SeqCst) {
            YIELDS_BEFORE_THE_TASK.fetch_add(1, Ordering::SeqCst);
        }
    }
    // SAFETY: the kernel ignores the argument and changes no memory.
    unsafe { libc::syscall(libc::SYS_sched_yield, REAL) };
}

/// Redirects each `sched_yield(2)` of this thread and of the threads that it creates to
/// [`on_yield`].
fn watch_yields() {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    const MODE: libc::c_ulong = libc::SECCOMP_MODE_FILTER as libc::c_ulong;
    const ON: libc::c_ulong = 1;
    const UNUSED: libc::c_ulong = 0;
    let argument =
        mem::offset_of!(libc::seccomp_data, args) + if cfg!(target_endian = "big") { 4 } else { 0 };
    // SAFETY: both macros only fill in a structure.
    let mut filter = unsafe {
        [
            libc::BPF_STMT(LOAD, mem::offset_of!(libc::seccomp_data, nr) as u32),
            libc::BPF_JUMP(EQUAL, libc::SYS_sched_yield as u32, 0, 3),
            libc::BPF_STMT(LOAD, argument as u32),
            libc::BPF_JUMP(EQUAL, REAL as u32, 1, 0),
            libc::BPF_STMT(RETURN, libc::SECCOMP_RET_TRAP),
            libc::BPF_STMT(RETURN, libc::SECCOMP_RET_ALLOW),
        ]
    };
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: `on_yield` is async-signal-safe where it runs, at a system call of Rust code; the kernel
    // copies the action and the program during the calls.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_yield as extern "C" fn(libc::c_int) as libc::sighandler_t;
        assert_eq!(libc::sigaction(libc::SIGSYS, &action, ptr::null_mut()), 0);
        assert_eq!(
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, ON, UNUSED, UNUSED, UNUSED),
            0
        );
        let set = libc::prctl(libc::PR_SET_SECCOMP, MODE, &program);
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }
}

struct Task(AtomicBool);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_thread_wakes_tasks_before_it_lets_workers_run() {
    let input = Event::new(Events::IN, 0);
    let writer = thread::spawn(move || {
        run_on_one_processor();
        watch_yields();
        let source = EventFd::new(0).unwrap();
        let rotating = Epoll::create(CreateFlags::ROTATE).unwrap();
        rotating.add(&source, input).unwrap();
        let stop = EventFd::new(0).unwrap();
        let workers: Vec<_> = (0..8)
            .map(|_| {
                let set = Epoll::new().unwrap();
                set.add(&rotating, input).unwrap();
                set.add(&stop, Event::new(Events::IN, 1)).unwrap();
                asleep(move || {
                    let mut reports = [Event::default(); 2];
                    while {
                        let ready = set.wait(&mut reports, LONG).unwrap();
                        reports[..ready].iter().all(|report| report.data() != 1)
                    } {}
                })
            })
            .collect();
        // Other processes may preempt all of these threads now and then.
        let mut rounds = 0;
        while YIELDS.load(Ordering::SeqCst) <= 10 && rounds < 400 {
            rounds += 1;
            // The event is gone before the worker that was chosen for it runs.
            for _ in 0..3 {
                source.try_write(1).unwrap();
                source.try_read().unwrap();
            }
            let task = Arc::new(Task(AtomicBool::new(false)));
            let waker = Waker::from(task.clone());
            let mut readiness = pin!(Readiness::new(&source, Events::IN).unwrap());
            let polled = readiness.as_mut().poll(&mut Context::from_waker(&waker));
            assert_eq!(polled, Poll::Pending);
            WRITING.set(Some(task.clone()));
            source.try_write(1).unwrap();
            WRITING.set(None);
            assert!(task.0.load(Ordering::SeqCst));
            source.try_read().unwrap();
            for (_, tid) in &workers {
                until_asleep(*tid);
            }
        }
        stop.try_write(1).unwrap();
        for (worker, _) in workers {
            worker.join().unwrap();
        }
    });
    writer.join().unwrap();
    assert!(YIELDS.load(Ordering::SeqCst) > 10, "{YIELDS:?} yields");
    assert_eq!(YIELDS_BEFORE_THE_TASK.load(Ordering::SeqCst), 0);
}
