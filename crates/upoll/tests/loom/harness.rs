//! Runs the models of all crates, and their broken variants. The root of each suite imports its crate's `Rule` and
//! `break_rule`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Rule, break_rule};

/// Runs a model with up to `preemptions` preemptions.
pub fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(body);
}

/// Runs a model with `rule` switched off, which must hold all the same.
pub fn holds_without(rule: Rule, model: fn()) {
    break_rule(Some(rule));
    model();
    break_rule(None);
}

/// Runs a model with `rule` switched off, which must fail. Returns whether it fails because it does not end.
fn has_no_end_without(rule: Rule, model: fn()) -> bool {
    break_rule(Some(rule));
    let outcome = catch_unwind(AssertUnwindSafe(model));
    break_rule(None);
    let payload = outcome.expect_err("the model needs the rule");
    let message = match payload.downcast_ref::<&str>() {
        Some(message) => message,
        None => payload.downcast_ref::<String>().map_or("", String::as_str),
    };
    message.starts_with("Model exceeded maximum number of branches")
}

/// Runs a model with `rule` switched off, and checks that it meets a fault.
pub fn must_fail_without(rule: Rule, model: fn()) {
    assert!(!has_no_end_without(rule, model), "{rule:?}: waits for ever");
}

/// Runs a model with `rule` switched off, and checks that a thread of it waits for ever.
#[allow(dead_code, reason = "not every suite has such a rule")]
pub fn must_hang_without(rule: Rule, model: fn()) {
    assert!(has_no_end_without(rule, model), "{rule:?}: meets a fault");
}
