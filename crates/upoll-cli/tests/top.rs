//! `upoll top` as a program: its output and its exit status.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use upoll_fair_state::State;

fn top(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_upoll"));
    command.arg("top").args(arguments).stdin(Stdio::null());
    command.output().expect("the program starts")
}

/// Maps the file of a run, as its processes do.
fn map() -> &'static State {
    let name = format!("upoll-fair-{}-top", std::process::id());
    let path = std::env::temp_dir().join(name);
    // A run before may have left it.
    let _ = std::fs::remove_file(&path);
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path);
    let file = file.expect("the name is unique");
    file.set_len(1 << 17).expect("there is room");
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new memory, which stays mapped. A state consists of atomics, and zeros are one.
    unsafe {
        let place = mmap(
            std::ptr::null_mut(),
            size_of::<State>(),
            access,
            MapFlags::SHARED,
            &file,
            0,
        );
        &*place.expect("it can be mapped").cast::<State>()
    }
}

#[test]
fn the_workers_of_a_run_are_shown_with_their_shares() {
    let own = std::process::id();
    let state = map();
    let name = format!("upoll-fair-{own}-top");
    for (thread, accepts) in [(own, 30), (u32::MAX, 50)] {
        let worker = state.worker(own, thread).expect("room");
        worker.wakeups.store(40, Ordering::Relaxed);
        worker.empty.store(10, Ordering::Relaxed);
        worker.accepts.store(accepts, Ordering::Relaxed);
    }
    let output = top(&["--once", &own.to_string()]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(
        output.status.success(),
        "{output:?}",
        output = output.stderr
    );
    let lines: Vec<_> = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .collect();
    let pid = own.to_string();
    assert_eq!(
        lines[0][..4],
        ["upoll", "top:", "process", &format!("{pid},")]
    );
    assert_eq!(lines[1][..3], ["process", "thread", "wakeups"]);
    // The other worker has ended: there is no such thread.
    assert_eq!(
        lines[2],
        [&pid, &pid, "40", "10", "30", "100.0%", "0", "-", "-"]
    );
    assert_eq!(lines[3], ["fairness", "1.000"]);
    assert_eq!(lines.len(), 4);
    // A reader that is gone is no error.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    for arguments in [&["--once", &pid][..], &[&pid]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_upoll"));
        command.arg("top").args(arguments).stdin(Stdio::null());
        let output = command.stdout(writer.try_clone().expect("a copy")).output();
        let output = output.expect("the program starts");
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert_eq!(output.stderr, b"", "{arguments:?}");
    }
    let path = std::env::temp_dir().join(name);
    std::fs::remove_file(&path).expect("it was there");
    let output = top(&["--once", &pid]);
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(
        said.contains("has ended") && !output.status.success(),
        "{said}"
    );
}

#[test]
fn a_process_of_no_run_and_one_that_does_not_exist_are_errors() {
    let child = Command::new("sleep").arg("60").spawn();
    let mut child = child.expect("it starts");
    let output = top(&["--once", &child.id().to_string()]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).expect("text");
    assert!(text.contains("`upoll run --top`"), "{text}");
    child.kill().expect("it runs");
    child.wait().expect("it is a child");
    let output = top(&["--once", &child.id().to_string()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    for arguments in [&["--once"][..], &["--interval", "0", "1"], &["1.5"]] {
        assert_eq!(top(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

/// Builds the library for `upoll run`, which cargo does not do for tests of a crate that is not linked to it.
fn build_library() {
    let upoll = Path::new(env!("CARGO_BIN_EXE_upoll"));
    let folder = upoll.parent().expect("it is in the folder of its profile");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--lib", "--manifest-path"]);
    cargo.arg(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../upoll-preload/Cargo.toml"
    ));
    cargo.arg("--target-dir");
    cargo.arg(folder.parent().expect("that is in a target folder"));
    match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => {}
        Some(profile) => drop(cargo.args(["--profile", profile])),
    }
    assert!(cargo.status().expect("there is cargo").success());
}

/// Compiles `tests/top/workers.c`.
fn compile() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/top/workers.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("top-workers");
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or("cc".into()));
    compiler.args(["-O1", "-Wall", "-Werror", "-pthread", "-o"]);
    compiler.arg(&program).arg(source);
    assert!(compiler.status().expect("there is a C compiler").success());
    program
}

/// Returns the program `workers`, which can be run with the library. The tests of this file run at once.
fn workers() -> &'static Path {
    static WORKERS: OnceLock<PathBuf> = OnceLock::new();
    WORKERS.get_or_init(|| {
        build_library();
        compile()
    })
}

/// A program that goes on at each line.
struct Steps {
    child: Child,
    lines: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Steps {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        Steps {
            lines: child.stdin.take().expect("a pipe"),
            answers: BufReader::new(child.stdout.take().expect("a pipe")),
            child,
        }
    }

    /// The words of the line that the program has printed.
    fn answer(&mut self) -> Vec<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("text");
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn go_on(&mut self) {
        self.lines.write_all(b"\n").expect("it reads");
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The words of each line that `upoll top --once` prints.
fn view(process: &str) -> Vec<Vec<String>> {
    let output = top(&["--once", process]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let text = String::from_utf8(output.stdout).expect("text");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    text.lines().map(words).collect()
}

/// The shared file that a process has mapped.
fn mapped(process: &str) -> PathBuf {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).expect("it runs");
    let mut paths = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]));
    let path = paths.find(|path| path.contains("/upoll-sets-"));
    path.expect("it has mapped one").into()
}

