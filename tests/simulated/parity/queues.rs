//! Signals, waits, copies and timestamps across many queues of the simulated Orin.

use std::time::Duration;

use tegra::buffer::Mailbox;
use tegra::class;
use tegra::context::{Context, Options};
use tegra::copy;
use tegra::orin::Orin;
use tegra::pushbuffer::{Acquire, Condition, Engine, Payload, PushBuffer};
use tegra::queue::Wake;
use tegra::space::{AddressSpace, L2};

const LONG: Duration = Duration::from_secs(60);
const PAGE: u64 = 4096;
const QUEUES: u64 = 6;

#[test]
fn queues_copy_a_value_in_the_order_of_their_waits() {
    let space = AddressSpace::new(&Orin::open().unwrap(), L2::Volatile).unwrap();
    let mut context = Context::new(&space, Options::default()).unwrap();
    let queues: Vec<_> =
        (0..QUEUES).map(|_| context.add_queue(Engine::Copy, 16).unwrap()).collect();
    let memory = Mailbox::new(&space, (QUEUES + 2) * PAGE).unwrap();
    let gate = Mailbox::new(&space, PAGE).unwrap();
    context.open().unwrap();
    context.drain(LONG).unwrap();
    memory.store_u64(0, 0x5eed).unwrap();
    let mut tickets: Vec<tegra::context::Ticket> = Vec::new();
    for index in 0..QUEUES {
        let mut stream = PushBuffer::<class::Copy>::new();
        // The first queue waits for the CPU, each other one for the queue before it.
        stream.acquire(match tickets.last() {
            None => {
                Acquire::new(gate.at(0).unwrap(), Payload::Long(1), Condition::Reached).unwrap()
            }
            Some(before) => context.acquire(*before).unwrap(),
        });
        let (from, to) = (memory.at(8 * index).unwrap(), memory.at(8 * index + 8).unwrap());
        copy::copy(&mut stream, from, to, 8).unwrap();
        let body = memory.write_stream((index + 1) * PAGE, stream.words()).unwrap();
        let queue = queues[index as usize];
        tickets.push(context.submit_timed(queue, &[body], Wake::Interrupt).unwrap());
    }
    assert!(tickets.iter().all(|t| !context.is_done(*t).unwrap()), "the gate is closed");
    assert_eq!(memory.load_u64(8).unwrap(), 0);
    gate.store_u64(0, 1).unwrap();
    context.wait(*tickets.last().unwrap(), LONG).unwrap();
    for ticket in &tickets {
        context.wait(*ticket, LONG).unwrap();
    }
    for index in 1..=QUEUES {
        assert_eq!(memory.load_u64(8 * index).unwrap(), 0x5eed, "queue {index}");
    }
    let times: Vec<_> = tickets.iter().map(|t| context.timing(*t).unwrap().unwrap()).collect();
    assert!(times.iter().all(|t| t.started <= t.finished), "{times:?}");
    assert!(times.windows(2).all(|pair| pair[0].finished <= pair[1].finished), "{times:?}");
}
