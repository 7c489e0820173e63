//! The manners of `upoll` beside its work: its version, completions, closed pipes, Ctrl-C, and files that cannot be
//! written.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn upoll(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_upoll"));
    command
        .args(arguments.split_whitespace())
        .stdin(Stdio::null());
    command
}

fn output(arguments: &str) -> Output {
    upoll(arguments).output().expect("the program starts")
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("it is text")
}

fn printed(arguments: &str) -> String {
    let output = output(arguments);
    assert!(output.status.success(), "{}", text(output.stderr));
    text(output.stdout)
}

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("it can be made");
        Folder(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_run_without_user_level_sets_has_no_figures_of_sets() {
    let output = output("run --user none --top -- true");
    assert!(!output.status.success());
    assert!(text(output.stderr).contains("`--top` has nothing to show"));
}

#[test]
fn the_version_is_that_of_upoll() {
    let version = format!("upoll {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(printed("--version"), version);
}

#[test]
fn the_list_of_commands_has_a_short_line_for_each() {
    let help = printed("--help");
    let longest = help.lines().max_by_key(|line| line.len()).expect("a line");
    assert!(longest.len() <= 100, "{longest}");
    assert!(printed("top --help").contains("`upoll run --top`"));
}

#[test]
fn an_error_is_one_line_also_where_panics_have_backtraces() {
    let mut command = upoll("bench --json missing/file");
    let output = command
        .env("RUST_BACKTRACE", "1")
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    let said = "upoll: cannot write missing/file: No such file or directory (os error 2)\n";
    assert_eq!(text(output.stderr), said);
}

/// Runs a command whose standard output nobody reads.
fn unread(arguments: &str) -> Output {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let run = upoll(arguments).stdout(writer).output();
    run.expect("the program starts")
}

#[test]
fn a_closed_pipe_is_no_error_and_files_are_written_all_the_same() {
    let folder = Folder::new("closed-pipe");
    let json = folder.file("figures.json");
    let bench = format!("bench --quick wait-idle --json {json}");
    for arguments in [&*bench, "completions bash", "--help", "demo --requests 200"] {
        let output = unread(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments}");
        assert_eq!(text(output.stderr), "", "{arguments}");
    }
    let json = fs::read(json).expect("it was written");
    let report: Value = serde_json::from_slice(&json).expect("JSON");
    assert_eq!(report["comparisons"].as_array().map(Vec::len), Some(1));
}

/// Returns the processor time that `child` has used, in hundredths of a second.
fn processor_time(child: &Child) -> u64 {
    let path = format!("/proc/{}/stat", child.id());
    let stat = fs::read_to_string(path).expect("nobody has waited for it");
    let (_, fields) = stat.rsplit_once(") ").expect("a line of /proc");
    let fields: Vec<_> = fields.split(' ').collect();
    // In user and in kernel mode.
    let used = [11, 12].map(|at| fields[at].parse::<u64>().expect("a number"));
    used.iter().sum()
}

/// Waits until `child` has used three seconds of processor time, in which it measures several calls.
fn wait_until_it_measures(child: &Child) {
    while processor_time(child) < 300 {
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_benchmark_ends_soon_after_its_reader_unless_it_has_a_file_to_write() {
    let mut child = upoll("bench")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    wait_until_it_measures(&child);
    drop(child.stdout.take());
    // A full run takes minutes, of processor time as well.
    while child.try_wait().expect("a child").is_none() {
        let used = processor_time(&child);
        if used > 3_000 {
            let _ = child.kill();
            panic!("it measures on: {used}");
        }
        thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().expect("a child");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(output.stderr), "");
}

#[test]
fn ctrl_c_ends_the_benchmark_with_what_there_is() {
    let folder = Folder::new("ctrl-c");
    let (json, html) = (folder.file("figures.json"), folder.file("page.html"));
    // A full run takes minutes. A shell has its background jobs ignore the signal, and so this test, too.
    let mut child = Command::new("env")
        .args(["--default-signal=INT", env!("CARGO_BIN_EXE_upoll")])
        .args(["bench", "--json", &json, "--html", &html])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    wait_until_it_measures(&child);
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a process id is positive");
    kill_process(pid, Signal::INT).expect("it runs");
    let mut printed = String::new();
    let mut stdout = child.stdout.take().expect("it is piped");
    stdout.read_to_string(&mut printed).expect("text");
    assert_eq!(child.wait().expect("a child").code(), Some(130));
    let interrupted = "interrupted: this is what there was until then";
    assert!(
        printed.ends_with(&format!("{interrupted}\n")),
        "{printed:?}"
    );
    let report: Value = serde_json::from_slice(&fs::read(json).expect("written")).expect("JSON");
    assert_eq!(report["interrupted"], true);
    let rows = |table: &str| report[table].as_array().map_or(0, Vec::len);
    assert!(rows("comparisons") > 0 && rows("workers") == 0, "{printed}");
    assert!(printed.contains(" targets reached"), "{printed}");
    let page = fs::read_to_string(html).expect("written");
    assert!(page.contains(interrupted), "{page}");
}

/// Runs `upoll` in `folder` beside files that have the libraries' names. The loader ignores those.
fn upoll_beside_libraries(folder: &Folder, arguments: &str) -> Output {
    let program = folder.file("upoll");
    if !Path::new(&program).exists() {
        fs::hard_link(env!("CARGO_BIN_EXE_upoll"), &program)
            .expect("both are in the target folder");
        for library in ["libupoll_preload.so", "libupoll_fair.so"] {
            fs::write(folder.file(library), "").expect("the folder is there");
        }
    }
    let mut command = Command::new(program);
    command.args(arguments.split_whitespace());
    let run = command.stdin(Stdio::null()).output();
    run.expect("the program starts")
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_before_the_run() {
    let folder = Folder::new("unwritable");
    let ran = folder.file("ran");
    let nowhere = folder.file("missing/file");
    for arguments in [
        format!("bench --json {nowhere}"),
        format!("bench --html {nowhere}"),
        format!("run --stats={nowhere} -- touch {ran}"),
        format!("run --fair --stats={nowhere} -- touch {ran}"),
    ] {
        let output = upoll_beside_libraries(&folder, &arguments);
        let said = text(output.stderr);
        assert!(!output.status.success(), "{arguments}");
        assert!(
            said.contains(&nowhere) && said.contains("No such file"),
            "{said}"
        );
        assert_eq!(text(output.stdout), "", "{arguments}");
    }
    assert!(!Path::new(&ran).exists(), "the program was not started");
}

#[test]
fn statistics_take_a_fifo_that_nobody_reads_and_a_run_without_its_program_creates_no_file() {
    let folder = Folder::new("statistics");
    let (fifo, file) = (folder.file("fifo"), folder.file("file"));
    let made = Command::new("mkfifo").arg(&fifo).status();
    assert!(made.expect("it starts").success());
    let run = upoll_beside_libraries(&folder, &format!("run --stats={fifo} -- true"));
    assert_eq!(run.status.code(), Some(0), "{}", text(run.stderr));
    let run = upoll_beside_libraries(&folder, &format!("run --stats={file} -- {file}.missing"));
    assert_eq!(run.status.code(), Some(127));
    assert!(!Path::new(&file).exists());
}

/// Returns a file of this workspace.
fn source(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path);
    fs::read_to_string(path).expect("it is part of the workspace")
}

/// Returns the names of the commands, but of `help`, which has no page.
fn commands() -> Vec<String> {
    let help = printed("--help");
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = lines.map_while(|line| line.split_whitespace().next());
    let names = names.filter(|&name| name != "help");
    names.map(str::to_owned).collect()
}

/// Returns the options of `command`, without the dashes.
fn options(command: &str) -> Vec<String> {
    let help = printed(&format!("{command} --help"));
    let options = help.lines().filter_map(|line| {
        let option = line
            .trim_start()
            .trim_start_matches("-h, ")
            .strip_prefix("--")?;
        option.split([' ', '[', '=', '.']).next()
    });
    options.map(str::to_owned).collect()
}

#[test]
fn each_command_and_option_is_in_a_manual_page_and_the_completions() {
    let page = source("man/man1/upoll.1");
    let bash = printed("completions bash");
    for shell in ["zsh", "fish"] {
        let script = printed(&format!("completions {shell}"));
        assert!(
            script.contains("upoll") && !script.contains("manual"),
            "{script}"
        );
    }
    for command in commands() {
        assert!(page.contains(&format!(".Cm {command}\n")), "{command}");
        assert!(
            page.contains(&format!(".Xr upoll-{command} 1")),
            "{command}"
        );
        assert!(bash.contains(&format!("upoll__subcmd__{command}")) || bash.contains(&command));
        let own = printed(&format!("manual {command}")).replace("\\-", "-");
        assert!(own.contains(&format!(".TH upoll-{command} 1 ")), "{own}");
        for option in options(&command) {
            assert!(
                own.contains(&format!("\\fB--{option}\\fR")),
                "--{option}: {own}"
            );
            assert!(bash.contains(&format!("--{option}")), "--{option}");
        }
    }
    // And the page names no option that there is not.
    let named = page.split("Fl \\-").skip(1);
    for option in named.filter_map(|rest| rest.split(char::is_whitespace).next()) {
        let option = format!("--{}", option.replace('\\', ""));
        assert!(option == "--" || bash.contains(&option), "{option}");
    }
}

#[test]
fn the_page_of_each_command_is_installed() {
    let makefile = source("Makefile");
    let installed = makefile
        .lines()
        .find_map(|line| line.strip_prefix("COMMANDS := "));
    let mut installed: Vec<_> = installed.expect("a list").split_whitespace().collect();
    let mut commands = commands();
    installed.sort_unstable();
    commands.sort_unstable();
    assert_eq!(installed, commands);
    assert!(!output("manual nothing").status.success());
}

#[test]
fn paragraphs_and_lists_of_a_help_text_stay_apart_in_its_page() {
    let run = printed("manual run");
    assert!(
        run.contains("\n.IP\nA process reports when it ends"),
        "{run}"
    );
    let bench = printed("manual bench");
    assert!(
        bench.contains("\n.br\n\\- many changes in one call:\n    batch\n"),
        "{bench}"
    );
    assert!(!run.contains("\n\n") && !bench.contains("\n\n"));
}
