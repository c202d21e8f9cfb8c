//! Launches a kernel's machine code: loads it, builds QMDs and constant banks, and records the
//! stream.

use orind_kernels::bank0::Bank0;
use orind_kernels::cubin;
use tegra::abi::nvmap::Caching;
use tegra::address::{GpuAddress, QmdAddress};
use tegra::buffer::{Attributes, Mailbox, ProbeBuffer};
use tegra::class::Compute;
use tegra::class::qmd::DependentAction;
use tegra::local_memory::{ABOVE_STACK_POINTER, THREAD_ADDRESS_BITS};
use tegra::pushbuffer::{CacheInvalidate, Entry, PushBuffer};
use tegra::qmd::{ConstantBank, Dependent, Launch, Program};
use tegra::space::AddressSpace;

use super::Failure;

/// Bytes mapped after the code: instructions are prefetched.
const PREFETCH: u64 = 4096;
/// Bytes of a QMD, also the alignment of constant banks and streams.
const QMD: u64 = 256;
const STACK_POINTER: u32 = (1 << THREAD_ADDRESS_BITS) - ABOVE_STACK_POINTER;

/// Machine code in GPU memory, and the resources of its launches.
#[derive(Debug)]
pub struct Code {
    program: Program,
    shared_bytes: u32,
    params_offset: u32,
    /// Bank 2: the compiler's literals and jump tables.
    literals: Option<(GpuAddress, u32)>,
    _memory: ProbeBuffer,
}

/// Parameters of a launch that are not the kernel's.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub dynamic_shared: u32,
}

/// A launch and the contents of its constant bank 0, which has no address yet.
#[derive(Clone, Debug)]
pub struct DescribedLaunch {
    pub launch: Launch,
    pub bank: Vec<u8>,
}

/// Start of the launches of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// The stream launches each.
    Stream,
    /// The stream launches the first; completion of one starts the next.
    Dependence,
}

