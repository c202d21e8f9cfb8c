//! The CPU device: description, memory needs, and opening of instances.

use std::num::NonZeroUsize;

use super::errors::DEVICE;
use super::instance::CpuInstance;
use super::layout::Layout;
use super::memory::Memory;
use super::pool::{Pool, default_threads};
use super::variant;
use crate::tune::{Case, Choice, DeviceKey, Space};
use crate::{Device, Error, Footprint, Info, Instance, Request, Result, Tunable};
use plan::{Fusions, Op};
use simd::Isa;

/// The CPU with an instruction set and a number of threads.
#[derive(Clone, Copy, Debug)]
pub struct Cpu {
    isa: Isa,
    threads: NonZeroUsize,
}

impl Cpu {
    /// The best instruction set, and one thread per processor that this process may use.
    #[must_use]
    pub fn detect() -> Self {
        Self { isa: Isa::detect(), threads: default_threads() }
    }

    #[must_use]
    pub const fn new(isa: Isa, threads: NonZeroUsize) -> Self {
        Self { isa, threads }
    }
}

impl Device for Cpu {
    fn info(&self) -> Info {
        let model = processor().unwrap_or_else(|| std::env::consts::ARCH.to_owned());
        Info {
            name: DEVICE,
            description: format!("{model}, {}", self.isa),
            threads: self.threads.get(),
        }
    }

    fn fusions(&self) -> Fusions {
        Fusions::ALL
    }

    fn skips_padding(&self) -> bool {
        true
    }

    fn footprint(&self, request: &Request<'_>) -> Result<Footprint> {
        Ok(Layout::new(request, self.isa)?.footprint(self.threads.get()))
    }

    fn open(&self, request: &Request<'_>) -> Result<Box<dyn Instance>> {
        let layout = Layout::new(request, self.isa)?;
        let need = layout.footprint(self.threads.get());
        let have = crate::available().unwrap_or(u64::MAX);
        let refused = |why: &str| Error::OutOfMemory {
            what: format!(
                "weights {} + KV cache {} + activations {} bytes{why}",
                need.weights, need.state, need.activations
            ),
            need: need.total(),
            have,
        };
        if need.total() > have {
            return Err(refused(""));
        }
        let threads = self.threads.get();
        let memory = Memory::new(layout, threads).map_err(|e| refused(&format!(" ({e})")))?;
        let started = Pool::new(self.threads).and_then(|pool| {
            let choices = request.choices.cloned().unwrap_or_default();
            CpuInstance::new(self.isa, memory, pool, choices)
        });
        match started {
            Ok(instance) => Ok(Box::new(instance)),
            Err(e) => Err(Error::Lost {
                scope: crate::Scope::Instance,
                rebuildable: true,
                reason: format!("{threads} threads could not be started"),
                source: Some(Box::new(e)),
            }),
        }
    }

    fn tunable(&self) -> Option<&dyn Tunable> {
        Some(self)
    }
}

impl Tunable for Cpu {
    fn key(&self) -> DeviceKey {
        let model = processor().unwrap_or_else(|| std::env::consts::ARCH.to_owned());
        let cores = u32::try_from(self.threads.get()).unwrap_or(u32::MAX);
        DeviceKey::cpu(&model, self.isa.name(), cores)
    }

    fn cases(&self, request: &Request<'_>) -> Result<Vec<Case>> {
        let cases = request.plans.iter().flat_map(|plan| {
            plan.steps.iter().filter_map(|step| match &step.op {
                Op::Project(project) => variant::case(plan, project),
                _ => None,
            })
        });
        Ok(cases.collect())
    }

    fn space(&self, case: &Case) -> Option<Space> {
        variant::space(self.isa, case)
    }

    fn compile(&self, _: &Case, _: &Choice, _: &dyn Fn() -> bool) -> Result<()> {
        // The code of every choice is part of this program.
        Ok(())
    }
}

/// Model name of the processor, if the system reports it.
fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
