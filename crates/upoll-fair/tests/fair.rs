//! Servers in C with the library before their C library. The results without it are the expected ones.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use upoll_fair_state::State;

/// The value of `UPOLL_FAIR` that names no policy, so the library takes its own.
const DEFAULT: &str = "";
/// Longer than anything takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Builds the library, which cargo does not do for tests of a crate that is not linked to them.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--locked", "--lib", "--manifest-path"]);
        cargo.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        let own = std::env::current_exe().expect("there is a test program");
        // It is in `deps` in the folder of its profile.
        let target = own.ancestors().nth(3).expect("it is in a target folder");
        cargo.arg("--target-dir").arg(target);
        assert!(cargo.status().expect("there is cargo").success());
        let library = target.join("debug/libupoll_fair.so");
        assert!(library.is_file(), "{} is not there", library.display());
        library
    })
}

/// Compiles a program of `tests/fair`.
fn compile(name: &str) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fair");
    // Tests run at the same time, each in its own file.
    let program = std::env::temp_dir().join(format!(
        "upoll-fair-{name}-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or("cc".into()));
    compiler.args([
        "-O1",
        "-Wall",
        "-Werror",
        "-Wno-unused-result",
        "-pthread",
        "-o",
    ]);
    let status = compiler
        .arg(&program)
        .arg(sources.join(name).with_extension("c"))
        .status();
    assert!(status.expect("there is a C compiler").success());
    program
}

fn command(program: &Path, policy: Option<&str>) -> Command {
    let mut command = Command::new(program);
    if let Some(policy) = policy {
        command
            .env("LD_PRELOAD", library())
            .env("UPOLL_FAIR", policy);
    }
    command
}

fn output(program: &Path, policy: Option<&str>) -> String {
    let output = command(program, policy)
        .stderr(Stdio::inherit())
        .output()
        .expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{policy:?}: {}\n{text}",
        output.status
    );
    text
}

#[test]
fn calls_on_listening_sockets_do_what_the_kernel_does() {
    let program = compile("semantics");
    std::thread::scope(|scope| {
        let native = scope.spawn(|| output(&program, None));
        let policies = ["every", "3", "adaptive", "exclusive", "observe"];
        let fair = policies.map(|policy| scope.spawn(|| output(&program, Some(policy))));
        let native = native.join().expect("the program passes");
        for (policy, found) in policies.iter().zip(fair) {
            let found = found.join().expect("the program passes");
            for (line, (native, fair)) in native.lines().zip(found.lines()).enumerate() {
                assert_eq!(native, fair, "{policy}, line {}", line + 1);
            }
            assert_eq!(native.lines().count(), found.lines().count(), "{policy}");
        }
    });
    std::fs::remove_file(program).expect("the program was there");
}

#[test]
fn a_wakeup_that_a_worker_does_not_use_is_passed_on() {
    let program = compile("pass_on");
    for policy in ["every", DEFAULT] {
        assert_eq!(output(&program, None), output(&program, Some(policy)));
    }
    std::fs::remove_file(program).expect("the program was there");
}

/// Edge-triggered interests stay as they are.
#[test]
fn workers_take_turns_at_a_datagram_socket_if_that_is_asked_for() {
    let program = compile("datagrams");
    let lines = |wakes: [&str; 4]| {
        let calls = ["epoll", "epoll, edge-triggered", "poll", "select"];
        let lines = calls.iter().zip(wakes);
        lines
            .map(|(call, wakes)| format!("{call}: {wakes}, ok\n"))
            .collect::<String>()
    };
    for (policy, datagrams, expected) in [
        (None, "1", lines(["all"; 4])),
        (Some("every"), "", lines(["all"; 4])),
        (Some("every"), "1", lines(["one", "all", "one", "one"])),
        (Some(DEFAULT), "1", lines(["one", "all", "one", "one"])),
    ] {
        // On a busy machine a worker may not be asleep again when the next message comes, or checks the socket meanwhile.
        let found = (0..5).map(|_| {
            let mut command = command(&program, policy);
            command.env("UPOLL_FAIR_DATAGRAMS", datagrams);
            let output = command.output().expect("the program runs");
            String::from_utf8_lossy(&output.stdout).into_owned()
        });
        let found: Vec<_> = found.take_while(|found| *found != expected).collect();
        assert!(found.len() < 5, "{policy:?}, {datagrams:?}: {found:?}");
    }
    std::fs::remove_file(program).expect("the program was there");
}

