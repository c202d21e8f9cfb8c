//! Host semaphores: words observed on hardware, every form, and waits across channels.

use std::time::Duration;

use tegra::class::host::{MembarType, WfiScope};
use tegra::pushbuffer::{L2Operation, Payload, PushBuffer, Release};
use tegra_sim::finding::Rule;

use super::rig::{Rig, acquire, compute_stream, copy_stream, release};

/// The first submission that ran on an Orin: words, ring entry, token and windows as they were.
#[test]
fn first_submission_of_the_hardware() {
    use std::sync::Arc;
    use tegra_sim::gpu::MapFlags;
    use tegra_sim::memory::DmaBuf;

    let rig = Rig::new(1);
    let mut channel = rig.channel();
    assert_eq!(channel.id, 511);
    let (stream, slot) = (DmaBuf::new(4096).unwrap(), DmaBuf::new(4096).unwrap());
    let map = |va, buffer: &Arc<DmaBuf>| {
        rig.mmu.map(va, Arc::clone(buffer), 0, 4096, MapFlags::default()).unwrap();
    };
    map(0xff_ffa0_1000, &stream);
    map(0xff_ffb0_0000, &slot);
    let words = [
        &[0x2001_2000, 0xc7c0][..],
        &[0x2002_21ec, 0xfd, 0],
        &[0x2002_20a8, 0xfe, 0],
        &[0x2005_0017, 0xffb0_0010, 0xff, 1, 0, 0x0310_0001],
    ]
    .concat();
    // The release, six words, lies where the entry that was seen has it; the rest behind.
    let bytes =
        |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    stream.write(0, &bytes(&words[8..])).unwrap();
    stream.write(0x20, &bytes(&words[..8])).unwrap();
    channel.push(0x0000_02ff_ffa0_1020 | 8 << 42);
    channel.push(0x0000_1aff_ffa0_1000);
    rig.gpu.drain();
    assert_eq!(slot.load_u64(0x10).unwrap(), 0, "nobody has rung");
    rig.gpu.doorbell(0x1ff);
    rig.assert_clean();
    assert_eq!(slot.load_u64(0x10).unwrap(), 1);
    let time = slot.load_u64(0x18).unwrap();
    assert!(time > 0 && time.is_multiple_of(32) && time <= rig.gpu.time_ns());
    assert_eq!(channel.gp_get(), 2);
}

/// The duration of a channel's wait counts, not earlier idle time of the GPU.
#[test]
fn idleness_before_a_wait_is_no_deadlock() {
    let limit = Duration::from_secs(2);
    let rig = Rig::with(1, "", limit);
    rig.gpu.drain();
    std::thread::sleep(limit);
    let gate = rig.buffer(4096);
    let mut stream = copy_stream();
    stream.acquire(acquire(gate.at(0), 1));
    rig.submit(&mut rig.channel(), stream.words());
    assert_eq!(rig.gpu.drain().len(), 1);
    gate.memory.store_u64(0, 1).unwrap();
    rig.assert_clean();
}

#[test]
fn nothing_happens_without_a_doorbell_and_wrong_tokens_are_ignored() {
    let rig = Rig::new(2);
    let mut channel = rig.channel();
    let slot = rig.buffer(4096);
    let mut words = PushBuffer::<tegra::class::Compute>::new();
    words.release(release(slot.at(0), 7));
    let stream = rig.stream(words.words());
    channel.push(stream.entry.encode());
    for token in [0x1fe, 0x0001_01ff, 0x8000_01ff, 0x0000_11ff] {
        rig.gpu.doorbell(token);
    }
    rig.gpu.drain();
    assert_eq!(slot.long(0), 0);
    channel.ring();
    channel.ring();
    rig.assert_clean();
    assert_eq!(slot.long(0), 7);
}

