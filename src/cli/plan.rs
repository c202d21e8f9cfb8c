//! `orinctl plan`: shows the steps of a model's plan and their cost, from the model file alone.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::args;
use super::error::Error;
use super::estimate::{Estimate, Machine};
use super::names;
use super::terminal::Terminal;
use super::text;
use device::{Request, gpu};
use model::{KvLayout, Model, synthetic};
use plan::{Bucket, Cost, Fusions, Op, Outputs, Plan, Step, View, fuse, schedule};

pub(super) fn run(args: &args::Plan, terminal: &Terminal) -> Result<(), Error> {
    let bucket = bucket(args)?;
    let machine = args.profile.as_deref().map(Machine::read).transpose()?;
    let model = open(&args.model, terminal)?;
    let layout = KvLayout { slots: bucket.batch, context: bucket.context, ring: None };
    let before = model.plan(layout, bucket)?;
    let after = fuse(&before, Fusions::ALL);
    let weights: Vec<_> = model.weights().cloned().collect();
    let (states, plans) = (model.states(layout), std::slice::from_ref(&after));
    let launches = gpu::outline(
        &after,
        &Request { weights: &weights, states: &states, plans, choices: None },
        Machine::sms(machine.as_ref()),
    );
    let estimate = match (&machine, &launches) {
        (Some(machine), Ok(launches)) => {
            Some(machine.estimate(&after.cost(), launches.len(), &bucket)?)
        }
        _ => None,
    };
    let launch = |launch: &gpu::Outline| {
        json!({
            "label": launch.label,
            "kernel": launch.kernel,
            "blocks": launch.blocks,
            "threads": launch.threads,
            "waits": launch.waits,
            "chain": launch.chain,
        })
    };
    let mut document = json!({
        "model": args.model,
        "batch": bucket.batch,
        "chunk": bucket.chunk,
        "context": bucket.context,
        "before": described(&before),
        "after": described(&after),
        // `None` if an Orin's GPU cannot run the model.
        "launches": launches.as_ref().ok().map(|all| all.iter().map(launch).collect::<Vec<_>>()),
    });
    if let Some(estimate) = &estimate {
        document["estimate"] = json!(estimate);
    }
    text::show(&document, args.json, |_| {
        let mut out = heading(&args.model, &model, &bucket);
        for (title, plan) in [("Before fusion", &before), ("After fusion", &after)] {
            let cost = plan.cost();
            let (steps, groups) = (plan.steps.len(), schedule(plan).len());
            let _ =
                writeln!(out, "\n{title}: {steps} steps in {groups} groups, {}\n", amounts(&cost));
            out.push_str(&table(plan, args.full));
        }
        let _ = match &launches {
            Ok(launches) => writeln!(
                out,
                "\nAn Orin's GPU launches {} kernels for this plan, in {}; one for each \
                 step would be {} after fusion, {} before.",
                launches.len(),
                chains(launches),
                after.steps.len(),
                before.steps.len()
            ),
            Err(why) => writeln!(out, "\nNot supported by an Orin's GPU: {why}."),
        };
        out + &estimate.as_ref().map_or_else(String::new, Estimate::table)
    })
}

/// Formats the number of QMD chains and the launches in them.
fn chains(launches: &[gpu::Outline]) -> String {
    let lengths = || launches.chunk_by(|a, b| a.chain == b.chain).map(<[gpu::Outline]>::len);
    match (lengths().count(), lengths().min(), lengths().max()) {
        (1, ..) => "one chain".into(),
        (count, least, most) => {
            format!("{count} chains of {} to {}", least.unwrap_or(0), most.unwrap_or(0))
        }
    }
}

/// Returns the file of a model by any of its names; a synthetic one is created if not cached.
pub(super) fn locate_model(name: &str, terminal: &Terminal) -> Result<PathBuf, Error> {
    let found = names::resolve(name)?;
    let live = terminal.bytes();
    Ok(synthetic::locate(&found, &mut |done, total| live.set(done, total, "making model"))?)
}

/// Opens a GGUF file or a synthetic model, which is created if it is not cached.
pub(super) fn open(name: &str, terminal: &Terminal) -> Result<Model, Error> {
    let path = locate_model(name, terminal)?;
    Model::open(&path)
        .map_err(|error| Error::Model { model: name.to_owned(), error: Box::new(error) })
}

