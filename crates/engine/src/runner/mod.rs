//! Model runner: a model on a device, with its prepared plans and its part of the KV cache.
//!
//! It is independent of requests, text and policy. [`Steps`] submits work to the device; the runner checks the
//! first results, copies and maps the cache, and describes the model.

pub(crate) mod plans;
mod prepared;
mod steps;

use std::sync::Arc;
use std::time::Duration;

use super::heartbeat::Heartbeat;
use super::provenance::{self, Provenance};
use super::slots::{Division, Slot};
use super::text::Text;
use super::tuning::{self, Cases, Tuning, pace::Pace};
use super::{GpuBandwidth, LoadSpec, ModelInfo};
use config::Backend;
use device::first_light::Mode;
use device::tune::report::{Progress, Report, Spec};
use device::tune::{Case, Store};
use device::{AUTO, Activity, BLOCK, Device, Error, Footprint, Instance, Part};
use files::RegularFile;
use model::{KvLayout, Model, Pooling};
use plan::sample::NOT_FINITE;
use plan::{Bucket, Cost, Outputs, fuse};
pub(crate) use prepared::{PreparedPlans, Row};
pub(crate) use steps::{Chunk, Step, Steps};

/// A loaded model on its device. [`super::Handle::exclusive`] lends it to benchmarks and tuning.
pub struct ModelRunner {
    info: ModelInfo,
    text: Arc<Text>,
    model: Model,
    device: Arc<dyn Device>,
    layout: KvLayout,
    heartbeat: Heartbeat,
    cases: Vec<Case>,
    spec: LoadSpec,
    provenance: Provenance,
    steps: Steps,
    /// True if some logits have differed from each other.
    proven: bool,
    tokens: Vec<u32>,
}

/// Everything that a load has opened and prepared.
pub(crate) struct Loaded {
    pub(crate) info: ModelInfo,
    pub(crate) text: Arc<Text>,
    pub(crate) model: Model,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) instance: Box<dyn Instance>,
    pub(crate) plans: PreparedPlans,
    pub(crate) layout: KvLayout,
    pub(crate) heartbeat: Heartbeat,
    /// Tunable cases of the plans.
    pub(crate) cases: Vec<Case>,
    pub(crate) spec: LoadSpec,
    /// Without the hash of the model's files, which is computed on request.
    pub(crate) provenance: Provenance,
}

/// The parts of a lost model that its next load uses again.
pub(crate) struct Reusable {
    pub(crate) spec: LoadSpec,
    pub(crate) model: Model,
    pub(crate) text: Arc<Text>,
    pub(crate) layout: KvLayout,
}

impl ModelRunner {
    pub(crate) fn new(loaded: Loaded) -> Self {
        let Loaded { mut info, text, model, device, instance, plans, .. } = loaded;
        let Loaded { layout, heartbeat, cases, spec, provenance, .. } = loaded;
        if plans.nextn().is_some() {
            info.draft = Some("its own nextn layer".to_owned());
        }
        let widest = plans.widest();
        let sizes = (model.hyperparameters().vocabulary, model.adapters().len());
        let steps = Steps::new(instance, plans, sizes, heartbeat.clone());
        let tokens = Vec::with_capacity(widest);
        let proven = false;
        Self {
            info,
            text,
            model,
            device,
            layout,
            heartbeat,
            cases,
            spec,
            provenance,
            steps,
            proven,
            tokens,
        }
    }

    pub(crate) fn into_reusable(self) -> Reusable {
        let Self { spec, model, text, layout, .. } = self;
        Reusable { spec, model, text, layout }
    }

    pub(crate) fn finish_load(&mut self, took: Duration) -> Result<(), Error> {
        self.info.step_bytes = self.cost(Bucket::decode(1, 1))?.weight_bytes;
        self.info.load_s = took.as_secs_f64();
        Ok(())
    }

    #[cfg(test)]
    pub(crate) const fn instance(&mut self) -> &mut Box<dyn Instance> {
        &mut self.steps.instance
    }

