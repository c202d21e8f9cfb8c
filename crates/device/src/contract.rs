//! Contract tests: one set of checks of the rules in [`super`] for every device.
//!
//! Unit tests run them on the reference, the CPU, and CUDA with a fake driver; the test program
//! `contract` on the simulated Orin. The test model counts: it outputs the token after its input,
//! so every token shows which writes its step has seen.

use plan::graph::{Graph, SampleInputs};
use plan::sample::{self, Adjustment, Edit, NOT_FINITE, Sampling, philox};
use plan::{Binary, Bucket, Buffer, BufferId, Class, DType, Fusions, Outputs, Plan, fuse};

use super::{
    BLOCK, Data, Device, Error, Instance, MAX_SUBMISSIONS, Part, Prepared, RING_STEPS, Request,
    STAGED_WRITES, Ticket,
};

/// Number of tokens; the last is followed by the first. Larger than a ring, so that no token
/// repeats in it.
const VOCABULARY: usize = 96;
/// Values of a row. A token's row is one-hot at its own column.
const WIDTH: usize = 256;
/// Slots of a cache that no plan uses.
const SLOTS: u32 = 2;
/// Positions of that cache; the third block is partial.
const CONTEXT: usize = 2 * BLOCK + 16;
/// Sampling temperature.
const TEMPERATURE: f32 = 0.0;

pub(crate) fn check(device: &dyn Device) {
    types_and_bounds_are_checked(device);
    submissions_are_limited_and_finish_in_order(device);
    plans_in_flight_cannot_be_read(device);
    writes_take_effect_in_order(device);
    staged_writes_are_limited(device);
    tickets_give_their_own_tokens(device);
    a_profile_is_two_steps(device);
    slots_are_mapped_while_idle(device);
    parts_are_read_written_and_copied_while_idle(device);
    logits_that_are_not_finite_give_no_token(device);
    a_row_that_is_not_finite_does_not_affect_others(device);
    logit_edits_match_their_definition(device);
    unsupported_errors_name_the_device(device);
}

/// A counting decode step, and a step that copies floats.
fn plans(fusions: Fusions) -> [Plan; 2] {
    let mut g = Graph::new();
    let mut mailbox =
        |name: &str, dtype, shape: &[usize]| g.source(Class::Mailbox, name, dtype, shape).unwrap();
    let tokens = mailbox("tokens", DType::I32, &[1]);
    let positions = mailbox("positions", DType::I32, &[1]);
    let parameters = SampleInputs {
        temperature: mailbox("temperature", DType::F32, &[1]),
        top_k: mailbox("top_k", DType::I32, &[1]),
        top_p: mailbox("top_p", DType::F32, &[1]),
        min_p: mailbox("min_p", DType::F32, &[1]),
        seed: mailbox("seed", DType::I32, &[1, 2]),
        positions,
        adjustments: None,
    };
    let embedding = g.source(Class::Weight, "embedding", DType::F16, &[VOCABULARY, WIDTH]).unwrap();
    let output = g.source(Class::Weight, "output", DType::F16, &[VOCABULARY, WIDTH]).unwrap();
    g.at("embed");
    let row = g.gather(embedding, &[tokens]).unwrap();
    g.at("logits");
    let logits = g.matmul(row, output).unwrap();
    g.output("logits", logits);
    g.at("sample");
    let sampled = g.sample(logits, parameters).unwrap();
    g.output("sampled", sampled);
    let one = g.constant(1.0);
    let next = g.binary(Binary::Add, positions, one).unwrap();
    g.assign(tokens, sampled).unwrap();
    g.assign(positions, next).unwrap();
    let decode = g.lower(Bucket::decode(1, CONTEXT)).unwrap();

    let mut g = Graph::new();
    let x = g.source(Class::Mailbox, "x", DType::F32, &[1, WIDTH]).unwrap();
    let embedding = g.source(Class::Weight, "embedding", DType::F16, &[VOCABULARY, WIDTH]).unwrap();
    g.at("first values");
    let y = g.matmul(x, embedding).unwrap();
    g.output("y", y);
    let bucket = Bucket { batch: 1, chunk: 1, context: 1, outputs: Outputs::None };
    let copy = g.lower(bucket).unwrap();
    [decode, copy].map(|plan| fuse(&plan, fusions))
}

