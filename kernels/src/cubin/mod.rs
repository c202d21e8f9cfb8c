//! Cubin parser: code, constant banks, registers, shared and local memory, barriers, parameters and
//! relocations of each kernel.
//!
//! Reads cubins of CUDA 12 (ABI 7) and 13 (ABI 8). The format was learnt from cubins of ptxas 12.6,
//! 12.9 and 13.4 for sm_86, sm_87 and sm_90. Input is untrusted: every offset is checked against
//! the file's size.

mod info;

use object::LittleEndian as LE;
use object::elf::{FileHeader64, SectionHeader64};
use object::read::SectionIndex;
use object::read::elf::{FileHeader as _, Rel as _, SectionHeader as _, SectionTable, SymbolTable};

pub use info::Parameter;
use info::{FileInfo, KernelInfo};

type Header = FileHeader64<LE>;
type Section = SectionHeader64<LE>;

/// `e_machine` of CUDA.
const EM_CUDA: u16 = 190;
/// Bytes of an instruction.
const INSTRUCTION: usize = 16;

/// Reason why a cubin is unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not an ELF file, or offsets beyond its end.
    #[error("not a readable cubin: {0}")]
    Elf(String),
    /// ELF file for another machine.
    #[error("machine {machine} is not CUDA (190)")]
    Machine {
        /// `e_machine`.
        machine: u16,
    },
    /// Unknown ELF ABI.
    #[error(
        "cubin ABI {os_abi:#x} version {version} is unknown; CUDA 12 writes 0x33 version 7, CUDA 13 0x41 version 8"
    )]
    Abi {
        /// `EI_OSABI`.
        os_abi: u8,
        /// `EI_ABIVERSION`.
        version: u8,
    },
    /// Contradictory or invalid section.
    #[error("{section}: {problem}")]
    Malformed {
        /// Name of the section.
        section: String,
        /// Description of the problem.
        problem: String,
    },
}

impl From<object::read::Error> for Error {
    fn from(error: object::read::Error) -> Self {
        Self::Elf(error.to_string())
    }
}

fn malformed(section: &str, problem: impl Into<String>) -> Error {
    Error::Malformed { section: section.into(), problem: problem.into() }
}

/// A parsed cubin.
#[derive(Clone, Debug)]
pub struct Cubin<'a> {
    /// SM version: 87 for sm_87.
    pub sm: u32,
    /// Kernels in file order.
    pub kernels: Vec<Kernel<'a>>,
    /// Constant bank 3: `__constant__` data, shared by all kernels.
    pub constants3: Option<&'a [u8]>,
    /// Constant bank 4: addresses of globals, to be relocated; shared by all kernels.
    pub constants4: Option<&'a [u8]>,
    /// Initialised globals, which need writable GPU memory.
    pub global_init: Option<&'a [u8]>,
    /// Bytes of zeroed globals.
    pub global_bytes: u64,
    /// Relocations of every section.
    pub relocations: Vec<Relocation>,
}

/// One kernel of a cubin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel<'a> {
    /// Symbol.
    pub name: String,
    /// Instructions; execution starts at the first.
    pub code: &'a [u8],
    /// Alignment of the code in memory.
    pub align: u64,
    /// Registers of a thread.
    pub registers: u32,
    /// Static shared memory of a block, in bytes. Includes the reserved 1 KiB on sm_90 but not on
    /// sm_87.
    pub shared_bytes: u64,
    /// Stack of a thread, in bytes; 0 without local memory.
    pub stack_bytes: u32,
    /// The kernel's own stack frame.
    pub frame_bytes: u32,
    /// Number of barriers: the highest index plus one.
    pub barriers: u32,
    /// Largest block (x, y, z), from `__launch_bounds__`.
    pub max_threads: Option<[u32; 3]>,
    /// Only allowed block size, from `__block_size__`.
    pub required_threads: Option<[u32; 3]>,
    /// Offset of the parameters in bank 0.
    pub params_offset: u32,
    /// Size of the parameters in bytes.
    pub params_bytes: u32,
    /// Parameters in order.
    pub params: Vec<Parameter>,
    /// Image of bank 0, zero up to the end of the parameters.
    pub constants0: &'a [u8],
    /// Constant bank 2: literals and jump tables.
    pub constants2: Option<&'a [u8]>,
}

