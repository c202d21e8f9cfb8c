//! Fingerprint: one hash over the bits of a model's logits for a fixed set of token sequences. It
//! is the same on every device that follows `docs/numerics.md`, which also describes the set.

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::error::Failure;
use super::measure::bits;
use super::runner::{Row, Runner};
use device::{Device, NUMERICS};
use model::{KvLayout, Model};
use plan::{Bucket, Outputs};

/// Length of the longest prompt, if the model's context allows it.
pub const LONGEST: u32 = 600;

/// Prompt lengths: around the boundaries of position blocks, and in between.
const PROMPTS: [usize; 10] = [1, 2, 7, 31, 32, 33, 64, 100, 257, LONGEST as usize];
/// Tokens decoded after each prompt and with several sequences.
const STEPS: usize = 3;
/// Chunk sizes for one prompt of at most [`CUT`] tokens.
const CHUNKS: [usize; 4] = [512, 64, 33, 2];
const CUT: usize = 100;
/// Numbers of sequences decoded together, and the rows of their plans.
const TOGETHER: [(usize, usize); 2] = [(3, 4), (8, 8)];
/// Rows of the plan with logits for every row.
const ALL: usize = 16;

/// One part of the set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    pub name: String,
    /// Number of rows of logits.
    pub rows: usize,
    pub hash: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fingerprint {
    /// [`device::NUMERICS`]
    pub numerics: u32,
    /// Length of the longest prompt.
    pub longest: usize,
    pub hash: String,
    pub parts: Vec<Part>,
}

/// Returns token `i` of a sequence.
fn token(sequence: usize, i: usize, vocabulary: usize) -> u32 {
    let (s, i) = (sequence as u64, i as u64);
    ((s * 7919 + i * 104_729 + i * i) % vocabulary.max(1) as u64) as u32
}

impl Fingerprint {
    /// Computes the fingerprint of a model on a device, with prompts of at most `longest` tokens.
    /// `report` receives the progress.
    ///
    /// # Errors
    /// [`Failure`]
    pub fn of(
        device: &dyn Device,
        model: &Model,
        longest: usize,
        report: &dyn Fn(&str),
    ) -> Result<Self, Failure> {
        let trained = model.hyperparameters().context;
        let longest = longest.min(trained.saturating_sub(STEPS)).max(1);
        let context = (longest + STEPS).next_multiple_of(64).min(trained);
        report("loading");
        let mut set = Set::new(device, model, context, longest)?;
        for length in PROMPTS {
            if length <= longest {
                set.part(format!("prompt of {length}"), report, |set| set.prompt(length))?;
            }
        }
        for (bucket, chunk) in CHUNKS.into_iter().enumerate() {
            set.part(format!("chunks of {chunk}"), report, |set| set.cut(bucket))?;
        }
        for (i, (sequences, _)) in TOGETHER.into_iter().enumerate() {
            let name = format!("{sequences} sequences");
            set.part(name, report, |set| set.decode_together(Set::TOGETHER + i, sequences))?;
        }
        set.part(format!("{ALL} rows"), report, Set::every_row)?;
        let mut whole = Sha256::new();
        whole.update(format!("orind numerics {NUMERICS}, prompts up to {longest}\n"));
        for Part { name, rows, hash } in &set.parts {
            whole.update(format!("{name}: {rows} rows, {hash}\n"));
        }
        Ok(Self { numerics: NUMERICS, longest, hash: hex(whole), parts: set.parts })
    }
}