/// One-hot rows: the input has a one at the row's own column, the output at the previous row's.
fn one_hot(weight: &str) -> Vec<u8> {
    let before = match weight {
        "embedding" => 0,
        "output" => 1,
        other => panic!("no weight `{other}`"),
    };
    let mut bytes = vec![0; 2 * VOCABULARY * WIDTH];
    for token in 0..VOCABULARY {
        let at = 2 * (token * WIDTH + (token + VOCABULARY - before) % VOCABULARY);
        bytes[at..at + 2].copy_from_slice(&[0x00, 0x3c]);
    }
    bytes
}

fn slots_are_mapped_while_idle(device: &dyn Device) {
    let mut s = Session::new(device);
    let blocks = s.instance.blocks();
    if blocks == 0 {
        assert!(matches!(s.instance.map(0, &[0]), Err(Error::Unsupported { .. })));
        return;
    }
    let of_slot = CONTEXT.div_ceil(BLOCK);
    assert_eq!(blocks as usize, SLOTS as usize * of_slot);
    // The last block for both slots, no block for one, and all blocks of one for the other.
    s.instance.map(0, &[blocks - 1]).unwrap();
    s.instance.map(1, &[blocks - 1, 0]).unwrap();
    s.instance.map(0, &[]).unwrap();
    s.instance.map(0, &(0..of_slot as u32).collect::<Vec<_>>()).unwrap();
    refused(s.instance.map(SLOTS, &[0]));
    refused(s.instance.map(0, &[blocks]));
    refused(s.instance.map(0, &vec![0; of_slot + 1]));
    s.start(1);
    let ticket = s.submit(1);
    refused(s.instance.map(0, &[0]));
    s.instance.wait(ticket).unwrap();
    s.instance.map(0, &[0]).unwrap();
}

/// Checks that writes to a part affect that part only, and that copies equal it. Returns the number
/// of channel rebuilds.
pub(crate) fn parts_are_read_written_and_copied_while_idle(device: &dyn Device) -> u64 {
    let mut s = Session::new(device);
    let (blocks, rest) = (s.instance.blocks(), Part::Recurrent(0));
    s.instance.copy_part(rest, Part::Recurrent(1)).unwrap();
    s.instance.copy_part(rest, rest).unwrap();
    refused(s.instance.copy_part(Part::Block(0), rest));
    refused(s.instance.copy_part(Part::Block(0), Part::Block(blocks)));
    refused(s.instance.copy_part(Part::Recurrent(SLOTS), rest));
    if s.instance.part_bytes(rest).is_none() {
        let (read, written) = (s.instance.read_part(rest, &mut []), s.write(rest, &[]));
        assert!(matches!(read, Err(Error::Unsupported { .. })));
        assert!(matches!(written, Err(Error::Unsupported { .. })));
        return 0;
    }
    let of = |s: &Session, part, number: usize| -> Vec<u8> {
        let bytes = s.instance.part_bytes(part).unwrap();
        (0..bytes).map(|at| (at * 7 + at / 251 + number * 89) as u8).collect()
    };
    let parts: Vec<Part> =
        (0..blocks).map(Part::Block).chain((0..SLOTS).map(Part::Recurrent)).collect();
    for (number, part) in parts.iter().enumerate() {
        let bytes = of(&s, *part, number);
        s.write(*part, &bytes).unwrap();
    }
    let holds = |s: &mut Session, changed: &[[usize; 2]]| {
        for (at, part) in parts.iter().enumerate() {
            let number = changed.iter().find(|[to, _]| *to == at).map_or(at, |[_, from]| *from);
            let expected = of(s, *part, number);
            let mut out = vec![0; expected.len()];
            s.instance.read_part(*part, &mut out).unwrap();
            assert!(out == expected, "{part:?}");
        }
    };
    holds(&mut s, &[]);
    let rests = blocks as usize;
    s.instance.copy_part(Part::Block(2), Part::Block(1)).unwrap();
    s.instance.copy_part(Part::Block(1), Part::Block(1)).unwrap();
    holds(&mut s, &[[1, 2]]);
    s.instance.copy_part(Part::Recurrent(0), Part::Recurrent(1)).unwrap();
    holds(&mut s, &[[1, 2], [rests + 1, rests]]);
    // Mapping does not change the contents of blocks.
    s.instance.map(1, &[0]).unwrap();
    holds(&mut s, &[[1, 2], [rests + 1, rests]]);
    let (block, rest) = (of(&s, Part::Block(0), 0), of(&s, Part::Recurrent(0), 0));
    let mut out = block.clone();
    for (part, bytes) in [
        (Part::Block(blocks), &block[..]),
        (Part::Block(u32::MAX), &block),
        (Part::Recurrent(SLOTS), &rest),
        (Part::Block(0), &block[..1]),
        (Part::Recurrent(0), &rest[..1]),
    ] {
        refused(s.instance.read_part(part, &mut vec![0; bytes.len()]));
        refused(s.write(part, bytes));
    }
    s.start(1);
    let ticket = s.submit(1);
    refused(s.instance.read_part(Part::Block(0), &mut out));
    refused(s.write(Part::Block(0), &block));
    refused(s.instance.copy_part(Part::Block(0), Part::Block(1)));
    s.instance.wait(ticket).unwrap();
    s.instance.read_part(Part::Block(0), &mut out).unwrap();
    s.instance.activity().rebuilds
}

