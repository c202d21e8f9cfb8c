//! GPUs: from a fused plan to kernel launches, the same for every driver.
//!
//! `layout` says by arithmetic how much memory an instance takes and where everything lies in it;
//! `lower` turns a plan into launches over addresses; `dependencies` says which launches must wait
//! for others, `limit` how long each takes at most, `variant` what may be tuned. A driver ([`nv`],
//! [`cuda`]) allocates the memory, and carries the launches to the hardware. Kernels and their
//! variants belong to the crate `orind-kernels`.

pub mod cuda;
mod dependencies;
mod launch;
mod layout;
mod limit;
mod lower;
pub mod nv;
pub mod variant;
mod weights;

use std::collections::HashMap;
use std::time::Duration;

use orind_kernels::source::Target;

use crate::plan_buffers::PlanBuffers;
use crate::tune::{Case, DeviceKey};
use crate::{Error, Request};
use launch::Launch;
use plan::Plan;
use telemetry::Probe;

/// A launch, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    /// Where it stands in the model: `blk.3.attn_q`.
    pub label: String,
    pub kernel: String,
    /// Blocks of the grid.
    pub blocks: u64,
    /// Threads of a block.
    pub threads: u32,
    /// Whether it must wait for launches before it.
    pub waits: bool,
    /// How long it takes at most on the slowest Orin; far more than it will.
    pub at_most: Duration,
}

/// The launches that a plan becomes on a GPU of `sms` streaming multiprocessors; needs none.
///
/// # Errors
/// [`Error::Unsupported`] for steps, types or shapes that the kernels do not take.
pub fn outline(plan: &Plan, request: &Request<'_>, sms: u32) -> Result<Vec<Outline>, Error> {
    let layout = layout::Layout::new(request)?;
    let launches = launches(plan, &layout, request, sms)?;
    let waits = dependencies::waits(&launches);
    let outline = launches.iter().zip(waits).map(|(launch, wait)| Outline {
        label: launch.label.clone(),
        kernel: launch.kernel.symbol(),
        blocks: launch.grid.iter().map(|&n| u64::from(n)).product(),
        threads: launch.kernel.threads(),
        waits: wait != dependencies::Wait::None,
        at_most: limit::of(launch, plan.bucket.context as u64),
    });
    Ok(outline.collect())
}

/// For which hardware choices hold, by the GPU's highest clock: what the system lets it reach now, on a
/// Jetson that of the power mode, and what its driver says, in MHz, where the system does not tell.
#[must_use]
pub fn key(probe: &Probe, sm: u32, sms: u32, driver_mhz: u32) -> DeviceKey {
    let told = probe.sample().gpu_clock.and_then(|clock| clock.max_hz);
    let mhz = told.and_then(|hz| u32::try_from(hz / 1_000_000).ok());
    DeviceKey::gpu(sm, sms, mhz.unwrap_or(driver_mhz))
}

/// What of the request's plans can be tuned.
fn cases(request: &Request<'_>) -> Result<Vec<Case>, Error> {
    let layout = layout::Layout::new(request)?;
    let mut cases = Vec::new();
    for plan in request.plans {
        // How many multiprocessors there are decides nothing about them.
        cases.extend(variant::cases(&launches(plan, &layout, request, 1)?));
    }
    Ok(cases)
}

/// The launches of a plan at addresses where nothing is.
fn launches(
    plan: &Plan,
    layout: &layout::Layout,
    request: &Request<'_>,
    sms: u32,
) -> Result<Vec<Launch>, Error> {
    /// Where memory would begin: addresses only have to differ.
    const BASE: u64 = 1 << 32;
    layout.admits(plan)?;
    let mut at = BASE;
    let mut place = |bytes: u64| {
        let address = at;
        at += bytes.next_multiple_of(layout::ALIGN);
        address
    };
    let weights: HashMap<_, _> = layout
        .weights
        .iter()
        .map(|(name, weight)| (name.clone(), (place(weight.bytes()), *weight)))
        .collect();
    let base = place(layout.cache_bytes);
    let caches =
        layout.caches.iter().map(|(name, (at, c))| (name.clone(), (base + at, *c))).collect();
    let buffers = PlanBuffers::new(plan);
    lower::lower(
        plan,
        &lower::Addresses {
            weights: &weights,
            caches: &caches,
            workspace: &layout.workspace,
            scratch: place(layout.workspace.scratch()),
            counters: place(layout.workspace.counters()),
            buffers: &buffers,
            buffers_at: place(buffers.bytes),
            sms,
            tuning: variant::Tuning {
                target: Target::Sm87,
                choices: request.choices,
                compiles: false,
            },
        },
    )
}
