//! Under construction.

use anyhow::bail;

/// The options.
#[derive(clap::Args)]
pub(crate) struct Options {}

/// Runs it.
pub(crate) fn run(_options: &Options) -> anyhow::Result<()> {
    bail!("not there yet")
}
