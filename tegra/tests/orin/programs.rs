//! Random programs over several queues, compared with the same program run in order on the CPU.
//!
//! A program is a list of copies and fills within one buffer. Each is submitted to a random queue,
//! after acquires of every earlier step on another queue that it must not overtake: one that
//! accesses a byte which either of the two writes.

use std::ops::Range;

use orind_testing::random::Random;
use tegra::buffer::Mailbox;
use tegra::class;
use tegra::context::{Context, Options, QueueId, Ticket};
use tegra::copy;
use tegra::pushbuffer::{Engine, PushBuffer};
use tegra::queue::Wake;
use tegra::space::AddressSpace;

use crate::support::{LONG, alone, count, space};

const ARENA: u64 = 32 << 10;
const STREAM: u64 = 4096;

#[derive(Debug)]
enum Step {
    Copy { from: u64, to: u64, bytes: u64 },
    Fill { to: u64, value: u32, words: u64 },
}

impl Step {
    fn random(random: &mut Random) -> Self {
        if random.below(4) == 0 {
            let words = 1 + random.bits() % 300;
            let to = random.bits() % (ARENA / 4 - words) * 4;
            return Self::Fill { to, value: random.bits() as u32, words };
        }
        let bytes = 1 + random.bits() % 2000;
        loop {
            let (from, to) = (random.bits() % (ARENA - bytes), random.bits() % (ARENA - bytes));
            // An overlapping copy is undefined.
            if from.abs_diff(to) >= bytes {
                return Self::Copy { from, to, bytes };
            }
        }
    }

    fn reads(&self) -> Range<u64> {
        match *self {
            Self::Copy { from, bytes, .. } => from..from + bytes,
            Self::Fill { to, .. } => to..to,
        }
    }

    fn writes(&self) -> Range<u64> {
        match *self {
            Self::Copy { to, bytes, .. } => to..to + bytes,
            Self::Fill { to, words, .. } => to..to + words * 4,
        }
    }

    fn must_follow(&self, earlier: &Self) -> bool {
        let meet = |a: Range<u64>, b: Range<u64>| a.start < b.end && b.start < a.end;
        meet(self.reads(), earlier.writes())
            || meet(self.writes(), earlier.writes())
            || meet(self.writes(), earlier.reads())
    }

    fn record(&self, stream: &mut PushBuffer<class::Copy>, arena: &Mailbox) {
        let at = |offset| arena.at(offset).unwrap();
        match *self {
            Self::Copy { from, to, bytes } => copy::copy(stream, at(from), at(to), bytes),
            Self::Fill { to, value, words } => copy::fill(stream, at(to), value, words),
        }
        .unwrap();
    }

    fn run(&self, model: &mut [u8]) {
        match *self {
            Self::Copy { from, to, bytes } => {
                model.copy_within(from as usize..(from + bytes) as usize, to as usize);
            }
            Self::Fill { to, value, words } => {
                let place = &mut model[to as usize..][..words as usize * 4];
                for word in place.as_chunks_mut::<4>().0 {
                    *word = value.to_le_bytes();
                }
            }
        }
    }
}

fn program(space: &AddressSpace, seed: u64) {
    let mut random = Random(seed);
    let mut context = Context::new(space, Options::default()).unwrap();
    let queues: Vec<_> =
        (0..2 + random.below(4)).map(|_| context.add_queue(Engine::Copy, 64).unwrap()).collect();
    let mut model = random.bytes(ARENA as usize);
    let arena = Mailbox::new(space, ARENA).unwrap();
    arena.write(0, &model).unwrap();
    let length = 5 + random.bits() % 25;
    let streams = Mailbox::new(space, length * STREAM).unwrap();
    let mut done: Vec<(Step, QueueId, Ticket)> = Vec::new();
    for number in 0..length {
        let step = Step::random(&mut random);
        let queue = random.pick(&queues);
        let mut stream = PushBuffer::new();
        for (earlier, other, ticket) in &done {
            if *other != queue && step.must_follow(earlier) {
                stream.acquire(context.acquire(*ticket).unwrap());
            }
        }
        step.record(&mut stream, &arena);
        step.run(&mut model);
        let body = streams.write_stream(number * STREAM, stream.words()).unwrap();
        let wake = if random.below(2) == 0 { Wake::Quiet } else { Wake::Interrupt };
        let ticket = context.submit(queue, &[body], wake).unwrap();
        done.push((step, queue, ticket));
    }
    context.drain(LONG).unwrap();
    let mut seen = vec![0; ARENA as usize];
    arena.read(0, &mut seen).unwrap();
    let steps: Vec<_> = done.iter().map(|(step, queue, _)| (step, queue)).collect();
    assert!(seen == model, "seed {seed:#x} differs from the result in order: {steps:#?}");
}

#[test]
fn queues_with_acquires_equal_sequential_execution() {
    alone(|| {
        let space = space();
        for number in 0..count(20, 1000) {
            program(&space, 0x9_0000_0001 + number);
        }
    });
}
