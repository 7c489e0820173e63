//! Binds the library's own references to the names that it exports: a program may define the same
//! names, which then come first in the order of look-up.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    println!("cargo::rerun-if-changed=build.rs");
}
