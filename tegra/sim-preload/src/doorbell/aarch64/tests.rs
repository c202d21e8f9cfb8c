//! Encodings assembled with GNU as, and their expected effects.

use proptest::prelude::*;

use super::super::bus::Bus;
use super::execute::Cpu;
use super::{decode, execute};

/// Byte `i` of general register `n` is `n * 8 + i`; of vector register `n`, `n * 4 + i`.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Fake {
    general: [u64; 31],
    stack: u64,
    vector: [[u8; 16]; 32],
    steps: usize,
}

impl Fake {
    fn new() -> Self {
        Self {
            general: std::array::from_fn(|n| x(n as u8)),
            stack: 0x1_0000,
            vector: std::array::from_fn(|n| q(n as u8)),
            steps: 0,
        }
    }
}

fn x(n: u8) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| n * 8 + i as u8))
}

fn q(n: u8) -> [u8; 16] {
    std::array::from_fn(|i| n * 4 + i as u8)
}

impl Cpu for Fake {
    fn general(&self, number: u8) -> u64 {
        self.general[usize::from(number)]
    }

    fn set_general(&mut self, number: u8, value: u64) {
        self.general[usize::from(number)] = value;
    }

    fn stack(&self) -> u64 {
        self.stack
    }

    fn set_stack(&mut self, value: u64) {
        self.stack = value;
    }

    fn vector(&self, number: u8) -> [u8; 16] {
        self.vector[usize::from(number)]
    }

    fn set_vector(&mut self, number: u8, value: &[u8; 16]) {
        self.vector[usize::from(number)] = *value;
    }

    fn advance(&mut self) {
        self.steps += 1;
    }
}

/// Memory whose byte `i` reads `0xa0 + i`, and which records writes.
#[derive(Default)]
struct Memory {
    written: Vec<(usize, u8)>,
}

impl Bus for Memory {
    fn read(&mut self, offset: usize, into: &mut [u8]) {
        for (at, byte) in (offset..).zip(into) {
            *byte = 0xa0_u8.wrapping_add(at as u8);
        }
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.written.extend((offset..).zip(bytes.iter().copied()));
    }
}

fn run(word: u32) -> (Fake, Vec<u8>) {
    let instruction = decode(word).unwrap_or_else(|| panic!("{word:#x} is not decoded"));
    let (mut cpu, mut memory) = (Fake::new(), Memory::default());
    execute(&instruction, &mut cpu, &mut memory, 0);
    assert_eq!(cpu.steps, 1, "{word:#x}");
    cpu.steps = 0;
    assert!(memory.written.iter().map(|(at, _)| *at).eq(0..memory.written.len()), "{word:#x}");
    (cpu, memory.written.into_iter().map(|(_, byte)| byte).collect())
}

#[test]
fn stores_write_their_registers() {
    let stores = |word, expected: &[u8]| {
        let (cpu, written) = run(word);
        assert_eq!(written, expected, "{word:#x}");
        assert_eq!(cpu, Fake::new(), "{word:#x}: a store changes no register");
    };
    stores(0xb900_0001, &x(1).to_le_bytes()[..4]); // str w1, [x0]
    stores(0xb900_9001, &x(1).to_le_bytes()[..4]); // str w1, [x0, #144]
    stores(0xb81f_c062, &x(2).to_le_bytes()[..4]); // stur w2, [x3, #-4]
    stores(0x3900_0062, &x(2).to_le_bytes()[..1]); // strb w2, [x3]
    stores(0x7824_6862, &x(2).to_le_bytes()[..2]); // strh w2, [x3, x4]
    stores(0xb824_5862, &x(2).to_le_bytes()[..4]); // str w2, [x3, w4, uxtw #2]
    stores(0x889f_fc01, &x(1).to_le_bytes()[..4]); // stlr w1, [x0]
    stores(0x089f_fc01, &x(1).to_le_bytes()[..1]); // stlrb w1, [x0]
    stores(0x9900_4001, &x(1).to_le_bytes()[..4]); // stlur w1, [x0, #4]
    stores(0xf900_001f, &[0; 8]); // str xzr, [x0]
    stores(0x3d80_0003, &q(3)); // str q3, [x0]
    stores(0xbd00_9004, &q(4)[..4]); // str s4, [x0, #144]
    let words = |a: u8, b: u8| [&x(a).to_le_bytes()[..4], &x(b).to_le_bytes()[..4]].concat();
    stores(0x2901_0801, &words(1, 2)); // stp w1, w2, [x0, #8]
    stores(0xa800_0801, &[x(1).to_le_bytes(), x(2).to_le_bytes()].concat()); // stnp x1, x2, [x0]
}

