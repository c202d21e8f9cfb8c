//! Compute engine that executes shader code.
//!
//! Reads the machine code of a launch from GPU memory and runs it with the `sass` crate. Owns what
//! connects the two: the end of code (`code`), mapped global memory (`space`), constant banks, and
//! the translation of faults (`fault`). `sass` defines the instructions.

mod code;
mod fault;
mod replay;
mod space;

use std::collections::HashMap;
use std::num::NonZero;
use std::thread;

use sass::check::Found;
use sass::count::{Class, Counters};
use sass::launch as machine;
use sass::machine::{Cache, Options, run};

use crate::config::Checks;
use crate::finding::SmFault;
use crate::gpu::{Access, BANKS, ComputeEngine, GpuMemory, Launch, MmuFault, SMS};
use crate::quirks::Quirks;
use crate::trace::{Instructions, Work};
use code::{Code, Programs};
pub use fault::Stopped;
pub use replay::{Replay, ReplayError};
use space::{Space, mapped};

/// Shared memory of each block that the system reserves.
const SHARED_RESERVED: u32 = 0x400;
/// Instructions of a host thread's warps after which a kernel counts as endless.
const ENDLESS: u64 = 1 << 32;
/// Number of warps that justify another host thread.
const WARPS_A_THREAD: u64 = 32;
const SMS_A_TPC: u64 = 2;

/// Compute engine that interprets machine code.
#[derive(Debug)]
pub struct MachineCode {
    checks: Checks,
    sms: u32,
    threads: usize,
    quirks: Quirks,
    programs: Programs,
    cache: Cache,
    /// Findings that hardware would not notice end the launch.
    halting: bool,
    /// Work of launches that are not executed again.
    timed: HashMap<Timed, Work>,
}

/// Key of launches that are assumed to do the same work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Timed {
    code: u64,
    grid: [u32; 3],
    block: [u32; 3],
    bank_bytes: [u32; BANKS],
}

impl Timed {
    fn of(launch: &Launch, code: &Code) -> Self {
        let bank_bytes = launch.constants.map(|bank| bank.map_or(0, |bank| bank.bytes));
        Self { code: code.hash, grid: launch.grid, block: launch.block, bank_bytes }
    }
}

impl MachineCode {
    /// Creates an engine with a level of checks, on all cores of the host.
    pub fn new(checks: Checks) -> Self {
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        Self {
            checks,
            sms: SMS,
            threads,
            quirks: Quirks::default(),
            programs: Programs::default(),
            cache: Cache::default(),
            halting: false,
            timed: HashMap::new(),
        }
    }

    /// Sets the number of SMs.
    #[must_use]
    pub fn with_sms(self, sms: u32) -> Self {
        Self { sms, ..self }
    }

    /// Sets the defects of the machine.
    #[must_use]
    pub fn with_quirks(self, quirks: Quirks) -> Self {
        Self { quirks, ..self }
    }

    /// Ends launches at the first finding that hardware would not notice, with its full location.
    #[must_use]
    pub(crate) fn halting(self) -> Self {
        Self { halting: true, ..self }
    }

    /// Runs a launch to completion. [`Stopped`] contains the fault and its location.
    pub fn run(&mut self, launch: &Launch, memory: &dyn GpuMemory) -> Result<Work, Stopped> {
        let code =
            self.programs.at(memory, launch.program, self.quirks.wrong).map_err(Stopped::before)?;
        if code.barriers > launch.barriers {
            return Err(fault::barriers(launch, code.barriers));
        }
        memory.reads_constants(code.program.constants().to_vec());
        let key = (self.checks == Checks::Timing).then(|| Timed::of(launch, &code));
        if let Some(work) = key.and_then(|key| self.timed.get(&key)) {
            return Ok(work.clone());
        }
        let banks = launch.constants.map(|bank| {
            bank.map(|bank| mapped(memory, bank.address, bank.bytes.into())).unwrap_or_default()
        });
        let space = Space::new(memory);
        let found = Found::default();
        let listening = (!self.halting).then_some(&found);
        let result = self.execute(launch, &code, &banks, &space, listening);
        let bytes_touched = space.finish();
        for (rule, message) in
            found.take().iter().filter_map(|found| fault::silent(launch, code.hash, found))
        {
            memory.found(rule, message);
        }
        let counters = result.map_err(|stopped| fault::explain(launch, memory, stopped))?;
        if counters.warps(Class::Local) > 0 {
            backing(launch, memory, self.sms).map_err(Stopped::before)?;
        }
        let work = Work { bytes_touched, ..work(&counters) };
        if let Some(key) = key {
            self.timed.insert(key, work.clone());
        }
        Ok(work)
    }