/// Raw words of each release and reduction, with what they must leave in memory.
#[test]
fn releases_and_reductions_in_every_form() {
    let rig = Rig::new(3);
    let mut channel = rig.channel();
    let slot = rig.buffer(4096);
    let run = |channel: &mut _, before: u64, payload: u64, execute: u32| {
        slot.memory.store_u64(0, before).unwrap();
        slot.memory.store_u64(8, 0x5555).unwrap();
        let [low, high] = [payload as u32, (payload >> 32) as u32];
        rig.submit(channel, &[0x2005_0017, slot.va as u32, 0, low, high, execute]);
        rig.gpu.drain();
        (slot.long(0), slot.long(8))
    };
    let old = 0x1111_2222_3333_4444;
    let new = 0xaaaa_bbbb_cccc_dddd;
    // 32 and 64 bits, without and with timestamp.
    assert_eq!(run(&mut channel, old, new, 0x0010_0001), (0x1111_2222_cccc_dddd, 0x5555));
    assert_eq!(run(&mut channel, old, new, 0x0110_0001), (new, 0x5555));
    assert_eq!(run(&mut channel, old, new, 0x0000_0001), (0x1111_2222_cccc_dddd, 0x5555));
    let (value, first) = run(&mut channel, old, new, 0x0210_0001);
    assert_eq!(value, 0xcccc_dddd, "a timestamped word clears the upper half");
    let (value, second) = run(&mut channel, old, new, 0x0310_0001);
    assert_eq!(value, new);
    assert!(first < second && second.is_multiple_of(32));
    // Reductions: number << 27, bit 31 unsigned.
    let reduce = |number: u32, unsigned: u32| 0x0110_0006 | number << 27 | unsigned << 31;
    assert_eq!(run(&mut channel, 5, u64::MAX, reduce(0, 0)).0, u64::MAX);
    assert_eq!(run(&mut channel, 5, u64::MAX, reduce(0, 1)).0, 5);
    assert_eq!(run(&mut channel, 5, u64::MAX, reduce(1, 0)).0, 5);
    assert_eq!(run(&mut channel, 0b1100, 0b1010, reduce(2, 0)).0, 0b0110);
    assert_eq!(run(&mut channel, 0b1100, 0b1010, reduce(3, 0)).0, 0b1000);
    assert_eq!(run(&mut channel, 0b1100, 0b1010, reduce(4, 0)).0, 0b1110);
    assert_eq!(run(&mut channel, u64::MAX, 3, reduce(5, 1)).0, 2);
    let word = |number: u32| 0x0010_0006 | number << 27 | 1 << 31;
    assert_eq!(run(&mut channel, 3, 3, word(6)).0, 0);
    assert_eq!(run(&mut channel, 0, 3, word(7)).0, 3);
    rig.assert_clean();
    // A 64-bit increment, and a signed 64-bit sum: the memory system has neither.
    assert_eq!(run(&mut channel, 9, 9, reduce(6, 1)).0, 9);
    assert_eq!(run(&mut channel, 9, 9, reduce(5, 0)).0, 9);
    assert_eq!(rig.rules(), [Rule::SemaphoreMisuse; 2]);
}

#[test]
fn acquires_wait_until_their_condition_holds() {
    // Operation, what memory has first, what lets it go, payload.
    let cases: [(u32, u64, u64, u64); 5] = [
        (0, 4, 5, 5),
        (2, 4, 6, 5),
        (3, u64::MAX - 1, 1, u64::MAX),
        (4, 0b1000, 0b0010, 0b0011),
        (5, u64::MAX, u64::MAX - 1, 0),
    ];
    for (operation, before, after, payload) in cases {
        let rig = Rig::new(u64::from(operation));
        let (gate, slot) = (rig.buffer(4096), rig.buffer(4096));
        gate.memory.store_u64(0, before).unwrap();
        let [low, high] = [payload as u32, (payload >> 32) as u32];
        let execute = 0x0100_0000 | operation;
        rig.submit(
            &mut rig.channel(),
            &[
                &[0x2005_0017, gate.va as u32, 0, low, high, execute][..],
                &[0x2005_0017, slot.va as u32, 0, 1, 0, 0x0110_0001],
            ]
            .concat(),
        );
        let blocked = rig.gpu.drain();
        assert_eq!(blocked.len(), 1, "operation {operation}");
        assert_eq!((blocked[0].address, slot.long(0)), (gate.va, 0));
        gate.memory.store_u64(0, after).unwrap();
        assert_eq!(rig.gpu.drain(), [], "operation {operation}");
        assert_eq!(slot.long(0), 1);
        rig.assert_clean();
    }
}

/// A chain of channels, each released by the one before, all submitted in the wrong order.
#[test]
fn channels_wait_for_each_other() {
    for seed in 0..10 {
        let rig = Rig::new(seed);
        let slots = rig.buffer(4096);
        let mut channels: Vec<_> = (0..10).map(|_| rig.channel()).collect();
        for (index, channel) in channels.iter_mut().enumerate().rev() {
            let index = index as u64;
            let mut stream = PushBuffer::<tegra::class::Compute>::new();
            if index > 0 {
                stream.acquire(acquire(slots.at(16 * (index - 1)), 1));
            }
            stream.release(release(slots.at(16 * index), 1));
            rig.submit(channel, stream.words());
        }
        assert_eq!(rig.gpu.drain(), []);
        rig.assert_clean();
        let times: Vec<u64> = (0..10).map(|index| slots.long(16 * index + 8)).collect();
        assert!(times.is_sorted_by(|a, b| a < b), "seed {seed}: {times:?}");
    }
}

