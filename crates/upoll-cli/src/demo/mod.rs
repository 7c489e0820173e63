//! `upoll demo`: worker threads that share one listening socket and serve HTTP, three ways.
//!
//! | module | what it holds |
//! |---|---|
//! | `http` | where a request ends, and what the answer is |
//! | `connection` | one connection of the server |
//! | `ways` | the three ways of sharing the listening socket |
//! | `worker` | what a worker thread does, and what it counts |
//! | `server` | the listening socket and its workers |
//! | `load` | the client that loads a server and checks the answers |
//! | `compare` | the same load to all three |
//! | `report` | the table and the JSON |
//! | `descriptors` | the limit of open files |

mod compare;
mod connection;
mod descriptors;
mod http;
mod load;
mod report;
mod server;
mod ways;
mod worker;

use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::value_parser;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::compare::Comparison;
use self::report::{Report, span};
use self::server::{DESCRIPTORS_PER_SERVER, DESCRIPTORS_PER_WORKER, Server};
use self::ways::Way;
use crate::output;

/// The exit status if the options make no sense or cannot be met here, like clap's for invalid
/// arguments.
const USAGE: u8 = 2;
/// The exit status if an operation fails during the run.
const FAILED: u8 = 1;
/// Added to the number of the signal that ended the comparison.
const BY_SIGNAL: u8 = 128;

/// The options.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The number of threads that share the listening socket. (A set can be watched by at most 500
    /// sets, with upoll as with the kernel's epoll.)
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u16).range(1..=500))]
    workers: u16,

    /// The number of requests in flight at a time, each on a connection of its own. The kernel
    /// keeps at most net.core.somaxconn connections that no worker has accepted yet.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = value_parser!(u32).range(1..))]
    connections: u32,

    /// The number of requests to each way, with a new connection for each.
    #[arg(long, value_name = "N", default_value_t = 80_000, value_parser = value_parser!(u32).range(1..))]
    requests: u32,

    /// Only serves, at ADDRESS:PORT, for clients of your own, until Ctrl-C. Port 0 is any free one.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = socket_address,
          conflicts_with_all = ["connections", "requests", "json"])]
    listen: Option<SocketAddr>,

    /// Only this way; may be given more than once, but not with --listen, which uses rotating by
    /// default.
    #[arg(long, value_enum)]
    way: Vec<Way>,

    /// Prints JSON instead of a table.
    #[arg(long)]
    json: bool,
}

fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let wanted = "want ADDRESS:PORT, such as 127.0.0.1:8080 or [::1]:8080";
    text.to_socket_addrs()
        .map_err(|error| format!("{error}; {wanted}"))?
        .next()
        .ok_or_else(|| wanted.into())
}

/// Runs the demo.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    // Installed first, so that a signal cannot end the program without the handler.
    let signals = Signals::new([SIGINT, SIGTERM]).context("handling signals")?;
    let ended = match options.listen {
        Some(address) => options.serve(address, signals),
        None => options.compare(signals),
    };
    Ok(ended.unwrap_or_else(|error| told(&error, FAILED)))
}

impl Options {
    fn workers(&self) -> usize {
        self.workers.into()
    }

    fn descriptors_of_a_server(&self) -> u64 {
        DESCRIPTORS_PER_SERVER + DESCRIPTORS_PER_WORKER * u64::from(self.workers)
    }

    fn serve(&self, address: SocketAddr, mut signals: Signals) -> anyhow::Result<ExitCode> {
        let (way, server) = match self.start(address) {
            Ok(started) => started,
            Err(error) => return Ok(told(&error, USAGE)),
        };
        output::print(format_args!(
            "listening on http://{}/ with {} workers ({}); Ctrl-C ends it\n",
            server.address(),
            self.workers,
            way.title(),
        ))?;
        signals.forever().next();
        let counts = server.stop()?;
        output::print(format_args!(
            "{} connections, {} requests; {} connections per worker\n",
            counts.iter().map(|worker| worker.accepted).sum::<u64>(),
            counts.iter().map(|worker| worker.requests).sum::<u64>(),
            span(counts.iter().map(|worker| worker.accepted)),
        ))?;
        Ok(ExitCode::SUCCESS)
    }

    fn start(&self, address: SocketAddr) -> anyhow::Result<(Way, Server)> {
        ensure!(self.way.len() <= 1, "--listen serves one --way only");
        let way = self.way.first().copied().unwrap_or(Way::Rotating);
        let for_what = format!("{} workers", self.workers);
        descriptors::allow(self.descriptors_of_a_server(), &for_what)?;
        // The client runs elsewhere.
        let processors = compare::allowed_processors();
        let server = Server::start(way, address, self.workers(), &processors)?;
        Ok((way, server))
    }

    fn compare(&self, mut signals: Signals) -> anyhow::Result<ExitCode> {
        let mut ways = Way::ALL.to_vec();
        ways.retain(|way| self.way.is_empty() || self.way.contains(way));
        let comparison = Comparison {
            ways,
            workers: self.workers(),
            connections: self.connections as usize,
            requests: self.requests.into(),
        };
        // Both ends of each connection are in this process.
        let descriptors = self.descriptors_of_a_server() * comparison.ways.len() as u64
            + comparison.client_descriptors() as u64
            + u64::from(self.connections);
        let for_what = format!(
            "{} workers for each way and {} connections",
            self.workers, self.connections
        );
        if let Err(error) = descriptors::allow(descriptors, &for_what) {
            return Ok(told(&error, USAGE));
        }
        let report = comparison.run(&mut signals)?;
        self.print(&report)?;
        let mut failed = false;
        for failure in report.failures() {
            eprintln!("{failure}");
            failed = true;
        }
        Ok(match report.ended_by {
            Some(signal) => ExitCode::from(BY_SIGNAL + signal as u8),
            None if failed => ExitCode::from(FAILED),
            None => ExitCode::SUCCESS,
        })
    }

    fn print(&self, report: &Report) -> anyhow::Result<()> {
        if self.json {
            let json = serde_json::to_string_pretty(report)?;
            return Ok(output::print(format_args!("{json}\n"))?);
        }
        let mut text = format!(
            "{} requests each way, {} at a time, a connection for each; {} workers; {} processors\n\
             Latencies are medians of the rounds.\n{}\n",
            report.requests,
            report.connections,
            report.workers,
            report.processors,
            report.table()
        );
        if report.interrupted {
            text += "interrupted: this is what there was until then\n";
        }
        Ok(output::print(text)?)
    }
}

/// Prints an error in clap's format.
fn told(error: &anyhow::Error, code: u8) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::from(code)
}
