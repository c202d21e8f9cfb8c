//! The CPU device through the device interface: equal bits on every instruction set, several steps in one submission,
//! refused requests. (`invariance` covers chunks, threads and batches, `accuracy` llama.cpp.)

use std::num::NonZeroUsize;

use device::cpu::{Cpu, Isa};
use device::{Data, Device, Error, Request};
use model::{KvLayout, Model, ports};
use orind_testing::session::Session;
use orind_testing::tiny;
use plan::sample::Adjustment;
use plan::{Bucket, Outputs, fuse};

const LAYOUT: KvLayout = KvLayout { slots: 3, context: 160, ring: None };

fn model(name: &str) -> Model {
    Model::open(tiny(name)).unwrap()
}

fn cpu(isa: Isa, threads: usize) -> Cpu {
    Cpu::new(isa, NonZeroUsize::new(threads).unwrap())
}

fn open(device: &Cpu, model: &Model, buckets: &[Bucket]) -> Session {
    Session::new(device, model, LAYOUT, buckets)
}

/// Bits of one row of logits.
fn logits(session: &Session, plan: usize) -> Vec<u32> {
    let logits = session.logits(plan);
    assert!(logits.iter().all(|x| x.is_finite()));
    logits[..session.vocabulary].iter().map(|x| x.to_bits()).collect()
}

/// Evaluates a prompt in chunks of plan 0; returns the last row's logits.
fn prompt(session: &mut Session, tokens: &[i32], slot: i32) -> Vec<u32> {
    let chunk = session.plans[0].0.bucket.rows();
    for (part, at) in tokens.chunks(chunk).zip((0..).step_by(chunk)) {
        let rows: Vec<_> = part.iter().zip(at..).map(|(&t, p)| (t, p, slot)).collect();
        session.load(0, &rows);
        session.run(0, 1);
    }
    logits(session, 0)
}

fn prefill(chunk: usize) -> Bucket {
    match chunk {
        1 => Bucket::decode(1, LAYOUT.context),
        n => Bucket::prefill(n, LAYOUT.context, Outputs::Last),
    }
}

fn tokens(seed: i32, n: i32) -> Vec<i32> {
    (0..n).map(|i| (i * 37 + seed * 101) % 1000).collect()
}

#[test]
fn instruction_sets_change_no_bit() {
    for name in ["tiny-llama-Q6_K", "tiny-qwen3-Q4_K_M", "tiny-llama-f16"] {
        let model = model(name);
        let mut want = None;
        for isa in Isa::available().chain([Isa::modelled()]) {
            let mut session = open(&cpu(isa, 2), &model, &[prefill(19)]);
            let got = prompt(&mut session, &tokens(1, 40), 1);
            assert!(*want.get_or_insert_with(|| got.clone()) == got, "{name}: {isa}");
        }
    }
}

#[test]
fn weight_packings_change_no_bit() {
    for name in ["tiny-llama-Q6_K", "tiny-llama-Q8_0", "tiny-qwen3-Q4_K_M"] {
        let model = model(name);
        let mut want = None;
        for isa in Isa::available() {
            // Other instruction sets have no such parameter.
            let both = [Some(("packing", 16)), Some(("packing", 32))];
            let packings = if isa.packings().len() > 1 { &both[..] } else { &[None] };
            for packing in packings {
                let buckets = [prefill(19), prefill(1)];
                let mut session = Session::tuned(&cpu(isa, 2), &model, LAYOUT, &buckets, *packing);
                let mut got = prompt(&mut session, &tokens(1, 40), 1);
                session.load(1, &[(7, 40, 1)]);
                session.run(1, 1);
                got.extend(logits(&session, 1));
                let want = want.get_or_insert_with(|| got.clone());
                assert!(*want == got, "{name}: {isa}, {packing:?}");
            }
        }
    }
}