/// A running server of `server.c`.
struct Server {
    process: Child,
    program: PathBuf,
    port: u16,
    _output: BufReader<ChildStdout>,
}

impl Server {
    fn start(arguments: &[&str], policy: Option<&str>) -> Server {
        let program = compile("server");
        let mut command = command(&program, policy);
        let mut process = command
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut output = BufReader::new(process.stdout.take().expect("it has an output"));
        let mut port = String::new();
        output.read_line(&mut port).expect("it prints its port");
        let port = port.trim().parse().expect("the port is a number");
        Server {
            process,
            program,
            port,
            _output: output,
        }
    }

    /// Returns the worker that serves a connection, or `None` if the worker dies before.
    fn ask(&self) -> Option<u32> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the server listens");
        // Longer than any delay that is not a loss.
        stream
            .set_read_timeout(Some(LONG))
            .expect("the time is valid");
        let mut answer = String::new();
        match stream.read_to_string(&mut answer) {
            Ok(_) => answer.trim().parse().ok(),
            Err(error) => {
                assert_eq!(
                    error.kind(),
                    std::io::ErrorKind::ConnectionReset,
                    "a connection was lost"
                );
                None
            }
        }
    }

    fn signal(&self, signal: libc::c_int) {
        send(self.process.id(), signal);
    }

    fn workers(&self) -> Vec<u32> {
        children(self.process.id())
    }
}

fn children(process: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
    let children = children.unwrap_or_default();
    children
        .split_whitespace()
        .filter_map(|child| child.parse().ok())
        .collect()
}

fn send(process: u32, signal: libc::c_int) {
    let process = process.try_into().expect("process IDs are small");
    // SAFETY: a signal to a child, or to a child of it that is not waited for yet or has just been.
    unsafe { libc::kill(process, signal) };
}

impl Drop for Server {
    fn drop(&mut self) {
        self.signal(libc::SIGTERM);
        self.process.wait().expect("it is a child");
        let _ = std::fs::remove_file(&self.program);
    }
}

/// Waits until a thread sleeps: it has finished with its connection and is in line for the next one.
fn await_sleep(thread: u32) {
    let is_asleep = || {
        let state =
            std::fs::read_to_string(format!("/proc/{thread}/stat")).expect("the worker lives");
        state
            .rsplit_once(") ")
            .is_some_and(|(_, state)| state.starts_with('S'))
    };
    let start = Instant::now();
    while !is_asleep() {
        assert!(start.elapsed() < LONG, "the worker does not sleep");
        std::thread::yield_now();
    }
}

/// Returns Jain's index of how often each of 8 workers answered, with one connection at a time.
fn fairness(mode: &str, policy: &str, connections: u32) -> f64 {
    let server = Server::start(&[mode, "8"], Some(policy));
    std::thread::sleep(Duration::from_millis(300));
    let mut answers = HashMap::<u32, f64>::new();
    for _ in 0..connections {
        let worker = server.ask().expect("no worker dies");
        *answers.entry(worker).or_default() += 1.0;
        await_sleep(worker);
    }
    let sum: f64 = answers.values().sum();
    let squares: f64 = answers.values().map(|answers| answers * answers).sum();
    println!("{mode}, {policy}: {:.3}", sum * sum / (8.0 * squares));
    sum * sum / (8.0 * squares)
}

/// Other work on the machine only makes a run less fair: a worker that is late for its sleep misses its turn.
fn is_fair(mode: &str, policy: &str) -> bool {
    (0..20).any(|_| fairness(mode, policy, 2000) >= 0.99)
}

#[test]
fn workers_take_turns() {
    for mode in [
        "epoll",
        "edge",
        "exclusive",
        "threads",
        "poll",
        "ppoll",
        "select",
        "pselect",
    ] {
        assert!(is_fair(mode, "every"), "{mode}");
    }
    assert!(is_fair("epoll", "adaptive"));
    assert!(is_fair("epoll", "8"));
    assert!(is_fair("epoll", "16"));
}

