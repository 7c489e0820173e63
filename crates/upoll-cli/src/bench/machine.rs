//! The machine on which the figures were taken, and the choice of CPUs.

use std::fs;
use std::hint;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::SystemTime;

use anyhow::Context;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

/// The properties of the machine and of the program that affect the figures.
#[derive(Clone, Serialize)]
pub(super) struct Machine {
    /// The version of this program and of the library in it, which share a workspace.
    pub(super) upoll_version: &'static str,
    /// The start of the run by the system clock, in UTC.
    pub(super) date: String,
    pub(super) kernel_release: String,
    pub(super) cpu_model: String,
    /// CPUs that this process may run on.
    pub(super) cpus: Vec<usize>,
    pub(super) clock_source: String,
    /// The limit of fds, as raised for this run.
    pub(super) descriptor_limit: u64,
}

impl Machine {
    /// Collects the properties, and raises the limit of fds to its maximum.
    pub(super) fn inspect() -> io::Result<Self> {
        Ok(Machine {
            upoll_version: env!("CARGO_PKG_VERSION"),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            kernel_release: first_line("/proc/sys/kernel/osrelease"),
            cpu_model: cpu_model(),
            cpus: allowed_cpus()?,
            clock_source: first_line(
                "/sys/devices/system/clocksource/clocksource0/current_clocksource",
            ),
            descriptor_limit: raise_descriptor_limit()?,
        })
    }
}

fn first_line(path: &str) -> String {
    fs::read_to_string(path)
        .ok()
        .and_then(|text| text.lines().next().map(str::to_owned))
        .unwrap_or_else(|| "unknown".to_owned())
}

fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == "model name")
        .map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned())
}

fn allowed_cpus() -> io::Result<Vec<usize>> {
    let mask = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&cpu| mask.is_set(cpu))
        .collect())
}

/// Binds the calling thread, and those that it starts from now on, to `cpus`.
pub(super) fn pin(cpus: &[usize]) -> io::Result<()> {
    let mut mask = CpuSet::new();
    for &cpu in cpus {
        mask.set(cpu);
    }
    Ok(sched_setaffinity(None, &mask)?)
}

/// Runs `work` while no CPU of `cpus` idles. The threads that keep them busy yield to all others at
/// once.
///
/// A virtual machine gives up an idle CPU. Getting it back sometimes takes milliseconds, which
/// would show as latency in all measurements.
pub(super) fn awake<Done>(
    cpus: &[usize],
    work: impl FnOnce() -> anyhow::Result<Done>,
) -> anyhow::Result<Done> {
    let is_over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let spinners: Vec<_> = cpus
            .iter()
            .map(|&cpu| {
                scope.spawn(move || {
                    pin(&[cpu])?;
                    run_only_when_idle()?;
                    while !is_over.load(Ordering::Relaxed) {
                        hint::spin_loop();
                    }
                    io::Result::Ok(())
                })
            })
            .collect();
        let ending = Ending(is_over);
        let done = work();
        drop(ending);
        for spinner in spinners {
            let spun = spinner.join().expect("a spinner does not panic");
            spun.context("keeping a CPU awake")?;
        }
        done
    })
}

/// Sets the flag when it is dropped. On a panic as well: the scope would wait forever otherwise.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn run_only_when_idle() -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: `parameter` is only read; 0 is the calling thread.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameter) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn raise_descriptor_limit() -> io::Result<u64> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, raised)?;
    Ok(maximum.unwrap_or(u64::MAX))
}
