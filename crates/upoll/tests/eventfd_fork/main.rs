//! One eventfd in several processes. Whatever has a counterpart is done with the kernel's eventfd too,
//! and what both show is compared.
//!
//! Each test is a process of its own with one thread, so that it may fork: this program takes its
//! arguments as the usual test harness does, as far as that goes, and has none.

#[cfg(not(loom))]
mod dying;
#[cfg(not(loom))]
mod processes;
#[cfg(not(loom))]
mod readiness;
#[cfg(not(loom))]
mod values;
#[cfg(not(loom))]
mod worlds;

#[cfg(not(loom))]
fn main() {
    let tests = [values::TESTS, readiness::TESTS, dying::TESTS].concat();
    processes::run(&tests);
}

#[cfg(loom)]
fn main() {}
