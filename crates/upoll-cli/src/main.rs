//! `upoll` demonstrates the library on real traffic, measures it against the host kernel, and runs
//! programs with it.

mod bench;
mod demo;
mod interrupt;
mod manual;
mod output;
mod run;
mod soak;
mod top;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

/// Linux's readiness subsystem in user space: runs programs with it, shows and measures it.
#[derive(Parser)]
#[command(name = "upoll", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serves HTTP from one listening socket with N workers, three ways, and compares them.
    Demo(demo::Options),
    /// Measures upoll against the host kernel in the same run.
    ///
    /// Every figure is a ratio. upoll and the kernel do the same work alternately, in short batches
    /// on one CPU (or with the threads that the table names), and the median of the ratios counts.
    /// The table has the target ratio beside it. A spread too wide to trust is marked: the machine
    /// was busy with other work. The last line is the verdict. A full run takes about two minutes and
    /// a half; Ctrl-C ends it with what was measured until then.
    Bench(bench::Options),
    /// Runs an unmodified program with its eventfds and epoll sets in user space.
    ///
    /// The program replaces this process: standard input, signals and the exit status are its own.
    /// Programs that are linked statically or run with another user's rights are refused.
    Run(run::Options),
    /// Runs random operations from many threads, and checks that nothing is lost.
    ///
    /// Units are sent through objects of every kind to threads that wait in sets, polls and reads
    /// of every shape, while others change, close, nest, poll, signal and fork. Each unit must be
    /// received exactly once, no thread may be left asleep, and memory and fds must not grow. A
    /// fault ends the run with a report and exit status 1.
    Soak(soak::Options),
    /// Shows what the sets or the workers of a run do, while they do it.
    ///
    /// It shows the sets of a program under `upoll run --top`: members, wakes, events, and the share of each
    /// thread. It shows the workers of a server under `upoll run --fair`: their wakeups, those for nothing, and
    /// their connections. The last line has Jain's index of fairness.
    Top(top::Options),
    /// Prints a script that completes the command line in a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Prints the manual page of a command.
    // For `make install`.
    #[command(hide = true)]
    Manual {
        /// The command.
        command: String,
    },
}

/// Prints the completions of `shell`.
fn complete(shell: Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    // The generator completes hidden commands, too.
    let all = Cli::command();
    let visible = all.get_subcommands().filter(|one| !one.is_hide_set());
    let mut visible = clap::Command::new("upoll")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommands(visible.cloned());
    clap_complete::generate(shell, &mut visible, "upoll", &mut script);
    output::print(String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Demo(options) => demo::run(&options),
        Command::Run(options) => run::run(&options),
        Command::Soak(options) => soak::run(&options),
        Command::Top(options) => top::run(&options),
        Command::Completions { shell } => complete(shell),
        Command::Manual { command } => manual::print(Cli::command(), &command),
        Command::Bench(options) => bench::run(&options),
    };
    result.unwrap_or_else(|error| {
        // If standard error is closed, there is nobody to tell.
        let _ = writeln!(std::io::stderr(), "upoll: {error:#}");
        ExitCode::FAILURE
    })
}