#[test]
fn the_sets_of_a_run_are_shown_with_the_share_of_each_thread() {
    let workers = workers();
    let mut command = Command::new(env!("CARGO_BIN_EXE_upoll"));
    // The shell has no sets, and becomes the program.
    command.args(["run", "--top", "--", "sh", "-c", "exec \"$0\""]);
    command.arg(workers);
    let mut program = Steps::start(command);
    let answer = program.answer();
    let [process, set, first, second] = &answer[..] else {
        panic!("{answer:?}")
    };
    let file = mapped(process);
    let lines = view(process);
    let head = format!("upoll top: process {process}, 1 sets, 2 workers, 4 events");
    assert_eq!(lines[0].join(" "), head);
    // The eventfd and one pipe: the other one is closed.
    assert_eq!(lines[2][..4], [process, set, "2", "no"]);
    assert_eq!(lines[2][7], "4");
    let row = |thread: &String, waits: &str, share: &str| {
        [process, set, thread, waits, waits, share, "-", "-"].map(str::to_owned)
    };
    let mut rows = [row(first, "3", "75.0%"), row(second, "1", "25.0%")];
    rows.sort_by_key(|row| row[2].parse::<u32>().expect("a number"));
    assert_eq!(lines[5..7], rows);
    assert_eq!(lines[7].join(" "), "fairness 0.800");

    program.go_on();
    let other = program.answer().remove(0);
    let lines = view(process);
    let of_others = |lines: &[Vec<String>], process: &str, set: &str| -> Vec<Vec<String>> {
        let is_its = |line: &&Vec<String>| line.starts_with(&[process.into(), set.into()]);
        lines.iter().filter(is_its).cloned().collect()
    };
    // A row for the set, and one for its worker.
    let rows = of_others(&lines, process, &other);
    assert_eq!(rows[0][..4], [process, &*other, "1", "no"]);
    assert_eq!(rows[1][..5], [process, &*other, process, "1", "1"]);
    assert_eq!(of_others(&lines, process, set).len(), 3);

    program.go_on();
    assert_eq!(program.answer(), ["closed"]);
    let lines = view(process);
    assert_eq!(of_others(&lines, process, set).len(), 0);
    assert_eq!(of_others(&lines, process, &other).len(), 2);

    // A fork leaves no set of the parent's here: the kernel has them now.
    program.go_on();
    let answer = program.answer();
    let [child, set] = &answer[..] else {
        panic!("{answer:?}")
    };
    assert_eq!(mapped(child), file);
    for of_run in [process, child] {
        let lines = view(of_run);
        assert_eq!(
            of_others(&lines, child, set)[1][..5],
            [child, set, child, "1", "1"]
        );
        assert_eq!(lines.len(), 7, "{lines:?}");
    }
    program.go_on();
    assert_eq!(program.answer(), ["ended"]);
    assert_eq!(view(process).len(), 5);
    assert!(file.exists());
    program.go_on();
    assert!(program.child.wait().expect("it is a child").success());
    assert!(!file.exists());

    // Without the option, nothing is shared.
    let mut command = Command::new(env!("CARGO_BIN_EXE_upoll"));
    command.args(["run", "--"]).arg(workers);
    let mut program = Steps::start(command);
    let process = program.answer().remove(0);
    let output = top(&["--once", &process]);
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(said.contains("`upoll run --top`"), "{said}");
    assert_eq!(output.status.code(), Some(1));
}

