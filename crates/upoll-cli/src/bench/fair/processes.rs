//! Processor time and context switches of a server's processes, from `/proc`.

use std::collections::BTreeMap;
use std::fs;

/// The usage of one thread since its start.
#[derive(Clone, Copy, Default)]
struct Thread {
    process: u32,
    nanoseconds: u64,
    voluntary_switches: u64,
    involuntary_switches: u64,
    /// Bytes that the whole process has written by `write` and similar calls.
    written: u64,
}

/// The usage of all threads of a server.
pub(super) struct Usage(BTreeMap<u32, Thread>);

/// The difference of two usages.
#[derive(Default)]
pub(super) struct Used {
    pub(super) nanoseconds: u64,
    pub(super) voluntary_switches: u64,
    pub(super) involuntary_switches: u64,
    /// Bytes written, by process.
    pub(super) written: BTreeMap<u32, u64>,
}

impl Usage {
    /// Reads the usage of a process and its descendants. Threads that end meanwhile are left out.
    pub(super) fn of(root: u32) -> Usage {
        let mut threads = BTreeMap::new();
        let mut processes = vec![root];
        while let Some(process) = processes.pop() {
            let written = field(&format!("/proc/{process}/io"), "wchar:");
            let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else {
                continue;
            };
            for task in tasks.flatten() {
                let path = task.path();
                let path = path.display();
                let Some(thread) = number(&task.file_name().to_string_lossy()) else {
                    continue;
                };
                let read = |file: &str| fs::read_to_string(format!("{path}/{file}"));
                let children = read("children").unwrap_or_default();
                processes.extend(children.split_whitespace().filter_map(number::<u32>));
                let ran = read("schedstat").unwrap_or_default();
                let status = format!("{path}/status");
                let used = Thread {
                    process,
                    nanoseconds: ran.split_whitespace().next().and_then(number).unwrap_or(0),
                    voluntary_switches: field(&status, "voluntary_ctxt_switches:"),
                    involuntary_switches: field(&status, "nonvoluntary_ctxt_switches:"),
                    written,
                };
                threads.insert(thread, used);
            }
        }
        Usage(threads)
    }

    /// Returns the usage since `earlier`, including threads that were created since.
    pub(super) fn since(&self, earlier: &Usage) -> Used {
        let mut used = Used::default();
        for (thread, now) in &self.0 {
            let before = earlier.0.get(thread).copied().unwrap_or_default();
            used.nanoseconds += now.nanoseconds.saturating_sub(before.nanoseconds);
            used.voluntary_switches += now
                .voluntary_switches
                .saturating_sub(before.voluntary_switches);
            used.involuntary_switches += now
                .involuntary_switches
                .saturating_sub(before.involuntary_switches);
            // Each thread reports the sum of its process.
            let written = used.written.entry(now.process).or_default();
            *written = (*written).max(now.written.saturating_sub(before.written));
        }
        used
    }

    /// Returns the number of processes.
    pub(super) fn processes(&self) -> usize {
        let mut processes: Vec<_> = self.0.values().map(|thread| thread.process).collect();
        processes.sort_unstable();
        processes.dedup();
        processes.len()
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

fn field(path: &str, name: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(name));
    value.and_then(|value| number(value.trim())).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::process;
    use std::time::Duration;

    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    #[test]
    fn work_of_this_process_is_seen() {
        let before = Usage::of(process::id());
        // Other processes may have the processors.
        let worked = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("a time");
        let begun = worked();
        while worked() - begun < Duration::from_millis(30) {
            black_box(());
        }
        std::thread::sleep(Duration::from_millis(5));
        let used = Usage::of(process::id()).since(&before);
        assert!(used.nanoseconds > 1_000_000);
        assert!(used.voluntary_switches > 0);
        assert_eq!(before.processes(), 1);
    }
}
