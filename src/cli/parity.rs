//! `orinctl parity`: compares devices with the reference, step by step and on a whole model; no
//! daemon.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::args;
use super::error::Error;
use super::plan::open;
use super::terminal::{Live, Terminal};
use super::text;
use device::{self, Device};
use model::Model;
use model::tokenizer::{Specials, Tokenizer, Vocabulary};
use parity::case::{Case, Results};
use parity::model::{Comparison, Task, Tolerance, Trace};
use parity::{case::noise, steps};

/// Device that defines the bits of docs/numerics.md. Other devices that follow it must match
/// exactly; against the reference, which rounds differently, all are compared within a tolerance.
const EXACT: &str = "cpu";

pub(super) fn run(args: &args::Parity, terminal: &Terminal) -> Result<(), Error> {
    if args.ops {
        return super::ops::run(args, terminal);
    }
    let model = open(&args.model, terminal)?;
    let prompts = prompts(args, &model)?;
    let task = Task { model: &model, prompts: &prompts, steps: args.tokens };
    let threads = args.threads.unwrap_or(0);
    let reference = super::device::open(&args.reference, "auto", threads).map_err(Error::Usage)?;
    let tolerance = Tolerance::default();

    let live = terminal.spinner();
    live.message(format!("{} on {}", args.model, args.reference));
    let expected = Trace::record(&*reference, &task, None).map_err(|e| Error::parity(&e))?;
    let cases = if args.no_steps { Vec::new() } else { ReferenceCase::all(&live)? };
    let run = |device: &dyn Device| DeviceResults::of(device, &task, &expected, &cases, &live);
    let mut page = None;
    let mut devices = Vec::new();
    for name in &args.devices {
        devices.push(match super::device::open(name, "auto", threads) {
            Ok(device) => {
                let ran = run(&*device)?;
                let held = device.numerics().is_some() && name != EXACT;
                if held && page.is_none() {
                    let cpu = super::device::open(EXACT, "auto", threads).map_err(Error::Usage)?;
                    page = Some(run(&*cpu)?);
                }
                let beside = page.as_ref().filter(|_| held);
                let model = ran.trace.compare(&expected, &tolerance);
                let unequal = beside.and_then(|page| ran.trace.first_unequal(&page.trace));
                let steps = summarise(&cases, &ran, beside);
                let passed = model.passed
                    && unequal.is_none()
                    && steps.values().all(|group| group.failed.is_empty());
                let description = device.info().description;
                let bits = beside.map(|_| Bits { page: EXACT, first_unequal: unequal });
                if name == EXACT {
                    page = Some(ran);
                }
                Tested::Compared { name: name.clone(), description, passed, steps, model, bits }
            }
            Err(reason) => Tested::Skipped { name: name.clone(), reason },
        });
    }
    drop(live);
    let compared = devices.iter().filter(|d| matches!(d, Tested::Compared { .. })).count();
    let failed: Vec<&str> = devices.iter().filter_map(Tested::failed).collect();
    let verdict = match (compared, &failed[..]) {
        (0, _) => Err(Error::Parity("no device is usable here".into())),
        (_, []) => Ok(()),
        (_, names) => Err(Error::Parity(format!("mismatch on {}", names.join(", ")))),
    };
    let document = Document {
        model: &args.model,
        reference: &args.reference,
        prompts: prompts.iter().map(Vec::len).collect(),
        tokens: args.tokens,
        tolerance,
        passed: verdict.is_ok(),
        devices,
    };
    text::show(&document, args.json, Document::table)?;
    verdict
}

