//! `upoll demo` as a program: its output, its responses and its exit status.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Longer than any machine takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn demo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_upoll"));
    command.arg("demo").args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    demo(arguments).output().expect("the program starts")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("standard output is JSON")
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a process id is positive");
    kill_process(pid, signal).expect("the program runs");
}

/// A running `demo --listen`. Killed on drop, so that a failed test does not leave it behind.
struct Serving {
    child: Child,
    output: BufReader<ChildStdout>,
    address: SocketAddr,
}

impl Serving {
    fn start(arguments: &[&str]) -> Self {
        let mut child = demo(&["--listen", "127.0.0.1:0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("text");
        let (_, rest) = line.split_once("http://").expect("the address is printed");
        let (address, _) = rest.split_once('/').expect("it is a URL");
        let address = address.parse().expect("it is an address");
        Serving {
            child,
            output,
            address,
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("not zero");
        stream
    }

    /// Sends `request`, and reads to the end of the connection.
    fn exchange(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(request).expect("it reads");
        read_to_end(&stream)
    }

    /// Ends the program with the signal `by`. Returns the rest of its output.
    fn end(mut self, by: Signal) -> String {
        signal(&self.child, by);
        let ended = self.child.wait().expect("it is a child");
        assert_eq!(ended.code(), Some(0));
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("text");
        rest
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_to_end(mut stream: &TcpStream) -> String {
    let mut answers = String::new();
    stream.read_to_string(&mut answers).expect("it answers");
    answers
}

/// Reads one response that has a body.
fn read_answer(stream: &TcpStream) -> String {
    let mut stream = BufReader::new(stream);
    let mut answer = String::new();
    while !answer.ends_with("\r\n\r\n") {
        assert_ne!(stream.read_line(&mut answer).expect("it answers"), 0);
    }
    let (_, rest) = answer.split_once("Content-Length: ").expect("it has one");
    let (length, _) = rest.split_once("\r\n").expect("a line ends");
    let mut body = vec![0; length.parse().expect("a number")];
    stream.read_exact(&mut body).expect("the body comes");
    answer + std::str::from_utf8(&body).expect("text")
}

fn statuses(answers: &str) -> Vec<&str> {
    let answers = answers.split("HTTP/1.1 ").skip(1);
    answers.map(|answer| &answer[..3]).collect()
}

#[test]
fn every_request_is_answered_and_every_worker_accounted_for_in_all_three_ways() {
    let output = run(&[
        "--workers=3",
        "--connections=16",
        "--requests=3001",
        "--json",
    ]);
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty(), "no progress bar without terminal");
    let report = json(&output);
    assert_eq!(report["workers"], 3);
    assert_eq!(report["connections"], 16);
    assert_eq!(report["requests"], 3001);
    assert_eq!(report["interrupted"], false);
    let ways = report["ways"].as_array().expect("a list");
    let names: Vec<_> = ways.iter().map(|way| &way["way"]).collect();
    assert_eq!(names, ["stock", "exclusive", "rotating"]);
    for way in ways {
        assert_eq!(way["answered"], 3001, "{way}");
        assert_eq!(way["failed"], 0, "{way}");
        assert!(way["first_failure"].is_null(), "{way}");
        let workers = way["requests_per_worker"].as_array().expect("a list");
        let shares: Vec<u64> = workers.iter().filter_map(Value::as_u64).collect();
        assert_eq!(shares.len(), 3, "{way}");
        assert_eq!(shares.iter().sum::<u64>(), 3001, "{way}");

        let number = |pointer: &str| {
            let number = way.pointer(pointer).and_then(Value::as_f64);
            number.unwrap_or_else(|| panic!("no {pointer} in {way}"))
        };
        assert!(number("/wakeups_per_request") > 0.0);
        assert!(number("/requests_per_second") > 0.0);
        assert!(number("/empty_wakeups") >= 0.0);
        assert!(number("/context_switches_per_request/voluntary") > 0.0);
        assert!(number("/context_switches_per_request/involuntary") >= 0.0);
        let (p50, p99) = (number("/latency_us/p50"), number("/latency_us/p99"));
        assert!(0.0 < p50 && p50 <= p99 && p99 <= number("/latency_us/p99.9"));
        assert!(p99 <= number("/latency_us/slowest_p99"));
        assert!(number("/client_preempted_ms") >= 0.0);
        let square = |share: &u64| (*share as f64).powi(2);
        let fairness = 3001_f64.powi(2) / (3.0 * shares.iter().map(square).sum::<f64>());
        assert!((number("/fairness") - fairness).abs() < 1e-9, "{way}");
    }
}

#[test]
fn the_table_has_a_column_for_each_way_asked_for() {
    let output = run(&["--requests=40", "--way=rotating", "--way=stock"]);
    assert_eq!(output.status.code(), Some(0));
    let table = String::from_utf8(output.stdout).expect("text");
    assert!(table.contains("upoll, rotating") && table.contains("epoll"));
    assert!(!table.contains("EPOLLEXCLUSIVE"));
    for line in [
        "requests per second",
        "latency p99.9",
        "p99 of the slowest round",
        "client preempted",
        "wakeups per request",
        "wakeups that found nothing",
        "involuntary",
        "requests per worker",
        "Jain's fairness index",
    ] {
        assert!(table.contains(line), "no {line:?} in\n{table}");
    }
}

#[test]
fn workers_that_take_turns_get_equal_shares() {
    // One request at a time, so that the order of the workers does not depend on speed.
    let fairness = || {
        let output = run(&[
            "--workers=5",
            "--connections=1",
            "--requests=1000",
            "--way=rotating",
            "--json",
        ]);
        let report = json(&output);
        println!("{report}");
        report["ways"][0]["fairness"].as_f64().expect("a number")
    };
    // On a busy machine a worker that is late for its sleep misses its turn.
    assert!((0..20).any(|_| fairness() >= 0.99));
}

#[test]
fn a_signal_ends_a_comparison_with_what_there_was() {
    for (by, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let child = demo(&["--requests=1000000000", "--json"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        // Its signal handlers are installed before its first thread runs.
        let tasks = format!("/proc/{}/task", child.id());
        while std::fs::read_dir(&tasks).expect("it runs").count() < 2 {
            thread::yield_now();
        }
        signal(&child, by);
        let output = child.wait_with_output().expect("it is a child");
        assert_eq!(output.status.code(), Some(code));
        let report = json(&output);
        assert_eq!(report["interrupted"], true);
        for way in report["ways"].as_array().expect("a list") {
            assert_eq!(way["failed"], 0, "{way}");
        }
    }
}

#[test]
fn impossible_options_are_refused_with_a_message() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("there are free ports");
    let taken = taken.local_addr().expect("it is bound").to_string();
    for (arguments, expected) in [
        (&["--listen", "nonsense"][..], "want ADDRESS:PORT"),
        (&["--listen", "192.0.2.1:80"], "listen on 192.0.2.1:80"),
        (&["--listen", &taken], "cannot listen on 127.0.0.1:"),
        (&["--workers", "0"], "not in 1..=500"),
        (&["--workers", "501"], "not in 1..=500"),
        (&["--listen", "[::1]:0", "--json"], "cannot be used with"),
        (
            &["--listen", "[::1]:0", "--way=stock", "--way=rotating"],
            "one --way only",
        ),
        (
            &["--connections", "4000000000"],
            "8 workers for each way and 4000000000 connections may need",
        ),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        let told = String::from_utf8(output.stderr).expect("text");
        let first = told.lines().next().unwrap_or_default();
        assert!(first.starts_with("error: "), "{told}");
        assert!(first.contains(expected), "{told}");
    }
}

#[test]
fn serves_until_a_signal_and_prints_its_counts() {
    for way in ["stock", "exclusive", "rotating"] {
        for by in [Signal::INT, Signal::TERM] {
            let serving = Serving::start(&["--workers=2", "--way", way]);
            // A client that is still connected does not keep it running.
            let idle = serving.connect();
            let both = b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.0\r\n\r\n";
            assert_eq!(statuses(&serving.exchange(both)), ["200", "200"]);
            let said = serving.end(by);
            assert!(said.contains(" 2 requests"), "{said}");
            drop(idle);
        }
    }
}

#[test]
fn answers_what_clients_send() {
    let long = "x".repeat(10_000);
    let long_field = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n");
    let long_target = format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n");
    let serving = Serving::start(&["--workers=2"]);
    for (request, expected) in [
        (
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
            &["200"][..],
        ),
        ("HEAD / HTTP/1.0\r\n\r\n", &["200"]),
        (
            "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n\
             POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody\
             GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
            &["200", "404", "405", "200"],
        ),
        ("nonsense\r\n\r\n", &["400"]),
        ("GET / HTTP/1.1\r\n\r\n", &["400"]),
        (
            "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\nso",
            &["413"],
        ),
        (&long_target, &["414"]),
        (&long_field, &["431"]),
        ("BREW / HTTP/1.0\r\n\r\n", &["501"]),
        ("GET / HTTP/3.0\r\n\r\n", &["505"]),
    ] {
        let mut stream = serving.connect();
        stream.write_all(request.as_bytes()).expect("it reads");
        // A half-closed connection still receives the responses.
        stream.shutdown(Shutdown::Write).expect("it is connected");
        let answers = read_to_end(&stream);
        assert_eq!(statuses(&answers), expected, "{request:.60}");
    }
    let head = serving.exchange(b"HEAD / HTTP/1.0\r\n\r\n");
    let get = serving.exchange(b"GET / HTTP/1.0\r\n\r\n");
    assert!(get.len() > head.len() && get.starts_with(&head) && head.ends_with("\r\n\r\n"));
}

#[test]
fn a_client_that_is_refused_while_it_sends_gets_to_read_why() {
    let serving = Serving::start(&["--workers=1"]);
    let mut stream = serving.connect();
    let head = b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n";
    stream.write_all(head).expect("it reads");
    // A close with these unread would reset the connection, and the response would be lost.
    for _ in 0..20 {
        stream.write_all(&[b'x'; 10_000]).expect("it reads on");
    }
    assert_eq!(statuses(&read_answer(&stream)), ["413"]);
}

#[test]
fn a_connection_stays_for_more_requests_and_these_may_come_in_pieces() {
    let serving = Serving::start(&["--workers=3"]);
    let mut streams = Vec::new();
    for _ in 0..6 {
        let stream = serving.connect();
        for _ in 0..3 {
            // In pieces, like a slow client.
            for piece in ["GET / HT", "TP/1.1\r\nHo", "st: a\r\n\r", "\n"] {
                (&stream).write_all(piece.as_bytes()).expect("it reads");
            }
            let answer = read_answer(&stream);
            assert_eq!(statuses(&answer), ["200"]);
            assert!(!answer.contains("Connection: close"));
        }
        streams.push(stream);
    }
    let said = serving.end(Signal::INT);
    assert!(said.contains("6 connections, 18 requests"), "{said}");
}

#[test]
fn a_client_that_sends_before_it_reads_gets_all_answers_and_holds_up_nobody() {
    const REQUESTS: usize = 50_000;
    let serving = Serving::start(&["--workers=1"]);
    let stream = serving.connect();
    let mut writer = stream.try_clone().expect("there are descriptors");
    let sender = thread::spawn(move || {
        let requests = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(REQUESTS);
        writer.write_all(&requests).expect("it reads on");
        writer.shutdown(Shutdown::Write).expect("it is connected");
    });
    let other = serving.exchange(b"GET / HTTP/1.0\r\n\r\n");
    assert_eq!(statuses(&other), ["200"]);
    assert_eq!(statuses(&read_to_end(&stream)).len(), REQUESTS);
    sender.join().expect("it sent everything");
}

#[test]
fn clients_that_go_away_disturb_nobody() {
    let serving = Serving::start(&["--workers=2"]);
    let pipelined = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(200);
    for _ in 0..50 {
        drop(serving.connect());

        let mut stream = serving.connect();
        stream.write_all(b"GET / HTTP/1.1\r\nHo").expect("it reads");
        drop(stream);

        // The responses stay unread, so closing resets the connection.
        let mut stream = serving.connect();
        stream.write_all(&pipelined).expect("it reads");
        drop(stream);

        let mut stream = serving.connect();
        let body_missing = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1";
        stream.write_all(body_missing).expect("it reads");
        stream.shutdown(Shutdown::Write).expect("it is connected");
        assert_eq!(read_to_end(&stream), "");
    }
    let answer = serving.exchange(b"GET / HTTP/1.0\r\n\r\n");
    assert_eq!(statuses(&answer), ["200"]);
    serving.end(Signal::INT);
}
