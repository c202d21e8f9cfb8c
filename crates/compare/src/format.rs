//! A comparison as text: engines and agreement, differences, numbers, ratios, verdicts.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::report::{Against, Cell, Comparison, Entrant, Row, Unit, Verdict};
use analysis::statistics::{DEFINITION, RULE};

/// Rows of cells; the first row has the column names.
pub(super) type Table = Vec<Vec<String>>;

/// Printed if the engines do not differ.
pub(super) const SAME: &str = "No reported differences.\n";

/// Formats a comparison for the terminal.
pub fn table(found: &Comparison) -> String {
    text(found, "")
}

/// Formats a comparison as Markdown.
pub fn markdown(found: &Comparison) -> String {
    text(found, "#### ")
}

fn text(found: &Comparison, heading: &str) -> String {
    let mut text = String::new();
    for reason in &found.invalid {
        let _ = writeln!(text, "INVALID: {reason}\n");
    }
    if found.interrupted {
        let _ = writeln!(text, "Interrupted: results measured until then.\n");
    }
    text.push_str(&head(found));
    let _ = write!(text, "\n{heading}Engines\n\n{}", align(&entrants(found), 3));
    for entrant in &found.entrants {
        if let Some(why) = &entrant.lost {
            let _ = writeln!(text, "\n{}: {why}", entrant.name);
        }
    }
    let differences = differences(found);
    let table = if differences.is_empty() { SAME.into() } else { align(&differences, 5) };
    let _ = write!(text, "\n{heading}Differences\n\n{table}");
    let _ = write!(text, "\n{heading}Measured\n\n{}", align(&measured(found), 1));
    let ratios = ratios(found);
    if !ratios.is_empty() {
        let own = &found.entrants[0].name;
        let _ = write!(text, "\n{heading}{own} compared with the others\n\n{}", align(&ratios, 2));
    }
    let _ = write!(text, "\n{}", notes(found));
    text
}

/// Workload and machine.
pub(super) fn head(found: &Comparison) -> String {
    let (work, model) = (&found.work, model(found));
    let hash: String = work.sha256.chars().take(12).collect();
    let mut head = format!(
        "{model}: {}, SHA-256 {hash}, on {}, threads {}, rounds {}, seed {}\n",
        work.file_type, work.device, work.threads, found.rounds, work.seed
    );
    let machine = &found.machine;
    let facts = [
        machine.processor.clone(),
        Some(format!("{} cores", machine.cores)),
        machine.kernel.as_ref().map(|kernel| format!("Linux {kernel}")),
        machine.governor.as_ref().map(|governor| format!("governor {governor}")),
        Some(found.date.clone()),
    ];
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    let _ = writeln!(head, "{}", facts.join(", "));
    if let Some(conditions) = found.conditions.summary() {
        let _ = writeln!(head, "{conditions}");
    }
    head
}

/// File name of the model.
pub(super) fn model(found: &Comparison) -> Cow<'_, str> {
    let path = &found.work.model;
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy()
}

/// Table of the engines and their agreement.
pub(super) fn entrants(found: &Comparison) -> Table {
    let mut rows = vec![
        ["engine", "version", "computes the model", "KL mean, max", "top-1", "rounds"]
            .map(String::from)
            .to_vec(),
    ];
    for entrant in &found.entrants {
        let agreement = entrant.agreement.as_ref();
        let computes = match agreement {
            None if found.judged => "not reported".into(),
            None => "not checked".into(),
            Some(a) if a.agrees => "yes".into(),
            Some(a) => match a.differs {
                Some((prompt, step, lead)) => {
                    format!("NO: different token, prompt {prompt}, step {step}, lead {lead:.2}")
                }
                None => "NO: different distribution".into(),
            },
        };
        let divergence =
            |a: &super::Agreement| format!("{:.4}, {:.4}", a.mean_divergence, a.max_divergence);
        rows.push(vec![
            entrant.name.clone(),
            entrant.facts.version.clone(),
            computes,
            agreement.map(divergence).unwrap_or_default(),
            agreement.map(|a| format!("{:.0} %", 100.0 * a.top1)).unwrap_or_default(),
            entrant.rounds.len().to_string(),
        ]);
    }
    rows
}

