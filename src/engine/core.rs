//! A model loaded on a device: its prepared plans, and the two things they do, evaluating a chunk
//! of a prompt and decoding one token for each of several sequences. No queue, no text, no policy.

use std::sync::Arc;
use std::time::Duration;

use super::pulse::Pulse;
use super::tuning::bench::{Stopwatch, WallClock};
use super::tuning::counted::Counted;
use super::tuning::{self, Tuning, pace::Pace};
use super::{ModelInfo, Stream, Text};
use device::tune::report::{Progress, Report, Spec};
use device::tune::{Case, Store};
use device::{Activity, Data, Device, Error, Instance, Prepared, Ticket};
use model::{KvLayout, Model, ports};
use plan::sample::Sampling;
use plan::{Bucket, BufferId, Class, Cost, Outputs, Plan, fuse};

/// Rows of the bucket that gives logits for every row: enough to keep the weights' cost shared,
/// few enough that a large vocabulary's logits stay small.
const ALL_LOGITS_ROWS: usize = 16;

/// What one sequence contributes to a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) slot: u32,
    pub(super) token: u32,
    pub(super) position: u32,
    pub(super) sampling: Sampling,
}

const PADDING: Row = Row { slot: u32::MAX, token: 0, position: 0, sampling: Sampling::GREEDY };
/// Rows of the smallest bucket for the last chunk of a prompt: as many as a GPU's products take at
/// once.
const SHORTEST_CHUNK: usize = 8;

/// A loaded model. A bench gets it to itself, see [`super::Handle::exclusive`].
pub struct Core {
    info: ModelInfo,
    text: Arc<Text>,
    model: Model,
    device: Arc<dyn Device>,
    instance: Box<dyn Instance>,
    layout: KvLayout,
    entries: Vec<Entry>,
    sequences: Vec<Sequence>,
    scratch: Scratch,
    /// What of the plans can be tuned.
    cases: Vec<Case>,
    tuning: Tuning,
    steps: u64,
    pulse: Pulse,
}

/// A sequence of the bench interface.
#[derive(Clone, Copy, Debug, Default)]
struct Sequence {
    length: usize,
    pending: u32,
}

/// A prepared plan and what its mailboxes hold.
struct Entry {
    plan: Plan,
    prepared: Prepared,
    ports: Ports,
    /// Rows as the device has them now, for decode plans, which advance them by themselves.
    rows: Vec<Row>,
    ticket: Option<Ticket>,
}

#[derive(Clone, Copy)]
struct Ports {
    tokens: Option<BufferId>,
    positions: Option<BufferId>,
    slots: Option<BufferId>,
    logit_rows: Option<BufferId>,
    temperature: Option<BufferId>,
    top_k: Option<BufferId>,
    top_p: Option<BufferId>,
    seed: Option<BufferId>,
    logits: Option<BufferId>,
}

/// Staging for mailbox writes, reserved once.
#[derive(Default)]
struct Scratch {
    ints: Vec<i32>,
    floats: Vec<f32>,
    sampled: Vec<i32>,
    rows: Vec<Row>,
    tokens: Vec<u32>,
}

/// The buckets a model is prepared for, before fusion. The last chunk of a prompt has any length:
/// a device that computes padding gets buckets of half the size, and half of that, so that a short
/// prompt is a short step.
pub(super) fn buckets(layout: KvLayout, chunk: usize, skips_padding: bool) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = std::iter::successors(Some(1), |b| Some(b * 2))
        .take_while(|b| *b < layout.slots)
        .chain([layout.slots])
        .map(|batch| Bucket::decode(batch, layout.context))
        .collect();
    let mut prefill = |rows: usize, outputs| {
        // A chunk of one row would be a decode step, which advances its own mailboxes.
        buckets.push(Bucket::prefill(rows.max(2), layout.context, outputs));
    };
    prefill(chunk, Outputs::None);
    prefill(chunk.min(ALL_LOGITS_ROWS), Outputs::All);
    let halves = std::iter::successors(Some(chunk), |rows| Some(rows.div_ceil(2)));
    let smaller = halves.skip(1).take_while(|rows| !skips_padding && *rows >= SHORTEST_CHUNK);
    for rows in std::iter::once(chunk).chain(smaller) {
        prefill(rows, Outputs::Last);
    }
    buckets
}

