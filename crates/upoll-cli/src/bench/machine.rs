//! What the figures were taken on, and on which CPU.

use std::fs;
use std::io;
use std::mem;
use std::ptr;

use serde::Serialize;

/// The machine and the program, as far as they bear on the figures.
#[derive(Clone, Serialize)]
pub(super) struct Machine {
    /// The version of this program and of the library in it: one workspace.
    pub(super) upoll_version: &'static str,
    /// When the run began, by the system's clock, in UTC.
    pub(super) date: String,
    pub(super) kernel_release: String,
    pub(super) cpu_model: String,
    /// CPUs that this process may run on.
    pub(super) cpus: Vec<usize>,
    pub(super) clock_source: String,
    /// How many descriptors a process may have, as raised for this run.
    pub(super) descriptor_limit: u64,
}

impl Machine {
    /// Looks around, and raises the limit on descriptors as far as it goes.
    pub(super) fn look() -> io::Result<Self> {
        Ok(Machine {
            upoll_version: env!("CARGO_PKG_VERSION"),
            date: date()?,
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

fn date() -> io::Result<String> {
    // SAFETY: no memory is involved.
    let now = unsafe { libc::time(ptr::null_mut()) };
    // SAFETY: the structure is plain numbers and a pointer, for which all zeros is a value.
    let mut utc: libc::tm = unsafe { mem::zeroed() };
    // SAFETY: both are alive, and `utc` is there to be filled.
    if unsafe { libc::gmtime_r(&raw const now, &raw mut utc) }.is_null() {
        return Err(io::Error::last_os_error());
    }
    Ok(format!(
        "{:04}-{:02}-{:02} {:02}:{:02} UTC",
        utc.tm_year + 1900,
        utc.tm_mon + 1,
        utc.tm_mday,
        utc.tm_hour,
        utc.tm_min
    ))
}

fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == "model name")
        .map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned())
}

fn allowed_cpus() -> io::Result<Vec<usize>> {
    // SAFETY: a CPU set is a plain bit mask, for which all zeros is a value.
    let mut mask: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: the mask is as large as the size that is given.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&mask), &raw mut mask) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((0..libc::CPU_SETSIZE.cast_unsigned() as usize)
        // SAFETY: the CPU number is within the mask.
        .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &mask) })
        .collect())
}

/// Binds the calling thread, and those that it starts from now on, to `cpus`.
pub(super) fn pin(cpus: &[usize]) -> io::Result<()> {
    // SAFETY: as in `allowed_cpus`.
    let mut mask: libc::cpu_set_t = unsafe { mem::zeroed() };
    for &cpu in cpus {
        // SAFETY: the number comes from a mask of the same size.
        unsafe { libc::CPU_SET(cpu, &mut mask) };
    }
    // SAFETY: the mask is as large as the size that is given.
    if unsafe { libc::sched_setaffinity(0, size_of_val(&mask), &raw const mask) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn raise_descriptor_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is there to be filled.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } < 0 {
        return Err(io::Error::last_os_error());
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is only read.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(limit.rlim_cur)
}
