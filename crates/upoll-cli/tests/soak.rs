//! `upoll soak` ends well on worlds that are made anew from a seed, and refuses what makes no sense.

use std::process::{Command, Output};

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
