//! Loads kernels from cubins, provides memory for them, and launches them.

use std::collections::HashMap;
use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use half::f16;
use orind_testing::random::Random;
use sass::count::Counters;
use sass::fault::Fault;
use sass::launch::{BANKS, Launch};
use sass::machine::{Cache, Options, run};
use sass::memory::{Access, Memory, MemoryFault, Region};
use sass::program::Program;

/// Offset of the parameters in constant bank 0.
const PARAMETERS: usize = 0x160;
/// The initial stack pointer that the driver gives.
const STACK: u32 = 0x00ff_fdc0;
const SHARED_WINDOW: u64 = 0x00fe_0000_0000;
const LOCAL_WINDOW: u64 = 0x00ff_0000_0000;

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn long(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

/// A kernel of a cubin.
pub(crate) struct Kernel {
    name: String,
    pub(crate) program: Program,
    registers: u32,
    shared: u32,
    banks: [Vec<u8>; BANKS],
}

/// A section of a cubin.
pub(crate) struct Section {
    pub(crate) name: String,
    pub(crate) data: Vec<u8>,
    size: usize,
    info: u32,
}

/// The sections of a cubin.
pub(crate) fn sections(cubin: &[u8]) -> Vec<Section> {
    let (table, names) = (long(cubin, 40), usize::from(cubin[62]) | usize::from(cubin[63]) << 8);
    let count = usize::from(cubin[60]) | usize::from(cubin[61]) << 8;
    let header = |index: usize| &cubin[table + index * 64..][..64];
    let strings = long(header(names), 24);
    (0..count)
        .map(|index| {
            let header = header(index);
            let name = &cubin[strings + word(header, 0) as usize..];
            let name = name.split(|&byte| byte == 0).next().unwrap();
            let (offset, size) = (long(header, 24), long(header, 32));
            let stored = word(header, 4) != 8;
            Section {
                name: String::from_utf8(name.to_vec()).unwrap(),
                data: if stored { cubin[offset..offset + size].to_vec() } else { Vec::new() },
                size,
                info: word(header, 44),
            }
        })
        .collect()
}

/// A kernel of one of the cubins in `tests/data/sm_87`.
pub(crate) fn kernel(file: &str, name: &str) -> Kernel {
    let path = format!("{}/tests/data/sm_87/{file}.cubin", env!("CARGO_MANIFEST_DIR"));
    let sections = sections(&fs::read(path).unwrap());
    let find = |wanted: &str| sections.iter().find(|section| section.name == wanted);
    let text = find(&format!(".text.{name}")).unwrap();
    let mut banks: [Vec<u8>; BANKS] = Default::default();
    let data = |wanted: &str| find(wanted).map(|section| section.data.clone()).unwrap_or_default();
    banks[0] = data(&format!(".nv.constant0.{name}"));
    banks[2] = data(&format!(".nv.constant2.{name}"));
    banks[3] = data(".nv.constant3");
    banks[4] = data(".nv.constant4");
    Kernel {
        name: name.to_owned(),
        program: Program::new(&text.data).unwrap(),
        registers: text.info >> 24,
        shared: find(&format!(".nv.shared.{name}")).map_or(0, |section| section.size as u32),
        banks,
    }
}

/// Buffers at addresses far from each other.
#[derive(Default)]
pub(crate) struct Arena {
    buffers: HashMap<u64, Vec<AtomicU32>>,
}

const SPACING: u64 = 1 << 32;

impl Arena {
    /// A buffer with these words; its address.
    pub(crate) fn words(&mut self, words: &[u32]) -> u64 {
        let number = self.buffers.len() as u64 + 1;
        self.buffers.insert(number, words.iter().map(|&word| AtomicU32::new(word)).collect());
        number * SPACING
    }

    pub(crate) fn floats(&mut self, floats: &[f32]) -> u64 {
        self.words(&floats.iter().map(|float| float.to_bits()).collect::<Vec<_>>())
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> u64 {
        let chunks = bytes.chunks(4).map(|chunk| {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            u32::from_le_bytes(word)
        });
        self.words(&chunks.collect::<Vec<_>>())
    }

    pub(crate) fn halves(&mut self, halves: &[f16]) -> u64 {
        self.bytes(&halves.iter().flat_map(|half| half.to_le_bytes()).collect::<Vec<_>>())
    }

    pub(crate) fn ints(&mut self, ints: &[i32]) -> u64 {
        self.words(&ints.iter().map(|&int| int as u32).collect::<Vec<_>>())
    }

    pub(crate) fn longs(&mut self, longs: &[u64]) -> u64 {
        self.words(
            &longs.iter().flat_map(|&long| [long as u32, (long >> 32) as u32]).collect::<Vec<_>>(),
        )
    }

    pub(crate) fn zeros(&mut self, words: usize) -> u64 {
        self.words(&vec![0; words])
    }

    pub(crate) fn read(&self, address: u64) -> Vec<u32> {
        self.buffers[&(address / SPACING)].iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }

    pub(crate) fn read_floats(&self, address: u64) -> Vec<f32> {
        self.read(address).into_iter().map(f32::from_bits).collect()
    }

    pub(crate) fn read_longs(&self, address: u64) -> Vec<u64> {
        let words = self.read(address);
        words.chunks(2).map(|pair| u64::from(pair[0]) | u64::from(pair[1]) << 32).collect()
    }
}

impl Memory for Arena {
    fn region(&self, address: u64, access: Access) -> Result<Region<'_>, MemoryFault> {
        let number = address / SPACING;
        match self.buffers.get(&number) {
            Some(words) => {
                Ok(Region { start: number * SPACING, words, writable: true, marks: None })
            }
            None => Err(MemoryFault::Unmapped { address, access }),
        }
    }
}

/// A parameter of a kernel.
#[derive(Clone, Copy)]
pub(crate) enum Arg {
    Pointer(u64),
    Int(i32),
    Float(f32),
}

/// Launch parameters of a test.
pub(crate) struct Call<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared: u32,
    /// Addresses of global symbols, as constant bank 4 has them.
    pub(crate) symbols: Vec<u64>,
    pub(crate) options: Options<'a>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(kernel: &'a Kernel, grid: u32, block: u32) -> Self {
        Self {
            kernel,
            grid: [grid, 1, 1],
            block: [block, 1, 1],
            dynamic_shared: 0,
            symbols: Vec::new(),
            options: Options { seed: 1, limit: 100_000_000, ..Options::default() },
        }
    }

    /// Runs the kernel.
    pub(crate) fn try_run(&self, memory: &Arena, args: &[Arg]) -> Result<Counters, Box<Fault>> {
        let mut bank = self.kernel.banks[0].clone();
        let mut at = PARAMETERS;
        let mut put = |at: usize, bytes: &[u8]| bank[at..at + bytes.len()].copy_from_slice(bytes);
        for (axis, value) in self.block.iter().chain(&self.grid).enumerate() {
            put(4 * axis, &value.to_le_bytes());
        }
        put(0x18, &SHARED_WINDOW.to_le_bytes());
        put(0x20, &LOCAL_WINDOW.to_le_bytes());
        put(0x28, &STACK.to_le_bytes());
        put(0x2c, &self.dynamic_shared.to_le_bytes());
        for arg in args {
            match arg {
                Arg::Pointer(address) => {
                    at = at.next_multiple_of(8);
                    put(at, &address.to_le_bytes());
                    at += 8;
                }
                Arg::Int(value) => {
                    put(at, &value.to_le_bytes());
                    at += 4;
                }
                Arg::Float(value) => {
                    put(at, &value.to_le_bytes());
                    at += 4;
                }
            }
        }
        let mut banks: [&[u8]; BANKS] = [&[]; BANKS];
        for (slot, data) in banks.iter_mut().zip(&self.kernel.banks) {
            *slot = data;
        }
        banks[0] = &bank;
        let symbols: Vec<u8> = self.symbols.iter().flat_map(|at| at.to_le_bytes()).collect();
        if !symbols.is_empty() {
            banks[4] = &symbols;
        }
        let launch = Launch {
            name: &self.kernel.name,
            grid: self.grid,
            block: self.block,
            registers: self.kernel.registers,
            shared_bytes: self.kernel.shared + self.dynamic_shared,
            shared_reserved: 0x400,
            local_bytes: 0x240 + 0x400,
            banks,
            shared_window: SHARED_WINDOW,
            local_window: LOCAL_WINDOW,
            entry: 0,
            time_ns: 0,
            sms: 8,
        };
        run(&self.kernel.program, &launch, memory, &Cache::default(), &self.options)
    }

    /// Runs the kernel, which must not fault.
    pub(crate) fn run(&self, memory: &Arena, args: &[Arg]) -> Counters {
        self.try_run(memory, args).unwrap_or_else(|fault| panic!("{fault}"))
    }
}

/// Random words.
pub(crate) fn words(random: &mut Random, count: usize) -> Vec<u32> {
    (0..count).map(|_| random.bits() as u32).collect()
}