/// Returns 128 bits of a hash in hexadecimal.
fn hex(hash: Sha256) -> String {
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// The set while it runs on a device.
struct Set {
    runner: Runner,
    longest: usize,
    vocabulary: usize,
    parts: Vec<Part>,
    /// Hash of the current part.
    hash: Sha256,
    rows: usize,
}

/// Indices of the plans; those of [`CHUNKS`] come first.
impl Set {
    const DECODE: usize = CHUNKS.len();
    const TOGETHER: usize = Self::DECODE + 1;
    const ALL: usize = Self::TOGETHER + TOGETHER.len();

    fn new(
        device: &dyn Device,
        model: &Model,
        context: usize,
        longest: usize,
    ) -> Result<Self, Failure> {
        let prefill = |rows: usize, outputs| Bucket::prefill(rows.min(context), context, outputs);
        let mut buckets = CHUNKS.map(|rows| prefill(rows, Outputs::Last)).to_vec();
        buckets.push(Bucket::decode(1, context));
        buckets.extend(TOGETHER.map(|(_, rows)| Bucket::decode(rows, context)));
        buckets.push(prefill(ALL, Outputs::All));
        let slots = TOGETHER.iter().map(|(sequences, _)| *sequences).max().unwrap_or(1);
        let runner = Runner::new(device, model, KvLayout { slots, context, ring: None }, &buckets)?;
        let vocabulary = model.hyperparameters().vocabulary;
        let (parts, hash) = (Vec::new(), Sha256::new());
        Ok(Self { runner, longest, vocabulary, parts, hash, rows: 0 })
    }

    fn part(
        &mut self,
        name: String,
        report: &dyn Fn(&str),
        run: impl FnOnce(&mut Self) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        report(&name);
        run(self)?;
        let hash = hex(std::mem::take(&mut self.hash));
        self.parts.push(Part { name, rows: std::mem::take(&mut self.rows), hash });
        Ok(())
    }

    /// Adds one row of logits to the hash.
    fn take(&mut self, logits: &[f32]) {
        for &x in logits {
            self.hash.update(bits(x).to_le_bytes());
        }
        self.rows += 1;
    }

    fn tokens(&self, sequence: usize, count: usize) -> Vec<u32> {
        (0..count).map(|i| token(sequence, i, self.vocabulary)).collect()
    }

    /// Evaluates a prompt in the largest chunks, then decodes the next tokens one by one.
    fn prompt(&mut self, length: usize) -> Result<(), Failure> {
        let tokens = self.tokens(0, length + STEPS);
        let (prompt, next) = tokens.split_at(length);
        let logits = self.runner.run(0, 0, 0, prompt)?;
        self.take(&logits);
        for (i, token) in next.iter().enumerate() {
            let logits = self.runner.run(Self::DECODE, 0, length + i, &[*token])?;
            self.take(&logits);
        }
        Ok(())
    }

    /// Evaluates one prompt in chunks; every chunk size must give the same logits.
    fn cut(&mut self, bucket: usize) -> Result<(), Failure> {
        let tokens = self.tokens(1, CUT.min(self.longest));
        let logits = self.runner.run(bucket, 1, 0, &tokens)?;
        self.take(&logits);
        Ok(())
    }

    /// Decodes sequences of different lengths together.
    fn decode_together(&mut self, bucket: usize, sequences: usize) -> Result<(), Failure> {
        let length = |sequence: usize| (3 + 13 * sequence).min(self.longest);
        let lengths: Vec<usize> = (0..sequences).map(length).collect();
        for (slot, &length) in lengths.iter().enumerate() {
            let tokens = self.tokens(slot, length);
            self.runner.run(0, slot as i32, 0, &tokens)?;
        }
        for step in 0..STEPS {
            let row = |(slot, length): (usize, &usize)| Row {
                token: token(slot, length + step, self.vocabulary) as i32,
                position: (length + step) as i32,
                slot: slot as i32,
            };
            let rows: Vec<Row> = lengths.iter().enumerate().map(row).collect();
            for logits in self.runner.step(bucket, &rows)? {
                self.take(&logits);
            }
        }
        Ok(())
    }

    /// Runs a plan with logits for every row.
    fn every_row(&mut self) -> Result<(), Failure> {
        let rows = self.runner.width(Self::ALL).min(self.longest);
        let tokens = self.tokens(2, rows);
        let row =
            |(i, &token): (usize, &u32)| Row { token: token as i32, position: i as i32, slot: 0 };
        let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
        for logits in self.runner.step(Self::ALL, &rows)? {
            self.take(&logits);
        }
        Ok(())
    }
}
