//! Waking a sleeping thread: two threads wake each other alternately.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Result;
use upoll::{Epoll, EventFd, Events};

use super::calls::{Compared, Row, idle};
use super::kernel::Fd;
use super::machine;
use super::measure::{Effort, Side, interleave, side};
use super::set::{Counter, Set};

pub(super) const ONE_CPU: &str = "wake";
pub(super) const TWO_CPUS: &str = "wake-across";
pub(super) const NAMES: [&str; 2] = [ONE_CPU, TWO_CPUS];

/// Within 15 % of the bare futex.
const TARGET: f64 = 1.0 / 1.15;

/// A primitive by which one thread wakes another.
trait Bell: Send + Sync + 'static {
    fn ring(&self);
    /// Returns once it was rung since the last return.
    fn sleep(&self);
}

/// The minimum that Linux offers: a word, and a system call on each side.
struct Futex(AtomicU32);

impl Bell for Futex {
    fn ring(&self) {
        self.0.store(1, Ordering::Release);
        // SAFETY: the word is alive; the kernel only uses its address.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.0.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                1,
            );
        }
    }

    fn sleep(&self) {
        while self.0.swap(0, Ordering::Acquire) == 0 {
            // SAFETY: the word is alive for the length of the call; the limit is null.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.0.as_ptr(),
                    libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                    0,
                    std::ptr::null::<libc::timespec>(),
                );
            }
        }
    }
}

/// An eventfd in a set, edge-triggered.
struct Rung<S, C>(S, C);

impl<S: Set<C>, C: Counter> Rung<S, C> {
    fn new() -> Result<Self> {
        let (set, counter) = (S::open()?, idle::<C>()?);
        set.add(&counter, Events::IN | Events::ET, 0)?;
        Ok(Rung(set, counter))
    }
}

impl<S: Set<C>, C: Counter> Bell for Rung<S, C> {
    fn ring(&self) {
        self.1.write();
    }

    fn sleep(&self) {
        let found = self.0.wait(&mut [S::ROOM; 8]).expect("wait");
        assert_eq!(found, 1, "the counter is reported");
    }
}

/// A thread that replies to each ring with one of its own.
struct Partner<B: Bell> {
    /// The partner's bell and this thread's.
    bells: Arc<[B; 2]>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl<B: Bell> Partner<B> {
    fn new(bells: [B; 2], cpu: usize) -> Self {
        let bells = Arc::new(bells);
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (bells, stop) = (bells.clone(), stop.clone());
            thread::spawn(move || {
                machine::pin(&[cpu]).expect("the process may use this CPU");
                loop {
                    bells[0].sleep();
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    bells[1].ring();
                }
            })
        };
        Partner {
            bells,
            stop,
            thread: Some(thread),
        }
    }

    /// Returns a side whose operation is one wakeup: half of a ring and its reply.
    fn into_side(self) -> Side {
        let mut answered = side(move || {
            self.bells[0].ring();
            self.bells[1].sleep();
        });
        Box::new(move |wakes| answered(wakes.div_ceil(2)))
    }
}

impl<B: Bell> Drop for Partner<B> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.bells[0].ring();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the partner does not panic");
        }
    }
}

/// The times that threads spin in the rows of two CPUs, in microseconds.
const SPINS: [u64; 3] = [1, 10, 50];

/// Measures with the calling thread where it is, and the other thread on `cpu`.
pub(super) fn measure(name: &'static str, cpu: usize, effort: Effort) -> Result<Vec<Compared>> {
    let (cpus, spins) = match name {
        ONE_CPU => ("one CPU", &SPINS[..0]),
        _ => ("two CPUs", &SPINS[..]),
    };
    let ours = |microseconds| -> Result<Side> {
        let bells = [Rung::<Epoll, EventFd>::new()?, Rung::new()?];
        for bell in &bells {
            bell.0.set_spin(Duration::from_micros(microseconds));
        }
        Ok(Partner::new(bells, cpu).into_side())
    };
    let futexes = [Futex(AtomicU32::new(0)), Futex(AtomicU32::new(0))];
    let mut sides = vec![
        Partner::new(futexes, cpu).into_side(),
        Partner::new([Rung::<Fd, Fd>::new()?, Rung::new()?], cpu).into_side(),
        ours(0)?,
    ];
    for &microseconds in spins {
        sides.push(ours(microseconds)?);
    }
    let series = interleave(&mut sides, effort);
    let row = |what: String, against, target| Row {
        name,
        what: what.into(),
        against,
        target,
    };
    let asleep = format!("wake of a sleeping thread, {cpus}");
    let mut rows = vec![
        Compared::new(
            row(asleep.clone(), "bare futex", Some(TARGET)),
            &series[0],
            &series[2],
        ),
        Compared::new(row(asleep, "kernel", None), &series[1], &series[2]),
    ];
    for (&microseconds, series_of_spin) in spins.iter().zip(&series[3..]) {
        let what = format!("the same, of one that spins for {microseconds} us before");
        rows.push(Compared::new(
            row(what, "bare futex", None),
            &series[0],
            series_of_spin,
        ));
    }
    Ok(rows)
}