/// Patch of a relocation's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelocationKind {
    /// The 64-bit address of the symbol (`R_CUDA_64`, `R_CUDA_G64`); the addend is in place.
    Absolute64,
    /// The low 32 bits of the address, into bits 32 to 63 of the instruction.
    AbsoluteLow32,
    /// The high 32 bits of the address, into the same bits.
    AbsoluteHigh32,
}

/// A relocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// Section to patch.
    pub section: String,
    /// Offset in the section, in bytes.
    pub offset: u64,
    /// Kind of patch.
    pub kind: RelocationKind,
    /// Symbol whose address is inserted.
    pub symbol: String,
    /// Section that contains the symbol.
    pub target: String,
    /// Offset of the symbol in its section.
    pub target_offset: u64,
    /// Added to the address.
    pub addend: i64,
}

impl<'a> Cubin<'a> {
    /// Parses a cubin.
    ///
    /// # Errors
    ///
    /// [`Error`]
    pub fn parse(data: &'a [u8]) -> Result<Self, Error> {
        let header = Header::parse(data)?;
        let endian = header.endian()?;
        if header.e_machine(endian) != EM_CUDA {
            return Err(Error::Machine { machine: header.e_machine(endian) });
        }
        let flags = header.e_flags(endian);
        let ident = header.e_ident();
        let sm = match (ident.os_abi, ident.abi_version) {
            (0x33, 7) => flags & 0xff,
            (0x41, 8) => flags >> 8 & 0xff,
            (os_abi, version) => return Err(Error::Abi { os_abi, version }),
        };
        let file = File { data, sections: header.sections(endian, data)? };
        file.read(sm)
    }

    /// Kernel with this symbol.
    #[must_use]
    pub fn kernel(&self, name: &str) -> Option<&Kernel<'a>> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }
}

/// A file while it is parsed.
struct File<'a> {
    data: &'a [u8],
    sections: SectionTable<'a, Header>,
}

