//! `upoll top` as a program: its output and its exit status.

use std::fs::File;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::Ordering;

use rustix::mm::{MapFlags, ProtFlags, mmap};
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
        let worker = state.worker(state.take_place(own, thread)).expect("room");
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
    assert!(text.contains("belongs to no `upoll run --fair`"), "{text}");
    child.kill().expect("it runs");
    child.wait().expect("it is a child");
    let output = top(&["--once", &child.id().to_string()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    for arguments in [&["--once"][..], &["--interval", "0", "1"], &["1.5"]] {
        assert_eq!(top(arguments).status.code(), Some(2), "{arguments:?}");
    }
}
