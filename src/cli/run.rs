//! `orinctl run`: an ONNX network on a device, for inputs out of files; no daemon.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use onnx::{Array, Declared, Elem, Extent, Model, Network};
use serde::Serialize;

use super::args;
use super::device::chosen;
use super::error::Error;
use super::terminal::Terminal;
use super::text;
use crate::chain::one_line;

/// Values of an output that a table shows.
const SHOWN: usize = 6;

pub(super) fn run(args: &args::Run, terminal: &Terminal) -> Result<(), Error> {
    let Some(path) = &args.model else {
        return text::show(&onnx::supported(), args.json, |all| all.join("\n") + "\n");
    };
    let wrong = |error: onnx::Error| Error::Network { model: path.clone(), why: one_line(&error) };
    let live = terminal.spinner();
    live.message(format!("{}: reading", path.display()));
    let model = Model::read(path).map_err(wrong)?;
    let inputs = inputs(&model, args)?;
    if inputs.is_empty() && !model.inputs().is_empty() {
        drop(live);
        return text::show(&About::of(&model), args.json, About::table);
    }
    let device = chosen(&args.backend, args.threads, args.cpu_isa.as_deref())?;
    live.message(format!("{}: preparing on {}", path.display(), args.backend));
    let start = Instant::now();
    let mut network = Network::of(&model, &*device, &inputs).map_err(wrong)?;
    let prepared = start.elapsed();
    let mut times = Vec::new();
    let mut answers = BTreeMap::new();
    for i in 0..args.repeat.get() {
        live.message(format!("{}: run {} of {}", path.display(), i + 1, args.repeat));
        let start = Instant::now();
        answers = network.run(&inputs).map_err(wrong)?;
        times.push(start.elapsed());
    }
    drop(live);
    times.sort_unstable();
    if let Some(dir) = &args.output {
        write(dir, &answers)?;
    }
    let document = Document {
        device: device.info().description,
        prepare_ms: milliseconds(prepared),
        run_ms: milliseconds(times[times.len() / 2]),
        runs: args.repeat.get(),
        outputs: answers.iter().map(|(name, array)| (name.clone(), Output::of(array))).collect(),
    };
    text::show(&document, args.json, Document::table)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Inputs out of files, and those that are filled by their shapes.
fn inputs(model: &Model, args: &args::Run) -> Result<BTreeMap<String, Array>, Error> {
    let declared = model.inputs();
    let elem = |name: &str| {
        declared.iter().find(|input| input.name == name).map_or(Elem::F32, |input| input.elem)
    };
    let mut all = BTreeMap::new();
    for (name, file) in &args.input {
        let path = Path::new(file);
        let failed = |why: String| Error::Output { file: path.to_owned(), why };
        let array = if path.extension().is_some_and(|e| e == "pb") {
            let bytes = std::fs::read(path).map_err(|e| failed(e.to_string()))?;
            Array::parse(&bytes).map_err(|e| failed(one_line(&e)))?.1
        } else {
            let read = nn::files::read_npy(path).map_err(|e| failed(one_line(&e)))?;
            Array { elem: elem(name), shape: read.shape, values: read.values }
        };
        all.insert(name.clone(), array);
    }
    for (name, shape) in &args.shape {
        let extents = shape.split(',').map(|n| n.trim().parse()).collect::<Result<Vec<usize>, _>>();
        let shape = extents.map_err(|_| {
            Error::Usage(format!(
                "--shape {name}={shape}: extents with commas between, as 1,3,224,224"
            ))
        })?;
        let count = shape.iter().try_fold(1usize, |all, n| all.checked_mul(*n));
        let Some(count) = count.filter(|count| *count < 1 << 31) else {
            return Err(Error::Usage(format!("--shape {name}: 2^31 elements or more")));
        };
        let mut values = nn::init::unit(1, count);
        if !elem(name).is_float() {
            values.fill(0.0);
        }
        all.insert(name.clone(), Array { elem: elem(name), shape, values });
    }
    Ok(all)
}

fn write(dir: &Path, answers: &BTreeMap<String, Array>) -> Result<(), Error> {
    let failed = |file: &Path, source| Error::Write { file: file.to_owned(), source };
    std::fs::create_dir_all(dir).map_err(|source| failed(dir, source))?;
    for (name, array) in answers {
        // Exporters write paths as names.
        let file = dir.join(name.replace(['/', '\\'], "_") + ".npy");
        let Array { shape, values, .. } = array.clone();
        nn::files::write_npy(&file, &nn::files::Array { shape, values })
            .map_err(|error| Error::Output { file, why: one_line(&error) })?;
    }
    Ok(())
}

/// What a network is, where no input is given.
#[derive(Serialize)]
struct About {
    opset: i64,
    producer: String,
    inputs: Vec<Line>,
    outputs: Vec<Line>,
    operators: BTreeMap<String, usize>,
}

#[derive(Serialize)]
struct Line {
    name: String,
    elem: &'static str,
    shape: String,
}

impl Line {
    fn of(declared: Declared) -> Self {
        let extent = |extent: Extent| match extent {
            Extent::Of(n) => n.to_string(),
            Extent::Named(name) => name,
            Extent::Any => "?".into(),
        };
        let shape = declared.shape.map_or("any".into(), |shape| {
            shape.into_iter().map(extent).collect::<Vec<_>>().join(" x ")
        });
        let shape = if shape.is_empty() { "one number".into() } else { shape };
        Self { name: declared.name, elem: declared.elem.name(), shape }
    }
}

impl About {
    fn of(model: &Model) -> Self {
        let operators = model.operators().into_iter().map(|(op, n)| (op.to_owned(), n)).collect();
        Self {
            opset: model.opset(),
            producer: model.producer().to_owned(),
            inputs: model.inputs().into_iter().map(Line::of).collect(),
            outputs: model.outputs().into_iter().map(Line::of).collect(),
            operators,
        }
    }

    fn table(&self) -> String {
        let mut rows = Vec::new();
        for (what, lines) in [("input", &self.inputs), ("output", &self.outputs)] {
            rows.extend(lines.iter().map(|line| {
                vec![what.to_owned(), line.name.clone(), line.elem.to_owned(), line.shape.clone()]
            }));
        }
        let operators: Vec<String> =
            self.operators.iter().map(|(op, count)| format!("{op} {count}")).collect();
        let by = if self.producer.is_empty() {
            String::new()
        } else {
            format!(", by {}", self.producer)
        };
        format!(
            "opset {}{by}\n\n{}\n{}\n\nGive its inputs with --input NAME=FILE.npy, or their shapes with --shape.\n",
            self.opset,
            text::columns(&rows, &[]),
            operators.join(", ")
        )
    }
}

#[derive(Serialize)]
struct Document {
    device: String,
    prepare_ms: f64,
    /// The median.
    run_ms: f64,
    runs: u32,
    outputs: BTreeMap<String, Output>,
}

#[derive(Serialize)]
struct Output {
    elem: &'static str,
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl Output {
    fn of(array: &Array) -> Self {
        Self { elem: array.elem.name(), shape: array.shape.clone(), values: array.values.clone() }
    }
}

impl Document {
    fn table(&self) -> String {
        let heads = ["output", "type", "shape", "least", "mean", "greatest", "values"];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        for (name, output) in &self.outputs {
            let values = &output.values;
            let shown: Vec<String> =
                values.iter().take(SHOWN).map(|value| format!("{value:.4}")).collect();
            let dots = if values.len() > SHOWN { " .." } else { "" };
            let least = values.iter().copied().fold(f32::INFINITY, f32::min);
            let greatest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mean = values.iter().copied().map(f64::from).sum::<f64>() / values.len() as f64;
            let shape: Vec<String> = output.shape.iter().map(ToString::to_string).collect();
            rows.push(vec![
                name.clone(),
                output.elem.to_owned(),
                if shape.is_empty() { "one number".into() } else { shape.join(" x ") },
                format!("{least:.4}"),
                format!("{mean:.4}"),
                format!("{greatest:.4}"),
                shown.join(" ") + dots,
            ]);
        }
        let runs =
            if self.runs == 1 { String::new() } else { format!(", median of {} runs", self.runs) };
        format!(
            "{}\nprepared in {}, run in {}{runs}\n\n{}",
            self.device,
            text::short_time(self.prepare_ms * 1e6),
            text::short_time(self.run_ms * 1e6),
            text::table(&rows, &[3, 4, 5])
        )
    }
}
