//! Two kinds of charts, as SVG: bars with their spread, and lines.
//!
//! Colours are the constants below. The page's style sheet finds them by their values, and replaces
//! them when the browser asks for a dark page.

use std::ops::Range;

use anyhow::Result;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{
    KeyPointHint, NoDefaultFormatting, Ranged, SegmentValue, ValueFormatter,
};
use plotters::prelude::{
    ChartBuilder, Circle, Color, DrawingArea, EmptyElement, IntoDrawingArea, IntoSegmentedCoord,
    LineSeries, PathElement, RGBColor, Rectangle, SVGBackend, Text,
};
use plotters::style::{IntoFont, TextStyle};

/// The colours of series. [`colours`] chooses among them.
pub(super) const SERIES: [RGBColor; 7] = [
    RGBColor(0x00, 0x66, 0xB3),
    RGBColor(0xC2, 0x4E, 0x00),
    RGBColor(0x00, 0x83, 0x5F),
    RGBColor(0xB0, 0x4A, 0x88),
    RGBColor(0x8A, 0x6D, 0x00),
    RGBColor(0x6F, 0x4F, 0xC4),
    RGBColor(0x7A, 0x4A, 0x2E),
];
/// Figures that are too noisy to trust, in charts as in tables.
pub(super) const NOISY: RGBColor = RGBColor(0x6B, 0x71, 0x78);
/// The mark of a target.
pub(super) const TARGET: RGBColor = RGBColor(0xC6, 0x1D, 0x3C);
/// Text, axes and spreads.
pub(super) const INK: RGBColor = RGBColor(0x1C, 0x1E, 0x21);
pub(super) const GRID: RGBColor = RGBColor(0xDA, 0xDD, 0xE1);

/// About the width of a telephone's screen, so that words there are as large as they are drawn.
const WIDTH: u32 = 460;
const LINES_HEIGHT: u32 = 300;
/// The height of a bar, and of the label above it.
const BAR_HEIGHT: u32 = 20;
/// The space above and below the bars.
const BARS_MARGIN: u32 = 58;
const FONT: (&str, i32) = ("sans-serif", 15);

/// Returns the place in [`SERIES`] of each line's colour: blue for upoll and orange for the kernel in every
/// chart, and for other ways of either the next colours that are free.
pub(super) fn colours(lines: &[Line]) -> Vec<usize> {
    type Family = (&'static [&'static str], [usize; 7]);
    const UPOLL: Family = (&["upoll", "stack", "heap", "kept"], [0, 2, 5, 3, 4, 6, 1]);
    const KERNEL: Family = (&["kernel", "ppoll", "epoll_"], [1, 4, 3, 6, 5, 2, 0]);
    const OTHERS: [usize; 7] = [3, 5, 4, 6, 2, 1, 0];
    let mut taken = Vec::new();
    for line in lines {
        let of = |prefixes: &[&str]| prefixes.iter().any(|prefix| line.name.starts_with(prefix));
        let family = [UPOLL, KERNEL]
            .into_iter()
            .find(|(prefixes, _)| of(prefixes));
        let wanted = family.map_or(OTHERS, |(_, colours)| colours);
        let free = wanted.into_iter().find(|colour| !taken.contains(colour));
        taken.push(free.unwrap_or(wanted[0]));
    }
    taken
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A figure with its spread.
pub(super) struct Bar {
    pub(super) label: String,
    pub(super) value: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    /// The target.
    pub(super) target: Option<f64>,
    pub(super) trusted: bool,
}

/// The points of a series, in ascending order.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// The quantity on an axis.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    title: &'static str,
    /// True if the axis is logarithmic.
    ratios: bool,
}

impl Axis {
    pub(super) const fn linear(title: &'static str) -> Self {
        let ratios = false;
        Axis { title, ratios }
    }

    /// An axis along which equal ratios are equally long.
    pub(super) const fn of_ratios(title: &'static str) -> Self {
        let ratios = true;
        Axis { title, ratios }
    }
}

