//! `orinctl quantize`: converts a model file to another weight type. Checks its arguments before
//! writing anything; [`model::quantise`] does the work.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread;

use nix::sys::statvfs::statvfs;
use serde::Serialize;

use super::args;
use super::error::Error;
use super::plan::locate_model;
use super::terminal::Terminal;
use super::text;
use model::gguf::Gguf;
use model::mix;
use model::quantise::{self, Conversion};

pub(super) fn run(
    args: &args::Quantize,
    terminal: &Terminal,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let path = locate_model(&args.input, terminal)?;
    let failed = |error: quantise::Error| match error {
        quantise::Error::Stopped => Error::Interrupted,
        error => Error::Quantise { model: args.input.clone(), error: Box::new(error) },
    };
    let gguf = Gguf::open(&path).map_err(|error| failed(error.into()))?;
    let conversion = Conversion::new(gguf, args.mix, args.requantize).map_err(failed)?;
    let bytes = conversion.file_bytes(&args.output).map_err(failed)?;
    check(args, conversion.gguf(), bytes)?;
    if !args.dry_run {
        let threads = args.threads.map(Into::into);
        let threads =
            threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
        let total = conversion.tensors().map(|(tensor, _)| tensor.bytes).sum();
        let live = terminal.bytes();
        let mut progress = |done| live.set(done, total, "quantising");
        conversion.write(&args.output, threads, stop, &mut progress).map_err(failed)?;
    }
    let document = Document::new(args, &conversion, bytes);
    text::show(&document, args.json, Document::table)
}

/// Rejects an output path that cannot or must not be written.
fn check(args: &args::Quantize, input: &Gguf, bytes: u64) -> Result<(), Error> {
    let bad = |why: String| Err(Error::Output { file: args.output.clone(), why });
    let folder = match args.output.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    if args.output.file_name().is_none() || args.output.is_dir() {
        return bad("is a directory; expected a file name".into());
    }
    let identity = |path: &Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
    if let Some(there) = identity(&args.output) {
        if input.paths().any(|path| identity(path) == Some(there)) {
            return bad("is the input file, which is still being read".into());
        }
        if !args.force && !args.dry_run {
            return bad("exists already; --force replaces it".into());
        }
    }
    let system = match statvfs(folder) {
        Ok(system) => system,
        Err(error) => return bad(format!("its directory cannot be used: {error}")),
    };
    let free = system.blocks_available().saturating_mul(system.fragment_size());
    if free < bytes && !args.dry_run {
        return bad(format!(
            "needs {}, but {} are free in {}",
            text::bytes(bytes),
            text::bytes(free),
            folder.display()
        ));
    }
    Ok(())
}

/// Output of `--json`.
#[derive(Serialize)]
struct Document {
    input: String,
    output: String,
    r#type: &'static str,
    dry_run: bool,
    input_type: &'static str,
    /// Size of the files.
    input_bytes: u64,
    output_bytes: u64,
    /// Bits per weight over all output tensors.
    bits_per_weight: f64,
    tensors: Vec<Tensor>,
}

#[derive(Serialize)]
struct Tensor {
    name: String,
    from: &'static str,
    to: &'static str,
    elements: u64,
    bytes: u64,
}

impl Document {
    fn new(args: &args::Quantize, conversion: &Conversion, bytes: u64) -> Self {
        let tensor = |(tensor, to): (&model::gguf::TensorInfo, plan::DType)| Tensor {
            name: tensor.name.clone(),
            from: tensor.dtype.name(),
            to: to.name(),
            elements: tensor.elements(),
            bytes: to.size_of(tensor.elements()).unwrap_or(0),
        };
        let tensors: Vec<Tensor> = conversion.tensors().map(tensor).collect();
        let sum = |of: fn(&Tensor) -> u64| tensors.iter().map(of).sum::<u64>();
        let (stored, elements) = (sum(|t| t.bytes), sum(|t| t.elements));
        Self {
            input: args.input.clone(),
            output: args.output.display().to_string(),
            r#type: args.mix.name(),
            dry_run: args.dry_run,
            input_type: mix::name_of(conversion.gguf()),
            input_bytes: conversion.gguf().file_bytes(),
            output_bytes: bytes,
            bits_per_weight: 8.0 * stored as f64 / elements.max(1) as f64,
            tensors,
        }
    }

    fn table(&self) -> String {
        let mut groups: BTreeMap<(&str, &str), (usize, u64, Vec<&str>)> = BTreeMap::new();
        for tensor in &self.tensors {
            let (count, bytes, names) = groups.entry((tensor.from, tensor.to)).or_default();
            *count += 1;
            *bytes += tensor.bytes;
            // `blk.3.attn_q.weight` is one of many layers.
            let name = super::plan::place(&tensor.name).1.trim_end_matches(".weight");
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let mut rows = vec![["from", "to", "tensors", "size", "which"].map(str::to_owned).to_vec()];
        for ((from, to), (count, bytes, names)) in groups {
            let count = count.to_string();
            let size = text::bytes(bytes);
            rows.push(vec![from.into(), to.into(), count, size, names.join(", ")]);
        }
        let (before, after) = (text::bytes(self.input_bytes), text::bytes(self.output_bytes));
        let done = if self.dry_run { "would be" } else { "is" };
        format!(
            "{}: {}, {before}\n{} {done} {}: {after}, {:.2} bits a weight\n\n{}",
            self.input,
            self.input_type,
            self.output,
            self.r#type,
            self.bits_per_weight,
            text::table(&rows, &[2, 3])
        )
    }
}