#[test]
fn indexed_accesses_update_their_base() {
    let (cpu, written) = run(0xb81f_cc62); // str w2, [x3, #-4]!
    assert_eq!(written, x(2).to_le_bytes()[..4]);
    assert_eq!(cpu.general[3], x(3) - 4);
    assert_eq!(run(0xf801_07e9).0.stack, 0x1_0010); // str x9, [sp], #16
    assert_eq!(run(0xa9be_7bfd).0.stack, 0x1_0000 - 32); // stp x29, x30, [sp, #-32]!
    let (cpu, written) = run(0xac81_0801); // stp q1, q2, [x0], #32
    assert_eq!(written, [q(1), q(2)].concat());
    assert_eq!(cpu.general[0], x(0) + 32);
    let (cpu, _) = run(0x3840_1402); // ldrb w2, [x0], #1
    assert_eq!((cpu.general[0], cpu.general[2]), (x(0) + 1, 0xa0));
}

#[test]
fn loads_extend_to_their_register_width() {
    let loads = |word, register: usize, value: u64| {
        let (cpu, written) = run(word);
        let mut expected = Fake::new();
        expected.general[register] = value;
        assert_eq!(cpu, expected, "{word:#x}");
        assert!(written.is_empty(), "{word:#x}: a load writes nothing");
    };
    let word = 0xa3a2_a1a0;
    loads(0xb940_0001, 1, word); // ldr w1, [x0]
    loads(0xf940_4001, 1, 0xa7a6_a5a4_a3a2_a1a0); // ldr x1, [x0, #128]
    loads(0xb980_0002, 2, 0xffff_ffff_a3a2_a1a0); // ldrsw x2, [x0]
    loads(0x39c0_0002, 2, 0xffff_ffa0); // ldrsb w2, [x0]
    loads(0x7980_0007, 7, 0xffff_ffff_ffff_a1a0); // ldrsh x7, [x0]
    loads(0x88df_fc01, 1, word); // ldar w1, [x0]
    loads(0xb8bf_c001, 1, word); // ldapr w1, [x0]
    loads(0x9940_4001, 1, word); // ldapur w1, [x0, #4]
    let (cpu, _) = run(0x2940_0801); // ldp w1, w2, [x0]
    assert_eq!((cpu.general[1], cpu.general[2]), (word, 0xa7a6_a5a4));
    let (cpu, _) = run(0x6940_0801); // ldpsw x1, x2, [x0]
    assert_eq!((cpu.general[1], cpu.general[2]), (0xffff_ffff_a3a2_a1a0, 0xffff_ffff_a7a6_a5a4));
    let vector = |word, bytes: usize| {
        let mut value = [0; 16];
        for (i, byte) in value[..bytes].iter_mut().enumerate() {
            *byte = 0xa0 + i as u8;
        }
        assert_eq!(run(word).0.vector[3], value, "{word:#x}");
    };
    vector(0xfd40_0003, 8); // ldr d3, [x0]
    vector(0x3d40_0003, 1); // ldr b3, [x0]
}

#[test]
fn exclusives_atomics_and_non_accesses_are_refused() {
    for word in [
        0xb821_8002, // swp w1, w2, [x0]
        0x885f_7c01, // ldxr w1, [x0]
        0x8803_7c01, // stxr w3, w1, [x0]
        0xf980_0000, // prfm pldl1keep, [x0]
        0xb821_0002, // ldadd w1, w2, [x0]
        0x88a1_7c02, // cas w1, w2, [x0]
        0xb840_0801, // ldtr w1, [x0]
        0xd50b_7420, // dc zva, x0
        0x6900_0801, // stgp x1, x2, [x0]
        0xd65f_03c0, // ret
    ] {
        assert_eq!(decode(word), None, "{word:#x}");
    }
}

proptest! {
    #[test]
    fn any_word_is_executed_or_refused(word in any::<u32>()) {
        if let Some(instruction) = decode(word) {
            prop_assert!([1, 2, 4, 8, 16].contains(&instruction.bytes));
            execute(&instruction, &mut Fake::new(), &mut Memory::default(), 0);
        }
    }
}
