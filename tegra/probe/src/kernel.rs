//! Kernels in the GPU's memory, and two to measure with: one that does nothing, to time launches, and
//! one that reads memory as fast as this project can, alone or as a chain.

use orind_kernels::bank0::Bank0;
use orind_kernels::catalogue::{Kernel, Weight, launch};
use orind_kernels::cubin::Cubin;
use orind_kernels::params::{IntoBytes, ProjectParams, Segment};
use orind_kernels::prebuilt;
use orind_kernels::source::Target;
use tegra::abi::nvmap::Caching;
use tegra::address::{GpuAddress, QmdAddress};
use tegra::buffer::{Attributes, Mailbox, Trial};
use tegra::class::Compute;
use tegra::class::qmd::DependentAction;
use tegra::local_memory::{ABOVE_STACK_POINTER, THREAD_ADDRESS_BITS};
use tegra::pushbuffer::{CacheInvalidate, Entry, Payload, PushBuffer};
use tegra::qmd::{ConstantBank, Dependent, Launch, Program, QmdRelease};
use tegra::space::AddressSpace;

use super::error::Error;

/// `EXIT`, and a branch to itself behind it, as compilers end code.
const EXIT: [u64; 4] =
    [0x0000_0000_0000_794d, 0x000f_ea00_0380_0000, 0xffff_fff0_0000_7947, 0x000f_c000_0383_ffff];
/// Mapped behind code: instructions are prefetched.
const PREFETCH: u64 = 4096;
const QMD: u64 = 256;

/// Bytes in memory of their own, mapped with `map_flags`.
pub(super) fn load(space: &AddressSpace, bytes: &[u8], map_flags: u32) -> Result<Trial, Error> {
    let attributes = Attributes { caching: Caching::InnerCacheable, map_flags };
    let memory = Trial::new(space, bytes.len() as u64 + PREFETCH, attributes)?;
    let word = |at: u64| {
        let mut word = [0; 8];
        let rest = bytes.get(at as usize * 8..).unwrap_or_default();
        let length = rest.len().min(8);
        word[..length].copy_from_slice(&rest[..length]);
        u64::from_le_bytes(word)
    };
    memory.fill(bytes.len().div_ceil(8) as u64, word)?;
    Ok(memory)
}

/// A prebuilt kernel of the catalogue.
pub(super) struct Loaded {
    program: Program,
    threads: u32,
    shared: u32,
    params_offset: u32,
    literals: Option<ConstantBank>,
    _memory: Trial,
}

impl Loaded {
    /// Code and literals in memory that is mapped with `map_flags`.
    pub(super) fn new(space: &AddressSpace, kernel: Kernel, map_flags: u32) -> Result<Self, Error> {
        let broken = |what: &str| Error::Kernel(format!("{}: {what}", kernel.symbol()));
        let file = prebuilt::file(kernel.unit(), Target::Sm87)
            .ok_or_else(|| broken("there is no machine code for sm_87"))?;
        let cubin = Cubin::parse(file).map_err(|error| broken(&error.to_string()))?;
        let built = cubin.kernel(&kernel.symbol()).ok_or_else(|| broken("it is not built"))?;
        // Without a stack it needs no local memory, and the queue none behind it.
        if built.stack_bytes != 0 {
            return Err(broken("it has a stack"));
        }
        let mut bytes = built.code.to_vec();
        bytes.resize(bytes.len().next_multiple_of(256), 0);
        let literals_at = bytes.len() as u64;
        bytes.extend_from_slice(built.constants2.unwrap_or_default());
        let memory = load(space, &bytes, map_flags)?;
        let program = Program {
            address: memory.address(),
            code_bytes: built.code.len() as u32,
            registers: built.registers,
            barriers: built.barriers,
            local_bytes: 0,
        };
        let literals = match built.constants2 {
            Some(literals) => Some(ConstantBank {
                address: memory.address().offset(literals_at)?,
                bytes: literals.len() as u32,
                invalidate: true,
            }),
            None => None,
        };
        Ok(Self {
            program,
            threads: kernel.threads(),
            shared: u32::try_from(built.shared_bytes).unwrap_or(u32::MAX),
            params_offset: built.params_offset,
            literals,
            _memory: memory,
        })
    }

