//! Loads with all patterns of shared addresses and active lanes: values, marks of read words, and
//! counted sectors.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use orind_testing::random::Random;
use sass::launch::{BANKS, Launch};
use sass::machine::{Cache, Options, run};
use sass::memory::{Access, MARKED, Memory, MemoryFault, READ, Region};
use sass::program::Program;

use crate::support::{Arena, words};

/// Bytes, whether signed, bits of the encoding, text.
const SIZES: [(usize, bool, u64, &str); 7] = [
    (1, false, 0, ".U8"),
    (1, true, 1, ".S8"),
    (2, false, 2, ".U16"),
    (2, true, 3, ".S16"),
    (4, false, 4, ""),
    (8, false, 5, ".64"),
    (16, false, 6, ".128"),
];
/// Words of the buffer that is loaded from.
const WORDS: usize = 1 << 14;
/// Initial value of registers.
const BEFORE: u32 = 0x5a5a_5a5a;

/// Memory that records the words read from one buffer.
struct Noted {
    arena: Arena,
    source: u64,
    marks: Vec<AtomicU64>,
}

impl Memory for Noted {
    fn region(&self, address: u64, access: Access) -> Result<Region<'_>, MemoryFault> {
        let region = self.arena.region(address, access)?;
        let marks = (region.start == self.source).then_some(self.marks.as_slice());
        Ok(Region { marks, ..region })
    }
}

/// Rows of constant bank 3, a word for each lane.
fn ldc(register: u64, row: u64) -> (u64, u64) {
    (0xc0 << 48 | (row * 128) << 38 | 254 << 24 | register << 16 | 0x7b82, 0x800)
}

/// Element that each lane loads.
fn elements(random: &mut Random, count: usize) -> [usize; 32] {
    let near = random.below(count / 64 + 1);
    let step = random.pick(&[1, 1, 2, 3, 8, 33]);
    let (pattern, shared) = (random.below(9), random.below(count / 64));
    std::array::from_fn(|lane| {
        let index = match pattern {
            0 => lane,
            1 => lane % 8,
            2 => lane / 8,
            3 => lane % 4,
            4 => lane % 16,
            5 => 0,
            6 => lane / 3,
            7 => random.below(32),
            // Rows of all kinds, and the last lane alone.
            _ => match lane / 8 {
                0 => lane,
                1 => lane % 8,
                _ if lane == 31 => 9,
                _ => shared % 7,
            },
        };
        (near + index * step) % count
    })
}

/// Code that loads a value for some lanes, and stores the registers that it may write.
fn machine_code(code: u64) -> Vec<u8> {
    // The first load finds the region; the second is the one under test.
    let load = |register: u64, guard: u64| {
        (6 << 32 | 2 << 24 | register << 16 | guard << 12 | 0x981, 0x0c1e_1100 | code << 9)
    };
    let store =
        |word: u64| ((word * 128) << 40 | (40 + word) << 32 | 248 << 24 | 0x7986, 0x0c10_1904);
    let mut lines = vec![(0x00fe_7919, 0), (0x0000_0004_fefe_7824, 0x078e_00ff)];
    lines.extend([(2, 0), (3, 1), (248, 2), (249, 3), (253, 4)].map(|(at, row)| ldc(at, row)));
    lines.extend((40..44).map(|register| ldc(register, 5)));
    // R2P: predicate 0 from the lowest bit.
    lines.push((0x7f << 32 | 253 << 24 | 0x7804, 0));
    lines.extend([load(60, 7), load(40, 0)]);
    lines.extend((0..4).map(store));
    lines.push((0x794d, 0x0380_0000));
    lines.iter().flat_map(|(low, high)| [low.to_le_bytes(), high.to_le_bytes()]).flatten().collect()
}

fn check(random: &mut Random, (bytes, signed, code, text): (usize, bool, u64, &str)) {
    let mut arena = Arena::default();
    let data = words(random, WORDS);
    let source = arena.words(&data);
    let out = arena.zeros(4 * 32);
    let memory =
        Noted { arena, source, marks: (0..WORDS / MARKED).map(|_| AtomicU64::new(0)).collect() };
    let elements = elements(random, WORDS * 4 / bytes);
    let part: u32 = match random.below(4) {
        0 => random.bits() as u32,
        1 => 0x00ff_ffff,
        2 => !(1 << random.below(32)),
        _ => !0,
    };

    let program = Program::new(&machine_code(code)).unwrap();
    let decoded = program.instructions()[13].as_ref().unwrap().to_string();
    assert!(decoded.starts_with(&format!("@P0 LDG.E{text} R40, [R2.64]")), "{decoded}");

    let address = |lane: usize| source + (elements[lane] * bytes) as u64;
    let mut bank = Vec::new();
    for row in 0..6 {
        for lane in 0..32 {
            let word = match row {
                0 => address(lane) as u32,
                1 => (address(lane) >> 32) as u32,
                2 => (out + 4 * lane as u64) as u32,
                3 => (out >> 32) as u32,
                4 => part >> lane & 1,
                _ => BEFORE,
            };
            bank.extend(word.to_le_bytes());
        }
    }
    let mut banks: [&[u8]; BANKS] = [&[]; BANKS];
    banks[3] = &bank;
    let launch = Launch {
        name: "loads",
        grid: [1; 3],
        block: [32, 1, 1],
        registers: 255,
        shared_bytes: 0,
        shared_reserved: 0,
        local_bytes: 0,
        banks,
        shared_window: 0x00fe_0000_0000,
        local_window: 0x00ff_0000_0000,
        entry: 0,
        time_ns: 0,
        sms: 8,
    };
    let counters = run(&program, &launch, &memory, &Cache::default(), &Options::default()).unwrap();

    let stored = memory.arena.read(out);
    let (mut read, mut sectors) = (BTreeSet::new(), [BTreeSet::new(), BTreeSet::new()]);
    for lane in 0..32 {
        let first = elements[lane] * bytes;
        let taking_part = part >> lane & 1 == 1;
        let mut expected = [BEFORE; 4];
        if taking_part {
            let word = data[first / 4] >> (first % 4 * 8);
            match (bytes, signed) {
                (1, false) => expected[0] = word & 0xff,
                (1, true) => expected[0] = word as u8 as i8 as u32,
                (2, false) => expected[0] = word & 0xffff,
                (2, true) => expected[0] = word as u16 as i16 as u32,
                _ => expected[..bytes / 4].copy_from_slice(&data[first / 4..(first + bytes) / 4]),
            }
            sectors[1].insert(first / 32);
        }
        sectors[0].insert(first / 32);
        read.extend(first / 4..(first + bytes).div_ceil(4));
        let ours: [u32; 4] = std::array::from_fn(|word| stored[32 * word + lane]);
        assert_eq!(ours, expected, "lane {lane} of {part:#010x}, {text:?}: {elements:?}");
    }
    let marked = |word: &usize| {
        memory.marks[word / MARKED].load(Ordering::Relaxed) >> (2 * (word % MARKED)) & 3
            == u64::from(READ)
    };
    let marked: BTreeSet<usize> = (0..WORDS).filter(marked).collect();
    assert_eq!(marked, read, "{part:#010x}, {text:?}: {elements:?}");
    let expected = sectors[0].len() + sectors[1].len() + 4 * 4;
    assert_eq!(counters.sectors, expected as u64, "{part:#010x}, {text:?}: {elements:?}");
}

#[test]
fn lanes_load_what_lies_at_their_addresses() {
    let mut random = Random(7);
    for size in SIZES {
        for _ in 0..400 {
            check(&mut random, size);
        }
    }
}
