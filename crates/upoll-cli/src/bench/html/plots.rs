//! The plots of each part of a report.

use anyhow::Result;

use super::chart::{self, Axis, Bar, Line};
use crate::bench::backpressure::Pressed;
use crate::bench::calls::Compared;
use crate::bench::growth::Grown;
use crate::bench::measure::Spread;
use crate::bench::peers::{Peer, SEND_WAIT, SIGNAL_WAIT};
use crate::bench::polling::Polled;
use crate::bench::report::{Part, Report};
use crate::bench::threads::Threaded;
use crate::bench::timeouts::Late;
use crate::bench::workers::Shared;

/// A plot and its legend.
pub(super) struct Plot {
    pub(super) caption: String,
    /// The lines' names, each with the place of its colour in [`chart::SERIES`]. Empty for bars.
    pub(super) legend: Vec<(String, usize)>,
    pub(super) svg: String,
    /// True if some figures are too noisy to trust.
    pub(super) noisy: bool,
}

const RATIO: Axis = Axis::of_ratios("times faster than the other side");
const NANOSECONDS: Axis = Axis::of_ratios("ns per call");
const PERCENT: Axis = Axis::linear("% of all, at most");

pub(super) fn of(report: &Report, part: Part) -> Result<Vec<Plot>> {
    match part {
        Part::Comparisons => comparisons(&report.comparisons),
        // A table shows these few figures better than a plot.
        Part::Fds | Part::Fair => Ok(Vec::new()),
        Part::Peers => peers(&report.peers),
        Part::Polls => polls(&report.polls),
        Part::Growth => growth(&report.growth),
        Part::Timeouts => timeouts(&report.timeouts),
        Part::Workers => workers(&report.workers),
        Part::Threads => threads(&report.threads),
        Part::Backpressure => backpressure(&report.backpressure),
    }
}

/// Returns each item once, in order of first appearance.
fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}

fn bar(label: String, ratio: Spread, target: Option<f64>) -> Bar {
    Bar {
        label,
        value: ratio.median,
        low: ratio.p10,
        high: ratio.p90,
        target,
        trusted: ratio.is_trusted(),
    }
}

fn bar_plot(caption: &str, bars: &[Bar], axis: Axis) -> Result<Plot> {
    Ok(Plot {
        caption: caption.to_owned(),
        legend: Vec::new(),
        svg: chart::bars(bars, axis)?,
        noisy: bars.iter().any(|bar| !bar.trusted),
    })
}

/// Plots the lines that have points.
fn line_plot(
    caption: String,
    mut lines: Vec<Line>,
    across: Axis,
    up: Axis,
    noisy: bool,
) -> Result<Plot> {
    lines.retain(|line| !line.points.is_empty());
    let lines = &lines[..];
    Ok(Plot {
        caption,
        legend: lines
            .iter()
            .map(|line| line.name.clone())
            .zip(chart::colours(lines))
            .collect(),
        svg: chart::lines(lines, across, up)?,
        noisy,
    })
}

/// Returns a line with a point for each row that has one.
fn line<R>(name: &str, rows: &[&R], point: impl Fn(&R) -> Option<(f64, f64)>) -> Line {
    Line {
        name: name.to_owned(),
        points: rows.iter().filter_map(|row| point(row)).collect(),
    }
}

/// Returns a line for each way that `by` names, with the points of its rows.
fn lines_of<R>(
    rows: &[&R],
    by: fn(&R) -> &'static str,
    point: fn(&R) -> Option<(f64, f64)>,
) -> Vec<Line> {
    let ways = distinct(rows.iter().map(|row| by(row))).into_iter();
    ways.map(|way| {
        let of: Vec<_> = rows.iter().copied().filter(|row| by(row) == way).collect();
        line(way, &of, point)
    })
    .collect()
}

/// Returns the cumulative distribution of `figures`, in percent.
fn distribution(name: &str, figures: &[f64]) -> Line {
    let mut figures = figures.to_vec();
    figures.sort_by(f64::total_cmp);
    let last = figures.len().saturating_sub(1).max(1) as f64;
    let points = figures.into_iter().enumerate();
    Line {
        name: name.to_owned(),
        points: points
            .map(|(at, figure)| (figure, 100.0 * at as f64 / last))
            .collect(),
    }
}