#[test]
fn steps_of_a_submission_use_the_sampled_tokens() {
    let model = model("tiny-llama-Q4_K_M");
    let buckets = [prefill(16), Bucket::decode(2, LAYOUT.context)];
    let mut session = open(&cpu(Isa::detect(), 2), &model, &buckets);
    let sampling = |session: &mut Session| {
        session.write(1, ports::TEMPERATURE, Data::F32(&[0.0, 1.5]));
        session.write(1, ports::TOP_K, Data::I32(&[0, 40]));
        session.write(1, ports::TOP_P, Data::F32(&[1.0, 0.9]));
        session.write(1, ports::MIN_P, Data::F32(&[f32::NEG_INFINITY, -6.0]));
        session.write(1, ports::SEED, Data::I32(&[0, 0, 5, 6]));
    };
    prompt(&mut session, &tokens(3, 20), 0);
    prompt(&mut session, &tokens(3, 20), 1);
    sampling(&mut session);
    session.load(1, &[(5, 20, 0), (5, 20, 1)]);
    let ticket = session.run(1, 12);
    let mut together = [[0; 2]; 12];
    for (step, out) in together.iter_mut().enumerate() {
        session.instance.tokens(ticket, step as u32, out).unwrap();
    }
    let mut last = [5, 5];
    for (step, want) in together.iter().enumerate() {
        session.load(1, &[(last[0], 20 + step as i32, 0), (last[1], 20 + step as i32, 1)]);
        let ticket = session.run(1, 1);
        session.instance.tokens(ticket, 0, &mut last).unwrap();
        assert_eq!(last, *want, "step {step}");
    }
    assert!(together.iter().any(|t| t[0] != t[1]), "the second row is sampled");
}

#[test]
fn invalid_mailbox_values_access_no_other_memory() {
    let model = model("tiny-llama-Q8_0");
    let mut session = open(&cpu(Isa::detect(), 2), &model, &[prefill(1), prefill(8)]);
    let clean = prompt(&mut session, &[1, 2, 3], 1);
    let bad = [i32::MIN, -1, 1 << 20, i32::MAX];
    for bad in bad {
        session.load(0, &[(bad, 1, 0)]);
        session.run(0, 1);
        session.load(0, &[(1, bad, 0)]);
        session.run(0, 1);
        session.load(0, &[(1, 1, bad)]);
        session.run(0, 1);
        session.load(1, &[(1, 0, 0), (2, 1, 0)]);
        session.write(1, ports::LOGIT_ROWS, Data::I32(&[bad]));
        session.run(1, 1);
        // Count of edits, mask, and all their words have the invalid value.
        let vocabulary = model.hyperparameters().vocabulary;
        session.write(1, ports::ADJUSTMENTS, Data::I32(&vec![bad; Adjustment::words(vocabulary)]));
        session.run(1, 1);
        session.write(1, ports::ADJUSTMENTS, Data::I32(&[0, 0]));
    }
    assert!(prompt(&mut session, &[1, 2, 3], 1) == clean);
}

#[test]
fn plans_that_were_not_in_the_request_are_refused() {
    let model = model("tiny-llama-Q8_0");
    let mut session = open(&cpu(Isa::detect(), 2), &model, &[prefill(1)]);
    let i = &mut session.instance;
    let wider = fuse(
        &model.plan(LAYOUT, Bucket::prefill(64, LAYOUT.context, Outputs::Last)).unwrap(),
        Cpu::detect().fusions(),
    );
    assert!(matches!(i.prepare(&wider), Err(Error::Invalid(_))));
    let unfused = model.plan(LAYOUT, prefill(1)).unwrap();
    match i.prepare(&unfused) {
        Err(Error::Unsupported { .. } | Error::Invalid(_)) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_source_that_fails_is_reported_with_its_weight() {
    let model = model("tiny-llama-Q8_0");
    let mut session = open(&cpu(Isa::detect(), 2), &model, &[prefill(1)]);
    for name in ["token_embd.weight", "output_norm.weight"] {
        match session.instance.upload(
            name,
            &|at: u64, _: &mut [u8]| Err(format!("no byte {at}").into()),
            &|_| {},
        ) {
            Err(Error::Weight { weight, source }) => {
                assert_eq!(weight, name);
                assert!(source.to_string().contains("no byte"));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_request_larger_than_memory_is_refused_with_the_numbers() {
    let model = model("tiny-llama-Q8_0");
    let huge = KvLayout { slots: 1 << 20, context: 1 << 20, ring: None };
    let states = model.states(huge);
    let weights: Vec<_> = model.weights().cloned().collect();
    let request = Request { weights: &weights, states: &states, plans: &[], choices: None };
    let need = Cpu::detect().footprint(&request).unwrap();
    match Cpu::detect().open(&request) {
        Err(Error::OutOfMemory { what, need: said, have }) => {
            assert!(said == need.total() && said > have);
            assert!(what.contains(&need.state.to_string()), "{what}");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("opened"),
    }
}
