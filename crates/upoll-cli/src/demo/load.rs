//! The client: loads a server and checks every answer.
//!
//! Each request has a connection of its own: connect, send, read the answer to its end, close. What
//! the workers share is the listening socket, so new connections are what they compete for; with
//! connections kept alive each would stay with the worker that accepted it, and the three ways
//! would not differ.
//!
//! The client runs in threads of its own, on the kernel's plain epoll, the same for all three ways.
//! It closes with a reset once the server has closed (SO_LINGER of 0), so neither side is left in
//! TIME_WAIT, and a run cannot use up the local ports.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

use super::http::PAGE;

/// A request that is not answered after this long has failed.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often to look whether to stop, or whether a request has failed.
const TICK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
/// Latencies are kept with this many significant digits.
const DIGITS: u8 = 3;
const BATCH: usize = 64;
const SCRATCH: usize = 4096;

/// What all client threads share.
#[derive(Debug)]
pub(super) struct Load<'a> {
    pub(super) server: SocketAddr,
    /// How many requests to send in all.
    pub(super) requests: u64,
    /// How many of them have been begun.
    pub(super) begun: AtomicU64,
    /// Counts requests that are over, well or badly, beyond this load too.
    pub(super) over: &'a AtomicU64,
    pub(super) stop: &'a AtomicBool,
}

/// What came of a load.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Requests that were answered as they should be.
    pub(super) answered: u64,
    /// Requests that failed, in any way.
    pub(super) failed: u64,
    /// How the first of them failed.
    pub(super) first_failure: Option<String>,
    /// From before the connect to the end of the answer, in nanoseconds; of answered requests.
    pub(super) latency: Histogram<u64>,
}

impl Outcome {
    pub(super) fn new() -> Self {
        Outcome {
            answered: 0,
            failed: 0,
            first_failure: None,
            latency: Histogram::new(DIGITS).expect("the number of digits is allowed"),
        }
    }

    pub(super) fn add(&mut self, other: Outcome) {
        self.answered += other.answered;
        self.failed += other.failed;
        self.first_failure = self.first_failure.take().or(other.first_failure);
        self.latency
            .add(&other.latency)
            .expect("histograms that resize take any value");
    }
}

/// A request under way.
#[derive(Debug)]
struct Exchange {
    stream: TcpStream,
    begun: Instant,
    sent: usize,
    received: Vec<u8>,
    /// When the answer was complete; what is missing then is the server's close.
    answered: Option<Instant>,
}

/// One client thread.
#[derive(Debug)]
pub(super) struct Client<'a> {
    load: &'a Load<'a>,
    request: Vec<u8>,
    epoll: OwnedFd,
    /// `None`: there was nothing left to begin.
    slots: Vec<Option<Exchange>>,
    under_way: usize,
    outcome: Outcome,
    scratch: Vec<u8>,
}

impl<'a> Client<'a> {
    /// A client that has up to `connections` requests under way at a time.
    pub(super) fn new(load: &'a Load<'a>, connections: usize) -> io::Result<Self> {
        let request = format!(
            "GET / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            load.server
        );
        Ok(Client {
            load,
            request: request.into_bytes(),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            slots: (0..connections).map(|_| None).collect(),
            under_way: 0,
            outcome: Outcome::new(),
            scratch: vec![0; SCRATCH],
        })
    }