/// Returns the prompts of the command line, or seeded tokens.
fn prompts(args: &args::Parity, model: &Model) -> Result<Vec<Vec<u32>>, Error> {
    if args.prompts.is_empty() {
        let vocabulary = model.hyperparameters().vocabulary as f32;
        let token = |v: f32| (v.abs() * (vocabulary - 1.0)) as u32;
        let prompt = |length: usize| noise(length as u64, length).into_iter().map(token).collect();
        return Ok([1, 7, 40].map(prompt).into());
    }
    let wrong = |e: &dyn std::fmt::Display| Error::Usage(format!("the model's tokeniser: {e}"));
    let vocabulary = Vocabulary::from_metadata(model.gguf().metadata()).map_err(|e| wrong(&e))?;
    let tokenizer = Tokenizer::new(vocabulary).map_err(|e| wrong(&e))?;
    let encode = |text: &String| match tokenizer.encode(text, Specials::Plain, true) {
        Ok(ids) if ids.is_empty() => Err(Error::Usage("a prompt is empty".into())),
        Ok(ids) => Ok(ids),
        Err(e) => Err(wrong(&e)),
    };
    args.prompts.iter().map(encode).collect()
}

struct ReferenceCase {
    case: Case,
    expected: Results,
}

impl ReferenceCase {
    fn all(live: &Live) -> Result<Vec<Self>, Error> {
        let cases = steps::all()?;
        live.message(format!("{} steps on the reference", cases.len()));
        let run = |case: Case| {
            let expected = case.run(&device::reference::Reference);
            Ok(Self { expected: expected.map_err(|e| Error::parity(&e.into()))?, case })
        };
        cases.into_iter().map(run).collect()
    }
}

/// Results of one device.
struct DeviceResults {
    /// Results of each step; `None` if the device does not support it.
    steps: Vec<Option<Results>>,
    trace: Trace,
}

impl DeviceResults {
    fn of(
        device: &dyn Device,
        task: &Task<'_>,
        expected: &Trace,
        cases: &[ReferenceCase],
        live: &Live,
    ) -> Result<Self, Error> {
        let name = device.info().name;
        live.message(format!("the model on {name}"));
        let trace = Trace::record(device, task, Some(expected)).map_err(|e| Error::parity(&e))?;
        live.message(format!("{} steps on {name}", cases.len()));
        let step = |checked: &ReferenceCase| match checked.case.run(device) {
            Err(device::Error::Unsupported { .. }) => Ok(None),
            got => Ok(Some(got.map_err(|e| Error::parity(&e.into()))?)),
        };
        Ok(Self { steps: cases.iter().map(step).collect::<Result<_, Error>>()?, trace })
    }
}

/// All cases of one kind of step on one device.
#[derive(Default, Serialize)]
struct StepSummary {
    cases: usize,
    /// Largest distance, in units of the result's root mean square, and its case.
    worst: f64,
    worst_case: String,
    /// Tolerance of that case.
    tolerance: f64,
    /// Number of cases compared with the CPU's results for equality.
    by_equality: usize,
    failed: Vec<String>,
    /// Number of cases that the device does not support.
    unsupported: usize,
}

/// Groups a device's steps, compared with the reference's and with those of another device of the
/// same numerics.
fn summarise(
    cases: &[ReferenceCase],
    ran: &DeviceResults,
    page: Option<&DeviceResults>,
) -> BTreeMap<&'static str, StepSummary> {
    let mut groups: BTreeMap<&'static str, StepSummary> = BTreeMap::new();
    for (i, ReferenceCase { case, expected }) in cases.iter().enumerate() {
        let group = groups.entry(case.group).or_default();
        let Some(got) = &ran.steps[i] else {
            group.unsupported += 1;
            continue;
        };
        let outcome = steps::compare(case, got, expected);
        let relative = outcome.difference.relative();
        group.cases += 1;
        if !outcome.passed {
            group.failed.push(format!("{} ({})", case.name, outcome.result));
        }
        if let Some(theirs) = page.and_then(|page| page.steps[i].as_ref()) {
            group.by_equality += 1;
            if let Some(result) = steps::first_unequal(got, theirs) {
                group
                    .failed
                    .push(format!("{} ({result}: bits differ from the {EXACT}'s)", case.name));
            }
        }
        if group.cases == 1 || relative / case.tolerance > group.worst / group.tolerance {
            group.worst = relative;
            group.tolerance = case.tolerance;
            group.worst_case.clone_from(&case.name);
        }
    }
    groups
}