#[test]
fn without_rotation_one_worker_is_first_in_line() {
    assert!((0..20).any(|_| fairness("epoll", "exclusive", 500) < 0.3));
}

/// Connects from several threads while workers are killed, stopped and replaced.
fn disturb(mode: &str, policy: &str, time: Duration) {
    let server = Server::start(&[mode, "6", "many"], Some(policy));
    let is_over = AtomicBool::new(false);
    let counts = [(); 2].map(|()| AtomicU32::new(0));
    let [answered, cut] = &counts;
    let most_are_answered = || answered.load(Ordering::Relaxed) > cut.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        let client = || {
            while !is_over.load(Ordering::Relaxed) {
                let count = server.ask().map_or(cut, |_| answered);
                count.fetch_add(1, Ordering::Relaxed);
            }
        };
        let clients = [(); 3].map(|()| scope.spawn(client));
        let start = Instant::now();
        let mut step = 0;
        // On a busy machine few workers get to answer in that time.
        while (start.elapsed() < time || !most_are_answered() && start.elapsed() < time + LONG)
            && !clients
                .iter()
                .any(std::thread::ScopedJoinHandle::is_finished)
        {
            std::thread::sleep(Duration::from_millis(30));
            step += 1;
            let workers = server.workers();
            let Some(&worker) = workers.get(step * 7 % workers.len().max(1)) else {
                continue;
            };
            match step % 4 {
                0 => server.signal(libc::SIGHUP),
                1 => {
                    send(worker, libc::SIGSTOP);
                    std::thread::sleep(Duration::from_millis(30));
                    send(worker, libc::SIGCONT);
                }
                _ => send(worker, libc::SIGKILL),
            }
        }
        is_over.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("no connection is lost");
        }
    });
    println!(
        "{mode}, {policy:?}: {answered:?} answered, {cut:?} accepted by a worker that was killed"
    );
    assert!(most_are_answered());
}

/// Returns the time to disturb each server; `UPOLL_FAIR_SECONDS` makes it longer.
fn seconds() -> Duration {
    let seconds = std::env::var("UPOLL_FAIR_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(5))
}

#[test]
fn no_connection_is_lost_while_workers_of_a_set_come_and_go() {
    for policy in ["every", DEFAULT] {
        disturb("epoll", policy, seconds() / 2);
    }
}

#[test]
fn no_connection_is_lost_while_polling_workers_come_and_go() {
    for policy in ["every", DEFAULT] {
        disturb("ppoll", policy, seconds() / 2);
    }
}

/// Returns the statistics of a server of four workers after 40 connections, one at a time. Before the first one it passes
/// the server's process to `prepare`.
fn statistics(mode: &str, policy: &str, prepare: fn(u32)) -> String {
    let program = compile("server");
    let stats = program.with_extension(format!("{mode}-{policy}"));
    let mut command = command(&program, Some(policy));
    command
        .args([mode, "4"])
        .env("UPOLL_FAIR_STATS", &stats)
        .stdout(Stdio::piped());
    let mut process = command.spawn().expect("it runs");
    let mut port = String::new();
    let mut output = BufReader::new(process.stdout.take().expect("it has an output"));
    output.read_line(&mut port).expect("it prints its port");
    let port: u16 = port.trim().parse().expect("the port is a number");
    // The file was opened at the start: a server may have no right to do so when it ends.
    let kept = program.with_extension(format!("{mode}-{policy}.kept"));
    std::fs::rename(&stats, &kept).expect("it was created at the start");
    prepare(process.id());
    for _ in 0..40 {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        // A worker that is late finds the next connection without a wakeup.
        await_sleep(answer.trim().parse().expect("the answer is a process ID"));
    }
    send(process.id(), libc::SIGTERM);
    send(process.id(), libc::SIGCONT);
    assert!(process.wait().expect("it is a child").success());
    let text = std::fs::read_to_string(&kept).expect("there are statistics");
    println!("{mode}, {policy}:\n{text}");
    assert!(!stats.exists(), "the file was not opened anew");
    std::fs::remove_file(kept).expect("it was there");
    std::fs::remove_file(program).expect("it was there");
    text
}

/// Returns the sum of a column of the statistics.
fn sum(statistics: &str, column: &str) -> u64 {
    let mut lines = statistics.lines().map(str::split_whitespace);
    let mut names = lines.next().expect("there is a header");
    let place = names.position(|name| name == column);
    let place = place.expect("the header has the column");
    lines
        .filter_map(|mut fields| fields.nth(place)?.parse::<u64>().ok())
        .sum()
}

/// The names of files in a test.
struct Files {
    program: PathBuf,
    shared: PathBuf,
    stats: PathBuf,
}

impl Files {
    fn new(shared_size: usize) -> Self {
        let program = compile("secure");
        let files = Files {
            shared: program.with_extension("shared"),
            stats: program.with_extension("stats"),
            program,
        };
        std::fs::write(&files.shared, vec![0; shared_size]).expect("the folder can be written");
        files
    }

    /// Runs the program, which loads the library. Returns what it prints.
    fn run(&self, arguments: &[&str]) -> String {
        let output = Command::new(&self.program)
            .arg(library())
            .args(arguments)
            .env("UPOLL_FAIR_SHARED", &self.shared)
            .env("UPOLL_FAIR_STATS", &self.stats)
            .output()
            .expect("the program runs");
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stdout).trim().into()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for file in [&self.program, &self.shared, &self.stats] {
            let _ = std::fs::remove_file(file);
        }
    }
}

