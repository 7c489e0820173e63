//! The report as one HTML page: the tables, and plots of their figures. The page loads no other
//! file.

mod chart;
mod plots;

use std::fmt::Write;

use anyhow::Result;

use self::chart::{GRID, INK, NOISY, SERIES, TARGET};
use self::plots::Plot;
use super::report::{INTERRUPTED, Report, TOO_WIDE, Table, UNOPTIMIZED};

/// The colours of a dark page, in the order of [`SERIES`].
const DARK_SERIES: [&str; 7] = [
    "#5AB0F5", "#FF9457", "#3CCBA0", "#E68FC3", "#D9B84A", "#B49CF0", "#C9956F",
];
const DARK_NOISY: &str = "#9AA1A9";
const DARK_TARGET: &str = "#FF7A8C";
const DARK_INK: &str = "#E6E8EA";
const DARK_GRID: &str = "#34383D";

/// The page, as long as it is.
pub(super) fn page(report: &Report) -> Result<String> {
    let machine = &report.machine;
    let mut out = String::new();
    write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>upoll bench</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n\
         <h1>upoll {} against Linux</h1>\n<dl>\n",
        style(),
        machine.upoll_version
    )?;
    let pinned = report.pinned_to;
    for (term, said) in [
        ("Kernel", machine.kernel_release.clone()),
        (
            "CPU",
            format!("{}, {} CPUs", machine.cpu_model, machine.cpus.len()),
        ),
        ("Clock source", machine.clock_source.clone()),
        ("Date", machine.date.clone()),
        (
            "Effort",
            format!(
                "{} batches of {} us on each side by turns{}; one thread is bound to CPU {pinned}",
                report.effort.batches,
                report.effort.batch_microseconds,
                if report.quick {
                    ", a quick run: rough"
                } else {
                    ""
                },
            ),
        ),
    ] {
        writeln!(out, "<dt>{term}</dt><dd>{}</dd>", escaped(&said))?;
    }
    writeln!(
        out,
        "</dl>\n<p>Figures are ratios of work that both sides did by turns in one run. What is \
         marked as too noisy was measured while the machine was busy with something else.</p>"
    )?;
    let interrupted = report.interrupted.then_some(INTERRUPTED);
    for said in UNOPTIMIZED.into_iter().chain(interrupted) {
        writeln!(out, "<p class=\"verdict\">{said}</p>")?;
    }
    if let Some(verdict) = report.verdict() {
        writeln!(out, "<p class=\"verdict\">{}</p>", escaped(&verdict))?;
    }
    for part in report.parts() {
        let heading = part.heading();
        writeln!(out, "<section>\n<h2>{heading}</h2>\n<div class=\"plots\">")?;
        for plot in plots::of(report, part)? {
            figure(&mut out, &plot)?;
        }
        writeln!(out, "</div>\n<p>{}</p>", escaped(&report.about(part)))?;
        table(&mut out, &report.table(part))?;
        writeln!(out, "</section>")?;
    }
    out.push_str("</main>\n</body>\n</html>\n");
    Ok(out)
}

fn style() -> String {
    let mut style = include_str!("style.css").to_owned();
    let hex = |colour: plotters::style::RGBColor| {
        format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2)
    };
    let mut colours: Vec<_> = SERIES
        .into_iter()
        .zip(DARK_SERIES)
        .enumerate()
        .map(|(at, (light, dark))| (format!("series-{at}"), hex(light), dark))
        .collect();
    colours.push(("noisy".to_owned(), hex(NOISY), DARK_NOISY));
    colours.push(("target".to_owned(), hex(TARGET), DARK_TARGET));
    colours.push(("ink".to_owned(), hex(INK), DARK_INK));
    colours.push(("grid".to_owned(), hex(GRID), DARK_GRID));
    let mut light = String::new();
    let mut dark = String::new();
    for (name, by_day, by_night) in &colours {
        light += &format!("--{name}: {by_day}; ");
        dark += &format!("--{name}: {by_night}; ");
        style += &format!(
            "svg [fill=\"{by_day}\"] {{ fill: var(--{name}) }} \
             svg [stroke=\"{by_day}\"] {{ stroke: var(--{name}) }}\n"
        );
    }
    format!(
        ":root {{ {light}}}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n{style}"
    )
}

fn figure(out: &mut String, plot: &Plot) -> Result<()> {
    let caption = escaped(&plot.caption);
    let class = if plot.noisy { " class=\"noisy\"" } else { "" };
    writeln!(out, "<figure{class}>\n<figcaption>{caption}</figcaption>")?;
    if !plot.legend.is_empty() {
        out.push_str("<ul class=\"legend\">");
        for (name, at) in &plot.legend {
            write!(out, "<li class=\"series-{at}\">{}</li>", escaped(name))?;
        }
        out.push_str("</ul>\n");
    }
    let named = format!("<svg role=\"img\" aria-label=\"{caption}\" ");
    writeln!(out, "{}</figure>", plot.svg.replacen("<svg ", &named, 1))?;
    Ok(())
}

fn table(out: &mut String, table: &Table) -> Result<()> {
    out.push_str("<div class=\"wide\"><table>\n<thead><tr>");
    for name in &table.header {
        write!(out, "<th>{}</th>", escaped(name))?;
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        let noisy = row.iter().any(|cell| cell.contains(TOO_WIDE));
        out.push_str(if noisy {
            "<tr class=\"noisy\">"
        } else {
            "<tr>"
        });
        for (at, (cell, column)) in row.iter().zip(&table.header).enumerate() {
            let is_figure = table.figures.contains(&at);
            let class = if is_figure { " class=\"figure\"" } else { "" };
            let (cell, column) = (escaped(cell), escaped(column));
            write!(out, "<td{class} data-column=\"{column}\">{cell}</td>")?;
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table></div>\n");
    Ok(())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
