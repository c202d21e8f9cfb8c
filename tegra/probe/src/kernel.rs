//! The kernels of experiments: the catalogue's, an empty one to time launches with, and one that
//! reads memory as fast as this project can, alone or as a chain.

use orind_kernels::catalogue::{Kernel, Weight, launch};
use orind_kernels::cubin::Cubin;
use orind_kernels::params::{IntoBytes, ProjectParams, Segment};
use orind_kernels::prebuilt;
use orind_kernels::source::Target;
use tegra::address::GpuAddress;
use tegra::buffer::{Mailbox, ProbeBuffer};
use tegra::pushbuffer::{Entry, Payload};
use tegra::qmd::{Launch, Program, QmdRelease};
use tegra::space::AddressSpace;
use tegra_first_light::launch::{Code, DescribedLaunch, Link, Recording, Shape, load};

use super::error::Error;

/// `EXIT`, followed by a branch to itself, as compilers end code.
const EXIT: [u64; 4] =
    [0x0000_0000_0000_794d, 0x000f_ea00_0380_0000, 0xffff_fff0_0000_7947, 0x000f_c000_0383_ffff];

/// The machine code of a kernel, in memory that is mapped with `map_flags`.
pub(super) fn code(space: &AddressSpace, kernel: Kernel, map_flags: u32) -> Result<Code, Error> {
    let broken = |what: &str| Error::Kernel(format!("{}: {what}", kernel.symbol()));
    let file = prebuilt::file(kernel.unit(), Target::Sm87)
        .ok_or_else(|| broken("there is no machine code for sm_87"))?;
    let cubin = Cubin::parse(&file).map_err(|error| broken(&error.to_string()))?;
    let built = cubin.kernel(&kernel.symbol()).ok_or_else(|| broken("it is not built"))?;
    // The queues of experiments have no local memory, and no kernel of the catalogue uses a stack.
    Ok(Code::new(space, built, 0, map_flags)?)
}

/// Launches of the empty kernel, one warp each.
pub(super) struct EmptyKernel {
    pub(super) body: Entry,
    /// The number of the most recent launch with a release.
    word: Mailbox,
    _recording: Recording,
    _code: ProbeBuffer,
}

impl EmptyKernel {
    pub(super) fn new(space: &AddressSpace, count: u64, link: Link) -> Result<Self, Error> {
        Self::with(space, count, link, false)
    }

    /// Launches that start each other and release a semaphore each.
    pub(super) fn releasing(space: &AddressSpace, count: u64) -> Result<Self, Error> {
        Self::with(space, count, Link::Dependence, true)
    }

    fn with(space: &AddressSpace, count: u64, link: Link, releases: bool) -> Result<Self, Error> {
        let bytes: Vec<u8> = EXIT.iter().flat_map(|word| word.to_le_bytes()).collect();
        let code = load(space, &bytes, 0)?;
        let word = Mailbox::new(space, 64)?;
        let program = Program {
            address: code.address(),
            code_bytes: bytes.len() as u32,
            registers: 24,
            barriers: 0,
            local_bytes: 0,
        };
        let described = |number: u64| {
            let mut launch = Launch::new(program, [1, 1, 1], [32, 1, 1]);
            launch.releases[0] = releases.then_some(QmdRelease {
                at: word.address(),
                payload: Payload::Word(number as u32),
                timestamp: false,
                system_barrier: false,
            });
            DescribedLaunch { launch, bank: vec![0; 512] }
        };
        let launches: Vec<DescribedLaunch> = (1..=count).map(described).collect();
        let recording = Recording::new(space, &launches, link)?;
        Ok(Self { body: recording.body(), word, _recording: recording, _code: code })
    }

    /// The number of the most recent launch with a release; 0 before.
    pub(super) fn released(&self) -> Result<u32, Error> {
        Ok(self.word.load_u32(0)?)
    }
}

/// The product of an F16 matrix and a vector: reads the matrix once and writes very little.
pub(super) struct Reader {
    /// One launch, or a chain of which each starts the next.
    pub(super) body: Entry,
    rows: u32,
    memory: Mailbox,
    _recording: Recording,
    _code: Code,
}

