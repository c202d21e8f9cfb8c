//! Context length of a load that sets none: the model's own, cut to what fits into the memory that is left.

use super::LoadSpec;
use super::model_files::layout_of;
use device::{self, Device};
use model::{KvLayout, Model};

/// Step of a context that is cut, in tokens: the span of an attention block or a multiple of it.
const STEP: usize = 256;

/// Layout with the longest context whose KV cache fits; `resident` bytes can be freed. The model's own context if not
/// even [`STEP`] tokens fit: the load then reports what is needed.
pub(super) fn layout(
    model: &Model,
    spec: &LoadSpec,
    device: &dyn Device,
    resident: u64,
) -> KvLayout {
    let own = model.hyperparameters().context;
    let budget = budget(model, spec, device, resident);
    let fits =
        |context| model.state_bytes(layout_of(spec, context)).is_some_and(|bytes| bytes <= budget);
    let context = longest(own, fits).unwrap_or(own);
    if context < own {
        tracing::info!(
            context,
            own,
            slots = spec.slots,
            kv_budget_mib = budget >> 20,
            "the context is shorter than the model's own, to fit into memory; fewer slots, a smaller kv_type or memory_reserve_mib allow more"
        );
    }
    layout_of(spec, context)
}

/// Bytes that the KV cache may occupy.
fn budget(model: &Model, spec: &LoadSpec, device: &dyn Device, resident: u64) -> u64 {
    let free = match device.gpu_memory() {
        Some(0) => device::available(),
        Some(free) if device.shares_memory() => Some(free.saturating_sub(device::cpu::promised())),
        Some(free) => Some(free),
        None => device::available(),
    };
    let left = free
        .unwrap_or(u64::MAX)
        .saturating_add(resident)
        .saturating_sub(spec.memory_reserve)
        .saturating_sub(model.weight_bytes());
    // A draft model has weights and a cache of its own; activations need a part of the rest.
    if spec.draft_model.is_some() { left / 2 } else { left / 10 * 9 }
}

/// Largest context up to `own` that fits: `own` itself, or a multiple of [`STEP`].
fn longest(own: usize, fits: impl Fn(usize) -> bool) -> Option<usize> {
    if fits(own) {
        return Some(own);
    }
    let (mut low, mut high) = (0, own.div_ceil(STEP));
    // `low` steps fit, `high` do not.
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle * STEP) {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low > 0).then_some(low * STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_context_that_fits_is_found() {
        for (own, most, expected) in [
            (4096, usize::MAX, Some(4096)),
            (4000, 4000, Some(4000)),
            (4000, 3999, Some(3840)),
            (131_072, 70_000, Some(69_888)),
            (131_072, 256, Some(256)),
            (131_072, 255, None),
            (100, 99, None),
        ] {
            assert_eq!(longest(own, |context| context <= most), expected, "{own} {most}");
        }
    }
}
