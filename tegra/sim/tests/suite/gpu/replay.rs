//! The same seed gives the same run, another seed another one; contents of a trace file.

use std::collections::BTreeSet;

use tegra::pushbuffer::PushBuffer;
use tegra_sim::trace::{Event, Record, Stats, Trace, decode, stats};

use super::rig::{Rig, acquire, copy, copy_stream, release};

/// Four channels with copies, of which two wait for the others.
fn run(seed: u64) -> Vec<Record> {
    let rig = Rig::new(seed);
    let (memory, slots) = (rig.buffer(1 << 16), rig.buffer(4096));
    memory.write(0, &[3; 1 << 16]);
    let mut channels: Vec<_> = (0..4).map(|_| rig.channel()).collect();
    for round in 1..4u64 {
        for (index, channel) in channels.iter_mut().enumerate() {
            let index = index as u64;
            let mut stream = copy_stream();
            if index % 2 == 1 {
                stream.acquire(acquire(slots.at(16 * (index - 1)), round));
            }
            let (from, to) = (memory.at(index << 14), memory.at((index << 14) + (round << 12)));
            stream.transfer(copy(from, to, 1000 + index as u32));
            stream.release(release(slots.at(16 * index), round));
            rig.submit(channel, stream.words());
        }
    }
    rig.assert_clean();
    rig.trace.take()
}

#[test]
fn a_seed_decides_everything() {
    let mut different = BTreeSet::new();
    for seed in 0..8 {
        let first = run(seed);
        for (index, (first, second)) in first.iter().zip(run(seed)).enumerate() {
            assert_eq!(*first, second, "seed {seed}, record {index}");
        }
        let order = first.iter().filter_map(|record| match record.event {
            Event::Release { channel, payload, .. } => Some((channel, payload)),
            _ => None,
        });
        different.insert(order.collect::<Vec<_>>());
    }
    assert!(different.len() > 3, "{} orders of 8 seeds", different.len());
}

#[test]
fn a_trace_file_is_listed_and_counted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace");
    let records = run(3);
    let trace = Trace::to_file(&path).unwrap();
    for Record { time, event } in &records {
        trace.record(*time, || event.clone());
    }
    trace.record(77, || Event::Ioctl {
        node: "nvmap".into(),
        request: "CREATE".into(),
        result: -12,
        detail: "size 4096".into(),
    });

    let counted = stats(&path).unwrap();
    let mut expected = Stats::default();
    records.iter().for_each(|record| expected.add(record));
    assert_eq!(counted, Stats { ioctls: 1, refused: 1, ..expected });
    assert_eq!((counted.submits, counted.copies), (12, 12));
    assert!((4..=12).contains(&counted.doorbells));
    assert_eq!(counted.bytes_copied, 3 * (1000 + 1001 + 1002 + 1003));
    assert_eq!((counted.releases, counted.acquires, counted.findings), (12, 6, 0));

    let mut listing = Vec::new();
    decode(&path, &mut listing).unwrap();
    let listing = String::from_utf8(listing).unwrap();
    for part in [
        "4: LAUNCH_DMA = 0x182 (DATA_TRANSFER_TYPE NON_PIPELINED",
        "0: SEM_EXECUTE = 0x3100001 (OPERATION RELEASE",
        "4: SET_OBJECT = 0xc7b5",
        "copied 1000 bytes from",
        "host releases 0x",
        "nvmap CREATE = -12  size 4096",
    ] {
        assert!(listing.contains(part), "no {part:?} in\n{listing}");
    }
    std::fs::write(&path, "{}\n").unwrap();
    let error = stats(&path).unwrap_err().to_string();
    assert!(error.contains("line 1"), "{error}");
}

#[test]
fn reading_the_time_advances_it() {
    let rig = Rig::new(1);
    let first = rig.gpu.time_ns();
    let second = rig.gpu.time_ns();
    assert!(second > first && second.is_multiple_of(32));
    let slot = rig.buffer(4096);
    let mut stream = PushBuffer::<tegra::class::Compute>::new();
    stream.release(release(slot.at(0), 1));
    rig.run(stream.words());
    assert!(slot.long(8) > second && slot.long(8) < rig.gpu.time_ns());
}

/// A program that announces that it blocks does not wait for delayed doorbells.
#[test]
fn doorbells_are_not_delayed_for_a_blocking_program() {
    for seed in 0..20 {
        let rig = Rig::new(seed);
        let (mut channel, _other) = (rig.channel(), rig.channel());
        let slot = rig.buffer(4096);
        for value in 1..5 {
            let mut stream = PushBuffer::<tegra::class::Compute>::new();
            stream.release(release(slot.at(0), value));
            rig.submit(&mut channel, stream.words());
            rig.gpu.hurry();
            while slot.long(0) < value {
                std::thread::yield_now();
            }
        }
        rig.assert_clean();
    }
}
