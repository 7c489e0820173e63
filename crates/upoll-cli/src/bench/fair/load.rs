//! Requests to a server, each on a connection of its own.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// A connection that takes longer is a failure.
const LIMIT: Duration = Duration::from_secs(10);

/// The arrival of requests.
#[derive(Clone, Copy)]
pub(super) enum Pace {
    /// At fixed times, whether or not the earlier ones are answered.
    PerSecond(f64),
    /// Each of this many clients sends its next request when it has the response.
    Clients(usize),
}

/// The number of clients that send requests at fixed times, and so the most requests in flight.
const CLIENTS: usize = 32;

/// The result of the requests.
pub(super) struct Outcome {
    pub(super) took: Duration,
    /// Microseconds from the time at which a request was due to the end of its response.
    pub(super) latency: Histogram<u64>,
    /// Requests that failed.
    pub(super) failures: u64,
    /// The number of responses of each worker, by the number in the response.
    pub(super) answers: HashMap<u64, u64>,
}

impl Outcome {
    pub(super) fn new() -> Self {
        Outcome {
            took: Duration::ZERO,
            latency: Histogram::new_with_max(60_000_000, 3).expect("the bounds are valid"),
            failures: 0,
            answers: HashMap::new(),
        }
    }

    pub(super) fn add(&mut self, other: &Outcome) {
        self.latency
            .add(&other.latency)
            .expect("both have the same bounds");
        self.failures += other.failures;
        for (worker, answers) in &other.answers {
            *self.answers.entry(*worker).or_default() += answers;
        }
    }
}

/// Sends `requests` requests.
pub(super) fn send(address: SocketAddr, requests: u64, pace: Pace) -> Outcome {
    let (clients, interval) = match pace {
        Pace::PerSecond(rate) => (CLIENTS, Duration::from_secs_f64(1.0 / rate)),
        Pace::Clients(clients) => (clients, Duration::ZERO),
    };
    let next = AtomicU64::new(0);
    let begun = Instant::now();
    let client = || {
        let mut outcome = Outcome::new();
        loop {
            let request = next.fetch_add(1, Ordering::Relaxed);
            if request >= requests {
                return outcome;
            }
            let mut due = Instant::now();
            if !interval.is_zero() {
                due = begun + interval.mul_f64(request as f64);
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            match exchange(address) {
                Ok(worker) => {
                    let micros = u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX);
                    outcome.latency.saturating_record(micros);
                    *outcome.answers.entry(worker).or_default() += 1;
                }
                Err(_) => outcome.failures += 1,
            }
        }
    };
    let mut sum = Outcome::new();
    thread::scope(|scope| {
        let clients: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        for client in clients {
            sum.add(&client.join().expect("a client does not panic"));
        }
    });
    sum.took = begun.elapsed();
    sum
}

/// Sends one request. Returns the number in the response, which identifies the worker.
pub(super) fn exchange(address: SocketAddr) -> io::Result<u64> {
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(REQUEST)?;
    let mut answer = Vec::with_capacity(512);
    stream.read_to_end(&mut answer)?;
    worker_of(&answer).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn worker_of(answer: &[u8]) -> Option<u64> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head) = response.parse(answer).ok()? else {
        return None;
    };
    if response.code != Some(200) {
        return None;
    }
    std::str::from_utf8(&answer[head..])
        .ok()?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_if_it_is_whole_and_names_its_worker() {
        let answer = |text: &str| worker_of(text.as_bytes());
        assert_eq!(
            answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n42"),
            Some(42)
        );
        assert_eq!(answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"), None);
        assert_eq!(answer("HTTP/1.1 200 OK\r\n\r\n"), None);
        assert_eq!(answer("HTTP/1.1 503 Busy\r\n\r\n42"), None);
        assert_eq!(answer(""), None);
    }
}
