//! The kernels' machine code in GPU memory, and what a launch of each needs.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use orind_kernels::catalogue::Kernel;
use orind_kernels::cubin::{self, Cubin};
use orind_kernels::{jit, prebuilt};
use tegra::buffer::{Filling, Weights};
use tegra::local_memory::LocalMemorySize;
use tegra::qmd::Program;
use tegra::space::AddressSpace;

use super::super::layout::ALIGN;
use super::{DEVICE, TARGET, failed};
use crate::{Error, Result};

/// Mapped behind the last instruction: the hardware fetches ahead.
const PREFETCH: usize = 4096;

#[derive(Clone, Copy, Debug)]
pub(super) struct Loaded {
    pub(super) program: Program,
    /// Static shared memory of a block, in bytes.
    pub(super) shared_bytes: u32,
    /// Where the parameters begin in bank 0.
    pub(super) params_offset: u32,
    /// Bank 2: the compiler's literals, if any.
    pub(super) literals: Option<(tegra::address::GpuAddress, u32)>,
}

#[derive(Debug)]
pub(super) struct Code {
    memory: Vec<Weights>,
    loaded: HashMap<Kernel, Loaded>,
    /// Bytes of stack that local memory was made for.
    stack: u32,
    /// The threads' local memory that they need.
    pub(super) local: LocalMemorySize,
}

fn broken(what: String) -> Error {
    Error::Unsupported { device: DEVICE, what }
}

/// The file that a kernel is in, and its name: a prebuilt unit, or the kernel alone, compiled here.
fn machine_code(kernel: Kernel) -> Result<(String, &'static [u8])> {
    if kernel.is_prebuilt(TARGET) {
        let name = TARGET.file(kernel.unit());
        return match prebuilt::file(kernel.unit(), TARGET) {
            Some(file) => Ok((name, file)),
            None => Err(broken(format!("{name}: no machine code"))),
        };
    }
    match jit::code(kernel, TARGET, &|| true) {
        Ok(code) => Ok((kernel.symbol(), code)),
        Err(error) => Err(broken(format!("{}: {error}", kernel.symbol()))),
    }
}

/// A cubin that needs nothing but its code and literals.
fn parsed<'a>(name: &str, file: &'a [u8]) -> Result<Cubin<'a>> {
    let cubin = Cubin::parse(file).map_err(|e| broken(format!("{name}: {e}")))?;
    let free = cubin.relocations.is_empty()
        && cubin.constants3.is_none()
        && cubin.global_init.is_none()
        && cubin.global_bytes == 0;
    if free { Ok(cubin) } else { Err(broken(format!("{name}: globals"))) }
}

#[derive(Default)]
struct Image {
    bytes: Vec<u8>,
    placed: Vec<Placed>,
}

struct Placed {
    kernel: Kernel,
    code: cubin::Kernel<'static>,
    at: usize,
    literals: Option<usize>,
}

impl Image {
    /// The code of some kernels: what is prebuilt, else what is compiled here.
    fn new(kernels: &[Kernel]) -> Result<Self> {
        let mut cubins = HashMap::new();
        let mut image = Self::default();
        for &kernel in kernels {
            let (name, file) = machine_code(kernel)?;
            let cubin = match cubins.entry(file.as_ptr()) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => entry.insert(parsed(&name, file)?),
            };
            let code = cubin
                .kernel(&kernel.symbol())
                .ok_or_else(|| broken(format!("kernel {} is not built", kernel.symbol())))?
                .clone();
            let at = image.put(code.code);
            let literals = code.constants2.map(|bytes| image.put(bytes));
            image.placed.push(Placed { kernel, code, at, literals });
        }
        Ok(image)
    }

    fn put(&mut self, bytes: &[u8]) -> usize {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGN as usize), 0);
        let at = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        at
    }

    /// Local memory of a thread that the largest takes.
    fn stack(&self) -> u32 {
        self.placed.iter().map(|p| p.code.stack_bytes).max().unwrap_or(0)
    }
}

impl Code {
    /// Loads the code of the kernels that nothing has been chosen for.
    pub(super) fn new(space: &AddressSpace) -> Result<Self> {
        let kernels: Vec<_> = Kernel::all().into_iter().filter(|k| k.is_default()).collect();
        let image = Image::new(&kernels)?;
        let stack = image.stack();
        let local = LocalMemorySize::new(stack, space.orin().tpcs())
            .ok_or_else(|| broken(format!("{stack} bytes of stack")))?;
        let mut code = Self { memory: Vec::new(), loaded: HashMap::new(), stack, local };
        code.load(space, image)?;
        Ok(code)
    }

    /// Loads more kernels. What was loaded stays where it is.
    pub(super) fn add(&mut self, space: &AddressSpace, kernels: &[Kernel]) -> Result<()> {
        if kernels.is_empty() {
            return Ok(());
        }
        let image = Image::new(kernels)?;
        if image.stack() > self.stack {
            let (need, have) = (image.stack(), self.stack);
            return Err(broken(format!("{need} bytes of stack, local memory has {have}")));
        }
        self.load(space, image)
    }

    fn load(&mut self, space: &AddressSpace, image: Image) -> Result<()> {
        let bytes = image.bytes.len();
        let mut memory = Filling::new(space, (bytes + PREFETCH) as u64).map_err(failed)?;
        memory.as_mut_slice()[..bytes].copy_from_slice(&image.bytes);
        let memory = memory.seal().map_err(failed)?;
        for Placed { kernel, code, at, literals } in image.placed {
            let address = |at: usize| {
                memory.address().offset(at as u64).map_err(|e| failed(tegra::Error::from(e)))
            };
            let literals = match (literals, code.constants2) {
                (Some(at), Some(bytes)) => Some((address(at)?, bytes.len() as u32)),
                _ => None,
            };
            let program = Program {
                address: address(at)?,
                code_bytes: code.code.len() as u32,
                registers: code.registers,
                barriers: code.barriers,
                local_bytes: self.local.per_thread,
            };
            let shared_bytes = u32::try_from(code.shared_bytes)
                .map_err(|_| broken(format!("{} bytes of shared memory", code.shared_bytes)))?;
            let params_offset = code.params_offset;
            self.loaded.insert(kernel, Loaded { program, shared_bytes, params_offset, literals });
        }
        self.memory.push(memory);
        Ok(())
    }

    /// Memory of all images.
    pub(super) fn bytes(&self) -> u64 {
        self.memory.iter().map(Weights::bytes).sum()
    }

    pub(super) fn kernel(&self, kernel: Kernel) -> Result<Loaded> {
        let loaded = self.loaded.get(&kernel).copied();
        loaded.ok_or_else(|| broken(format!("kernel {} was not loaded", kernel.symbol())))
    }
}
