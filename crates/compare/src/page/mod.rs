//! A comparison as one self-contained HTML page without network access or scripts. The same data
//! gives the same page.
//!
//! Every text passes through [`escape`] or the SVG backend's escaping, and the page's content
//! security policy forbids scripts: names of models and texts from peers are untrusted.

mod plots;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;

use self::plots::{Axis, Description, PlotRow, Point, Series};
use super::format::{self, Table};
use super::report::{Comparison, Unit};
use bench::{Kind, Test};

const STYLE: &str = include_str!("style.css");
/// Maximum number of points in the line of a distribution.
const POINTS: u32 = 160;

/// Renders the whole page.
pub fn page(found: &Comparison) -> io::Result<String> {
    let model = escape(&format::model(found));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';style-src 'unsafe-inline'\">\n\
         <title>{model}: engines compared</title>\n<style>\n{STYLE}{}</style></head>\n<body><main>\n<h1>{model}</h1>\n",
        plots::colours()
    );
    let mut line = |class: &str, text: &str| {
        let _ = writeln!(page, "<p{class}>{}</p>", escape(text));
    };
    for reason in &found.invalid {
        line(" class=\"bad\"", &format!("INVALID: {reason}"));
    }
    if found.interrupted {
        line(" class=\"bad\"", "Interrupted: results measured until then.");
    }
    format::head(found).lines().for_each(|text| line("", text));
    section(&mut page, "Engines", &table("Engines", &format::entrants(found)));
    for entrant in &found.entrants {
        if let Some(why) = &entrant.lost {
            let _ = writeln!(page, "<p>{}: {}</p>", escape(&entrant.name), escape(why));
        }
    }
    let differences = format::differences(found);
    let description = match &differences[..] {
        [] => format!("<p>{}</p>", format::SAME.trim_end()),
        rows => table("Differences", rows),
    };
    section(&mut page, "Differences", &description);
    section(&mut page, "Measured", &table("Measured", &format::measured(found)));
    let ratios = format::ratios(found);
    if let (Some(own), false) = (found.entrants.first(), ratios.is_empty()) {
        let title = format!("{} compared with the others", own.name);
        section(&mut page, &title, &table(&title, &ratios));
    }
    for note in format::notes(found).lines() {
        let _ = writeln!(page, "<p>{}</p>", escape(note));
    }
    let mut figures = Figures::default();
    pairs(found, &mut figures)?;
    speeds(found, &mut figures)?;
    curves(found, &mut figures)?;
    between(found, &mut figures)?;
    warm_up(found, &mut figures)?;
    memory(found, &mut figures)?;
    roofline(found, &mut figures)?;
    history(found, &mut figures)?;
    if figures.count > 0 {
        section(&mut page, "Plots", &format!("<div class=\"plots\">\n{}</div>", figures.html));
    }
    page.push_str("</main></body></html>\n");
    Ok(page)
}

/// Escapes a text for an HTML element or a quoted attribute.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c if c.is_control() => escaped.push(char::REPLACEMENT_CHARACTER),
            c => escaped.push(c),
        }
    }
    escaped
}

fn section(page: &mut String, title: &str, inside: &str) {
    let _ = writeln!(page, "<h2>{}</h2>\n{inside}", escape(title));
}

/// Renders a table in its own scrollable box; the first row has the column names, the first cells
/// the row names.
fn table(name: &str, rows: &[Vec<String>]) -> String {
    let mut html = format!(
        "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{}\"><table>",
        escape(name)
    );
    for (i, row) in rows.iter().enumerate() {
        html.push_str(match i {
            0 => "<thead><tr>",
            1 => "<tbody><tr>",
            _ => "<tr>",
        });
        for (column, cell) in row.iter().enumerate() {
            let cell = escape(cell);
            let _ = match (i, column) {
                (0, _) => write!(html, "<th scope=\"col\">{cell}</th>"),
                (_, 0) => write!(html, "<th scope=\"row\">{cell}</th>"),
                _ => write!(html, "<td>{cell}</td>"),
            };
        }
        html.push_str(if i == 0 { "</tr></thead>\n" } else { "</tr>\n" });
    }
    html.push_str("</tbody></table></div>");
    html
}

/// Plots with their texts and tables.
#[derive(Default)]
struct Figures {
    html: String,
    count: usize,
}

