//! The client: loads a server and checks every response.
//!
//! Each request has a connection of its own: connect, send, read the response to its end, close.
//! The workers share the listening socket, so they compete for new connections. A connection that
//! is kept alive would stay with the worker that accepted it, and the three ways would not differ.
//!
//! The client has threads of its own, which use the kernel's plain epoll for all three ways. It
//! closes with a reset once the server has closed (SO_LINGER of 0), so neither side stays in
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
use rustix::time::{ClockId, clock_gettime};

use super::http::PAGE;

/// A request without a response after this time has failed.
const PATIENCE: Duration = Duration::from_secs(10);
/// The interval at which the client checks for the end of the run, and for requests that have failed.
const TICK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
/// The number of significant digits of latencies.
const DIGITS: u8 = 3;
const BATCH: usize = 64;
const SCRATCH: usize = 4096;

/// The state that all client threads share.
#[derive(Debug)]
pub(super) struct Load<'a> {
    pub(super) server: SocketAddr,
    /// The number of requests to send.
    pub(super) requests: u64,
    /// The number of requests that have begun.
    pub(super) begun: AtomicU64,
    /// Counts completed and failed requests, also across loads.
    pub(super) over: &'a AtomicU64,
    pub(super) stop: &'a AtomicBool,
}

/// The result of a load.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Requests with the right response.
    pub(super) answered: u64,
    /// Requests that failed in any way.
    pub(super) failed: u64,
    /// The failure of the first of them.
    pub(super) first_failure: Option<String>,
    /// The time from before the connect to the end of the response, in nanoseconds, of answered
    /// requests.
    pub(super) latency: Histogram<u64>,
    /// The time for which clients were ready to run, and others had their processors.
    pub(super) preempted: Duration,
}

impl Outcome {
    pub(super) fn new() -> Self {
        Outcome {
            answered: 0,
            failed: 0,
            first_failure: None,
            latency: Histogram::new(DIGITS).expect("the number of digits is allowed"),
            preempted: Duration::ZERO,
        }
    }

    pub(super) fn add(&mut self, other: Outcome) {
        self.answered += other.answered;
        self.failed += other.failed;
        self.first_failure = self.first_failure.take().or(other.first_failure);
        self.latency
            .add(&other.latency)
            .expect("histograms that resize take any value");
        self.preempted += other.preempted;
    }
}

/// A request in flight.
#[derive(Debug)]
struct Exchange {
    stream: TcpStream,
    begun: Instant,
    sent: usize,
    received: Vec<u8>,
    /// The time at which the response was complete; the server has not closed yet.
    answered: Option<Instant>,
}

/// One client thread.
#[derive(Debug)]
pub(super) struct Client<'a> {
    load: &'a Load<'a>,
    request: Vec<u8>,
    epoll: OwnedFd,
    /// `None`: no request was left to begin.
    slots: Vec<Option<Exchange>>,
    under_way: usize,
    outcome: Outcome,
    scratch: Vec<u8>,
}

impl<'a> Client<'a> {
    /// Makes a client with up to `connections` requests in flight.
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

    /// Sends requests until all have begun, or the run is stopped.
    pub(super) fn run(mut self) -> io::Result<Outcome> {
        for slot in 0..self.slots.len() {
            self.begin(slot);
        }
        let mut ready = Vec::with_capacity(BATCH);
        let mut next_check = Instant::now() + PATIENCE;
        while self.under_way > 0 && !self.load.stop.load(Ordering::Relaxed) {
            ready.clear();
            let buffer = rustix::buffer::spare_capacity(&mut ready);
            match epoll::wait(&self.epoll, buffer, Some(&TICK)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            // None of these calls blocks, so time in which the thread does not run is time that others took.
            let (begun, used) = (Instant::now(), processor_time());
            for event in &ready {
                self.advance({ event.data }.u64() as usize);
            }
            let now = Instant::now();
            self.outcome.preempted += (now - begun).saturating_sub(processor_time() - used);
            if now >= next_check {
                next_check = now + PATIENCE / 10;
                self.give_up_late_ones(now);
            }
        }
        Ok(self.outcome)
    }

    /// Begins the next request in `slot`, if there is one. A request that fails at once is counted,
    /// and the next one begins.
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
        // On the loopback device the connection is often established already.
        exchange.send(&self.request)?;
        // Edge-triggered: one registration serves the whole exchange.
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
                // Not connected yet, or the send buffer is full.
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads all available bytes. At the end of a right response returns its latency.
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

/// Returns the processor time that the calling thread has used.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("the time of a thread is not negative")
}

/// Returns whether `received` is the whole response, or an error if it is not a prefix of it.
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
