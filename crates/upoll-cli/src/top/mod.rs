//! `upoll top`: shows what the sets of an `upoll run --top` do, or the workers of an `upoll run --fair`, while they do it.
//!
//! Nothing is asked of the program: the figures are in the file that the processes of the run share.

mod frame;
mod sets;
mod workers;

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use console::Term;

use crate::output;
use crate::run::shared::{self, Kind};
use frame::{Figures, Frame};
use sets::Sets;
use workers::Workers;

/// The options of `upoll top`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// A process of the run: the first one or any worker.
    #[arg(value_name = "PID")]
    process: u32,
    /// Prints the figures once, without rates, and ends.
    #[arg(long)]
    once: bool,
    /// The time from one view to the next.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
}

fn interval(text: &str) -> Result<Duration, &'static str> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("an interval is from 0.1 to 3600 seconds"),
    }
}

/// Shows the run until it or the process ends.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let (file, kind) = shared_file(options.process)?;
    match kind {
        shared::SETS => show::<Sets>(options, &file, kind),
        _ => show::<Workers>(options, &file, kind),
    }
}

fn show<F: Figures>(options: &Options, file: &Path, kind: Kind) -> Result<ExitCode> {
    let mut frame = Frame::new(
        options.process,
        Instant::now(),
        read_figures::<F>(file, kind)?,
    );
    if options.once {
        output::print(&frame)?;
        return Ok(ExitCode::SUCCESS);
    }
    let terminal = Term::stdout();
    loop {
        match draw(&terminal, &frame.to_string()) {
            // A closed pipe is no error: its reader has seen what it wanted.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                return Ok(ExitCode::SUCCESS);
            }
            drawn => drawn.context("the terminal")?,
        }
        std::thread::sleep(options.interval);
        let now = read_figures(file, kind);
        // The first process of the run removes the file when it ends.
        if !file.exists() || !Path::new(&format!("/proc/{}", options.process)).exists() {
            return Ok(ExitCode::SUCCESS);
        }
        frame = frame.next(Instant::now(), now?);
    }
}

/// Returns the current figures of what has not ended.
fn read_figures<F: Figures>(file: &Path, kind: Kind) -> Result<F> {
    let bytes = read(file, kind).with_context(|| format!("cannot read {}", file.display()))?;
    let mut figures = F::in_file(&bytes);
    figures.complete();
    Ok(figures)
}

/// Returns whether a thread of a process has not ended.
fn is_live(process: u32, thread: u32) -> bool {
    Path::new(&format!("/proc/{process}/task/{thread}")).exists()
}

/// Returns the bytes of a shared file. Another user may have named it, so it may be anything.
fn read(file: &Path, kind: Kind) -> io::Result<Vec<u8>> {
    let mut options = OpenOptions::new();
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.read(true).open(file)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(kind.size as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the file of the run that the process belongs to.
fn shared_file(process: u32) -> Result<(PathBuf, Kind)> {
    let maps = fs::read(format!("/proc/{process}/maps"));
    let maps = maps.with_context(|| format!("cannot look at process {process}"))?;
    let mapped = maps.split(|&byte| byte == b'\n').find_map(|line| {
        let path = &line[line.iter().position(|&byte| byte == b'/')?..];
        let path = Path::new(OsStr::from_bytes(path));
        Some((path.to_owned(), Kind::of(path)?))
    });
    let Some((path, kind)) = mapped else {
        bail!(
            "process {process} keeps no figures: start its program with `upoll run --top`, or a server with \
             `upoll run --fair`"
        );
    };
    // So the kernel marks a file that was removed, which the first process of a run does at its end.
    if path.as_os_str().as_bytes().ends_with(b" (deleted)") {
        bail!("the run that process {process} belongs to has ended");
    }
    Ok((path, kind))
}

/// Replaces what was drawn before. Without a terminal, one view follows the other.
fn draw(terminal: &Term, text: &str) -> io::Result<()> {
    if terminal.is_term() {
        // Lines that do not fit would move the rest.
        let (rows, columns) = terminal.size();
        let lines = text.lines().take(usize::from(rows).saturating_sub(1));
        terminal.clear_screen()?;
        for line in lines {
            terminal.write_line(&console::truncate_str(line, usize::from(columns), ""))?;
        }
    } else {
        terminal.write_line(text)?;
    }
    terminal.flush()
}
