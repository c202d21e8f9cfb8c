//! Recordings replayed: with new inputs, many of them, interleaved. What one leaves behind, no other
//! may see.

use device::{Data, Device, Instance, Prepared, Request, WeightSource};
use model::{KvLayout, Model, ports};
use plan::{Bucket, Class, Outputs, Plan, fuse};

use super::{devices, model};

const LAYOUT: KvLayout = KvLayout { slots: 4, context: 64 };

struct Source<'a>(&'a Model, &'a str);

impl WeightSource for Source<'_> {
    fn read_at(
        &self,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.0.read_weight(self.1, offset, buf)?)
    }
}

/// Recordings of several buckets over one model.
struct Player {
    instance: Box<dyn Instance>,
    plans: Vec<(Plan, Prepared)>,
    vocabulary: usize,
}

/// A step: which recording, and token, position and slot of each row.
type Play = (usize, Vec<(i32, i32, i32)>);

impl Player {
    fn new(device: &dyn Device, model: &Model, buckets: &[Bucket]) -> Self {
        let plan = |bucket: &Bucket| fuse(&model.plan(LAYOUT, *bucket).unwrap(), device.fusions());
        let plans: Vec<Plan> = buckets.iter().map(plan).collect();
        let weights: Vec<_> = model.weights().cloned().collect();
        let states = model.states(LAYOUT);
        let request = Request { weights: &weights, states: &states, plans: &plans, choices: None };
        let mut instance = device.open(&request).unwrap();
        for weight in &weights {
            instance.upload(&weight.name, &Source(model, &weight.name), &|_| {}).unwrap();
        }
        let prepare = |plan: Plan| {
            let prepared = instance.prepare(&plan).unwrap();
            (plan, prepared)
        };
        let plans = plans.into_iter().map(prepare).collect();
        Self { instance, plans, vocabulary: model.hyperparameters().vocabulary }
    }

    /// Runs a step and gives the bits of all its logits.
    fn play(&mut self, (which, rows): &Play) -> Vec<u32> {
        let (plan, prepared) = &self.plans[*which];
        let column = |f: fn(&(i32, i32, i32)) -> i32| rows.iter().map(f).collect::<Vec<i32>>();
        for (name, values) in [
            (ports::TOKENS, column(|r| r.0)),
            (ports::POSITIONS, column(|r| r.1)),
            (ports::SLOTS, column(|r| r.2)),
            (ports::LOGIT_ROWS, vec![rows.len() as i32 - 1]),
        ] {
            if let Some(mailbox) = plan.find(Class::Mailbox, name) {
                self.instance.write(*prepared, mailbox, 0, Data::I32(&values)).unwrap();
            }
        }
        let ticket = self.instance.submit(*prepared, 1).unwrap();
        self.instance.wait(ticket).unwrap();
        let output = plan.find(Class::Output, ports::LOGITS).unwrap();
        let mut logits = vec![0.0; plan.bucket.logit_rows() * self.vocabulary];
        self.instance.read(*prepared, output, 0, &mut logits).unwrap();
        logits.into_iter().map(f32::to_bits).collect()
    }
}

/// A chunk of a prompt in each of three slots, then decoding of one, two, and three of them.
fn buckets() -> Vec<Bucket> {
    let decode = [1, 2, 3].map(|batch| Bucket::decode(batch, LAYOUT.context));
    std::iter::once(Bucket::prefill(4, LAYOUT.context, Outputs::Last)).chain(decode).collect()
}

fn prompt(slot: i32, seed: i32) -> Play {
    (0, (0..4).map(|i| ((seed * 31 + i * 7) % 200 + 1, i, slot)).collect())
}

#[test]
fn recordings_see_their_own_inputs_and_nothing_else() {
    let model = model("tiny-llama-Q6_K");
    for device in devices() {
        let name = device.info().name;
        let mut player = Player::new(&*device, &model, &buckets());
        // New inputs each time, recordings in turn.
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
        let mixed: Vec<_> = plays.iter().map(|play| player.play(play)).collect();
        // Once more in the same memory: what lies there from before is not seen.
        let again: Vec<_> = plays.iter().map(|play| player.play(play)).collect();
        assert!(mixed == again, "{name}: the second time differs");
        // Each slot by itself, with the recording of one row alone.
        for slot in 0..3 {
            let mut alone = Player::new(&*device, &model, &buckets()[..2]);
            for ((which, rows), mixed) in plays.iter().zip(&mixed) {
                let Some(at) = rows.iter().position(|row| row.2 == slot) else { continue };
                let (play, want): (Play, &[u32]) = if *which == 0 {
                    ((0, rows.clone()), mixed)
                } else {
                    let n = player.vocabulary;
                    ((1, vec![rows[at]]), &mixed[at * n..][..n])
                };
                assert!(alone.play(&play) == want, "{name}: slot {slot}, {play:?}");
            }
        }
    }
}

#[test]
fn a_recorded_step_is_counted_once_and_submitted_once() {
    let model = model("tiny-qwen3-Q8_0");
    let layers = model.hyperparameters().layers as u64;
    for device in devices() {
        let mut player = Player::new(&*device, &model, &buckets());
        player.play(&prompt(0, 1));
        let before = player.instance.activity();
        let ticket = player.instance.submit(player.plans[1].1, 6).unwrap();
        player.instance.wait(ticket).unwrap();
        let after = player.instance.activity();
        let name = device.info().name;
        if name == "cpu" {
            continue;
        }
        assert_eq!(after.submits - before.submits, 6, "{name}");
        assert_eq!(after.launches - before.launches, 6 * (5 * layers + 4), "{name}");
    }
}