struct Session {
    instance: Box<dyn Instance>,
    plans: [Plan; 2],
    decode: Prepared,
    copy: Prepared,
}

impl Session {
    fn new(device: &dyn Device) -> Self {
        Self::with(device, one_hot)
    }

    fn with(device: &dyn Device, bytes: impl Fn(&str) -> Vec<u8>) -> Self {
        let plans = plans(device.fusions());
        let weights = weights(&plans);
        let slots = SLOTS as usize;
        let state = |name: &str, dtype, shape: &[usize]| Buffer {
            name: name.into(),
            class: Class::State,
            dtype,
            shape: shape.to_vec(),
        };
        let states = [
            state("keys", DType::F16, &[slots, CONTEXT, 3, 64]),
            state("ring", DType::F16, &[slots, 96, 3, 64]),
            state("matrix", DType::F32, &[slots, 2, 33]),
        ];
        let request = Request { weights: &weights, states: &states, plans: &plans, choices: None };
        let mut instance = device.open(&request).unwrap();
        for weight in &weights {
            instance.upload(&weight.name, &bytes(&weight.name), &|_| {}).unwrap();
        }
        let [decode, copy] = [0, 1].map(|i| instance.prepare(&plans[i]).unwrap());
        let mut session = Self { instance, plans, decode, copy };
        let temperature = session.mailbox("temperature");
        session.instance.write(decode, temperature, 0, Data::F32(&[TEMPERATURE])).unwrap();
        session
    }

    fn mailbox(&self, name: &str) -> BufferId {
        self.plans[0].find(Class::Mailbox, name).unwrap()
    }

    fn output(&self, name: &str) -> BufferId {
        self.plans[0].find(Class::Output, name).unwrap()
    }

    fn x(&self) -> BufferId {
        self.plans[1].find(Class::Mailbox, "x").unwrap()
    }

    /// Sets the token to count from.
    fn start(&mut self, token: i32) {
        let tokens = self.mailbox("tokens");
        self.instance.write(self.decode, tokens, 0, Data::I32(&[token])).unwrap();
    }

    fn write(&mut self, part: Part, bytes: &[u8]) -> Result<(), Error> {
        self.instance.write_part(part, bytes)
    }

    fn submit(&mut self, steps: u32) -> Ticket {
        self.instance.submit(self.decode, steps).unwrap()
    }

    fn token(&self, ticket: Ticket, step: u32) -> i32 {
        let mut token = [-1];
        self.instance.tokens(ticket, step, &mut token).unwrap();
        token[0]
    }

    /// First values of the last copy.
    fn copied(&self) -> Vec<f32> {
        let y = self.plans[1].find(Class::Output, "y").unwrap();
        let mut values = vec![-1.0; VOCABULARY];
        self.instance.read(self.copy, y, 0, &mut values).unwrap();
        values
    }
}

fn weights(plans: &[Plan]) -> Vec<Buffer> {
    let mut weights: Vec<Buffer> = Vec::new();
    for buffer in plans.iter().flat_map(|plan| &plan.buffers) {
        if buffer.class == Class::Weight && !weights.contains(buffer) {
            weights.push(buffer.clone());
        }
    }
    weights
}

#[track_caller]
fn refused<T>(result: Result<T, Error>) {
    match result {
        Err(Error::Invalid(_)) => {}
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("not refused"),
    }
}

