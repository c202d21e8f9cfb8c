//! SVG plots: line plots, and rows of one quantity each on a shared axis. This module is
//! independent of comparisons: its input is numbers and names.
//!
//! Drawn with `plotters`. Its SVG backend writes colours as `#RRGGBB` attributes; [`colours`] maps
//! each of them to a CSS variable of the page, so that one drawing serves light and dark mode.

use std::fmt::Write as _;
use std::io;

use plotters::chart::ChartContext;
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::{
    ChartBuilder, Circle, Color as _, DrawingArea, IntoDrawingArea as _, PathElement, Polygon,
    RGBColor, Rectangle, SVGBackend, ShapeStyle, TRANSPARENT, Text, TextStyle,
};
use plotters::style::IntoFont as _;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::escape;

/// Width of a plot in SVG units, about a phone's width in pixels.
const WIDTH: u32 = 440;
const ROW_HEIGHT: i32 = 40;
/// Width of the names at the lines' ends, and how many characters fit.
const NAMES: i32 = 104;
const FIT: usize = 12;

const INK: RGBColor = RGBColor(0x1B, 0x1F, 0x24);
const GRID: RGBColor = RGBColor(0xD5, 0xDA, 0xE0);
/// Colours by Okabe and Ito (2008), darkened for contrast on white, distinguishable by colour-blind
/// readers; next to each its variant for dark mode.
const PALETTE: [(RGBColor, &str); 5] = [
    (RGBColor(0x00, 0x72, 0xB2), "#56b4e9"),
    (RGBColor(0xC4, 0x50, 0x00), "#ff9a4d"),
    (RGBColor(0x00, 0x80, 0x5D), "#2fc89b"),
    (RGBColor(0xA0, 0x45, 0x7F), "#ec9fcb"),
    (RGBColor(0x7A, 0x66, 0x00), "#f0e442"),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<io::Error>>;

/// CSS rules that map every colour of a plot to its light and dark variant.
pub(super) fn colours() -> String {
    let hex = |c: RGBColor| format!("#{:02X}{:02X}{:02X}", c.0, c.1, c.2);
    let mut all: Vec<(String, String, &str)> = PALETTE
        .iter()
        .enumerate()
        .map(|(i, &(light, dark))| (format!("c{i}"), hex(light), dark))
        .collect();
    all.push(("ink".into(), hex(INK), "#e6edf3"));
    all.push(("grid".into(), hex(GRID), "#363d47"));
    let (mut light, mut dark, mut rules) = (String::new(), String::new(), String::new());
    for (name, is, on_dark) in all {
        let _ = write!(light, "--{name}:{is};");
        let _ = write!(dark, "--{name}:{on_dark};");
        let _ = writeln!(rules, "svg [fill=\"{is}\"]{{fill:var(--{name})}}");
        let _ = writeln!(rules, "svg [stroke=\"{is}\"]{{stroke:var(--{name})}}");
    }
    format!(":root{{{light}}}\n@media(prefers-color-scheme:dark){{:root{{{dark}}}}}\n{rules}")
}

/// Accessible name and description of a plot. The name is unique in the page.
pub(super) struct Description<'a> {
    pub(super) id: &'a str,
    pub(super) title: &'a str,
    pub(super) text: &'a str,
}

/// Axis of a plot.
#[derive(Clone)]
pub(super) struct Axis {
    label: String,
    /// Position of a value on the axis.
    place: fn(f64) -> f64,
    low: f64,
    high: f64,
    /// Tick values with their labels.
    ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Linear axis from 0.
    pub(super) fn linear(label: &str, values: impl IntoIterator<Item = f64>) -> Self {
        let most = values.into_iter().fold(0.0, f64::max);
        let high = if most > 0.0 { most * 1.06 } else { 1.0 };
        Self::with(label, |v| v, 0.0, high, even(0.0, high))
    }

    /// Logarithmic axis for values above 0; other values are ignored.
    pub(super) fn log(label: &str, values: impl IntoIterator<Item = f64>) -> Self {
        let values = values.into_iter().filter(|v| *v > 0.0);
        let (low, high) =
            values.fold((f64::INFINITY, 0.0), |(a, b), v| (f64::min(a, v), f64::max(b, v)));
        let (low, high) = if high > 0.0 { (low, high) } else { (1.0, 1.0) };
        let room = (high / low).powf(0.06).max(1.02);
        let (low, high) = (low / room, high * room);
        let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
        let among = |steps: &[f64]| -> Vec<f64> {
            let all = decades.clone().flat_map(|e| steps.iter().map(move |s| s * 10f64.powi(e)));
            all.filter(|v| (low..=high).contains(v)).collect()
        };
        let mut ticks = among(&[1.0, 2.0, 5.0]);
        if ticks.len() > 7 {
            ticks = among(&[1.0]);
        }
        if ticks.len() < 3 {
            ticks = even(low, high);
        }
        Self::with(label, f64::ln, low, high, ticks)
    }

