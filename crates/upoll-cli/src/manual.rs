//! The manual pages of the commands, from the texts of `--help`. upoll(1) has what is not an option.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::output;

/// Prints the page of `command`, one of the commands of `all`.
pub(crate) fn print(mut all: clap::Command, command: &str) -> Result<ExitCode> {
    // The commands get their full names.
    all.build();
    let version = format!("upoll {}", all.get_version().unwrap_or_default());
    let command = all
        .find_subcommand(command)
        .with_context(|| format!("there is no command {command}"))?;
    let man = Man::new(command.clone())
        // An argument that is not empty for the formatter: the day of the build would be no help.
        .date("\"\"")
        .source(version)
        .manual("General Commands Manual");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    let mut options = Vec::new();
    man.render_options_section(&mut options)?;
    page.extend(with_paragraphs(&String::from_utf8(options)?).bytes());
    let mut see_also = Roff::new();
    see_also.control("SH", ["SEE ALSO"]);
    see_also.text([bold("upoll"), roman("(1)")]);
    see_also.to_writer(&mut page)?;
    output::print(String::from_utf8(page)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the options with the paragraphs and lists of their texts, which the formatter would join. A paragraph follows a
/// blank line, and an entry of a list begins with a dash.
fn with_paragraphs(options: &str) -> String {
    options
        .replace("\n\n", "\n.IP\n")
        .replace("\n\\- ", "\n.br\n\\- ")
}