/// What [`Core::new`] is made of.
pub(super) struct Parts {
    pub(super) info: ModelInfo,
    pub(super) text: Arc<Text>,
    pub(super) model: Model,
    pub(super) device: Arc<dyn Device>,
    pub(super) instance: Box<dyn Instance>,
    pub(super) layout: KvLayout,
    pub(super) plans: Vec<Plan>,
    pub(super) pulse: Pulse,
    /// What of them can be tuned, and how it is to be.
    pub(super) tuned: (Vec<Case>, Tuning),
}

impl Core {
    pub(super) fn new(parts: Parts) -> Result<Self, Error> {
        let Parts { info, text, model, device, mut instance, layout, plans, pulse, tuned } = parts;
        let (cases, tuning) = tuned;
        let prepare = |plan: Plan| {
            let prepared = instance.prepare(&plan)?;
            pulse.beat();
            let mailbox = |name| plan.find(Class::Mailbox, name);
            let ports = Ports {
                tokens: mailbox(ports::TOKENS),
                positions: mailbox(ports::POSITIONS),
                slots: mailbox(ports::SLOTS),
                logit_rows: mailbox(ports::LOGIT_ROWS),
                temperature: mailbox(ports::TEMPERATURE),
                top_k: mailbox(ports::TOP_K),
                top_p: mailbox(ports::TOP_P),
                seed: mailbox(ports::SEED),
                logits: plan.find(Class::Output, ports::LOGITS),
            };
            let rows = Vec::with_capacity(plan.bucket.rows());
            Ok(Entry { plan, prepared, ports, rows, ticket: None })
        };
        let entries = plans.into_iter().map(prepare).collect::<Result<Vec<Entry>, Error>>()?;
        let widest = entries.iter().map(|e| e.plan.bucket.rows()).max().unwrap_or(1);
        let scratch = Scratch {
            ints: Vec::with_capacity(2 * widest),
            floats: Vec::with_capacity(widest),
            sampled: Vec::with_capacity(widest),
            rows: Vec::with_capacity(widest),
            tokens: Vec::with_capacity(widest),
        };
        let sequences = vec![Sequence::default(); layout.slots];
        Ok(Self {
            info,
            text,
            model,
            device,
            instance,
            layout,
            entries,
            sequences,
            scratch,
            cases,
            tuning,
            steps: 0,
            pulse,
        })
    }

    /// Records what the load took.
    pub(super) fn finish_load(&mut self, took: Duration, peak_resident: u64) {
        let step = self.cost(Bucket::decode(1, 1));
        self.info.step_bytes = step.map_or(0, |cost| cost.weight_bytes);
        self.info.load_time = took;
        self.info.memory.peak_resident = peak_resident;
    }

    /// The loaded model.
    #[must_use]
    pub const fn model(&self) -> &ModelInfo {
        &self.info
    }

    pub(super) const fn text(&self) -> &Arc<Text> {
        &self.text
    }

    /// Sequences that fit at once.
    #[must_use]
    pub const fn slots(&self) -> usize {
        self.layout.slots
    }

    /// Tokens a slot holds.
    #[must_use]
    pub const fn context(&self) -> usize {
        self.layout.context
    }

    /// Entries of the vocabulary.
    #[must_use]
    pub const fn vocabulary(&self) -> usize {
        self.model.hyperparameters().vocabulary
    }

