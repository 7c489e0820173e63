//! The guide of upoll: each chapter is a file of `docs/guide`, and its code blocks are compiled and run as
//! documentation tests.
//!
//! Examples that need other people's crates, such as an async runtime or a TCP stack, are in `examples`, and their tests in
//! `tests`. `upoll` itself depends on none of these crates.

#[doc = include_str!("../../../docs/guide/index.md")]
pub mod index {}
#[doc = include_str!("../../../docs/guide/which-door.md")]
pub mod which_door {}
#[doc = include_str!("../../../docs/guide/own-objects.md")]
pub mod own_objects {}
#[doc = include_str!("../../../docs/guide/stack.md")]
pub mod stack {}
#[doc = include_str!("../../../docs/guide/rotation.md")]
pub mod rotation {}
#[doc = include_str!("../../../docs/guide/back-pressure.md")]
pub mod back_pressure {}
#[doc = include_str!("../../../docs/guide/fork-and-exec.md")]
pub mod fork_and_exec {}
#[doc = include_str!("../../../docs/guide/porting.md")]
pub mod porting {}
#[doc = include_str!("../../../docs/guide/limits.md")]
pub mod limits {}
#[doc = include_str!("../../../docs/guide/channels.md")]
pub mod channels {}
#[doc = include_str!("../../../docs/guide/timers.md")]
pub mod timers {}
#[doc = include_str!("../../../docs/guide/async.md")]
pub mod tasks {}
#[doc = include_str!("../../../docs/guide/other-event-loops.md")]
pub mod other_event_loops {}
#[doc = include_str!("../../../docs/guide/figures.md")]
pub mod figures {}
