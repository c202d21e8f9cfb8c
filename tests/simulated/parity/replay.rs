//! Replayed recordings: new inputs, many recordings, interleaved, without residue.

use model::KvLayout;
use orind_testing::session::{Row, Session};
use plan::{Bucket, Outputs};

use super::{devices, model};

const LAYOUT: KvLayout = KvLayout { slots: 4, context: 64, ring: None };

/// A step: recording, and token, position and slot of each row.
type Play = (usize, Vec<Row>);

/// Runs a step; returns the bits of all its logits.
fn play(session: &mut Session, (which, rows): &Play) -> Vec<u32> {
    session.load(*which, rows);
    session.run(*which, 1);
    session.logits(*which).into_iter().map(f32::to_bits).collect()
}

/// A prompt's chunk, then decode of one, two, and three rows.
fn buckets() -> Vec<Bucket> {
    let decode = [1, 2, 3].map(|batch| Bucket::decode(batch, LAYOUT.context));
    std::iter::once(Bucket::prefill(4, LAYOUT.context, Outputs::Last)).chain(decode).collect()
}

fn prompt(slot: i32, seed: i32) -> Play {
    (0, (0..4).map(|i| ((seed * 31 + i * 7) % 200 + 1, i, slot)).collect())
}

#[test]
fn recordings_read_only_their_own_inputs() {
    let model = model("tiny-llama-Q6_K");
    for device in devices() {
        let name = device.info().name;
        let mut player = Session::new(&*device, &model, LAYOUT, &buckets());
        // New inputs each time, alternating recordings.
        let plays: Vec<Play> = vec![
            prompt(0, 1),
            prompt(1, 2),
            (1, vec![(9, 4, 0)]),
            prompt(2, 3),
            (2, vec![(11, 4, 1), (12, 4, 2)]),
            (1, vec![(13, 5, 0)]),
            (3, vec![(14, 6, 0), (15, 5, 1), (16, 5, 2)]),
            (2, vec![(17, 7, 0), (18, 6, 2)]),
        ];
        let mixed: Vec<_> = plays.iter().map(|step| play(&mut player, step)).collect();
        // Again in the same memory: old contents have no effect.
        let again: Vec<_> = plays.iter().map(|step| play(&mut player, step)).collect();
        assert!(mixed == again, "{name}: the second time differs");
        // Each slot alone, with the recording of one row.
        for slot in 0..3 {
            let mut alone = Session::new(&*device, &model, LAYOUT, &buckets()[..2]);
            for ((which, rows), mixed) in plays.iter().zip(&mixed) {
                let Some(at) = rows.iter().position(|row| row.2 == slot) else { continue };
                let (step, want): (Play, &[u32]) = if *which == 0 {
                    ((0, rows.clone()), mixed)
                } else {
                    let n = player.vocabulary;
                    ((1, vec![rows[at]]), &mixed[at * n..][..n])
                };
                assert!(play(&mut alone, &step) == want, "{name}: slot {slot}, {step:?}");
            }
        }
    }
}

#[test]
fn a_recorded_step_is_one_submission() {
    let model = model("tiny-qwen3-Q8_0");
    let layers = model.hyperparameters().layers.len() as u64;
    for device in devices() {
        let mut player = Session::new(&*device, &model, LAYOUT, &buckets());
        play(&mut player, &prompt(0, 1));
        let before = player.instance.activity();
        player.run(1, 6);
        let after = player.instance.activity();
        let name = device.info().name;
        if name == "cpu" {
            continue;
        }
        assert_eq!(after.submits - before.submits, 6, "{name}");
        assert_eq!(after.launches - before.launches, 6 * (5 * layers + 4), "{name}");
    }
}
