//! Partly defined registers: correct code of a compiler, and uses of undefined bits.
//!
//! Each case is machine code with its expected text.

use sass::check::Checks;
use sass::fault::FaultKind;
use sass::launch::{BANKS, Launch};
use sass::machine::{Cache, Options, run};
use sass::program::Program;

use crate::support::Arena;

/// An instruction's halves and its text.
type Line = (u64, u64, &'static str);

/// The rows of constant bank 3, a word for each lane.
const LANE: u64 = 0;
const ZEROS: u64 = 1;
const ONES: u64 = 2;
const UPPER: u64 = 3;
const ADDRESS: u64 = 4;

/// `LDC`: a row into a register.
const fn ldc(guard: u64, register: u64, row: u64) -> u64 {
    0xc0 << 48 | (row * 128) << 38 | 254 << 24 | register << 16 | guard << 12 | 0xb82
}

/// Prologue: R254 is four times the lane, R248 the address of the lane's word, R0 the lane.
fn prologue() -> Vec<(u64, u64)> {
    vec![
        (0x00fe_7919, 0),
        (0x0000_0004_fefe_7824, 0x078e_00ff),
        (ldc(7, 0, LANE), 0x800),
        (ldc(7, 248, ADDRESS), 0x800),
        (ldc(7, 249, ADDRESS + 1), 0x800),
    ]
}

/// Runs the lines after the prologue; returns the stored words, or the undefined register, its
/// instruction and lane.
fn attempt(lines: &[Line]) -> Result<Vec<u32>, (String, String, u32)> {
    let mut code = prologue();
    let first = code.len();
    code.extend(lines.iter().map(|&(low, high, _)| (low, high)));
    code.push((0x794d, 0x0380_0000));
    let bytes: Vec<u8> = code
        .iter()
        .flat_map(|(low, high)| [low.to_le_bytes(), high.to_le_bytes()])
        .flatten()
        .collect();
    let program = Program::new(&bytes).unwrap();
    for (decoded, (.., text)) in program.instructions()[first..].iter().zip(lines) {
        assert_eq!(decoded.as_ref().unwrap().to_string(), *text);
    }
    let mut memory = Arena::default();
    let out = memory.zeros(32);
    let address = |lane: u64| out + 4 * lane;
    let upper = |lane: u64| u32::from(lane >= 16);
    let mut bank: Vec<u8> = Vec::new();
    for row in 0..ADDRESS + 2 {
        for lane in 0..32 {
            let word = match row {
                LANE => lane as u32,
                ZEROS => 0,
                ONES => !0,
                UPPER => upper(lane),
                ADDRESS => address(lane) as u32,
                _ => (address(lane) >> 32) as u32,
            };
            bank.extend(word.to_le_bytes());
        }
    }
    let mut banks: [&[u8]; BANKS] = [&[]; BANKS];
    banks[3] = &bank;
    let launch = Launch {
        name: "undefined",
        grid: [1; 3],
        block: [32, 1, 1],
        registers: 255,
        shared_bytes: 128,
        shared_reserved: 0,
        local_bytes: 0x400,
        banks,
        shared_window: 0x00fe_0000_0000,
        local_window: 0x00ff_0000_0000,
        entry: 0,
        time_ns: 0,
        sms: 8,
    };
    let options = Options { checks: Checks::ALL, ..Options::default() };
    match run(&program, &launch, &memory, &Cache::default(), &options) {
        Ok(_) => Ok(memory.read(out)),
        Err(fault) => match fault.kind {
            FaultKind::Uninitialised { ref register } => {
                Err((register.clone(), fault.instruction.clone(), fault.lane))
            }
            _ => panic!("{fault}"),
        },
    }
}

/// The lines are correct; reporting an undefined bit would be a false alarm.
#[track_caller]
fn right(lines: &[Line]) -> Vec<u32> {
    attempt(lines).unwrap_or_else(|(register, at, lane)| panic!("{register} at {at}, lane {lane}"))
}

/// The last line uses an unset bit of a register or predicate, in a lane first.
#[track_caller]
fn wrong(lines: &[Line], register: &str, lane: u32) {
    let (missed, at, found) = attempt(lines).expect_err("a use of an unset bit");
    let (.., text) = lines.last().unwrap();
    assert_eq!((missed.as_str(), at.as_str(), found), (register, *text, lane));
}

const LOW_HALF: Line = (0x0000_7610_ff07_7816, 0x07, "PRMT R7, RZ, 0x7610, R7");
const STORE_7_BYTE: Line = (0x0000_0007_f800_7986, 0x0c10_1104, "STG.E.U8 [R248.64], R7");
const STORE_7_HALF: Line = (0x0000_0007_f800_7986, 0x0c10_1504, "STG.E.U16 [R248.64], R7");
const STORE_7: Line = (0x0000_0007_f800_7986, 0x0c10_1904, "STG.E [R248.64], R7");
const STORE_2_BYTE: Line = (0x0000_0002_f800_7986, 0x0c10_1104, "STG.E.U8 [R248.64], R2");
const STORE_2: Line = (0x0000_0002_f800_7986, 0x0c10_1904, "STG.E [R248.64], R2");

#[test]
fn a_narrow_store_of_what_was_written_in_part() {
    right(&[LOW_HALF, STORE_7_BYTE]);
    right(&[LOW_HALF, STORE_7_HALF]);
    wrong(&[LOW_HALF, STORE_7], "R7", 0);
    wrong(&[STORE_7_BYTE], "R7", 0);
    // The upper half of R7 goes to the lower half of R2.
    let swapped = (0x0000_1032_0702_7816, 0xff, "PRMT R2, R7, 0x1032, RZ");
    wrong(&[LOW_HALF, swapped, STORE_2_BYTE], "R2", 0);
    // The sign of an unset byte is as unset as the byte; of a set one it is set.
    let sign = |select: u64, text| (select << 32 | 0x0702_7816, 0xff, text);
    right(&[LOW_HALF, sign(0x9999, "PRMT R2, R7, 0x9999, RZ"), STORE_2]);
    wrong(&[LOW_HALF, sign(0xaaaa, "PRMT R2, R7, 0xaaaa, RZ"), STORE_2], "R2", 0);
}

#[test]
fn undefined_bits_follow_moves_and_shifts() {
    for (low, high, text) in [
        (0x0000_0007_0002_7202, 0xf00, "MOV R2, R7"),
        (0x0000_00ff_ff02_7224, 0x078e_0007, "IMAD.MOV.U32 R2, RZ, RZ, R7"),
        (0x0000_0001_0702_7810, 0x07ff_e0ff, "IADD3 R2, R7, 0x1, RZ"),
        (0x0000_0003_0702_7819, 0x6ff, "SHF.L.U32 R2, R7, 0x3, RZ"),
    ] {
        right(&[LOW_HALF, (low, high, text), STORE_2_BYTE]);
        wrong(&[LOW_HALF, (low, high, text), STORE_2], "R2", 0);
    }
    let down = (0x0000_0010_ff02_7819, 0x0001_1607, "SHF.R.U32.HI R2, RZ, 0x10, R7");
    wrong(&[LOW_HALF, down, STORE_2_BYTE], "R2", 0);
    // Nothing of an unset register is left in the lowest bits.
    let up = (0x0000_0008_0602_7819, 0x6ff, "SHF.L.U32 R2, R6, 0x8, RZ");
    assert_eq!(right(&[up, STORE_2_BYTE]), [0; 32]);
    wrong(&[up, STORE_2], "R2", 0);
}

#[test]
fn a_known_zero_decides_an_and_and_a_known_one_an_or() {
    let and = (0x0000_0003_0602_7212, 0x078e_c0ff, "LOP3.LUT R2, R6, R3, RZ, 0xc0, !PT");
    let or = (0x0000_0003_0602_7212, 0x078e_fcff, "LOP3.LUT R2, R6, R3, RZ, 0xfc, !PT");
    let zeros = (ldc(7, 3, ZEROS), 0x800, "LDC R3, c[0x3][R254+0x80]");
    let ones = (ldc(7, 3, ONES), 0x800, "LDC R3, c[0x3][R254+0x100]");
    let upper = (ldc(7, 3, UPPER), 0x800, "LDC R3, c[0x3][R254+0x180]");
    assert_eq!(right(&[zeros, and, STORE_2]), [0; 32]);
    assert_eq!(right(&[ones, or, STORE_2]), [!0; 32]);
    wrong(&[ones, and, STORE_2], "R2", 0);
    wrong(&[zeros, or, STORE_2], "R2", 0);
    wrong(&[upper, and, STORE_2], "R2", 16);
}

#[test]
fn a_carry_without_a_value_spoils_the_sum_and_its_own_carry() {
    let store: Line = (0x0000_0002_f800_7986, 0x0c10_1904, "STG.E [R248.64], R2");
    for (high, text) in [
        (0x008e_14ff, "LEA.X R2, R0, R0, 0x2, P1"),
        (0x008f_14ff, "LEA.HI.X R2, R0, R0, RZ, 0x2, P1"),
    ] {
        let sum = (0x0000_0000_0002_7211, high, text);
        right(&[P1_SET, sum, store]);
        wrong(&[sum, store], "R2", 0);
    }
    for (high, text) in [
        (0x0080_14ff, "LEA.X R2, P0, R0, R0, 0x2, P1"),
        (0x0081_14ff, "LEA.HI.X R2, P0, R0, R0, RZ, 0x2, P1"),
    ] {
        let sum = (0x0000_0000_0002_7211, high, text);
        right(&[P1_SET, sum, IF_P0]);
        right(&[P1_SET, sum, store]);
        wrong(&[sum, store], "R2", 0);
        wrong(&[sum, IF_P0], "P0", 0);
    }
}

/// `ISETP.NE.AND` of the lane's number against 0, into P0 or P1.
const P0_SET: Line = (0x0000_00ff_0000_720c, 0x03f0_5270, "ISETP.NE.AND P0, PT, R0, RZ, PT");
const P1_SET: Line = (0x0000_00ff_0000_720c, 0x03f2_5270, "ISETP.NE.AND P1, PT, R0, RZ, PT");
const SAVE_P0: Line = (0x0000_0001_0909_7803, 0, "P2R R9, PR, R9, 0x1");
const SAVE_P1: Line = (0x0000_0002_0909_7803, 0, "P2R R9, PR, R9, 0x2");
const TEST_P1: Line =
    (0x0000_0002_09ff_7812, 0x0780_c0ff, "LOP3.LUT P0, RZ, R9, 0x2, RZ, 0xc0, !PT");
const TEST_P2: Line =
    (0x0000_0004_09ff_7812, 0x0780_c0ff, "LOP3.LUT P0, RZ, R9, 0x4, RZ, 0xc0, !PT");
const IF_P0: Line = (0x0000_0000_f800_0986, 0x0c10_1904, "@P0 STG.E [R248.64], R0");
const IF_P1: Line = (0x0000_0000_f800_1986, 0x0c10_1904, "@P1 STG.E [R248.64], R0");
const IF_P2: Line = (0x0000_0000_f800_2986, 0x0c10_1904, "@P2 STG.E [R248.64], R0");

#[test]
fn predicates_are_spilled_bit_by_bit() {
    let restore = |mask: u64, text| (mask << 32 | 0x0900_7804, 0, text);
    let both = restore(3, "R2P PR, R9, 0x3");
    let stored: Vec<u32> = (0..32).collect();
    assert_eq!(right(&[P0_SET, P1_SET, SAVE_P0, SAVE_P1, both, IF_P0, IF_P1]), stored);
    assert_eq!(right(&[P1_SET, SAVE_P1, TEST_P1, IF_P0]), stored);
    wrong(&[P1_SET, SAVE_P1, TEST_P2, IF_P0], "P0", 0);
    wrong(&[P0_SET, SAVE_P0, restore(7, "R2P PR, R9, 0x7"), IF_P2], "P2", 0);
    // Restoring two leaves the third alone, with or without a value.
    wrong(&[P0_SET, P1_SET, SAVE_P0, SAVE_P1, both, IF_P2], "P2", 0);
    // Saving an undefined predicate does not define it.
    wrong(&[SAVE_P0, restore(1, "R2P PR, R9, 0x1"), IF_P0], "P0", 0);
    let cleared = (0x0000_0001_ff09_7803, 0, "P2R R9, PR, RZ, 0x1");
    let store = (0x0000_0009_f800_7986, 0x0c10_1904, "STG.E [R248.64], R9");
    wrong(&[cleared, store], "R9", 0);
}

#[test]
fn a_register_set_in_part_goes_through_local_memory() {
    let spill = (0xfffc_0009_ff00_7387, 0x0010_0800, "STL [-0x400], R9");
    let fill = (0xfffc_0000_ff09_7983, 0x0010_0800, "LDL R9, [-0x400]");
    right(&[P1_SET, SAVE_P1, spill, fill, TEST_P1, IF_P0]);
    wrong(&[P1_SET, SAVE_P1, spill, fill, TEST_P2, IF_P0], "P0", 0);
}

#[test]
fn a_byte_of_shared_memory_is_read_with_its_word() {
    let byte = (0x0000_0000_fe00_7388, 0, "STS.U8 [R254], R0");
    let load = (0x0000_0000_fe07_7984, 0x800, "LDS R7, [R254]");
    let only = (0x0000_00ff_0702_7812, 0x078e_c0ff, "LOP3.LUT R2, R7, 0xff, RZ, 0xc0, !PT");
    let next = (0x0000_ff00_0702_7812, 0x078e_c0ff, "LOP3.LUT R2, R7, 0xff00, RZ, 0xc0, !PT");
    assert_eq!(right(&[byte, load, only, STORE_2]), (0..32).collect::<Vec<_>>());
    right(&[byte, load, STORE_7_BYTE]);
    wrong(&[byte, load, next, STORE_2], "R2", 0);
    wrong(&[byte, load, STORE_7], "R7", 0);
}

#[test]
fn a_compare_gated_by_its_own_predicate() {
    let gate: Line = (0x0000_00ff_0000_720c, 0x03fa_5270, "ISETP.NE.AND P5, PT, R0, RZ, PT");
    let load: Line = (ldc(0xd, 6, LANE), 0x800, "@!P5 LDC R6, c[0x3][R254]");
    let half = 0x3f00_0000_0600_780b;
    let and = (half, 0x06fa_4000, "FSETP.GT.AND P5, PT, R6, 0.5, !P5");
    let or = (half, 0x06fa_4400, "FSETP.GT.OR P5, PT, R6, 0.5, !P5");
    let ungated = (half, 0x03fa_4000, "FSETP.GT.AND P5, PT, R6, 0.5, PT");
    let store = (0x0000_0000_f800_5986, 0x0c10_1904, "@P5 STG.E [R248.64], R0");
    right(&[gate, load, and, store]);
    wrong(&[gate, load, or, store], "P5", 1);
    wrong(&[gate, load, ungated, store], "P5", 1);
}

/// An instruction without active lanes cannot fault.
#[test]
fn instructions_without_active_lanes_do_not_fault() {
    let zeros: Line = (ldc(7, 3, ZEROS), 0x800, "LDC R3, c[0x3][R254+0x80]");
    let never = (0x0000_00ff_0300_720c, 0x03f0_5270, "ISETP.NE.AND P0, PT, R3, RZ, PT");
    let beyond = (ldc(0, 6, ADDRESS + 2), 0x800, "@P0 LDC R6, c[0x3][R254+0x300]");
    let same = (ldc(0, 6, ADDRESS + 2) | 255 << 24, 0x800, "@P0 LDC R6, c[0x3][0x300]");
    let store = (0x0000_0000_f800_7986, 0x0c10_1904, "STG.E [R248.64], R0");
    for load in [beyond, same] {
        assert_eq!(right(&[zeros, never, load, store]), (0..32).collect::<Vec<_>>());
    }
}

#[test]
fn a_shuffle_carries_undefined_bits_of_the_other_lane() {
    let gate: Line = (ldc(7, 3, UPPER), 0x800, "LDC R3, c[0x3][R254+0x180]");
    let upper = (0x0000_00ff_0300_720c, 0x03f0_5270, "ISETP.NE.AND P0, PT, R3, RZ, PT");
    let load = (ldc(0, 6, LANE), 0x800, "@P0 LDC R6, c[0x3][R254]");
    let across = (0x0e00_1f00_0602_7f89, 0x000e_0000, "SHFL.BFLY PT, R2, R6, 0x10, 0x1f");
    let lower = (0x0000_0002_f800_8986, 0x0c10_1904, "@!P0 STG.E [R248.64], R2");
    let stored = right(&[gate, upper, load, across, lower]);
    assert_eq!(stored[..16], (16..32).collect::<Vec<_>>());
    let upper_half = (0x0000_0002_f800_0986, 0x0c10_1904, "@P0 STG.E [R248.64], R2");
    wrong(&[gate, upper, load, across, upper_half], "R2", 16);
}
