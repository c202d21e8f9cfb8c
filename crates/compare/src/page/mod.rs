//! A comparison as one HTML page that needs nothing else: no network, no scripts. The same data gives the same page.
//!
//! Every text in it passes through [`escape`] or the SVG backend's own escaping, and the page forbids scripts to
//! the browser: names of models and what peers say of themselves may be anybody's.

mod plots;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;

use self::plots::{Axis, Lane, Point, Series, Told};
use super::format::{self, Table};
use super::report::{Comparison, Unit};
use bench::{Kind, Test};

const STYLE: &str = include_str!("style.css");
/// Most points of a distribution's line.
const POINTS: u32 = 160;

/// The whole page.
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
        line(" class=\"bad\"", "Interrupted: what was measured before.");
    }
    format::head(found).lines().for_each(|text| line("", text));
    section(&mut page, "Who takes part", &table("Who takes part", &format::entrants(found)));
    for entrant in &found.entrants {
        if let Some(why) = &entrant.lost {
            let _ = writeln!(page, "<p>{}: {}</p>", escape(&entrant.name), escape(why));
        }
    }
    let differences = format::differences(found);
    let told = match &differences[..] {
        [] => format!("<p>{}</p>", format::SAME.trim_end()),
        rows => table("What differs", rows),
    };
    section(&mut page, "What differs", &told);
    section(&mut page, "Measured", &table("Measured", &format::measured(found)));
    let ratios = format::ratios(found);
    if let (Some(own), false) = (found.entrants.first(), ratios.is_empty()) {
        let title = format!("{} against the others", own.name);
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

/// A text as HTML: in an element or in an attribute's quotes.
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

/// A table in a box of its own that scrolls; the first line has the heads, the first cells name the lines.
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
        plot: impl FnOnce(&Told<'_>) -> io::Result<String>,
    ) -> io::Result<()> {
        self.count += 1;
        let id = format!("plot{}", self.count);
        let svg = plot(&Told { id: &id, title, text })?;
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

/// The pairs behind every ratio, a plot an engine.
fn pairs(found: &Comparison, figures: &mut Figures) -> io::Result<()> {
    for (engine, entrant) in found.entrants.iter().enumerate().skip(1) {
        let mut numbers = heads(["", "median", "low", "high", "rounds"]);
        let (mut lanes, mut all) = (Vec::new(), vec![1.0]);
        for row in &found.rows {
            let cell = row.cells.get(engine).and_then(Option::as_ref);
            let Some(against) = cell.and_then(|cell| cell.against.as_ref()) else { continue };
            let pairs = &against.pairs;
            let said = format::said(found, entrant, against.verdict);
            all.extend(pairs.ratios.iter().chain([&pairs.interval.low, &pairs.interval.high]));
            let rounds: Vec<String> = pairs.ratios.iter().map(|r| number(*r)).collect();
            let [median, low, high] =
                [pairs.median, pairs.interval.low, pairs.interval.high].map(number);
            numbers.push(vec![row.name.clone(), median, low, high, rounds.join(", ")]);
            lanes.push(Lane {
                engine,
                name: row.name.clone(),
                value: format!("{:.2}, {said}", pairs.median),
                dots: pairs.ratios.clone(),
                whisker: Some((pairs.interval.low, pairs.interval.high)),
                median: Some(pairs.median),
                ..Lane::default()
            });
        }
        if lanes.is_empty() {
            continue;
        }
        let title = format!("{} over {}, every pair", found.entrants[0].name, entrant.name);
        let text = "A circle a round; the thick line is the median's interval, the upright one the median. At 1 both \
                    are the same. Of speeds more is better, of times, memory and energy less.";
        let x = Axis::log("ratio, logarithmic", all);
        figures.add(&title, text, &numbers, |told| plots::lanes(told, &x, Some(1.0), &lanes))?;
    }
    Ok(())
}

/// Tokens a second, a plot a test.
fn speeds(found: &Comparison, figures: &mut Figures) -> io::Result<()> {
    for row in found.rows.iter().filter(|row| row.unit == Unit::TokensPerSecond) {
        let mut numbers = heads(["engine", "tok/s", "rounds"]);
        let (mut lanes, mut all) = (Vec::new(), Vec::new());
        for (engine, (entrant, cell)) in found.entrants.iter().zip(&row.cells).enumerate() {
            let Some(cell) = cell else { continue };
            let (summary, mut value) = (&cell.summary, format::value(row, cell));
            let rounds: Vec<String> = summary.samples.iter().map(|s| number(*s)).collect();
            numbers.push(vec![entrant.name.clone(), value.clone(), rounds.join(", ")]);
            if !entrant.may_win() {
                value.push_str(", other results");
            }
            let spread = |s: f64| ((summary.median - s).max(0.0), summary.median + s);
            all.extend(summary.samples.iter().chain([&summary.median]));
            all.extend(summary.spread.map(|s| spread(s).1));
            lanes.push(Lane {
                engine,
                name: entrant.name.clone(),
                value,
                bars: vec![(0.0, summary.median, engine, String::new())],
                dots: summary.samples.clone(),
                whisker: summary.spread.map(spread),
                median: Some(summary.median),
            });
        }
        let title = format!("Tokens a second, {}", row.name);
        let text = "The bar ends at the median; a circle a round, the thick line is the spread.";
        let x = Axis::linear("tok/s", all);
        figures.add(&title, text, &numbers, |told| plots::lanes(told, &x, None, &lanes))?;
    }
    Ok(())
}

/// What every engine has of something; those that have nothing are left out.
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

/// A plot of lines; the upward axis by its label, and whether it is logarithmic.
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
    figures.add(title, text, &numbers, |told| plots::lines(told, &x, &up, series))
}

/// Decode against depth and against sequences at once, prefill against length: where two tests differ in that alone.
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
                let text = "The median of the rounds and its spread.";
                draw(figures, &title, text, along, ("tok/s", false), &series)?;
            }
        }
    }
    Ok(())
}

