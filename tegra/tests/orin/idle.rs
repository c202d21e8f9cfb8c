//! Idle channels are closed and opened again.

use std::time::Duration;

use tegra::context::Options;
use tegra::queue::Wake;

use crate::support::{Copies, LONG, alone, complete};

#[test]
fn idle_channels_close_and_reopen() {
    alone(|| {
        let mut copies = Copies::new();
        let (from, to) = (copies.mailbox(4096), copies.mailbox(4096));
        for round in 0..5u64 {
            from.store_u64(0, round + 1).unwrap();
            copies.copy(from.address(), to.address(), 8);
            assert_eq!(to.load_u64(0).unwrap(), round + 1, "content survives");
            assert!(copies.context.is_open());
            let context = &mut copies.context;
            context.close().unwrap();
            assert!(!context.is_open());
            assert_eq!(context.gpu_time(), None);
            let device = tegra_sim_preload::orin().unwrap();
            assert_eq!((device.live().channels, device.live().tsgs), (0, 0));
            context.close().unwrap();
        }
    });
}

/// Points from before a close are still done, and the timeline continues.
#[test]
fn tickets_outlive_a_close() {
    alone(|| {
        let mut copies = Copies::with(Options { spin: Duration::ZERO, ..Options::default() });
        let queue = copies.queue;
        let context = &mut copies.context;
        let first = complete(context, queue, Wake::Interrupt);
        context.close().unwrap();
        assert!(context.is_done(first).unwrap());
        context.wait(first, Duration::ZERO).unwrap();
        context.drain(LONG).unwrap();
        let second = context.submit(queue, &[], Wake::Quiet).unwrap();
        assert!(second.point().value() > first.point().value());
        context.wait(second, LONG).unwrap();
        assert!(context.is_done(first).unwrap());
    });
}