impl<'a> File<'a> {
    fn read(&self, sm: u32) -> Result<Cubin<'a>, Error> {
        let symbols = self.sections.symbols(LE, self.data, object::elf::SHT_SYMTAB)?;
        let info = match self.named(".nv.info")? {
            Some(section) => FileInfo::parse(self.bytes(section)?)?,
            None => FileInfo::default(),
        };
        let mut kernels = Vec::new();
        for section in self.sections.iter() {
            if let Some(name) = self.name(section)?.strip_prefix(".text.") {
                kernels.push(self.kernel(name, section, &info)?);
            }
        }
        let bank = |name: &str| self.named(name)?.map(|section| self.bytes(section)).transpose();
        Ok(Cubin {
            sm,
            kernels,
            constants3: bank(".nv.constant3")?,
            constants4: bank(".nv.constant4")?,
            global_init: bank(".nv.global.init")?,
            global_bytes: self.named(".nv.global")?.map_or(0, |section| section.sh_size(LE)),
            relocations: self.relocations(&symbols)?,
        })
    }

    fn name(&self, section: &'a Section) -> Result<&'a str, Error> {
        let name = self.sections.section_name(LE, section)?;
        std::str::from_utf8(name).map_err(|_| Error::Elf("a section's name is not UTF-8".into()))
    }

    fn named(&self, name: &str) -> Result<Option<&'a Section>, Error> {
        for section in self.sections.iter() {
            if self.name(section)? == name {
                return Ok(Some(section));
            }
        }
        Ok(None)
    }

    fn bytes(&self, section: &'a Section) -> Result<&'a [u8], Error> {
        Ok(section.data(LE, self.data)?)
    }

    fn kernel(
        &self,
        name: &'a str,
        text: &'a Section,
        info: &FileInfo,
    ) -> Result<Kernel<'a>, Error> {
        let section = format!(".text.{name}");
        let bad = |problem: String| malformed(&section, problem);
        let code = self.bytes(text)?;
        if code.is_empty() || !code.len().is_multiple_of(INSTRUCTION) {
            return Err(bad(format!(
                "{} bytes are not a multiple of the 16-byte instruction",
                code.len()
            )));
        }
        let align = text.sh_addralign(LE).max(INSTRUCTION as u64);
        if !align.is_power_of_two() || align > 1 << 16 {
            return Err(bad(format!("alignment {align} is not a power of two up to 65536")));
        }
        let (symbol, registers) = (text.sh_info(LE) & 0x00ff_ffff, text.sh_info(LE) >> 24);
        let Some(info_section) = self.named(&format!(".nv.info.{name}"))? else {
            return Err(bad("has no .nv.info section".into()));
        };
        let own = KernelInfo::parse(name, self.bytes(info_section)?)?;
        let Some(bank0) = self.named(&format!(".nv.constant0.{name}"))? else {
            return Err(bad("has no constant bank 0".into()));
        };
        let constants0 = self.bytes(bank0)?;
        own.check(name, constants0.len())?;
        let constants2 = self.named(&format!(".nv.constant2.{name}"))?;
        let shared = self.named(&format!(".nv.shared.{name}"))?;
        Ok(Kernel {
            name: name.into(),
            code,
            align,
            registers: registers.max(info.registers(symbol)),
            shared_bytes: shared.map_or(0, |section| section.sh_size(LE)),
            stack_bytes: info.stack_bytes(symbol),
            frame_bytes: info.frame_bytes(symbol),
            barriers: own.barriers.max(u32::try_from(text.sh_flags(LE) >> 20 & 0x7f).unwrap_or(0)),
            max_threads: own.max_threads,
            required_threads: own.required_threads,
            params_offset: own.params_offset,
            params_bytes: own.params_bytes,
            params: own.params,
            constants0,
            constants2: constants2.map(|section| self.bytes(section)).transpose()?,
        })
    }

    fn relocations(&self, symbols: &SymbolTable<'a, Header>) -> Result<Vec<Relocation>, Error> {
        let mut all = Vec::new();
        for section in self.sections.iter() {
            let place = SectionIndex(usize::try_from(section.sh_info(LE)).unwrap_or(usize::MAX));
            if let Some((entries, _)) = section.rel(LE, self.data)? {
                for entry in entries {
                    let (offset, kind) = (entry.r_offset(LE), entry.r_type(LE));
                    all.extend(self.relocation(
                        symbols,
                        place,
                        offset,
                        kind,
                        entry.r_sym(LE),
                        0,
                    )?);
                }
            }
            if let Some((entries, _)) = section.rela(LE, self.data)? {
                for entry in entries {
                    let (kind, symbol) = (entry.r_type(LE, false), entry.r_sym(LE, false));
                    let (offset, addend) = (entry.r_offset.get(LE), entry.r_addend.get(LE));
                    all.extend(self.relocation(symbols, place, offset, kind, symbol, addend)?);
                }
            }
        }
        Ok(all)
    }

    /// `None` for debug sections.
    fn relocation(
        &self,
        symbols: &SymbolTable<'a, Header>,
        place: SectionIndex,
        offset: u64,
        kind: u32,
        symbol: u32,
        addend: i64,
    ) -> Result<Option<Relocation>, Error> {
        let patched = self.sections.section(place)?;
        let section = self.name(patched)?;
        if section.starts_with(".debug") || section.starts_with(".nv_debug") {
            return Ok(None);
        }
        let (kind, width) = match kind {
            2 | 4 => (RelocationKind::Absolute64, 8),
            0x38 => (RelocationKind::AbsoluteLow32, 16),
            0x39 => (RelocationKind::AbsoluteHigh32, 16),
            other => return Err(malformed(section, format!("relocation type {other:#x}"))),
        };
        if offset.checked_add(width).is_none_or(|end| end > patched.sh_size(LE)) {
            return Err(malformed(section, format!("a relocation at {offset:#x} is out of range")));
        }
        let index = object::read::SymbolIndex(usize::try_from(symbol).unwrap_or(usize::MAX));
        let symbol = symbols.symbol(index)?;
        let name = object::read::elf::Sym::name(symbol, LE, symbols.strings())?;
        let target = self.sections.section(SectionIndex(usize::from(symbol.st_shndx.get(LE))))?;
        Ok(Some(Relocation {
            section: section.into(),
            offset,
            kind,
            symbol: String::from_utf8_lossy(name).into_owned(),
            target: self.name(target)?.into(),
            target_offset: symbol.st_value.get(LE),
            addend,
        }))
    }
}
