//! Faults: notifier codes, and effects on the TSG and on others.

use tegra::pushbuffer::PushBuffer;
use tegra_sim::finding::Rule;

use super::rig::{Rig, acquire, copy_stream, release};

#[test]
fn codes_of_the_notifier() {
    let compute = [0x2001_2000, 0xc7c0];
    let copy = [0x2001_8000, 0xc7b5];
    // Methods after the binding, notifier code, rule.
    let cases: [(&[u32], &[u32], u32, Rule); 15] = [
        (&[], &[0x2001_1002, 0], 32, Rule::PbdmaEntry),
        (&[], &[0x2002_0fff, 0, 0], 32, Rule::PbdmaEntry),
        (&[], &[0x4001_0000], 32, Rule::PbdmaEntry),
        (&[], &[0x2001_0001, 0], 32, Rule::PbdmaMethod),
        (&[], &[0x2004_000a, 0, 0, 0, 9 << 27], 32, Rule::PbdmaMethod),
        (&[], &[0x2001_0021, 0], 32, Rule::PbdmaMethod),
        (&[], &[0x2001_0018, 0x100], 32, Rule::ReservedBits),
        (&[], &[0x2001_e040, 0], 32, Rule::PbdmaDevice),
        (&[], &[0x2001_2000, 0xc6c0], 13, Rule::IllegalClass),
        (&[], &[0x2001_8000, 0xc6b5], 32, Rule::IllegalClass),
        (&compute, &[0x2001_2089, 0], 25, Rule::IllegalMethod),
        (&compute, &[0x2001_2140, 0], 13, Rule::IllegalMethod),
        (&compute, &[0x2001_20a8, 0x2_0000], 13, Rule::ReservedBits),
        (&copy, &[0x2001_8098, 0], 32, Rule::CopyPrivileged),
        (&copy, &[0x2001_81c2, 7], 32, Rule::ReservedBits),
    ];
    for (bind, words, code, rule) in cases {
        let rig = Rig::new(1);
        rig.submit(&mut rig.channel(), &[bind, words].concat());
        assert_eq!(rig.fault(), (code, rule), "{words:x?}");
    }
}

#[test]
fn a_fault_stops_only_its_tsg_permanently() {
    let rig = Rig::new(1);
    let slot = rig.buffer(4096);
    let tsg = rig.gpu.open_tsg();
    let (mut first, mut second) = (rig.channel_in(tsg, 8), rig.channel_in(tsg, 8));
    let mut other = rig.channel();
    let signal = |offset, value| {
        let mut stream = PushBuffer::<tegra::class::Compute>::new();
        stream.release(release(slot.at(offset), value));
        stream.into_words()
    };
    let mut waiting = copy_stream();
    waiting.acquire(acquire(slot.at(0), 5));
    rig.submit(&mut second, &[waiting.words(), &signal(16, 1)[..]].concat());
    rig.submit(&mut first, &[0xc000_0000]);
    assert_eq!(rig.fault().0, 32);
    // Released now, but the TSG is gone, and doorbells are ignored.
    rig.submit(&mut other, &signal(0, 5));
    rig.submit(&mut second, &signal(32, 1));
    rig.submit(&mut other, &signal(48, 1));
    assert_eq!(rig.gpu.drain(), []);
    assert_eq!([0, 16, 32, 48].map(|offset| slot.long(offset)), [5, 0, 0, 1]);
    assert_eq!(rig.driver.errors.lock().len(), 1);
    // Rebuilt with the same ids, it works again.
    rig.gpu.close_tsg(tsg);
    let mut again = rig.channel();
    rig.submit(&mut again, &signal(64, 1));
    rig.gpu.drain();
    assert_eq!(slot.long(64), 1);
}

#[test]
fn failures_on_request() {
    let rig = Rig::with(1, "channel-timeout@3", std::time::Duration::MAX);
    let mut channel = rig.channel();
    for _ in 0..5 {
        rig.submit(&mut channel, &[0]);
    }
    assert_eq!(rig.fault(), (8, Rule::ChannelTimeout));
    assert_eq!(channel.gp_get(), 2);
}

#[test]
fn invalid_channels_are_refused() {
    use tegra_sim::gpu::{ChannelError, ChannelSetup, SWITCH_LIMIT_MS};
    use tegra_sim::memory::DmaBuf;

    let rig = Rig::new(1);
    let tsg = rig.gpu.open_tsg();
    let channel = rig.channel_in(tsg, 8);
    let setup = |id: u16, entries| ChannelSetup {
        id,
        token: id.into(),
        tsg,
        veid: 0,
        ring: DmaBuf::new(4096).unwrap(),
        entries,
        userd: DmaBuf::new(4096).unwrap(),
        mmu: rig.mmu.clone(),
        usermode: true,
        switch_limit_ms: SWITCH_LIMIT_MS,
    };
    let in_use = rig.gpu.open_channel(setup(channel.id, 8));
    assert!(matches!(in_use, Err(ChannelError::InUse { .. })));
    for entries in [0, 3, 1024] {
        let sizes = rig.gpu.open_channel(setup(1, entries));
        assert!(matches!(sizes, Err(ChannelError::Sizes { .. })), "{entries}");
    }
    rig.gpu.close_tsg(tsg);
    assert!(matches!(rig.gpu.open_channel(setup(1, 8)), Err(ChannelError::NoTsg { .. })));
}
