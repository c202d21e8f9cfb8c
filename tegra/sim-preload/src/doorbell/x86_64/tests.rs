//! Encodings assembled with GNU as, and their expected effects.

use proptest::prelude::*;

use super::super::bus::Bus;
use super::decode::{Instruction, LONGEST, Refused, decode};
use super::execute;
use super::execute::Cpu;

/// Byte `i` of general register `n` is `n << 4 | i`; of vector register `n`, `3 * n + i`.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Fake {
    general: [u64; 16],
    vector: [[u8; 64]; 32],
    flags: u64,
    copied: Vec<(u64, Vec<u8>)>,
    advanced: u8,
}

impl Fake {
    fn new() -> Self {
        Self {
            general: std::array::from_fn(|n| g(n as u8)),
            vector: std::array::from_fn(|n| v(n as u8)),
            flags: 0x202,
            copied: Vec::new(),
            advanced: 0,
        }
    }
}

fn g(n: u8) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| n << 4 | i as u8))
}

fn v(n: u8) -> [u8; 64] {
    std::array::from_fn(|i| 3 * n + i as u8)
}

impl Cpu for Fake {
    fn general(&self, number: u8) -> u64 {
        self.general[usize::from(number)]
    }

    fn set_general(&mut self, number: u8, value: u64) {
        self.general[usize::from(number)] = value;
    }

    fn flags(&self) -> u64 {
        self.flags
    }

    fn set_flags(&mut self, flags: u64) {
        self.flags = flags;
    }

    fn vector(&self, number: u8) -> [u8; 64] {
        self.vector[usize::from(number)]
    }

    fn set_vector(&mut self, number: u8, value: &[u8; 64]) {
        self.vector[usize::from(number)] = *value;
    }

    /// `k1` enables elements 0 to 3, `k2` elements 1 and 3.
    fn mask(&self, number: u8) -> u64 {
        [0, 0b1111, 0b1010][usize::from(number % 3)]
    }

    /// Faults are at `rsi`.
    fn fault(&self) -> u64 {
        self.general[6]
    }

    fn copy_from(&self, address: u64, into: &mut [u8]) {
        into.fill(address as u8);
    }

    fn copy_to(&mut self, address: u64, bytes: &[u8]) {
        self.copied.push((address, bytes.to_vec()));
    }

    fn advance(&mut self, bytes: u8) {
        self.advanced += bytes;
    }
}

/// Memory whose byte `i` reads `0xa0 + i`, and which records writes.
#[derive(Default)]
struct Memory {
    written: Vec<u8>,
}

impl Bus for Memory {
    fn read(&mut self, offset: usize, into: &mut [u8]) {
        for (at, byte) in (offset..).zip(into) {
            *byte = 0xa0_u8.wrapping_add(at as u8);
        }
    }

