//! Switches on what this build of upoll measures.

fn main() {
    println!("cargo::rustc-cfg=upoll_count_locks");
    println!("cargo::rerun-if-changed=build.rs");
}
