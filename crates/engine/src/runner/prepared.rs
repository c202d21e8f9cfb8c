//! Plans that are prepared on a device: their ports, the choice of a plan for a step, and its inputs.

use device::{Data, Error, Instance, Prepared};
use model::ports;
use plan::sample::{Adjustment, Sampling};
use plan::{Bucket, BufferId, Class, Outputs, Plan};

use super::plans;
use crate::Scales;
use crate::heartbeat::Heartbeat;

/// Input of one sequence to a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) slot: u32,
    pub(crate) token: u32,
    pub(crate) position: u32,
    pub(crate) sampling: Sampling,
    pub(crate) adapters: Scales,
}

const PADDING: Row = Row {
    slot: u32::MAX,
    token: 0,
    position: 0,
    sampling: Sampling::GREEDY,
    adapters: Scales::NONE,
};

/// Logit edits of rows, each with the index of its row of logits.
pub(crate) type RowEdits<'a> = [(usize, Adjustment<'a>)];

/// A prepared plan and the state of its mailboxes.
pub(super) struct PreparedPlan {
    pub(super) plan: Plan,
    pub(super) prepared: Prepared,
    pub(super) ports: Ports,
    /// Rows in the mailboxes after the latest finished step, which decode plans advance themselves.
    /// Empty if they are unknown.
    pub(super) rows: Vec<Row>,
    /// Rows of logits with edits in the mailbox.
    pub(super) edited: Vec<usize>,
    /// True if the plan omits the state that drafts of the nextn layer need.
    pub(super) skips_nextn: bool,
}

#[derive(Clone, Copy)]
pub(super) struct Ports {
    tokens: Option<BufferId>,
    positions: Option<BufferId>,
    slots: Option<BufferId>,
    logit_rows: Option<BufferId>,
    next: Option<BufferId>,
    /// Only in the plan of nextn drafts.
    pub(super) hidden_row: Option<BufferId>,
    /// Only in plans with adapters.
    adapters: Option<BufferId>,
    temperature: Option<BufferId>,
    top_k: Option<BufferId>,
    top_p: Option<BufferId>,
    min_p: Option<BufferId>,
    /// Only in plans with one row of logits per sequence.
    edits: Option<BufferId>,
    seed: Option<BufferId>,
    pub(super) logits: Option<BufferId>,
    pub(super) hidden: Option<BufferId>,
}

impl Ports {
    fn new(plan: &Plan) -> Self {
        let mailbox = |name| plan.find(Class::Mailbox, name);
        Self {
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
            edits: mailbox(ports::ADJUSTMENTS),
            seed: mailbox(ports::SEED),
            logits: plan.find(Class::Output, ports::LOGITS),
            hidden: plan.find(Class::Output, ports::HIDDEN),
        }
    }
}

/// All plans of a model, prepared on a device.
pub(crate) struct PreparedPlans(Vec<PreparedPlan>);

impl PreparedPlans {
    pub(crate) fn prepare(
        instance: &mut dyn Instance,
        plans: Vec<Plan>,
        heartbeat: &Heartbeat,
    ) -> Result<Self, Error> {
        let prepare = |plan: Plan| {
            let prepared = instance.prepare(&plan)?;
            heartbeat.beat();
            let ports = Ports::new(&plan);
            let rows = Vec::with_capacity(plan.bucket.rows());
            let edited = Vec::with_capacity(plan.bucket.logit_rows());
            Ok(PreparedPlan { plan, prepared, ports, rows, edited, skips_nextn: false })
        };
        let mut all: Vec<_> = plans.into_iter().map(prepare).collect::<Result<_, Error>>()?;
        if all.iter().any(|plan| plan.ports.hidden_row.is_some()) {
            for PreparedPlan { plan, skips_nextn, .. } in &mut all {
                *skips_nextn = plans::skips_nextn(plan);
            }
        }
        Ok(Self(all))
    }

    pub(super) fn get(&self, index: usize) -> &PreparedPlan {
        &self.0[index]
    }

    pub(super) fn get_mut(&mut self, index: usize) -> &mut PreparedPlan {
        &mut self.0[index]
    }

    /// Number of rows of the widest plan.
    pub(super) fn widest(&self) -> usize {
        self.0.iter().map(|plan| plan.plan.bucket.rows()).max().unwrap_or(1)
    }

    /// Number of rows of the largest chunk with these outputs.
    pub(super) fn largest_chunk(&self, outputs: Outputs) -> usize {
        let buckets = self.0.iter().map(|plan| plan.plan.bucket);
        let chunks = buckets.filter(|b| b.outputs == outputs && b.chunk > 1).map(|b| b.chunk);
        chunks.max().unwrap_or(1)
    }

    /// Index of the plan that computes drafts with the model's nextn layer.
    pub(super) fn nextn(&self) -> Option<usize> {
        self.0.iter().position(|plan| plan.ports.hidden_row.is_some())
    }

