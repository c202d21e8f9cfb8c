//! `orinctl perplexity` and `orinctl kld`: measures how well models predict a text, one row per
//! model; no daemon.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::Serialize;

use super::args;
use super::device::chosen;
use super::error::Error;
use super::plan::open;
use super::terminal::Terminal;
use super::text;
use compare::quality::run::{self, Runner};
use compare::quality::score::{Divergence, Estimate, Mean, Pairs};
use compare::quality::text::{Text, difference};
use device::Device;
use model::{Model, mix};
use plan::DType;
use tegra_probe::runner;

/// Size limit of a text: it is kept in memory together with its tokens.
const LONGEST_TEXT: u64 = 256 << 20;

pub(super) fn perplexity(
    args: &args::Perplexity,
    terminal: &Terminal,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let run = Run::new(&args.on, terminal, stop)?;
    let mut rows = Vec::new();
    for name in &args.models {
        let (model, text) = run.model(name, args.on.kv_type)?;
        let measured = run.loaded(name, &model).and_then(|mut runner| {
            let mut cost = Mean::default();
            let live = terminal.steps();
            let chunks = run.for_each_chunk(name, &text, |chunk| {
                run::perplexity(&mut runner, &text, chunk, &mut cost)?;
                let so_far = cost.estimate().exp().mean;
                live.set(chunk as u64 + 1, text.chunks() as u64, format!("perplexity {so_far:.4}"));
                Ok(())
            })?;
            let perplexity = cost.estimate().exp();
            let found = Found::Perplexity { perplexity };
            Ok((found, run.counted(chunks, &text, cost.count(), &mut runner, name)?))
        });
        match measured {
            Ok((found, counted)) => rows.push(Row::new(name, &model, found, counted)),
            Err(error) => return run.end(None, rows, Some(error)),
        }
        if run.stopped() {
            break;
        }
    }
    run.end(None, rows, None)
}

pub(super) fn divergence(
    args: &args::Kld,
    terminal: &Terminal,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let run = Run::new(&args.on, terminal, stop)?;
    let (base, text) = run.model(&args.base, DType::F16)?;
    // Reject everything that can be rejected before the first measurement.
    let mut models = Vec::new();
    for name in &args.models {
        let model = run.cached(name, args.on.kv_type)?;
        if let Some(how) = difference(&base, &model) {
            let (model, base) = (name.clone(), args.base.clone());
            return Err(Error::OtherVocabulary { model, base, how });
        }
        models.push((name, model));
    }
    let mut rows = Vec::new();
    let told =
        Base { model: args.base.clone(), r#type: mix::name_of(base.gguf()), bytes: bytes(&base) };
    let mut base = match run.loaded(&args.base, &base) {
        Ok(base) => base,
        Err(error) => return run.end(Some(told), rows, Some(error)),
    };
    for (name, model) in &models {
        let measured = run.loaded(name, model).and_then(|mut runner| {
            let mut pairs = Pairs::default();
            let live = terminal.steps();
            let chunks = run.for_each_chunk(name, &text, |chunk| {
                run::divergence(&mut base, &mut runner, &text, chunk, &mut pairs)?;
                let so_far = pairs.divergence();
                live.set(chunk as u64 + 1, text.chunks() as u64, format!("{name} KL {so_far:.5}"));
                Ok(())
            })?;
            let count = pairs.count();
            let found = Found::Divergence(Box::new(pairs.summarise()));
            Ok((found, run.counted(chunks, &text, count, &mut runner, name)?))
        });
        match measured {
            Ok((found, counted)) => rows.push(Row::new(name, model, found, counted)),
            Err(error) => return run.end(Some(told), rows, Some(error)),
        }
        if run.stopped() {
            break;
        }
    }
    run.end(Some(told), rows, None)
}

/// Settings that all models of a run share.
struct Run<'a> {
    args: &'a args::Predicted,
    terminal: &'a Terminal,
    stop: &'a AtomicBool,
    device: Arc<dyn Device>,
    content: String,
}

