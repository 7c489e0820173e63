//! A worker thread: it waits in its set, accepts connections, and responds to requests.
//!
//! # One accept per wakeup
//! When the listening socket is ready, a worker accepts exactly one connection and waits again, in
//! all three ways. If it accepted until there were no more, the first worker to wake would drain
//! the whole backlog, whichever workers the set chooses. The others would find nothing, and this
//! loop instead of the set would decide who gets the work. The socket is watched level-triggered,
//! so the rest is reported again, to the worker that the set chooses.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use slab::Slab;

use super::connection::{Connection, Next};
use super::ways::{BELL, LISTENER, WorkerSet};

/// A client may be silent for this long.
const IDLE_LIMIT: Duration = Duration::from_secs(30);
/// The interval at which the worker checks for silent clients, and whether it can accept
/// connections again.
const PATROL: Duration = Duration::from_secs(1);
/// The number of times that one accept is repeated because the client was gone already, or a signal
/// came.
const ACCEPT_TRIES: usize = 8;
const SCRATCH: usize = 16 * 1024;

/// The counts of a worker.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Requests answered.
    pub(super) requests: u64,
    /// Connections accepted.
    pub(super) accepted: u64,
    /// Waits that reported an event.
    pub(super) wakeups: u64,
    /// The wakeups that reported only the listening socket, and found that another worker
    /// had accepted the connection. They do not include wakeups that end inside the set, which lets
    /// the thread sleep on: these show only as context switches.
    pub(super) empty_wakeups: u64,
    /// Context switches because the thread slept.
    pub(super) voluntary_switches: u64,
    /// Context switches by preemption.
    pub(super) involuntary_switches: u64,
}

/// A worker with its set and its connections.
#[derive(Debug)]
pub(super) struct Worker<S> {
    set: S,
    listener: Arc<TcpListener>,
    connections: Slab<Connection>,
    /// False while there are no fds, or no memory, for more connections.
    accepting: bool,
    next_patrol: Instant,
    scratch: Vec<u8>,
    counts: Counts,
}

impl<S: WorkerSet> Worker<S> {
    pub(super) fn new(set: S, listener: Arc<TcpListener>) -> Self {
        Worker {
            set,
            listener,
            connections: Slab::new(),
            accepting: true,
            next_patrol: Instant::now() + PATROL,
            scratch: vec![0; SCRATCH],
            counts: Counts::default(),
        }
    }

    /// Works until the bell rings, and then drops the remaining connections.
    pub(super) fn run(mut self) -> io::Result<Counts> {
        let mut room = S::room();
        loop {
            let nothing_to_patrol = self.connections.is_empty() && self.accepting;
            let ready = self
                .set
                .wait(&mut room, (!nothing_to_patrol).then_some(PATROL))?;
            let now = Instant::now();
            self.counts.wakeups += u64::from(ready > 0);
            let mut rung = false;
            for index in 0..ready {
                match S::data(&room, index) {
                    BELL => rung = true,
                    LISTENER => {
                        let accepted = self.accept(now)?;
                        self.counts.empty_wakeups += u64::from(!accepted && ready == 1);
                    }
                    connection => self.advance(connection as usize, now)?,
                }
            }
            if rung {
                self.count_context_switches();
                return Ok(self.counts);
            }
            if now >= self.next_patrol {
                self.patrol(now)?;
            }
        }
    }

    /// Accepts one connection, if there is one. Returns whether there was.
    fn accept(&mut self, now: Instant) -> io::Result<bool> {
        for _ in 0..ACCEPT_TRIES {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match accept_with(&*self.listener, flags) {
                Ok(stream) => {
                    self.counts.accepted += 1;
                    let stream = TcpStream::from(stream);
                    let entry = self.connections.vacant_entry();
                    let connection = Connection::new(stream, now);
                    let watched = self.set.add(
                        &connection.stream,
                        connection.watched_for,
                        entry.key() as u64,
                    );
                    match watched {
                        Ok(()) => {
                            entry.insert(connection);
                        }
                        Err(error) if is_shortage(&error) => self.accept_no_more()?,
                        Err(error) => return Err(error),
                    }
                    return Ok(true);
                }
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR | Errno::CONNABORTED | Errno::PERM | Errno::PROTO) => {}
                Err(error) if is_shortage(&error.into()) => {
                    self.accept_no_more()?;
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }

    /// Stops watching the listening socket for lack of fds or memory. The socket stays ready, so a
    /// wait that watches it would never sleep.
    fn accept_no_more(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.accepting) {
            self.set.delete_listener()?;
        }
        Ok(())
    }

    fn advance(&mut self, key: usize, now: Instant) -> io::Result<()> {
        let connection = &mut self.connections[key];
        connection.active = now;
        match connection.advance(&mut self.scratch, &mut self.counts.requests) {
            Next::Wait(wanted) if wanted == connection.watched_for => Ok(()),
            Next::Wait(wanted) => {
                connection.watched_for = wanted;
                self.set.modify(&connection.stream, wanted, key as u64)
            }
            Next::Close => self.close(key),
        }
    }

    fn close(&mut self, key: usize) -> io::Result<()> {
        // Closing the stream removes it from the set.
        drop(self.connections.remove(key));
        self.accept_again()
    }

    fn accept_again(&mut self) -> io::Result<()> {
        if self.accepting {
            return Ok(());
        }
        match self.set.add_listener() {
            Err(error) if is_shortage(&error) => Ok(()),
            added => {
                self.accepting = added.is_ok();
                added
            }
        }
    }

    /// Closes connections that were silent for too long, and checks whether the worker can accept
    /// again.
    fn patrol(&mut self, now: Instant) -> io::Result<()> {
        self.next_patrol = now + PATROL;
        let silent: Vec<usize> = self
            .connections
            .iter()
            .filter(|(_, connection)| now.duration_since(connection.active) > IDLE_LIMIT)
            .map(|(key, _)| key)
            .collect();
        for key in silent {
            self.close(key)?;
        }
        self.accept_again()
    }

    fn count_context_switches(&mut self) {
        // SAFETY: all-zero bytes are a valid `rusage`.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the call fills `usage`.
        let failed = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
        debug_assert_eq!(failed, 0, "the call fails only for bad arguments");
        self.counts.voluntary_switches = usage.ru_nvcsw.unsigned_abs();
        self.counts.involuntary_switches = usage.ru_nivcsw.unsigned_abs();
    }
}

/// Returns whether the error is a lack of a resource that others may release.
fn is_shortage(error: &io::Error) -> bool {
    let shortages = [
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOBUFS,
        Errno::NOMEM,
        // The number of members has reached `fs.epoll.max_user_watches`.
        Errno::NOSPC,
    ];
    Errno::from_io_error(error).is_some_and(|error| shortages.contains(&error))
}