/// Mailboxes and outputs are checked for type and bounds.
fn types_and_bounds_are_checked(device: &dyn Device) {
    let mut s = Session::new(device);
    let (tokens, temperature) = (s.mailbox("tokens"), s.mailbox("temperature"));
    let (logits, sampled) = (s.output("logits"), s.output("sampled"));
    let weight = s.plans[0].find(Class::Weight, "output").unwrap();
    let unknown = BufferId(9999);
    let (decode, i) = (s.decode, &mut s.instance);
    refused(i.write(decode, tokens, 0, Data::F32(&[1.0])));
    refused(i.write(decode, temperature, 0, Data::I32(&[1])));
    refused(i.write(decode, tokens, 1, Data::I32(&[1])));
    refused(i.write(decode, tokens, 0, Data::I32(&[1, 2])));
    refused(i.write(decode, tokens, usize::MAX, Data::I32(&[1])));
    refused(i.write(decode, unknown, 0, Data::I32(&[1])));
    refused(i.write(decode, logits, 0, Data::F32(&[1.0])));
    refused(i.write(decode, sampled, 0, Data::I32(&[1])));
    refused(i.write(decode, weight, 0, Data::F32(&[1.0])));
    refused(i.write(Prepared(7), tokens, 0, Data::I32(&[1])));
    refused(i.read(decode, temperature, 0, &mut [0.0]));
    refused(i.read(decode, tokens, 0, &mut [0.0]));
    refused(i.read(decode, sampled, 0, &mut [0.0]));
    refused(i.read(decode, weight, 0, &mut [0.0]));
    refused(i.read(decode, logits, 1, &mut [0.0; VOCABULARY]));
    refused(i.read(decode, logits, usize::MAX, &mut [0.0]));
    refused(i.read(decode, unknown, 0, &mut [0.0]));
    refused(i.read(Prepared(7), logits, 0, &mut [0.0]));
    refused(i.upload("no such weight", &one_hot("output"), &|_| {}));
    // Rejected writes have no effect.
    s.start(5);
    let ticket = s.submit(1);
    s.instance.wait(ticket).unwrap();
    assert_eq!(s.token(ticket, 0), 6);
    let mut row = [0.0; 3];
    s.instance.read(s.decode, logits, 5, &mut row).unwrap();
    assert_eq!(row, [0.0, 1.0, 0.0]);
}

/// The number of submissions is limited, and waiting for one waits for all earlier ones.
fn submissions_are_limited_and_finish_in_order(device: &dyn Device) {
    let mut s = Session::new(device);
    for steps in [0, RING_STEPS + 1] {
        refused(s.instance.submit(s.decode, steps));
    }
    refused(s.instance.submit(Prepared(7), 1));
    s.start(0);
    let submit = |s: &mut Session, n: usize| {
        let plan = if n.is_multiple_of(2) { s.decode } else { s.copy };
        s.instance.submit(plan, 1)
    };
    let mut tickets: Vec<Ticket> =
        (0..MAX_SUBMISSIONS).map(|n| submit(&mut s, n).unwrap()).collect();
    refused(submit(&mut s, 0));
    refused(submit(&mut s, 1));
    // This also waits for `tickets[0]`: one submission of each plan is done.
    s.instance.wait(tickets[1]).unwrap();
    for n in [0, 1] {
        tickets.push(submit(&mut s, n).unwrap());
    }
    refused(submit(&mut s, 0));
    s.instance.wait(*tickets.last().unwrap()).unwrap();
    s.instance.wait(tickets[0]).unwrap();
    for (count, ticket) in tickets.iter().step_by(2).enumerate() {
        assert_eq!(s.token(*ticket, 0), count as i32 + 1);
    }
    let last = tickets[0];
    for unknown in [
        Ticket { sequence: 100, ..last },
        Ticket { sequence: 0, ..last },
        Ticket { steps: 64, ..last },
        Ticket { prepared: Prepared(7), ..last },
    ] {
        refused(s.instance.wait(unknown));
    }
}

/// In flight, neither outputs nor tokens can be read and no weight uploaded, even if the step has
/// finished.
fn plans_in_flight_cannot_be_read(device: &dyn Device) {
    let mut s = Session::new(device);
    let (logits, mut row) = (s.output("logits"), [0.0; VOCABULARY]);
    s.start(1);
    let ticket = s.submit(2);
    let given_time = std::time::Duration::from_millis(20);
    std::thread::sleep(given_time);
    refused(s.instance.read(s.decode, logits, 0, &mut row));
    refused(s.instance.tokens(ticket, 0, &mut [0]));
    refused(s.instance.upload("output", &one_hot("output"), &|_| {}));
    refused(s.instance.profile(s.copy));
    // Another plan is not in flight.
    assert_eq!(s.copied(), [0.0; VOCABULARY]);
    s.instance.wait(ticket).unwrap();
    s.instance.read(s.decode, logits, 0, &mut row).unwrap();
    assert_eq!(row.iter().position(|&value| value == 1.0), Some(3));
}

