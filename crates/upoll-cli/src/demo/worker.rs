//! What each worker thread does: wait in its set, accept, answer.
//!
//! # One accept per wake
//! When the listening socket is ready a worker accepts exactly one connection and goes back to
//! wait, in all three ways alike. If it accepted until there is no more, the worker that is woken
//! first would drain the whole backlog, whatever the set's idea of whose turn it is: the others
//! would find nothing, and who gets the work would be decided by the loop and not by the set. The
//! socket is watched level-triggered, so what is left is reported again, to whomever the set
//! chooses.

use std::io::{self, ErrorKind};
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
/// How often to look for silent clients, and whether there are descriptors again.
const PATROL: Duration = Duration::from_secs(1);
/// How often one accept is tried again because the client was gone already, or a signal came.
const ACCEPT_TRIES: usize = 8;
const SCRATCH: usize = 16 * 1024;

/// What a worker did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Requests answered.
    pub(super) requests: u64,
    /// Connections accepted.
    pub(super) accepted: u64,
    /// Waits that reported an event.
    pub(super) wakeups: u64,
    /// Of those, waits that reported the listening socket alone, and another worker had been
    /// quicker to accept.
    pub(super) empty_wakeups: u64,
    /// How often the thread left its processor: because it slept, or was made to.
    pub(super) switches: u64,
}

/// One worker.
#[derive(Debug)]
pub(super) struct Worker<S> {
    set: S,
    listener: Arc<TcpListener>,
    connections: Slab<Connection>,
    /// False while there are no descriptors for more connections.
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

    /// Works until the bell rings; then drops what connections there are.
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
                self.counts.switches = context_switches();
                return Ok(self.counts);
            }
            if now >= self.next_patrol {
                self.patrol(now)?;
            }
        }
    }

    /// Accepts one connection, if there is one.
    fn accept(&mut self, now: Instant) -> io::Result<bool> {
        for _ in 0..ACCEPT_TRIES {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match accept_with(&*self.listener, flags) {
                Ok(stream) => {
                    self.counts.accepted += 1;
                    let stream = TcpStream::from(stream);
                    let entry = self.connections.vacant_entry();
                    let connection = Connection::new(stream, now);
                    self.set.add(
                        &connection.stream,
                        connection.watched_for,
                        entry.key() as u64,
                    )?;
                    entry.insert(connection);
                    return Ok(true);
                }
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    // The socket stays ready: to keep watching it would be to wait no more.
                    self.set.delete_listener()?;
                    self.accepting = false;
                    return Ok(false);
                }
                Err(Errno::INTR | Errno::CONNABORTED | Errno::PERM | Errno::PROTO) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
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
        let connection = self.connections.remove(key);
        self.set.delete(&connection.stream)?;
        drop(connection);
        self.accept_again()
    }

    fn accept_again(&mut self) -> io::Result<()> {
        if self.accepting {
            return Ok(());
        }
        match self.set.add_listener() {
            Err(error) if error.kind() == ErrorKind::OutOfMemory => Ok(()),
            added => {
                self.accepting = added.is_ok();
                added
            }
        }
    }

    /// Closes connections that were silent for too long, and sees whether to accept again.
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
}

/// How often this thread left its processor so far.
fn context_switches() -> u64 {
    // SAFETY: all-zero bytes are a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is an rusage to be filled.
    let failed = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    debug_assert_eq!(failed, 0, "the call fails only for bad arguments");
    (usage.ru_nvcsw + usage.ru_nivcsw).unsigned_abs()
}
