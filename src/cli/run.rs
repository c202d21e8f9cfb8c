//! `orinctl run`: runs an ONNX network on inputs from files, in this process or in the daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nn::SessionOptions;
use onnx::{Array, Declared, Elem, Extent, Model, Network};
use serde::Serialize;

use super::args::{self, Connection};
use super::device::chosen;
use super::error::Error;
use super::on_runtime;
use super::terminal::{Live, Terminal};
use super::text;
use api::{RunAnswer, RunInput, RunOutput, RunRequest, route};
use errors::{one_line, printable};

/// Number of values of an output that the table shows.
const SHOWN: usize = 6;

pub(super) fn run(
    connection: &Connection,
    args: &args::Run,
    terminal: &Terminal,
) -> Result<(), Error> {
    let Some(path) = &args.model else {
        return text::show(&onnx::supported(), args.json, |all| all.join("\n") + "\n");
    };
    let live = terminal.spinner();
    live.message(format!("{}: reading", path.display()));
    let model = Model::read(path).map_err(wrong(path))?;
    let inputs = inputs(&model, args)?;
    if inputs.is_empty() && !model.inputs().is_empty() {
        drop(live);
        return text::show(&Description::of(&model), args.json, Description::table);
    }
    let ran = if args.daemon {
        on_runtime(run_in_daemon(connection, args, &model, path, &inputs, &live))?
    } else {
        run_here(args, path, &model, &inputs, &live)?
    };
    drop(live);
    let Runs { device, prepare_ms, mut times, answers } = ran;
    times.sort_unstable_by(f64::total_cmp);
    if let Some(dir) = &args.output {
        write(dir, &answers)?;
    }
    let document = Document {
        device,
        prepare_ms,
        run_ms: times[times.len() / 2],
        runs: args.repeat.get(),
        outputs: answers.iter().map(|(name, array)| (name.clone(), Output::of(array))).collect(),
    };
    text::show(&document, args.json, Document::table)
}

fn wrong(path: &Path) -> impl Fn(onnx::Error) -> Error {
    move |error| Error::Network { model: path.to_owned(), why: one_line(&error) }
}

/// Result of several runs.
struct Runs {
    device: String,
    /// `None` if the daemon prepared the network.
    prepare_ms: Option<f64>,
    /// Milliseconds of each run.
    times: Vec<f64>,
    /// Outputs of the last run.
    answers: BTreeMap<String, Array>,
}

/// Runs the network in this process.
fn run_here(
    args: &args::Run,
    path: &Path,
    model: &Model,
    inputs: &BTreeMap<String, Array>,
    live: &Live,
) -> Result<Runs, Error> {
    let backend = args.backend.as_deref().unwrap_or("cpu");
    let device = chosen(backend, args.threads, args.cpu_isa.as_deref())?;
    live.message(format!("{}: preparing on {backend}", path.display()));
    let tuned = config::client_tune_dir();
    let options = SessionOptions { memory_limit: None, tuned: Some(&tuned) };
    let start = Instant::now();
    let mut network = Network::of_with(model, &*device, options, inputs).map_err(wrong(path))?;
    let prepare_ms = Some(milliseconds(start.elapsed()));
    let (mut times, mut answers) = (Vec::new(), BTreeMap::new());
    for i in 0..args.repeat.get() {
        live.message(format!("{}: run {} of {}", path.display(), i + 1, args.repeat));
        let start = Instant::now();
        answers = network.run(inputs).map_err(wrong(path))?;
        times.push(milliseconds(start.elapsed()));
    }
    Ok(Runs { device: device.info().description, prepare_ms, times, answers })
}