/// Table of the differences; empty if there are none.
pub(super) fn differences(found: &Comparison) -> Table {
    if found.differences.is_empty() {
        return Vec::new();
    }
    let head = ["engine", "what", "is", "compared with", "changes the verdict"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for d in &found.differences {
        let decides = if d.decides { "yes" } else { "no" };
        rows.push(vec![
            d.peer.clone(),
            d.name.clone(),
            d.found.clone(),
            d.wanted.clone(),
            decides.into(),
        ]);
    }
    rows
}

/// Table with the median and spread of every number.
pub(super) fn measured(found: &Comparison) -> Table {
    let mut head = vec![String::new()];
    head.extend(found.entrants.iter().map(|e| e.name.clone()));
    let mut rows = vec![head];
    for row in &found.rows {
        let cells = || found.entrants.iter().zip(&row.cells);
        let mut line = vec![name(row)];
        line.extend(
            cells()
                .map(|(e, cell)| cell.as_ref().map_or_else(|| placeholder(e), |c| value(row, c))),
        );
        rows.push(line);
        if row.unit == Unit::TokensPerSecond {
            let of = |c: &Cell| format!("{:.1}, {:.1}", c.summary.mean, c.summary.max);
            let mut line = vec![format!("{}: mean, peak, tok/s", row.name)];
            line.extend(cells().map(|(e, cell)| cell.as_ref().map_or_else(|| placeholder(e), of)));
            rows.push(line);
        }
    }
    let slow = |e: &Entrant| {
        let Some(p) = e.between() else { return placeholder(e) };
        let ms = |s: Option<f64>| s.map_or("-".into(), |s| format!("{:.1}", s * 1e3));
        format!("{}, {}, {}, {}", ms(Some(p.p50)), ms(p.p90), ms(p.p99), ms(p.p99_9))
    };
    let mut line = vec!["between tokens p50, p90, p99, p99.9, ms".to_owned()];
    line.extend(found.entrants.iter().map(slow));
    rows.push(line);
    let last = |e: &Entrant| e.rounds.last().map(|round| round.memory.places());
    for place in ["host", "GPU"] {
        let parts = |e: &Entrant| {
            let places = last(e)?;
            let (_, parts) = places.iter().find(|(name, _)| *name == place)?;
            let mib = |b: Option<u64>| b.map_or("not reported".into(), |b| format!("{}", b >> 20));
            Some(parts.map(|(_, bytes)| mib(bytes)).join(", "))
        };
        let all: Vec<Option<String>> = found.entrants.iter().map(parts).collect();
        if all.iter().any(Option::is_some) {
            let mut line =
                vec![format!("memory, {place}: weights, KV, activations, code, rest, MiB")];
            line.extend(all.into_iter().map(|parts| parts.unwrap_or_else(|| "-".into())));
            rows.push(line);
        }
    }
    rows
}

/// Placeholder for a number that an engine does not report, or `-` if the engine did not run.
fn placeholder(entrant: &Entrant) -> String {
    if entrant.rounds.is_empty() { "-" } else { "not reported" }.into()
}

/// Name and unit of a row.
pub(super) fn name(row: &Row) -> String {
    let unit = match row.unit {
        Unit::TokensPerSecond => "tok/s",
        Unit::Seconds => "ms",
        Unit::Bytes => "MiB",
        Unit::JoulesPerToken => "J/token",
        Unit::PerGigabyte => "tok/s per GB",
        Unit::Times => "times",
        Unit::Share => "%",
    };
    format!("{}, {unit}", row.name)
}

/// Median and spread in the row's unit.
pub(super) fn value(row: &Row, cell: &Cell) -> String {
    let scale = match row.unit {
        Unit::TokensPerSecond | Unit::JoulesPerToken | Unit::PerGigabyte | Unit::Times => 1.0,
        Unit::Seconds => 1e3,
        Unit::Bytes => 1.0 / 1_048_576.0,
        Unit::Share => 100.0,
    };
    let median = cell.summary.median * scale;
    let digits = if median >= 100.0 {
        0
    } else if median >= 10.0 {
        1
    } else {
        2
    };
    let spread = match cell.summary.spread {
        Some(spread) => format!(" ± {:.digits$}", spread * scale),
        None => " ± ?".into(),
    };
    let consistent = if cell.summary.consistent() { "" } else { " (!)" };
    format!("{median:.digits$}{spread}{consistent}")
}

/// Table of ratios and verdicts; empty if there are none.
pub(super) fn ratios(found: &Comparison) -> Table {
    let head = [
        "", "against", "ratio", "interval", "resolved", "verdict", "Welch p", "Hedges g",
        "drift p", "outliers",
    ];
    let mut rows = vec![head.map(String::from).to_vec()];
    for row in &found.rows {
        for (entrant, cell) in found.entrants.iter().zip(&row.cells) {
            let Some(Against { pairs, verdict }) = cell.as_ref().and_then(|c| c.against.as_ref())
            else {
                continue;
            };
            let interval = pairs.interval;
            let number =
                |x: Option<f64>, digits: usize| x.map_or("-".into(), |x| format!("{x:.digits$}"));
            rows.push(vec![
                row.name.clone(),
                entrant.name.clone(),
                format!("{:.2}", pairs.median),
                format!(
                    "[{:.2}, {:.2}] {:.0} %",
                    interval.low,
                    interval.high,
                    100.0 * interval.confidence
                ),
                if pairs.resolved { "yes" } else { "no" }.into(),
                verdict_text(found, entrant, *verdict),
                number(pairs.welch.map(|w| w.p), 4),
                number(pairs.effect, 1),
                number(pairs.drift.map(|d| d.p), 2),
                pairs.outliers.len().to_string(),
            ]);
        }
    }
    if rows.len() == 1 { Vec::new() } else { rows }
}

/// Verdict in words, with the differences that were allowed for it.
pub(super) fn verdict_text(found: &Comparison, entrant: &Entrant, verdict: Verdict) -> String {
    let allowed: Vec<&str> = found
        .differences
        .iter()
        .filter(|d| d.decides && (d.peer == entrant.name || d.peer == found.entrants[0].name))
        .map(|d| d.name.as_str())
        .collect();
    let mut text = match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::CannotTell => "cannot tell",
        Verdict::Disagrees => "none: different results",
        Verdict::Invalid => "none: INVALID",
    }
    .to_owned();
    if !allowed.is_empty() && matches!(verdict, Verdict::Better | Verdict::Worse) {
        let _ = write!(text, ", differs in {}", allowed.join(", "));
    }
    text
}