    /// Worker threads of the device.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.device.info().threads
    }

    /// What measures how fast the GPU that holds the model reads its memory; `None` where the device is none.
    ///
    /// # Errors
    /// As [`Stream::open`].
    pub fn stream(&self) -> Option<Result<Stream, Error>> {
        self.device.gpu_memory()?;
        let pulse = &self.pulse;
        Some(Stream::open(&*self.device, &|| pulse.beat()))
    }

    /// What the device has asked of its hardware.
    #[must_use]
    pub fn activity(&self) -> Activity {
        self.instance.activity()
    }

    /// Steps submitted so far.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// The device, and what of the model's plans can be tuned on it and how.
    pub(super) fn tunable(&self) -> (Arc<dyn Device>, &[Case], &Tuning) {
        (Arc::clone(&self.device), &self.cases, &self.tuning)
    }

    /// Searches the best choices for this model on its device, by the machine's clock or by what a simulator
    /// counts, and remembers them for the next load.
    ///
    /// # Errors
    /// [`tuning::Error`].
    pub fn tune(
        &self,
        spec: &Spec,
        pace: &Pace,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Report, tuning::Error> {
        let store = Store::new(&self.tuning.dir);
        let mut watch: Box<dyn Stopwatch> =
            if spec.counted { Box::new(Counted::new()?) } else { Box::new(WallClock::default()) };
        // One sample or one tensor between two beats, however long a candidate takes.
        let pulse = self.pulse.clone();
        pace.listen(move || pulse.beat());
        tuning::run(&*self.device, &self.cases, (&store, spec), pace, &mut *watch, progress)
    }

    /// What one step in a bucket moves and computes, as fused for the device. The bucket's context
    /// is the number of positions attended to.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the bucket does not fit the loaded layout.
    pub fn cost(&self, bucket: Bucket) -> Result<Cost, Error> {
        let layout = KvLayout { slots: self.layout.slots.max(bucket.batch), ..self.layout };
        let plan = self.model.plan(layout, bucket).map_err(|e| Error::Invalid(e.to_string()))?;
        Ok(self.device.cost(&fuse(&plan, self.device.fusions())))
    }

    /// Forgets all sequences of [`Core::prefill`].
    pub fn reset(&mut self) {
        self.sequences.fill(Sequence::default());
    }

    /// Tokens in a slot's sequence.
    #[must_use]
    pub fn length(&self, slot: usize) -> usize {
        self.sequences.get(slot).map_or(0, |s| s.length)
    }

    /// Appends tokens to a slot's sequence and keeps the greedily sampled next token as pending.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the slot does not exist or overflows, else the device's.
    pub fn prefill(&mut self, slot: usize, tokens: &[u32]) -> Result<(), Error> {
        let Sequence { length, .. } = self.sequence(slot)?;
        self.check_room(slot, length, tokens.len())?;
        let mut at = length;
        let mut rest = tokens;
        while !rest.is_empty() {
            let last = rest.len() <= self.chunk();
            let (chunk, tail) = rest.split_at(rest.len().min(self.chunk()));
            let outputs = if last { Outputs::Last } else { Outputs::None };
            let start = Row {
                slot: slot as u32,
                token: 0,
                position: at as u32,
                sampling: Sampling::GREEDY,
            };
            let pending = self.evaluate(start, chunk, outputs)?;
            at += chunk.len();
            rest = tail;
            self.sequences[slot] = Sequence { length: at, pending: pending.unwrap_or(0) };
        }
        Ok(())
    }

    /// Decodes `steps` tokens greedily for each of the first `slots` sequences; tokens that would
    /// end a generation do not.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a sequence does not exist or overflows, else the device's.
    pub fn decode(&mut self, slots: usize, steps: u32) -> Result<(), Error> {
        for slot in 0..slots {
            let length = self.sequence(slot)?.length;
            self.check_room(slot, length, steps as usize)?;
        }
        let mut rows = std::mem::take(&mut self.scratch.rows);
        let mut tokens = std::mem::take(&mut self.scratch.tokens);
        let mut result = Ok(());
        for _ in 0..steps {
            rows.clear();
            rows.extend(self.sequences[..slots].iter().zip(0u32..).map(|(s, slot)| Row {
                slot,
                token: s.pending,
                position: s.length as u32,
                sampling: Sampling::GREEDY,
            }));
            result = self.advance(&rows, &mut tokens);
            if result.is_err() {
                break;
            }
            for (sequence, &token) in self.sequences.iter_mut().zip(&tokens) {
                sequence.length += 1;
                sequence.pending = token;
            }
        }
        self.scratch.rows = rows;
        self.scratch.tokens = tokens;
        result
    }

    fn sequence(&self, slot: usize) -> Result<Sequence, Error> {
        let none = || Error::Invalid(format!("slot {slot} of {}", self.layout.slots));
        self.sequences.get(slot).copied().ok_or_else(none)
    }

    fn check_room(&self, slot: usize, length: usize, more: usize) -> Result<(), Error> {
        if length + more <= self.layout.context {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "slot {slot} holds {length} tokens, {more} more exceed its {}",
            self.layout.context
        )))
    }

    /// Rows of the largest prefill chunk.
    #[must_use]
    pub fn chunk(&self) -> usize {
        self.bucket_rows(Outputs::None)
    }

    /// Rows of the largest chunk with those logits.
    pub(super) fn bucket_rows(&self, outputs: Outputs) -> usize {
        let chunks = self.entries.iter().map(|e| e.plan.bucket);
        let chunks = chunks.filter(|b| b.outputs == outputs && b.chunk > 1).map(|b| b.chunk);
        chunks.max().unwrap_or(1)
    }

    /// The narrowest chunk with those logits that holds so many rows.
    fn prefill_entry(&self, outputs: Outputs, rows: usize) -> Option<usize> {
        let fits = |e: &(usize, &Entry)| {
            let bucket = e.1.plan.bucket;
            bucket.chunk > 1 && bucket.outputs == outputs && (1..=bucket.chunk).contains(&rows)
        };
        let entries = self.entries.iter().enumerate().filter(fits);
        entries.min_by_key(|(_, e)| e.plan.bucket.chunk).map(|(i, _)| i)
    }

    fn decode_entry(&self, rows: usize) -> Option<usize> {
        let fits =
            |e: &&(usize, &Entry)| e.1.plan.bucket.chunk == 1 && e.1.plan.bucket.batch >= rows;
        self.entries
            .iter()
            .enumerate()
            .filter(|e| fits(&e))
            .min_by_key(|(_, e)| e.plan.bucket.batch)
            .map(|(i, _)| i)
    }

    /// Evaluates consecutive tokens of one sequence, from `start.position`, and gives the token
    /// sampled after the last one unless `outputs` is none.
    pub(super) fn evaluate(
        &mut self,
        start: Row,
        tokens: &[u32],
        outputs: Outputs,
    ) -> Result<Option<u32>, Error> {
        let Some(index) = self.prefill_entry(outputs, tokens.len()) else {
            return Err(Error::Invalid(format!(
                "a chunk of {} tokens with {outputs:?} logits",
                tokens.len()
            )));
        };
        let mut rows = std::mem::take(&mut self.scratch.rows);
        rows.clear();
        rows.extend(tokens.iter().zip(start.position..).map(|(&token, position)| Row {
            token,
            position,
            ..start
        }));
        let written = self.write_rows(index, &rows);
        self.scratch.rows = rows;
        written?;
        let sampled_row = match outputs {
            Outputs::None => None,
            Outputs::Last => Some(0),
            Outputs::All => Some(tokens.len() - 1),
        };
        self.run(index)?;
        Ok(sampled_row.map(|row| self.scratch.sampled[row] as u32))
    }

    /// Decodes one token for each row; `tokens` receives them in the same order.
    pub(super) fn advance(&mut self, rows: &[Row], tokens: &mut Vec<u32>) -> Result<(), Error> {
        let Some(index) = self.decode_entry(rows.len()).filter(|_| !rows.is_empty()) else {
            return Err(Error::Invalid(format!(
                "{} rows, 1 to {} fit",
                rows.len(),
                self.layout.slots
            )));
        };
        if self.entries[index].rows != rows {
            self.write_rows(index, rows)?;
        }
        self.run(index)?;
        tokens.clear();
        tokens.extend(self.scratch.sampled[..rows.len()].iter().map(|&t| t as u32));
        let entry = &mut self.entries[index];
        entry.rows.clear();
        entry.rows.extend(rows.iter().zip(&*tokens).map(|(row, &token)| Row {
            token,
            position: row.position + 1,
            ..*row
        }));
        Ok(())
    }

    /// Logits of one row of the last step with that shape: a decode step of `rows` rows, or a chunk.
    pub(super) fn logits(&self, of: LogitsOf, row: usize, out: &mut [f32]) -> Result<(), Error> {
        let index = match of {
            LogitsOf::Decode { rows } => self.decode_entry(rows),
            LogitsOf::Chunk { outputs, rows } => self.prefill_entry(outputs, rows),
        };
        let entry = index.map(|i| &self.entries[i]);
        let Some((entry, logits)) = entry.and_then(|e| Some((e, e.ports.logits?))) else {
            return Err(Error::Invalid(format!("no logits of {of:?}")));
        };
        self.instance.read(entry.prepared, logits, row * out.len(), out)
    }

    fn run(&mut self, index: usize) -> Result<(), Error> {
        let entry = &mut self.entries[index];
        // Whatever happens now, the mailboxes no longer hold what `rows` says.
        entry.rows.clear();
        let ticket = self.instance.submit(entry.prepared, 1)?;
        self.instance.wait(ticket)?;
        self.pulse.beat();
        entry.ticket = Some(ticket);
        self.steps += 1;
        self.scratch.sampled.resize(entry.plan.bucket.logit_rows(), 0);
        if entry.plan.bucket.logit_rows() > 0 {
            self.instance.tokens(ticket, 0, &mut self.scratch.sampled)?;
        }
        Ok(())
    }

    /// Fills the mailboxes, padding up to the bucket.
    fn write_rows(&mut self, index: usize, rows: &[Row]) -> Result<(), Error> {
        let entry = &mut self.entries[index];
        entry.rows.clear();
        let bucket = entry.plan.bucket;
        let (all, ports) = (bucket.rows(), entry.ports);
        let mut writer = Writer {
            instance: &mut *self.instance,
            prepared: entry.prepared,
            scratch: &mut self.scratch,
        };
        let padded = |n: usize| rows.iter().copied().chain(std::iter::repeat(PADDING)).take(n);
        writer.ints(ports.tokens, padded(all).map(|r| r.token as i32))?;
        writer.ints(ports.positions, padded(all).map(|r| r.position as i32))?;
        writer.ints(ports.slots, padded(all).map(|r| r.slot as i32))?;
        writer.ints(ports.logit_rows, std::iter::once(rows.len() as i32 - 1))?;
        // A chunk samples after its last row only; the other rows of logits stay greedy.
        let last = rows.len() - 1;
        let sampling = |i: usize, row: Row| {
            if bucket.outputs == Outputs::All && bucket.chunk > 1 && i != last {
                Sampling::GREEDY
            } else {
                row.sampling
            }
        };
        let sampled = || padded(bucket.logit_rows()).enumerate().map(|(i, row)| sampling(i, row));
        writer.floats(ports.temperature, sampled().map(|s| s.temperature))?;
        writer.floats(ports.top_p, sampled().map(|s| s.top_p))?;
        writer.ints(ports.top_k, sampled().map(|s| s.top_k as i32))?;
        writer.ints(ports.seed, sampled().flat_map(|s| [s.seed as i32, (s.seed >> 32) as i32]))
    }
}

