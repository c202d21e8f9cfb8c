//! A model loaded on a device: its prepared plans, the steps that the device has been given, and what comes
//! out of them. A step evaluates a chunk of a prompt, or decodes one token for each of several sequences.
//! No requests, no text, no policy.
//!
//! Steps run in the order in which they are submitted, and are waited for in that order. A decode plan
//! leaves its tokens and positions where its next step reads them, so that a step can be submitted before
//! the tokens of the one before it are known.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::drafter::Drafter;
use super::drafts::Drafts;
use super::heartbeat::Heartbeat;
use super::loader::Beside;
use super::plans;
use super::provenance::{self, Provenance};
use super::slots::{Division, Slot};
use super::tuning::{self, Cases, Tuning, pace::Pace};
use super::{GpuBandwidth, Light, LoadSpec, ModelInfo, PrefixStore, Scales, Text};
use device::first_light::Mode;
use device::tune::report::{Progress, Report, Spec};
use device::tune::{Case, Store};
use device::{AUTO, Activity, Data, Device, Error, Footprint, Instance};
use device::{BLOCK, MAX_SUBMISSIONS, Part, Prepared, Ticket};
use errors::one_line;
use model::{KvLayout, Model, Pooling, ports};
use plan::sample::{Adjustment, NOT_FINITE, Sampling};
use plan::{Bucket, BufferId, Class, Cost, Outputs, Plan, fuse};

/// Who drafts for a model with a nextn layer.
const OWN_LAYER: &str = "its own nextn layer";

/// What one sequence contributes to a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) slot: u32,
    pub(super) token: u32,
    pub(super) position: u32,
    pub(super) sampling: Sampling,
    pub(super) adapters: Scales,
}

const PADDING: Row = Row {
    slot: u32::MAX,
    token: 0,
    position: 0,
    sampling: Sampling::GREEDY,
    adapters: Scales::NONE,
};

/// A loaded model. A bench gets it to itself, see [`super::Handle::exclusive`].
pub struct Core {
    loaded: Loaded,
    entries: Vec<Entry>,
    sequences: Vec<Sequence>,
    /// What has been submitted and not yet waited for, oldest first.
    under_way: VecDeque<Step>,
    most_under_way: usize,
    scratch: Scratch,
    steps: u64,
    /// Whether it has given logits that tell tokens apart.
    proven: bool,
    drafter: Option<Box<Drafter>>,
    /// Whose hidden state the model's own drafts can go on from.
    hidden: Option<Hidden>,
    /// What is known of who guesses.
    drafts: Option<Drafts>,
    /// What of a step has been wasted on purpose.
    #[cfg(debug_assertions)]
    waste: f64,
}

#[derive(Clone, Debug)]
pub(super) struct Step {
    entry: usize,
    ticket: Ticket,
    /// Rows of its logits whose tokens are looked at.
    sampled: Range<usize>,
    /// Whom its logits are of, where that is one sequence.
    of: Option<Hidden>,
}

/// The rows that the logits of a step are made of, at neighbouring positions of one slot.
#[derive(Clone, Copy, Debug)]
struct Hidden {
    slot: u32,
    position: u32,
    rows: u32,
}

impl Hidden {
    /// Those of a decode step, if it is one sequence's.
    const fn of(rows: &[Row]) -> Option<Self> {
        match rows {
            [Row { slot, position, .. }] => {
                Some(Self { slot: *slot, position: *position, rows: 1 })
            }
            _ => None,
        }
    }
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
    /// Rows as the latest step that was waited for has left them in the mailboxes, for decode plans,
    /// which advance them by themselves; none where that is not known.
    rows: Vec<Row>,
    /// Rows of logits that something is done to, as its mailboxes say.
    adjusted: Vec<usize>,
    /// It leaves nothing for drafts by the model's own layer, as steps of a model that has one do else.
    rests: bool,
}