const COLUMNS: u32 = 4096;
/// Bytes of a matrix row.
pub(super) const ROW_BYTES: u64 = COLUMNS as u64 * 2;
/// Layout of a reader's memory: the word that its launch releases, if it does, the vector, the
/// product.
const WORD: u64 = 0;
const VECTOR: u64 = 256;
const PRODUCT: u64 = VECTOR + COLUMNS as u64 * 4;

impl Reader {
    /// A launch that reads `bytes`, a multiple of eight times [`ROW_BYTES`], at `matrix`.
    pub(super) fn new(space: &AddressSpace, matrix: GpuAddress, bytes: u64) -> Result<Self, Error> {
        Self::with(space, matrix, bytes, 1, false)
    }

    /// Like [`Reader::new`], with a release of its own semaphore after its stores.
    pub(super) fn releasing(
        space: &AddressSpace,
        matrix: GpuAddress,
        bytes: u64,
    ) -> Result<Self, Error> {
        Self::with(space, matrix, bytes, 1, true)
    }

    /// The launch of [`Reader::new`] `count` times, each started by the previous one.
    pub(super) fn chain(
        space: &AddressSpace,
        matrix: GpuAddress,
        bytes: u64,
        count: usize,
    ) -> Result<Self, Error> {
        Self::with(space, matrix, bytes, count, false)
    }

    fn with(
        space: &AddressSpace,
        matrix: GpuAddress,
        bytes: u64,
        count: usize,
        releases: bool,
    ) -> Result<Self, Error> {
        let broken = |what: &str| Error::Kernel(format!("project_f16: {what}"));
        let kernel =
            Kernel::project(Weight::F16, 1, 1).ok_or_else(|| broken("not in the catalogue"))?;
        let Kernel::Project { variant, .. } = kernel else { return Err(broken("no projection")) };
        let code = code(space, kernel, 0)?;
        let rows =
            u32::try_from(bytes / ROW_BYTES).map_err(|_| broken("the matrix is too large"))?;
        let dynamic_shared = launch::project_shared_bytes(Weight::F16, 1, 1, COLUMNS as usize)
            .ok_or_else(|| broken("its rows are too long"))?;
        let memory = Mailbox::new(space, PRODUCT + u64::from(rows) * 4)?;
        memory.write(VECTOR, &vec![0; COLUMNS as usize * 4])?;
        let mut params = ProjectParams {
            x: memory.at(VECTOR)?.get(),
            k: COLUMNS,
            rows: 1,
            inverse_k: 1.0 / COLUMNS as f32,
            ..ProjectParams::default()
        };
        let out = memory.at(PRODUCT)?.get();
        params.segments[0] =
            Segment { weights: matrix.get(), out, n: rows, planes: 1, ..Segment::default() };
        let grid = [launch::project_tiles(variant, &[rows], false), 1, 1];
        let shape = Shape { grid, block: [kernel.threads(), 1, 1], dynamic_shared };
        let mut described = code.launch(space, shape, params.as_bytes());
        if releases {
            described.launch.releases[0] = Some(QmdRelease {
                at: memory.at(WORD)?,
                payload: Payload::Word(1),
                timestamp: false,
                system_barrier: false,
            });
        }
        let recording = Recording::new(space, &vec![described; count], Link::Dependence)?;
        Ok(Self { body: recording.body(), rows, memory, _recording: recording, _code: code })
    }

    /// Fills the product with a pattern that the launch never writes, and resets its release.
    pub(super) fn prepare(&self) -> Result<(), Error> {
        self.memory.write(PRODUCT, &vec![0xff; self.rows as usize * 4])?;
        Ok(self.memory.store_u32(WORD, 0)?)
    }

    /// Returns `true` once the CPU sees the launch's release.
    pub(super) fn is_released(&self) -> Result<bool, Error> {
        Ok(self.memory.load_u32(WORD)? == 1)
    }

    /// Number of words of the product that the CPU does not see written yet: the product is 0,
    /// because the vector is.
    pub(super) fn unwritten(&self) -> Result<u64, Error> {
        let mut unwritten = 0;
        for row in (0..u64::from(self.rows)).rev() {
            unwritten += u64::from(self.memory.load_u32(PRODUCT + 4 * row)? != 0);
        }
        Ok(unwritten)
    }
}
