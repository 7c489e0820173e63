//! What each worker thread does: wait in its set, accept, answer.
//!
//! # One accept per wake
//! When the listening socket is ready a worker accepts exactly one connection and goes back to
//! wait, in all three ways alike. If it accepted until there is no more, the worker that is woken
//! first would drain the whole backlog, whatever the set's idea of whose turn it is: the others
//! would find nothing, and who gets the work would be decided by the loop and not by the set. The
//! socket is watched level-triggered, so what is left is reported again, to whomever the set
//! chooses.

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
/// How often to look for silent clients, and whether more connections can be accepted again.
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
    /// quicker to accept. Those that the set itself notices are not among them: it has the thread
    /// sleep on, and only the context switches tell.
    pub(super) empty_wakeups: u64,
    /// How often the thread left its processor because it slept.
    pub(super) voluntary_switches: u64,
    /// How often it was made to leave.
    pub(super) involuntary_switches: u64,
}

/// One worker.
#[derive(Debug)]
pub(super) struct Worker<S> {
    set: S,
    listener: Arc<TcpListener>,
    connections: Slab<Connection>,
    /// False while there is no descriptor, or no memory, for more connections.
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
                self.count_context_switches();
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

    /// For want of descriptors or memory. The socket stays ready: to keep watching it would be to
    /// wait no more.
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
        // The set forgets a stream that is closed.
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

    fn count_context_switches(&mut self) {
        // SAFETY: all-zero bytes are a valid `rusage`.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `usage` is an rusage to be filled.
        let failed = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
        debug_assert_eq!(failed, 0, "the call fails only for bad arguments");
        self.counts.voluntary_switches = usage.ru_nvcsw.unsigned_abs();
        self.counts.involuntary_switches = usage.ru_nivcsw.unsigned_abs();
    }
}

/// Whether there is too little of something that others may give back.
fn is_shortage(error: &io::Error) -> bool {
    let shortages = [
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOBUFS,
        Errno::NOMEM,
        // As many members as `fs.epoll.max_user_watches` allows.
        Errno::NOSPC,
    ];
    Errno::from_io_error(error).is_some_and(|error| shortages.contains(&error))
}