/// The range and the ticks of an axis in a chart. Figures below the range of a logarithmic axis are
/// drawn at its lower end.
#[derive(Clone)]
struct Scale {
    axis: Axis,
    range: Range<f64>,
    ticks: Vec<f64>,
}

impl Scale {
    /// Makes an axis that covers all `figures`.
    fn over(axis: Axis, figures: impl Iterator<Item = f64>) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for figure in figures.filter(|figure| figure.is_finite()) {
            if !axis.ratios || figure > 0.0 {
                (low, high) = (low.min(figure), high.max(figure));
            }
        }
        if low > high {
            (low, high) = (1.0, 1.0);
        }
        let (low, high) = match axis.ratios {
            true => (low / 1.15, high * 1.15),
            false if high > 0.0 => (low.min(0.0), high * 1.08),
            false => (low.min(0.0), 1.0),
        };
        Scale {
            axis,
            ticks: match axis.ratios {
                true => ratio_ticks(low, high),
                false => even_ticks(low, high),
            },
            range: low..high,
        }
    }

    /// Extends the upper end, to make room for labels.
    fn with_room(mut self) -> Self {
        let Range { start, end } = self.range;
        self.range.end = match self.axis.ratios {
            true => end * (end / start).powf(0.12),
            false => end + 0.12 * (end - start),
        };
        self
    }

    /// Returns the position of `figure` along the axis, from 0 to 1.
    fn part(&self, figure: f64) -> f64 {
        let Range { start, end } = self.range;
        match self.axis.ratios {
            true if figure <= start => 0.0,
            true => (figure / start).ln() / (end / start).ln(),
            false => (figure - start) / (end - start),
        }
    }
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, figure: &f64, (from, to): (i32, i32)) -> i32 {
        from + (self.part(*figure) * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // The light lines between the ticks are omitted.
        match hint.weight().allow_light_points() {
            true => Vec::new(),
            false => self.ticks.clone(),
        }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Scale {
    fn format(figure: &f64) -> String {
        short(*figure)
    }
}

/// Returns ticks at 1, 2, 5, 10, ..., or only at powers of ten if those are too many.
fn ratio_ticks(low: f64, high: f64) -> Vec<f64> {
    let steps: &[f64] = match high / low {
        span if span < 3e2 => &[1.0, 2.0, 5.0],
        _ => &[1.0],
    };
    let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
    powers
        .flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)))
        .filter(|figure| (low..=high).contains(figure))
        .collect()
}

/// Returns about six ticks, at round figures.
fn even_ticks(low: f64, high: f64) -> Vec<f64> {
    let rough = (high - low) / 6.0;
    let power = 10_f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    let step = steps.into_iter().find(|&step| step >= rough);
    let step = step.unwrap_or(rough);
    let first = (low / step).ceil() as i64;
    let last = (high / step).floor() as i64;
    (first..=last).map(|at| at as f64 * step).collect()
}

/// Formats a figure as a short label.
pub(super) fn short(figure: f64) -> String {
    let magnitude = figure.abs();
    let (figure, unit) = match magnitude {
        _ if magnitude >= 1e6 => (figure / 1e6, " M"),
        _ if magnitude >= 1e4 => (figure / 1e3, " K"),
        _ => (figure, ""),
    };
    let digits = match figure.abs() {
        magnitude if magnitude >= 100.0 || magnitude == 0.0 => 0,
        magnitude if magnitude >= 10.0 => 1,
        magnitude if magnitude >= 0.1 => 2,
        _ => 4,
    };
    let text = format!("{figure:.digits$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text}{unit}")
}

fn ink() -> TextStyle<'static> {
    FONT.into_font().color(&INK)
}