    /// Sends requests until there are no more to begin, or it is told to stop.
    pub(super) fn run(mut self) -> io::Result<Outcome> {
        for slot in 0..self.slots.len() {
            self.begin(slot);
        }
        let mut ready = Vec::with_capacity(BATCH);
        let mut next_look = Instant::now() + PATIENCE;
        while self.under_way > 0 && !self.load.stop.load(Ordering::Relaxed) {
            ready.clear();
            let buffer = rustix::buffer::spare_capacity(&mut ready);
            match epoll::wait(&self.epoll, buffer, Some(&TICK)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &ready {
                self.advance({ event.data }.u64() as usize);
            }
            let now = Instant::now();
            if now >= next_look {
                next_look = now + PATIENCE / 10;
                self.give_up_late_ones(now);
            }
        }
        Ok(self.outcome)
    }

    /// Begins the next request in `slot`, if there is one. Those that fail at once are counted and
    /// the next is begun.
    fn begin(&mut self, slot: usize) {
        while !self.load.stop.load(Ordering::Relaxed)
            && self.load.begun.fetch_add(1, Ordering::Relaxed) < self.load.requests
        {
            match self.try_begin(slot) {
                Ok(exchange) => {
                    self.slots[slot] = Some(exchange);
                    self.under_way += 1;
                    return;
                }
                Err(error) => self.count_failure(&error),
            }
        }
    }

    fn try_begin(&mut self, slot: usize) -> io::Result<Exchange> {
        let begun = Instant::now();
        let family = match self.load.server {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
        match connect(&socket, &self.load.server) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let mut exchange = Exchange {
            stream: TcpStream::from(socket),
            begun,
            sent: 0,
            received: Vec::new(),
            answered: None,
        };
        // On the loopback the connection often stands already.
        exchange.send(&self.request)?;
        // Edge-triggered: registered once for all that is to come.
        epoll::add(
            &self.epoll,
            &exchange.stream,
            epoll::EventData::new_u64(slot as u64),
            epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET,
        )?;
        Ok(exchange)
    }

    fn advance(&mut self, slot: usize) {
        let Some(exchange) = &mut self.slots[slot] else {
            return;
        };
        let advanced = exchange
            .send(&self.request)
            .and_then(|()| exchange.receive(&mut self.scratch));
        match advanced {
            Ok(None) => return,
            Ok(Some(latency)) => {
                let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
                self.outcome
                    .latency
                    .record(nanoseconds)
                    .expect("histograms that resize take any value");
                self.outcome.answered += 1;
                self.load.over.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => self.count_failure(&error),
        }
        self.end(slot);
    }

    fn end(&mut self, slot: usize) {
        self.slots[slot] = None;
        self.under_way -= 1;
        self.begin(slot);
    }

    fn count_failure(&mut self, error: &io::Error) {
        self.outcome.failed += 1;
        self.outcome
            .first_failure
            .get_or_insert_with(|| error.to_string());
        self.load.over.fetch_add(1, Ordering::Relaxed);
    }

    fn give_up_late_ones(&mut self, now: Instant) {
        for slot in 0..self.slots.len() {
            let late = self.slots[slot]
                .as_ref()
                .is_some_and(|exchange| now.duration_since(exchange.begun) > PATIENCE);
            if late {
                let patience = PATIENCE.as_secs();
                let error = format!("no answer within {patience} seconds");
                self.count_failure(&io::Error::new(ErrorKind::TimedOut, error));
                self.end(slot);
            }
        }
    }
}

impl Exchange {
    fn send(&mut self, request: &[u8]) -> io::Result<()> {
        while self.sent < request.len() {
            match self.stream.write(&request[self.sent..]) {
                Ok(sent) => self.sent += sent,
                // Not connected yet, or no room.
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads what there is. At the end, how long the answer took, if it was right.
    fn receive(&mut self, scratch: &mut [u8]) -> io::Result<Option<Duration>> {
        loop {
            match self.stream.read(scratch) {
                Ok(0) => {
                    let answered = self.answered.ok_or(ErrorKind::UnexpectedEof)?;
                    return Ok(Some(answered.duration_since(self.begun)));
                }
                Ok(read) => {
                    self.received.extend_from_slice(&scratch[..read]);
                    if is_whole(&self.received)? {
                        self.answered = Some(Instant::now());
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether `received` is the whole answer; an error if it is not even the beginning of it.
fn is_whole(received: &[u8]) -> io::Result<bool> {
    let wrong = |what: String| io::Error::new(ErrorKind::InvalidData, what);
    let mut fields = [httparse::EMPTY_HEADER; 16];
    let mut answer = httparse::Response::new(&mut fields);
    let head = match answer.parse(received) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(false),
        Err(error) => return Err(wrong(format!("the answer is not HTTP: {error}"))),
    };
    if answer.code != Some(200) {
        return Err(wrong(format!(
            "the answer's status is {}",
            answer.code.unwrap_or_default()
        )));
    }
    let has = |name: &str, value: &str| {
        answer
            .headers
            .iter()
            .any(|field| field.name.eq_ignore_ascii_case(name) && field.value == value.as_bytes())
    };
    if !has("Content-Length", &PAGE.len().to_string()) || !has("Connection", "close") {
        return Err(wrong("the answer's header is wrong".into()));
    }
    let body = &received[head..];
    if !PAGE.as_bytes().starts_with(body) {
        return Err(wrong("the answer's body is wrong".into()));
    }
    Ok(body.len() == PAGE.len())
}
