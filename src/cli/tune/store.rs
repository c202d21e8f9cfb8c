//! `orinctl tune show`, `export`, `import`, `diff`: what lies in the store.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::cli::args::{TuneDiff, TuneExport, TuneImport, TunePlace, TuneShow};
use crate::cli::error::Error;
use crate::cli::terminal::Terminal;
use crate::cli::text;
use crate::config;
use device::Kernels;
use device::tune::store::{self, Change, File, Listed, Snapshot, State, StoreError, describe};
use device::tune::{Choice, Clock, Cost, DeviceKey, Record, Store, When};

/// The store in a directory, or where it lies when nothing is said.
fn open(place: &TunePlace) -> Result<Store, Error> {
    Ok(Store::new(match &place.tune_dir {
        Some(dir) => std::path::absolute(dir)?,
        None => config::client_tune_dir(),
    }))
}

/// One device's file, as it is shown.
#[derive(Serialize)]
struct Shown {
    file: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<DeviceKey>,
    /// Whether this machine has that device.
    here: bool,
    /// Why the whole file is not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    unusable: Option<String>,
    entries: Vec<Entry>,
    /// Entries that cannot be read.
    ignored: Vec<Ignored>,
}

/// A record, as it is shown.
#[derive(Serialize)]
struct Entry {
    family: String,
    dtype: &'static str,
    rows: u32,
    cols: u32,
    batch: u32,
    choice: Choice,
    #[serde(flatten)]
    cost: Price,
    heuristic: Baseline,
    gain: f64,
    when: String,
    clocks: String,
    candidates: String,
    source: String,
    rejected: Vec<device::tune::Rejected>,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// A cost under the name of what it is counted in.
#[derive(Serialize)]
#[serde(untagged)]
enum Price {
    Measured { time_ns: f64, interval_ns: [f64; 2], gb_per_s: f64 },
    Counted { counted: f64 },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Baseline {
    Measured { choice: Choice, time_ns: f64 },
    Counted { choice: Choice, counted: f64 },
}

#[derive(Serialize)]
struct Ignored {
    about: String,
    why: String,
}

pub(in crate::cli) fn show(args: &TuneShow) -> Result<(), Error> {
    let store = open(&args.place)?;
    let shown: Vec<(Option<File>, Shown)> = store.list()?.into_iter().map(examine).collect();
    if args.json {
        let all: Vec<&Shown> = shown.iter().map(|(_, shown)| shown).collect();
        text::print_json(&all)?;
        return Ok(());
    }
    let mut out = String::new();
    if shown.is_empty() {
        let _ = writeln!(out, "nothing is stored in {}", store.dir().display());
    }
    for (n, (file, shown)) in shown.iter().enumerate() {
        if n > 0 {
            out.push('\n');
        }
        out.push_str(&section(file.as_ref(), shown, args.all));
    }
    text::print(&out)?;
    Ok(())
}

/// Holds a file against the kernels of this machine.
fn examine(Listed { path, content }: Listed) -> (Option<File>, Shown) {
    let shown = |device, here, unusable| Shown {
        file: path.clone(),
        device,
        here,
        unusable,
        entries: Vec::new(),
        ignored: Vec::new(),
    };
    let file = match content {
        Ok(file) => file,
        Err(why) => return (None, shown(None, false, Some(why))),
    };
    let kernels = Kernels::find(&file.key);
    let mut shown = shown(Some(file.key.clone()), kernels.is_some(), None);
    let ignored =
        |unusable: &store::Unusable| Ignored { about: unusable.about(), why: unusable.why.clone() };
    shown.ignored = file.unusable.iter().map(ignored).collect();
    for record in &file.records {
        let (state, why) = match &kernels {
            None => ("not here", None),
            Some(kernels) => match store::state(record, record.cost.clock(), kernels) {
                State::Current => ("current", None),
                State::Stale(why) => ("stale", Some(why)),
                State::Ignored(why) => ("ignored", Some(why)),
            },
        };
        shown.entries.push(entry(record, state, why));
    }
    (Some(file), shown)
}

fn entry(record: &Record, state: &'static str, why: Option<String>) -> Entry {
    let heuristic = record.heuristic.clone();
    let (cost, heuristic) = match record.cost {
        Cost::Measured { ns, interval_ns, gb_per_s } => (
            Price::Measured { time_ns: ns, interval_ns, gb_per_s },
            Baseline::Measured { choice: heuristic.choice, time_ns: heuristic.cost },
        ),
        Cost::Counted(counted) => (
            Price::Counted { counted },
            Baseline::Counted { choice: heuristic.choice, counted: heuristic.cost },
        ),
    };
    Entry {
        family: record.case.family.clone(),
        dtype: record.case.dtype.name(),
        rows: record.case.rows,
        cols: record.case.cols,
        batch: record.case.batch,
        choice: record.choice.clone(),
        cost,
        heuristic,
        gain: record.gain(),
        when: record.when.to_string(),
        clocks: record.clocks.clone(),
        candidates: record.candidates.to_string(),
        source: record.source.clone(),
        rejected: record.rejected.clone(),
        state,
        why,
    }
}

/// One device's part of the table.
fn section(file: Option<&File>, shown: &Shown, all: bool) -> String {
    let mut out = format!("{}\n", shown.file.display());
    if let Some(why) = &shown.unusable {
        let _ = writeln!(out, "  not used: {why}");
    }
    let Some(file) = file else { return out };
    let here = if shown.here { "" } else { "; not a device of this machine" };
    let _ = writeln!(out, "  {}{here}", file.key);
    let unused = |entry: &Entry| entry.why.is_some();
    let mut rows = vec![
        ["  case", "choice", "cost", "GB/s", "heuristic", "gain", "when", "state"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for (record, entry) in file.records.iter().zip(&shown.entries) {
        if all || !unused(entry) {
            let why = entry.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            rows.push(row(record, &format!("{}{why}", entry.state)));
        }
    }
    if rows.len() > 1 {
        out.push('\n');
        out.push_str(&text::columns(&rows, &[2, 3, 4, 5]));
    }
    let left = shown.entries.iter().filter(|entry| unused(entry)).count() + shown.ignored.len();
    if all {
        for Ignored { about, why } in &shown.ignored {
            let _ = writeln!(out, "  ignored: {about}: {why}");
        }
    } else if left > 0 {
        let _ = writeln!(out, "\n  {left} not used; --all shows them, and why");
    }
    out
}

fn row(record: &Record, state: &str) -> Vec<String> {
    let speed = match record.cost {
        Cost::Measured { gb_per_s, .. } => format!("{gb_per_s:.1}"),
        Cost::Counted(_) => String::new(),
    };
    let clock = record.cost.clock();
    vec![
        format!("  {}", record.case),
        describe(&record.choice),
        price(record.cost.value(), clock),
        speed,
        price(record.heuristic.cost, clock),
        format!("{:.2}x", record.gain()),
        day(record.when),
        state.to_owned(),
    ]
}

/// A counted cost is shown as the number it is.
fn price(value: f64, clock: Clock) -> String {
    match clock {
        Clock::Measured => text::short_time(value),
        Clock::Counted => format!("{value:.0} counted"),
    }
}

fn day(when: When) -> String {
    when.to_string().chars().take(10).collect()
}

pub(in crate::cli) fn export(args: &TuneExport, terminal: &Terminal) -> Result<(), Error> {
    let file = select(&open(&args.place)?, args.device.as_deref())?;
    if args.file == Path::new("-") {
        text::print(&file.text())?;
        return Ok(());
    }
    fs::write(&args.file, file.text()).map_err(|source| StoreError::Io {
        what: "write",
        path: args.file.clone(),
        source,
    })?;
    let count = file.records.len() + file.unusable.len();
    terminal.say(&format!("{count} entries about {} written", file.key));
    Ok(())
}

/// The file of the device of that name, or the only one.
fn select(store: &Store, device: Option<&str>) -> Result<File, Error> {
    let listed = store.list()?;
    let name = |listed: &Listed| {
        listed.path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    };
    let names: Vec<String> = listed.iter().map(name).collect();
    let wanted = |listed: &&Listed| device.is_none_or(|device| name(listed) == device);
    let found: Vec<&Listed> = listed.iter().filter(wanted).collect();
    match (found.as_slice(), device) {
        ([one], _) => match &one.content {
            Ok(file) => Ok(file.clone()),
            Err(why) => Err(Error::Usage(format!("{}: {why}", one.path.display()))),
        },
        ([], _) if names.is_empty() => {
            Err(Error::Usage(format!("nothing is stored in {}", store.dir().display())))
        }
        ([], Some(device)) => Err(Error::Usage(format!(
            "nothing is stored about `{device}`; stored are {}",
            names.join(", ")
        ))),
        _ => Err(Error::Usage(format!("--device is needed; stored are {}", names.join(", ")))),
    }
}

pub(in crate::cli) fn import(args: &TuneImport) -> Result<(), Error> {
    let store = open(&args.place)?;
    let file = store::open(&args.file)?;
    let Some(kernels) = Kernels::find(&file.key) else {
        let device = file.key.to_string();
        return Err(Error::OtherDevice { file: args.file.clone(), device });
    };
    let path = store.path(&file.key);
    let imported = store.import(file, &kernels)?;
    let merged = &imported.merged;
    let mut out = format!(
        "{} new, {} changed, {} known: {}\n",
        merged.added,
        merged.changed,
        merged.known,
        path.display()
    );
    if let Some(aside) = &merged.set_aside {
        let _ = writeln!(out, "what was there could not be used and is now {}", aside.display());
    }
    for (record, why) in &imported.stale {
        let _ = writeln!(out, "stale, not taken: {}: {why}", record.case);
    }
    for (about, why) in &imported.ignored {
        let _ = writeln!(out, "ignored, not taken: {about}: {why}");
    }
    text::print(&out)?;
    Ok(())
}

pub(in crate::cli) fn diff(args: &TuneDiff) -> Result<(), Error> {
    let mut out = String::new();
    match (date(&args.before), date(&args.after)) {
        (Some(then), Some(now)) => {
            for listed in open(&args.place)?.list()? {
                let _ = writeln!(out, "{}", listed.path.display());
                match &listed.content {
                    Ok(file) => {
                        let by = |when| Snapshot { file, until: Some(when) };
                        out.push_str(&changes(&store::compare(by(then), by(now))));
                    }
                    Err(why) => {
                        let _ = writeln!(out, "  not used: {why}");
                    }
                }
            }
        }
        (None, None) => {
            let before = store::open(Path::new(&args.before))?;
            let after = store::open(Path::new(&args.after))?;
            if before.key != after.key {
                let _ = writeln!(
                    out,
                    "different devices: {}: {}; {}: {}",
                    args.before, before.key, args.after, after.key
                );
            }
            let now = |file| Snapshot { file, until: None };
            out.push_str(&changes(&store::compare(now(&before), now(&after))));
        }
        _ => {
            let both = "two files, or two days such as 2026-11-20, can be compared";
            return Err(Error::Usage(both.into()));
        }
    }
    text::print(&out)?;
    Ok(())
}

/// The last second of a day, or the second that is named.
fn date(text: &str) -> Option<When> {
    When::parse(text).or_else(|| When::parse(&format!("{text}T23:59:59Z")))
}

/// What changed, and how much did not.
fn changes(changes: &[Change<'_>]) -> String {
    let mut rows = Vec::new();
    for Change { case, clock, before, after } in changes {
        let cost = |record: &Record| price(record.cost.value(), *clock);
        let (what, choice, times) = match (before, after) {
            (Some(before), Some(after)) if before == after => continue,
            (Some(before), Some(after)) => {
                let choice = if before.choice == after.choice {
                    describe(&after.choice)
                } else {
                    format!("{} -> {}", describe(&before.choice), describe(&after.choice))
                };
                let ratio = before.cost.value() / after.cost.value();
                let times = format!("{} -> {} ({ratio:.2}x)", cost(before), cost(after));
                ("changed", choice, times)
            }
            (None, Some(after)) => ("new", describe(&after.choice), cost(after)),
            (Some(before), None) => ("gone", describe(&before.choice), cost(before)),
            (None, None) => continue,
        };
        rows.push(vec![format!("  {what}"), case.to_string(), choice, times]);
    }
    let same = changes.iter().filter(|change| change.before == change.after).count();
    format!("{}  {same} unchanged\n", text::columns(&rows, &[]))
}