fn drawn(height: u32, draw: impl FnOnce(&Area<'_>) -> Result<()>) -> Result<String> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
    draw(&area)?;
    area.present()?;
    drop(area);
    Ok(svg)
}

/// Draws a bar for each figure, the first one at the top. Targets are vertical marks.
pub(super) fn bars(bars: &[Bar], axis: Axis) -> Result<String> {
    let count = i32::try_from(bars.len())?;
    let height = 2 * bars.len() as u32 * BAR_HEIGHT + BARS_MARGIN;
    let figures = bars.iter().flat_map(|bar| {
        let target = bar.target.unwrap_or(bar.value);
        [bar.value, bar.low, bar.high, target]
    });
    // The axis includes 1, the ratio of equal cost.
    let mut scale = Scale::over(axis, figures.chain([1.0])).with_room();
    // The figure of a tick at the left end would not fit into the picture.
    let shown = scale.ticks.iter().copied();
    scale.ticks = shown.filter(|&tick| scale.part(tick) > 0.03).collect();
    let start = scale.range.start;
    drawn(height, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .x_label_area_size(42)
            .build_cartesian_2d(scale, (0..2 * count).into_segmented())?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .bold_line_style(GRID)
            .light_line_style(GRID.mix(0.0))
            .axis_style(INK)
            .label_style(ink())
            .axis_desc_style(ink())
            .x_desc(axis.title)
            .draw()?;
        let base = if axis.ratios { 1.0 } else { 0.0 };
        // Segments count from below: that of a bar, then that of its label.
        for (bar, at) in bars.iter().rev().zip((0..).step_by(2)) {
            let label = match bar.trusted {
                true => bar.label.clone(),
                false => format!("{} (noisy)", bar.label),
            };
            let place = (start, SegmentValue::CenterOf(at + 1));
            let words = Text::new(label, (2, -4), ink());
            chart.draw_series([EmptyElement::at(place) + words])?;
            let below = || SegmentValue::Exact(at);
            let above = || SegmentValue::Exact(at + 1);
            let middle = || SegmentValue::CenterOf(at);
            let colour = if bar.trusted { SERIES[0] } else { NOISY };
            let value = bar.value;
            let corners = [(base, below()), (value, above())];
            let mut body = Rectangle::new(corners, colour.filled());
            body.set_margin(2, 4, 0, 0);
            chart.draw_series([body])?;
            let whisker = vec![(bar.low, middle()), (bar.high, middle())];
            chart.draw_series([PathElement::new(whisker, INK.stroke_width(1))])?;
            if let Some(target) = bar.target {
                let mark = vec![(target, below()), (target, above())];
                chart.draw_series([PathElement::new(mark, TARGET.stroke_width(3))])?;
            }
            let end = bar.target.map_or(bar.high, |target| bar.high.max(target));
            let place = (end.max(value).max(base), middle());
            let words = Text::new(short(bar.value), (6, -8), ink());
            chart.draw_series([EmptyElement::at(place) + words])?;
        }
        Ok(())
    })
}

/// Draws lines, with a dot at each point unless there are many.
pub(super) fn lines(lines: &[Line], across: Axis, up: Axis) -> Result<String> {
    let points = || lines.iter().flat_map(|line| line.points.iter().copied());
    let (x, y) = (
        Scale::over(across, points().map(|point| point.0)),
        Scale::over(up, points().map(|point| point.1)),
    );
    drawn(LINES_HEIGHT, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_right(24)
            .x_label_area_size(42)
            .y_label_area_size(64)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .light_line_style(GRID.mix(0.0))
            .axis_style(INK)
            .label_style(ink())
            .axis_desc_style(ink())
            .x_desc(across.title)
            .y_desc(up.title)
            .draw()?;
        for (line, colour) in lines.iter().zip(colours(lines)) {
            let colour = SERIES[colour];
            let points = line.points.iter().copied();
            chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
            if points.len() <= 12 {
                let dots = points.map(|point| Circle::new(point, 4, colour.filled()));
                chart.draw_series(dots)?;
            }
        }
        Ok(())
    })
}
