//! Opening the device, and each state of a channel's creation.

use std::time::Duration;

use tegra::channel::{ChannelBuilder, Interleave, Notifier, Preemption, RingMemory, Tsg};
use tegra::context::{Context, Options};
use tegra::orin::Orin;
use tegra::pushbuffer::Engine;
use tegra::queue::Wake;
use tegra::space::{AddressSpace, L2};

use crate::support::{LONG, alone, complete, space};

#[test]
fn the_device_reports_its_characteristics() {
    alone(|| {
        let orin = Orin::open().unwrap();
        assert_eq!(orin.chip(), "ga10b");
        assert_eq!(orin.characteristics().compute_class, 0xc7c0);
        assert_eq!(orin.sms(), orin.tpcs() * 2);
        let powered: u32 = orin.tpc_masks().unwrap().iter().map(|mask| mask.count_ones()).sum();
        assert_eq!(powered, orin.tpcs());
        assert_eq!(orin.sm_map().unwrap().len(), orin.sms() as usize);
        assert_eq!(orin.physical_gpcs().unwrap().len(), orin.characteristics().num_gpc as usize);
        assert!(orin.engines().unwrap().iter().any(|engine| engine.engine_id == 0));
        let memory = orin.memory().unwrap();
        assert!(0 < memory.free && memory.free <= memory.total, "{memory:?}");
        let (first, second) = (orin.gpu_time().unwrap(), orin.gpu_time().unwrap());
        assert!(first <= second && second.is_multiple_of(32));
        let pair = orin.time_pair().unwrap();
        assert!(pair.cpu_timestamp > 0 && pair.gpu_timestamp >= second, "{pair:?}");
    });
}

#[test]
fn a_channel_is_created_state_by_state() {
    alone(|| {
        let space = space();
        let orin = space.orin().clone();
        let tsg = Tsg::open(&orin).unwrap();
        let group = tsg.subcontext(&space).unwrap();
        assert_eq!(group.veid(), 1, "the first asynchronous subcontext");
        let notifier = Notifier::new(&orin).unwrap();
        let mut ids = Vec::new();
        let mut channels = Vec::new();
        for engine in [Engine::Compute, Engine::Copy] {
            let channel = ChannelBuilder::open(&orin)
                .and_then(|builder| builder.bind_space(&group))
                .and_then(ChannelBuilder::bind_group)
                .and_then(ChannelBuilder::disable_watchdog)
                .and_then(|builder| builder.set_up(RingMemory::new(&orin, 1024)?))
                .and_then(|builder| builder.allocate_object(engine))
                .unwrap();
            channel.set_notifier(&notifier).unwrap();
            assert!(!channel.is_dead().unwrap());
            assert_eq!(notifier.read(), None);
            // Runlist 0, so the token is the channel id, as seen on hardware.
            assert_eq!(channel.token(), channel.id());
            ids.push(channel.id());
            channels.push(channel);
        }
        ids.sort_unstable();
        assert_eq!(ids, [510, 511], "allocated from the top");
        let syncpoint = channels[0].syncpoint().unwrap();
        assert!(syncpoint.address.get() >= 0xff_0000_0000, "in the driver's own range");
        channels[0].set_preemption(Preemption::Block).unwrap();
        // The memory of a closed channel is reused.
        let ring = channels.pop().unwrap().close();
        let again = ChannelBuilder::open(&orin)
            .and_then(|builder| builder.bind_space(&group))
            .and_then(ChannelBuilder::bind_group)
            .and_then(ChannelBuilder::disable_watchdog)
            .and_then(|builder| builder.set_up(ring))
            .unwrap();
        drop(again);
    });
}

#[test]
fn a_groups_timeslice_and_interleave_can_be_set() {
    alone(|| {
        let orin = Orin::open().unwrap();
        let tsg = Tsg::open(&orin).unwrap();
        assert_eq!(tsg.timeslice().unwrap(), Duration::from_micros(1024));
        tsg.set_timeslice(Duration::from_millis(5)).unwrap();
        assert_eq!(tsg.timeslice().unwrap(), Duration::from_millis(5));
        tsg.set_interleave(Interleave::High).unwrap();
        for slice in [Duration::from_micros(999), Duration::from_millis(51), Duration::MAX] {
            let error = tsg.set_timeslice(slice).unwrap_err();
            assert_eq!(error.errno(), Some(nix::errno::Errno::EINVAL));
        }
        assert_eq!(tsg.sm_error(0).unwrap(), None);
        assert!(tsg.sm_error(10_000).is_err());
    });
}

#[test]
fn an_empty_submission_completes_with_its_time() {
    alone(|| {
        let options = Options {
            timeslice: Some(Duration::from_millis(2)),
            interleave: Interleave::Medium,
            preemption: Preemption::Block,
            ..Options::default()
        };
        let space = AddressSpace::new(&Orin::open().unwrap(), L2::Cached).unwrap();
        let mut context = Context::new(&space, options).unwrap();
        assert!(context.add_queue(Engine::Compute, 2).is_err(), "no room for the configuration");
        assert!(context.add_queue(Engine::Compute, 1000).is_err());
        let compute = context.add_queue(Engine::Compute, 4).unwrap();
        let copy = context.add_queue(Engine::Copy, 8).unwrap();
        assert!(!context.is_open(), "nothing to do yet");
        complete(&mut context, compute, Wake::Quiet);
        let before = context.gpu_time().unwrap();
        let ticket = context.submit_timed(copy, &[], Wake::Interrupt).unwrap();
        context.wait(ticket, LONG).unwrap();
        let timing = context.timing(ticket).unwrap().expect("timed and done");
        let after = context.gpu_time().unwrap();
        assert!(before <= timing.started, "{before} {timing:?}");
        assert!(
            timing.started <= timing.finished && timing.finished <= after,
            "{timing:?} {after}"
        );
        // A record lives until the ring has wrapped around.
        for _ in 0..8 {
            let ticket = complete(&mut context, copy, Wake::Quiet);
            assert_eq!(context.timing(ticket).unwrap(), None, "not timed");
        }
        assert_eq!(context.timing(ticket).unwrap(), None, "used again");
        let other = Context::new(&space, Options::default()).unwrap();
        assert!(other.timeline(copy).is_err(), "a queue of another context");
    });
}
