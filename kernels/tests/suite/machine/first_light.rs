//! Execution of first light's kernels: the probe is compared with a Rust model and the checked-in
//! words, the others with their rules.

use orind_kernels::catalogue::Unit;
use orind_kernels::cubin::Cubin;
use orind_kernels::first_light::{
    ATOMICS_BLOCKS, ATOMICS_THREADS, AtomicsParams, HANDOVER_THREADS, HandoverParams, Kernel,
    OrderParams, PARTS, PROBE_GRID, ProbeParams, WAYS, copied, mark, next, part, probe,
    probe_words, sums,
};
use orind_kernels::params::IntoBytes;
use orind_kernels::prebuilt;
use orind_kernels::source::Target;

use super::device::Device;

/// Threads of the probe's grid, in blocks of 64.
const THREADS: usize = 128;
const BLOCK: usize = 64;
const WARP: usize = 32;

fn launch(device: &Device, kernel: Kernel, grid: [u32; 3], params: &[u8]) {
    let file = prebuilt::file(Unit::FirstLight, Target::Sm87).unwrap();
    let cubin = Cubin::parse(&file).unwrap();
    let found = cubin.kernel(kernel.symbol()).unwrap();
    device.execute(kernel.symbol(), found, kernel.block(), grid, kernel.dynamic_shared(), params);
}

fn words(device: &mut Device, words: &[u32]) -> u64 {
    device.bytes(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())
}

fn executed(params: impl Fn(u64) -> ProbeParams, seed: u64) -> Vec<u32> {
    let mut device = Device::new(seed);
    let out = device.scratch(PARTS.len() * THREADS);
    launch(&device, Kernel::Probe, PROBE_GRID, params(out).as_bytes());
    device.words(out)
}

fn bytes_of(word: u32) -> [u32; 4] {
    word.to_le_bytes().map(u32::from)
}

fn signed_bytes_of(word: u32) -> [u32; 4] {
    word.to_le_bytes().map(|byte| byte as i8 as u32)
}

fn dot(a: [u32; 4], b: [u32; 4], sum: u32) -> u32 {
    a.into_iter().zip(b).fold(sum, |sum, (a, b)| sum.wrapping_add(a.wrapping_mul(b)))
}

/// The high word of a product.
fn high(a: u32, b: u32) -> u32 {
    ((u64::from(a) * u64::from(b)) >> 32) as u32
}

/// Divergent branches of a thread with value `v`.
fn branches(mut v: u32, thread: u32, seed: u32, turns: u32) -> u32 {
    for turn in 0..turns {
        v = match v >> 13 & 7 {
            0 => v.wrapping_mul(1_664_525).wrapping_add(1_013_904_223),
            1 => v.rotate_left(7) ^ turn,
            2 => v.count_ones().wrapping_mul(0x0101_0101).wrapping_sub(v),
            3 => v.reverse_bits().wrapping_add(0x1b87_3593),
            4 => (v / 3).wrapping_add(0xdead_beef),
            5 => high(v, 0x9e37_79b9) ^ !v,
            6 => v.wrapping_mul(33).wrapping_add(v.leading_zeros()),
            _ => {
                let [a, b] = [v.to_le_bytes(), seed.to_le_bytes()];
                let all = [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]];
                u32::from_le_bytes([3, 1, 5, 2].map(|byte| all[byte])).wrapping_add(thread)
            }
        };
    }
    v
}

