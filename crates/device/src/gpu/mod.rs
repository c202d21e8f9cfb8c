//! GPU devices: lowers fused plans to kernel launches, independent of the driver.
//!
//! `storage` defines how weights and states are stored; `layout` computes sizes and addresses;
//! `lower` turns a plan into launches; `dependencies` finds which launches must wait; `limit`
//! bounds their duration; `variant` and `groups` declare tuning spaces. A driver ([`nv`], [`cuda`])
//! allocates memory and submits the launches. Kernels and their variants are in the crate
//! `orind-kernels`.

pub mod cuda;
mod dependencies;
mod groups;
mod launch;
mod layout;
mod limit;
mod lower;
pub mod nv;
mod storage;
pub mod variant;
mod weights;

pub(crate) use self::limit::TURN;
use std::collections::{BTreeMap, HashMap};
use std::iter::repeat_n;
use std::time::Duration;

use orind_kernels::source::Target;

use crate::FirstLight;
use crate::modes::Mode;
use crate::plan_buffers::PlanBuffers;
use crate::tune::{Case, Choice, Choices, DeviceKey, Space};
use crate::{Device, Error, Footprint, Info, Instance, Request, Result, Tunable};
use launch::Launch;
use layout::Layout;
use plan::{Cost, Fusions, Plan};
use storage::of_device;
use telemetry::Probe;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    /// Name in the model, such as `blk.3.attn_q`.
    pub label: String,
    pub kernel: String,
    pub blocks: u64,
    pub threads: u32,
    pub waits: bool,
    /// Index of the QMD chain that contains it in the default mode.
    pub chain: usize,
    /// Upper bound of its duration on the slowest Orin.
    pub at_most: Duration,
}

/// Launches of a plan on a GPU with `sms` SMs; needs no GPU.
///
/// # Errors
///
/// [`Error::Unsupported`] for steps, types or shapes that no kernel supports.
pub fn outline(plan: &Plan, request: &Request<'_>, sms: u32) -> Result<Vec<Outline>> {
    let layout = Layout::new(request)?;
    let launches = launches(plan, &layout, request, sms)?;
    let waits = dependencies::waits(&launches);
    let context = plan.bucket.context as u64;
    let chains = nv::chains::Chains::of(&launches, context, Mode::default()).lengths;
    let chains = chains.iter().enumerate().flat_map(|(chain, &length)| repeat_n(chain, length));
    let outline = launches.iter().zip(waits).zip(chains).map(|((launch, wait), chain)| Outline {
        label: launch.label.clone(),
        kernel: launch.kernel.symbol(),
        blocks: launch.grid.iter().map(|&n| u64::from(n)).product(),
        threads: launch.kernel.threads(),
        waits: wait != dependencies::Wait::None,
        chain,
        at_most: limit::at_most(launch, context),
    });
    Ok(outline.collect())
}

/// Driver-specific part of a GPU device.
trait GpuDevice: Send + Sync {
    const NAME: &'static str;

    fn description(&self) -> String;

    /// Target of its machine code.
    fn target(&self) -> Target;

    fn device_key(&self) -> DeviceKey;

    /// Free memory in bytes.
    fn free(&self) -> Result<u64>;

    /// Returns whether its memory is system memory.
    fn shares_memory(&self) -> bool;

    fn first_light(&self) -> Option<&dyn FirstLight>;

    fn instance(&self, layout: Layout, choices: Choices) -> Result<Box<dyn Instance>>;
}

impl<G: GpuDevice> Device for G {
    fn info(&self) -> Info {
        Info { name: G::NAME, description: self.description(), threads: 0 }
    }

    fn fusions(&self) -> Fusions {
        Fusions { convolutions: false, ..Fusions::ALL }
    }

    fn cost(&self, plan: &Plan) -> Cost {
        lower::cost(plan)
    }

    fn footprint(&self, request: &Request<'_>) -> Result<Footprint> {
        Ok(Layout::new(request).map_err(of_device(G::NAME))?.footprint())
    }

    fn open(&self, request: &Request<'_>) -> Result<Box<dyn Instance>> {
        let layout = Layout::new(request).map_err(of_device(G::NAME))?;
        layout.footprint().fits(self.free()?)?;
        self.instance(layout, request.choices.cloned().unwrap_or_default())
    }

    fn gpu_memory(&self) -> Option<u64> {
        Some(self.free().unwrap_or(0))
    }

    fn shares_memory(&self) -> bool {
        GpuDevice::shares_memory(self)
    }

    fn tunable(&self) -> Option<&dyn Tunable> {
        Some(self)
    }

    fn first_light(&self) -> Option<&dyn FirstLight> {
        GpuDevice::first_light(self)
    }
}

impl<G: GpuDevice> Tunable for G {
    fn key(&self) -> DeviceKey {
        self.device_key()
    }

    fn cases(&self, request: &Request<'_>) -> Result<Vec<Case>> {
        cases(request).map_err(of_device(G::NAME))
    }

    fn groups(&self, request: &Request<'_>) -> Result<BTreeMap<Case, Plan>> {
        groups::all(request).map_err(of_device(G::NAME))
    }

    fn space(&self, case: &Case) -> Option<Space> {
        groups::space(self.target(), case).or_else(|| variant::space(self.target(), case))
    }

    fn compile(&self, case: &Case, choice: &Choice, wanted: &dyn Fn() -> bool) -> Result<()> {
        if let Some(made) = groups::compile(self.target(), case, choice, wanted) {
            return made.map_err(of_device(G::NAME));
        }
        let made = variant::compile(self.target(), case, choice, wanted);
        made.map_err(|error| Error::Unsupported { device: G::NAME, what: error.to_string() })
    }
}

/// Hardware key of tuned choices, by the GPU's highest clock in MHz: the one that the system
/// currently allows (on a Jetson, by power mode), or else the driver's.
#[must_use]
pub fn key(probe: &Probe, sm: u32, sms: u32, driver_mhz: u32) -> DeviceKey {
    let told = probe.sample().gpu_clock.and_then(|clock| clock.max_hz);
    let mhz = told.and_then(|hz| u32::try_from(hz / 1_000_000).ok());
    DeviceKey::gpu(sm, sms, mhz.unwrap_or(driver_mhz))
}

fn cases(request: &Request<'_>) -> Result<Vec<Case>> {
    let layout = Layout::new(request)?;
    let mut cases = Vec::new();
    for plan in request.plans {
        // Cases do not depend on the number of SMs.
        cases.extend(variant::cases(&launches(plan, &layout, request, 1)?));
    }
    Ok(cases)
}

/// Launches of a plan with placeholder addresses.
fn launches(plan: &Plan, layout: &Layout, request: &Request<'_>, sms: u32) -> Result<Vec<Launch>> {
    /// Placeholder base address; addresses only have to be distinct.
    const BASE: u64 = 1 << 32;
    layout.admits(plan)?;
    let mut at = BASE;
    let mut place = |bytes: u64| {
        let address = at;
        at += bytes.next_multiple_of(storage::ALIGN);
        address
    };
    let weights: HashMap<_, _> = layout
        .weights
        .iter()
        .map(|(name, weight)| (name.clone(), (place(weight.bytes()), *weight)))
        .collect();
    let states = layout.states_at(place(layout.state_bytes));
    let buffers = PlanBuffers::new(plan);
    lower::lower(
        plan,
        &lower::Addresses {
            weights: &weights,
            states: &states,
            table: (place(layout.table_bytes()), layout.table),
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
