//! Arbitrary requests, arguments and addresses: an errno is allowed, a panic is not.

use proptest::prelude::*;
use tegra_sim::driver::{FileId, Node, requests};
use tegra_sim::gpu::Random;

use super::bench::Bench;

/// WAIT may wait for ever: left out.
const WAIT: u32 = 0xc018_4866;
/// Words of an argument: as many as the largest has.
const WORDS: usize = 66;

/// Numbers that mean something here and there: small ones, fds, handles, addresses, limits.
fn number(random: &mut Random) -> u64 {
    match random.below(10) {
        0 | 1 => random.below(16),
        2 => 5000 + random.below(12),
        3 => 0x7fff_ffff + random.below(8),
        4 => 4096 << random.below(20),
        5 => [u64::MAX, 1 << 40, 0x20_0000, 1 << 31, 0xffff][random.below(5) as usize],
        6 => random.below(64) << 10,
        7 => 0,
        _ => random.next(),
    }
}

fn request(random: &mut Random, known: &[u32]) -> u32 {
    match random.below(10) {
        0 => random.next() as u32,
        _ => known[random.below(known.len() as u64) as usize],
    }
}

/// Words at random: some as wide as an address, most as narrow as a flag.
fn argument(random: &mut Random) -> [u8; WORDS * 4] {
    let mut bytes = [0; WORDS * 4];
    for pair in bytes.chunks_exact_mut(8) {
        let (low, high) = (number(random), number(random));
        let word = if random.one_in(3) { low } else { low << 32 | high & 0xffff_ffff };
        pair.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_request_can_break_the_device(seed: u64, calls in 1usize..400) {
        let bench = Bench::new();
        bench.running();
        let mut random = Random::new(seed);
        let known: Vec<u32> = requests().map(|(_, request)| request.code).collect();
        for _ in 0..calls {
            let (file, request) = (FileId(random.below(14)), request(&mut random, &known));
            let mut bytes = argument(&mut random);
            let arg = match random.below(12) {
                0 => number(&mut random),
                _ => bytes.as_mut_ptr() as u64,
            };
            if request == WAIT {
                continue;
            }
            if random.one_in(60) {
                bench.orin.close(file);
            }
            if let Err(refused) = bench.orin.ioctl(file, request, arg) {
                prop_assert!(refused.errno.code() > 0);
            }
        }
        bench.close_all();
        let live = bench.orin.live();
        prop_assert_eq!((live.channels, live.tsgs, live.address_spaces), (0, 0, 0));
        prop_assert_eq!((live.mappings, live.handles, live.events), (0, 0, 0));
    }

    #[test]
    fn no_mmap_and_no_path_can_break_the_device(seed: u64, path in ".*") {
        let bench = Bench::new();
        let mut random = Random::new(seed);
        let (bytes, offset) = (number(&mut random), number(&mut random));
        let _ = bench.orin.mmap(bench.ctrl, bytes, offset);
        let _ = bench.orin.mmap(bench.nvmap, bytes, offset);
        let (_, fd) = bench.buffer(8192);
        let fits = bytes.checked_next_multiple_of(4096).and_then(|bytes| bytes.checked_add(offset));
        let mapped = bench.orin.check_dma_buf_mmap(&bench.dma_buf(fd), bytes, 3, offset);
        prop_assert_eq!(mapped.is_ok(), fits.is_some_and(|end| end <= 8192));
        prop_assert_eq!(Node::at(&path), None);
    }
}
