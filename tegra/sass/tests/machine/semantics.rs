//! Tests every distinct instruction of the vectors that the model supports, on random operands.
//!
//! A small program loads all registers that the instruction names from a constant bank, each lane
//! its own, and the predicates from one of them; runs it; and stores what it may have changed.

use std::collections::BTreeSet;

use orind_testing::random::Random;
use sass::check::Checks;
use sass::isa::{Instruction, Operand};
use sass::launch::{BANKS, Launch};
use sass::machine::{Cache, Options, run};
use sass::program::Program;

use crate::model::{Lane, evaluate};
use crate::support::Arena;
use crate::vectors::vectors;

/// Registers that the program itself uses.
const INDEX: u8 = 254;
const FLAGS: u8 = 253;
const SAVED: u8 = 252;
const ADDRESS: u8 = 248;
/// Registers that instructions under test may name.
const REGISTERS: usize = 240;
/// Sets of operands for each instruction, 32 in each.
const SEEDS: u64 = 20;

pub(crate) fn instruction(low: u64, high: u64) -> u128 {
    u128::from(low) | u128::from(high) << 64
}

/// `LDC R, c[3][R254 + offset]`.
fn load(register: u8, row: usize) -> u128 {
    let offset = row as u64 * 128;
    instruction(0xc0 << 48 | offset << 38 | 254 << 24 | u64::from(register) << 16 | 0x7b82, 0x800)
}

/// `STG.E [R248.64 + offset], R`.
pub(crate) fn store(register: u8, row: u64) -> u128 {
    let register = u64::from(register);
    instruction((row * 128) << 40 | register << 32 | u64::from(ADDRESS) << 24 | 0x7986, 0x0c10_1904)
}

/// Words that make arithmetic interesting: all kinds of numbers in all formats.
fn operand(random: &mut Random) -> u32 {
    const SPECIAL: [u32; 20] = [
        0,
        1,
        0x8000_0000,
        0x7fff_ffff,
        !0,
        0x3f80_0000,
        0xbf80_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0x0040_0000,
        0x3c00_bc00,
        0x7c00_fc00,
        0x0001_8001,
        0x7e00_3800,
        0x4b00_0001,
        // One half; the least normal number's neighbour; ties as a half, in its last bit and the least.
        0x3f00_0000,
        0x0080_0001,
        0x3f80_1000,
        0x3300_0000,
    ];
    match random.below(8) {
        0 => random.pick(&SPECIAL),
        1 => random.below(70) as u32,
        2 => random.real(100.0).to_bits(),
        3 => random.real(3e9).to_bits(),
        4 => {
            f64::from(random.real(1e5)).to_bits() as u32
                | (f64::from(random.real(5e9)).to_bits() >> 32) as u32
        }
        5 => {
            let half =
                |random: &mut Random| u32::from(half::f16::from_f32(random.real(8.0)).to_bits());
            half(random) | half(random) << 16
        }
        6 => (random.bits() as i32 >> random.below(31)) as u32,
        _ => random.bits() as u32,
    }
}

/// Values of the `stored` registers after the code, 32 words each. The `loaded` registers start
/// with the `rows` of their numbers; there are 256.
pub(crate) fn on_lanes(
    code: &[u128],
    rows: &[[u32; 32]],
    loaded: &[u8],
    stored: &[u8],
    constants: &[u8],
    cache: &Cache,
) -> Vec<u32> {
    let mut whole = vec![
        instruction(u64::from(INDEX) << 16 | 0x7919, 0),
        instruction(
            4 << 32 | u64::from(INDEX) << 24 | u64::from(INDEX) << 16 | 0x7824,
            0x078e_00ff,
        ),
        load(ADDRESS, 248),
        load(ADDRESS + 1, 249),
    ];
    whole.extend(loaded.iter().map(|&register| load(register, usize::from(register))));
    whole.extend(code);
    whole.extend(stored.iter().zip(0..).map(|(&register, row)| store(register, row)));
    whole.push(instruction(0x794d, 0x0380_0000));

    let mut memory = Arena::default();
    let out = memory.zeros(32 * stored.len());
    let bytes: Vec<u8> = whole.iter().flat_map(|word| word.to_le_bytes()).collect();
    let program = Program::new(&bytes).unwrap();
    let mut bank: Vec<u8> = rows.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
    for n in 0..32 {
        let address = out + 4 * n as u64;
        bank[248 * 128 + 4 * n..][..4].copy_from_slice(&(address as u32).to_le_bytes());
        bank[249 * 128 + 4 * n..][..4].copy_from_slice(&((address >> 32) as u32).to_le_bytes());
    }
    let mut banks: [&[u8]; BANKS] = [constants; BANKS];
    banks[3] = &bank;
    let launch = Launch {
        name: "semantics",
        grid: [1; 3],
        block: [32, 1, 1],
        registers: 255,
        shared_bytes: 256,
        shared_reserved: 0,
        local_bytes: 0,
        banks,
        shared_window: 0x00fe_0000_0000,
        local_window: 0x00ff_0000_0000,
        entry: 0,
        time_ns: 0,
        sms: 8,
    };
    let options = Options { checks: Checks::NONE, ..Options::default() };
    run(&program, &launch, &memory, cache, &options).unwrap();
    memory.read(out)
}