    /// A launch with `dynamic` bytes of shared memory, whose bank 0 is written to `memory` at `at`.
    pub(super) fn launch(
        &self,
        space: &AddressSpace,
        grid: [u32; 3],
        dynamic: u32,
        params: &[u8],
        (memory, at): (&Mailbox, u64),
    ) -> Result<Launch, Error> {
        let block = [self.threads, 1, 1];
        let windows = space.windows();
        let bank = Bank0 {
            block,
            grid,
            shared_window: windows.shared().get(),
            local_window: windows.local().get(),
            stack_pointer: (1 << THREAD_ADDRESS_BITS) - ABOVE_STACK_POINTER,
            dynamic_shared: dynamic,
        };
        let bank = bank.image(self.params_offset, params);
        memory.write(at, &bank)?;
        let mut launch = Launch::new(self.program, grid, block);
        launch.shared_bytes = self.shared.saturating_add(dynamic);
        let (address, bytes) = (memory.at(at)?, bank.len() as u32);
        launch.constants[0] = Some(ConstantBank { address, bytes, invalidate: true });
        launch.constants[2] = self.literals;
        Ok(launch)
    }
}

/// All caches dropped, then launches.
pub(super) fn stream(launches: &[QmdAddress]) -> Vec<u32> {
    let mut stream = PushBuffer::<Compute>::new();
    let all = CacheInvalidate { instruction: true, data: true, constant: true, wait: true };
    stream.invalidate_shader_caches(all);
    for launch in launches {
        stream.launch(*launch);
    }
    stream.into_words()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// The stream sends each.
    Stream,
    /// The stream sends the first; completion of one starts the next.
    Dependence,
    /// So too, and each releases a semaphore besides.
    Released,
}

/// Launches of the kernel that does nothing, one warp each.
pub(super) struct Nothing {
    pub(super) body: Entry,
    /// The number of the launch that released last.
    word: Mailbox,
    _memory: Mailbox,
    _code: Trial,
}

impl Nothing {
    pub(super) fn new(space: &AddressSpace, count: u64, link: Link) -> Result<Self, Error> {
        let bytes: Vec<u8> = EXIT.iter().flat_map(|word| word.to_le_bytes()).collect();
        let code = load(space, &bytes, 0)?;
        let bank_bytes = 512;
        let memory = Mailbox::new(space, (count + 4) * QMD + 8 * count + 4096)?;
        let word = Mailbox::new(space, 64)?;
        let qmds: Vec<QmdAddress> = (0..count)
            .map(|i| Ok(QmdAddress::new(memory.at(i * QMD)?)?))
            .collect::<Result<_, Error>>()?;
        let bank_at = count * QMD;
        memory.write(bank_at, &vec![0; bank_bytes as usize])?;
        let program = Program {
            address: code.address(),
            code_bytes: bytes.len() as u32,
            registers: 24,
            barriers: 0,
            local_bytes: 0,
        };
        for i in 0..count {
            let mut launch = Launch::new(program, [1, 1, 1], [32, 1, 1]);
            let address = memory.at(bank_at)?;
            launch.constants[0] =
                Some(ConstantBank { address, bytes: bank_bytes, invalidate: true });
            let next = qmds.get(i as usize + 1).filter(|_| link != Link::Stream);
            launch.dependent = next.map(|qmd| Dependent {
                qmd: *qmd,
                action: DependentAction::Schedule,
                prefetch: true,
            });
            launch.releases[0] = (link == Link::Released).then_some(QmdRelease {
                at: word.address(),
                payload: Payload::Word(i as u32 + 1),
                timestamp: false,
                system_barrier: false,
            });
            memory.write_words(i * QMD, launch.encode()?.words())?;
        }
        let sent = match link {
            Link::Stream => &qmds[..],
            Link::Dependence | Link::Released => &qmds[..qmds.len().min(1)],
        };
        let body = memory.write_stream(bank_at + 2 * QMD, &stream(sent))?;
        Ok(Self { body, word, _memory: memory, _code: code })
    }

    /// The number of the launch that has released last, of those that do; 0 before.
    pub(super) fn released(&self) -> Result<u32, Error> {
        Ok(self.word.load_u32(0)?)
    }
}

/// The product of a matrix of half precision with a vector: reads the matrix once and writes next
/// to nothing.
pub(super) struct Reader {
    /// One launch, or a chain of which each starts the next.
    pub(super) body: Entry,
    rows: u32,
    memory: Mailbox,
    _code: Loaded,
}

const COLUMNS: u32 = 4096;
/// Bytes of a row of it.
pub(super) const ROW_BYTES: u64 = COLUMNS as u64 * 2;
/// In a reader's memory: bank 0, the stream, the word that its launch releases, if it does, the vector,
/// the product, and behind it the QMDs.
const BANK: u64 = 0;
const STREAM: u64 = 4096;
const WORD: u64 = 6144;
const VECTOR: u64 = 8192;
const PRODUCT: u64 = VECTOR + COLUMNS as u64 * 4;

