//! Semantics of the encodings in `tests/data/sm_87/encoded.txt`, which no kernel here contains. The
//! encodings are CuAssembler's (see `public`), their text is that of nvdisasm 13.

use orind_testing::random::Random;
use sass::machine::Cache;

use crate::semantics::{instruction, on_lanes, store};
use crate::support::words;

const PREDICATES_OF_5: u128 = 0x0000_007f_0500_7804;
const PREDICATES_TO_6: u128 = 0x0000_007f_ff06_7803;

/// Rows for `on_lanes` with some registers given.
fn rows(given: &[(usize, [u32; 32])]) -> Vec<[u32; 32]> {
    let mut rows = vec![[0; 32]; 256];
    for (register, lanes) in given {
        rows[*register] = *lanes;
    }
    rows
}

fn random_lanes(random: &mut Random) -> [u32; 32] {
    words(random, 32).try_into().unwrap()
}

/// Value of register 6 after code that starts with registers 5, 7 and 8 given.
fn six(code: &[u128], [five, seven, eight]: [[u32; 32]; 3], constants: &[u8]) -> Vec<u32> {
    let rows = rows(&[(5, five), (7, seven), (8, eight)]);
    on_lanes(code, &rows, &[5, 7, 8], &[6], constants, &Cache::default())
}

#[test]
fn a_byte_of_a_register_takes_and_gives_predicates() {
    let mut random = Random(3);
    let [five, seven, eight] = [(); 3].map(|()| random_lanes(&mut random));
    for byte in 0..4u32 {
        let of = u128::from(byte) << 76;
        // P2R.Bn R6, PR, R7, 0x2d
        let saved =
            six(&[PREDICATES_OF_5, 0x0000_002d_0706_7803 | of], [five, seven, eight], &[0; 4]);
        // R2P PR, R7.Bn, 0x2d
        let given = six(
            &[PREDICATES_OF_5, 0x0000_002d_0700_7804 | of, PREDICATES_TO_6],
            [five, seven, eight],
            &[0; 4],
        );
        for lane in 0..32 {
            let shift = 8 * byte;
            let kept = seven[lane] & !(0x2d << shift);
            assert_eq!(saved[lane], kept | (five[lane] & 0x2d) << shift, "byte {byte}");
            let taken = seven[lane] >> shift & 0x2d;
            assert_eq!(given[lane], five[lane] & 0x52 | taken, "byte {byte}");
        }
    }
}

/// `ULDC.64 UR4, c[0x0][0x0]`.
const BASE_TO_4: u128 = 0xa00 << 64 | 0x0004_7ab9;

#[test]
fn a_register_of_32_bits_is_added_unsigned_to_a_base_of_64() {
    let mut random = Random(4);
    let five = random_lanes(&mut random);
    // The buffer begins at 2^32, and a register's sign bit is no sign.
    let far = std::array::from_fn(|lane| 0x8000_0000 + 4 * (31 - lane as u32));
    let garbage = [0x1234_5678; 32];
    let base = 0x8000_0000u64.to_le_bytes();
    // LDG.E R6, [R7.U32+UR4]
    let load = 0x0000_0004_0706_7981 | 0x081e_0900 << 64;
    let loaded = six(&[store(5, 0), BASE_TO_4, load], [five, far, garbage], &base);
    let reversed: Vec<u32> = five.iter().rev().copied().collect();
    assert_eq!(loaded, reversed);
}

#[test]
fn a_copy_goes_to_a_uniform_registers_address() {
    let five = random_lanes(&mut Random(5));
    let to = std::array::from_fn(|lane| 4 * lane as u32);
    let from = to.map(|address| address + 0x30);
    // LDGSTS.E [R7+UR4+0x10], [R248.64]; LDGDEPBAR; DEPBAR.LE SB0, 0x0, {2,1}; LDS R6, [R8]
    let copy = instruction(0x10 << 44 | 0xf807_7dae, 0x0b92_0844);
    let code = [
        store(5, 0),
        BASE_TO_4,
        copy,
        0x79af,
        0x8006_0000_791a,
        instruction(8 << 24 | 6 << 16 | 0x7984, 0x800),
    ];
    let copied = six(&code, [five, to, from], &0x20u64.to_le_bytes());
    assert_eq!(copied, five);
}

