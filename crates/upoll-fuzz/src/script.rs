//! Scripts: the calls, the processes that make them, and the arguments.

use std::fmt::Write;

use proptest::collection::vec;
use proptest::prelude::*;

/// One step: process, call and four arguments. `replay.c` interprets the numbers.
type Step = (u8, u8, [u8; 4]);

/// The text of a script.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) text: String,
}

/// Returns a strategy for the steps of a script.
pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let process = prop_oneof![6 => Just(0_u8), 1 => 1..4_u8];
    vec((process, any::<u8>(), any::<[u8; 4]>()), 4..70)
}

/// Calls that are more frequent in a script than the others.
const FREQUENT: [&str; 16] = [
    "eventfd",
    "epoll_create1",
    "pipe2",
    "socketpair",
    "epoll_ctl_add",
    "epoll_ctl_add",
    "epoll_ctl_mod",
    "epoll_wait",
    "epoll_wait",
    "poll",
    "read",
    "read",
    "write",
    "write",
    "dup2",
    "close",
];

/// Calls that demote objects. After them edge-triggered and one-shot interests may be reported once
/// more.
const DEMOTING: [&str; 10] = [
    "fork",
    "vfork",
    "posix_spawn",
    "send_fd",
    "splice",
    "tee",
    "sendto",
    "setsockopt",
    "getsockopt",
    "sendmsg",
];

impl Script {
    pub(crate) fn new(steps: &[Step], calls: &[String], without: &[String]) -> Self {
        let mut text = String::new();
        let mut is_demoting = false;
        let mut has_edges = false;
        for &(process, call, arguments) in steps {
            let call = usize::from(call);
            let name = if call < 144 {
                FREQUENT[call % FREQUENT.len()]
            } else {
                &calls[call % calls.len()]
            };
            let [a, b, mut c, d] = arguments;
            is_demoting |= DEMOTING.contains(&name);
            if matches!(name, "epoll_ctl_add" | "epoll_ctl_mod") {
                // The last three choices of events are edge-triggered or one-shot.
                let is_edge = c % 10 >= 7;
                if is_edge && is_demoting {
                    c %= 7;
                } else {
                    has_edges |= is_edge;
                }
            }
            let is_left_out = without.iter().any(|left_out| left_out == name);
            if is_left_out || has_edges && DEMOTING.contains(&name) {
                continue;
            }
            let _ = writeln!(text, "{process} {name} {a} {b} {c} {d}");
        }
        Script { text }
    }
}