fn comparisons(rows: &[Compared]) -> Result<Vec<Plot>> {
    let bars: Vec<_> = rows
        .iter()
        .map(|row| {
            let label = match row.row.against {
                "kernel" => row.row.what.clone().into_owned(),
                against => format!("{}, {against}", row.row.what),
            };
            bar(label, row.ratio, row.row.target)
        })
        .collect();
    let mut plots = vec![bar_plot(
        "How many times faster upoll is than the kernel, or than what is named; thin lines: 10th to \
         90th percentile; upright marks: the ratio to reach",
        &bars,
        RATIO,
    )?];
    let wakes = rows.iter().map(|row| row.row.name);
    for name in distinct(wakes.filter(|name| name.starts_with("wake"))) {
        let of: Vec<_> = rows.iter().filter(|row| row.row.name == name).collect();
        let mut lines = vec![distribution("upoll", of[0].upoll_batches())];
        lines.extend(
            of.iter()
                .map(|row| distribution(row.row.against, row.other_batches())),
        );
        plots.push(line_plot(
            format!("{}: distribution over the batches", of[0].row.what),
            lines,
            Axis::of_ratios("ns per wake, mean of a batch"),
            PERCENT,
            of.iter().any(|row| !row.trusted),
        )?);
    }
    Ok(plots)
}

fn peers(rows: &[Peer]) -> Result<Vec<Plot>> {
    let bars: Vec<_> = rows
        .iter()
        .filter(|row| ![SIGNAL_WAIT, SEND_WAIT].contains(&row.what))
        .filter_map(|row| {
            let label = format!("{} against {}", row.by, row.against?);
            Some(bar(label, row.figures.as_ref()?.ratio?, row.target))
        })
        .collect();
    let mut plots = vec![bar_plot(
        "One object on one thread: how many times faster upoll is; upright marks: upoll ahead",
        &bars,
        RATIO,
    )?];
    // Each plot has as many lines as there are colours, at most.
    type Shown = fn(&str) -> bool;
    let of_kernel: Shown = |by| by.starts_with("upoll") || by.starts_with("kernel");
    let of_libraries: Shown = |by| !by.starts_with("kernel");
    for (what, others, shown) in [
        (SIGNAL_WAIT, "the kernel's calls", of_kernel),
        (SIGNAL_WAIT, "libraries", of_libraries),
        (SEND_WAIT, "libraries", of_libraries),
    ] {
        let of = |row: &&Peer| row.what == what && shown(row.by);
        let of: Vec<_> = rows.iter().filter(of).collect();
        let lines = lines_of(
            &of,
            |row| row.by,
            |row| {
                let figures = row.figures.as_ref()?;
                Some((row.sources as f64, figures.nanoseconds.median))
            },
        );
        let sources = Axis::of_ratios("sources");
        let round = Axis::of_ratios("ns per round");
        let mut figures = of.iter().filter_map(|row| row.figures.as_ref());
        let noisy = figures.any(|figures| !figures.trusted);
        let caption = format!("One of many sources, {what}: upoll and {others}");
        plots.push(line_plot(caption, lines, sources, round, noisy)?);
    }
    Ok(plots)
}

fn polls(rows: &[Polled]) -> Result<Vec<Plot>> {
    let judged = rows.iter().filter(|row| row.gain_target.is_some());
    let bars: Vec<_> = judged
        .map(|row| {
            let label = format!("{}, {} {}", row.call, row.files, row.what);
            bar(label, row.gain, row.gain_target)
        })
        .collect();
    let mut plots = vec![bar_plot(
        "What the same code costs on the heap, in terms of the stack; upright marks: the ratio to \
         reach",
        &bars,
        Axis::of_ratios("cost on the heap / cost on the stack"),
    )?];
    for what in distinct(rows.iter().map(|row| row.what)) {
        for call in ["poll", "select"] {
            let is_one = |row: &&Polled| row.what == what && row.call == call;
            let of: Vec<_> = rows.iter().filter(is_one).collect();
            let line = |name: &str, figure: fn(&Polled) -> Option<Spread>| {
                line(name, &of, |row| {
                    Some((row.files as f64, figure(row)?.median))
                })
            };
            let lines = vec![
                line("stack", |row| Some(row.upoll_nanoseconds)),
                line("heap", |row| Some(row.heap_nanoseconds)),
                line("kept context", |row| row.context_nanoseconds),
                line("kernel", |row| row.kernel_nanoseconds),
            ];
            let files = Axis::of_ratios("files");
            let noisy = of.iter().any(|row| !row.trusted);
            let caption = format!("Cost of a {call} with more and more files: {what}");
            plots.push(line_plot(caption, lines, files, NANOSECONDS, noisy)?);
        }
    }
    Ok(plots)
}

fn growth(rows: &[Grown]) -> Result<Vec<Plot>> {
    let mut plots = Vec::new();
    for name in distinct(rows.iter().map(|row| row.name)) {
        let of: Vec<_> = rows.iter().filter(|row| row.name == name).collect();
        let lines = vec![
            line("upoll", &of, |row| {
                Some((row.items as f64, row.upoll_nanoseconds.median))
            }),
            line("kernel", &of, |row| {
                Some((row.kernel_items as f64, row.kernel_nanoseconds.median))
            }),
        ];
        let items = Axis::of_ratios("items in the set");
        let noisy = of.iter().any(|row| !row.trusted);
        let caption = format!("Cost as the set grows: {}", of[0].what);
        plots.push(line_plot(caption, lines, items, NANOSECONDS, noisy)?);
    }
    Ok(plots)
}