#[test]
fn the_warps_predicates_are_combined() {
    let none = [0; 32];
    let one = std::array::from_fn(|lane| u32::from(lane == 9));
    for (five, any) in [(none, false), (one, true)] {
        for (table, combine) in [(0x80u32, any), (0x40, !any), (0x7f, !any), (0xaa, any)] {
            // VOTEU.ANY UP2, P0; UPLOP3.LUT UP0, UPT, UPT, UPT, UP2, table, 0x0;
            // USEL UR5, URZ, UR4, !UP0; MOV R6, UR5
            let vote = instruction(0x003f_7886, 0x0004_0100);
            let uplop = instruction(
                0x789c,
                0x03f0_e020 | u64::from(table >> 3) << 8 | u64::from(table & 7),
            );
            let select = instruction(0x0000_0004_3f05_7287, 0x0c00_0000);
            let code = [
                PREDICATES_OF_5,
                BASE_TO_4,
                vote,
                uplop,
                select,
                instruction(0x0000_0005_0006_7c02, 0x0800_0f00),
            ];
            let got = six(&code, [five, none, none], &7u64.to_le_bytes());
            assert_eq!(got, [if combine { 7 } else { 0 }; 32], "any {any}, table {table:#x}");
        }
    }
}

/// `DMMA` of R20 by R22 and R24 to R27, into R12 to R15, with further bits of the encoding.
fn product(extra: u128, a: [f64; 32], b: [f64; 32], c: [f64; 64]) -> Vec<f64> {
    let words = |at: fn(usize, usize) -> usize, of: &[f64], step: usize| -> [[u32; 32]; 2] {
        let word =
            |shift: u32| std::array::from_fn(|lane| (of[at(lane, step)].to_bits() >> shift) as u32);
        [word(0), word(32)]
    };
    let single = |lane: usize, _: usize| lane;
    let [a, b] = [words(single, &a, 0), words(single, &b, 0)];
    let [c0, c1] = [0, 1].map(|step| words(|lane, step| 2 * lane + step, &c, step));
    let loaded = [20, 21, 22, 23, 24, 25, 26, 27];
    let lanes = [a[0], a[1], b[0], b[1], c0[0], c0[1], c1[0], c1[1]];
    let given: Vec<_> = loaded.iter().map(|&r| usize::from(r)).zip(lanes).collect();
    let code = [instruction(0x0000_0016_140c_723f, 24) | extra];
    let out =
        on_lanes(&code, &rows(&given), &loaded, &[12, 13, 14, 15], &[0; 4], &Cache::default());
    let element = |lane: usize, step: usize| {
        let word = |register: usize| u64::from(out[32 * (2 * step + register) + lane]);
        f64::from_bits(word(0) | word(1) << 32)
    };
    (0..32).flat_map(|lane| [element(lane, 0), element(lane, 1)]).collect()
}

#[test]
fn products_of_doubles_have_signs() {
    let mut random = Random(6);
    // Small integers and a quarter: the sums are exact in any order.
    let mut number = || random.below(1000) as f64 - 500.25;
    let a: [f64; 32] = std::array::from_fn(|_| number());
    let b: [f64; 32] = std::array::from_fn(|_| number());
    let c: [f64; 64] = std::array::from_fn(|_| number());
    // Bits that negate, and that take the absolute value first, of each source.
    let bits = [[72, 73], [63, 62], [75, 74]];
    for signs in 0..64u32 {
        let set = |bit: usize| signs >> bit & 1 == 1;
        let extra = (0..6).filter(|&bit| set(bit)).map(|bit| 1u128 << bits[bit / 2][bit % 2]).sum();
        let sign = |source: usize, value: f64| {
            let value = if set(2 * source + 1) { value.abs() } else { value };
            if set(2 * source) { -value } else { value }
        };
        let ours = product(extra, a, b, c);
        for at in 0..64 {
            let (row, column) = (at / 8, at % 8);
            let products = (0..4).map(|k| sign(0, a[4 * row + k]) * sign(1, b[4 * column + k]));
            assert_eq!(ours[at], sign(2, c[at]) + products.sum::<f64>(), "{signs:#x}");
        }
    }
}

#[test]
fn products_of_doubles_are_rounded() {
    let tiny = 2f64.powi(-60);
    for (round, above, below) in [
        (0u128, 1.0, 1.0),
        (1, 1.0, 1.0f64.next_down()),
        (2, 1.0f64.next_up(), 1.0),
        (3, 1.0, 1.0f64.next_down()),
    ] {
        for (sign, expected) in [(1.0, above), (-1.0, below)] {
            // One product that is not zero.
            let a = std::array::from_fn(|lane| if lane % 4 == 2 { sign * tiny } else { 0.0 });
            let ours = product(round << 78, a, [1.0; 32], [1.0; 64]);
            assert_eq!(ours, [expected; 64], "rounding {round}");
        }
    }
}