    /// Axis of fractions of all measurements, stretched towards the largest fraction below 1.
    pub(super) fn percentiles(label: &str, most: f64) -> Self {
        let named = [(0.0, "0"), (0.5, "50"), (0.9, "90"), (0.99, "99"), (0.999, "99.9")];
        let high = most.max(0.9);
        let ticks = named.iter().filter(|(v, _)| *v <= high).map(|&(v, n)| (v, n.to_owned()));
        let place: fn(f64) -> f64 = |share| -(1.0 - share).log10();
        Self { label: label.into(), place, low: 0.0, high, ticks: ticks.collect() }
    }

    /// Smallest and largest value on the axis.
    pub(super) const fn ends(&self) -> (f64, f64) {
        (self.low, self.high)
    }

    fn with(label: &str, place: fn(f64) -> f64, low: f64, high: f64, ticks: Vec<f64>) -> Self {
        let ticks = ticks.into_iter().map(|v| (v, short(v))).collect();
        Self { label: label.into(), place, low, high, ticks }
    }

    /// Label of a tick.
    fn named(&self, tick: f64) -> String {
        let tick = self.ticks.iter().find(|(value, _)| *value == tick);
        tick.map(|(_, name)| name.clone()).unwrap_or_default()
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let [value, low, high] =
            [value.clamp(self.low, self.high), self.low, self.high].map(self.place);
        from + ((value - low) / (high - low) * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() {
            return Vec::new();
        }
        self.ticks.iter().map(|(value, _)| *value).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.low..self.high
    }
}

/// Returns four to eight round values in a range.
fn even(low: f64, high: f64) -> Vec<f64> {
    let decade = 10f64.powf(((high - low) / 8.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|s| s * decade);
    let step = steps.into_iter().find(|s| (high - low) / s <= 6.0).unwrap_or(steps[3]);
    let first = (low / step).ceil() as i64;
    (first..).map(|i| i as f64 * step).take_while(|v| *v <= high).collect()
}

/// Formats a round value in few characters.
fn short(value: f64) -> String {
    if value != 0.0 && value.abs() < 1e-4 {
        return format!("{value:.2e}");
    }
    let digits = format!("{value:.5}");
    digits.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Line of one engine.
pub(super) struct Series {
    pub(super) engine: usize,
    pub(super) name: String,
    pub(super) points: Vec<Point>,
}

pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    /// Half the length of the whisker.
    pub(super) spread: Option<f64>,
}

/// Draws lines with their names at the ends.
pub(super) fn lines(
    description: &Description<'_>,
    x: &Axis,
    y: &Axis,
    all: &[Series],
) -> io::Result<String> {
    let height = 260;
    svg(description, height, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin_top(24)
            .margin_right(NAMES)
            .x_label_area_size(40)
            .y_label_area_size(48)
            .build_cartesian_2d(x.clone(), y.clone())?;
        mesh(&mut chart, x, y)?;
        write(area, &y.label, (6, 10), HPos::Left)?;
        let at = |x: f64, y: f64| chart.plotting_area().map_coordinate(&(x, y));
        let mut ends = Vec::new();
        for series in all {
            let style = colour(series.engine);
            let path: Vec<(i32, i32)> = series.points.iter().map(|p| at(p.x, p.y)).collect();
            area.draw(&PathElement::new(path.clone(), style.stroke_width(2)))?;
            for (point, &place) in series.points.iter().zip(&path) {
                if let Some(spread) = point.spread {
                    let whisker =
                        vec![at(point.x, point.y - spread), at(point.x, point.y + spread)];
                    area.draw(&PathElement::new(whisker, style))?;
                }
                if path.len() <= 24 {
                    mark(area, series.engine, place)?;
                }
            }
            if let Some(&end) = path.last() {
                ends.push((end.1, series));
            }
        }
        // Names stay in the order of the line ends, each at least a text line below the previous
        // one.
        ends.sort_by_key(|(y, _)| *y);
        let left = WIDTH as i32 - NAMES + 12;
        let mut free = 24;
        for (i, (y, series)) in ends.iter().enumerate() {
            let below = (ends.len() - i) as i32 * 16;
            let y = (*y).max(free).min(height as i32 - 24 - below).max(free);
            free = y + 16;
            mark(area, series.engine, (left, y))?;
            write(area, &cut(&series.name, FIT), (left + 9, y), HPos::Left)?;
        }
        Ok(())
    })
}

/// One quantity: a text line with its marks below.
#[derive(Default)]
pub(super) struct PlotRow {
    pub(super) engine: usize,
    pub(super) name: String,
    /// Text at the right end of the name's line.
    pub(super) value: String,
    /// Bars: from, to, colour, name.
    pub(super) bars: Vec<(f64, f64, usize, String)>,
    pub(super) dots: Vec<f64>,
    pub(super) whisker: Option<(f64, f64)>,
    pub(super) median: Option<f64>,
}

/// Draws quantities on one axis, with a vertical line through all at `same`.
pub(super) fn row_plot(
    description: &Description<'_>,
    x: &Axis,
    same: Option<f64>,
    all: &[PlotRow],
) -> io::Result<String> {
    let height = 56 + ROW_HEIGHT * all.len() as i32;
    svg(description, height as u32, |area| {
        let none = Axis::with("", |v| v, 0.0, 1.0, Vec::new());
        let mut chart = ChartBuilder::on(area)
            .margin_left(14)
            .margin_right(14)
            .margin_top(6)
            .x_label_area_size(44)
            .build_cartesian_2d(x.clone(), none.clone())?;
        mesh(&mut chart, x, &none)?;
        let at = |value: f64| chart.plotting_area().map_coordinate(&(value, 0.0)).0;
        if let Some(same) = same {
            let line = vec![(at(same), 6), (at(same), height - 50)];
            area.draw(&PathElement::new(line, INK.stroke_width(1)))?;
        }
        for (i, plot_row) in all.iter().enumerate() {
            let top = 8 + ROW_HEIGHT * i as i32;
            let (text, middle) = (top + 7, top + 26);
            let value = plot_row.value.chars().count();
            write(
                area,
                &cut(&plot_row.name, 56usize.saturating_sub(value)),
                (14, text),
                HPos::Left,
            )?;
            write(area, &cut(&plot_row.value, 40), (WIDTH as i32 - 14, text), HPos::Right)?;
            for (from, to, engine, name) in &plot_row.bars {
                let (left, right) = (at(*from), at(*to));
                let bar = [(left, middle - 8), (right, middle + 8)];
                area.draw(&Rectangle::new(bar, hue(*engine).mix(0.5).filled()))?;
                // A gap separates neighbours even without their colours.
                area.draw(&PathElement::new(vec![(right, middle - 8), (right, middle + 8)], GRID))?;
                if name.chars().count() as i32 * 8 < right - left {
                    let place = ((left + right) / 2, middle);
                    write(area, name, place, HPos::Center)?;
                }
            }
            let style = colour(plot_row.engine);
            if let Some((low, high)) = plot_row.whisker {
                let line = vec![(at(low), middle), (at(high), middle)];
                area.draw(&PathElement::new(line, style.stroke_width(3)))?;
            }
            for &dot in &plot_row.dots {
                area.draw(&Circle::new((at(dot), middle), 4, INK.stroke_width(1)))?;
            }
            if let Some(median) = plot_row.median {
                let line = vec![(at(median), middle - 9), (at(median), middle + 9)];
                area.draw(&PathElement::new(line, style.stroke_width(3)))?;
            }
        }
        Ok(())
    })
}

/// Draws axes, ticks and grid lines.
fn mesh(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<Axis, Axis>>,
    x: &Axis,
    y: &Axis,
) -> Drawn {
    chart
        .configure_mesh()
        .x_label_formatter(&|at| x.named(*at))
        .y_label_formatter(&|at| y.named(*at))
        .x_desc(&x.label)
        .axis_style(GRID)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .label_style(text(HPos::Center))
        .axis_desc_style(text(HPos::Center))
        .draw()
}

fn text(h: HPos) -> TextStyle<'static> {
    TextStyle::from(("sans-serif", 16).into_font()).color(&INK).pos(Pos::new(h, VPos::Center))
}