/// A write while a plan is in flight affects its next submission and no earlier one.
fn writes_take_effect_in_order(device: &dyn Device) {
    assert_eq!(pipelined(device).0, PIPELINED);
}

pub(crate) const PIPELINED: [[i32; 4]; 4] =
    [[6, 7, 8, 9], [21, 22, 0, 0], [23, 0, 0, 0], [41, 42, 43, 0]];

/// Tokens of four submissions made before any is waited for, two of them with writes, and the
/// number of channel rebuilds.
pub(crate) fn pipelined(device: &dyn Device) -> ([[i32; 4]; 4], u64) {
    let mut s = Session::new(device);
    s.start(5);
    let first = s.submit(4);
    s.start(90);
    s.start(20);
    let second = s.submit(2);
    let x = s.x();
    for (at, value) in [(0, 1.0), (1, 2.0)] {
        s.instance.write(s.copy, x, at, Data::F32(&[value])).unwrap();
        s.instance.submit(s.copy, 1).unwrap();
    }
    let third = s.submit(1);
    s.start(40);
    let fourth = s.submit(3);
    s.instance.wait(fourth).unwrap();
    assert_eq!(s.copied()[..3], [1.0, 2.0, 0.0]);
    let tokens = [first, second, third, fourth].map(|ticket| {
        let mut tokens = [0; 4];
        for (step, token) in (0..ticket.steps).zip(&mut tokens) {
            *token = s.token(ticket, step);
        }
        tokens
    });
    (tokens, s.instance.activity().rebuilds)
}

/// Staged writes are limited in number and total size.
fn staged_writes_are_limited(device: &dyn Device) {
    let mut s = Session::new(device);
    let x = s.x();
    let one = |s: &mut Session, at: usize, value: f32| {
        s.instance.write(s.copy, x, at, Data::F32(&[value]))
    };
    // A write takes effect at once while no submission is in flight.
    for at in 0..2 * STAGED_WRITES {
        one(&mut s, at, 1.0).unwrap();
    }
    s.instance.submit(s.copy, 1).unwrap();
    for at in 0..STAGED_WRITES {
        one(&mut s, at, 2.0).unwrap();
    }
    refused(one(&mut s, STAGED_WRITES, 2.0));
    let second = s.instance.submit(s.copy, 1).unwrap();
    let all = [3.0; WIDTH];
    s.instance.write(s.copy, x, 0, Data::F32(&all)).unwrap();
    refused(one(&mut s, 0, 4.0));
    s.instance.wait(second).unwrap();
    let copied = s.copied();
    assert!(copied[..STAGED_WRITES].iter().all(|&value| value == 2.0), "{copied:?}");
    assert!(copied[STAGED_WRITES..2 * STAGED_WRITES].iter().all(|&value| value == 1.0));
    // A write staged for a submission that was never made precedes later writes.
    one(&mut s, 1, 5.0).unwrap();
    let third = s.instance.submit(s.copy, 1).unwrap();
    s.instance.wait(third).unwrap();
    assert_eq!(s.copied()[..3], [3.0, 5.0, 3.0]);
}

/// Tokens of a ticket can be read until the ring overwrites them.
fn tickets_give_their_own_tokens(device: &dyn Device) {
    let mut s = Session::new(device);
    s.start(0);
    let first = s.submit(2);
    s.instance.wait(first).unwrap();
    refused(s.instance.tokens(first, 2, &mut [0]));
    refused(s.instance.tokens(first, 0, &mut []));
    refused(s.instance.tokens(first, 0, &mut [0, 0]));
    s.start(50);
    let second = s.submit(3);
    assert_eq!([s.token(first, 0), s.token(first, 1)], [1, 2]);
    s.instance.wait(second).unwrap();
    assert_eq!([s.token(first, 1), s.token(second, 0), s.token(second, 2)], [2, 51, 53]);
    // Fills the ring: its last entry belongs to this submission.
    let third = s.submit(RING_STEPS - 4);
    refused(s.instance.tokens(first, 0, &mut [0]));
    assert_eq!([s.token(first, 1), s.token(second, 0)], [2, 51]);
    // Submitting is enough to overwrite tokens.
    let fourth = s.submit(1);
    refused(s.instance.tokens(first, 1, &mut [0]));
    assert_eq!(s.token(second, 0), 51);
    s.instance.wait(fourth).unwrap();
    let last = 53 + RING_STEPS as i32 - 4;
    let after = |count: i32| count % VOCABULARY as i32;
    assert_eq!(s.token(third, RING_STEPS - 5), after(last));
    assert_eq!(s.token(fourth, 0), after(last + 1));
    // A plan without sampling.
    let copy = s.instance.submit(s.copy, 1).unwrap();
    s.instance.wait(copy).unwrap();
    s.instance.tokens(copy, 0, &mut []).unwrap();
    refused(s.instance.tokens(copy, 0, &mut [0]));
}

