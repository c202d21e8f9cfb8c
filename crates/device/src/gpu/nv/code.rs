//! Machine code of kernels in GPU memory, and launch data of each kernel.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use orind_kernels::catalogue::Kernel;
use orind_kernels::cubin::Cubin;
use orind_kernels::{jit, prebuilt};
use tegra::buffer::{Filling, Weights};
use tegra::local_memory::LocalMemorySize;
use tegra::qmd::Program;
use tegra::space::AddressSpace;

use super::super::storage::ALIGN;
use super::{DEVICE, TARGET, failed};
use crate::{Error, Result};

/// Stack bytes of local memory: no kernel of a plan has a stack.
const STACK: u32 = 0;

/// Mapped behind the last instruction, because the hardware prefetches.
const PREFETCH: usize = 4096;

#[derive(Clone, Copy, Debug)]
pub(super) struct Loaded {
    pub(super) program: Program,
    /// Static shared memory of a block, in bytes.
    pub(super) shared_bytes: u32,
    /// Offset of the parameters in bank 0.
    pub(super) params_offset: u32,
    /// Address and size of bank 2, the compiler's literals, if any.
    pub(super) literals: Option<(tegra::address::GpuAddress, u32)>,
}

#[derive(Debug)]
pub(super) struct Code {
    memory: Vec<Weights>,
    loaded: HashMap<Kernel, Loaded>,
    /// Local memory that the threads need.
    pub(super) local: LocalMemorySize,
}

fn broken(what: String) -> Error {
    Error::Unsupported { device: DEVICE, what }
}

/// Name of the file that contains a kernel: a prebuilt unit, or a kernel compiled at run time.
fn file_name(kernel: Kernel) -> String {
    if kernel.is_prebuilt(TARGET) { TARGET.file(kernel.unit()) } else { kernel.symbol() }
}

/// Contents of that file.
fn machine_code(kernel: Kernel, name: &str) -> Result<Cow<'static, [u8]>> {
    if kernel.is_prebuilt(TARGET) {
        let file = prebuilt::file(kernel.unit(), TARGET).map(Cow::Owned);
        return file.ok_or_else(|| broken(format!("{name}: no machine code")));
    }
    let code = jit::code(kernel, TARGET, &|| true).map(Cow::Borrowed);
    code.map_err(|error| broken(format!("{name}: {error}")))
}

/// Parses a cubin and checks that it needs only code and literals.
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

/// A kernel in an image, independent of its file.
struct Placed {
    kernel: Kernel,
    at: usize,
    code_bytes: u32,
    /// Offset and size of the literals.
    literals: Option<(usize, u32)>,
    registers: u32,
    barriers: u32,
    stack_bytes: u32,
    shared_bytes: u64,
    params_offset: u32,
}

impl Image {
    /// Code of the kernels: prebuilt or compiled at run time.
    fn new(kernels: &[Kernel]) -> Result<Self> {
        let mut files = HashMap::new();
        for &kernel in kernels {
            if let Entry::Vacant(entry) = files.entry(file_name(kernel)) {
                let file = machine_code(kernel, entry.key())?;
                entry.insert(file);
            }
        }
        let mut cubins = HashMap::new();
        for (name, file) in &files {
            cubins.insert(name.as_str(), parsed(name, file)?);
        }
        let mut image = Self::default();
        for &kernel in kernels {
            let code = cubins[file_name(kernel).as_str()].kernel(&kernel.symbol());
            let code =
                code.ok_or_else(|| broken(format!("kernel {} is not built", kernel.symbol())))?;
            let at = image.put(code.code);
            let literals = code.constants2.map(|bytes| (image.put(bytes), bytes.len() as u32));
            image.placed.push(Placed {
                kernel,
                at,
                code_bytes: code.code.len() as u32,
                literals,
                registers: code.registers,
                barriers: code.barriers,
                stack_bytes: code.stack_bytes,
                shared_bytes: code.shared_bytes,
                params_offset: code.params_offset,
            });
        }
        Ok(image)
    }

    fn put(&mut self, bytes: &[u8]) -> usize {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGN as usize), 0);
        let at = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        at
    }

    /// Largest local memory of a thread.
    fn stack(&self) -> u32 {
        self.placed.iter().map(|p| p.stack_bytes).max().unwrap_or(0)
    }
}

impl Code {
    /// No kernels.
    pub(super) fn new(space: &AddressSpace) -> Result<Self> {
        let local = LocalMemorySize::new(STACK, space.orin().tpcs())
            .ok_or_else(|| broken(format!("{STACK} bytes of stack")))?;
        Ok(Self { memory: Vec::new(), loaded: HashMap::new(), local })
    }

    /// Loads kernels that are not loaded yet. Loaded code never moves.
    pub(super) fn add(
        &mut self,
        space: &AddressSpace,
        kernels: impl IntoIterator<Item = Kernel>,
    ) -> Result<()> {
        let mut missing = Vec::new();
        for kernel in kernels {
            if !self.loaded.contains_key(&kernel) && !missing.contains(&kernel) {
                missing.push(kernel);
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let image = Image::new(&missing)?;
        if image.stack() > STACK {
            return Err(broken(format!("{} bytes of stack, threads have {STACK}", image.stack())));
        }
        self.load(space, image)
    }

    fn load(&mut self, space: &AddressSpace, image: Image) -> Result<()> {
        let bytes = image.bytes.len();
        let mut memory = Filling::new(space, (bytes + PREFETCH) as u64).map_err(failed)?;
        memory.as_mut_slice()[..bytes].copy_from_slice(&image.bytes);
        let memory = memory.seal().map_err(failed)?;
        for placed in image.placed {
            let address = |at: usize| {
                memory.address().offset(at as u64).map_err(|e| failed(tegra::Error::from(e)))
            };
            let literals = match placed.literals {
                Some((at, bytes)) => Some((address(at)?, bytes)),
                None => None,
            };
            let program = Program {
                address: address(placed.at)?,
                code_bytes: placed.code_bytes,
                registers: placed.registers,
                barriers: placed.barriers,
                local_bytes: self.local.per_thread,
            };
            let shared_bytes = u32::try_from(placed.shared_bytes)
                .map_err(|_| broken(format!("{} bytes of shared memory", placed.shared_bytes)))?;
            let params_offset = placed.params_offset;
            let loaded = Loaded { program, shared_bytes, params_offset, literals };
            self.loaded.insert(placed.kernel, loaded);
        }
        self.memory.push(memory);
        Ok(())
    }

    /// Size of all images in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.memory.iter().map(Weights::bytes).sum()
    }

    pub(super) fn kernel(&self, kernel: Kernel) -> Result<Loaded> {
        let loaded = self.loaded.get(&kernel).copied();
        loaded.ok_or_else(|| broken(format!("kernel {} was not loaded", kernel.symbol())))
    }
}