impl Figures {
    fn add(
        &mut self,
        title: &str,
        text: &str,
        numbers: &[Vec<String>],
        plot: impl FnOnce(&Description<'_>) -> io::Result<String>,
    ) -> io::Result<()> {
        self.count += 1;
        let id = format!("plot{}", self.count);
        let svg = plot(&Description { id: &id, title, text })?;
        let _ = writeln!(
            self.html,
            "<figure><figcaption><h3>{}</h3><p>{}</p></figcaption>\n{svg}\
             <details><summary>The numbers</summary>{}</details></figure>",
            escape(title),
            escape(text),
            table(title, numbers)
        );
        Ok(())
    }
}

fn heads<const N: usize>(heads: [&str; N]) -> Table {
    vec![heads.map(String::from).to_vec()]
}

fn number(value: f64) -> String {
    format!("{value:.3}")
}

/// Plots the pairs behind every ratio, one plot per engine.
fn pairs(found: &Comparison, figures: &mut Figures) -> io::Result<()> {
    for (engine, entrant) in found.entrants.iter().enumerate().skip(1) {
        let mut numbers = heads(["", "median", "low", "high", "rounds"]);
        let (mut plot_rows, mut all) = (Vec::new(), vec![1.0]);
        for row in &found.rows {
            let cell = row.cells.get(engine).and_then(Option::as_ref);
            let Some(against) = cell.and_then(|cell| cell.against.as_ref()) else { continue };
            let pairs = &against.pairs;
            let verdict = format::verdict_text(found, entrant, against.verdict);
            all.extend(pairs.ratios.iter().chain([&pairs.interval.low, &pairs.interval.high]));
            let rounds: Vec<String> = pairs.ratios.iter().map(|r| number(*r)).collect();
            let [median, low, high] =
                [pairs.median, pairs.interval.low, pairs.interval.high].map(number);
            numbers.push(vec![row.name.clone(), median, low, high, rounds.join(", ")]);
            plot_rows.push(PlotRow {
                engine,
                name: row.name.clone(),
                value: format!("{:.2}, {verdict}", pairs.median),
                dots: pairs.ratios.clone(),
                whisker: Some((pairs.interval.low, pairs.interval.high)),
                median: Some(pairs.median),
                ..PlotRow::default()
            });
        }
        if plot_rows.is_empty() {
            continue;
        }
        let title = format!("{} over {}, every pair", found.entrants[0].name, entrant.name);
        let text = "One circle per round; the thick line is the interval of the median, the vertical line the median. At 1 both \
                    are equal. For speeds more is better; for times, memory and energy less is better.";
        let x = Axis::log("ratio, logarithmic", all);
        figures.add(&title, text, &numbers, |description| {
            plots::row_plot(description, &x, Some(1.0), &plot_rows)
        })?;
    }
    Ok(())
}

/// Plots tokens per second, one plot per test.
fn speeds(found: &Comparison, figures: &mut Figures) -> io::Result<()> {
    for row in found.rows.iter().filter(|row| row.unit == Unit::TokensPerSecond) {
        let mut numbers = heads(["engine", "tok/s", "rounds"]);
        let (mut plot_rows, mut all) = (Vec::new(), Vec::new());
        for (engine, (entrant, cell)) in found.entrants.iter().zip(&row.cells).enumerate() {
            let Some(cell) = cell else { continue };
            let (summary, mut value) = (&cell.summary, format::value(row, cell));
            let rounds: Vec<String> = summary.samples.iter().map(|s| number(*s)).collect();
            numbers.push(vec![entrant.name.clone(), value.clone(), rounds.join(", ")]);
            if !entrant.may_win() {
                value.push_str(", different results");
            }
            let spread = |s: f64| ((summary.median - s).max(0.0), summary.median + s);
            all.extend(summary.samples.iter().chain([&summary.median]));
            all.extend(summary.spread.map(|s| spread(s).1));
            plot_rows.push(PlotRow {
                engine,
                name: entrant.name.clone(),
                value,
                bars: vec![(0.0, summary.median, engine, String::new())],
                dots: summary.samples.clone(),
                whisker: summary.spread.map(spread),
                median: Some(summary.median),
            });
        }
        let title = format!("Tokens per second, {}", row.name);
        let text =
            "The bar ends at the median; one circle per round; the thick line is the spread.";
        let x = Axis::linear("tok/s", all);
        figures.add(&title, text, &numbers, |description| {
            plots::row_plot(description, &x, None, &plot_rows)
        })?;
    }
    Ok(())
}

/// Collects a series per engine; engines without points are omitted.
fn each(found: &Comparison, points: impl Fn(usize) -> Vec<Point>) -> Vec<Series> {
    let all = found.entrants.iter().enumerate();
    all.map(|(engine, entrant)| Series {
        engine,
        name: entrant.name.clone(),
        points: points(engine),
    })
    .filter(|series| !series.points.is_empty())
    .collect()
}

/// Draws a line plot; `y` is the label of the vertical axis and whether it is logarithmic.
fn draw(
    figures: &mut Figures,
    title: &str,
    text: &str,
    along: &str,
    y: (&str, bool),
    series: &[Series],
) -> io::Result<()> {
    let points = || series.iter().flat_map(|one| &one.points);
    let x = Axis::linear(along, points().map(|p| p.x));
    let values = points().map(|p| p.y + p.spread.unwrap_or(0.0));
    let up = if y.1 { Axis::log(y.0, values) } else { Axis::linear(y.0, values) };
    let mut numbers = heads(["engine", along, y.0]);
    for one in series {
        for point in &one.points {
            let spread = point.spread.map_or(String::new(), |s| format!(" ± {}", number(s)));
            numbers.push(vec![one.name.clone(), point.x.to_string(), number(point.y) + &spread]);
        }
    }
    figures.add(title, text, &numbers, |description| plots::lines(description, &x, &up, series))
}

/// Plots decode against depth and against batch, and prefill against length, for tests that differ
/// in that alone.
fn curves(found: &Comparison, figures: &mut Figures) -> io::Result<()> {
    type Way = (Kind, &'static str, &'static str, fn(&Test) -> u32, fn(&Test) -> String);
    let ways: [Way; 3] = [
        (
            Kind::Prefill,
            "Prefill against length",
            "tokens of the prompt",
            |t| t.tokens,
            |t| format!("depth {}", t.depth),
        ),
        (
            Kind::Decode,
            "Decode against depth",
            "tokens in the context",
            |t| t.depth,
            |t| format!("{} tokens, batch {}", t.tokens, t.batch),
        ),
        (
            Kind::Decode,
            "Decode against batch",
            "sequences at once",
            |t| t.batch,
            |t| format!("{} tokens, depth {}", t.tokens, t.depth),
        ),
    ];
    for (kind, title, along, x, rest) in ways {
        let mut alike: BTreeMap<String, Vec<&Test>> = BTreeMap::new();
        for test in found.work.tests.iter().filter(|test| test.kind == kind) {
            alike.entry(rest(test)).or_default().push(test);
        }
        for (rest, mut tests) in alike {
            tests.sort_by_key(|test| x(test));
            let series = each(found, |engine| {
                let point = |test: &&Test| {
                    let row = found.rows.iter().find(|row| row.name == test.to_string())?;
                    let summary = &row.cells.get(engine)?.as_ref()?.summary;
                    let (x, y) = (f64::from(x(test)), summary.median);
                    Some(Point { x, y, spread: summary.spread })
                };
                tests.iter().filter_map(point).collect()
            });
            if tests.len() > 1 && !series.is_empty() {
                let title = format!("{title}, {rest}");
                let text = "Median of the rounds with its spread.";
                draw(figures, &title, text, along, ("tok/s", false), &series)?;
            }
        }
    }
    Ok(())
}

/// Plots the distribution of the times between tokens, from the fastest to the slowest.
fn between(found: &Comparison, figures: &mut Figures) -> io::Result<()> {
    let mut most: f64 = 0.0;
    let mut numbers = heads(["engine", "p50, ms", "p90", "p99", "p99.9", "tokens"]);
    let series = each(found, |engine| {
        let mut times = found.entrants[engine].gaps();
        times.sort_by(f64::total_cmp);
        let last = times.len().saturating_sub(1);
        // Evenly spaced along the axis, so that the slow tokens are not thinned out.
        let ends = (times.len() as f64 + 1.0).log10();
        let index = |i| {
            ((1.0 - 10f64.powf(-ends * f64::from(i) / f64::from(POINTS))) * (last + 1) as f64)
                as usize
        };
        let mut places: Vec<usize> = (0..=POINTS).map(|i| index(i).min(last)).collect();
        places.dedup();
        let share = |i: usize| (i as f64 + 0.5) / (last + 1) as f64;
        let point = |i: usize| Some(Point { x: share(i), y: times.get(i)? * 1e3, spread: None });
        places.into_iter().filter_map(point).collect()
    });
    for one in &series {
        let entrant = &found.entrants[one.engine];
        let Some(p) = entrant.between() else { continue };
        let ms = |s: Option<f64>| s.map_or("-".into(), |s| number(s * 1e3));
        let (p50, tokens) = (ms(Some(p.p50)), entrant.gaps().len().to_string());
        numbers.push(vec![one.name.clone(), p50, ms(p.p90), ms(p.p99), ms(p.p99_9), tokens]);
        most = one.points.last().map_or(most, |point| most.max(point.x));
    }
    if series.is_empty() {
        return Ok(());
    }
    let x = Axis::percentiles("per cent of tokens that are faster", most);
    let y = Axis::log("ms", series.iter().flat_map(|s| &s.points).map(|p| p.y));
    let text = "Time between tokens, for all answers but the first of each start. The axis is stretched towards the slowest.";
    figures.add("Between tokens", text, &numbers, |description| {
        plots::lines(description, &x, &y, &series)
    })
}

/// Plots the warm-up: tokens of the first answer, and first tokens of the first prompts.
fn warm_up(found: &Comparison, figures: &mut Figures) -> io::Result<()> {
    let ordered = |times: &[f64]| -> Vec<Point> {
        let point = |(i, s): (usize, &f64)| Point { x: i as f64 + 1.0, y: s * 1e3, spread: None };
        times.iter().enumerate().map(point).collect()
    };
    let first = |engine: usize| found.entrants[engine].rounds.first();
    let answers = each(found, |engine| {
        ordered(first(engine).and_then(|round| round.between.first()).map_or(&[], Vec::as_slice))
    });
    let prompts =
        each(found, |engine| ordered(first(engine).map_or(&[], |round| &round.first_token)));
    let text = "Times between the tokens of the first answer after the first start, in order.";
    if !answers.is_empty() {
        draw(figures, "Warm-up: the first answer", text, "token", ("ms", true), &answers)?;
    }
    let text = "Times to first token of the first prompts after the first start, in order.";
    if !prompts.is_empty() {
        draw(figures, "Warm-up: first tokens", text, "prompt", ("ms", true), &prompts)?;
    }
    Ok(())
}

/// Plots the roofline: operations per byte and speed of every kind of decode step, under the
/// bandwidth of the same run.
fn roofline(found: &Comparison, figures: &mut Figures) -> io::Result<()> {
    let Some(kernels) = &found.kernels else { return Ok(()) };
    let mut numbers =
        heads(["step", "op", "times", "bytes", "operations", "ms", "Gop/s", "% of the roof"]);
    let mut steps: Vec<_> = kernels.steps.iter().filter(|step| step.seconds > 0.0).collect();
    steps.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let mut all = Vec::new();
    for step in steps {
        let [bytes, operations] = [step.bytes, step.operations].map(|n| n as f64);
        let rate = operations / step.seconds / 1e9;
        let roof = kernels.bandwidth * step.seconds;
        numbers.push(vec![
            step.step.clone(),
            step.op.clone(),
            step.count.to_string(),
            step.bytes.to_string(),
            step.operations.to_string(),
            number(step.seconds * 1e3),
            number(rate),
            if roof > 0.0 { format!("{:.0}", 100.0 * bytes / roof) } else { "not reported".into() },
        ]);
        if bytes > 0.0 && operations > 0.0 {
            let points = vec![Point { x: operations / bytes, y: rate, spread: None }];
            all.push(Series { engine: all.len(), name: step.step.clone(), points });
        }
    }
    if all.is_empty() {
        return Ok(());
    }
    let points = || all.iter().flat_map(|one| &one.points);
    let x = Axis::log("operations per byte of weights and cache", points().map(|p| p.x));
    if kernels.bandwidth > 0.0 {
        let ends = |x| Point { x, y: x * kernels.bandwidth / 1e9, spread: None };
        let (low, high) = x.ends();
        let engine = all.len();
        all.push(Series { engine, name: "bandwidth".into(), points: vec![ends(low), ends(high)] });
    }
    let y = Axis::log("Gop/s", all.iter().flat_map(|one| &one.points).map(|p| p.y));
    let text = "Decode steps of the first engine, summed over all layers, under the bandwidth that was measured \
                before and after them. Steps that read neither weights nor cache appear only in the table. A step whose data stays in \
                the processor's cache may exceed the roof.";
    figures.add("Roofline", text, &numbers, |description| plots::lines(description, &x, &y, &all))
}

/// Plots the history of each test's speed, one plot per test and one line per number of threads.
fn history(found: &Comparison, figures: &mut Figures) -> io::Result<()> {
    let mut tests: Vec<&str> = found.history.iter().map(|series| series.test.as_str()).collect();
    tests.sort_unstable();
    tests.dedup();
    for test in tests {
        let mut numbers = heads(["record", "date", "commit", "tok/s", "change"]);
        let mut all = Vec::new();
        for series in found.history.iter().filter(|series| series.test == test) {
            let name = match series.threads {
                0 => series.device.clone(),
                threads => format!("{threads} threads"),
            };
            let mut points = Vec::new();
            for (i, point) in series.points.iter().enumerate() {
                let spread = point.spread.map_or(String::new(), |s| format!(" ± {}", number(s)));
                let change = match (point.invalid, point.change) {
                    (true, _) => "INVALID".into(),
                    (_, Some(change)) => format!("{:+.1} %", 100.0 * change),
                    _ => String::new(),
                };
                numbers.push(vec![
                    format!("{name}, {}", i + 1),
                    point.date.clone(),
                    point.commit.clone().unwrap_or_default(),
                    number(point.median) + &spread,
                    change,
                ]);
                if !point.invalid {
                    points.push(Point { x: i as f64 + 1.0, y: point.median, spread: point.spread });
                }
            }
            if !points.is_empty() {
                all.push(Series { engine: all.len(), name, points });
            }
        }
        if all.is_empty() {
            continue;
        }
        let points = || all.iter().flat_map(|one| &one.points);
        let x = Axis::linear("record", points().map(|p| p.x));
        let y = Axis::linear("tok/s", points().map(|p| p.y + p.spread.unwrap_or(0.0)));
        let text = "Records of this model on this device from orinctl bench --save, in order; the whisker is the \
                    record's spread. A change is labelled if it is larger than both spreads; INVALID records are omitted.";
        let title = format!("History, {test}");
        figures
            .add(&title, text, &numbers, |description| plots::lines(description, &x, &y, &all))?;
    }
    Ok(())
}

/// Plots the parts of each engine's memory.
fn memory(found: &Comparison, figures: &mut Figures) -> io::Result<()> {
    let mut numbers = heads(["engine", "part", "MiB"]);
    let (mut plot_rows, mut most) = (Vec::new(), vec![0.0]);
    for (engine, entrant) in found.entrants.iter().enumerate() {
        let Some(round) = entrant.rounds.last() else { continue };
        for (place, parts) in round.memory.places() {
            let name = format!("{}, {place}", entrant.name);
            let mut plot_row = PlotRow { engine, name, ..PlotRow::default() };
            let mut sum = 0.0;
            for (colour, (part, bytes)) in
                parts.into_iter().enumerate().filter(|(_, part)| part.1 > Some(0))
            {
                let mib = bytes.unwrap_or(0) as f64 / 1_048_576.0;
                plot_row.bars.push((sum, sum + mib, colour, part.to_owned()));
                numbers.push(vec![plot_row.name.clone(), part.to_owned(), format!("{mib:.1}")]);
                sum += mib;
            }
            if sum > 0.0 {
                plot_row.value = format!("{sum:.0} MiB");
                most.push(sum);
                plot_rows.push(plot_row);
            }
        }
    }
    if plot_rows.is_empty() {
        return Ok(());
    }
    let text = "In the last round, from left to right: weights, KV cache, activations, code, and the rest of the largest \
                resident set. Reserved memory that was never touched is not resident, so the parts may exceed that set.";
    let x = Axis::linear("MiB", most);
    figures.add("Memory", text, &numbers, |description| {
        plots::row_plot(description, &x, None, &plot_rows)
    })
}

#[cfg(test)]
mod tests;