#[derive(Clone, Copy)]
struct Ports {
    tokens: Option<BufferId>,
    positions: Option<BufferId>,
    slots: Option<BufferId>,
    logit_rows: Option<BufferId>,
    next: Option<BufferId>,
    /// In the plan of drafts alone.
    hidden_row: Option<BufferId>,
    /// In plans with adapters.
    adapters: Option<BufferId>,
    temperature: Option<BufferId>,
    top_k: Option<BufferId>,
    top_p: Option<BufferId>,
    min_p: Option<BufferId>,
    /// In plans with one row of logits for each sequence.
    adjustments: Option<BufferId>,
    seed: Option<BufferId>,
    logits: Option<BufferId>,
    hidden: Option<BufferId>,
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

/// What a load has brought together.
pub(super) struct Loaded {
    pub(super) info: ModelInfo,
    pub(super) text: Arc<Text>,
    pub(super) model: Model,
    pub(super) device: Arc<dyn Device>,
    pub(super) instance: Box<dyn Instance>,
    pub(super) layout: KvLayout,
    pub(super) heartbeat: Heartbeat,
    /// What of the plans can be tuned.
    pub(super) cases: Vec<Case>,
    pub(super) spec: LoadSpec,
    /// The hash of the model is added when it is asked for first.
    pub(super) provenance: Provenance,
}

/// The plans of a model, made ready on a device.
pub(super) struct Entries(Vec<Entry>);

impl Entries {
    pub(super) fn prepare(
        instance: &mut dyn Instance,
        plans: Vec<Plan>,
        heartbeat: &Heartbeat,
    ) -> Result<Self, Error> {
        let prepare = |plan: Plan| {
            let prepared = instance.prepare(&plan)?;
            heartbeat.beat();
            let mailbox = |name| plan.find(Class::Mailbox, name);
            let ports = Ports {
                tokens: mailbox(ports::TOKENS),
                positions: mailbox(ports::POSITIONS),
                slots: mailbox(ports::SLOTS),
                logit_rows: mailbox(ports::LOGIT_ROWS),
                next: mailbox(ports::NEXT),
                hidden_row: mailbox(ports::HIDDEN_ROW),
                adapters: mailbox(ports::ADAPTERS),
                temperature: mailbox(ports::TEMPERATURE),
                top_k: mailbox(ports::TOP_K),
                top_p: mailbox(ports::TOP_P),
                min_p: mailbox(ports::MIN_P),
                adjustments: mailbox(ports::ADJUSTMENTS),
                seed: mailbox(ports::SEED),
                logits: plan.find(Class::Output, ports::LOGITS),
                hidden: plan.find(Class::Output, ports::HIDDEN),
            };
            let rows = Vec::with_capacity(plan.bucket.rows());
            let adjusted = Vec::with_capacity(plan.bucket.logit_rows());
            Ok(Entry { plan, prepared, ports, rows, adjusted, rests: false })
        };
        plans.into_iter().map(prepare).collect::<Result<_, _>>().map(Self)
    }
}

impl Core {
    pub(super) fn new(mut loaded: Loaded, Entries(mut entries): Entries) -> Self {
        let widest = entries.iter().map(|e| e.plan.bucket.rows()).max().unwrap_or(1);
        let scratch = Scratch {
            ints: Vec::with_capacity(2 * widest),
            floats: Vec::with_capacity(widest * loaded.model.adapters().len().max(1)),
            sampled: Vec::with_capacity(widest),
            rows: Vec::with_capacity(widest),
            tokens: Vec::with_capacity(widest),
        };
        if entries.iter().any(|entry| entry.ports.hidden_row.is_some()) {
            loaded.info.draft = Some(OWN_LAYER.to_owned());
            for Entry { plan, rests, .. } in &mut entries {
                *rests = plans::rests(plan);
            }
        }
        let sequences = vec![Sequence::default(); loaded.layout.slots];
        Self {
            loaded,
            entries,
            sequences,
            under_way: VecDeque::with_capacity(MAX_SUBMISSIONS),
            most_under_way: 0,
            scratch,
            steps: 0,
            proven: false,
            drafter: None,
            hidden: None,
            drafts: None,
            #[cfg(debug_assertions)]
            waste: 0.0,
        }
    }

    pub(super) fn into_loaded(self) -> Loaded {
        self.loaded
    }

    pub(super) fn finish_load(&mut self, took: Duration) -> Result<(), Error> {
        self.loaded.info.step_bytes = self.cost(Bucket::decode(1, 1))?.weight_bytes;
        self.loaded.info.load_s = took.as_secs_f64();
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn instance(&mut self) -> &mut Box<dyn Instance> {
        &mut self.loaded.instance
    }

    pub const fn model(&self) -> &ModelInfo {
        &self.loaded.info
    }

    /// What a measurement is made of. The first call reads the model's files.
    pub fn provenance(&mut self) -> &Provenance {
        let Loaded { model, heartbeat, provenance, .. } = &mut self.loaded;
        if provenance.model_sha256.is_none() {
            provenance.model_sha256 = provenance::hash(model.gguf().paths(), heartbeat).ok();
        }
        provenance
    }

    pub(super) const fn spec(&self) -> &LoadSpec {
        &self.loaded.spec
    }

    pub(super) const fn device_of(&self) -> &Arc<dyn Device> {
        &self.loaded.device
    }

    /// What the load was asked for.
    pub(super) fn model_name(&self) -> &str {
        &self.loaded.spec.model
    }

    pub(super) fn light(&self) -> &Light {
        &self.loaded.spec.light
    }

    pub(super) fn mode(&self) -> Option<Mode> {
        self.loaded.instance.mode()
    }

    pub(super) fn device(&self) -> &'static str {
        self.loaded.device.info().name
    }

    /// What another load has to know of it.
    pub(super) fn beside(&self) -> Beside {
        let drafter = self.drafter.as_ref().map_or(0, |drafter| drafter.core().beside().bytes);
        let Footprint { weights, state, activations } = self.loaded.instance.footprint();
        Beside {
            model: self.loaded.info.id.clone(),
            device: Arc::clone(&self.loaded.device),
            bytes: weights + state + activations + drafter,
        }
    }

    /// The name of the device if it is a GPU.
    pub(super) fn gpu(&self) -> Option<&'static str> {
        self.loaded.device.gpu_memory().map(|_| self.device())
    }

    pub(super) const fn text(&self) -> &Arc<Text> {
        &self.loaded.text
    }

    /// Sequences that fit at once.
    pub const fn slots(&self) -> usize {
        self.loaded.layout.slots
    }