/// Rust model of the probe: each part is a function of all threads' values.
fn model(ProbeParams { seed, turns, table, .. }: ProbeParams) -> Vec<u32> {
    let mut v: Vec<u32> = (1..=THREADS as u32)
        .map(|number| {
            let v = number.wrapping_mul(0x9e37_79b9).wrapping_add(seed);
            // A block has 16 by 4 threads, the grid 2 by 1 blocks.
            let v = v.wrapping_mul(16).wrapping_add(4);
            let v = v.wrapping_mul(2 + 5).wrapping_add(1);
            let entry = table[(number - 1) as usize % 4];
            v ^ high(v, 0x85eb_ca6b).wrapping_add(entry)
        })
        .collect();
    let mut out = v.clone();

    for v in &mut v {
        let sum = dot(
            signed_bytes_of(*v),
            signed_bytes_of(v.wrapping_mul(0x0100_0193).wrapping_add(7)),
            *v,
        );
        let sum = dot(bytes_of(*v ^ 0x80ff_7f01), signed_bytes_of(sum), sum);
        *v = dot(bytes_of(sum), bytes_of(*v), sum ^ *v);
    }
    out.extend(&v);

    for warp in v.chunks_mut(WARP) {
        let each = |warp: &mut [u32], f: &dyn Fn(&[u32], usize) -> u32| {
            let old = warp.to_vec();
            warp.iter_mut().enumerate().for_each(|(lane, v)| *v = f(&old, lane));
        };
        each(warp, &|v, lane| v[lane].wrapping_add(v[lane ^ 5].wrapping_mul(3)));
        each(warp, &|v, lane| v[lane] ^ v[(v[lane] >> 3) as usize % WARP]);
        // A lane without a partner at that distance gets its own value.
        let up = |lane: usize| lane.checked_sub(3).unwrap_or(lane);
        each(warp, &|v, lane| v[lane].wrapping_mul(7).wrapping_add(v[up(lane)]));
        let down = |lane: usize| if lane + 7 < WARP { lane + 7 } else { lane };
        each(warp, &|v, lane| v[lane] ^ v[down(lane)] >> 1);
        each(warp, &|v, lane| {
            let votes = v.iter().enumerate().map(|(lane, v)| (v >> 2 & 1) << lane);
            v[lane].wrapping_add(votes.sum())
        });
    }
    out.extend(&v);

    for block in v.chunks_mut(BLOCK) {
        let fixed = block.to_vec();
        for (t, v) in block.iter_mut().enumerate() {
            *v = v.wrapping_mul(5).wrapping_add(fixed[(29 * t + 17) % BLOCK]);
        }
    }
    out.extend(&v);

    for block in v.chunks_mut(BLOCK) {
        let dynamic: Vec<u32> = block.iter().rev().copied().collect();
        for (t, v) in block.iter_mut().enumerate() {
            *v = v.wrapping_mul(9).wrapping_add(dynamic[(t + 33) % BLOCK]);
        }
    }
    out.extend(&v);

    for v in &mut v {
        let mut stack: [u32; 16] =
            std::array::from_fn(|i| v.wrapping_mul(2 * i as u32 + 1) ^ i as u32);
        for _ in 0..turns {
            *v = v.wrapping_mul(5).wrapping_add(stack[(*v >> 7) as usize % 16]);
            stack[(*v >> 11) as usize % 16] ^= *v;
        }
    }
    out.extend(&v);

    for (thread, v) in v.iter_mut().enumerate() {
        *v = branches(*v, thread as u32, seed, turns);
    }
    out.extend(&v);

    for v in &mut v {
        let (mut x, mut steps) = (*v % 1009 + 1, 0);
        while x != 1 && steps < 40 {
            x = if x.is_multiple_of(2) { x / 2 } else { 3 * x + 1 };
            steps += 1;
        }
        let wide = u64::from(*v) << 32 | u64::from(seed);
        let wide = wide.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(steps);
        *v = ((wide >> 32) as u32).wrapping_add(wide as u32);
    }
    out.extend(&v);
    out
}

fn first_difference(found: &[u32], expected: &[u32]) -> Option<String> {
    assert_eq!(found.len(), expected.len());
    let at = found.iter().zip(expected).position(|(found, expected)| found != expected)?;
    Some(format!("{}, thread {}", part(at), at % THREADS))
}

#[test]
fn the_probe_matches_its_model() {
    let other = |out| ProbeParams { seed: 0xffff_fff0, turns: 100, ..probe(out) };
    let none = |out| ProbeParams { turns: 0, ..probe(out) };
    for (order, params) in [probe as fn(u64) -> ProbeParams, other, none].into_iter().enumerate() {
        let found = executed(params, order as u64);
        assert_eq!(first_difference(&found, &model(params(0))), None);
    }
}

#[test]
fn the_checked_in_words_match_the_machine_code() {
    for seed in 0..4 {
        let found = executed(probe, seed);
        assert_eq!(
            first_difference(&found, &probe_words()),
            None,
            "`cargo test -p orind-kernels -- --ignored write_the_expected_words` makes them anew"
        );
    }
}

/// Generates the expected words by execution.
#[test]
#[ignore = "writes kernels/first_light/probe.bin"]
fn write_the_expected_words() {
    let bytes: Vec<u8> = executed(probe, 0).iter().flat_map(|word| word.to_le_bytes()).collect();
    std::fs::write(orind_testing::repository("kernels/first_light/probe.bin"), bytes).unwrap();
}

