//! Environment of a block: launch, memory regions, counters, and fault reports.

use std::sync::atomic::AtomicU32;

use parking_lot::Mutex;

use super::cache::Cache;
use super::random::Random;
use super::shared::Shared;
use super::warp::Warp;
use super::words::misaligned;
use super::{Outcome, Raised};
use crate::check::Found;
use crate::count::Counters;
use crate::fault::{Fault, FaultKind};
use crate::launch::{Launch, WINDOW_BYTES};
use crate::memory::{Access, Memory, MemoryFault, Region};
use crate::program::Program;
use crate::program::op::Space;

/// State that the warps of a block share.
pub(crate) struct Env<'a> {
    pub(crate) program: &'a Program,
    pub(crate) launch: &'a Launch<'a>,
    pub(crate) memory: &'a dyn Memory,
    pub(crate) cache: &'a Cache,
    /// Receives findings that hardware would not notice; none if they end the launch.
    pub(crate) found: Option<&'a Found>,
    /// Serialises 64-bit atomics, because memory consists of 32-bit words.
    pub(crate) lock: &'a Mutex<()>,
    pub(crate) shared: Shared,
    pub(crate) counters: Counters,
    /// Most recently used regions.
    pub(crate) regions: [Option<Region<'a>>; 4],
    pub(crate) block: [u32; 3],
    pub(crate) number: u64,
    /// Instructions executed by the block.
    pub(crate) clock: u64,
    /// Selects the global atomics that are lost, if atomics are lossy.
    pub(crate) losing: Option<Random>,
}

impl<'a> Env<'a> {
    /// Returns the words of global memory that an access covers.
    #[inline(always)]
    pub(crate) fn global(
        &mut self,
        address: u64,
        bytes: u8,
        access: Access,
        lane: usize,
    ) -> Outcome<&'a [AtomicU32]> {
        if misaligned(address, bytes) {
            return Err(Raised::new(FaultKind::Misaligned { address, bytes }, 1 << lane));
        }
        if let Some(region) = self.regions[0] {
            let offset = address.wrapping_sub(region.start) / 4;
            let (first, count) = (offset as usize, usize::from(bytes.div_ceil(4)));
            if address >= region.start
                && (region.writable || access == Access::Read)
                && let Some(words) = region.words.get(first..first + count)
            {
                region.note(first, count, access);
                return Ok(words);
            }
        }
        self.find(address, bytes, access, lane)
    }

    /// Returns the recently used region that contains an address.
    #[inline(always)]
    pub(super) fn recent(&self, address: u64) -> Option<&Region<'a>> {
        let holds = |region: &&Region<'_>| {
            address.wrapping_sub(region.start) / 4 < region.words.len() as u64
        };
        self.regions.iter().flatten().find(holds)
    }

    /// Checks that an address is mapped, without reading it.
    pub(super) fn readable(&self, address: u64, lane: usize) -> Outcome<()> {
        if self.recent(address).is_some() {
            return Ok(());
        }
        let region = self.memory.region(address, Access::Read);
        region.map(drop).map_err(|fault| Raised::new(fault, 1 << lane))
    }

    #[cold]
    fn find(
        &mut self,
        address: u64,
        bytes: u8,
        access: Access,
        lane: usize,
    ) -> Outcome<&'a [AtomicU32]> {
        let words = usize::from(bytes.div_ceil(4));
        let within = |region: &Region<'a>| -> Option<&'a [AtomicU32]> {
            let offset = address.checked_sub(region.start)? / 4;
            let allowed = region.writable || access == Access::Read;
            let first = usize::try_from(offset).ok().filter(|_| allowed)?;
            let found = region.words.get(first..first.checked_add(words)?)?;
            region.note(first, words, access);
            Some(found)
        };
        for position in 1..self.regions.len() {
            if let Some(found) = self.regions[position].as_ref().and_then(within) {
                self.regions.swap(0, position);
                return Ok(found);
            }
        }
        let region =
            self.memory.region(address, access).map_err(|fault| Raised::new(fault, 1 << lane))?;
        let found = within(&region).ok_or_else(|| {
            let fault = if region.writable || access == Access::Read {
                MemoryFault::Unmapped { address, access }
            } else {
                MemoryFault::Forbidden { address, access }
            };
            Raised::new(fault, 1 << lane)
        })?;
        self.regions.rotate_right(1);
        self.regions[0] = Some(region);
        Ok(found)
    }

    /// Builds the report of a fault at an instruction.
    #[cold]
    pub(super) fn fault(&self, warp: &Warp, pc: u32, raised: Raised) -> Box<Fault> {
        let lane = Warp::first_lane(raised.lanes);
        let instruction = self.program.instructions().get(pc as usize);
        Box::new(Fault {
            kind: raised.kind,
            kernel: self.launch.name.to_owned(),
            offset: pc as usize * 16,
            instruction: instruction.map_or_else(
                || "outside the code".to_owned(),
                |decoded| match decoded {
                    Ok(instruction) => instruction.to_string(),
                    Err(_) => "not decoded".to_owned(),
                },
            ),
            block: self.block,
            warp: warp.index.into(),
            lane,
            registers: warp
                .registers
                .iter()
                .take(self.launch.registers as usize)
                .map(|lanes| lanes[lane as usize % 32])
                .collect(),
        })
    }

    /// Reports a finding that hardware would not notice, if the launch collects them. Returns every
    /// other fault.
    #[cold]
    pub(super) fn report(&self, warp: &Warp, pc: u32, raised: Box<Raised>) -> Outcome<()> {
        match self.found {
            Some(found) if raised.kind.is_silent() => {
                let kind = raised.kind.clone();
                found.note(pc as usize * 16, &kind, || *self.fault(warp, pc, *raised));
                Ok(())
            }
            _ => Err(raised),
        }
    }

    /// Returns the memory space of an access and the address in it.
    #[inline]
    pub(crate) fn place(&self, space: Space, address: u64) -> (Space, u64) {
        if space == Space::Generic { self.resolve(address) } else { (space, address) }
    }

    /// Resolves a generic address to a memory space and the address in it.
    #[inline]
    pub(crate) fn resolve(&self, address: u64) -> (Space, u64) {
        let inside = |window: u64| address.wrapping_sub(window) < WINDOW_BYTES;
        if inside(self.launch.shared_window) {
            (Space::Shared, address - self.launch.shared_window)
        } else if inside(self.launch.local_window) {
            (Space::Local, address - self.launch.local_window)
        } else {
            (Space::Global, address)
        }
    }
}
