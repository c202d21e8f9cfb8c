//! `orinctl tune show`, `export`, `import`, `diff`: contents of the store.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::args::{TuneDiff, TuneExport, TuneImport, TunePlace, TuneShow};
use crate::error::Error;
use crate::terminal::Terminal;
use crate::text;
use device::Kernels;
use device::tune::store::{
    self, Change, File, Listed, Merged, Snapshot, State, StoreError, describe,
};
use device::tune::{Clock, Cost, DeviceKey, Record, Store, When};

/// Opens the store in a directory, or the default store.
fn open(place: &TunePlace) -> Result<Store, Error> {
    Ok(Store::new(match &place.tune_dir {
        Some(dir) => std::path::absolute(dir)?,
        None => config::client_tune_dir(),
    }))
}

#[derive(Default, Serialize)]
struct Shown {
    file: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<DeviceKey>,
    /// True if this machine has the device.
    here: bool,
    /// Reason why the whole file is unused.
    #[serde(skip_serializing_if = "Option::is_none")]
    unusable: Option<String>,
    entries: Vec<Entry>,
    ignored: Vec<Ignored>,
    #[serde(skip)]
    content: Option<File>,
}

#[derive(Serialize)]
struct Entry {
    #[serde(flatten)]
    record: Map<String, Value>,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

#[derive(Serialize)]
struct Ignored {
    about: String,
    why: String,
}

pub(crate) fn show(args: &TuneShow) -> Result<(), Error> {
    let store = open(&args.place)?;
    let shown: Vec<Shown> = store.list()?.into_iter().map(examine).collect();
    text::show(&shown, args.json, |shown| {
        if shown.is_empty() {
            return format!("nothing is stored in {}\n", store.dir().display());
        }
        shown.iter().map(|shown| section(shown, args.all)).collect::<Vec<_>>().join("\n")
    })
}

/// Checks a file against the kernels of this machine.
fn examine(Listed { path, content }: Listed) -> Shown {
    let mut shown = Shown { file: path, ..Shown::default() };
    let file = match content {
        Ok(file) => file,
        Err(why) => return Shown { unusable: Some(why), ..shown },
    };
    let kernels = Kernels::find(&file.key);
    (shown.device, shown.here) = (Some(file.key.clone()), kernels.is_some());
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
        shown.entries.push(Entry { record: entry(record), state, why });
    }
    Shown { content: Some(file), ..shown }
}

/// Describes a record, with the cost under its unit's name.
fn entry(record: &Record) -> Map<String, Value> {
    let Record { case, heuristic, .. } = record;
    let (cost, name) = match record.cost {
        Cost::Measured { ns, interval_ns, gb_per_s } => {
            (json!({"time_ns": ns, "interval_ns": interval_ns, "gb_per_s": gb_per_s}), "time_ns")
        }
        Cost::Counted(counted) => (json!({"counted": counted}), "counted"),
    };
    let case = json!({
        "family": case.family,
        "dtype": case.dtype.name(),
        "rows": case.rows,
        "cols": case.cols,
        "batch": case.batch,
        "choice": record.choice,
    });
    let rest = json!({
        "heuristic": {"choice": heuristic.choice, name: heuristic.cost},
        "gain": record.gain(),
        "when": record.when.to_string(),
        "clocks": record.clocks,
        "candidates": record.candidates.to_string(),
        "source": record.source,
        "rejected": record.rejected,
    });
    let parts = [case, cost, rest];
    parts
        .iter()
        .filter_map(Value::as_object)
        .flatten()
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect()
}

fn section(shown: &Shown, all: bool) -> String {
    let mut out = format!("{}\n", shown.file.display());
    if let Some(why) = &shown.unusable {
        let _ = writeln!(out, "  not used: {why}");
    }
    let Some(file) = &shown.content else { return out };
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
        out.push_str(&text::table(&rows, &[2, 3, 4, 5]));
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

/// Formats a cost; a count has no unit.
fn price(value: f64, clock: Clock) -> String {
    match clock {
        Clock::Measured => text::short_time(value),
        Clock::Counted => format!("{value:.0} counted"),
    }
}

fn day(when: When) -> String {
    when.to_string().chars().take(10).collect()
}

pub(crate) fn export(args: &TuneExport, terminal: &Terminal) -> Result<(), Error> {
    let file = select(&open(&args.place)?, args.device.as_deref())?;
    if args.file == Path::new("-") {
        return text::json_text(&file.text());
    }
    fs::write(&args.file, file.text()).map_err(|source| StoreError::Io {
        what: "write",
        path: args.file.clone(),
        source,
    })?;
    let count = file.records.len() + file.unusable.len();
    terminal.print_line(&format!("{count} entries about {} written", file.key));
    Ok(())
}

/// Returns the file of the device with that name, or the only file.
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
            "nothing is stored for `{device}`; devices in the store: {}",
            names.join(", ")
        ))),
        _ => Err(Error::Usage(format!(
            "--device is needed; devices in the store: {}",
            names.join(", ")
        ))),
    }
}

pub(crate) fn import(args: &TuneImport) -> Result<(), Error> {
    let store = open(&args.place)?;
    let file = store::open(&args.file)?;
    let Some(kernels) = Kernels::find(&file.key) else {
        let device = file.key.to_string();
        return Err(Error::OtherDevice { file: args.file.clone(), device });
    };
    let path = store.path(&file.key);
    let imported = store.import(file, &kernels)?;
    let Merged { added, changed, known, set_aside } = &imported.merged;
    let mut out = format!("{added} new, {changed} changed, {known} known: {}\n", path.display());
    if let Some(aside) = set_aside {
        let _ = writeln!(out, "the existing file was unusable and is now {}", aside.display());
    }
    for (record, why) in &imported.stale {
        let _ = writeln!(out, "stale, not imported: {}: {why}", record.case);
    }
    for (about, why) in &imported.ignored {
        let _ = writeln!(out, "ignored, not imported: {about}: {why}");
    }
    text::page(&out)
}

pub(crate) fn diff(args: &TuneDiff) -> Result<(), Error> {
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
            let both = "compare two files, or two days such as 2026-11-20";
            return Err(Error::Usage(both.into()));
        }
    }
    text::page(&out)
}

/// Parses a day (its last second) or an exact time.
fn date(text: &str) -> Option<When> {
    When::parse(text).or_else(|| When::parse(&format!("{text}T23:59:59Z")))
}

/// Formats the changes and the number of unchanged entries.
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
