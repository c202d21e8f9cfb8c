//! `orinctl fingerprint`: prints one hash of a model's logits on a device, without a daemon. First
//! contact uses it too.

use serde::Serialize;

use super::args;
use super::device::chosen;
use super::error::Error;
use super::plan::open;
use super::terminal::Terminal;
use super::text;
use parity::fingerprint::Fingerprint;
use tegra_probe::Answer;

pub(super) fn run(args: &args::Fingerprint, terminal: &Terminal) -> Result<(), Error> {
    let device = chosen(&args.backend, args.threads, args.cpu_isa.as_deref())?;
    let model = open(&args.model, terminal)?;
    let live = terminal.spinner();
    let progress = |what: &str| live.message(format!("{} on {}: {what}", args.model, args.backend));
    let fingerprint =
        Fingerprint::of(&*device, &model, args.longest as usize, &progress).map_err(|error| {
            Error::Fingerprint { model: args.model.clone(), error: Box::new(error) }
        })?;
    drop(live);
    let found = fingerprint.hash.clone();
    let as_expected = args.expect.as_ref().map(|hash| found.eq_ignore_ascii_case(hash.trim()));
    let document = Document {
        model: &args.model,
        device: device.info().description,
        fingerprint,
        as_expected,
    };
    text::show(&document, args.json, Document::table)?;
    match &args.expect {
        Some(expected) if as_expected == Some(false) => {
            Err(Error::OtherFingerprint { found, expected: expected.clone() })
        }
        _ => Ok(()),
    }
}

/// Model of the first-contact experiment.
const TRIED: &str = "synthetic:tiny-llama:q4_k_m";
/// Length of its longest prompt: one more than a block of 32 positions.
const TRIED_TOKENS: usize = 33;

/// First-contact experiment: checks whether the Orin's GPU computes the CPU's fingerprint. An error is
/// the reason for a missing answer.
pub(super) fn experiment() -> Result<Answer, String> {
    let progress = errors::one_line;
    let path = model::synthetic::locate(TRIED, &mut |_, _| ()).map_err(|error| progress(&error))?;
    let model = model::Model::open(path).map_err(|error| progress(&error))?;
    let of = |name: &str| {
        let device = device::named(name, "auto", 1)?;
        Fingerprint::of(&*device, &model, TRIED_TOKENS, &|_| ()).map_err(|error| progress(&error))
    };
    let (gpu, cpu) = (of("nv")?, of("cpu")?);
    let other = gpu.parts.iter().zip(&cpu.parts).find(|(ours, theirs)| ours != theirs);
    let mut answer = Answer::new();
    answer.fact("numerics", u64::from(gpu.numerics));
    answer.fact("gpu_hash", gpu.hash.clone()).fact("cpu_hash", cpu.hash.clone());
    let text = match other {
        None => format!("yes: {}", gpu.hash),
        Some((part, _)) => format!("no: `{}` is the first part that differs", part.name),
    };
    Ok(answer.judged(other.is_none(), text))
}

/// Output of `--json`.
#[derive(Serialize)]
struct Document<'a> {
    model: &'a str,
    device: String,
    #[serde(flatten)]
    fingerprint: Fingerprint,
    #[serde(skip_serializing_if = "Option::is_none")]
    as_expected: Option<bool>,
}

impl Document<'_> {
    fn table(&self) -> String {
        let Fingerprint { numerics, longest, hash, parts } = &self.fingerprint;
        let mut rows = vec![["part", "rows", "hash"].map(str::to_owned).to_vec()];
        for part in parts {
            rows.push(vec![part.name.clone(), part.rows.to_string(), part.hash.clone()]);
        }
        let verdict = if self.as_expected == Some(true) { ", as expected" } else { "" };
        format!(
            "{} on {}\n{}\n{hash}{verdict} (numerics {numerics}, prompts of up to {longest} tokens)\n",
            self.model,
            self.device,
            text::table(&rows, &[1]),
        )
    }
}
