//! Rings that wrap around, many channels, and timelines between them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use orind_testing::random::Random;
use tegra::buffer::Mailbox;
use tegra::class;
use tegra::context::{Context, Options};
use tegra::copy;
use tegra::pushbuffer::{Acquire, Condition, Engine, Payload, PushBuffer};
use tegra::queue::{SubmitError, Wake};
use tegra::{Error, context};

use crate::support::{LONG, alone, complete, count, space};

/// Waits for the oldest when the ring is full.
fn submit(
    context: &mut Context,
    queue: context::QueueId,
    bodies: &[tegra::pushbuffer::Entry],
    oldest: &mut VecDeque<context::Ticket>,
) {
    loop {
        match context.submit(queue, bodies, Wake::Interrupt) {
            Ok(ticket) => return oldest.push_back(ticket),
            Err(Error::Submit(SubmitError::Full { .. })) => {
                // Only the channel's configuration is in flight.
                match oldest.pop_front() {
                    Some(ticket) => context.wait(ticket, LONG).unwrap(),
                    None => context.drain(LONG).unwrap(),
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn rings_wrap_around() {
    alone(|| {
        let space = space();
        let mut context = Context::new(&space, Options::default()).unwrap();
        let queue = context.add_queue(Engine::Copy, 64).unwrap();
        let memory = Mailbox::new(&space, 8192).unwrap();
        memory.store_u64(0, 0x1209).unwrap();
        let mut stream = PushBuffer::<class::Copy>::new();
        copy::copy(&mut stream, memory.at(0).unwrap(), memory.at(8).unwrap(), 8).unwrap();
        let body = memory.write_stream(4096, stream.words()).unwrap();
        let entries = count(30_000, 1_000_000);
        let mut random = Random(0x1209);
        let mut oldest = VecDeque::new();
        let mut written = 0;
        while written < entries {
            let bodies = vec![body; random.below(12)];
            submit(&mut context, queue, &bodies, &mut oldest);
            written += bodies.len() as u64 + 1;
        }
        context.drain(LONG).unwrap();
        for ticket in oldest {
            assert!(context.is_done(ticket).unwrap());
        }
        assert_eq!(context.room(queue).unwrap(), 63);
        assert_eq!(memory.load_u64(8).unwrap(), 0x1209);
    });
}

#[test]
fn a_full_ring_refuses_until_work_completes() {
    alone(|| {
        let space = space();
        let mut context = Context::new(&space, Options::default()).unwrap();
        let queue = context.add_queue(Engine::Copy, 8).unwrap();
        let gate = Mailbox::new(&space, 8192).unwrap();
        let acquire =
            Acquire::new(gate.at(0).unwrap(), Payload::Long(1), Condition::Reached).unwrap();
        let mut stream = PushBuffer::<class::Copy>::new();
        stream.acquire(acquire);
        let body = gate.write_stream(4096, stream.words()).unwrap();
        context.open().unwrap();
        context.drain(LONG).unwrap();
        let held = context.submit(queue, &[body; 6], Wake::Interrupt).unwrap();
        assert!(!context.is_done(held).unwrap());
        let full = context.submit(queue, &[], Wake::Quiet).unwrap_err();
        assert!(matches!(full, Error::Submit(SubmitError::Full { needed: 1, room: 0 })), "{full}");
        let long = context.submit(queue, &[body; 8], Wake::Quiet).unwrap_err();
        assert!(matches!(long, Error::Submit(SubmitError::TooLong { .. })), "{long}");
        assert!(matches!(context.close(), Err(Error::Busy { .. })));
        gate.store_u64(0, 1).unwrap();
        context.wait(held, LONG).unwrap();
        complete(&mut context, queue, Wake::Quiet);
    });
}

#[test]
fn ten_channels_run_concurrently() {
    alone(|| {
        const PAGE: u64 = 4096;
        let space = space();
        let mut context = Context::new(&space, Options::default()).unwrap();
        let queues: Vec<_> = (0..10)
            .map(|index| {
                let engine = if index % 2 == 0 { Engine::Copy } else { Engine::Compute };
                context.add_queue(engine, 32).unwrap()
            })
            .collect();
        let memory = Mailbox::new(&space, 64 * PAGE).unwrap();
        let mut tickets = VecDeque::new();
        for round in 0..50u64 {
            for (index, queue) in queues.iter().enumerate() {
                let slot = index as u64;
                let mut bodies = Vec::new();
                if slot.is_multiple_of(2) && round == 0 {
                    memory.store_u64(slot * 8, 1000 + slot).unwrap();
                    let mut stream = PushBuffer::<class::Copy>::new();
                    let (from, to) = (memory.at(slot * 8), memory.at(PAGE + slot * 8));
                    copy::copy(&mut stream, from.unwrap(), to.unwrap(), 8).unwrap();
                    let place = (16 + slot) * PAGE;
                    bodies.push(memory.write_stream(place, stream.words()).unwrap());
                }
                submit(&mut context, *queue, &bodies, &mut tickets);
            }
        }
        for ticket in tickets {
            context.wait(ticket, LONG).unwrap();
        }
        for slot in (0..10).step_by(2) {
            assert_eq!(memory.load_u64(PAGE + slot * 8).unwrap(), 1000 + slot);
        }
    });
}

/// A value passes through ten queues, each waiting for the previous one, submitted in reverse
/// order.
#[test]
fn a_queue_acquires_the_timeline_of_another() {
    alone(|| {
        const QUEUES: u64 = 10;
        const PAGE: u64 = 4096;
        let space = space();
        let mut context = Context::new(&space, Options::default()).unwrap();
        let queues: Vec<_> =
            (0..QUEUES).map(|_| context.add_queue(Engine::Copy, 16).unwrap()).collect();
        let memory = Mailbox::new(&space, (QUEUES + 2) * PAGE).unwrap();
        context.open().unwrap();
        context.drain(LONG).unwrap();
        for round in 1..=20u64 {
            memory.store_u64(0, round * 7).unwrap();
            // Each queue's next point is known before it is submitted: one submission a round.
            let mut last = None;
            for index in (0..QUEUES).rev() {
                let mut stream = PushBuffer::<class::Copy>::new();
                if index > 0 {
                    let before = queues[index as usize - 1];
                    let timeline = context.timeline(before).unwrap();
                    // Value 1 was the channel's configuration.
                    let payload = Payload::Long(round + 1);
                    stream.acquire(Acquire::new(timeline, payload, Condition::Reached).unwrap());
                }
                let (from, to) = (memory.at(index * 8), memory.at((index + 1) * 8));
                copy::copy(&mut stream, from.unwrap(), to.unwrap(), 8).unwrap();
                let body = memory.write_stream((index + 1) * PAGE, stream.words()).unwrap();
                let queue = queues[index as usize];
                let ticket = context.submit(queue, &[body], Wake::Interrupt).unwrap();
                assert_eq!(ticket.point().value(), round + 1);
                last = last.or(Some(ticket));
            }
            context.wait(last.unwrap(), LONG).unwrap();
            assert_eq!(memory.load_u64(QUEUES * 8).unwrap(), round * 7);
            context.drain(LONG).unwrap();
        }
    });
}

#[test]
fn only_an_interrupt_wakes_a_sleeper() {
    alone(|| {
        let mut context = Context::new(&space(), Options::default()).unwrap();
        let queue = context.add_queue(Engine::Copy, 64).unwrap();
        assert!(!context.sleep(LONG).unwrap(), "no channel is open, so none can raise an event");
        assert!(context.channel(queue).unwrap().is_none());
        complete(&mut context, queue, Wake::Quiet);
        assert!(!context.sleep(Duration::from_millis(1)).unwrap());
        let ticket = context.submit(queue, &[], Wake::Interrupt).unwrap();
        assert!(context.sleep(LONG).unwrap());
        context.wait(ticket, LONG).unwrap();
        assert!(!context.sleep(Duration::from_millis(1)).unwrap(), "it was cleared");
        let channel = context.channel(queue).unwrap().unwrap();
        assert_eq!((channel.engine(), channel.token()), (Engine::Copy, channel.id()));
    });
}

#[test]
fn a_wait_that_must_block_is_one_system_call() {
    alone(|| {
        const ROUNDS: u64 = 10;
        let space = space();
        // No polling: every wait for unfinished work sleeps.
        let options = Options { spin: Duration::ZERO, ..Options::default() };
        let mut context = Context::new(&space, options).unwrap();
        let queue = context.add_queue(Engine::Copy, 8).unwrap();
        let gate = Mailbox::new(&space, 8192).unwrap();
        context.open().unwrap();
        context.drain(LONG).unwrap();
        let started = Instant::now();
        let mut before = 0;
        // The first round also clears the event of opening the channels.
        for round in 0..=ROUNDS {
            let payload = Payload::Long(round + 1);
            let acquire = Acquire::new(gate.at(0).unwrap(), payload, Condition::Reached).unwrap();
            let mut stream = PushBuffer::<class::Copy>::new();
            stream.acquire(acquire);
            let body = gate.write_stream(4096, stream.words()).unwrap();
            let ticket = context.submit(queue, &[body], Wake::Interrupt).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(5));
                    gate.store_u64(0, round + 1).unwrap();
                });
                context.wait(ticket, LONG).unwrap();
            });
            if round == 0 {
                before = context.statistics().sleeps;
            }
        }
        let sleeps = context.statistics().sleeps - before;
        // A sleep ends by itself after 100 ms, and the thread above may be late.
        let late = started.elapsed().as_millis() as u64 / 100;
        assert!((ROUNDS..=ROUNDS + late).contains(&sleeps), "{sleeps} sleeps in {ROUNDS} waits");
    });
}
