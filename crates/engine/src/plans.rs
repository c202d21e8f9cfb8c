//! The plans that a model is prepared with, and what each of them is for: steps of so many rows, with adapters and without,
//! and what drafts by the model's own layer take. Which of them a step is submitted as is [`super::core`]'s business.

use model::{KvLayout, Model, ports};
use plan::{Bucket, Class, Outputs, Plan, graph};

/// Rows of the bucket that gives logits for every row: enough to keep the weights' cost shared,
/// few enough that a large vocabulary's logits stay small.
const ALL_LOGITS_ROWS: usize = model::HIDDEN_ROWS;
/// Rows of the smallest bucket for the last chunk of a prompt: as many as a GPU's products take at
/// once.
const SHORTEST_CHUNK: usize = 8;

/// All of them, before fusion: those of the buckets, the same with adapters, that of drafts, and those that leave nothing
/// for drafts.
///
/// # Errors
/// Those of [`Model::graph`].
pub(super) fn all(
    model: &Model,
    layout: KvLayout,
    chunk: usize,
    skips_padding: bool,
) -> graph::Result<Vec<Plan>> {
    let buckets = buckets(layout, chunk, skips_padding, model.pooling().is_some());
    let with = buckets.iter().filter(|_| model.adapters().len() > 0);
    let resting = buckets.iter().map(|bucket| (bucket, false));
    let resting = resting.chain(with.clone().map(|bucket| (bucket, true)));
    let resting = resting.filter(|(bucket, _)| can_rest(**bucket));
    let plans = buckets.iter().map(|bucket| model.plan(layout, *bucket));
    plans
        .chain(with.map(|bucket| model.adapted_plan(layout, *bucket)))
        .chain(model.draft_plan(layout).transpose())
        .chain(resting.filter_map(|(bucket, adapted)| {
            model.resting_plan(layout, *bucket, adapted).transpose()
        }))
        .collect()
}

/// Whether it leaves nothing for drafts, of the plans of a model with a layer for them.
pub(super) fn rests(plan: &Plan) -> bool {
    let of_layer = plan.find(Class::State, ports::NEXTN_HIDDEN).is_some()
        || plan.find(Class::Mailbox, ports::NEXT).is_some();
    can_rest(plan.bucket) && !of_layer
}

/// Whether a step in this bucket has a plan that leaves nothing for drafts by the model's own layer, where one with it costs
/// more.
fn can_rest(bucket: Bucket) -> bool {
    matches!(bucket.outputs, Outputs::None | Outputs::Last | Outputs::Resumed)
}

/// The buckets a model is prepared for, before fusion. The last chunk of a prompt has any length:
/// a device that computes padding gets buckets of half the size, and half of that, so that a short
/// prompt is a short step.
fn buckets(layout: KvLayout, chunk: usize, skips_padding: bool, embeds: bool) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = std::iter::successors(Some(1), |b| Some(b * 2))
        .take_while(|b| *b < layout.slots)
        .chain([layout.slots])
        .map(|batch| Bucket::decode(batch, layout.context))
        .collect();
    // In two parts what has to wait for a mask: for few and for all.
    let (one, all) =
        (Bucket::decode(1, layout.context), Bucket::decode(layout.slots, layout.context));
    for whole in std::iter::once(one).chain((layout.slots > 1).then_some(all)) {
        let parts = [Outputs::Deferred, Outputs::Resumed];
        buckets.extend(parts.map(|outputs| Bucket { outputs, ..whole }));
    }
    let mut prefill = |rows: usize, outputs| {
        // A chunk of one row would be a decode step, which advances its own mailboxes.
        buckets.push(Bucket::prefill(rows.max(2), layout.context, outputs));
    };
    prefill(chunk, Outputs::None);
    prefill(chunk.min(ALL_LOGITS_ROWS), Outputs::All);
    let halves = std::iter::successors(Some(chunk), |rows| Some(rows.div_ceil(2)));
    let smaller = halves.skip(1).take_while(|rows| !skips_padding && *rows >= SHORTEST_CHUNK);
    for rows in std::iter::once(chunk).chain(smaller) {
        prefill(rows, Outputs::Last);
    }
    if embeds {
        prefill(chunk, Outputs::Hidden);
    }
    buckets
}
