//! Tasks are woken with no lock held, also by wakeups that a signal handler has left to the holder
//! of a queue's lock.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use upoll::{Epoll, Event, EventFd, Events, Readiness};

const IN: Event = Event::new(Events::IN, 0);

/// Counts its wakeups outside of handlers, and how many of these came with a lock held.
struct Task<F> {
    is_free: F,
    is_in_handler: &'static AtomicBool,
    woken: AtomicUsize,
    under_lock: AtomicUsize,
}

impl<F> Task<F> {
    fn new(is_in_handler: &'static AtomicBool, is_free: F) -> Arc<Self> {
        Arc::new(Task {
            is_free,
            is_in_handler,
            woken: AtomicUsize::new(0),
            under_lock: AtomicUsize::new(0),
        })
    }

    fn woken(&self) -> usize {
        self.woken.load(Ordering::Relaxed)
    }

    fn under_lock(&self) -> usize {
        self.under_lock.load(Ordering::Relaxed)
    }
}

impl<F: Fn() -> bool + Send + Sync + 'static> Wake for Task<F> {
    fn wake(self: Arc<Self>) {
        if self.is_in_handler.load(Ordering::Relaxed) {
            return;
        }
        self.woken.fetch_add(1, Ordering::Relaxed);
        if !(self.is_free)() {
            self.under_lock.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn handle(signal: i32, handler: extern "C" fn(libc::c_int)) {
    // SAFETY: the handler only wakes, which may interrupt anything.
    unsafe { libc::signal(signal, handler as *const () as usize) };
}

/// Interrupts ADD and DEL until they have delivered some of the handler's wakeups.
#[test]
fn add_and_del_wake_the_tasks_of_wakes_left_to_them_once_the_set_is_unlocked() {
    static COUNTER: OnceLock<EventFd> = OnceLock::new();
    static IN_HANDLER: AtomicBool = AtomicBool::new(false);
    static IN_CTL: AtomicBool = AtomicBool::new(false);

    extern "C" fn write(_: libc::c_int) {
        if !IN_CTL.load(Ordering::Relaxed) {
            return;
        }
        IN_HANDLER.store(true, Ordering::Relaxed);
        let _ = COUNTER.get().unwrap().try_write(1);
        IN_HANDLER.store(false, Ordering::Relaxed);
    }

    let set = Epoll::new().unwrap();
    let counter = COUNTER.get_or_init(|| EventFd::new(0).unwrap());
    let other = set.clone();
    let task = Task::new(&IN_HANDLER, move || !other.is_locked_here());
    let waker = Waker::from(task.clone());
    let mut ready = pin!(Readiness::new(counter, Events::IN).unwrap());
    handle(libc::SIGUSR1, write);
    let is_over = AtomicBool::new(false);
    // SAFETY: no arguments.
    let me = unsafe { libc::pthread_self() };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                // SAFETY: the thread outlives this one, and the signal has a handler.
                unsafe { libc::pthread_kill(me, libc::SIGUSR1) };
                thread::sleep(Duration::from_micros(20));
            }
        });
        while task.woken() < 10 {
            let _ = counter.try_read();
            let _ = ready.as_mut().poll(&mut Context::from_waker(&waker));
            IN_CTL.store(true, Ordering::Relaxed);
            for _ in 0..20 {
                set.add(counter, IN).unwrap();
                set.delete(counter).unwrap();
            }
            IN_CTL.store(false, Ordering::Relaxed);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(task.under_lock(), 0);
}