#[test]
fn the_first_process_removes_the_shared_file_at_its_end() {
    let files = Files::new(size_of::<State>());
    assert_eq!(files.run(&[]), "loaded");
    assert!(!files.shared.exists());
    assert!(files.stats.exists());
}

#[test]
fn a_file_that_is_no_shared_state_is_left_alone() {
    let files = Files::new(size_of::<State>() + 1);
    assert_eq!(files.run(&[]), "loaded");
    let content = std::fs::read(&files.shared).expect("it is left");
    assert_eq!(content, vec![0; size_of::<State>() + 1]);
}

#[test]
fn a_program_with_more_rights_than_its_user_ignores_the_variables() {
    let files = Files::new(size_of::<State>());
    let printed = files.run(&["enter"]);
    if printed == "skipped" {
        println!("skipped: only root can change the effective group");
        return;
    }
    assert_eq!(printed, "loaded");
    let content = std::fs::read(&files.shared).expect("it is left");
    assert_eq!(content, vec![0; size_of::<State>()]);
    assert!(!files.stats.exists());
}

#[test]
fn statistics_name_each_worker() {
    let text = statistics("epoll", "every", |_| {});
    assert!(text.contains("40 connections"), "{text}");
    assert!(sum(&text, "rotations") > 0, "{text}");
}

/// Kills all workers but one in their sleep, and stops the process that would replace them.
fn leave_one_worker(server: u32) {
    let start = Instant::now();
    while children(server).len() < 4 {
        assert!(start.elapsed() < Duration::from_secs(60), "a worker lacks");
        std::thread::yield_now();
    }
    // Longer than it takes a worker to sleep for the socket, unless the machine is busy. Then the test shows less.
    std::thread::sleep(Duration::from_millis(300));
    send(server, libc::SIGSTOP);
    for worker in children(server).into_iter().skip(1) {
        send(worker, libc::SIGKILL);
    }
    // After this time a guard that has not come back is no guard.
    std::thread::sleep(Duration::from_millis(300));
}

#[test]
fn a_worker_whose_others_were_killed_in_their_sleep_does_not_take_turns_with_them() {
    let text = statistics("epoll", "adaptive", leave_one_worker);
    assert!(sum(&text, "wakeups") > 0, "{text}");
    assert_eq!(sum(&text, "rotations"), 0, "{text}");
}

#[test]
fn workers_that_select_are_woken_by_the_library_whatever_the_number_of_the_socket() {
    for mode in ["select", "select-high"] {
        let text = statistics(mode, DEFAULT, |_| {});
        assert!(sum(&text, "wakeups") > 0, "{mode}\n{text}");
    }
}

#[test]
fn an_observed_server_is_counted_and_left_as_it_is() {
    for mode in ["epoll", "poll", "select"] {
        let text = statistics(mode, "observe", |_| {});
        assert!(text.contains("40 connections"), "{text}");
        assert!(sum(&text, "wakeups") > 0, "{text}");
        assert_eq!(sum(&text, "rotations"), 0, "{text}");
    }
}