fn write(area: &Area<'_>, words: &str, at: (i32, i32), h: HPos) -> Drawn {
    area.draw(&Text::new(words.to_owned(), at, text(h)))
}

fn hue(engine: usize) -> RGBColor {
    PALETTE[engine % PALETTE.len()].0
}

fn colour(engine: usize) -> ShapeStyle {
    hue(engine).stroke_width(1)
}

/// Draws an engine's marker: shape and colour each identify it.
fn mark(area: &Area<'_>, engine: usize, (x, y): (i32, i32)) -> Drawn {
    let fill = hue(engine).filled();
    let sides: &[(i32, i32)] = match engine % 6 {
        0 => return area.draw(&Circle::new((x, y), 4, fill)),
        1 => return area.draw(&Rectangle::new([(x - 4, y - 4), (x + 4, y + 4)], fill)),
        2 => &[(0, -5), (5, 4), (-5, 4)],
        3 => &[(0, -6), (6, 0), (0, 6), (-6, 0)],
        4 => &[(0, 5), (5, -4), (-5, -4)],
        _ => &[(-2, -5), (2, -5), (2, -2), (5, -2), (5, 2), (2, 2), (2, 5), (-2, 5), (-2, 2)],
    };
    let sides: Vec<(i32, i32)> = sides.iter().map(|side| (x + side.0, y + side.1)).collect();
    area.draw(&Polygon::new(sides, fill))
}

