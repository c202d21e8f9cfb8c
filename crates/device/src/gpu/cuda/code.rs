//! Kernels as modules of the CUDA driver: the cubin for the device's SM if there is one, else PTX,
//! which the driver compiles.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use orind_kernels::catalogue::{Kernel, Unit};
use orind_kernels::source::Target;
use orind_kernels::{jit, prebuilt};

use super::DEVICE;
use super::driver::{Function, Module};
use super::fault::Fault;
use super::gpu::{Gpu, Owned};
use crate::{Error, Result};

/// Dynamic shared memory that every kernel may use without opting in.
const SHARED_FREE: u32 = 48 << 10;

/// Target for a compute capability; a cubin runs only on its own SM.
pub(super) const fn target(capability: u32) -> Target {
    match capability {
        87 => Target::Sm87,
        90 => Target::Sm90,
        _ => Target::Compute80,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum File {
    Unit(Unit),
    Compiled(Kernel),
}

pub(super) struct Code {
    gpu: Arc<Gpu>,
    target: Target,
    modules: HashMap<File, Owned<Module>>,
    /// Size of the loaded files.
    bytes: u64,
    /// Kernels, and the shared memory that each may use.
    functions: HashMap<Kernel, (Function, u32)>,
}

impl Code {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Self {
        Self {
            gpu: Arc::clone(gpu),
            target: target(gpu.capability),
            modules: HashMap::new(),
            bytes: 0,
            functions: HashMap::new(),
        }
    }

    /// Size of the loaded files: the driver does not report the memory of modules.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Kernel function, allowed to use `shared_bytes` of dynamic shared memory.
    pub(super) fn function(&mut self, kernel: Kernel, shared_bytes: u32) -> Result<Function> {
        let (function, allowed) = match self.functions.get(&kernel) {
            Some(&known) => known,
            None => (self.find(kernel)?, SHARED_FREE),
        };
        if shared_bytes > allowed {
            let driver = self.gpu.enter().map_err(Fault::at_the_seam)?;
            driver.allow_shared(function, shared_bytes).map_err(Fault::at_the_seam)?;
        }
        self.functions.insert(kernel, (function, allowed.max(shared_bytes)));
        Ok(function)
    }

    fn find(&mut self, kernel: Kernel) -> Result<Function> {
        let target = self.target;
        let which = if kernel.is_prebuilt(target) {
            File::Unit(kernel.unit())
        } else {
            File::Compiled(kernel)
        };
        let name = match which {
            File::Unit(unit) => target.file(unit),
            File::Compiled(kernel) => kernel.symbol(),
        };
        let broken =
            |why: String| Error::Unsupported { device: DEVICE, what: format!("{name}: {why}") };
        let module = match self.modules.entry(which) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let mut image = match which {
                    File::Unit(unit) => {
                        prebuilt::file(unit, target).ok_or_else(|| broken("not built".into()))?
                    }
                    File::Compiled(kernel) => jit::code(kernel, target, &|| true)
                        .map_err(|error| broken(error.to_string()))?
                        .to_vec(),
                };
                self.bytes += image.len() as u64;
                // PTX is NUL-terminated text.
                image.push(0);
                let loaded = Owned::new(&self.gpu, |driver| driver.load(&image));
                entry.insert(loaded.map_err(|fault| match fault.at_the_seam() {
                    Error::Unsupported { what, .. } => broken(what),
                    error => error,
                })?)
            }
        };
        let driver = self.gpu.enter().map_err(Fault::at_the_seam)?;
        driver
            .function(module.get(), &kernel.symbol())
            .map_err(|fault| broken(format!("{}: {fault}", kernel.symbol())))
    }
}