/// A profile times every step and counts as two steps of the plan.
fn a_profile_is_two_steps(device: &dyn Device) {
    let mut s = Session::new(device);
    s.start(10);
    let before = s.submit(1);
    s.instance.wait(before).unwrap();
    let profile = s.instance.profile(s.decode).unwrap();
    let plan = &s.plans[0];
    assert!(!profile.whole.is_zero() && !profile.timings.is_empty());
    assert!(profile.timings.iter().any(|timing| timing.nanoseconds > 0), "{profile:?}");
    assert!(profile.timings.is_sorted_by_key(|timing| timing.step));
    for timing in &profile.timings {
        assert_eq!(timing.label, plan.steps[timing.step].label);
        assert!(!timing.kernel.is_empty());
    }
    for (number, step) in plan.steps.iter().enumerate() {
        assert!(profile.timings.iter().any(|timing| timing.step == number), "{}", step.label);
    }
    let after = s.submit(2);
    s.instance.wait(after).unwrap();
    assert_eq!([s.token(before, 0), s.token(after, 0), s.token(after, 1)], [11, 14, 15]);
    refused(s.instance.profile(Prepared(7)));
}

/// One token's embedding is NaN: sampling it is valid, its own step samples no token, and the next
/// step, without input token, is zero.
fn logits_that_are_not_finite_give_no_token(device: &dyn Device) {
    for odd in [[0x00, 0x7e], [0x00, 0x7c], [0x00, 0xfc]] {
        let mut s = Session::with(device, |weight| {
            let mut bytes = one_hot(weight);
            if weight == "embedding" {
                bytes[2 * (40 * WIDTH + 7)..][..2].copy_from_slice(&odd);
            }
            bytes
        });
        s.start(38);
        let ticket = s.submit(5);
        s.instance.wait(ticket).unwrap();
        let tokens: Vec<i32> = (0..5).map(|step| s.token(ticket, step)).collect();
        assert_eq!(tokens, [39, 40, NOT_FINITE.cast_signed(), 0, 1], "{odd:x?}");
    }
}

/// Number of rows of the sampling test.
const ROWS: usize = 10;
/// Words of a row's logit edits.
const WORDS: usize = Adjustment::words(VOCABULARY);

/// A plan that samples from given logits.
fn choices(fusions: Fusions) -> Plan {
    let mut g = Graph::new();
    let mut mailbox =
        |name: &str, dtype, shape: &[usize]| g.source(Class::Mailbox, name, dtype, shape).unwrap();
    let logits_in = mailbox("logits", DType::F32, &[ROWS, VOCABULARY]);
    let parameters = SampleInputs {
        temperature: mailbox("temperature", DType::F32, &[ROWS]),
        top_k: mailbox("top_k", DType::I32, &[ROWS]),
        top_p: mailbox("top_p", DType::F32, &[ROWS]),
        min_p: mailbox("min_p", DType::F32, &[ROWS]),
        seed: mailbox("seed", DType::I32, &[ROWS, 2]),
        positions: mailbox("positions", DType::I32, &[ROWS]),
        adjustments: Some(mailbox("adjustments", DType::I32, &[ROWS, WORDS])),
    };
    g.at("sample");
    let sampled = g.sample(logits_in, parameters).unwrap();
    g.output("sampled", sampled);
    let bucket = Bucket { batch: ROWS, chunk: 1, context: 16, outputs: Outputs::Last };
    fuse(&g.lower(bucket).unwrap(), fusions)
}

