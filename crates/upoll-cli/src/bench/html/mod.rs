//! The report as one HTML page: the tables, and plots of their figures. The page loads no other
//! file.

mod chart;
mod plots;

use anyhow::Result;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use self::chart::{GRID, INK, NOISY, SERIES, TARGET};
use self::plots::Plot;
use super::report::{INTERRUPTED, Part, Report, TOO_WIDE, Table, UNOPTIMIZED};

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
    let interrupted = report.interrupted.then_some(INTERRUPTED);
    let verdicts = UNOPTIMIZED
        .into_iter()
        .chain(interrupted)
        .map(str::to_owned)
        .chain(report.verdict());
    let parts: Vec<(Part, Vec<Plot>)> = report
        .parts()
        .map(|part| Ok((part, plots::of(report, part)?)))
        .collect::<Result<_>>()?;
    let effort = format!(
        "{} batches of {} us on each side by turns{}; one thread is bound to CPU {}",
        report.effort.batches,
        report.effort.batch_microseconds,
        if report.quick {
            ", a quick run: rough"
        } else {
            ""
        },
        report.pinned_to
    );
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "upoll bench" }
                style { (PreEscaped(style())) }
            }
            body {
                main {
                    h1 { "upoll " (machine.upoll_version) " against Linux" }
                    dl {
                        dt { "Kernel" } dd { (machine.kernel_release) }
                        dt { "CPU" } dd { (machine.cpu_model) ", " (machine.cpus.len()) " CPUs" }
                        dt { "Clock source" } dd { (machine.clock_source) }
                        dt { "Date" } dd { (machine.date) }
                        dt { "Effort" } dd { (effort) }
                    }
                    p {
                        "Figures are ratios of work that both sides did by turns in one run. What is marked as too \
                         noisy was measured while the machine was busy with something else."
                    }
                    @for verdict in verdicts {
                        p class="verdict" { (verdict) }
                    }
                    @for (part, plots) in &parts {
                        section {
                            h2 { (part.heading()) }
                            div class="plots" {
                                @for plot in plots { (figure(plot)) }
                            }
                            p { (report.about(*part)) }
                            (table(&report.table(*part)))
                        }
                    }
                }
            }
        }
    };
    Ok(page.into_string())
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

fn figure(plot: &Plot) -> Markup {
    let caption = html! { (plot.caption) }.into_string();
    let named = format!("<svg role=\"img\" aria-label=\"{caption}\" ");
    html! {
        figure class=[plot.noisy.then_some("noisy")] {
            figcaption { (plot.caption) }
            @if !plot.legend.is_empty() {
                ul class="legend" {
                    @for (name, at) in &plot.legend {
                        li class={ "series-" (at) } { (name) }
                    }
                }
            }
            (PreEscaped(plot.svg.replacen("<svg ", &named, 1)))
        }
    }
}

fn table(table: &Table) -> Markup {
    let is_noisy = |row: &[String]| row.iter().any(|cell| cell.contains(TOO_WIDE));
    let class = |at: usize| table.figures.contains(&at).then_some("figure");
    html! {
        div class="wide" {
            table {
                thead {
                    tr {
                        @for name in &table.header { th { (name) } }
                    }
                }
                tbody {
                    @for row in &table.rows {
                        tr class=[is_noisy(row).then_some("noisy")] {
                            @for (at, (cell, column)) in row.iter().zip(&table.header).enumerate() {
                                td class=[class(at)] data-column=(column) { (cell) }
                            }
                        }
                    }
                }
            }
        }
    }
}