/// Copies bytes into a new buffer, mapped with `map_flags`.
pub fn load(space: &AddressSpace, bytes: &[u8], map_flags: u32) -> Result<ProbeBuffer, Failure> {
    let attributes = Attributes { caching: Caching::InnerCacheable, map_flags };
    let memory = ProbeBuffer::new(space, bytes.len() as u64 + PREFETCH, attributes)?;
    let (longs, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let long = |at: u64| u64::from_le_bytes(*longs.get(at as usize).unwrap_or(&last));
    memory.fill(longs.len() as u64 + 1, long)?;
    Ok(memory)
}

impl Code {
    /// Loads a kernel. Its threads have `local_bytes` of local memory, including the stack.
    /// `map_flags` are those of the GPU's mapping: 0 makes the code writable by the GPU, like every
    /// program that was seen to run on an Orin.
    pub fn new(
        space: &AddressSpace,
        kernel: &cubin::Kernel<'_>,
        local_bytes: u32,
        map_flags: u32,
    ) -> Result<Self, Failure> {
        let refused = |problem: String| Failure::Kernel { name: kernel.name.clone(), problem };
        if local_bytes < kernel.stack_bytes {
            let (need, have) = (kernel.stack_bytes, local_bytes);
            return Err(refused(format!("{need} bytes of stack, its threads have {have}")));
        }
        let shared_bytes = u32::try_from(kernel.shared_bytes)
            .map_err(|_| refused(format!("{} bytes of shared memory", kernel.shared_bytes)))?;
        let mut image = kernel.code.to_vec();
        image.resize(image.len().next_multiple_of(QMD as usize), 0);
        let literals_at = image.len() as u64;
        image.extend_from_slice(kernel.constants2.unwrap_or_default());
        let memory = load(space, &image, map_flags)?;
        let literals = match kernel.constants2 {
            Some(literals) => Some((memory.address().offset(literals_at)?, literals.len() as u32)),
            None => None,
        };
        let program = Program {
            address: memory.address(),
            code_bytes: kernel.code.len() as u32,
            registers: kernel.registers,
            // No launch without a barrier has been seen on an Orin.
            barriers: kernel.barriers.max(1),
            local_bytes,
        };
        let params_offset = kernel.params_offset;
        Ok(Self { program, shared_bytes, params_offset, literals, _memory: memory })
    }

    /// Describes a launch with these parameters. The code must outlive it.
    #[must_use]
    pub fn launch(&self, space: &AddressSpace, shape: Shape, params: &[u8]) -> DescribedLaunch {
        let Shape { grid, block, dynamic_shared } = shape;
        let windows = space.windows();
        let bank = Bank0 {
            block,
            grid,
            shared_window: windows.shared().get(),
            local_window: windows.local().get(),
            stack_pointer: STACK_POINTER,
            dynamic_shared,
        };
        let bank = bank.image(self.params_offset, params);
        let mut launch = Launch::new(self.program, grid, block);
        launch.shared_bytes = self.shared_bytes + dynamic_shared;
        launch.constants[2] =
            self.literals.map(|(address, bytes)| ConstantBank { address, bytes, invalidate: true });
        DescribedLaunch { launch, bank }
    }
}

/// Recorded launches in GPU memory: QMDs, their constant banks, the stream.
#[derive(Debug)]
pub struct Recording {
    body: Entry,
    /// Offset of each launch's bank.
    banks: Vec<u64>,
    memory: Mailbox,
}

impl Recording {
    /// Records launches.
    pub fn new(
        space: &AddressSpace,
        launches: &[DescribedLaunch],
        link: Link,
    ) -> Result<Self, Failure> {
        let mut end = QMD * launches.len() as u64;
        let banks: Vec<u64> = launches
            .iter()
            .map(|launch| {
                let at = end;
                end += (launch.bank.len() as u64).next_multiple_of(QMD);
                at
            })
            .collect();
        let sent = match link {
            Link::Stream => launches.len(),
            Link::Dependence => launches.len().min(1),
        };
        let words = |qmds: &[QmdAddress]| {
            let mut stream = PushBuffer::<Compute>::new();
            let (instruction, data, constant, wait) = (true, true, true, true);
            let all = CacheInvalidate { instruction, data, constant, wait };
            stream.invalidate_shader_caches(all);
            for qmd in qmds {
                stream.launch(*qmd);
            }
            stream.into_words()
        };
        let stream_words = words(&vec![QmdAddress::from_shifted(0); sent]).len() as u64;
        let memory = Mailbox::new(space, end + 4 * stream_words)?;
        let qmds: Vec<QmdAddress> = (0..launches.len() as u64)
            .map(|i| Ok(QmdAddress::new(memory.at(i * QMD)?)?))
            .collect::<Result<_, Failure>>()?;
        for (i, DescribedLaunch { launch, bank }) in launches.iter().enumerate() {
            let mut launch = *launch;
            memory.write(banks[i], bank)?;
            let (address, bytes) = (memory.at(banks[i])?, bank.len() as u32);
            launch.constants[0] = Some(ConstantBank { address, bytes, invalidate: true });
            let next = qmds.get(i + 1).filter(|_| link == Link::Dependence);
            launch.dependent = next.map(|qmd| Dependent {
                qmd: *qmd,
                action: DependentAction::Schedule,
                prefetch: true,
            });
            memory.write_words(i as u64 * QMD, launch.encode()?.words())?;
        }
        let body = memory.write_stream(end, &words(&qmds[..sent]))?;
        Ok(Self { body, banks, memory })
    }

    /// The ring entry to submit.
    #[must_use]
    pub const fn body(&self) -> Entry {
        self.body
    }

    /// Replaces a launch's bank 0 by one of the same length; the GPU must not be using it.
    pub fn set_bank(&self, launch: usize, bank: &[u8]) -> Result<(), Failure> {
        Ok(self.memory.write(self.banks[launch], bank)?)
    }
}