/// The terminal that a program draws on.
struct Screen {
    terminal: File,
    drawn: String,
    /// The number of views that were looked at.
    seen: usize,
}

impl Screen {
    /// Reads views until one is the wanted one, and returns its lines.
    fn view(&mut self, is_wanted: impl Fn(&[&str]) -> bool) -> Vec<String> {
        const CLEAR: &str = "\x1b[2J\r\x1b[H";
        // Hundreds of views take more than a minute.
        while self.seen < 1000 {
            let mut bytes = [0; 4096];
            let count = self.terminal.read(&mut bytes).expect("the program runs");
            let text = std::str::from_utf8(&bytes[..count]).expect("figures are ASCII");
            self.drawn.push_str(text);
            let views: Vec<_> = self.drawn.split(CLEAR).skip(1).collect();
            // A view is complete when the screen is cleared for the next one.
            for view in views.iter().rev().skip(1).rev().skip(self.seen) {
                self.seen += 1;
                let view = view.trim_end_matches('\r').replace('\r', "");
                let lines: Vec<_> = view.lines().collect();
                if is_wanted(&lines) {
                    return lines.into_iter().map(str::to_owned).collect();
                }
            }
        }
        panic!("no view is the wanted one: {:?}", self.drawn);
    }
}

#[test]
fn views_on_a_terminal_replace_each_other_until_ctrl_c() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_upoll"));
    command.args(["run", "--top", "--"]).arg(workers());
    let mut program = Steps::start(command);
    let answer = program.answer();
    let [process, set, ..] = &answer[..] else {
        panic!("{answer:?}")
    };

    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let controller = openpt(flags).expect("a terminal");
    unlockpt(&controller).expect("it is a new one");
    let user = File::from(ioctl_tiocgptpeer(&controller, flags).expect("its other end"));
    let resize = |rows, columns| {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&user, size).expect("it is a terminal");
    };
    resize(24, 120);
    let modes = |terminal: &File| {
        let modes = tcgetattr(terminal).expect("it is a terminal");
        let modes = (
            modes.input_modes,
            modes.output_modes,
            modes.control_modes,
            modes.local_modes,
        );
        format!("{modes:?}")
    };
    let before = modes(&user);
    // Ctrl-C is a signal in a session of the terminal alone. A shell has its background jobs ignore it.
    let mut top = Command::new("setsid")
        .args(["--ctty", "env", "--default-signal=INT"])
        .arg(env!("CARGO_BIN_EXE_upoll"))
        .args(["top", "--interval", "0.1", process])
        .stdin(user.try_clone().expect("a copy"))
        .stdout(user.try_clone().expect("a copy"))
        .stderr(user.try_clone().expect("a copy"))
        .spawn()
        .expect("it starts");

    let mut screen = Screen {
        terminal: controller.into(),
        drawn: String::new(),
        seen: 0,
    };
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    // The first view has no rates yet.
    let view = screen.view(|_| true);
    let head = format!("upoll top: process {process}, 1 sets, 2 workers, 4 events");
    assert_eq!(view[0], head);
    assert!(view[2].contains(" - "), "{view:?}");
    let view = screen.view(|_| true);
    assert_eq!(view[0], head);
    assert_eq!(words(&view[2])[..4], [process, set, "2", "no"]);
    assert!(!view[2].contains(" - "), "{view:?}");
    // The second set of the program is in a view soon after it was made, also if the terminal is small by then.
    resize(8, 60);
    program.go_on();
    let other = program.answer().remove(0);
    let is_other = |line: &&str| words(line).starts_with(&[process.clone(), other.clone()]);
    let view = screen.view(|lines| lines.iter().any(is_other));
    // The last row of the screen stays free, and no line is longer than the screen is wide.
    assert_eq!(view.len(), 7, "{view:?}");
    assert!(view.iter().all(|line| line.len() <= 60), "{view:?}");

    let mut terminal = &screen.terminal;
    terminal.write_all(b"\x03").expect("the terminal is open");
    assert_eq!(top.wait().expect("a child").signal(), Some(libc::SIGINT));
    assert_eq!(modes(&user), before);
    // The cursor was not hidden, nor the other screen chosen.
    assert!(!screen.drawn.contains("\x1b[?"), "{:?}", screen.drawn);
}