    pub(crate) const fn steps(&mut self) -> &mut Steps {
        &mut self.steps
    }

    pub const fn model(&self) -> &ModelInfo {
        &self.info
    }

    pub(crate) fn set_draft(&mut self, id: String) {
        self.info.draft = Some(id);
    }

    /// Origin of a measurement. The first call reads the model's files.
    pub fn provenance(&mut self) -> &Provenance {
        let Self { model, heartbeat, provenance, .. } = self;
        if provenance.model_sha256.is_none() {
            provenance.model_sha256 = provenance::hash(model.gguf().paths(), heartbeat).ok();
        }
        provenance
    }

    pub(crate) const fn spec(&self) -> &LoadSpec {
        &self.spec
    }

    pub(crate) const fn device_of(&self) -> &Arc<dyn Device> {
        &self.device
    }

    pub(crate) fn mode(&self) -> Option<Mode> {
        self.steps.instance.mode()
    }

    pub(crate) fn device(&self) -> &'static str {
        self.device.info().name
    }

    /// Bytes of memory that the instance occupies on its device.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let Footprint { weights, state, activations } = self.steps.instance.footprint();
        weights + state + activations
    }

    /// Name of the device if it is a GPU.
    pub(crate) fn gpu(&self) -> Option<&'static str> {
        self.device.gpu_memory().map(|_| self.device())
    }

    pub(crate) const fn text(&self) -> &Arc<Text> {
        &self.text
    }

    /// Number of sequences that run at once.
    pub const fn slots(&self) -> usize {
        self.layout.slots
    }

    pub const fn context(&self) -> usize {
        self.layout.context
    }

    pub const fn vocabulary(&self) -> usize {
        self.model.hyperparameters().vocabulary
    }

    pub fn threads(&self) -> usize {
        self.device.info().threads
    }

    /// Number of rows of the largest prefill chunk.
    pub fn chunk(&self) -> usize {
        self.largest_chunk(Outputs::None)
    }

    /// Number of rows of the largest chunk with these outputs.
    pub(crate) fn largest_chunk(&self, outputs: Outputs) -> usize {
        self.steps.plans().largest_chunk(outputs)
    }

    /// Width and pooling of embeddings, if the model computes them.
    pub(crate) fn embedding(&self) -> Option<(usize, Pooling)> {
        self.model.pooling().map(|pooling| (self.model.hyperparameters().width, pooling))
    }

    pub(crate) fn has_nextn(&self) -> bool {
        self.steps.plans().nextn().is_some()
    }

    /// Share of a prompt's time that the nextn layer takes; 0 without one.
    pub(crate) fn nextn_share(&self) -> f64 {
        let layers = self.model.hyperparameters().layers.len();
        if self.has_nextn() { 1.0 / (layers + 1) as f64 } else { 0.0 }
    }

    /// Largest number of draft tokens that one step verifies.
    pub(crate) fn max_draft(&self) -> usize {
        self.spec.draft.min(self.largest_chunk(Outputs::All) - 1)
    }

    /// Measures the memory bandwidth of the model's GPU; `None` if the device is not a GPU.
    pub fn bandwidth(&self) -> Option<Result<GpuBandwidth, Error>> {
        let heartbeat = &self.heartbeat;
        GpuBandwidth::of(&*self.device, &|| heartbeat.beat())
    }

    pub fn activity(&self) -> Activity {
        self.steps.instance.activity()
    }

    /// Number of steps submitted so far.
    pub const fn step_count(&self) -> u64 {
        self.steps.count()
    }

    /// Largest number of steps in flight since the previous call.
    pub fn take_most_in_flight(&mut self) -> usize {
        self.steps.take_most_in_flight()
    }

    /// Device, tunable cases of the model's plans, and the settings of tuning.
    pub(crate) fn tunable(&self) -> (Arc<dyn Device>, &[Case], &Tuning) {
        (Arc::clone(&self.device), &self.cases, &self.spec.tuning)
    }

    /// Searches the best choices for this model on its device, by time or by simulated cycles, and stores them for
    /// the next load.
    pub fn tune(
        &self,
        spec: &Spec,
        pace: &Pace,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Report, tuning::Error> {
        let store = Store::new(&self.spec.tuning.dir);
        let mut watch = tuning::stopwatch(spec)?;
        // Beats after each sample or tensor, however long a candidate takes.
        let heartbeat = self.heartbeat.clone();
        pace.listen(move || heartbeat.beat());
        let cases = Cases::Products(&self.cases);
        tuning::run(&*self.device, cases, &store, spec, pace, &mut *watch, progress)
    }

    /// Bytes and operations of one step in a bucket, as fused for the device. The bucket's context is the number of
    /// positions attended to.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the bucket does not fit the layout.
    pub fn cost(&self, bucket: Bucket) -> Result<Cost, Error> {
        let layout = KvLayout { slots: self.layout.slots.max(bucket.batch), ..self.layout };
        let plan = self.model.plan(layout, bucket).map_err(|e| Error::Invalid(e.to_string()))?;
        Ok(self.device.cost(&fuse(&plan, self.device.fusions())))
    }
}

