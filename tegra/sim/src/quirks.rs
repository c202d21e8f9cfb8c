//! Configurable defects of a simulated Orin, and the release of its drivers. A defect removes a
//! property that programs may rely on unknowingly.
//!
//! Owns the names and their parsing; each defect is implemented where the working machine behaves
//! differently.
//!
//! `TEGRA_SIM_MACHINE` is a comma-separated list of words:
//!
//! | word | defect |
//! |---|---|
//! | `no-event` | no interrupt wakes a waiter |
//! | `no-qmd-release` | releases of QMDs are dropped |
//! | `lost-atomics` | one of 64 atomic operations of shaders on global memory has no effect on memory |
//! | `chain-cut=N` | only the first N QMDs of a chain run; the others never start, and nothing waits for them |
//! | `local-memory-refused` | a launch needs local memory for 96 warps of each SM, not of each TPC |
//! | `read-only-maps-fault` | the GPU cannot read through a mapping without write access |
//! | `nan=INSTRUCTION` | the instruction (such as `mufu`, `hmma`, `dp4a`) returns 0x7fffffff: NaN, or wrong bits |
//! | `freeze=POINT` | the machine freezes: the call that makes the point's request never returns |
//! | `short-range-refused` | an address space ends 2 MiB below 2^40, as in all proven code, or its creation fails |
//! | `no-heap-query` | `QUERY_HEAP_PARAMS` and `GET_AVAILABLE_HEAPS` are unknown |
//! | `stale-handover` | half of the invalidates in streams do not invalidate L1: an SM reads the CPU's earlier data, unless its QMD invalidates |
//!
//! A freeze is at `open-channel`, `object` (`ALLOC_OBJ_CTX`), `doorbell` (the store) or `launch`
//! (the store that leads to a launch; no other GPU request returns either).
//!
//! `TEGRA_SIM_RELEASE` is the L4T release of the drivers: `r36.4`; `r36.2`, with the same
//! interface; `r35.4`, with a shorter record, shorter `OPEN_TSG` and `SETUP_BIND`, and without
//! subcontexts; `r39` (JetPack 7), with a longer record. `r39:REQUEST`, such as `r39:SETUP_BIND`,
//! changes the number of that request.

use sass::isa::Opcode;

/// Point at which a machine freezes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freeze {
    OpenChannel,
    Object,
    Doorbell,
    Launch,
}

const FREEZES: [(&str, Freeze); 4] = [
    ("open-channel", Freeze::OpenChannel),
    ("object", Freeze::Object),
    ("doorbell", Freeze::Doorbell),
    ("launch", Freeze::Launch),
];

impl Freeze {
    /// Returns whether an ioctl is that point.
    pub(crate) fn is_at(self, request: &str) -> bool {
        match self {
            Self::OpenChannel => matches!(request, "OPEN_CHANNEL" | "OPEN"),
            Self::Object => request == "ALLOC_OBJ_CTX",
            Self::Doorbell | Self::Launch => false,
        }
    }
}

/// Defects of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quirks {
    pub no_event: bool,
    pub no_qmd_release: bool,
    pub lost_atomics: bool,
    pub chain_cut: Option<u32>,
    pub local_memory_refused: bool,
    pub read_only_maps_fault: bool,
    /// The instruction whose results are wrong.
    pub wrong: Option<Opcode>,
    pub freeze: Option<Freeze>,
    pub no_heap_query: bool,
    pub short_range_refused: bool,
    pub stale_handover: bool,
}

impl Quirks {
    /// Parses a list of words. The error is the unknown word.
    pub(crate) fn parse(list: &str) -> Result<Self, String> {
        let mut quirks = Self::default();
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            quirks.add(word).ok_or_else(|| word.to_owned())?;
        }
        Ok(quirks)
    }

    fn add(&mut self, word: &str) -> Option<()> {
        match word.split_once('=') {
            None => {
                *match word {
                    "no-event" => &mut self.no_event,
                    "no-qmd-release" => &mut self.no_qmd_release,
                    "lost-atomics" => &mut self.lost_atomics,
                    "local-memory-refused" => &mut self.local_memory_refused,
                    "read-only-maps-fault" => &mut self.read_only_maps_fault,
                    "no-heap-query" => &mut self.no_heap_query,
                    "short-range-refused" => &mut self.short_range_refused,
                    "stale-handover" => &mut self.stale_handover,
                    _ => return None,
                } = true;
            }
            Some(("chain-cut", count)) => {
                self.chain_cut = Some(count.parse().ok().filter(|count| *count > 0)?);
            }
            Some(("nan", name)) => self.wrong = Some(instruction(name)?),
            Some(("freeze", point)) => {
                let (_, freeze) = FREEZES.into_iter().find(|(name, _)| *name == point)?;
                self.freeze = Some(freeze);
            }
            Some(_) => return None,
        }
        Some(())
    }
}

/// Returns an opcode by its SASS or PTX name.
fn instruction(name: &str) -> Option<Opcode> {
    match name {
        "dp4a" | "dp2a" => Some(Opcode::Idp),
        name => Opcode::named(name),
    }
}

/// L4T release of the drivers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Release {
    R35,
    #[default]
    R36,
    /// JetPack 7, with the request whose number differs, if any.
    R39 {
        renumbered: Option<String>,
    },
}

impl Release {
    /// Parses the name of a release.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let is_request =
            |name: &str| crate::driver::requests().any(|(_, known)| known.name == name);
        match (name, name.strip_prefix("r39:")) {
            ("r35.4", _) => Some(Self::R35),
            ("r36.2" | "r36.4", _) => Some(Self::R36),
            ("r39", _) => Some(Self::R39 { renumbered: None }),
            (_, Some(request)) if is_request(request) => {
                Some(Self::R39 { renumbered: Some(request.to_owned()) })
            }
            _ => None,
        }
    }
}

/// Blocks the thread for ever, as a frozen machine does.
pub(crate) fn never_return() -> ! {
    loop {
        // SAFETY: null stands for no files, no limit and no mask; no memory is passed.
        unsafe {
            libc::syscall(libc::SYS_ppoll, 0usize, 0usize, 0usize, 0usize, 0usize);
        }
    }
}
