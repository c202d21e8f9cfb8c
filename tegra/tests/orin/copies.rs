//! Copies and fills by the copy engine, compared with the CPU's.

use std::time::Duration;

use orind_testing::random::Random;
use tegra::address::GpuAddress;
use tegra::buffer::Scratch;
use tegra::class;
use tegra::context::Options;
use tegra::copy;
use tegra::pushbuffer::PushBuffer;

use crate::support::{Copies, alone};

#[test]
fn copies_of_odd_sizes_and_offsets_are_exact() {
    alone(|| {
        const SIZE: u64 = 256 << 10;
        let mut copies = Copies::new();
        let (from, to) = (copies.mailbox(SIZE), copies.mailbox(SIZE));
        let mut random = Random(0x0dd5);
        let content = random.bytes(SIZE as usize);
        from.write(0, &content).unwrap();
        let mut model = vec![0; SIZE as usize];
        let mut sizes = vec![1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 63, 4095, 4096, 4097, 65_537];
        sizes.extend((0..100).map(|_| 1 + random.bits() % (SIZE / 2)));
        for bytes in sizes {
            let source = random.bits() % (SIZE - bytes);
            let target = random.bits() % (SIZE - bytes);
            copies.copy(from.at(source).unwrap(), to.at(target).unwrap(), bytes);
            model[target as usize..][..bytes as usize]
                .copy_from_slice(&content[source as usize..][..bytes as usize]);
        }
        let mut seen = vec![0; SIZE as usize];
        to.read(0, &mut seen).unwrap();
        assert!(seen == model);
    });
}

#[test]
fn fills_are_exact_and_may_be_empty() {
    alone(|| {
        let mut copies = Copies::new();
        let target = copies.mailbox(1 << 16);
        let Copies { context, copier, .. } = &mut copies;
        let at = |word: u64| target.at(4 * word).unwrap();
        copier.fill(context, at(0), 0x1111_1111, 1 << 14).unwrap();
        copier.fill(context, at(3), 0xdead_beef, 1).unwrap();
        copier.fill(context, at(100), 0x2222_2222, 33).unwrap();
        let nothing = copier.copy(context, at(5), at(6), 0).unwrap();
        copies.context.wait(nothing, crate::support::LONG).unwrap();
        for word in 0..1 << 14 {
            let expected = match word {
                3 => 0xdead_beef,
                100..133 => 0x2222_2222,
                _ => 0x1111_1111,
            };
            assert_eq!(target.load_u32(4 * word).unwrap(), expected, "word {word}");
        }
    });
}

/// More copies than slots for their streams.
#[test]
fn many_copies_in_flight() {
    alone(|| {
        let mut copies = Copies::new();
        let (from, to) = (copies.mailbox(1 << 16), copies.mailbox(1 << 16));
        for word in 0..1 << 13 {
            from.store_u64(8 * word, word * 3).unwrap();
        }
        let mut last = None;
        for page in 0..200u64 {
            let offset = page % 16 * 4096;
            let Copies { context, copier, .. } = &mut copies;
            let ticket =
                copier.copy(context, from.at(offset).unwrap(), to.at(offset).unwrap(), 4096);
            last = Some(ticket.unwrap());
        }
        copies.context.wait(last.unwrap(), crate::support::LONG).unwrap();
        for word in 0..1 << 13 {
            assert_eq!(to.load_u64(8 * word).unwrap(), word * 3);
        }
    });
}

#[test]
fn ranges_beyond_the_address_space_are_refused() {
    let mut stream = PushBuffer::<class::Copy>::new();
    let low = GpuAddress::new(0x20_0000).unwrap();
    let high = GpuAddress::new((1 << 40) - 8).unwrap();
    assert!(copy::copy(&mut stream, low, high, 9).is_err());
    assert!(copy::copy(&mut stream, high, low, u64::MAX).is_err());
    assert!(copy::fill(&mut stream, high, 0, 3).is_err());
    assert!(copy::fill(&mut stream, low, 0, u64::MAX).is_err());
    assert!(stream.words().is_empty());
    // Long copies are split, and cover every byte once.
    copy::copy(&mut stream, low, GpuAddress::new(1 << 38).unwrap(), (5 << 31) + 3).unwrap();
    let operations = tegra::pushbuffer::decode(stream.words()).unwrap();
    assert_eq!(operations.len(), 6);
}

#[test]
fn scratch_to_scratch_copies_64_mib() {
    alone(|| {
        const SIZE: u64 = 64 << 20;
        let mut copies = Copies::new();
        let from = Scratch::new(&copies.space, SIZE).unwrap();
        let to = Scratch::new(&copies.space, SIZE).unwrap();
        let Copies { context, copier, .. } = &mut copies;
        copier.fill(context, from.address(), 0x5a5a_1234, SIZE / 4).unwrap();
        let ticket = copier.copy(context, from.address(), to.address(), SIZE).unwrap();
        context.wait(ticket, crate::support::LONG).unwrap();
        let seen = to.snapshot().unwrap();
        let (words, rest) = seen.as_chunks::<4>();
        assert!(rest.is_empty());
        assert!(words.iter().all(|word| u32::from_ne_bytes(*word) == 0x5a5a_1234));
    });
}

/// Milliseconds on silicon take the host longer; the wait allows for the simulator's real time.
#[test]
fn a_wait_lasts_until_the_simulated_gpu_is_done() {
    alone(|| {
        const SIZE: u64 = 256 << 20;
        let mut copies = Copies::with(Options { spin: Duration::ZERO, ..Options::default() });
        let from = Scratch::new(&copies.space, SIZE).unwrap();
        let to = Scratch::new(&copies.space, SIZE).unwrap();
        let Copies { context, copier, .. } = &mut copies;
        copier.fill(context, from.address(), 1, SIZE / 4).unwrap();
        let ticket = copier.copy(context, from.address(), to.address(), SIZE).unwrap();
        context.wait(ticket, Duration::from_millis(10)).unwrap();
    });
}