impl Reader {
    /// A launch that reads `bytes`, a multiple of [`ROW_BYTES`], at `matrix`.
    pub(super) fn new(space: &AddressSpace, matrix: GpuAddress, bytes: u64) -> Result<Self, Error> {
        Self::with(space, matrix, bytes, 1, false)
    }

    /// As [`Reader::new`], and it releases a semaphore of its own behind what it writes.
    pub(super) fn releasing(
        space: &AddressSpace,
        matrix: GpuAddress,
        bytes: u64,
    ) -> Result<Self, Error> {
        Self::with(space, matrix, bytes, 1, true)
    }

    /// The launch of [`Reader::new`] `count` times, each started by the one before.
    pub(super) fn chain(
        space: &AddressSpace,
        matrix: GpuAddress,
        bytes: u64,
        count: u64,
    ) -> Result<Self, Error> {
        Self::with(space, matrix, bytes, count, false)
    }

    fn with(
        space: &AddressSpace,
        matrix: GpuAddress,
        bytes: u64,
        count: u64,
        releases: bool,
    ) -> Result<Self, Error> {
        let broken = |what: &str| Error::Kernel(format!("project_f16: {what}"));
        let kernel =
            Kernel::project(Weight::F16, 1, 1).ok_or_else(|| broken("not in the catalogue"))?;
        let Kernel::Project { variant, .. } = kernel else { return Err(broken("no projection")) };
        let code = Loaded::new(space, kernel, 0)?;
        let rows =
            u32::try_from(bytes / ROW_BYTES).map_err(|_| broken("the matrix is too large"))?;
        let dynamic = launch::project_shared_bytes(Weight::F16, 1, 1, COLUMNS as usize)
            .ok_or_else(|| broken("its rows are too long"))?;
        let qmds = (PRODUCT + u64::from(rows) * 4).next_multiple_of(QMD);
        let memory = Mailbox::new(space, qmds + count * QMD)?;
        memory.write(VECTOR, &vec![0; COLUMNS as usize * 4])?;
        let mut params = ProjectParams {
            x: memory.at(VECTOR)?.get(),
            k: COLUMNS,
            rows: 1,
            inverse_k: 1.0 / COLUMNS as f32,
            ..ProjectParams::default()
        };
        let out = memory.at(PRODUCT)?.get();
        params.segments[0] = Segment { weights: matrix.get(), out, n: rows, reserved: 0 };
        let grid = [launch::project_tiles(variant, &[rows], false), 1, 1];
        let mut launch = code.launch(space, grid, dynamic, params.as_bytes(), (&memory, BANK))?;
        if releases {
            launch.releases[0] = Some(QmdRelease {
                at: memory.at(WORD)?,
                payload: Payload::Word(1),
                timestamp: false,
                system_barrier: false,
            });
        }
        let qmd = |i: u64| Ok::<_, Error>(QmdAddress::new(memory.at(qmds + i * QMD)?)?);
        for i in 0..count {
            launch.dependent = match i + 1 < count {
                true => Some(Dependent {
                    qmd: qmd(i + 1)?,
                    action: DependentAction::Schedule,
                    prefetch: true,
                }),
                false => None,
            };
            memory.write_words(qmds + i * QMD, launch.encode()?.words())?;
        }
        let body = memory.write_stream(STREAM, &stream(&[qmd(0)?]))?;
        Ok(Self { body, rows, memory, _code: code })
    }

    /// Before a launch: puts into its product what it never writes, and takes its release back.
    pub(super) fn prepare(&self) -> Result<(), Error> {
        self.memory.write(PRODUCT, &vec![0xff; self.rows as usize * 4])?;
        Ok(self.memory.store_u32(WORD, 0)?)
    }

    /// Whether the release of a launch that has one is seen.
    pub(super) fn is_released(&self) -> Result<bool, Error> {
        Ok(self.memory.load_u32(WORD)? == 1)
    }

    /// Words of the product that the launch has not written, as the CPU sees it: the vector is 0, so the
    /// product is.
    pub(super) fn unwritten(&self) -> Result<u64, Error> {
        let mut unwritten = 0;
        for row in (0..u64::from(self.rows)).rev() {
            unwritten += u64::from(self.memory.load_u32(PRODUCT + 4 * row)? != 0);
        }
        Ok(unwritten)
    }
}