fn timeouts(rows: &[Late]) -> Result<Vec<Plot>> {
    let limits = distinct(rows.iter().map(|row| row.limit_microseconds));
    let most = rows.iter().map(|row| row.files).max();
    let late = Axis::of_ratios("late by us");
    let mut plots = Vec::new();
    for limit in limits {
        let of: Vec<_> = rows
            .iter()
            .filter(|row| row.limit_microseconds == limit)
            .collect();
        let widest = of.iter().filter(|row| Some(row.files) == most);
        let lines: Vec<_> = widest
            .map(|row| {
                let percentiles = &row.percentiles_nanoseconds;
                let late: Vec<_> = percentiles.iter().map(|&one| one as f64 / 1000.0).collect();
                distribution(row.by, &late)
            })
            .collect();
        let noisy = of.iter().any(|row| !row.trusted);
        let files = most.unwrap_or(0);
        let caption = format!("Asked to wait {limit} us over {files} files: distribution");
        plots.push(line_plot(caption, lines, late, PERCENT, noisy)?);

        let mut lines = lines_of(
            &of,
            |row| row.by,
            |row| Some((row.files as f64, row.p50_nanoseconds as f64 / 1000.0)),
        );
        // Times of whole milliseconds are out of the range of the others.
        lines.retain(|line| !line.name.starts_with("epoll_wait"));
        let files = Axis::linear("files");
        let caption = format!("Asked to wait {limit} us: median against the number of files");
        let late = Axis::linear("late by us");
        plots.push(line_plot(caption, lines, files, late, noisy)?);
    }
    Ok(plots)
}

fn workers(rows: &[Shared]) -> Result<Vec<Plot>> {
    let Some(first) = rows.first() else {
        return Ok(Vec::new());
    };
    let lines: Vec<_> = rows
        .iter()
        .map(|row| Line {
            name: row.way.to_owned(),
            points: row
                .middle_round()
                .into_iter()
                .enumerate()
                // A logarithmic axis has no zero: a share of zero is drawn below one.
                .map(|(rank, events)| ((rank + 1) as f64, (events as f64).max(0.5)))
                .collect(),
        })
        .collect();
    let caption = format!(
        "Events that each of {} workers took in the middle round, from the one that took the \
         fewest to the one that took the most; the lowest place is none at all",
        first.workers
    );
    let events = Axis::of_ratios("events");
    let rank = Axis::linear("worker, by what it took");
    let bars: Vec<_> = rows
        .iter()
        .map(|row| {
            bar(
                row.way.to_owned(),
                row.ratio,
                row.goal.map(|goal| goal.ratio),
            )
        })
        .collect();
    let noisy = rows.iter().any(|row| !row.ratio.is_trusted());
    Ok(vec![
        line_plot(caption, lines, rank, events, noisy)?,
        bar_plot(
            "How many times faster than the kernel all events were taken; upright mark: the ratio \
             to reach",
            &bars,
            RATIO,
        )?,
    ])
}

fn threads(rows: &[Threaded]) -> Result<Vec<Plot>> {
    let mut plots = Vec::new();
    for (work, sets) in distinct(rows.iter().map(|row| (row.work, row.sets))) {
        let of = |row: &&Threaded| (row.work, row.sets) == (work, sets);
        let of: Vec<_> = rows.iter().filter(of).collect();
        let lines = lines_of(
            &of,
            |row| row.by,
            |row| Some((row.threads as f64, row.requests_per_second.median)),
        );
        let notes: Vec<_> = of.iter().filter_map(|row| row.note.as_deref()).collect();
        let note = notes
            .first()
            .map_or_else(String::new, |note| format!("; {note}"));
        let threads = Axis::of_ratios("threads");
        let requests = Axis::linear("requests per second");
        let noisy = of.iter().any(|row| !row.trusted);
        let caption = format!("Threads, {work}, sets: {sets}{note}");
        plots.push(line_plot(caption, lines, threads, requests, noisy)?);
    }
    Ok(plots)
}

fn backpressure(rows: &[Pressed]) -> Result<Vec<Plot>> {
    let lines: Vec<_> = rows
        .iter()
        .filter_map(|row| {
            let name = match row.maximum {
                u64::MAX => format!("{}, no maximum", row.by),
                maximum => format!("{}, maximum {maximum}", row.by),
            };
            Some(distribution(
                &name,
                &row.latency.as_ref()?.percentiles_microseconds,
            ))
        })
        .collect();
    let latency = Axis::of_ratios("us from write to read");
    let caption = "A writer faster than the reader: distribution of latency".to_owned();
    Ok(vec![line_plot(caption, lines, latency, PERCENT, false)?])
}
