//! Differential fuzzing of calls by fd.
//!
//! `tests/fuzz/replay.c` makes the calls of a script in several processes and prints their results.
//! This program makes random scripts, replays them on the kernel, with `-DUPOLL_REDIRECT` and under
//! `upoll run`, and compares the output. A script with a difference is reduced as long as the
//! difference stays, and written to a file. Scripts that once showed a fault are kept in
//! `tests/fuzz/kept` and replayed first.

mod script;
mod worlds;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use self::script::Script;
use self::worlds::Worlds;

/// The number of scripts between two reads of the clock.
const BATCH: u32 = 10;

/// Compares random calls by fd on the kernel and on upoll.
#[derive(Parser)]
struct Options {
    /// The number of seconds to make new scripts, after the kept ones.
    #[arg(long, default_value_t = 120)]
    seconds: u64,
    /// Makes the same scripts again.
    #[arg(long)]
    seed: Option<u64>,
    /// Leaves these calls out of new scripts, to find other differences.
    #[arg(long, value_delimiter = ',', value_name = "CALLS")]
    without: Vec<String>,
    /// Replays only these scripts.
    scripts: Vec<PathBuf>,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let worlds = Worlds::build()?;
    let mut scripts = options.scripts.clone();
    let is_fuzzing = scripts.is_empty();
    if is_fuzzing {
        for entry in fs::read_dir(worlds::root().join("tests/fuzz/kept"))? {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "script")
            {
                scripts.push(path);
            }
        }
        scripts.sort();
    }
    for path in &scripts {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        if let Some(difference) = worlds.compare(&text)? {
            eprintln!("{}:\n{difference}", path.display());
            return Ok(ExitCode::FAILURE);
        }
    }
    println!("{} scripts replayed, no difference", scripts.len());
    if is_fuzzing {
        return fuzz(&options, &worlds);
    }
    Ok(ExitCode::SUCCESS)
}

fn fuzz(options: &Options, worlds: &Worlds) -> Result<ExitCode> {
    let seed = options.seed.unwrap_or_else(seed_of_now);
    println!("seed {seed}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases: BATCH,
        failure_persistence: None,
        max_shrink_iters: 100_000,
        max_shrink_time: 40_000,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config.clone(), rng);
    let strategy =
        script::steps().prop_map(|steps| Script::new(&steps, worlds.calls(), &options.without));
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let mut count = 0;
    while Instant::now() < end {
        let rng = runner.new_rng();
        runner = TestRunner::new_with_rng(config.clone(), rng);
        let result = runner.run(&strategy, |script| match worlds.compare(&script.text) {
            Ok(None) => Ok(()),
            Ok(Some(difference)) => Err(TestCaseError::fail(difference)),
            Err(error) => Err(TestCaseError::reject(format!("{error:#}"))),
        });
        match result {
            Ok(()) => count += BATCH,
            Err(TestError::Fail(found, script)) => {
                // The reduced script shows the difference again, unless it is intermittent.
                let difference = worlds.compare(&script.text)?;
                let path = std::env::temp_dir().join(format!("upoll-fuzz-{seed}.script"));
                fs::write(&path, &script.text)?;
                eprintln!(
                    "a difference, after {count} scripts:\n{found}\nthe smallest one is in {}:\n{}\n{}",
                    path.display(),
                    script.text,
                    difference.as_deref().unwrap_or("(not seen again)")
                );
                return Ok(ExitCode::FAILURE);
            }
            Err(TestError::Abort(reason)) => anyhow::bail!("{reason}"),
        }
    }
    println!("{count} random scripts, no difference");
    Ok(ExitCode::SUCCESS)
}

fn seed_of_now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |now| now.as_nanos() as u64)
}
