//! The limit of open file descriptors, `RLIMIT_NOFILE`.

use anyhow::{Context, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Standard input, output and error, the signal pipe, and what the libraries may hold.
const ALWAYS: u64 = 24;

/// Sees to it that the process may have `more` descriptors, beside those it always has; raises the
/// soft limit if that is needed. `for_what` tells people what needs them.
pub(super) fn allow(more: u64, for_what: &str) -> anyhow::Result<()> {
    let needed = more + ALWAYS;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|limit| limit >= needed) {
        return Ok(());
    }
    if let Some(limit) = maximum.filter(|&limit| limit < needed) {
        bail!(
            "{for_what} may need {needed} open file descriptors, and the limit is {limit}; \
             ask for less, or raise the limit (ulimit -Hn)"
        );
    }
    let raised = Rlimit {
        current: Some(needed),
        maximum,
    };
    setrlimit(Resource::Nofile, raised)
        .with_context(|| format!("{for_what} may need {needed} open file descriptors"))
}