    /// Has a draft model guess for it.
    pub(super) fn draft_with(&mut self, drafter: Drafter) {
        self.loaded.info.draft = Some(drafter.core().model().id.clone());
        self.drafter = Some(Box::new(drafter));
    }

    /// What the draft model guesses to follow these tokens, which a slot has all but the newest of: see
    /// [`Drafter::draft`]; or the model's own nextn layer. Where a draft model fails there are no more guesses, and
    /// nothing else is lost.
    ///
    /// # Errors
    /// Those of the device, which the model's own layer shares with it.
    pub(super) fn guess(
        &mut self,
        slot: u32,
        tokens: &[u32],
        sampling: Sampling,
        most: usize,
    ) -> Result<Vec<u32>, Error> {
        let vocabulary = self.vocabulary();
        let Some(drafter) = &mut self.drafter else {
            return self.guess_alone(slot, tokens, sampling, most);
        };
        match drafter.draft(tokens, sampling, most, vocabulary) {
            Ok(draft) => Ok(draft),
            Err(error) => {
                let (model, error) = (&drafter.core().model().id, one_line(&error));
                tracing::error!(model, error, "the draft model is given up");
                self.drafter = None;
                Ok(Vec::new())
            }
        }
    }

    /// The guess of the model's own layer: none where the hidden state that the newest token was sampled from is not
    /// there any more, or others have something under way.
    fn guess_alone(
        &mut self,
        slot: u32,
        tokens: &[u32],
        sampling: Sampling,
        most: usize,
    ) -> Result<Vec<u32>, Error> {
        let Some((&token, before)) = tokens.split_last() else { return Ok(Vec::new()) };
        let Some(entry) = self.own_layer().filter(|_| self.under_way.is_empty()) else {
            return Ok(Vec::new());
        };
        let position = before.len() as u32;
        // Drafts leave their own in its place.
        let row = self.hidden.take().and_then(|of| {
            let row = position.checked_sub(of.position + 1)?;
            (of.slot == slot && row < of.rows).then_some(row)
        });
        let Some(hidden_row) = row else { return Ok(Vec::new()) };
        let row = Row { slot, token, position, sampling, adapters: Scales::NONE };
        self.write_rows(entry, &[row], None)?;
        let Entry { prepared, ports, .. } = &self.entries[entry];
        if let Some(mailbox) = ports.hidden_row {
            let at = [hidden_row as i32];
            self.loaded.instance.write(*prepared, mailbox, 0, Data::I32(&at))?;
        }
        let most = most.min(MAX_SUBMISSIONS);
        for _ in 0..most {
            self.submit(entry, 0..1, None)?;
        }
        let mut draft = Vec::with_capacity(most);
        let mut sampled = std::mem::take(&mut self.scratch.tokens);
        for _ in 0..most {
            self.finish(&mut sampled)?;
            draft.extend_from_slice(&sampled);
        }
        self.scratch.tokens = sampled;
        let known = draft.iter().take_while(|&&token| token != NOT_FINITE).count();
        draft.truncate(known);
        Ok(draft)
    }

    /// The plan of drafts by the model's own layer.
    fn own_layer(&self) -> Option<usize> {
        self.entries.iter().position(|entry| entry.ports.hidden_row.is_some())
    }

    /// Whether a draft model or the model's own layer guesses.
    pub(super) fn guesses(&self) -> bool {
        self.drafter.is_some() || self.own_layer().is_some()
    }

    /// The drafts of a sequence that begins.
    pub(super) fn drafts(&self) -> Drafts {
        let new = || {
            let layers = self.loaded.model.hyperparameters().layers.len();
            let share = self.own_layer().map_or(0.0, |_| 1.0 / (layers + 1) as f64);
            Drafts::new(self.draft(), self.guesses()).of_layer(share)
        };
        self.drafts.as_ref().map_or_else(new, Drafts::again)
    }

    /// What an answer has shown of who guesses is known to the next one.
    pub(super) fn draft_as(&mut self, drafts: Drafts) {
        self.drafts = Some(drafts);
    }

    /// The most tokens of a draft.
    fn draft(&self) -> usize {
        self.loaded.spec.draft.min(self.bucket_rows(Outputs::All) - 1)
    }

    /// How long a chunk may hold up those who decode.
    pub(super) const fn stall(&self) -> Duration {
        self.loaded.spec.stall
    }

    /// Whether a sequence may go back behind what a step gave it, and not go on from its end alone.
    pub(super) fn rewinds(&self) -> bool {
        self.loaded.model.goes_on(2, 1)
    }

    /// Whether a slot that holds `held` tokens, and had `written` positions written, can go on behind the first
    /// `from` of them.
    pub(super) fn continues(&self, held: usize, written: usize, from: usize) -> bool {
        let Loaded { model, layout, .. } = &self.loaded;
        model.goes_on(held, from) && model.keeps(*layout, written, from)
    }

    /// How its cache is divided among sequences.
    pub(super) fn division(&self) -> Division {
        let slots = self.loaded.layout.slots as u32;
        let rest = self.part_bytes(Part::Rest(0)) != Some(0);
        Division { slots, of_slot: self.loaded.instance.blocks() / slots, rest }
    }

