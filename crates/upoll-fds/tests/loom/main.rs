//! Models of the table of fds, which loom checks over all interleavings up to a bound on preemptions. Most have broken
//! variants: with one rule switched off, loom must find the fault.
//!
//! The modules are the library's own. The objects that they look up and change are models.
#![cfg(upoll_loom)]

#[path = "../../src/change.rs"]
mod change;
#[path = "../../src/counts.rs"]
mod counts;
#[path = "../../../upoll/tests/loom/harness.rs"]
mod harness;
#[path = "../../src/hazard_records.rs"]
mod hazard_records;
#[path = "../../src/held.rs"]
#[expect(dead_code, reason = "only the library transfers what is held")]
mod held;
#[path = "../../src/passivity.rs"]
#[expect(dead_code, reason = "only the library demotes sets")]
mod passivity;
#[path = "../../src/plain_sets.rs"]
mod plain_sets;
#[path = "../../../upoll-core/src/sync/sequenced.rs"]
mod sequenced;
#[path = "../../src/slot/mod.rs"]
mod slot;
#[path = "../../src/sync.rs"]
mod sync;

/// Tests of broken variants: `name: must_fail_without RULE;` after the model.
macro_rules! broken_variants {
    ($model:expr => $($name:ident: $outcome:ident $rule:ident;)*) => { $(
        #[test]
        fn $name() {
            crate::harness::$outcome(crate::sync::Rule::$rule, $model);
        }
    )* };
}

mod activation;
mod any_fds;
mod demotion;
mod fd;
mod forks;
mod look_ups;
mod object;
mod sets;
mod table;

use crate::sync::{Rule, break_rule};

/// Models have no signals.
mod signals {
    pub(crate) struct Blocked;

    impl Blocked {
        pub(crate) fn all() -> Self {
            Blocked
        }
    }

    impl Drop for Blocked {
        fn drop(&mut self) {}
    }

    pub(crate) struct Section;

    impl Section {
        pub(crate) fn begin() -> Self {
            Section
        }
    }

    impl Drop for Section {
        fn drop(&mut self) {}
    }
}