#[derive(Serialize)]
struct Document<'a> {
    model: &'a str,
    reference: &'a str,
    prompts: Vec<usize>,
    tokens: usize,
    tolerance: Tolerance,
    passed: bool,
    devices: Vec<Tested>,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase", tag = "state")]
enum Tested {
    Compared {
        name: String,
        description: String,
        passed: bool,
        steps: BTreeMap<&'static str, StepSummary>,
        model: Comparison,
        /// `None` if there is no device to compare with.
        bits: Option<Bits>,
    },
    Skipped {
        name: String,
        reason: String,
    },
}

/// Exact comparison of the model's logits with another device of the same numerics.
#[derive(Serialize)]
struct Bits {
    /// Name of the other device.
    page: &'static str,
    /// First step whose logits differ: prompt, step.
    first_unequal: Option<(usize, usize)>,
}

impl Tested {
    fn failed(&self) -> Option<&str> {
        match self {
            Self::Compared { name, passed: false, .. } => Some(name),
            _ => None,
        }
    }
}

impl Document<'_> {
    fn table(&self) -> String {
        let mut out = format!(
            "{}: {} prompts of {:?} tokens and {} after each, against {}\n",
            self.model,
            self.prompts.len(),
            self.prompts,
            self.tokens,
            self.reference
        );
        for device in &self.devices {
            // Writing to a string cannot fail.
            let _ = match device {
                Tested::Skipped { name, reason } => {
                    writeln!(out, "\n{name}: skipped, {reason}")
                }
                Tested::Compared { name, description, passed, steps, model, bits } => {
                    let _ = writeln!(out, "\n{name}: {description}\n");
                    out.push_str(&step_table(steps));
                    let _ = writeln!(out, "{}", logits(model, &self.tolerance));
                    let _ = match bits {
                        None => Ok(()),
                        Some(Bits { page, first_unequal: None }) => {
                            writeln!(out, "logits equal to the {page}'s, to the last bit")
                        }
                        Some(Bits { page, first_unequal: Some((prompt, step)) }) => writeln!(
                            out,
                            "logits are NOT the {page}'s: first at prompt {prompt}, step {step}; \
                             `orinctl fingerprint` shows which part differs"
                        ),
                    };
                    writeln!(out, "{name}: {}", if *passed { "passed" } else { "FAILED" })
                }
            };
        }
        out
    }
}

fn step_table(groups: &BTreeMap<&'static str, StepSummary>) -> String {
    if groups.is_empty() {
        return String::new();
    }
    let head =
        ["step", "cases", "worst", "tolerance", "by equality", "where"].map(str::to_owned).to_vec();
    let mut rows = vec![head];
    for (name, group) in groups {
        let verdict = match (group.failed.len(), group.unsupported) {
            (0, 0) => group.worst_case.clone(),
            (0, n) => format!("{} ({n} unsupported)", group.worst_case),
            (n, _) => format!("{n} FAILED: {}", group.failed.join("; ")),
        };
        rows.push(vec![
            (*name).to_owned(),
            group.cases.to_string(),
            format!("{:.1e}", group.worst),
            format!("{:.0e}", group.tolerance),
            group.by_equality.to_string(),
            verdict,
        ]);
    }
    text::table(&rows, &[1, 2, 3, 4]) + "\n"
}

fn logits(model: &Comparison, tolerance: &Tolerance) -> String {
    let steps: usize = model.steps.iter().map(Vec::len).sum();
    let first = match model.first_difference {
        None => "all tokens equal".into(),
        Some((prompt, step, margin)) => format!(
            "first different token: prompt {prompt}, step {step}, where the reference leads by {margin:.4}"
        ),
    };
    let Comparison { max_error, mean_error, max_divergence, mean_divergence, .. } = model;
    format!(
        "logits of {steps} steps: error max {max_error:.4}, mean {mean_error:.5}; \
         divergence max {max_divergence:.2e}, mean {mean_divergence:.2e} \
         (tolerance {:.0e}); top-1 agreement {:.1} %; {first}",
        tolerance.divergence,
        100.0 * model.top1_agreement,
    )
}
