//! Arbitrary words, entries, USERD pages and QMDs: refused or executed, never a crash.

use proptest::prelude::*;
use tegra_sim::class::{compute, copy, host};

use super::rig::{Kernel, Rig, compute_stream};
use super::stream;

/// Words that are often headers of existing methods.
fn words() -> impl Strategy<Value = Vec<u32>> {
    let tables = [(0u32, host::METHODS), (1, compute::METHODS), (4, copy::METHODS)];
    let header = (0..3usize, any::<prop::sample::Index>(), 0..6u32, 1..4u32).prop_map(
        move |(table, index, opcode, count)| {
            let (subchannel, methods) = tables[table];
            let address = methods[index.index(methods.len())].address;
            opcode << 29 | count << 16 | subchannel << 13 | (address / 4)
        },
    );
    // Data that are addresses of what is mapped, or near.
    let data = prop_oneof![0x20_0000u32..0x21_0000, 0..32u32, any::<u32>(), Just(0x182), Just(9)];
    prop::collection::vec(prop_oneof![2 => header, 3 => data], 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn streams(words in words(), seed in any::<u64>()) {
        let rig = Rig::new(seed);
        let mut channel = rig.channel();
        let memory = rig.buffer(1 << 16);
        memory.write(0, &[1; 1 << 16]);
        let mut stream = compute_stream().into_words();
        stream.extend([0x2001_8000, 0xc7b5]);
        stream.extend(words);
        rig.submit(&mut channel, &stream);
        rig.findings();
        rig.gpu.close_tsg(channel.tsg);
    }

    #[test]
    fn entries(entries in prop::collection::vec(any::<u64>(), 1..32), put in 0..70u32) {
        let rig = Rig::new(1);
        let channel = rig.channel();
        let body = rig.stream(&[0; 64]);
        for (index, entry) in entries.iter().enumerate() {
            // Every other one points at something.
            let entry = if index % 2 == 0 { *entry } else { *entry & !0xff_ffff_ffff | body.buffer.va };
            channel.ring.store_u64(index as u64 * 8, entry).unwrap();
        }
        channel.userd.store_u32(0x8c, put).unwrap();
        channel.ring();
        rig.findings();
    }

    #[test]
    fn qmds(
        changes in prop::collection::vec((0..64usize, any::<u32>(), any::<bool>()), 1..12),
        seed in any::<u64>(),
    ) {
        let rig = Rig::new(seed);
        let mut channel = rig.channel();
        let kernel = Kernel::new(&rig);
        for (word, value, one_bit) in changes {
            let at = word as u64 * 4;
            let value = if one_bit { kernel.qmd.word(at) ^ 1 << (value % 32) } else { value };
            kernel.qmd.memory.store_u32(at, value).unwrap();
        }
        rig.submit(&mut channel, &kernel.stream());
        rig.findings();
    }
}

/// Inputs of the fuzz target, each of which once needed care.
#[test]
fn corpus_of_the_fuzz_target() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/sim_stream");
    let mut cases = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        stream::run(&std::fs::read(entry.unwrap().path()).unwrap());
        cases += 1;
    }
    assert!(cases > 15, "{cases} inputs");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes(data in prop::collection::vec(any::<u8>(), 0..4096)) {
        stream::run(&data);
    }
}

/// A QMD that schedules itself: what a kernel that never ends is on hardware, a timeout.
#[test]
fn launches_that_never_end_are_stopped() {
    use tegra::class::qmd::DependentAction;
    use tegra::qmd::Dependent;

    let rig = Rig::new(1);
    let kernel = Kernel::new(&rig);
    let mut launch = kernel.launch;
    let action = DependentAction::Schedule;
    launch.dependent = Some(Dependent { qmd: kernel.at(0), action, prefetch: false });
    kernel.store(0, &launch);
    rig.submit(&mut rig.channel(), &kernel.stream());
    assert_eq!(rig.fault(), (8, tegra_sim::finding::Rule::ChannelTimeout));
}