/// Truncates a name; the table contains the full name.
fn cut(name: &str, most: usize) -> String {
    if name.chars().count() <= most {
        return name.to_owned();
    }
    name.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// Wraps a drawing in a scalable SVG with name and description.
fn svg(
    description: &Description<'_>,
    height: u32,
    draw: impl FnOnce(&Area<'_>) -> Drawn,
) -> io::Result<String> {
    let mut drawn = String::new();
    let area = SVGBackend::with_string(&mut drawn, (WIDTH, height)).into_drawing_area();
    draw(&area).and_then(|()| area.present()).map_err(io::Error::other)?;
    drop(area);
    // The backend's root tag has a fixed size and no accessible name.
    let (_, inside) = drawn.split_once('>').unwrap_or_default();
    let Description { id, title, text } = description;
    let (title, text) = (escape(title), escape(text));
    Ok(format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">\
         <title id=\"{id}-t\">{title}</title><desc id=\"{id}-d\">{text}</desc>{inside}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within_the_axis() {
        for (low, high) in [(0.97, 1.04), (0.02, 300.0), (1.0, 1.0), (3e-6, 4e-6), (0.5, 9.0)] {
            for axis in [Axis::log("", [low, high]), Axis::linear("", [low, high])] {
                assert!((2..=9).contains(&axis.ticks.len()), "{low} {high}: {:?}", axis.ticks);
                assert!(axis.ticks.iter().all(|(v, _)| (axis.low..=axis.high).contains(v)));
                let names: std::collections::BTreeSet<_> =
                    axis.ticks.iter().map(|t| &t.1).collect();
                assert_eq!(names.len(), axis.ticks.len(), "{:?}", axis.ticks);
                assert!(axis.low <= low && high <= axis.high);
            }
        }
        // Plots without data must not fail.
        assert!(Axis::log("", [0.0]).low < Axis::log("", []).high);
        assert!(!Axis::linear("", []).ticks.is_empty());
        let axis = Axis::percentiles("", 0.99);
        assert_eq!(
            axis.ticks.iter().map(|t| t.1.as_str()).collect::<Vec<_>>(),
            ["0", "50", "90", "99"]
        );
    }

    #[test]
    fn names_are_truncated_by_characters() {
        assert_eq!(cut("größer", 6), "größer");
        assert_eq!(cut("größere", 6), "größe…");
    }

    #[test]
    fn colours_contrast_with_the_background() {
        // Relative luminance and contrast of WCAG 2.2, which requires 3 for graphics.
        let luminance = |[r, g, b]: [u8; 3]| {
            let part = |c: u8| match f64::from(c) / 255.0 {
                c if c <= 0.04045 => c / 12.92,
                c => ((c + 0.055) / 1.055).powf(2.4),
            };
            0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b)
        };
        let contrast = |a, b| {
            let (a, b) = (luminance(a), luminance(b));
            (f64::max(a, b) + 0.05) / (f64::min(a, b) + 0.05)
        };
        for (RGBColor(r, g, b), dark) in PALETTE {
            assert!(contrast([r, g, b], [255; 3]) >= 4.5, "{r} {g} {b}");
            let on_dark = [1, 3, 5].map(|i| u8::from_str_radix(&dark[i..i + 2], 16).unwrap());
            assert!(contrast(on_dark, [0x12, 0x16, 0x1c]) >= 4.5, "{dark}");
        }
    }
}