/// How long tokens take after each other, from the fastest to the slowest.
fn between(found: &Comparison, figures: &mut Figures) -> io::Result<()> {
    let mut most: f64 = 0.0;
    let mut numbers = heads(["engine", "p50, ms", "p90", "p99", "p99.9", "tokens"]);
    let series = each(found, |engine| {
        let mut times = found.entrants[engine].gaps();
        times.sort_by(f64::total_cmp);
        let last = times.len().saturating_sub(1);
        // Evenly along the axis, so that the slow ones are not thinned out.
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
    let x = Axis::percentiles("per cent of the tokens are faster", most);
    let y = Axis::log("ms", series.iter().flat_map(|s| &s.points).map(|p| p.y));
    let text = "Time between two tokens, of all answers but the first of each start. The slowest are drawn out.";
    figures.add("Between tokens", text, &numbers, |told| plots::lines(told, &x, &y, &series))
}

/// What is slower at first: tokens of the first answer, and first tokens of the first prompts.
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
    let text = "Times between the tokens of the very first answer after the first start, in order.";
    if !answers.is_empty() {
        draw(figures, "Warm-up: the first answer", text, "token", ("ms", true), &answers)?;
    }
    let text = "Times to the first token of the first prompts after the first start, in order.";
    if !prompts.is_empty() {
        draw(figures, "Warm-up: first tokens", text, "prompt", ("ms", true), &prompts)?;
    }
    Ok(())
}

/// Every kind of step of a decoded token: what it computes a byte, and how fast, under the bandwidth of the same run.
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
            if roof > 0.0 { format!("{:.0}", 100.0 * bytes / roof) } else { "not told".into() },
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
    let x = Axis::log("operations a byte of weights and cache", points().map(|p| p.x));
    if kernels.bandwidth > 0.0 {
        let ends = |x| Point { x, y: x * kernels.bandwidth / 1e9, spread: None };
        let (low, high) = x.ends();
        let engine = all.len();
        all.push(Series { engine, name: "bandwidth".into(), points: vec![ends(low), ends(high)] });
    }
    let y = Axis::log("Gop/s", all.iter().flat_map(|one| &one.points).map(|p| p.y));
    let text = "The first engine's steps of a decoded token, of all layers together, under the bandwidth that was measured \
                before and after them. Steps that read neither weights nor cache are in the numbers alone. What a step keeps in \
                a processor's cache may be above the roof.";
    figures.add("Roofline", text, &numbers, |told| plots::lines(told, &x, &y, &all))
}

/// What became of each test's speed, record by record; a plot a test, a line a number of threads.
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
        let text = "Records of this model on this device that orinctl bench --save made, in their order; the whisker is a \
                    record's spread. A change is named where it is larger than both spreads; an INVALID record is not drawn.";
        let title = format!("History, {test}");
        figures.add(&title, text, &numbers, |told| plots::lines(told, &x, &y, &all))?;
    }
    Ok(())
}

/// What each engine holds in memory, part by part.
fn memory(found: &Comparison, figures: &mut Figures) -> io::Result<()> {
    let mut numbers = heads(["engine", "part", "MiB"]);
    let (mut lanes, mut most) = (Vec::new(), vec![0.0]);
    for (engine, entrant) in found.entrants.iter().enumerate() {
        let Some(round) = entrant.rounds.last() else { continue };
        for (place, parts) in round.memory.places() {
            let name = format!("{}, {place}", entrant.name);
            let mut lane = Lane { engine, name, ..Lane::default() };
            let mut sum = 0.0;
            for (colour, (part, bytes)) in
                parts.into_iter().enumerate().filter(|(_, part)| part.1 > Some(0))
            {
                let mib = bytes.unwrap_or(0) as f64 / 1_048_576.0;
                lane.bars.push((sum, sum + mib, colour, part.to_owned()));
                numbers.push(vec![lane.name.clone(), part.to_owned(), format!("{mib:.1}")]);
                sum += mib;
            }
            if sum > 0.0 {
                lane.value = format!("{sum:.0} MiB");
                most.push(sum);
                lanes.push(lane);
            }
        }
    }
    if lanes.is_empty() {
        return Ok(());
    }
    let text = "In the last round, from the left: weights, KV cache, activations, code, and the rest of the largest \
                resident set. Memory that was reserved and never touched is not resident: parts may be more than that set.";
    let x = Axis::linear("MiB", most);
    figures.add("Memory", text, &numbers, |told| plots::lanes(told, &x, None, &lanes))
}

#[cfg(test)]
mod tests;