/// Tokens of the rows of [`choices`] for the given mailboxes.
fn chosen(
    instance: &mut dyn Instance,
    plan: &Plan,
    prepared: Prepared,
    writes: &[(&str, usize, Data<'_>)],
) -> [i32; ROWS] {
    for &(name, at, data) in writes {
        let mailbox = plan.find(Class::Mailbox, name).unwrap();
        instance.write(prepared, mailbox, at, data).unwrap();
    }
    let ticket = instance.submit(prepared, 1).unwrap();
    instance.wait(ticket).unwrap();
    let mut tokens = [0; ROWS];
    instance.tokens(ticket, 0, &mut tokens).unwrap();
    tokens
}

/// Finite and non-finite rows of logits side by side, with every kind of sampling.
fn a_row_that_is_not_finite_does_not_affect_others(device: &dyn Device) {
    const NONE: i32 = NOT_FINITE.cast_signed();
    let (nan, infinity) = (f32::NAN, f32::INFINITY);
    // Logits other than -1, and the expected token. At most one logit of a row is far above the
    // others.
    let rows: [(&[(usize, f32)], i32); ROWS] = [
        (&[(3, 90.0)], 3),
        (&[(0, nan), (3, 90.0)], NONE),
        (&[(VOCABULARY - 1, -nan), (3, 90.0)], NONE),
        (&[(50, 90.0), (7, -infinity), (95, -infinity)], 50),
        (&[(20, infinity), (3, 90.0)], NONE),
        (&[(20, infinity), (21, nan), (22, -infinity)], NONE),
        (&[(VOCABULARY - 1, 90.0)], VOCABULARY as i32 - 1),
        (&[(64, nan)], NONE),
        (&[(9, f32::MAX)], 9),
        (&[], NONE),
    ];
    let logits = rows.map(|(entries, _)| {
        let mut row = [if entries.is_empty() { -infinity } else { -1.0 }; VOCABULARY];
        entries.iter().for_each(|&(at, value)| row[at] = value);
        row
    });
    let plans = [choices(device.fusions())];
    let request = Request { weights: &[], states: &[], plans: &plans, choices: None };
    let mut instance = device.open(&request).unwrap();
    let prepared = instance.prepare(&plans[0]).unwrap();
    for (temperature, top_k, top_p) in
        [(0.0, 0, 1.0), (1.0, 0, 1.0), (1.0, 5, 1.0), (1.0, 0, 0.9), (1.0, 5, 0.9), (1e-40, 0, 1.0)]
    {
        let writes = [
            ("logits", 0, Data::F32(logits.as_flattened())),
            ("temperature", 0, Data::F32(&[temperature; ROWS])),
            ("top_k", 0, Data::I32(&[top_k; ROWS])),
            ("top_p", 0, Data::F32(&[top_p; ROWS])),
            ("min_p", 0, Data::F32(&[-infinity; ROWS])),
        ];
        let tokens = chosen(&mut *instance, &plans[0], prepared, &writes);
        let how = format!("temperature {temperature}, top_k {top_k}, top_p {top_p}");
        assert_eq!(tokens, rows.map(|(_, token)| token), "{how}");
    }
}

/// Rows with and without logit edits, compared with their definition.
fn logit_edits_match_their_definition(device: &dyn Device) {
    let plans = [choices(device.fusions())];
    let request = Request { weights: &[], states: &[], plans: &plans, choices: None };
    let mut instance = device.open(&request).unwrap();
    let prepared = instance.prepare(&plans[0]).unwrap();
    let (mut changed, mut cut) = (0, 0);
    for case in 0..24 {
        let bits =
            |row: usize, what: u32, i: usize| philox([i as u32, row as u32, what, case], 26)[0];
        let unit = |row, what, i| (bits(row, what, i) >> 8) as f32 / 16_777_216.0;
        let pick = |row, what, of: &[f32]| of[bits(row, what, 0) as usize % of.len()];
        let mut logits = [[0.0; VOCABULARY]; ROWS];
        for (row, logits) in logits.iter_mut().enumerate() {
            logits.iter_mut().enumerate().for_each(|(i, l)| *l = (unit(row, 0, i) - 0.5) * 12.0);
            if bits(row, 1, 0) % 8 == 0 {
                logits[bits(row, 1, 1) as usize % VOCABULARY] =
                    pick(row, 1, &[f32::NAN, -0.0, f32::MAX]);
            }
        }
        let sampling: [Sampling; ROWS] = std::array::from_fn(|row| Sampling {
            temperature: pick(row, 2, &[0.0, 0.5, 1.0, 2.0]),
            top_k: pick(row, 3, &[0.0, 0.0, 3.0, 200.0]) as u32,
            top_p: pick(row, 4, &[1.0, 1.0, 0.9, 0.3]),
            min_p: pick(row, 5, &[f32::NEG_INFINITY, -3.0, -1.0, -0.0, 1.0, f32::NAN]),
            seed: u64::from(bits(row, 6, 0)),
        });
        // Includes ids beyond the vocabulary.
        let edits: [Vec<Edit>; ROWS] = std::array::from_fn(|row| {
            let count = bits(row, 7, 0) as usize % 3 * 20;
            let first = bits(row, 7, 1);
            let edit = |i: usize| {
                let id = first.wrapping_add(5 * i as u32) % (VOCABULARY as u32 + 40);
                let factor = [1.0, 1.3][i % 2];
                sample::edit(id, (unit(row, 8, i) - 0.5) * 9.0, factor, unit(row, 9, i) * 4.0)
            };
            (0..count).map(edit).collect()
        });
        let masks: [Vec<i32>; ROWS] = std::array::from_fn(|row| {
            let word = |i| bits(row, 10, i).cast_signed() & bits(row, 11, i).cast_signed();
            (0..VOCABULARY.div_ceil(32)).map(word).collect()
        });
        let adjustments: [Adjustment<'_>; ROWS] = std::array::from_fn(|row| {
            let mask = (bits(row, 12, 0) % 2 == 0).then_some(&masks[row][..]);
            Adjustment { edits: &edits[row], mask }
        });
        let headers = adjustments.map(|adjustment| adjustment.header());
        let seeds = sampling.map(|s| [s.seed as i32, (s.seed >> 32) as i32]);
        let positions: [i32; ROWS] = std::array::from_fn(|row| (row + 7 * case as usize) as i32);
        let (temperature, top_p) = (sampling.map(|s| s.temperature), sampling.map(|s| s.top_p));
        let (top_k, min_p) = (sampling.map(|s| s.top_k as i32), sampling.map(|s| s.min_p));
        let mut writes = vec![
            ("logits", 0, Data::F32(logits.as_flattened())),
            ("temperature", 0, Data::F32(&temperature)),
            ("top_k", 0, Data::I32(&top_k)),
            ("top_p", 0, Data::F32(&top_p)),
            ("min_p", 0, Data::F32(&min_p)),
            ("seed", 0, Data::I32(seeds.as_flattened())),
            ("positions", 0, Data::I32(&positions)),
        ];
        for (row, (adjustment, header)) in adjustments.iter().zip(&headers).enumerate() {
            writes.push(("adjustments", row * WORDS, Data::I32(header)));
            let parts = adjustment.parts(VOCABULARY);
            writes.extend(
                parts.map(|(at, words)| ("adjustments", row * WORDS + at, Data::I32(words))),
            );
        }
        let tokens = chosen(&mut *instance, &plans[0], prepared, &writes);
        for row in 0..ROWS {
            let choose = |logits: &[f32], sampling| {
                sample::choose(logits, sampling, positions[row].cast_unsigned(), &mut Vec::new())
            };
            let mut adjusted = logits[row];
            adjustments[row].apply(&mut adjusted);
            let want = choose(&adjusted, sampling[row]);
            let how =
                format!("case {case}, row {row}: {:?}, {:?}", sampling[row], adjustments[row]);
            assert_eq!(tokens[row].cast_unsigned(), want, "{how}");
            changed += usize::from(want != choose(&logits[row], sampling[row]));
            let all = Sampling { min_p: f32::NEG_INFINITY, ..sampling[row] };
            cut += usize::from(want != choose(&adjusted, all));
        }
    }
    assert!(changed > 60 && cut > 10, "{changed} choices changed, {cut} were cut");
}

/// Blocks of a state that is no KV cache, and a plan with fused steps for a device without any.
fn unsupported_errors_name_the_device(device: &dyn Device) {
    let other = if device.fusions() == Fusions::NONE { Fusions::ALL } else { Fusions::NONE };
    let plans = plans(other);
    let weights = weights(&plans);
    let state = Buffer {
        name: "blocks".into(),
        class: Class::State,
        dtype: DType::Q6_K,
        shape: vec![1, 256],
    };
    let states = std::slice::from_ref(&state);
    let request = Request { weights: &weights, states, plans: &plans, choices: None };
    let prepared = device.open(&request).and_then(|mut instance| {
        for weight in &weights {
            instance.upload(&weight.name, &one_hot(&weight.name), &|_| {})?;
        }
        instance.prepare(&plans[0])
    });
    match prepared {
        Err(Error::Unsupported { device: name, .. }) => assert_eq!(name, device.info().name),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("{} takes what it does not know", device.info().name),
    }
}