    fn write(&mut self, _offset: usize, bytes: &[u8]) {
        self.written.extend(bytes);
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    hex.split(' ').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

fn read(hex: &str) -> Result<Instruction, Refused> {
    decode(&bytes(hex))
}

/// Executes one instruction; the decoder must consume exactly its encoding.
fn run(hex: &str) -> (Fake, Memory) {
    let mut code = bytes(hex);
    for length in 0..code.len() {
        assert_eq!(decode(&code[..length]), Err(Refused::Cut), "{length} bytes of {hex}");
    }
    let instruction = decode(&code).unwrap_or_else(|why| panic!("{hex}: {why:?}"));
    code.resize(LONGEST, 0xcc);
    assert_eq!(decode(&code), Ok(instruction), "{hex} and more");
    let (mut cpu, mut memory) = (Fake::new(), Memory::default());
    execute(&instruction, &mut cpu, &mut memory, 0);
    assert_eq!(usize::from(cpu.advanced), bytes(hex).len(), "{hex}: length");
    cpu.advanced = 0;
    (cpu, memory)
}

fn stores(hex: &str, expected: &[u8]) {
    let (cpu, memory) = run(hex);
    assert_eq!(memory.written, expected, "{hex}");
    assert_eq!(cpu, Fake::new(), "{hex}: a store changes no register");
}

#[test]
fn stores_of_general_registers() {
    stores("89 37", &g(6).to_le_bytes()[..4]); // mov [rdi], esi
    stores("89 87 90 00 00 00", &g(0).to_le_bytes()[..4]); // mov [rdi+0x90], eax
    stores("45 89 7d 00", &g(15).to_le_bytes()[..4]); // mov [r13], r15d
    stores("4c 89 4c 24 08", &g(9).to_le_bytes()); // mov [rsp+8], r9
    stores("66 89 0f", &g(1).to_le_bytes()[..2]); // mov [rdi], cx
    stores("88 27", &[0x01]); // mov [rdi], ah
    stores("40 88 37", &[0x60]); // mov [rdi], sil
    stores("a3 88 77 66 55 44 33 22 11", &g(0).to_le_bytes()[..4]); // movabs
    stores("0f c3 07", &g(0).to_le_bytes()[..4]); // movnti [rdi], eax
    stores("67 89 07", &g(0).to_le_bytes()[..4]); // mov [edi], eax
}

#[test]
fn stores_of_immediates() {
    let word = 0x1ff_u32.to_le_bytes();
    stores("c7 84 88 45 23 01 00 ff 01 00 00", &word); // mov dword [rax+rcx*4+0x12345], 0x1ff
    stores("c7 05 90 00 00 00 ff 01 00 00", &word); // mov dword [rip+0x90], 0x1ff
    stores("49 c7 04 24 fe ff ff ff", &(-2_i64).to_le_bytes()); // mov qword [r12], -2
    stores("66 c7 07 34 12", &[0x34, 0x12]);
    stores("c6 07 07", &[7]);
}

#[test]
fn stores_of_vector_registers() {
    stores("0f 11 1f", &v(3)[..16]); // movups [rdi], xmm3
    stores("f3 0f 7f 0f", &v(1)[..16]); // movdqu
    stores("66 0f e7 0f", &v(1)[..16]); // movntdq
    stores("66 0f 7e 17", &v(2)[..4]); // movd [rdi], xmm2
    stores("66 0f d6 17", &v(2)[..8]); // movq [rdi], xmm2
    stores("f3 0f 11 27", &v(4)[..4]); // movss [rdi], xmm4
    stores("0f 13 0f", &v(1)[..8]); // movlps [rdi], xmm1
    stores("0f 17 0f", &v(1)[8..16]); // movhps [rdi], xmm1
    stores("c5 fe 7f 0f", &v(1)[..32]); // vmovdqu [rdi], ymm1
    stores("c5 79 7e 17", &v(10)[..4]); // vmovd [rdi], xmm10
    stores("c5 fa 11 2f", &v(5)[..4]); // vmovss [rdi], xmm5
    stores("62 e1 fe 48 7f 0f", &v(17)); // vmovdqu64 [rdi], zmm17
    stores("62 71 7c 48 29 0f", &v(9)); // vmovaps [rdi], zmm9
}

#[test]
fn masked_moves_touch_enabled_elements_only() {
    stores("62 f1 7f 49 7f 0f", &v(1)[..4]); // vmovdqu8 [rdi]{k1}, zmm1
    stores("62 f1 7e 49 7f 0f", &v(1)[..16]); // vmovdqu32 [rdi]{k1}, zmm1
    stores("62 f1 7f 4a 7f 0f", &[v(1)[1], v(1)[3]]); // vmovdqu8 [rdi]{k2}, zmm1
    let loaded = |hex| run(hex).0.vector[1];
    let mut expected = [0; 64];
    expected[..4].copy_from_slice(&[0xa0, 0xa1, 0xa2, 0xa3]);
    assert_eq!(loaded("62 f1 7f c9 6f 0f"), expected); // vmovdqu8 zmm1{k1}{z}, [rdi]
    let mut expected = v(1);
    (expected[1], expected[3]) = (0xa0, 0xa2);
    assert_eq!(loaded("62 f1 7f 4a 6f 0f"), expected); // vmovdqu8 zmm1{k2}, [rdi]
}

#[test]
fn loads_into_general_registers() {
    let loads = |hex, register: usize, value: u64| {
        let (cpu, memory) = run(hex);
        let mut expected = Fake::new();
        expected.general[register] = value;
        assert_eq!(cpu, expected, "{hex}");
        assert!(memory.written.is_empty(), "{hex}: a load writes nothing");
    };
    loads("8b 87 80 00 00 00", 0, 0xa3a2_a1a0); // mov eax, [rdi+0x80]
    loads("64 8b 07", 0, 0xa3a2_a1a0); // mov eax, fs:[rdi]
    loads("4c 8b 17", 10, 0xa7a6_a5a4_a3a2_a1a0); // mov r10, [rdi]
    loads("0f b6 07", 0, 0xa0); // movzx eax, byte
    loads("44 0f b7 0f", 9, 0xa1a0); // movzx r9d, word
    loads("48 0f be 07", 0, 0xffff_ffff_ffff_ffa0); // movsx rax, byte
    loads("48 63 17", 2, 0xffff_ffff_a3a2_a1a0); // movsxd rdx, dword
    loads("66 8b 07", 0, g(0) & !0xffff | 0xa1a0); // mov ax, word
    loads("8a 3f", 3, g(3) & !0xff00 | 0xa000); // mov bh, byte
}

#[test]
fn loads_into_vector_registers() {
    let loads = |hex, register: usize, at: usize, bytes: usize, zero_to: usize| {
        let mut expected = Fake::new();
        let value = &mut expected.vector[register];
        for (i, byte) in value[at..at + bytes].iter_mut().enumerate() {
            *byte = 0xa0 + i as u8;
        }
        value[at + bytes..zero_to.max(at + bytes)].fill(0);
        assert_eq!(run(hex).0, expected, "{hex}");
    };
    loads("44 0f 28 0f", 9, 0, 16, 16); // movaps xmm9, [rdi]
    loads("66 0f 6f 0f", 1, 0, 16, 16); // movdqa
    loads("66 0f 6e 17", 2, 0, 4, 16); // movd xmm2, [rdi]
    loads("f3 0f 7e 17", 2, 0, 8, 16); // movq xmm2, [rdi]
    loads("f2 0f 10 27", 4, 0, 8, 16); // movsd xmm4, [rdi]
    loads("0f 16 0f", 1, 8, 8, 16); // movhps xmm1, [rdi]
    loads("c4 41 7c 10 08", 9, 0, 32, 64); // vmovups ymm9, [r8]
    loads("c5 7a 7e 1f", 11, 0, 8, 64); // vmovq xmm11, [rdi]
    loads("62 e1 7f 28 6f 57 02", 18, 0, 32, 64); // vmovdqu8 ymm18, [rdi+0x40]
    loads("62 e1 fe 08 6f 07", 16, 0, 16, 64); // vmovdqu64 xmm16, [rdi]
}

#[test]
fn string_moves_repeat_until_their_count_is_zero() {
    let instruction = read("f3 a4").unwrap(); // rep movsb
    let (mut cpu, mut memory) = (Fake::new(), Memory::default());
    cpu.general[1] = 2;
    execute(&instruction, &mut cpu, &mut memory, 0);
    assert_eq!((cpu.general[1], cpu.advanced), (1, 0));
    execute(&instruction, &mut cpu, &mut memory, 1);
    assert_eq!((cpu.general[1], cpu.advanced), (0, 2));
    assert_eq!((cpu.general[6], cpu.general[7]), (g(6) + 2, g(7) + 2));
    assert_eq!(cpu.copied, [(g(7), vec![0xa0]), (g(7) + 1, vec![0xa1])]);
    let (cpu, memory) = run("48 ab"); // stosq
    assert_eq!(memory.written, g(0).to_le_bytes());
    assert_eq!(cpu.general[7], g(7) + 8);
}

#[test]
fn an_exchange_stores_and_loads() {
    let (cpu, memory) = run("87 07"); // xchg [rdi], eax
    assert_eq!(memory.written, g(0).to_le_bytes()[..4]);
    assert_eq!(cpu.general[0], 0xa3a2_a1a0);
}

#[test]
fn comparisons_use_memory_as_the_right_operand() {
    const CARRY: u64 = 1;
    const ZERO: u64 = 0x40;
    // Memory is 0xa3a2a1a0; eax is 0x03020100.
    let flags = |hex| {
        let (cpu, memory) = run(hex);
        assert_eq!(cpu.general, Fake::new().general, "{hex}: compares change no register");
        assert!(memory.written.is_empty(), "{hex}: compares write nothing");
        cpu.flags & (CARRY | ZERO)
    };
    assert_eq!(flags("39 07"), 0); // cmp [rdi], eax
    assert_eq!(flags("3b 07"), CARRY); // cmp eax, [rdi]
    assert_eq!(flags("81 3f a0 a1 a2 a3"), ZERO); // cmp dword [rdi], 0xa3a2a1a0
    assert_eq!(flags("83 3f 05"), 0); // cmp dword [rdi], 5
    assert_eq!(flags("80 3f a0"), ZERO); // cmp byte [rdi], 0xa0
    assert_eq!(flags("f7 07 10 00 00 00"), ZERO); // test dword [rdi], 0x10
    assert_eq!(flags("85 0f"), 0); // test [rdi], ecx
}

#[test]
fn arithmetic_with_memory_changes_the_register() {
    assert_eq!(run("48 03 07").0.general[0], g(0).wrapping_add(0xa7a6_a5a4_a3a2_a1a0)); // add rax, [rdi]
    assert_eq!(run("33 0f").0.general[1], 0xa3a2_a1a0 ^ g(1) & 0xffff_ffff); // xor ecx, [rdi]
}

#[test]
fn read_modify_writes_and_non_accesses_are_refused() {
    for hex in [
        "f0 01 07",    // lock add [rdi], eax
        "01 07",       // add [rdi], eax
        "ff 07",       // inc dword [rdi]
        "0f b1 0f",    // cmpxchg [rdi], ecx
        "ff 37",       // push [rdi]
        "0f ba 2f 03", // bts dword [rdi], 3
        "13 07",       // adc eax, [rdi]
        "89 f7",       // mov edi, esi: no memory operand
        "90",
    ] {
        assert_eq!(read(hex), Err(Refused::Unknown), "{hex}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_within_bounds_or_refused(code in prop::collection::vec(any::<u8>(), 0..20)) {
        if let Ok(instruction) = decode(&code) {
            prop_assert!((1..=15).contains(&instruction.length));
            prop_assert!(usize::from(instruction.length) <= code.len());
            execute(&instruction, &mut Fake::new(), &mut Memory::default(), 0);
        }
    }
}

/// The processor itself is the reference for the flags.
#[cfg(target_arch = "x86_64")]
mod against_the_processor {
    use super::super::decode::{Arithmetic, Operation, Register, Side, Source};
    use super::*;

    const ARITHMETIC: u64 = 0x8d5;
    /// Undefined after logical operations.
    const ADJUST: u64 = 0x10;

    macro_rules! native {
        ($text:literal, $a:expr, $b:expr) => {{
            let (mut a, flags): (u64, u64) = ($a, 0);
            let mut flags = flags;
            // SAFETY: registers and the stack word that is pushed and popped.
            unsafe {
                std::arch::asm!($text, "pushfq", "pop {f}", a = inout(reg) a, b = in(reg) $b, f = out(reg) flags);
            }
            (a, flags)
        }};
    }

    struct Word(u64);

    impl Bus for Word {
        fn read(&mut self, _offset: usize, into: &mut [u8]) {
            into.copy_from_slice(&self.0.to_le_bytes()[..into.len()]);
        }

        fn write(&mut self, _offset: usize, _bytes: &[u8]) {}
    }

    proptest! {
        #[test]
        fn results_and_flags_agree(a in words(), b in words()) {
            let natives = [
                (Arithmetic::Add, 4, native!("add {a:e}, {b:e}", a, b)),
                (Arithmetic::Sub, 4, native!("sub {a:e}, {b:e}", a, b)),
                (Arithmetic::Compare, 4, native!("cmp {a:e}, {b:e}", a, b)),
                (Arithmetic::And, 4, native!("and {a:e}, {b:e}", a, b)),
                (Arithmetic::Or, 4, native!("or {a:e}, {b:e}", a, b)),
                (Arithmetic::Xor, 4, native!("xor {a:e}, {b:e}", a, b)),
                (Arithmetic::Test, 4, native!("test {a:e}, {b:e}", a, b)),
                (Arithmetic::Add, 8, native!("add {a}, {b}", a, b)),
                (Arithmetic::Compare, 8, native!("cmp {a}, {b}", a, b)),
            ];
            for (kind, bytes, (result, flags)) in natives {
                let register = Register { number: 5, high_byte: false };
                let with = Source::Register(register);
                let operation = Operation::Arithmetic { kind, left: Side::Register, with, bytes };
                let mut cpu = Fake::new();
                cpu.general[5] = a;
                execute(&Instruction { length: 3, operation }, &mut cpu, &mut Word(b), 0);
                let logical = !matches!(kind, Arithmetic::Add | Arithmetic::Sub | Arithmetic::Compare);
                let mask = if logical { ARITHMETIC & !ADJUST } else { ARITHMETIC };
                prop_assert_eq!(cpu.flags & mask, flags & mask, "{:?} of {} bytes", kind, bytes);
                if !matches!(kind, Arithmetic::Compare | Arithmetic::Test) {
                    prop_assert_eq!(cpu.general[5], result, "{:?} of {} bytes", kind, bytes);
                }
            }
        }
    }

    /// Numbers around the limits, and any others.
    fn words() -> impl Strategy<Value = u64> {
        prop_oneof![
            prop::sample::select(vec![
                0,
                1,
                0x7fff_ffff,
                0x8000_0000,
                0xffff_ffff,
                1 << 63,
                u64::MAX
            ]),
            any::<u64>(),
        ]
    }
}