impl<'a> Run<'a> {
    fn new(
        args: &'a args::Predicted,
        terminal: &'a Terminal,
        stop: &'a AtomicBool,
    ) -> Result<Self, Error> {
        let device = chosen(&args.backend, args.threads, args.cpu_isa.as_deref())?;
        if args.speed && device.info().name == "nv" && runner::this_machine().simulated {
            let why = "--speed cannot be measured on a simulated GPU, which has its own clock";
            return Err(Error::Usage(why.into()));
        }
        Ok(Self { args, terminal, stop, device, content: read(&args.text)? })
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn model(&self, name: &str, cache: DType) -> Result<(Model, Text), Error> {
        let model = self.cached(name, cache)?;
        let chunks = self.args.chunks.map(Into::into);
        let text = Text::new(&model, &self.content, self.args.context, chunks)
            .map_err(|error| Error::Text { model: name.to_owned(), error })?;
        Ok((model, text))
    }

    /// Opens a model with this KV cache type.
    fn cached(&self, name: &str, cache: DType) -> Result<Model, Error> {
        let model = open(name, self.terminal)?.with_cache_type(cache);
        model.map_err(|error| Error::Usage(format!("--kv-type: {name}: {error}")))
    }

    fn loaded(&self, name: &str, model: &Model) -> Result<Runner<'a>, Error> {
        let (live, done) = (self.terminal.bytes(), AtomicU64::new(0));
        let progress = |bytes| {
            let done = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
            live.set(done, model.weight_bytes(), "loading");
        };
        Runner::open(model, &*self.device, self.args.context, self.stop, &progress)
            .map_err(|error| failed(name, error))
    }

    /// Evaluates the chunks of the text until stopped; returns the number of finished chunks.
    fn for_each_chunk(
        &self,
        name: &str,
        text: &Text,
        mut chunk: impl FnMut(usize) -> Result<(), run::Error>,
    ) -> Result<usize, Error> {
        for index in 0..text.chunks() {
            match chunk(index) {
                Err(run::Error::Stopped) if index > 0 => return Ok(index),
                result => result.map_err(|error| failed(name, error))?,
            }
        }
        Ok(text.chunks())
    }

    fn counted(
        &self,
        chunks: usize,
        text: &Text,
        scored: u64,
        runner: &mut Runner<'_>,
        name: &str,
    ) -> Result<Counted, Error> {
        let complete = chunks == text.chunks();
        let timed = self.args.speed && complete;
        let speeds = if timed { runner.decode() } else { Ok(Vec::new()) };
        let speeds = match speeds {
            Err(run::Error::Stopped) => Vec::new(),
            speeds => speeds.map_err(|error| failed(name, error))?,
        };
        Ok(Counted { chunks, complete, scored, speeds })
    }

    /// Prints the results so far and returns the error.
    fn end(&self, base: Option<Base>, rows: Vec<Row>, error: Option<Error>) -> Result<(), Error> {
        let document = Document {
            text: self.args.text.display().to_string(),
            context: self.args.context,
            device: self.device.info().description,
            base,
            models: rows,
        };
        if !document.models.is_empty() {
            text::show(&document, self.args.json, Document::table)?;
        }
        match error {
            _ if self.stopped() => Err(Error::Interrupted),
            None => Ok(()),
            Some(error) => Err(error),
        }
    }
}

fn failed(name: &str, error: run::Error) -> Error {
    Error::Quality { model: name.to_owned(), error: Box::new(error) }
}

fn read(file: &Path) -> Result<String, Error> {
    let bad = |why: String| Error::TextFile { file: file.to_owned(), why };
    let cannot = |error: std::io::Error| bad(format!("cannot be read: {error}"));
    let opened = File::open(file).map_err(cannot)?;
    let mut content = Vec::new();
    opened.take(LONGEST_TEXT + 1).read_to_end(&mut content).map_err(cannot)?;
    if content.len() as u64 > LONGEST_TEXT {
        let limit = LONGEST_TEXT >> 20;
        return Err(bad(format!("is larger than {limit} MiB; shorten it")));
    }
    if content.is_empty() {
        return Err(bad("is empty".into()));
    }
    String::from_utf8(content).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        bad(format!("is not UTF-8 at byte {at}; convert it with `iconv -t UTF-8`"))
    })
}

fn bytes(model: &Model) -> u64 {
    model.gguf().tensors().iter().map(|tensor| tensor.bytes).sum()
}

/// Output of `--json`.
#[derive(Serialize)]
struct Document {
    text: String,
    context: usize,
    device: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    base: Option<Base>,
    models: Vec<Row>,
}

#[derive(Serialize)]
struct Base {
    model: String,
    r#type: &'static str,
    bytes: u64,
}

