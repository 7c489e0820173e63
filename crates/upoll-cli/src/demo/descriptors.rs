//! The limit of open fds, `RLIMIT_NOFILE`.

use anyhow::{Context, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Standard input, output and error, the signal pipe, and the fds that libraries may open.
const ALWAYS: u64 = 24;

/// Ensures that the process may have `more` fds, beside those it always has. Raises the soft limit
/// if necessary. `for_what` names their use in the error message.
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
