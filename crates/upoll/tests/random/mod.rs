//! Random cases: how many a test tries, and where those that failed are kept.

use proptest::test_runner::{Config, FileFailurePersistence};

/// Returns the configuration of a test that tries `cases` cases, or as many as the environment demands. Those that
/// failed are kept in the file of `test`.
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