/// Runs the network in the daemon.
async fn run_in_daemon(
    connection: &Connection,
    args: &args::Run,
    model: &Model,
    path: &Path,
    inputs: &BTreeMap<String, Array>,
    live: &Live,
) -> Result<Runs, Error> {
    let client = connection.client()?;
    let input = |(name, array): (&String, &Array)| {
        let bytes: Vec<u8> = array.values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let (shape, data) = (Some(array.shape.clone()), Some(STANDARD.encode(bytes)));
        (name.clone(), RunInput { shape, data, ..RunInput::default() })
    };
    let request = RunRequest {
        model: connection.model(&path.display().to_string())?,
        inputs: inputs.iter().map(input).collect(),
        // One of `device::NAMES`.
        backend: args.backend.as_ref().and_then(|name| name.parse().ok()),
        // JSON cannot represent infinities.
        encoding_format: Some("base64".into()),
    };
    let (mut times, mut last) = (Vec::new(), None);
    for i in 0..args.repeat.get() {
        live.message(format!("{}: run {} of {}", path.display(), i + 1, args.repeat));
        let answer = client.ask::<RunAnswer>(route::RUN, &request).await?;
        times.push(answer.run_ms);
        last = Some(answer);
    }
    let RunAnswer { device, outputs, .. } =
        last.unwrap_or_else(|| unreachable!("there is a first run"));
    let declared = model.outputs();
    let mut answers = BTreeMap::new();
    for (name, RunOutput { shape, values, .. }) in outputs {
        let invalid = |what: &str| {
            let why = format!("the daemon's answer: output {name}, {what}; is it this version?");
            Error::Network { model: path.to_owned(), why }
        };
        let output = declared.iter().find(|output| output.name == name);
        let elem = output.ok_or_else(|| invalid("which is not in the file"))?.elem;
        let bytes = values.as_str().and_then(|text| STANDARD.decode(text).ok());
        let bytes = bytes.ok_or_else(|| invalid("values that are not base64"))?;
        let (values, rest) = bytes.as_chunks::<4>();
        let count = shape.iter().try_fold(1usize, |all, n| all.checked_mul(*n));
        if !rest.is_empty() || count != Some(values.len()) {
            return Err(invalid(&format!("{} bytes for the shape {shape:?}", bytes.len())));
        }
        let values = values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        answers.insert(name, Array { elem, shape, values });
    }
    Ok(Runs { device, prepare_ms: None, times, answers })
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Reads inputs from files, and fills those given by shape.
fn inputs(model: &Model, args: &args::Run) -> Result<BTreeMap<String, Array>, Error> {
    let declared = [model.inputs(), model.replaceable()].concat();
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
        let shape = extents(name, shape)?;
        let count = shape.iter().try_fold(1usize, |all, n| all.checked_mul(*n));
        let Some(count) = count.filter(|count| *count < 1 << 31) else {
            return Err(Error::Usage(format!("--shape {name}: 2^31 or more elements")));
        };
        let mut values = nn::init::unit(1, count);
        if !elem(name).is_float() {
            values.fill(0.0);
        }
        all.insert(name.clone(), Array { elem: elem(name), shape, values });
    }
    Ok(all)
}

/// Parses the shape of `--shape`.
pub(super) fn extents(name: &str, shape: &str) -> Result<Vec<usize>, Error> {
    let extents = shape.split(',').map(|n| n.trim().parse()).collect::<Result<Vec<usize>, _>>();
    extents.map_err(|_| {
        Error::Usage(format!("--shape {name}={shape}: expected dimensions such as 1,3,224,224"))
    })
}

fn write(dir: &Path, answers: &BTreeMap<String, Array>) -> Result<(), Error> {
    let failed = |file: &Path, source| Error::Write { file: file.to_owned(), source };
    std::fs::create_dir_all(dir).map_err(|source| failed(dir, source))?;
    for (name, array) in file_names(answers.keys()).into_iter().zip(answers.values()) {
        let file = dir.join(name);
        let Array { shape, values, .. } = array.clone();
        nn::files::write_npy(&file, &nn::files::Array { shape, values })
            .map_err(|error| Error::Output { file, why: one_line(&error) })?;
    }
    Ok(())
}

/// True for characters that a file name should not have. Exporters use paths as names.
fn is_odd(c: char) -> bool {
    c == '/' || c == '\\' || printable::is_control(c)
}

/// File names of outputs, without path separators and control characters. Names that would be the
/// same are numbered.
fn file_names<'a>(names: impl Iterator<Item = &'a String> + Clone) -> Vec<String> {
    let plain: BTreeSet<&str> =
        names.clone().map(|name| &**name).filter(|name| !name.contains(is_odd)).collect();
    let mut used: BTreeSet<String> = plain.iter().map(|name| (*name).to_owned()).collect();
    let unique = |name: &'a String| {
        if plain.contains(&**name) {
            return format!("{name}.npy");
        }
        let stem = name.replace(is_odd, "_");
        let numbered = (2..).map(|i| format!("{stem}_{i}"));
        let mut all = std::iter::once(stem.clone()).chain(numbered);
        let free = all.find(|stem| used.insert(stem.clone()));
        format!("{}.npy", free.unwrap_or(stem))
    };
    names.map(unique).collect()
}

/// Description of a network, printed if no input is given.
#[derive(Serialize)]
struct Description {
    opset: i64,
    producer: String,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    operators: BTreeMap<String, usize>,
}

#[derive(Serialize)]
struct Port {
    name: String,
    elem: &'static str,
    shape: String,
}

impl Port {
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

impl Description {
    fn of(model: &Model) -> Self {
        let operators = model.operators().into_iter().map(|(op, n)| (op.to_owned(), n)).collect();
        Self {
            opset: model.opset(),
            producer: model.producer().to_owned(),
            inputs: model.inputs().into_iter().map(Port::of).collect(),
            outputs: model.outputs().into_iter().map(Port::of).collect(),
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
            "opset {}{by}\n\n{}\n{}\n\nPass inputs with --input NAME=FILE.npy, or their shapes with --shape.\n",
            self.opset,
            text::columns(&rows, &[]),
            operators.join(", ")
        )
    }
}

#[derive(Serialize)]
struct Document {
    device: String,
    /// Omitted if the daemon prepared the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    prepare_ms: Option<f64>,
    /// Median of all runs.
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
        let prepared = self
            .prepare_ms
            .map_or_else(String::new, |ms| format!("prepared in {}, ", text::short_time(ms * 1e6)));
        format!(
            "{}\n{prepared}run in {}{runs}\n\n{}",
            self.device,
            text::short_time(self.run_ms * 1e6),
            text::table(&rows, &[3, 4, 5])
        )
    }
}
