//! The list of plans that a model is prepared with: one per bucket, each with and without adapters, the plan of
//! nextn drafts, and plans that skip the nextn layer.

use model::{KvLayout, Model, ports};
use plan::{Bucket, Class, Outputs, Plan, graph};

/// Rows of the bucket with logits of every row: enough to share the cost of reading the weights,
/// few enough to keep the logits of a large vocabulary small.
const ALL_LOGITS_ROWS: usize = model::MIN_NEXTN_ROWS;
/// Rows of the smallest bucket for the last chunk of a prompt: the tile height of a GPU's matmuls.
const SHORTEST_CHUNK: usize = 8;

/// All plans of a model, before fusion.
///
/// # Errors
/// Those of [`Model::graph`].
pub(crate) fn all(
    model: &Model,
    layout: KvLayout,
    chunk: usize,
    skips_padding: bool,
) -> graph::Result<Vec<Plan>> {
    let buckets = buckets(layout, chunk, skips_padding, model.pooling().is_some());
    let with = buckets.iter().filter(|_| model.adapters().len() > 0);
    let without_nextn = buckets.iter().map(|bucket| (bucket, false));
    let without_nextn = without_nextn.chain(with.clone().map(|bucket| (bucket, true)));
    let without_nextn = without_nextn.filter(|(bucket, _)| may_skip_nextn(**bucket));
    let plans = buckets.iter().map(|bucket| model.plan(layout, *bucket));
    plans
        .chain(with.map(|bucket| model.adapted_plan(layout, *bucket)))
        .chain(model.draft_plan(layout).transpose())
        .chain(without_nextn.filter_map(|(bucket, adapted)| {
            model.plan_without_nextn(layout, *bucket, adapted).transpose()
        }))
        .collect()
}

/// True if a plan of a model with a nextn layer omits the state that its drafts need.
pub(super) fn skips_nextn(plan: &Plan) -> bool {
    let of_layer = plan.find(Class::State, ports::NEXTN_HIDDEN).is_some()
        || plan.find(Class::Mailbox, ports::NEXT).is_some();
    may_skip_nextn(plan.bucket) && !of_layer
}

/// True if a bucket gets a cheaper plan without the nextn layer.
fn may_skip_nextn(bucket: Bucket) -> bool {
    matches!(bucket.outputs, Outputs::None | Outputs::Last | Outputs::Resumed)
}

/// Buckets that a model is prepared for. The last chunk of a prompt has any length: a device that computes
/// padding also gets buckets of half the size, a quarter and so on, so that a short prompt is a short step.
fn buckets(layout: KvLayout, chunk: usize, skips_padding: bool, embeds: bool) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = std::iter::successors(Some(1), |b| Some(b * 2))
        .take_while(|b| *b < layout.slots)
        .chain([layout.slots])
        .map(|batch| Bucket::decode(batch, layout.context))
        .collect();
    // Decode steps that wait for grammar masks are split in two: for one slot and for all.
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
