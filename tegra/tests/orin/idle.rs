//! Channels that close when there is nothing to do.

use std::time::Duration;

use tegra::context::Options;
use tegra::queue::Wake;

use crate::support::{Copies, LONG, alone, complete};

#[test]
fn closing_when_idle_and_opening_again() {
    alone(|| {
        let mut copies = Copies::new();
        let (from, to) = (copies.mailbox(4096), copies.mailbox(4096));
        for round in 0..5u64 {
            from.store_u64(0, round + 1).unwrap();
            copies.copy(from.address(), to.address(), 8);
            assert_eq!(to.load_u64(0).unwrap(), round + 1, "content survives");
            assert!(copies.context.is_open());
            let context = &mut copies.context;
            assert!(!context.close_if_idle(Duration::from_secs(3600)).unwrap(), "not yet");
            assert!(context.close_if_idle(Duration::ZERO).unwrap());
            assert!(!context.is_open());
            assert_eq!(context.gpu_time(), None);
            let device = tegra_sim_preload::orin().unwrap();
            assert_eq!((device.live().channels, device.live().tsgs), (0, 0));
            assert!(context.close_if_idle(LONG).unwrap(), "closed already");
        }
    });
}

/// Points of before a close are still done, and the timeline goes on.
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

/// A submission in between starts the time anew.
#[test]
fn work_puts_the_close_off() {
    alone(|| {
        let mut copies = Copies::new();
        let queue = copies.queue;
        let context = &mut copies.context;
        complete(context, queue, Wake::Quiet);
        let hour = Duration::from_secs(3600);
        assert!(!context.close_if_idle(hour).unwrap());
        complete(context, queue, Wake::Quiet);
        assert!(!context.close_if_idle(hour).unwrap());
        assert!(context.is_open());
    });
}