    fn execute(
        &self,
        launch: &Launch,
        code: &Code,
        banks: &[Vec<u8>; BANKS],
        space: &Space<'_>,
        found: Option<&Found>,
    ) -> Result<Counters, Box<sass::fault::Fault>> {
        let mut bound: [&[u8]; machine::BANKS] = [&[]; machine::BANKS];
        for (slot, bank) in bound.iter_mut().zip(banks) {
            *slot = bank;
        }
        let name = format!("{:#x}", launch.program);
        let launched = machine::Launch {
            name: &name,
            grid: launch.grid,
            block: launch.block,
            registers: launch.registers,
            shared_bytes: launch.shared_bytes.saturating_sub(SHARED_RESERVED),
            shared_reserved: SHARED_RESERVED,
            local_bytes: launch.local_high,
            banks: bound,
            shared_window: launch.shared_window,
            local_window: launch.local_window,
            entry: 0,
            time_ns: launch.time,
            sms: self.sms,
        };
        let warps = launched.blocks().saturating_mul(launched.warps().into());
        let useful = usize::try_from(warps / WARPS_A_THREAD).unwrap_or(usize::MAX);
        let options = Options {
            checks: self.checks.of_machine(),
            found,
            seed: launch.seed,
            threads: self.threads.min(useful).max(1),
            limit: ENDLESS,
            lossy_atomics: self.quirks.lost_atomics,
        };
        run(&code.program, &launched, space, &self.cache, &options)
    }
}

impl ComputeEngine for MachineCode {
    fn launch(&mut self, launch: &Launch, memory: &dyn GpuMemory) -> Result<Work, SmFault> {
        self.run(launch, memory).map_err(|stopped| stopped.fault)
    }
}

impl Checks {
    fn of_machine(self) -> sass::check::Checks {
        match self {
            Self::Race => sass::check::Checks::ALL,
            Self::Strict => sass::check::Checks { definedness: true, races: false },
            Self::Fast | Self::Timing => sass::check::Checks::NONE,
        }
    }
}

/// Checks that the backing store of local memory is mapped.
fn backing(launch: &Launch, memory: &dyn GpuMemory, sms: u32) -> Result<(), MmuFault> {
    let held = launch.local_memory;
    let tpcs = u64::from(held.max_sms.min(sms)).div_ceil(SMS_A_TPC).max(1);
    memory.resolve(held.base, held.bytes_per_tpc.saturating_mul(tpcs), Access::Write).map(drop)
}

fn work(counters: &Counters) -> Work {
    let instructions = Class::ALL.iter().filter(|class| counters.warps(**class) > 0).map(|class| {
        let (warps, lanes) = (counters.warps(*class), counters.lanes(*class));
        (format!("{class:?}").to_lowercase().into(), Instructions { warps, lanes })
    });
    Work {
        instructions: instructions.collect(),
        bytes_loaded: counters.bytes_loaded,
        bytes_stored: counters.bytes_stored,
        bytes_touched: 0,
        sectors: counters.sectors,
        l2_misses: counters.sectors_missed,
        shared_bytes: counters.shared_bytes,
        bank_conflicts: counters.bank_conflicts,
        atomics: counters.atomics,
    }
}
