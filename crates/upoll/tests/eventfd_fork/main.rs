//! One eventfd in several processes. Operations that Linux has are also done on a kernel eventfd,
//! and the results are compared.
//!
//! Each test runs in a single-threaded process of its own, so that it may fork. This program is its
//! own test harness: it takes the arguments of the usual harness as filters, and ignores its
//! options.

#[cfg(not(upoll_loom))]
mod dying;
#[cfg(not(upoll_loom))]
mod processes;
#[cfg(not(upoll_loom))]
mod readiness;
#[cfg(not(upoll_loom))]
mod values;
#[cfg(not(upoll_loom))]
mod worlds;

#[cfg(not(upoll_loom))]
fn main() {
    let tests = [values::TESTS, readiness::TESTS, dying::TESTS].concat();
    processes::run(&tests);
}

#[cfg(upoll_loom)]
fn main() {}
