//! `upoll soak` ends well on worlds that are made anew from a seed, and refuses what makes no sense.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

fn soak(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_upoll"))
        .arg("soak")
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn a_short_run_loses_nothing_and_reports_what_it_did() {
    let output = soak(&["--minutes", "0.01", "--threads", "2", "--seed", "1"]);
    let printed = String::from_utf8_lossy(&output.stdout);
    let faults = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}{faults}");
    assert!(printed.contains("seed 1, 2 producers"), "{printed}");
    for row in ["units sent and received", "descriptors after a round"] {
        assert!(printed.contains(row), "{printed}");
    }
}

#[test]
fn a_run_of_no_length_and_a_way_that_does_not_exist_are_refused() {
    for arguments in [
        ["--minutes", "0"],
        ["--how", "sleeping"],
        ["--threads", "0"],
    ] {
        let output = soak(&arguments);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn ctrl_c_ends_a_run_with_the_report_of_its_rounds() {
    // A shell has its background jobs ignore the signal, and so this test, too.
    let mut child = Command::new("env")
        .args(["--default-signal=INT", env!("CARGO_BIN_EXE_upoll")])
        .args(["soak", "--minutes", "100", "--threads", "2"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut printed = String::new();
    stdout.read_line(&mut printed).unwrap();
    assert!(printed.contains(", 2 producers"), "{printed}");
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    stdout.read_to_string(&mut printed).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{printed}");
    assert!(printed.contains("units sent and received"), "{printed}");
}