#[test]
fn interrupts_references_and_memory_operations() {
    let rig = Rig::new(4);
    let mut channel = rig.channel();
    let mut stream = compute_stream();
    stream
        .memory_barrier(MembarType::System)
        .memory_barrier(MembarType::Gpu)
        .l2(L2Operation::InvalidateSysmem)
        .l2(L2Operation::FlushDirty)
        .wait_for_idle(WfiScope::All)
        .set_reference(0x1234)
        .non_stall_interrupt();
    rig.submit(&mut channel, stream.words());
    rig.assert_clean();
    assert_eq!(*rig.driver.interrupts.lock(), 1);
    assert_eq!(channel.userd.load_u32(0x48).unwrap(), 0x1234);
}

/// Alignment: 4, 8 and 16 bytes; acquires with a timestamp bit do not exist, so 8 for them.
#[test]
fn misaligned_semaphores_are_refused_silently() {
    for (execute, offset, misaligned) in [
        (0x0010_0001, 2, true),
        (0x0010_0001, 4, false),
        (0x0110_0001, 4, true),
        (0x0110_0001, 8, false),
        (0x0310_0001, 8, true),
        (0x0310_0001, 16, false),
        (0x0100_0003, 4, true),
        (0x0100_0003, 8, false),
    ] {
        let rig = Rig::new(5);
        let slot = rig.buffer(4096);
        rig.submit(&mut rig.channel(), &[0x2005_0017, slot.va as u32 + offset, 0, 0, 0, execute]);
        let expected: &[Rule] = if misaligned { &[Rule::SemaphoreMisuse] } else { &[] };
        assert_eq!(rig.rules(), expected, "{execute:#x} at {offset}");
        assert!(rig.driver.errors.lock().is_empty());
    }
}

#[test]
fn a_ring_wraps_and_its_segments_share_state() {
    let rig = Rig::new(6);
    let tsg = rig.gpu.open_tsg();
    let mut channel = rig.channel_in(tsg, 4);
    let slot = rig.buffer(4096);
    for value in 1..=20u32 {
        // A header in one segment, its data in the next.
        let head = rig.stream(&[0x2005_0017, slot.va as u32, 0]);
        let tail = rig.stream(&[value, 0, 0x0110_0001]);
        channel.push(head.entry.encode());
        channel.push(tail.entry.after_previous().encode());
        channel.ring();
        rig.gpu.drain();
        assert_eq!(slot.word(0), value);
        assert_eq!(channel.gp_get(), channel.put);
    }
    rig.assert_clean();
}

#[test]
fn masks_and_control_entries() {
    let rig = Rig::new(7);
    let mut channel = rig.channel();
    let slot = rig.buffer(4096);
    let word = |value| [0x2005_0017, slot.va as u32, 0, value, 0, 0x0010_0001];
    // Hidden from subdevice 0, stored and used masks, NOP words, an end of segment.
    let mut words = vec![0, 0x0001_0020];
    words.extend(word(1));
    words.extend([0x0002_fff0, 0x0003_0000]);
    words.extend(word(2));
    words.push(0xe000_0000);
    words.extend(word(3));
    channel.push(0);
    rig.submit(&mut channel, &words);
    rig.assert_clean();
    assert_eq!(slot.word(0), 2);
    // An immediate method: WFI with scope 1 in the header.
    rig.submit(&mut channel, &[0x8001_001e]);
    rig.assert_clean();
}

#[test]
fn a_stuck_semaphore_and_a_lost_event_on_request() {
    let rig = Rig::with(8, "stuck-semaphore@2,lost-event@1", Duration::MAX);
    let slots = rig.buffer(4096);
    let mut stream = copy_stream();
    for index in 0..3 {
        stream.release(Release::new(slots.at(8 * index), Payload::Long(1)).unwrap());
        stream.non_stall_interrupt();
    }
    rig.run(stream.words());
    assert_eq!([0, 8, 16].map(|at| slots.long(at)), [1, 0, 1]);
    assert_eq!(*rig.driver.interrupts.lock(), 2);
}