/// Which step's logits are meant.
#[derive(Clone, Copy, Debug)]
pub(super) enum LogitsOf {
    /// A decode step of that many rows.
    Decode {
        /// Rows of the step.
        rows: usize,
    },
    /// A prefill chunk of so many rows with those outputs.
    Chunk {
        /// For which rows there are logits.
        outputs: Outputs,
        /// Rows evaluated.
        rows: usize,
    },
}

struct Writer<'a> {
    instance: &'a mut dyn Instance,
    prepared: Prepared,
    scratch: &'a mut Scratch,
}

impl Writer<'_> {
    fn ints(
        &mut self,
        mailbox: Option<BufferId>,
        values: impl Iterator<Item = i32>,
    ) -> Result<(), Error> {
        let Some(mailbox) = mailbox else { return Ok(()) };
        self.scratch.ints.clear();
        self.scratch.ints.extend(values);
        self.instance.write(self.prepared, mailbox, 0, Data::I32(&self.scratch.ints))
    }

    fn floats(
        &mut self,
        mailbox: Option<BufferId>,
        values: impl Iterator<Item = f32>,
    ) -> Result<(), Error> {
        let Some(mailbox) = mailbox else { return Ok(()) };
        self.scratch.floats.clear();
        self.scratch.floats.extend(values);
        self.instance.write(self.prepared, mailbox, 0, Data::F32(&self.scratch.floats))
    }
}
