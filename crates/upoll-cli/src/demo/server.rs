//! A server: one listening socket, and worker threads that share it.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::Context;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::thread::CpuSet;

use super::compare::run_on;
use super::ways::{Bell, KernelSet, TurnSet, Way, WorkerSet};
use super::worker::{Counts, Worker};

/// The number of fds that a worker needs before its first connection: its set and its bell.
pub(super) const DESCRIPTORS_PER_WORKER: u64 = 2;
/// The listening socket, and the fds that the rotating set needs.
pub(super) const DESCRIPTORS_PER_SERVER: u64 = 6;

/// The number of connections that may wait to be accepted. The kernel reduces it to
/// `net.core.somaxconn`.
const BACKLOG: i32 = 65_535;

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub(super) struct Server {
    address: SocketAddr,
    bells: Vec<Bell>,
    workers: Vec<JoinHandle<io::Result<Counts>>>,
}

impl Server {
    /// Listens on `address` and starts the workers, which run on `processors`.
    pub(super) fn start(
        way: Way,
        address: SocketAddr,
        workers: usize,
        processors: &CpuSet,
    ) -> anyhow::Result<Self> {
        let listener = listen(address).with_context(|| format!("cannot listen on {address}"))?;
        let mut server = Server {
            address: listener.local_addr()?,
            bells: Vec::new(),
            workers: Vec::new(),
        };
        server
            .staff(way, workers, processors, &Arc::new(listener))
            .with_context(|| format!("cannot start {workers} workers"))?;
        Ok(server)
    }

    fn staff(
        &mut self,
        way: Way,
        workers: usize,
        processors: &CpuSet,
        listener: &Arc<TcpListener>,
    ) -> io::Result<()> {
        match way {
            Way::Stock | Way::Exclusive => {
                let exclusive = way == Way::Exclusive;
                self.employ(workers, processors, listener, || {
                    KernelSet::new(listener, exclusive)
                })
            }
            Way::Rotating => {
                let turns = TurnSet::turns(listener)?;
                self.employ(workers, processors, listener, || TurnSet::new(&turns))
            }
        }
    }

    /// Makes all sets, in the order of the workers, and then the threads.
    fn employ<S: WorkerSet>(
        &mut self,
        workers: usize,
        processors: &CpuSet,
        listener: &Arc<TcpListener>,
        make_set: impl Fn() -> io::Result<(S, Bell)>,
    ) -> io::Result<()> {
        let sets: Vec<_> = (0..workers)
            .map(|_| make_set())
            .collect::<io::Result<_>>()?;
        for (number, (set, bell)) in sets.into_iter().enumerate() {
            let worker = Worker::new(set, listener.clone());
            let name = format!("worker {number}");
            let processors = *processors;
            let work = move || {
                run_on(&processors);
                let ended = worker.run();
                if let Err(error) = &ended {
                    eprintln!("worker {number} gives up: {error}");
                }
                ended
            };
            self.workers
                .push(thread::Builder::new().name(name).spawn(work)?);
            self.bells.push(bell);
        }
        Ok(())
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends the workers. Returns the counts of each.
    pub(super) fn stop(mut self) -> io::Result<Vec<Counts>> {
        self.end()
    }

    fn end(&mut self) -> io::Result<Vec<Counts>> {
        for bell in self.bells.drain(..) {
            bell.ring()?;
        }
        self.workers
            .drain(..)
            .map(|worker| {
                worker
                    .join()
                    .map_err(|_| io::Error::other("a worker panicked"))?
            })
            .collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A worker that failed has reported its error already.
        let _ = self.end();
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    // Connections inherit the option. A response is sent in one piece, and must not wait for the
    // client to acknowledge the previous one.
    sockopt::set_tcp_nodelay(&socket, true)?;
    net::bind(&socket, &address)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}