fn bucket(args: &args::Plan) -> Result<Bucket, Error> {
    const LIMIT: usize = 1 << 24;
    let positive = |name: &str, value: usize| {
        if (1..=LIMIT).contains(&value) {
            return Ok(value);
        }
        Err(Error::Usage(format!("{name} is {value}, 1 to {LIMIT} are allowed")))
    };
    let (batch, chunk) = match args.prefill {
        Some(tokens) => (1, positive("--prefill", tokens)?),
        None => (positive("--batch", args.batch)?, 1),
    };
    let context =
        positive("--depth plus the tokens of the step", args.depth.saturating_add(chunk))?;
    Ok(Bucket { batch, chunk, context, outputs: Outputs::Last })
}

fn heading(name: &str, model: &Model, bucket: &Bucket) -> String {
    let hyper = model.hyperparameters();
    let step = match bucket.chunk {
        1 if bucket.batch == 1 => "decode of one token".to_owned(),
        1 => format!("decode of one token for each of {} sequences", bucket.batch),
        chunk => format!("prefill of {chunk} tokens"),
    };
    format!(
        "{name}: {}, {} layers, {} parameters, weights {}\n{step}, attending to {} tokens\n",
        model.architecture().name(),
        hyper.layers.len(),
        text::count(model.parameters()),
        text::bytes(model.weight_bytes()),
        bucket.context
    )
}

fn amounts(cost: &Cost) -> String {
    let parts = [cost.weight_bytes, cost.state_bytes, cost.other_bytes];
    let ([weights, kv, other], flop) = (parts.map(text::bytes), text::count(cost.flops));
    format!("{weights} of weights, {kv} of KV cache, {other} of activations moved, {flop} flop")
}

/// One line of the table: a step, or all primitive steps of one composite.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PlanLine {
    op: String,
    label: String,
    steps: usize,
    cost: Cost,
}

/// Layers (or everything outside them) with identical lines.
#[derive(Debug, PartialEq, Eq)]
struct LayerGroup {
    layers: Vec<usize>,
    lines: Vec<PlanLine>,
}

fn table(plan: &Plan, full: bool) -> String {
    let groups = if full { every_step(plan) } else { merge_equal(by_layer(plan)) };
    let mut rows = vec![
        ["", "step", "op", "weights", "KV", "activations", "flop"].map(str::to_owned).to_vec(),
    ];
    for group in &groups {
        let mut name = title(&group.layers);
        for line in &group.lines {
            let op = if line.steps > 1 {
                format!("{} ({} steps)", line.op, line.steps)
            } else {
                line.op.clone()
            };
            let amount = |bytes| if bytes == 0 { String::new() } else { text::bytes(bytes) };
            let flops = line.cost.flops;
            rows.push(vec![
                std::mem::take(&mut name),
                line.label.clone(),
                op,
                amount(line.cost.weight_bytes),
                amount(line.cost.state_bytes),
                amount(line.cost.other_bytes),
                if flops == 0 { String::new() } else { text::count(flops) },
            ]);
        }
    }
    text::table(&rows, &[3, 4, 5, 6])
}

/// Formats layer numbers: `layers 0-3, 7 (5 alike)`.
fn title(layers: &[usize]) -> String {
    let Some(first) = layers.first() else { return String::new() };
    if layers.len() == 1 {
        return format!("layer {first}");
    }
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &layer in layers {
        match runs.last_mut() {
            Some((_, end)) if *end + 1 == layer => *end = layer,
            _ => runs.push((layer, layer)),
        }
    }
    let runs: Vec<String> =
        runs.iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") }).collect();
    format!("layers {} ({} alike)", runs.join(", "), layers.len())
}

/// Lists every step, with the steps of one kernel as one line.
fn every_step(plan: &Plan) -> Vec<LayerGroup> {
    let line = |group: &plan::Group| {
        let steps = &plan.steps[group.steps.clone()];
        PlanLine {
            op: group.name(plan),
            label: steps[0].label.clone(),
            steps: steps.len(),
            cost: steps.iter().map(|step| step.cost).sum(),
        }
    };
    vec![LayerGroup { layers: Vec::new(), lines: schedule(plan).iter().map(line).collect() }]
}