/// The probe's machine code contains the instructions it should test.
#[test]
fn the_probe_contains_the_instructions_it_tests() {
    let file = prebuilt::file(Unit::FirstLight, Target::Sm87).unwrap();
    let cubin = Cubin::parse(&file).unwrap();
    let kernel = cubin.kernel(Kernel::Probe.symbol()).unwrap();
    assert!(kernel.constants2.is_some_and(|bank| !bank.is_empty()), "no literals in bank 2");
    assert!(kernel.stack_bytes >= 64, "no stack");
    assert_eq!(kernel.shared_bytes, 256);
    let program = |kernel: Kernel| {
        let code = cubin.kernel(kernel.symbol()).unwrap().code;
        let program = sass::program::Program::new(code).unwrap();
        program.instructions().iter().flatten().map(ToString::to_string).collect::<Vec<_>>()
    };
    let has = |kernel, name: &str| program(kernel).iter().any(|i| i.contains(name));
    for name in [
        "c[0x2]",
        "IDP.4A.S8.S8",
        "IDP.4A.U8.S8",
        "IMAD",
        "SHFL",
        "VOTE",
        "STS",
        "LDS",
        "BAR",
        "STL",
        "LDL",
        "LDC",
        "BSSY",
    ] {
        assert!(has(Kernel::Probe, name), "no {name} in {:#?}", program(Kernel::Probe));
    }
    for load in ["LD.E.128 ", "LDG.E.128 ", "LDG.E.128.CONSTANT "] {
        assert!(has(Kernel::Handover, load), "no {load}in {:#?}", program(Kernel::Handover));
    }
    assert!(has(Kernel::Atomics, "ATOMG.E.ADD.STRONG.GPU"));
}

#[test]
fn the_order_kernel_continues_from_the_previous_word() {
    let mut device = Device::new(3);
    let mut expected = vec![77];
    let out = words(&mut device, &[vec![77], vec![0xdead_dead; 40]].concat());
    for index in 1..=40 {
        let params = OrderParams { out, index, reserved: 0 };
        launch(&device, Kernel::Order, [7, 1, 1], params.as_bytes());
        expected.push(next(expected[index as usize - 1], index));
    }
    assert_eq!(device.words(out), expected);
}

#[test]
fn the_last_of_many_blocks_sees_all_parts() {
    for round in 0..3 {
        let mut device = Device::new(round);
        let counter = words(&mut device, &[0]);
        let parts = device.scratch((ATOMICS_BLOCKS * ATOMICS_THREADS) as usize);
        let marks = device.scratch(ATOMICS_THREADS as usize);
        let params =
            AtomicsParams { counter, parts, marks, round: round as u32 * 1000, reserved: 0 };
        launch(&device, Kernel::Atomics, [ATOMICS_BLOCKS, 1, 1], params.as_bytes());
        let expected: Vec<u32> =
            (0..ATOMICS_THREADS).map(|thread| mark(params.round, thread)).collect();
        assert_eq!(device.words(marks), expected);
        assert_eq!(device.words(counter), [0]);
    }
}

#[test]
fn every_block_sums_all_words_with_each_load() {
    const BLOCKS: u32 = 3;
    let mut device = Device::new(1);
    let given: Vec<u32> = (0..4 * 700).map(|i: u32| i.wrapping_mul(0x2545_f491) ^ 0x55).collect();
    let (count, key) = (given.len() as u32, 0xfeed_0001);
    let each = HANDOVER_THREADS as usize;
    let from = words(&mut device, &given);
    let copy = device.scratch(given.len());
    let to = device.scratch(BLOCKS as usize * WAYS.len() * each);
    let params = HandoverParams { words: from, copy, sums: to, count, key };
    launch(&device, Kernel::Handover, [BLOCKS, 1, 1], params.as_bytes());
    for found in device.words(to).chunks(each) {
        assert_eq!(found, sums(&given, key));
    }
    let expected: Vec<u32> = given.iter().map(|word| copied(*word, key)).collect();
    assert_eq!(device.words(copy), expected);
    // Changing any word changes the sum.
    let mut other = given.clone();
    other[1234] ^= 1;
    assert_ne!(sums(&other, key), sums(&given, key));
}
