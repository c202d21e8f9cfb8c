//! Copy engine, compared with plain copies.

use proptest::prelude::*;
use tegra::class::Copy;
use tegra::pushbuffer::{Fill, Payload, PushBuffer, Shape, Signal, Transfer};
use tegra_sim::finding::Rule;

use super::rig::{Rig, copy, copy_stream, copying, release};

fn pattern(bytes: usize, salt: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index * 31 + salt + index / 251) as u8).collect()
}

#[test]
fn words_of_the_hardware() {
    let rig = Rig::new(1);
    let mut channel = rig.channel();
    let (from, to, slot) = (rig.buffer(4096), rig.buffer(4096), rig.buffer(4096));
    from.write(0, &pattern(4096, 1));
    rig.submit(
        &mut channel,
        &[
            &[0x2001_8000, 0xc7b5][..],
            &[0x2004_8100, 0, from.va as u32, 0, to.va as u32],
            &[0x2001_8106, 777],
            &[0x2001_80c0, 0x182],
            &[0x2003_8090, 0, slot.va as u32, 42],
            &[0x2001_80c0, 0x14],
        ]
        .concat(),
    );
    rig.assert_clean();
    assert_eq!(to.read(0, 777), from.read(0, 777));
    assert_eq!(to.read(777, 100), [0; 100]);
    assert_eq!(slot.long(0), 42);
    assert!(slot.long(8) > 0);
    // Copy and release in one launch, and the interrupt.
    rig.submit(&mut channel, &[0x2001_8106, 1000, 0x2001_8092, 43, 0x2001_80c0, 0x1d6]);
    rig.assert_clean();
    assert_eq!(to.read(0, 1000), from.read(0, 1000));
    assert_eq!((slot.long(0), *rig.driver.interrupts.lock()), (43, 1));
}

#[test]
fn fills_and_remapped_copies() {
    let rig = Rig::new(2);
    let mut channel = rig.channel();
    let (from, to) = (rig.buffer(4096), rig.buffer(8192));
    from.write(0, &pattern(4096, 9));
    let mut stream = copy_stream();
    stream.fill(Fill::new(to.at(4), 0x1234_5678, 1001).unwrap());
    rig.submit(&mut channel, stream.words());
    rig.assert_clean();
    let filled: Vec<u8> = 0x1234_5678u32.to_le_bytes().repeat(1001);
    assert_eq!(to.read(4, 4004), filled);
    assert_eq!([to.read(0, 4), to.read(4008, 4)], [[0; 4], [0; 4]]);
    // Elements of three 2-byte components read, of four written: Z, CONST_B, kept, X.
    to.write(4096, &[0xee; 64]);
    let components = 2 | 5 << 4 | 6 << 8 | 1 << 16 | 2 << 20 | 3 << 24;
    let [source, target] = [from.va, to.va + 4096].map(|va| va as u32);
    rig.submit(
        &mut channel,
        &[
            &[0x2004_8100, 0, source, 0, target][..],
            &[0x2001_8106, 5],
            &[0x2001_81c1, 0xffff_abcd],
            &[0x2001_81c2, components],
            &[0x2001_80c0, 0x582],
        ]
        .concat(),
    );
    rig.assert_clean();
    let read = from.read(0, 30);
    let expected: Vec<u8> =
        read.chunks(6).flat_map(|e| [e[4], e[5], 0xcd, 0xab, 0xee, 0xee, e[0], e[1]]).collect();
    assert_eq!(to.read(4096, 48), [expected, vec![0xee; 8]].concat());
}

#[derive(Clone, Debug)]
struct Case {
    from: usize,
    to: usize,
    width: usize,
    lines: usize,
    gaps: (usize, usize),
}

