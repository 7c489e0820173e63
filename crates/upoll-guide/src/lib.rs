//! The guide of upoll: each chapter is a file of `docs/guide`, and its code blocks are compiled and run as
//! documentation tests.
//!
//! Examples that need other people's crates, such as an async runtime or a TCP stack, are in `examples`, and their tests in
//! `tests`. `upoll` itself depends on none of these crates.

#[doc = include_str!("../../../docs/guide/index.md")]
pub mod index {}