#[derive(Serialize)]
struct Row {
    model: String,
    r#type: &'static str,
    /// Bytes of all tensors.
    bytes: u64,
    bits_per_weight: f64,
    #[serde(flatten)]
    found: Found,
    #[serde(flatten)]
    counted: Counted,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Found {
    Perplexity { perplexity: Estimate },
    Divergence(Box<Divergence>),
}

#[derive(Serialize)]
struct Counted {
    chunks: usize,
    /// False if the run was stopped.
    complete: bool,
    /// Number of scored tokens.
    scored: u64,
    /// Decode speed in tokens per second, per sample.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    speeds: Vec<f64>,
}

impl Row {
    fn new(name: &str, model: &Model, found: Found, counted: Counted) -> Self {
        let bytes = bytes(model);
        Self {
            model: name.to_owned(),
            r#type: mix::name_of(model.gguf()),
            bytes,
            bits_per_weight: 8.0 * bytes as f64 / model.parameters().max(1) as f64,
            found,
            counted,
        }
    }

    fn cells(&self) -> Vec<String> {
        let mut cells = vec![
            self.model.clone(),
            self.r#type.to_owned(),
            text::bytes(self.bytes),
            format!("{:.2}", self.bits_per_weight),
        ];
        let plus_minus = |estimate: &Estimate, digits: usize| {
            format!("{:.digits$} +- {:.digits$}", estimate.mean, estimate.error)
        };
        match &self.found {
            Found::Perplexity { perplexity } => cells.push(plus_minus(perplexity, 4)),
            Found::Divergence(found) => {
                cells.push(plus_minus(&found.perplexity, 4));
                cells.push(plus_minus(&found.kl, 6));
                let agreed = &found.top1_agreement;
                cells.push(format!("{:.2} +- {:.2}", 100.0 * agreed.mean, 100.0 * agreed.error));
            }
        }
        let mut speeds = self.counted.speeds.clone();
        speeds.sort_by(f64::total_cmp);
        cells.push(speeds.get(speeds.len() / 2).map_or("-".into(), |speed| format!("{speed:.1}")));
        cells
    }
}

impl Document {
    fn table(&self) -> String {
        let mut out = String::new();
        if let Some(Base { model, r#type, bytes }) = &self.base {
            out += &format!("Base {model}: {type}, {}\n", text::bytes(*bytes));
        }
        out += &format!("{} in chunks of {} tokens, on {}\n", self.text, self.context, self.device);
        for row in &self.models {
            let Counted { chunks, complete, scored, .. } = row.counted;
            let early = if complete { "" } else { ", STOPPED before the text's end" };
            out += &format!("{}: {chunks} chunks, {scored} tokens scored{early}\n", row.model);
        }
        let mut head = vec!["model", "type", "size", "bits/weight", "perplexity"];
        if self.base.is_some() {
            head.extend(["mean KL", "top-1 %"]);
        }
        head.push("decode tok/s");
        let named = |head: &[&str]| head.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let mut rows = vec![named(&head)];
        rows.extend(self.models.iter().map(Row::cells));
        // Hide the speed column if no speed was measured.
        if self.models.iter().all(|row| row.counted.speeds.is_empty()) {
            rows.iter_mut().for_each(|row| drop(row.pop()));
        }
        out += &format!("\n{}", text::table(&rows, &[2, 3, 4, 5, 6, 7]));
        if self.base.is_some() {
            out += &format!("\n{}", self.percentiles());
        }
        out
    }

    /// Formats the percentiles of each model's divergence, and its perplexity relative to the
    /// base's.
    fn percentiles(&self) -> String {
        let head = ["model", "perplexity / base", "KL 50 %", "90 %", "99 %", "99.9 %", "max"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for row in &self.models {
            let Found::Divergence(found) = &row.found else { continue };
            let ratio = &found.ratio;
            let mut cells =
                vec![row.model.clone(), format!("{:.5} +- {:.5}", ratio.mean, ratio.error)];
            for wanted in [0.5, 0.9, 0.99, 0.999, 1.0] {
                let value = found.percentiles.iter().find(|(part, _)| *part == wanted);
                cells.push(value.map_or("-".into(), |(_, value)| format!("{value:.6}")));
            }
            rows.push(cells);
        }
        text::table(&rows, &[1, 2, 3, 4, 5, 6])
    }
}