/// Results of steps.
impl ModelRunner {
    /// Waits for the oldest step, see [`Steps::finish`], and checks the first logits of the model.
    pub(crate) fn finish(&mut self, tokens: &mut Vec<u32>) -> Result<Step, Error> {
        let step = self.steps.finish(tokens)?;
        if !self.proven && !tokens.is_empty() {
            self.prove(&step, tokens)?;
        }
        Ok(step)
    }

    /// Checks the first logits of a model. The device has failed if all of them are equal, or if none is finite and
    /// another device is left to try, even if it has run other models.
    fn prove(&mut self, step: &Step, tokens: &[u32]) -> Result<(), Error> {
        let what = match tokens.iter().position(|&token| token != NOT_FINITE) {
            None if self.has_fallback() && !self.steps.has_edits(step) => "not finite",
            Some(row) if !self.steps.is_overwritten(step) => {
                let mut logits = vec![0.0; self.vocabulary()];
                self.steps.logits(step, step.sampled.start + row, &mut logits)?;
                self.proven = logits.iter().any(|logit| *logit != logits[0]);
                if self.proven {
                    return Ok(());
                }
                "all equal"
            }
            // The edits of a request, or a step that is checked later.
            None | Some(_) => return Ok(()),
        };
        let what = format!("this model: the logits of its first step are {what}");
        Err(Error::Unsupported { device: self.device(), what })
    }

    /// True if the model can be loaded on another device instead.
    fn has_fallback(&self) -> bool {
        self.spec.backend == Backend::Auto && !AUTO.ends_with(&[self.device()])
    }

    /// Waits for all steps in flight and drops their results.
    pub(crate) fn settle(&mut self) -> Result<(), Error> {
        let mut tokens = std::mem::take(&mut self.tokens);
        while !self.steps.is_idle() {
            self.finish(&mut tokens)?;
        }
        self.tokens = tokens;
        Ok(())
    }

    /// Drafts up to `most` tokens behind a row with the model's nextn layer.
    pub(crate) fn nextn_draft(&mut self, row: Row, most: usize) -> Result<Vec<u32>, Error> {
        let submitted = self.steps.submit_nextn(row, most)?;
        let mut draft = Vec::with_capacity(submitted);
        let mut sampled = std::mem::take(&mut self.tokens);
        for _ in 0..submitted {
            self.finish(&mut sampled)?;
            draft.extend_from_slice(&sampled);
        }
        self.tokens = sampled;
        let finite = draft.iter().take_while(|&&token| token != NOT_FINITE).count();
        draft.truncate(finite);
        Ok(draft)
    }
}

/// The cache. No step is in flight when its parts are copied, mapped, read or written.
impl ModelRunner {
    /// True if a sequence can be truncated, and not only extended.
    pub(crate) fn rewinds(&self) -> bool {
        self.model.can_resume_at(2, 1)
    }

