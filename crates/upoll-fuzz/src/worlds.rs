//! The implementations that replay a script, and the comparison of their output.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;
use wait_timeout::ChildExt;

/// The longest time of one replay. The blocked calls of a script take a few seconds at most.
const LIMIT: Duration = Duration::from_secs(60);

/// The programs that replay scripts.
pub(crate) struct Worlds {
    scratch: TempDir,
    upoll: PathBuf,
    calls: Vec<String>,
}

/// Returns the root of the checkout.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

impl Worlds {
    /// Compiles `replay.c` for the kernel and for libupoll, which must have been built in release.
    pub(crate) fn build() -> Result<Self> {
        let scratch = TempDir::new()?;
        let target = std::env::current_exe()?
            .parent()
            .context("a program in no directory")?
            .to_owned();
        let source = root().join("tests/fuzz/replay.c");
        let compile = |name: &str, more: &[&Path]| -> Result<PathBuf> {
            let program = scratch.path().join(name);
            let status = Command::new("cc")
                .args([
                    "-std=gnu11",
                    "-g",
                    "-O1",
                    "-U_FORTIFY_SOURCE",
                    "-Wno-nonnull",
                    "-pthread",
                ])
                .arg(&source)
                .args(more)
                .arg("-o")
                .arg(&program)
                .args(["-lgcc_s", "-ldl", "-lm"])
                .status()?;
            ensure!(status.success(), "replay.c does not compile");
            Ok(program)
        };
        let kernel = compile("kernel", &[])?;
        let include = format!("-I{}", root().join("include").display());
        compile(
            "redirect",
            &[
                Path::new("-DUPOLL_REDIRECT"),
                Path::new(&include),
                &target.join("libupoll_c.a"),
            ],
        )?;
        let calls = Command::new(&kernel).arg("--calls").output()?;
        let calls = String::from_utf8(calls.stdout)?
            .lines()
            .map(str::to_owned)
            .collect();
        let upoll = target.join("upoll");
        ensure!(
            upoll.exists(),
            "no {}: build upoll-cli first",
            upoll.display()
        );
        Ok(Worlds {
            scratch,
            upoll,
            calls,
        })
    }

    /// Returns the names of all calls that a script may have.
    pub(crate) fn calls(&self) -> &[String] {
        &self.calls
    }

    /// Replays a script on all implementations. Returns the first difference from the kernel that
    /// appears in each of four replays.
    ///
    /// On a busy machine a timer may interrupt a call that the kernel would have completed. An
    /// intermittent difference is printed and ignored.
    pub(crate) fn compare(&self, script: &str) -> Result<Option<String>> {
        let Some(first) = self.compare_once(script)? else {
            return Ok(None);
        };
        for _ in 0..3 {
            if self.compare_once(script)?.as_ref() != Some(&first) {
                eprintln!("a difference that did not show again: {first}");
                return Ok(None);
            }
        }
        Ok(Some(first))
    }

    fn compare_once(&self, script: &str) -> Result<Option<String>> {
        let path = self.scratch.path().join("script");
        fs::write(&path, script)?;
        let upoll = self.upoll.as_os_str();
        let kernel = self.scratch.path().join("kernel");
        let redirect = self.scratch.path().join("redirect");
        let run = |user: &str| {
            let mut command = Command::new(upoll);
            command
                .arg("run")
                .arg(user)
                .arg("--")
                .arg(&kernel)
                .arg(&path);
            command
        };
        let with = |program: &Path, more: &[&str]| {
            let mut command = Command::new(program);
            command.args(more).arg(&path);
            command
        };
        let expected = print(with(&kernel, &[]))?;
        let portable = print(with(&kernel, &["--portable"]))?;
        let worlds = [
            ("under upoll run", run("--user=eventfd"), &expected),
            ("under upoll run --user=all", run("--user=all"), &expected),
            ("with UPOLL_REDIRECT", with(&redirect, &[]), &portable),
        ];
        for (name, command, expected) in worlds {
            let printed = print(command)?;
            if printed != *expected {
                return Ok(Some(format!(
                    "{name}:{}",
                    first_difference(expected, &printed)
                )));
            }
        }
        Ok(None)
    }
}

/// Runs a program. Returns its output and its exit status.
fn print(mut command: Command) -> Result<String> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{command:?}"))?;
    let (Some(mut stdout), Some(mut stderr)) = (child.stdout.take(), child.stderr.take()) else {
        bail!("no pipes");
    };
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        stdout.read_to_end(&mut text).map(|_| text)
    });
    let errors = std::thread::spawn(move || {
        let mut text = Vec::new();
        stderr.read_to_end(&mut text).map(|_| text)
    });
    let Some(status) = child.wait_timeout(LIMIT)? else {
        child.kill()?;
        child.wait()?;
        return Ok("timed out\n".to_owned());
    };
    let (Ok(printed), Ok(errors)) = (reader.join(), errors.join()) else {
        bail!("a reader panicked");
    };
    let mut text = String::from_utf8_lossy(&printed?).into_owned();
    text += &String::from_utf8_lossy(&errors?);
    if !status.success() {
        text += &format!("ended with {status}\n");
    }
    Ok(text)
}

/// Returns the first line that differs.
fn first_difference(expected: &str, printed: &str) -> String {
    let position = expected
        .lines()
        .zip(printed.lines())
        .take_while(|(left, right)| left == right)
        .count();
    format!(
        "\n  kernel: {}\n  upoll:  {}",
        expected.lines().nth(position).unwrap_or("(nothing)"),
        printed.lines().nth(position).unwrap_or("(nothing)"),
    )
}