prop_compose! {
    fn cases()(
        from in 0usize..5000,
        to in 0usize..5000,
        width in prop_oneof![1usize..70, Just(4096), 1usize..20000],
        lines in 1usize..6,
        gaps in (0usize..40, 0usize..40),
    ) -> Case {
        Case { from, to, width, lines, gaps }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Odd sizes and offsets, linear and by lines, over page borders.
    #[test]
    fn any_shape_equals_a_plain_copy(case in cases(), seed in any::<u64>()) {
        const SIZE: usize = 128 << 10;
        let Case { from, to, width, lines, gaps } = case;
        let rig = Rig::new(seed);
        let (source, target) = (rig.buffer(SIZE as u64), rig.buffer(SIZE as u64));
        let data = pattern(SIZE, from);
        source.write(0, &data);
        let mut expected = pattern(SIZE, to + 77);
        target.write(0, &expected);
        let pitches = (width + gaps.0, width + gaps.1);
        for line in 0..lines {
            let (read, written) = (from + line * pitches.0, to + line * pitches.1);
            expected[written..written + width].copy_from_slice(&data[read..read + width]);
        }
        let shape = if lines == 1 {
            Shape::Linear { bytes: width as u32 }
        } else {
            Shape::Lines {
                width: width as u32,
                count: lines as u32,
                source_pitch: pitches.0 as u32,
                destination_pitch: pitches.1 as u32,
            }
        };
        let mut stream = copy_stream();
        let transfer = Transfer::new(source.at(from as u64), target.at(to as u64), shape).unwrap();
        stream.transfer(transfer);
        rig.run(stream.words());
        prop_assert!(target.read(0, SIZE) == expected);
    }
}

#[test]
fn a_copy_over_several_mappings() {
    let rig = Rig::new(3);
    let (first, second) = (rig.buffer(8192), rig.buffer(8192));
    let target = rig.buffer(16384);
    first.write(0, &pattern(8192, 1));
    second.write(0, &pattern(8192, 2));
    // The second buffer again, right behind the first.
    let map = |va, offset| {
        let memory = std::sync::Arc::clone(&second.memory);
        rig.mmu.map(va, memory, offset, 4096, Default::default()).unwrap();
    };
    map(first.va + 8192, 4096);
    rig.run(&copying(first.at(5), target.at(3), 12000));
    let expected = [pattern(8192, 1)[5..].to_vec(), second.read(4096, 4096)].concat();
    assert_eq!(target.read(3, 12000), expected[..12000]);
}

#[test]
fn pipelined_copies_may_swap_and_others_may_not() {
    let orders = |pipelined: bool| -> Vec<u32> {
        (0..40)
            .map(|seed| {
                let rig = Rig::new(seed);
                let (from, to) = (rig.buffer(4096), rig.buffer(4096));
                from.write(0, &[1, 0, 0, 0, 2, 0, 0, 0]);
                let mut stream = copy_stream();
                for offset in [0, 4] {
                    let transfer = copy(from.at(offset), to.at(0), 4);
                    stream.transfer(if pipelined {
                        transfer.overlapping_previous()
                    } else {
                        transfer
                    });
                }
                rig.submit(&mut rig.channel(), stream.words());
                let rules = rig.rules();
                let expected = if pipelined { vec![Rule::UnorderedAccess] } else { vec![] };
                assert_eq!(rules, expected, "seed {seed}");
                to.word(0)
            })
            .collect()
    };
    assert!(orders(false).iter().all(|last| *last == 2));
    let swapped = orders(true);
    assert!(swapped.contains(&1) && swapped.contains(&2), "{swapped:?}");
}

/// Closing a channel orders its work before later work.
#[test]
fn a_closed_channel_is_before_those_that_come_later() {
    for closed in [true, false] {
        let rig = Rig::new(9);
        let (from, to) = (rig.buffer(4096), rig.buffer(4096));
        from.write(0, &pattern(4096, 1));
        let mut stream = copy_stream();
        stream.transfer(copy(from.at(0), to.at(0), 64));
        let mut first = rig.channel();
        rig.submit(&mut first, stream.words());
        rig.gpu.drain();
        if closed {
            rig.gpu.close_channel(first.id);
        }
        rig.submit(&mut rig.channel(), stream.words());
        rig.gpu.drain();
        let expected = if closed { vec![] } else { vec![Rule::UnorderedAccess] };
        assert_eq!(rig.rules(), expected, "closed: {closed}");
    }
}

#[test]
fn signals_of_the_copy_engine() {
    let rig = Rig::new(5);
    let mut channel = rig.channel();
    let slot = rig.buffer(4096);
    let mut stream = copy_stream();
    stream.signal(Signal::new(slot.at(0), Payload::Word(5), false).unwrap());
    stream.signal(Signal::new(slot.at(16), Payload::Long(1 << 40), true).unwrap());
    rig.submit(&mut channel, stream.words());
    rig.assert_clean();
    assert_eq!((slot.long(0), slot.long(16)), (5, 1 << 40));
    assert!(slot.long(24) > 0);
    // A reduction by the engine: unsigned add.
    let reduce = 0x14 | 5 << 14 | 1 << 18 | 1 << 19;
    rig.submit(&mut channel, &[0x2003_8090, 0, slot.va as u32, 7, 0x2001_80c0, reduce]);
    rig.assert_clean();
    assert_eq!(slot.long(0) as u32, 12);
}

#[test]
fn compute_and_copy_in_one_channel_are_serialised() {
    for seed in 0..10 {
        let rig = Rig::new(seed);
        let (from, to, slot) = (rig.buffer(4096), rig.buffer(4096), rig.buffer(4096));
        from.write(0, &[0; 64]);
        let mut words = PushBuffer::<tegra::class::Compute>::new();
        words.bind();
        words.upload(tegra::pushbuffer::Upload::new(from.at(0), vec![1, 2, 3, 4]).unwrap());
        let mut stream = PushBuffer::<Copy>::new();
        stream.bind().transfer(copy(from.at(0), to.at(0), 16)).release(release(slot.at(0), 1));
        let words = [words.words(), stream.words()].concat();
        rig.run(&words);
        assert_eq!(to.read(0, 16), [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
    }
}