    /// Index of the narrowest plan for a number of rows, among the buckets that `of` accepts. Prefers a plan that
    /// skips the nextn layer unless the step `feeds_nextn`.
    pub(super) fn narrowest(
        &self,
        rows: usize,
        adapted: bool,
        feeds_nextn: bool,
        of: impl Fn(Bucket) -> bool,
    ) -> Option<usize> {
        let fits = |one: &&PreparedPlan| {
            let same = one.ports.adapters.is_some() == adapted && !(one.skips_nextn && feeds_nextn);
            let holds = (1..=one.plan.bucket.rows()).contains(&rows);
            same && one.ports.hidden_row.is_none() && holds && of(one.plan.bucket)
        };
        let all = self.0.iter().enumerate().filter(|(_, one)| fits(one));
        all.min_by_key(|(_, one)| (one.plan.bucket.rows(), !one.skips_nextn)).map(|(i, _)| i)
    }
}

/// Writer of mailboxes, with staging buffers that are reserved once.
pub(super) struct Mailboxes {
    vocabulary: usize,
    adapters: usize,
    ints: Vec<i32>,
    floats: Vec<f32>,
}

impl Mailboxes {
    pub(super) fn new(vocabulary: usize, adapters: usize, widest: usize) -> Self {
        let ints = Vec::with_capacity(2 * widest);
        let floats = Vec::with_capacity(widest * adapters.max(1));
        Self { vocabulary, adapters, ints, floats }
    }

    /// Writes the inputs of a step, padded to its bucket. `next` is the token behind the rows, if it is known.
    pub(super) fn write_rows(
        &mut self,
        instance: &mut dyn Instance,
        to: &mut PreparedPlan,
        rows: &[Row],
        next: Option<u32>,
    ) -> Result<(), Error> {
        to.rows.clear();
        let (bucket, ports) = (to.plan.bucket, to.ports);
        let all = bucket.rows();
        let adapters = self.adapters;
        let mut writer = Writer { instance, prepared: to.prepared, staging: self };
        let padded = |n: usize| rows.iter().copied().chain(std::iter::repeat(PADDING)).take(n);
        writer.ints(ports.tokens, padded(all).map(|r| r.token as i32))?;
        writer.ints(ports.positions, padded(all).map(|r| r.position as i32))?;
        let following = rows.iter().skip(1).map(|row| row.token).chain(next);
        let following = following.map(|token| token as i32).chain(std::iter::repeat(0));
        writer.ints(ports.next, following.take(all))?;
        writer.ints(ports.slots, padded(all).map(|r| r.slot as i32))?;
        writer.ints(ports.logit_rows, std::iter::once(rows.len() as i32 - 1))?;
        let scales = padded(all).flat_map(|row| row.adapters.0.into_iter().take(adapters));
        writer.floats(ports.adapters, scales)?;
        let sampled = || padded(bucket.logit_rows()).map(|row| row.sampling);
        writer.floats(ports.temperature, sampled().map(|s| s.temperature))?;
        writer.floats(ports.top_p, sampled().map(|s| s.top_p))?;
        writer.floats(ports.min_p, sampled().map(|s| s.min_p))?;
        writer.ints(ports.top_k, sampled().map(|s| s.top_k as i32))?;
        writer.ints(ports.seed, sampled().flat_map(|s| [s.seed as i32, (s.seed >> 32) as i32]))
    }

    /// Writes the edits of rows of logits, and clears those of all other rows.
    pub(super) fn write_edits(
        &self,
        instance: &mut dyn Instance,
        to: &mut PreparedPlan,
        edits: &RowEdits<'_>,
    ) -> Result<(), Error> {
        let PreparedPlan { prepared, ports, edited, .. } = to;
        let Some(mailbox) = ports.edits else {
            match edits {
                [] => return Ok(()),
                _ => unreachable!("plans that sample one token per sequence have the mailbox"),
            }
        };
        let mut write = |row: usize, at: usize, words: &[i32]| {
            let at = row * Adjustment::words(self.vocabulary) + at;
            instance.write(*prepared, mailbox, at, Data::I32(words))
        };
        for row in edited.drain(..).filter(|row| edits.iter().all(|(other, _)| row != other)) {
            write(row, 0, &Adjustment::default().header())?;
        }
        for (row, adjustment) in edits {
            write(*row, 0, &adjustment.header())?;
            let parts = adjustment.parts(self.vocabulary);
            for (at, words) in parts.into_iter().filter(|part| !part.1.is_empty()) {
                write(*row, at, words)?;
            }
            edited.push(*row);
        }
        Ok(())
    }
}

struct Writer<'a> {
    instance: &'a mut dyn Instance,
    prepared: Prepared,
    staging: &'a mut Mailboxes,
}

impl Writer<'_> {
    fn ints(
        &mut self,
        mailbox: Option<BufferId>,
        values: impl Iterator<Item = i32>,
    ) -> Result<(), Error> {
        let Some(mailbox) = mailbox else { return Ok(()) };
        self.staging.ints.clear();
        self.staging.ints.extend(values);
        self.instance.write(self.prepared, mailbox, 0, Data::I32(&self.staging.ints))
    }

    fn floats(
        &mut self,
        mailbox: Option<BufferId>,
        values: impl Iterator<Item = f32>,
    ) -> Result<(), Error> {
        let Some(mailbox) = mailbox else { return Ok(()) };
        self.staging.floats.clear();
        self.staging.floats.extend(values);
        self.instance.write(self.prepared, mailbox, 0, Data::F32(&self.staging.floats))
    }
}