    /// Copies one part onto another. Nothing is under way.
    pub(super) fn copy(&mut self, [from, to]: [Part; 2]) -> Result<(), Error> {
        self.hidden = None;
        self.loaded.instance.copy_part(from, to)
    }

    /// Has the first positions of a slot in another one too, each in blocks of its own. Nothing is under way.
    pub(super) fn copy_slot(&mut self, from: u32, to: u32, positions: usize) -> Result<(), Error> {
        let Division { of_slot, .. } = self.division();
        let blocks = 0..of_slot.min(positions.div_ceil(BLOCK) as u32);
        let block = |slot: u32, i: u32| Part::Block(slot * of_slot + i);
        let blocks = blocks.map(|i| [block(from, i), block(to, i)]);
        blocks.chain([[Part::Rest(from), Part::Rest(to)]]).try_for_each(|copy| self.copy(copy))
    }

    /// A slot has these blocks from now on. Nothing is under way.
    pub(super) fn map(&mut self, slot: &Slot) -> Result<(), Error> {
        self.hidden = None;
        if self.loaded.instance.blocks() == 0 {
            return Ok(());
        }
        self.loaded.instance.map(slot.number, &slot.blocks)
    }

    /// Each slot has blocks of its own, as in the beginning. Nothing is under way.
    pub(super) fn own_blocks(&mut self) -> Result<(), Error> {
        let Division { slots, of_slot, .. } = self.division();
        let own = |number: u32| (number * of_slot..(number + 1) * of_slot).collect();
        (0..slots).try_for_each(|number| self.map(&Slot { number, blocks: own(number) }))
    }

    /// Where beginnings of conversations are kept, if anywhere.
    pub(super) const fn prefix_store(&self) -> Option<&PrefixStore> {
        self.loaded.spec.prefixes.as_ref()
    }

    /// Bytes of a part: see [`Instance::part_bytes`]. A model that goes on from its blocks alone has no rest.
    pub(super) fn part_bytes(&self, part: Part) -> Option<usize> {
        let bytes = self.loaded.instance.part_bytes(part)?;
        let needless = matches!(part, Part::Rest(_)) && self.rewinds() && self.ring().is_none();
        Some(if needless { 0 } else { bytes })
    }

    /// Tokens of a chunk, if rings have room for them.
    fn ring(&self) -> Option<usize> {
        let Loaded { model, layout, .. } = &self.loaded;
        layout.ring.filter(|_| model.rings(*layout).0 > 0)
    }

    pub(super) fn model_files(&self) -> impl Iterator<Item = &Path> {
        self.loaded.model.gguf().paths()
    }

    pub(super) fn adapter_files(&self) -> impl Iterator<Item = &Path> {
        self.loaded.model.adapters().map(model::Adapter::path)
    }

    /// What a slot's bytes depend on beside the model and the tokens: the device, which lays them out, its arithmetic,
    /// their type, the context, by which rotations are chosen, and the chunk, by which rings are as long as they are.
    pub(super) fn evaluated_by(&self) -> String {
        let Loaded { device, model, layout, .. } = &self.loaded;
        let (name, numerics) = (self.device(), device.numerics());
        let (cache, precision) = (model.cache(), model.precision().name());
        let (context, ring) = (layout.context, self.ring());
        format!("{name}, numerics {numerics:?}, {precision}, {cache}, {context}, {ring:?}")
    }

    /// Reads a part. Nothing is under way.
    pub(super) fn read_part(&mut self, part: Part, out: &mut [u8]) -> Result<(), Error> {
        self.loaded.heartbeat.beat();
        self.loaded.instance.read_part(part, out)
    }

    /// Writes one. Nothing is under way.
    pub(super) fn write_part(&mut self, part: Part, bytes: &[u8]) -> Result<(), Error> {
        self.loaded.heartbeat.beat();
        self.loaded.instance.write_part(part, bytes)
    }

    pub const fn context(&self) -> usize {
        self.loaded.layout.context
    }

    pub const fn vocabulary(&self) -> usize {
        self.loaded.model.hyperparameters().vocabulary
    }

    pub fn threads(&self) -> usize {
        self.loaded.device.info().threads
    }

    /// Measures how fast the GPU that holds the model reads its memory; `None` where the device is no GPU.
    pub fn bandwidth(&self) -> Option<Result<GpuBandwidth, Error>> {
        let heartbeat = &self.loaded.heartbeat;
        GpuBandwidth::of(&*self.loaded.device, &|| heartbeat.beat())
    }

    pub fn activity(&self) -> Activity {
        self.loaded.instance.activity()
    }

    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// Most steps that were under way at once since this was asked last.
    pub fn take_most_under_way(&mut self) -> usize {
        std::mem::take(&mut self.most_under_way)
    }

    /// The device, and what of the model's plans can be tuned on it and how.
    pub(super) fn tunable(&self) -> (Arc<dyn Device>, &[Case], &Tuning) {
        (Arc::clone(&self.loaded.device), &self.loaded.cases, &self.loaded.spec.tuning)
    }