    /// True if a slot with `cached` tokens and `written` positions can continue behind its first `from` tokens.
    pub(crate) fn continues(&self, cached: usize, written: usize, from: usize) -> bool {
        self.model.can_resume_at(cached, from) && self.model.keeps(self.layout, written, from)
    }

    pub(crate) fn division(&self) -> Division {
        let slots = self.layout.slots as u32;
        let recurrent = self.part_bytes(Part::Recurrent(0)) != Some(0);
        Division { slots, blocks_per_slot: self.steps.instance.blocks() / slots, recurrent }
    }

    pub(crate) fn copy(&mut self, [from, to]: [Part; 2]) -> Result<(), Error> {
        self.steps.forget_hidden();
        self.steps.instance.copy_part(from, to)
    }

    /// Copies the first positions of a slot to another one, each with blocks of its own.
    pub(crate) fn copy_slot(&mut self, from: u32, to: u32, positions: usize) -> Result<(), Error> {
        let Division { blocks_per_slot, .. } = self.division();
        let blocks = 0..blocks_per_slot.min(positions.div_ceil(BLOCK) as u32);
        let block = |slot: u32, i: u32| Part::Block(slot * blocks_per_slot + i);
        let blocks = blocks.map(|i| [block(from, i), block(to, i)]);
        blocks
            .chain([[Part::Recurrent(from), Part::Recurrent(to)]])
            .try_for_each(|copy| self.copy(copy))
    }

    /// Writes the block table of a slot.
    pub(crate) fn map(&mut self, slot: &Slot) -> Result<(), Error> {
        self.steps.forget_hidden();
        if self.steps.instance.blocks() == 0 {
            return Ok(());
        }
        self.steps.instance.map(slot.number, &slot.blocks)
    }

    /// Resets the block tables: each slot has its own blocks.
    pub(crate) fn reset_blocks(&mut self) -> Result<(), Error> {
        let Division { slots, blocks_per_slot, .. } = self.division();
        let own =
            |number: u32| (number * blocks_per_slot..(number + 1) * blocks_per_slot).collect();
        (0..slots).try_for_each(|number| self.map(&Slot { number, blocks: own(number) }))
    }

    /// Bytes of a part, see [`Instance::part_bytes`]. The recurrent part of a model that continues from its blocks
    /// alone is empty.
    pub(crate) fn part_bytes(&self, part: Part) -> Option<usize> {
        let bytes = self.steps.instance.part_bytes(part)?;
        let unused = matches!(part, Part::Recurrent(_)) && self.rewinds() && self.ring().is_none();
        Some(if unused { 0 } else { bytes })
    }

    /// Chunk size that ring caches are dimensioned for, if the model has some.
    fn ring(&self) -> Option<usize> {
        self.layout.ring.filter(|_| self.model.rings(self.layout).0 > 0)
    }

    pub(crate) fn model_files(&self) -> impl Iterator<Item = &RegularFile> {
        self.model.gguf().files()
    }

    /// Files of each adapter.
    pub(crate) fn adapter_files(&self) -> impl Iterator<Item = impl Iterator<Item = &RegularFile>> {
        self.model.adapters().map(model::Adapter::files)
    }

    /// Everything besides model and tokens that determines a slot's bytes: the device's layout, its arithmetic, the
    /// types, the context (which selects the RoPE frequencies), and the chunk (which sets the length of rings).
    pub(crate) fn cache_format(&self) -> String {
        let (name, numerics) = (self.device(), self.device.numerics());
        let (cache, precision) = (self.model.cache(), self.model.precision().name());
        let (context, ring) = (self.layout.context, self.ring());
        format!("{name}, numerics {numerics:?}, {precision}, {cache}, {context}, {ring:?}")
    }

    pub(crate) fn read_part(&mut self, part: Part, out: &mut [u8]) -> Result<(), Error> {
        self.heartbeat.beat();
        self.steps.instance.read_part(part, out)
    }

    pub(crate) fn write_part(&mut self, part: Part, bytes: &[u8]) -> Result<(), Error> {
        self.heartbeat.beat();
        self.steps.instance.write_part(part, bytes)
    }
}
