//! Random cases: how many a test tries, where those that failed are kept, and which failures count.
#![allow(dead_code, reason = "each test crate uses a part of it")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::test_runner::{Config, FileFailurePersistence};

/// Returns the configuration of a test that tries `cases` cases, or as many as the environment demands. The file of
/// `test` keeps those that failed.
pub fn config(cases: u32, test: &str) -> Config {
    let asked = std::env::var("PROPTEST_CASES").ok();
    let root = env!("CARGO_MANIFEST_DIR");
    let failed = format!("{root}/tests/{test}.proptest-regressions");
    Config {
        cases: asked.and_then(|asked| asked.parse().ok()).unwrap_or(cases),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(failed.leak()))),
        ..Config::default()
    }
}

/// Runs a case of one thread, and runs it again if it fails. The second run decides.
///
/// Such a case has one outcome. But a process that reads the links in `/proc/PID/fd` keeps a file open while it does. A close
/// by the kernel that comes meanwhile has its effect late.
pub fn confirm(case: impl Fn()) {
    if catch_unwind(AssertUnwindSafe(&case)).is_err() {
        case();
        eprintln!(
            "the failure above did not come again: it was another process that kept a file open"
        );
    }
}