/// Notes that explain the numbers.
pub(super) fn notes(found: &Comparison) -> String {
    let mut notes = format!(
        "Values: {DEFINITION}; (!): the coefficient of variation is above 10 %.\n\
         Ratios: median of the first engine's value over the other's in the same round. {RULE}.\n"
    );
    if found.entrants.iter().any(|e| !e.may_win()) {
        notes.push_str("An engine that does not compute the model cannot win.\n");
    }
    notes
}

/// Formats one line per row and engine, with every sample.
pub fn csv(found: &Comparison) -> String {
    let mut text =
        String::from("row,unit,engine,version,agrees,round,value,ratio_to_first,verdict\n");
    for row in &found.rows {
        for (entrant, cell) in found.entrants.iter().zip(&row.cells) {
            let Some(cell) = cell else { continue };
            for (round, value) in cell.summary.samples.iter().enumerate() {
                let against = cell.against.as_ref();
                let ratio = against.and_then(|a| a.pairs.ratios.get(round));
                let _ = writeln!(
                    text,
                    "{},{},{},\"{}\",{},{},{value},{},{}",
                    row.name,
                    word(&row.unit),
                    entrant.name,
                    entrant.facts.version.replace('"', "\"\""),
                    entrant.may_win(),
                    round + 1,
                    ratio.map_or(String::new(), ToString::to_string),
                    against.map_or(String::new(), |a| word(&a.verdict)),
                );
            }
        }
    }
    text
}

/// JSON name of an enum value.
fn word(value: &impl serde::Serialize) -> String {
    let json = serde_json::to_value(value).ok();
    json.and_then(|json| json.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Formats an aligned Markdown table; the first `left` columns are left-aligned.
fn align(rows: &[Vec<String>], left: usize) -> String {
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> =
        (0..rows.first().map_or(0, Vec::len)).map(|c| width(c).max(2)).collect();
    let mut text = String::new();
    for (i, row) in rows.iter().enumerate() {
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let _ = if column < left {
                write!(text, "| {cell:<width$} ")
            } else {
                write!(text, "| {cell:>width$} ")
            };
        }
        text.push_str("|\n");
        if i == 0 {
            for (column, &width) in widths.iter().enumerate() {
                let (dashes, end) = ("-".repeat(width), if column < left { '-' } else { ':' });
                let _ = write!(text, "|-{dashes}{end}");
            }
            text.push_str("|\n");
        }
    }
    text
}
