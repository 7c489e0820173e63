//! When a thread that wakes others gives up its processor. Of what is shown here Linux has nothing: it
//! has no rotating sets.
#![cfg(not(loom))]

mod one_processor;
mod threads;

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use upoll::{CreateFlags, Epoll, Event, EventFd, Events, Readiness};

use one_processor::run_on_one_processor;
use threads::{asleep, until_asleep};

const LONG: Duration = Duration::from_secs(20);

std::thread_local! {
    /// The task that this thread wakes by the write that it is in the midst of.
    static WRITING: Cell<Option<Arc<Task>>> = const { Cell::new(None) };
}

static YIELDS: AtomicUsize = AtomicUsize::new(0);
static YIELDS_BEFORE_THE_TASK: AtomicUsize = AtomicUsize::new(0);

/// In the place of the C library's.
#[unsafe(no_mangle)]
extern "C" fn sched_yield() -> libc::c_int {
    let task = WRITING.try_with(Cell::take);
    if let Ok(Some(task)) = task {
        YIELDS.fetch_add(1, Ordering::SeqCst);
        if !task.0.load(Ordering::SeqCst) {
            YIELDS_BEFORE_THE_TASK.fetch_add(1, Ordering::SeqCst);
        }
    }
    // SAFETY: no arguments, no memory.
    unsafe { libc::syscall(libc::SYS_sched_yield) };
    0
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
        for _ in 0..20 {
            // The event is gone when the worker comes that was chosen for it.
            for _ in 0..3 {
                source.try_write(1).unwrap();
                source.try_read().unwrap();
            }
            let task = Arc::new(Task(AtomicBool::new(false)));
            let waker = Waker::from(task.clone());
            let mut readiness = pin!(Readiness::new(source.as_file_ref(), Events::IN).unwrap());
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
    // Others may take the processor from all of them now and then.
    assert!(YIELDS.load(Ordering::SeqCst) > 10, "{YIELDS:?}");
    assert_eq!(YIELDS_BEFORE_THE_TASK.load(Ordering::SeqCst), 0);
}