/// Groups consecutive steps by layer, with the steps of one composite as one line.
fn by_layer(plan: &Plan) -> Vec<LayerGroup> {
    let mut groups: Vec<LayerGroup> = Vec::new();
    let mut scope = None;
    for step in &plan.steps {
        let (layer, label) = place(&step.label);
        let layers: Vec<usize> = layer.into_iter().collect();
        if groups.last().is_none_or(|group| group.layers != layers) {
            groups.push(LayerGroup { layers, lines: Vec::new() });
            scope = None;
        }
        let Some(group) = groups.last_mut() else { continue };
        match group.lines.last_mut() {
            Some(line) if step.scope.is_some() && step.scope == scope => {
                line.steps += 1;
                line.cost = line.cost + step.cost;
            }
            _ => {
                let composite = step.scope.and_then(|id| plan.scopes.get(id.0 as usize));
                let op = composite.unwrap_or(&step.op).name();
                group.lines.push(PlanLine { op, label: label.into(), steps: 1, cost: step.cost });
            }
        }
        scope = step.scope;
    }
    groups
}

/// Merges layers with identical lines into one group, at the position of the first.
fn merge_equal(groups: Vec<LayerGroup>) -> Vec<LayerGroup> {
    let mut merged: Vec<LayerGroup> = Vec::new();
    for group in groups {
        let same = |other: &&mut LayerGroup| {
            !group.layers.is_empty() && !other.layers.is_empty() && other.lines == group.lines
        };
        match merged.iter_mut().find(same) {
            Some(other) => other.layers.extend(group.layers),
            None => merged.push(group),
        }
    }
    merged
}

/// Splits a label into layer and name: `blk.3.attn_q` is `attn_q` of layer 3.
pub(super) fn place(label: &str) -> (Option<usize>, &str) {
    let of_layer = || {
        let (layer, rest) = label.strip_prefix("blk.")?.split_once('.')?;
        Some((layer.parse().ok()?, rest))
    };
    of_layer().map_or((None, label), |(layer, rest)| (Some(layer), rest))
}

/// Describes a plan for `--json`.
fn described(plan: &Plan) -> Value {
    let names = |views: Vec<&View>| -> Vec<&str> {
        views.into_iter().map(|view| plan.buffer(view.buffer).name.as_str()).collect()
    };
    let step = |step: &Step| {
        json!({
            "op": step.op.name(),
            "label": step.label,
            "composite": step.scope.and_then(|id| plan.scopes.get(id.0 as usize)).map(Op::name),
            "reads": names(step.op.reads()),
            "writes": names(step.op.writes()),
            "weight_bytes": step.cost.weight_bytes,
            "kv_bytes": step.cost.state_bytes,
            "other_bytes": step.cost.other_bytes,
            "flops": step.cost.flops,
        })
    };
    let total = plan.cost();
    json!({
        "total": {
            "weight_bytes": total.weight_bytes,
            "kv_bytes": total.state_bytes,
            "other_bytes": total.other_bytes,
            "flops": total.flops,
        },
        "steps": plan.steps.iter().map(step).collect::<Vec<_>>(),
        // Steps of each generated kernel, for devices that generate kernels for groups.
        "groups": schedule(plan).iter().map(|group| group.steps.clone()).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(layers: &[usize], flops: u64) -> LayerGroup {
        let cost = Cost { flops, ..Cost::default() };
        let line = PlanLine { op: "x".into(), label: "y".into(), steps: 1, cost };
        LayerGroup { layers: layers.to_vec(), lines: vec![line] }
    }

    #[test]
    fn equal_layers_are_merged_even_if_not_adjacent() {
        let merged = merge_equal(vec![
            group(&[], 1),
            group(&[0], 5),
            group(&[1], 7),
            group(&[2], 5),
            group(&[3], 5),
            group(&[], 1),
        ]);
        let titles: Vec<String> = merged.iter().map(|g| title(&g.layers)).collect();
        assert_eq!(titles, ["", "layers 0, 2-3 (3 alike)", "layer 1", ""]);
    }

    #[test]
    fn labels_contain_the_layer() {
        assert_eq!(place("blk.12.attn_q,k,v"), (Some(12), "attn_q,k,v"));
        assert_eq!(place("output"), (None, "output"));
        assert_eq!(place("blk.x.y"), (None, "blk.x.y"));
    }
}
