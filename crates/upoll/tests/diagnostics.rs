//! Messages of the compiler about programs that use the library wrongly.
#![cfg(not(upoll_loom))]

use std::fs;
use std::path::Path;
use std::process::Command;

/// Compiles a program that uses the library, and returns the compiler's messages.
fn compile(program: &str) -> String {
    let library = Path::new(env!("CARGO_MANIFEST_DIR"));
    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("diagnostics");
    fs::create_dir_all(package.join("src")).unwrap();
    let manifest = format!(
        "[package]\nname = \"program\"\nedition = \"2024\"\n[workspace]\n[dependencies]\nupoll = {{ path = {library:?} }}\n"
    );
    fs::write(package.join("Cargo.toml"), manifest).unwrap();
    // The versions that the library itself is built with, which are there without a network.
    fs::copy(library.join("../../Cargo.lock"), package.join("Cargo.lock")).unwrap();
    fs::write(package.join("src/main.rs"), program).unwrap();
    let compiled = Command::new(env!("CARGO"))
        .args(["check", "--offline", "--quiet", "--target-dir"])
        .arg(package.join("target"))
        .current_dir(&package)
        .output()
        .unwrap();
    String::from_utf8(compiled.stderr).unwrap()
}

fn program(argument: &str) -> String {
    format!(
        "use upoll::{{Epoll, Event, Events, File, Pollable, PollTable}};
        struct Mailbox;
        impl Pollable for Mailbox {{
            fn poll<'q>(&'q self, _: &mut PollTable<'q>) -> Events {{
                Events::empty()
            }}
        }}
        fn main() {{
            let set = Epoll::new().unwrap();
            set.add(&{argument}, Event::new(Events::IN, 0)).unwrap();
        }}"
    )
}

#[test]
fn an_object_that_is_added_without_a_file_gets_an_error_that_names_the_cure() {
    let messages = compile(&program("Mailbox"));
    for part in ["a set cannot watch `Mailbox`", "`File::new(object)`"] {
        assert!(messages.contains(part), "{messages}");
    }
    let cured = compile(&program("File::new(Mailbox)"));
    assert_eq!(cured, "");
}
