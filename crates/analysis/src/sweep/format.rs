//! A sweep as text: a table with a column for each axis that has more than one value, and CSV with
//! all axes.

use std::fmt::Write as _;

use super::rows::{COLLAPSED, Found, Row};
use crate::format::pipes;
use crate::statistics::CONFIDENCE;

/// A column: name, whether it is left-aligned, and its value for a row.
type Column = (&'static str, bool, fn(&Row) -> String);

/// Columns of the axes.
const AXES: [Column; 6] = [
    ("model", true, |row| row.point.setting.model.clone()),
    ("type", true, |row| row.point.setting.kind.clone().unwrap_or_default()),
    ("threads", false, threads),
    ("threads per row", false, |row| {
        row.point.setting.threads_per_row.map_or_else(String::new, |n| n.to_string())
    }),
    ("neighbours", false, |row| row.point.setting.neighbours.to_string()),
    ("quota", false, |row| format!("{} %", row.point.setting.quota)),
];

const RESULTS: [Column; 4] = [
    ("test", true, |row| row.name.clone()),
    ("tok/s", false, |row| format!("{:.2}", row.tokens_per_second.median)),
    ("interval", false, |row| {
        row.interval.map_or_else(String::new, |i| format!("{:.2} to {:.2}", i.low, i.high))
    }),
    ("rounds", false, |row| row.tokens_per_second.samples.len().to_string()),
];

const SHARES: [Column; 2] = [
    ("fair share", false, |row| percent(row.fair_share)),
    ("of fair share", false, |row| match row.of_fair_share {
        Some(share) if share < COLLAPSED => format!("{}, collapses", percent(Some(share))),
        share => percent(share),
    }),
];

fn threads(row: &Row) -> String {
    match (row.point.setting.threads, row.threads_used) {
        // A GPU has no threads.
        (_, 0) => String::new(),
        (Some(asked), used) if asked != used => format!("{asked} ({used} used)"),
        (_, used) => used.to_string(),
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(String::new, |share| format!("{:.0} %", 100.0 * share))
}

/// Formats the terminal table, with the facts that all rows share above it.
pub fn table(found: &Found<'_>) -> String {
    let mut text = String::new();
    if found.interrupted {
        text.push_str("Interrupted: run the same command again to continue.\n\n");
    }
    for fact in facts(found) {
        let _ = writeln!(text, "{fact}");
    }
    let _ = write!(text, "\n{}\n", aligned(found));
    for note in notes(found) {
        let _ = writeln!(text, "{note}");
    }
    text
}

/// Formats the sweep as Markdown.
pub fn markdown(found: &Found<'_>) -> String {
    let mut text = aligned(found);
    text.push('\n');
    for line in facts(found).into_iter().chain(notes(found)) {
        let _ = writeln!(text, "- {line}");
    }
    text
}

/// Formats a line per point with all axes.
pub fn csv(found: &Found<'_>) -> String {
    let mut text = String::from(
        "version,commit,device,model,type,threads_asked,threads,threads_per_row,neighbours,quota_percent,test,\
         rounds,median_tokens_per_second,low_tokens_per_second,high_tokens_per_second,confidence,fair_share,\
         of_fair_share\n",
    );
    let number = |x: Option<f64>| x.map_or_else(String::new, |x| x.to_string());
    for row in &found.rows {
        let setting = &row.point.setting;
        let fields = [
            found.sweep.version.clone(),
            found.sweep.commit.clone().unwrap_or_default(),
            found.device.clone(),
            setting.model.clone(),
            setting.kind.clone().unwrap_or_default(),
            setting.threads.map_or_else(String::new, |n| n.to_string()),
            row.threads_used.to_string(),
            setting.threads_per_row.map_or_else(String::new, |n| n.to_string()),
            setting.neighbours.to_string(),
            setting.quota.to_string(),
            row.name.clone(),
            row.tokens_per_second.samples.len().to_string(),
            row.tokens_per_second.median.to_string(),
            number(row.interval.map(|i| i.low)),
            number(row.interval.map(|i| i.high)),
            number(row.interval.map(|i| i.confidence)),
            number(row.fair_share),
            number(row.of_fair_share),
        ];
        let quoted = fields.map(|field| crate::format::quoted(&field));
        let _ = writeln!(text, "{}", quoted.join(","));
    }
    text
}

/// Returns whether the sweep measures shares of the machine.
fn shared(found: &Found<'_>) -> bool {
    found.sweep.neighbours != [0] || found.sweep.quotas != [100]
}

fn aligned(found: &Found<'_>) -> String {
    let varies = |column: &&Column| {
        let mut values = found.rows.iter().map(column.2);
        let first = values.next();
        values.any(|value| Some(value) != first)
    };
    let mut columns: Vec<&Column> = AXES.iter().filter(varies).chain(&RESULTS).collect();
    if shared(found) {
        columns.extend(&SHARES);
    }
    let mut rows: Vec<Vec<String>> = vec![columns.iter().map(|c| c.0.to_owned()).collect()];
    rows.extend(found.rows.iter().map(|row| columns.iter().map(|column| column.2(row)).collect()));
    pipes(&rows, |column| columns[column].1)
}

/// Facts that all rows share.
fn facts(found: &Found<'_>) -> Vec<String> {
    let sweep = found.sweep;
    let mut facts = vec![format!(
        "{} of {} points measured, in {} rounds; {}",
        found.rows.len(),
        sweep.points().len(),
        found.rounds,
        if found.device.is_empty() { "no device yet" } else { &found.device }
    )];
    // Neighbours and quota are the last axes; without them their values are trivial.
    let axes = if shared(found) { &AXES[..] } else { &AXES[..AXES.len() - 2] };
    for column in axes {
        let mut values: Vec<String> = found.rows.iter().map(column.2).collect();
        values.dedup();
        if let [value] = &values[..]
            && !value.is_empty()
        {
            facts.push(format!("{}: {value}", column.0));
        }
    }
    facts.push(format!("file: {}", found.file));
    facts
}

fn notes(found: &Found<'_>) -> Vec<String> {
    let mut notes = vec![format!(
        "tok/s: median of the rounds; interval: of the median, by order statistics, {:.0} % from 6 rounds on, with \
         fewer the smallest and the largest",
        100.0 * CONFIDENCE
    )];
    if shared(found) {
        notes.push(
            "of fair share: tok/s relative to the fair share of the cores, computed from the same test alone with the \
             most threads; empty if that was not measured"
                .into(),
        );
    }
    if let Some(why) = found.invalid.first() {
        notes.push(format!(
            "{} measurements are INVALID and excluded ({why}); the same command measures them again",
            found.invalid.len()
        ));
    }
    notes
}