/// Compares one instruction on 32 lanes with the model; returns whether the model supports it.
fn check(word: u128, decoded: &Instruction, seed: u64, constants: &[u8], cache: &Cache) -> bool {
    let named: BTreeSet<u8> = decoded
        .operands
        .iter()
        .filter_map(|operand| match operand {
            Operand::Register { index: 255, .. } | Operand::Matrix(255, _) => None,
            Operand::Register { index, .. } | Operand::Matrix(index, _) => {
                Some([*index, index + 1])
            }
            _ => None,
        })
        .flatten()
        .collect();
    let mut random = Random(seed);
    let mut rows = vec![[0; 32]; 256];
    for row in named.iter().copied().chain([FLAGS]) {
        rows[usize::from(row)] = std::array::from_fn(|_| operand(&mut random));
    }
    let nothing = Lane { registers: &|_| 0, predicates: 0, constants };
    if evaluate(decoded, &nothing).is_none() {
        return false;
    }

    // Predicates are found by what they were and are.
    let code = [
        instruction(0x7f << 32 | u64::from(FLAGS) << 24 | 0x7804, 0),
        word & !0xf000 | 0x7000,
        instruction(0x7f << 32 | 0xff << 24 | u64::from(SAVED) << 16 | 0x7803, 0),
    ];
    let destination = match decoded.operands.iter().find(|o| matches!(o, Operand::Register { .. }))
    {
        Some(Operand::Register { index, .. }) => *index,
        _ => 255,
    };
    let loaded: Vec<u8> = named.iter().copied().chain([FLAGS]).collect();
    let stored = [destination, destination.saturating_add(1), SAVED];
    let stored = on_lanes(&code, &rows, &loaded, &stored, constants, cache);
    for n in 0..32 {
        let registers = |register: u8| rows[usize::from(register)][n];
        let flags = rows[usize::from(FLAGS)][n] & 0x7f;
        let lane = Lane { registers: &registers, predicates: flags, constants };
        let expected = evaluate(decoded, &lane).unwrap();
        let what = || {
            let sources: Vec<String> =
                named.iter().map(|&r| format!("R{r}={:#010x}", rows[usize::from(r)][n])).collect();
            format!("{decoded} with {} flags {flags:#04x}, seed {seed}", sources.join(" "))
        };
        if destination != 255 {
            for (at, word) in expected.words.iter().enumerate() {
                let ours = stored[32 * at + n];
                assert_eq!(ours, *word, "{ours:#010x} for {word:#010x}: {}", what());
            }
        }
        let mut after = flags;
        for (index, truth) in &expected.predicates {
            if *index != 7 {
                after = after & !(1 << index) | u32::from(*truth) << index;
            }
        }
        assert_eq!(stored[64 + n], after, "predicates: {}", what());
    }
    true
}

#[test]
fn instructions_compute_what_their_descriptions_say() {
    let (mut known, mut seen) = (0, BTreeSet::new());
    let mut random = Random(42);
    let constants: Vec<u8> = (0..16384).flat_map(|_| operand(&mut random).to_le_bytes()).collect();
    let cache = Cache::default();
    for vector in vectors() {
        let hints = 0x1ff_ffff_ffffu128 << 64 | u128::from(u64::MAX);
        let word = vector.bits & hints & !0xf000 | 0x7000;
        let decoded = Program::new(&word.to_le_bytes()).unwrap();
        let Ok(decoded) = &decoded.instructions()[0] else { continue };
        let small = decoded.operands.iter().all(|operand| match operand {
            Operand::Register { index, .. } => *index == 255 || usize::from(*index) < REGISTERS,
            _ => true,
        });
        // Register numbers do not distinguish shapes; modifications do.
        let mut shape = decoded.clone();
        for operand in &mut shape.operands {
            match operand {
                Operand::Register { index, .. } if *index != 255 => *index = 0,
                Operand::Constant { bank, offset, .. } => (*bank, *offset) = (0, 0),
                _ => {}
            }
        }
        if !small || !seen.insert(shape.to_string()) {
            continue;
        }
        for seed in 0..SEEDS {
            known += u32::from(check(word, decoded, seed, &constants, &cache));
        }
    }
    assert!(known > SEEDS as u32 * 1000, "{known} checks of {} shapes", seen.len());
}