    /// Searches the best choices for this model on its device, by the machine's clock or by what a simulator
    /// counts, and remembers them for the next load.
    pub fn tune(
        &self,
        spec: &Spec,
        pace: &Pace,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Report, tuning::Error> {
        let store = Store::new(&self.loaded.spec.tuning.dir);
        let mut watch = tuning::stopwatch(spec)?;
        // One sample or one tensor between two beats, however long a candidate takes.
        let heartbeat = self.loaded.heartbeat.clone();
        pace.listen(move || heartbeat.beat());
        tuning::run(
            &*self.loaded.device,
            Cases::Products(&self.loaded.cases),
            &store,
            spec,
            pace,
            &mut *watch,
            progress,
        )
    }

    /// What one step in a bucket moves and computes, as fused for the device; [`Error::Invalid`] when the
    /// bucket does not fit the loaded layout. Its context is the number of positions attended to.
    pub fn cost(&self, bucket: Bucket) -> Result<Cost, Error> {
        let layout =
            KvLayout { slots: self.loaded.layout.slots.max(bucket.batch), ..self.loaded.layout };
        let plan =
            self.loaded.model.plan(layout, bucket).map_err(|e| Error::Invalid(e.to_string()))?;
        Ok(self.loaded.device.cost(&fuse(&plan, self.loaded.device.fusions())))
    }

    /// Forgets all sequences of [`Core::prefill`].
    pub fn reset(&mut self) {
        self.sequences.fill(Sequence::default());
    }

    pub fn length(&self, slot: usize) -> usize {
        self.sequences.get(slot).map_or(0, |s| s.length)
    }

    /// Appends tokens to a slot's sequence and keeps the greedily sampled next token as pending.
    /// [`Error::Invalid`] when the slot does not exist or overflows.
    pub fn prefill(&mut self, slot: usize, tokens: &[u32]) -> Result<(), Error> {
        let Sequence { length, .. } = self.sequence(slot)?;
        self.check_room(slot, length, tokens.len())?;
        self.settle()?;
        let mut start = Row {
            slot: slot as u32,
            token: 0,
            position: length as u32,
            sampling: Sampling::GREEDY,
            adapters: Scales::NONE,
        };
        let mut rest = tokens;
        let mut sampled = std::mem::take(&mut self.scratch.tokens);
        sampled.clear();
        while !rest.is_empty() || !self.under_way.is_empty() {
            while !rest.is_empty() {
                let outputs =
                    if rest.len() <= self.chunk() { Outputs::Last } else { Outputs::None };
                let (chunk, tail) = rest.split_at(rest.len().min(self.chunk()));
                if !self.submit_chunk(start, chunk, tail.first().copied(), outputs, &[], true)? {
                    break;
                }
                start.position += chunk.len() as u32;
                rest = tail;
            }
            self.finish(&mut sampled)?;
        }
        if let Some(&pending) = sampled.first() {
            self.check_finite(&sampled)?;
            self.sequences[slot] = Sequence { length: start.position as usize, pending };
        }
        self.scratch.tokens = sampled;
        Ok(())
    }

    /// Decodes `steps` tokens greedily for each of the first `slots` sequences; none ends a generation.
    /// [`Error::Invalid`] when a sequence does not exist or overflows.
    pub fn decode(&mut self, slots: usize, steps: u32) -> Result<(), Error> {
        #[cfg(debug_assertions)]
        let steps = steps + self.wasted(steps);
        for slot in 0..slots {
            let length = self.sequence(slot)?.length;
            self.check_room(slot, length, steps as usize)?;
        }
        self.settle()?;
        let mut rows = std::mem::take(&mut self.scratch.rows);
        rows.clear();
        rows.extend(self.sequences[..slots].iter().zip(0u32..).map(|(s, slot)| Row {
            slot,
            token: s.pending,
            position: s.length as u32,
            sampling: Sampling::GREEDY,
            adapters: Scales::NONE,
        }));
        let mut tokens = std::mem::take(&mut self.scratch.tokens);
        for step in 0..steps {
            if step == 0 {
                self.submit_decode(&rows, &[], true)?;
            }
            if step + 1 < steps {
                self.submit_ahead()?;
            }
            self.finish(&mut tokens)?;
            self.check_finite(&tokens)?;
            for (sequence, &token) in self.sequences.iter_mut().zip(&tokens) {
                sequence.length += 1;
                sequence.pending = token;
            }
        }
        self.scratch.rows = rows;
        self.scratch.tokens = tokens;
        Ok(())
    }

    /// Steps beyond those asked for, by which a test makes decoding slower: `ORIND_TEST_WASTE` is their share.
    /// Only for builds whose speeds mean nothing anyway.
    #[cfg(debug_assertions)]
    fn wasted(&mut self, steps: u32) -> u32 {
        let share = std::env::var("ORIND_TEST_WASTE").ok().and_then(|share| share.parse().ok());
        self.waste += share.unwrap_or(0.0) * f64::from(steps);
        let whole = self.waste.floor();
        self.waste -= whole;
        whole as u32
    }

    /// Nothing is measured on a model that gives no tokens.
    fn check_finite(&self, tokens: &[u32]) -> Result<(), Error> {
        if !tokens.contains(&NOT_FINITE) {
            return Ok(());
        }
        let what = format!("{}: its logits are not finite", self.loaded.info.id);
        Err(Error::Unsupported { device: self.device(), what })
    }

    fn sequence(&self, slot: usize) -> Result<Sequence, Error> {
        let none = || Error::Invalid(format!("slot {slot} of {}", self.loaded.layout.slots));
        self.sequences.get(slot).copied().ok_or_else(none)
    }

    fn check_room(&self, slot: usize, length: usize, more: usize) -> Result<(), Error> {
        if length + more <= self.loaded.layout.context {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "slot {slot} holds {length} tokens, {more} more exceed its {}",
            self.loaded.layout.context
        )))
    }

    /// Numbers of an embedding, and which rows it is made of, if the model makes any.
    pub(super) fn embedding(&self) -> Option<(usize, Pooling)> {
        let model = &self.loaded.model;
        model.pooling().map(|pooling| (model.hyperparameters().width, pooling))
    }

    /// Rows of the largest prefill chunk.
    pub fn chunk(&self) -> usize {
        self.bucket_rows(Outputs::None)
    }

    /// Rows of the largest chunk with those logits.
    pub(super) fn bucket_rows(&self, outputs: Outputs) -> usize {
        let chunks = self.entries.iter().map(|e| e.plan.bucket);
        let chunks = chunks.filter(|b| b.outputs == outputs && b.chunk > 1).map(|b| b.chunk);
        chunks.max().unwrap_or(1)
    }

    /// The narrowest plan of some buckets that holds so many rows, with adapters or without. Where nothing is left for
    /// `drafts`, one at rest if there is any.
    fn narrowest(
        &self,
        rows: usize,
        adapted: bool,
        drafts: bool,
        of: impl Fn(Bucket) -> bool,
    ) -> Option<usize> {
        let fits = |entry: &&Entry| {
            let same = entry.ports.adapters.is_some() == adapted && !(entry.rests && drafts);
            let holds = (1..=entry.plan.bucket.rows()).contains(&rows);
            same && entry.ports.hidden_row.is_none() && holds && of(entry.plan.bucket)
        };
        let all = self.entries.iter().enumerate().filter(|(_, entry)| fits(entry));
        all.min_by_key(|(_, entry)| (entry.plan.bucket.rows(), !entry.rests)).map(|(i, _)| i)
    }

    fn has_room(&self, steps: usize) -> bool {
        self.under_way.len() + steps <= MAX_SUBMISSIONS
    }

    fn is_under_way(&self, entry: usize) -> bool {
        self.under_way.iter().any(|step| step.entry == entry)
    }

    /// Submits the evaluation of consecutive tokens of one sequence, from `start.position`. The token after
    /// the last one is sampled where there are logits, the one after each where it is all. Where a narrower plan
    /// has the logits of the last row, it may compute them for nobody. To rows of logits is done what `adjustments` say,
    /// where they are the last one's. What the model's own layer needs for `drafts` is left where they are to come. False
    /// when something has to be waited for first: the device has all it takes, or what the host has yet to read would be
    /// overwritten.
    pub(super) fn submit_chunk(
        &mut self,
        start: Row,
        tokens: &[u32],
        next: Option<u32>,
        outputs: Outputs,
        adjustments: &[(usize, Adjustment<'_>)],
        drafts: bool,
    ) -> Result<bool, Error> {
        let has = |bucket: Bucket| {
            bucket.outputs == outputs || outputs == Outputs::None && bucket.outputs == Outputs::Last
        };
        let of = |bucket: Bucket| bucket.chunk > 1 && has(bucket);
        let adapted = start.adapters != Scales::NONE;
        let Some(entry) = self.narrowest(tokens.len(), adapted, drafts, of) else {
            return Err(Error::Invalid(format!(
                "a chunk of {} tokens with {outputs:?} logits",
                tokens.len()
            )));
        };
        let is_read = self.entries[entry].plan.bucket.outputs != Outputs::None;
        if !self.has_room(1) || is_read && self.is_under_way(entry) {
            return Ok(false);
        }
        let mut rows = std::mem::take(&mut self.scratch.rows);
        rows.clear();
        rows.extend(tokens.iter().zip(start.position..).map(|(&token, position)| Row {
            token,
            position,
            ..start
        }));
        let written = self.write_rows(entry, &rows, next);
        self.scratch.rows = rows;
        written?;
        self.adjust(entry, adjustments)?;
        let sampled = match outputs {
            Outputs::None | Outputs::Hidden => 0..0,
            Outputs::Last => 0..1,
            Outputs::All => 0..tokens.len(),
            Outputs::Deferred | Outputs::Resumed => {
                unreachable!("a chunk is not evaluated in two parts")
            }
        };
        let rows = sampled.len() as u32;
        let position = start.position + tokens.len() as u32 - rows;
        self.submit(entry, sampled, Some(Hidden { slot: start.slot, position, rows }))?;
        Ok(true)
    }

    /// Submits the decoding of one token for each row: with adapters where a row takes something of one, which changes
    /// nothing for the others. To the logits of rows is done what `adjustments` say, until they are submitted anew. What the
    /// model's own layer needs for `drafts` is left where they are to come. False when
    /// the device has all it takes.
    pub(super) fn submit_decode(
        &mut self,
        rows: &[Row],
        adjustments: &[(usize, Adjustment<'_>)],
        drafts: bool,
    ) -> Result<bool, Error> {
        let entry = self.of_decode(rows, Outputs::Last, drafts)?;
        debug_assert!(!self.is_under_way(entry), "its tokens are not known yet");
        if !self.has_room(1) {
            return Ok(false);
        }
        if self.entries[entry].rows != rows {
            self.write_rows(entry, rows, None)?;
            self.entries[entry].rows.extend_from_slice(rows);
        }
        self.adjust(entry, adjustments)?;
        self.submit(entry, 0..rows.len(), Hidden::of(rows))?;
        Ok(true)
    }

    /// The same as far as it does not depend on what is done to logits: [`Self::submit_deferred`] is the rest of it, before
    /// anything else is submitted. False when the device does not take both.
    pub(super) fn submit_deferring(&mut self, rows: &[Row]) -> Result<bool, Error> {
        let entry = self.of_decode(rows, Outputs::Deferred, true)?;
        if !self.has_room(2) {
            return Ok(false);
        }
        self.write_rows(entry, rows, None)?;
        self.submit(entry, 0..0, None)?;
        Ok(true)
    }

    /// Submits the logits and tokens of the rows of [`Self::submit_deferring`].
    pub(super) fn submit_deferred(
        &mut self,
        rows: &[Row],
        adjustments: &[(usize, Adjustment<'_>)],
        drafts: bool,
    ) -> Result<(), Error> {
        let entry = self.of_decode(rows, Outputs::Resumed, drafts)?;
        self.write_rows(entry, rows, None)?;
        self.adjust(entry, adjustments)?;
        self.submit(entry, 0..rows.len(), Hidden::of(rows))
    }

    /// The plan that decodes these rows to such outputs.
    fn of_decode(&self, rows: &[Row], outputs: Outputs, drafts: bool) -> Result<usize, Error> {
        let adapted = rows.iter().any(|row| row.adapters != Scales::NONE);
        let decodes = |bucket: Bucket| bucket.chunk == 1 && bucket.outputs == outputs;
        self.narrowest(rows.len(), adapted, drafts, decodes).ok_or_else(|| {
            let slots = self.loaded.layout.slots;
            Error::Invalid(format!("{} rows, 1 to {slots} fit", rows.len()))
        })
    }

    /// Submits another step of the latest decode step under way, for the tokens that it is going to sample.
    /// False when the device has all it takes.
    pub(super) fn submit_ahead(&mut self) -> Result<bool, Error> {
        let decodes = |step: &&Step| {
            let Bucket { chunk, outputs, .. } = self.entries[step.entry].plan.bucket;
            chunk == 1 && outputs == Outputs::Last
        };
        let Some(step) = self.under_way.iter().rev().find(decodes).cloned() else {
            unreachable!("no decode step is under way that another one could follow");
        };
        if !self.has_room(1) {
            return Ok(false);
        }
        let of = step.of.map(|of| Hidden { position: of.position + 1, ..of });
        self.submit(step.entry, step.sampled, of)?;
        Ok(true)
    }

    fn submit(
        &mut self,
        entry: usize,
        sampled: Range<usize>,
        of: Option<Hidden>,
    ) -> Result<(), Error> {
        let Entry { plan, prepared, rows, rests, .. } = &mut self.entries[entry];
        let of = of.filter(|_| !*rests);
        let ticket = self.loaded.instance.submit(*prepared, 1).inspect_err(|_| rows.clear())?;
        self.under_way.push_back(Step { entry, ticket, sampled, of });
        self.most_under_way = self.most_under_way.max(self.under_way.len());
        self.steps += u64::from(plan.bucket.outputs != Outputs::Deferred);
        Ok(())
    }

    /// Waits for the oldest step under way; `tokens` receives those that it sampled, in the order of its rows:
    /// [`NOT_FINITE`] where logits are not.
    pub(super) fn finish(&mut self, tokens: &mut Vec<u32>) -> Result<Step, Error> {
        let Some(step) = self.under_way.front().cloned() else {
            unreachable!("nothing is under way that could be waited for");
        };
        let entry = &mut self.entries[step.entry];
        self.loaded.instance.wait(step.ticket).inspect_err(|_| entry.rows.clear())?;
        self.under_way.pop_front();
        // What is under way may have taken its place.
        self.hidden = step.of.filter(|_| self.under_way.is_empty());
        self.loaded.heartbeat.beat();
        tokens.clear();
        if !step.sampled.is_empty() {
            self.scratch.sampled.resize(entry.plan.bucket.logit_rows(), 0);
            self.loaded.instance.tokens(step.ticket, 0, &mut self.scratch.sampled)?;
            tokens.extend(self.scratch.sampled[step.sampled.clone()].iter().map(|&t| t as u32));
        }
        for (row, &token) in entry.rows.iter_mut().zip(&*tokens) {
            *row = Row { token, position: row.position + 1, ..*row };
        }
        if !self.proven && !tokens.is_empty() {
            self.prove(&step, tokens)?;
        }
        Ok(step)
    }

    /// Looks at the first rows of logits of a model. Where none is finite, and there is another device to go on
    /// to, or where they know no difference between tokens, that is the device's failure, whatever it has passed
    /// with other models.
    fn prove(&mut self, step: &Step, tokens: &[u32]) -> Result<(), Error> {
        let what = match tokens.iter().position(|&token| token != NOT_FINITE) {
            None if self.goes_on() && self.entries[step.entry].adjusted.is_empty() => "not finite",
            Some(row) if !self.is_under_way(step.entry) => {
                let mut logits = vec![0.0; self.vocabulary()];
                self.logits(step, step.sampled.start + row, &mut logits)?;
                self.proven = logits.iter().any(|logit| *logit != logits[0]);
                if self.proven {
                    return Ok(());
                }
                "all equal"
            }
            // The requests', or a later step's.
            None | Some(_) => return Ok(()),
        };
        let what = format!("this model: the logits of its first step are {what}");
        Err(Error::Unsupported { device: self.device(), what })
    }

    /// Whether there is another device that the model can be loaded on instead.
    fn goes_on(&self) -> bool {
        self.loaded.spec.backend == "auto" && !AUTO.ends_with(&[self.device()])
    }

    /// Waits for what a failure has left under way.
    pub(super) fn settle(&mut self) -> Result<(), Error> {
        let mut tokens = std::mem::take(&mut self.scratch.tokens);
        while !self.under_way.is_empty() {
            self.finish(&mut tokens)?;
        }
        self.scratch.tokens = tokens;
        Ok(())
    }

    /// Logits of one row of a step that has been waited for, before its plan is submitted again.
    pub(super) fn logits(&self, of: &Step, row: usize, out: &mut [f32]) -> Result<(), Error> {
        let Entry { plan, prepared, ports, .. } = &self.entries[of.entry];
        let Some(logits) = ports.logits else {
            unreachable!("logits of a step of {:?}, which has none", plan.bucket);
        };
        self.loaded.instance.read(*prepared, logits, row * out.len(), out)
    }

    /// The same of its hidden state.
    pub(super) fn hidden(&self, of: &Step, row: usize, out: &mut [f32]) -> Result<(), Error> {
        let Entry { plan, prepared, ports, .. } = &self.entries[of.entry];
        let Some(hidden) = ports.hidden else {
            unreachable!("the hidden state of a step of {:?}, which has none", plan.bucket);
        };
        self.loaded.instance.read(*prepared, hidden, row * out.len(), out)
    }

    /// Fills the mailboxes, padding up to the bucket; `next` is the token behind the rows, where it is known.
    fn write_rows(&mut self, index: usize, rows: &[Row], next: Option<u32>) -> Result<(), Error> {
        let entry = &mut self.entries[index];
        entry.rows.clear();
        let bucket = entry.plan.bucket;
        let (all, ports) = (bucket.rows(), entry.ports);
        let mut writer = Writer {
            instance: &mut *self.loaded.instance,
            prepared: entry.prepared,
            scratch: &mut self.scratch,
        };
        let padded = |n: usize| rows.iter().copied().chain(std::iter::repeat(PADDING)).take(n);
        writer.ints(ports.tokens, padded(all).map(|r| r.token as i32))?;
        writer.ints(ports.positions, padded(all).map(|r| r.position as i32))?;
        let behind = rows.iter().skip(1).map(|row| row.token).chain(next);
        let behind = behind.map(|token| token as i32).chain(std::iter::repeat(0));
        writer.ints(ports.next, behind.take(all))?;
        writer.ints(ports.slots, padded(all).map(|r| r.slot as i32))?;
        writer.ints(ports.logit_rows, std::iter::once(rows.len() as i32 - 1))?;
        let adapters = self.loaded.model.adapters().len();
        let scales = padded(all).flat_map(|row| row.adapters.0.into_iter().take(adapters));
        writer.floats(ports.adapters, scales)?;
        let sampled = || padded(bucket.logit_rows()).map(|row| row.sampling);
        writer.floats(ports.temperature, sampled().map(|s| s.temperature))?;
        writer.floats(ports.top_p, sampled().map(|s| s.top_p))?;
        writer.floats(ports.min_p, sampled().map(|s| s.min_p))?;
        writer.ints(ports.top_k, sampled().map(|s| s.top_k as i32))?;
        writer.ints(ports.seed, sampled().flat_map(|s| [s.seed as i32, (s.seed >> 32) as i32]))
    }

    /// Has these rows of logits adjusted, and no others.
    fn adjust(&mut self, index: usize, all: &[(usize, Adjustment<'_>)]) -> Result<(), Error> {
        let vocabulary = self.vocabulary();
        let Entry { prepared, ports, adjusted, .. } = &mut self.entries[index];
        let Some(mailbox) = ports.adjustments else {
            match all {
                [] => return Ok(()),
                _ => unreachable!("where a token is chosen logits can be changed"),
            }
        };
        let mut write = |row: usize, at: usize, words: &[i32]| {
            let at = row * Adjustment::words(vocabulary) + at;
            self.loaded.instance.write(*prepared, mailbox, at, Data::I32(words))
        };
        for row in adjusted.drain(..).filter(|row| all.iter().all(|(other, _)| row != other)) {
            write(row, 0, &Adjustment::default().header())?;
        }
        for (row, adjustment) in all {
            write(*row, 0, &adjustment.header())?;
            for (at, words) in
                adjustment.parts(vocabulary).into_iter().filter(|part| !part.1.is_empty())
            {
                write(*row, at, words)?;
            }
            adjusted.push(*row);
        }
        Ok(())
    }
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
