//! Switches on what this build of upoll measures.

fn main() {
    println!("cargo::rustc-cfg=upoll_force_heap");
    println!("cargo::rerun-if-changed=build.rs");
}
