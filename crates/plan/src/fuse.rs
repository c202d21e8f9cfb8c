//! Fusion: rewrites a plan of primitives into the fused steps that a device supports.
//!
//! Passes run from the inside out: composites, then the projections around them, then RoPE with the
//! KV write, then sampling. Each pass leaves a valid plan; steps that a device does not support
//! stay unfused.

use std::collections::{BTreeMap, BTreeSet};

use crate::attention::{Attention, Caches, QkNorm, Queries, RopeKv, RopeStyle};
use crate::buffer::{BufferId, Class, Scalar, View};
use crate::cost::cost_of;
use crate::elementwise::Binary;
use crate::op::{NextInputs, Op, Sample};
use crate::plan::Plan;
use crate::project::{Linear, MAX_WEIGHTS, Norm, NormKind, Normalise, Product, Project};
use crate::step::{ScopeId, Step};

/// Fused steps that a device supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fusions {
    pub composites: bool,
    /// Matrix products with weights become [`Op::Project`]; products of the same operand are merged
    /// (Q, K and V; gate and up with their activation).
    pub projections: bool,
    /// Fuses biases and activations into the projection before them.
    pub epilogue: bool,
    /// Fuses a norm into the projection that is its only reader.
    pub norm: bool,
    /// Fuses the residual addition into the projection before it.
    pub residual: bool,
    /// Fuses QK-norm, RoPE and the KV write into [`Op::RopeKv`].
    pub rope_kv: bool,
    /// The sampling step also writes the next step's inputs.
    pub sample_advance: bool,
    /// Runs convolutions over one or two axes as one step, without materialising their windows.
    pub convolutions: bool,
}

impl Fusions {
    /// No fusion: the plan stays in primitives.
    pub const NONE: Self = Self::every(false);

    pub const ALL: Self = Self::every(true);

    const fn every(known: bool) -> Self {
        Self {
            composites: known,
            projections: known,
            epilogue: known,
            norm: known,
            residual: known,
            rope_kv: known,
            sample_advance: known,
            convolutions: known,
        }
    }
}

#[must_use]
pub fn fuse(plan: &Plan, fusions: Fusions) -> Plan {
    let mut rewriter = Rewriter { plan: plan.clone(), uses: Vec::new(), removed: Vec::new() };
    if fusions.composites {
        rewriter.collapse_composites(fusions.convolutions);
        if fusions.projections {
            rewriter.name_projections();
            if fusions.epilogue {
                rewriter.rewrite(Rewriter::folded_epilogue);
            }
            rewriter.rewrite(Rewriter::merged_projections);
            rewriter.rewrite(Rewriter::folded_glu);
            if fusions.norm {
                rewriter.rewrite(Rewriter::folded_norm);
            }
            if fusions.residual {
                rewriter.rewrite(Rewriter::folded_residual);
            }
        }
        if fusions.rope_kv {
            rewriter.rewrite(Rewriter::fused_rope_kv);
        }
    }
    if fusions.sample_advance {
        rewriter.rewrite(Rewriter::fused_sample_advance);
    }
    rewriter.drop_unused_buffers();
    rewriter.plan
}

struct Rewriter {
    plan: Plan,
    /// Steps that use each buffer. Valid during [`Rewriter::rewrite`], like `removed`.
    uses: Vec<Uses>,
    /// True for steps that rewrites have replaced.
    removed: Vec<bool>,
}

/// Steps that use a buffer, in ascending order.
#[derive(Clone, Default)]
struct Uses {
    readers: Vec<usize>,
    writers: Vec<usize>,
}

struct Rewrite {
    old: Vec<usize>,
    /// Index of the old step that `new` replaces.
    at: usize,
    new: Step,
}

/// Queries or keys that pass through an optional norm and the rotation.
struct Rotated<'a> {
    /// Index of the RoPE step.
    rope: usize,
    style: RopeStyle,
    table: &'a View,
    /// Index of the norm step, and its operands.
    norm: Option<(usize, &'a Norm)>,
    /// Input of the norm or rotation, and output of the rotation.
    x: &'a View,
    out: &'a View,
}

impl Rotated<'_> {
    fn eps(&self) -> Option<Scalar> {
        self.norm.map(|(_, norm)| norm.eps)
    }

    fn steps(&self) -> impl Iterator<Item = usize> {
        [Some(self.rope), self.norm.map(|(step, _)| step)].into_iter().flatten()
    }
}

impl Rewriter {
    fn step(&self, op: Op, label: String) -> Step {
        let cost = cost_of(&op, &self.plan.buffers, &self.plan.bucket);
        Step { op, label, scope: None, repeat: None, cost }
    }

    fn readers(&self, buffer: BufferId) -> &[usize] {
        &self.uses[buffer.index()].readers
    }

    fn writer(&self, buffer: BufferId) -> Option<usize> {
        self.uses[buffer.index()].writers.first().copied()
    }

    /// Steps that have not been replaced.
    fn steps(&self) -> impl Iterator<Item = (usize, &Step)> {
        self.plan.steps.iter().enumerate().filter(|(at, _)| !self.removed[*at])
    }

    /// Adds a step to the uses of its buffers, or removes it from them.
    fn index(&mut self, at: usize, add: bool) {
        fn set(steps: &mut Vec<usize>, at: usize, add: bool) {
            match (steps.binary_search(&at), add) {
                (Err(place), true) => steps.insert(place, at),
                (Ok(place), false) => drop(steps.remove(place)),
                (Ok(_), true) | (Err(_), false) => {}
            }
        }
        let op = &self.plan.steps[at].op;
        for view in op.reads() {
            set(&mut self.uses[view.buffer.index()].readers, at, add);
        }
        for view in op.writes() {
            set(&mut self.uses[view.buffer.index()].writers, at, add);
        }
    }

    fn class(&self, view: &View) -> Class {
        self.plan.buffer(view.buffer).class
    }

    /// True if `view` is a scratch buffer that only the step at `reader` reads.
    fn only_read_by(&self, view: &View, reader: usize) -> bool {
        self.class(view) == Class::Scratch && self.readers(view.buffer) == [reader]
    }

    /// Applies the rewrite that `find` returns at a step, until none is left.
    fn rewrite(&mut self, find: impl Fn(&Self, usize) -> Option<Rewrite>) {
        let count = self.plan.steps.len();
        self.removed = vec![false; count];
        self.uses = vec![Uses::default(); self.plan.buffers.len()];
        for at in 0..count {
            self.index(at, true);
        }
        let mut at = 0;
        while at < count {
            let found = if self.removed[at] { None } else { find(self, at) };
            // Steps of different bodies run a different number of times.
            let found = found.filter(|found| {
                let repeat = self.plan.steps[found.at].repeat;
                found.old.iter().all(|step| self.plan.steps[*step].repeat == repeat)
            });
            let Some(Rewrite { old, at: place, new }) = found else {
                at += 1;
                continue;
            };
            for &step in old.iter().chain([&place]) {
                self.index(step, false);
                self.removed[step] = true;
            }
            let repeat = self.plan.steps[place].repeat;
            self.plan.steps[place] = Step { repeat, ..new };
            self.removed[place] = false;
            self.index(place, true);
            at = old.into_iter().fold(at, usize::min);
        }
        let mut removed = std::mem::take(&mut self.removed).into_iter();
        self.plan.steps.retain(|_| !removed.next().unwrap_or(false));
    }

    fn collapse_composites(&mut self, convolutions: bool) {
        let mut last_of: BTreeMap<ScopeId, usize> = BTreeMap::new();
        for (at, step) in self.plan.steps.iter().enumerate() {
            if let Some(scope) = step.scope {
                last_of.insert(scope, at);
            }
        }
        let mut open = self.open_scopes();
        let left = |op: &Op| match op {
            Op::Conv(conv) if !convolutions || conv.x.shape.len() > 4 => true,
            // Fused steps take no reversed operands either.
            op => op.reads().iter().any(|view| view.forward().is_none()),
        };
        let scopes = self.plan.scopes.iter().zip(0..).filter(|(op, _)| left(op));
        open.extend(scopes.map(|(_, scope)| ScopeId(scope)));
        let steps = std::mem::take(&mut self.plan.steps);
        for (at, step) in steps.into_iter().enumerate() {
            match step.scope.filter(|scope| !open.contains(scope)) {
                None => self.plan.steps.push(Step { scope: None, ..step }),
                Some(id) if last_of.get(&id) == Some(&at) => {
                    let op = self.plan.scopes[id.0 as usize].clone();
                    let new = self.step(op, step.label);
                    self.plan.steps.push(Step { repeat: step.repeat, ..new });
                }
                Some(_) => {}
            }
        }
        self.plan.scopes.clear();
    }

    /// Composites with an inner value that a step outside reads, as gradients do. They stay in
    /// primitives.
    fn open_scopes(&self) -> BTreeSet<ScopeId> {
        let mut writers = BTreeMap::new();
        for step in &self.plan.steps {
            let Some(scope) = step.scope else { continue };
            let result = self.plan.scopes[scope.0 as usize].writes();
            let inner = step.op.writes().into_iter().filter(|view| {
                self.class(view) == Class::Scratch && result.iter().all(|r| r.buffer != view.buffer)
            });
            writers.extend(inner.map(|view| (view.buffer, scope)));
        }
        let elsewhere = self.plan.steps.iter().flat_map(|step| {
            let scopes = step.op.reads().into_iter().filter_map(|view| writers.get(&view.buffer));
            scopes.copied().filter(|scope| step.scope != Some(*scope)).collect::<Vec<_>>()
        });
        elsewhere.collect()
    }

    /// Turns every product with a weight matrix into a projection.
    fn name_projections(&mut self) {
        for at in 0..self.plan.steps.len() {
            let Op::MatMul { a, b, out } = &self.plan.steps[at].op else { continue };
            // A transposed square matrix has the same shape but is not contiguous.
            let whole = self.plan.buffer(b.buffer).shape == b.shape && b.is_contiguous();
            if self.class(b) == Class::Weight && whole && b.shape.len() == 2 && a.is_contiguous() {
                let (weight, out) = (b.clone(), out.clone());
                let linear = Linear { weight, bias: None, activation: None, out };
                let product = Product::Each(vec![linear]);
                self.plan.steps[at].op = Op::Project(Project { x: a.clone(), norm: None, product });
            }
        }
    }

    /// Fuses a bias or activation into the projection that it alone reads.
    fn folded_epilogue(&self, at: usize) -> Option<Rewrite> {
        let (Op::Bias { x: made, out, .. } | Op::Activate { x: made, out, .. }) =
            &self.plan.steps[at].op
        else {
            return None;
        };
        let writer = self.writer(made.buffer)?;
        let user = &self.plan.steps[writer];
        let Op::Project(Project { x, norm: None, product: Product::Each(each) }) = &user.op else {
            return None;
        };
        let [linear @ Linear { activation: None, .. }] = &each[..] else { return None };
        if !self.only_read_by(made, at) {
            return None;
        }
        let linear = Linear { out: out.clone(), ..linear.clone() };
        let linear = match &self.plan.steps[at].op {
            Op::Bias { bias, .. } if linear.bias.is_none() => {
                Linear { bias: Some(bias.clone()), ..linear }
            }
            Op::Activate { activation, .. } => Linear { activation: Some(*activation), ..linear },
            _ => return None,
        };
        let product = Product::Each(vec![linear]);
        let project = Project { x: x.clone(), norm: None, product };
        let new = self.step(Op::Project(project), user.label.clone());
        Some(Rewrite { old: vec![writer, at], at: writer, new })
    }

    /// Merges projections of one operand into one at the place of the first. The operand is written
    /// once, before the first, so the others may move up.
    fn merged_projections(&self, at: usize) -> Option<Rewrite> {
        let single = |step: usize| match &self.plan.steps[step].op {
            Op::Project(Project { x, norm: None, product: Product::Each(each) }) => match &each[..]
            {
                [linear] => Some((x, linear)),
                _ => None,
            },
            _ => None,
        };
        // A gate and its `up` merge only with each other: `folded_glu` takes pairs.
        let glu = |linear: &Linear| match self.readers(linear.out.buffer)[..] {
            [reader] if matches!(self.plan.steps[reader].op, Op::Glu { .. }) => Some(reader),
            _ => None,
        };
        let (x, first) = single(at)?;
        let same = |step: &usize| {
            single(*step).is_some_and(|(other, linear)| other == x && glu(linear) == glu(first))
        };
        let later = self.readers(x.buffer).iter().copied().skip_while(|step| *step < at);
        let old: Vec<usize> = later.filter(same).take(MAX_WEIGHTS).collect();
        if old.len() == 1 {
            return None;
        }
        let each = old.iter().filter_map(|&step| Some(single(step)?.1.clone())).collect();
        let label = join_labels(old.iter().map(|&step| self.plan.steps[step].label.as_str()));
        let project = Project { x: x.clone(), norm: None, product: Product::Each(each) };
        Some(Rewrite { at, new: self.step(Op::Project(project), label), old })
    }

    /// Fuses `activation(gate) * up` into the pair of projections that computes `gate` and `up`.
    fn folded_glu(&self, at: usize) -> Option<Rewrite> {
        let Op::Glu { activation, gate, up, out } = &self.plan.steps[at].op else { return None };
        let writer = self.writer(gate.buffer)?;
        let pair = &self.plan.steps[writer];
        let Op::Project(Project { x, norm: None, product: Product::Each(each) }) = &pair.op else {
            return None;
        };
        let [first, second] = &each[..] else { return None };
        let made_here = first.out.buffer == gate.buffer && second.out.buffer == up.buffer;
        let plain = |linear: &Linear| linear.bias.is_none() && linear.activation.is_none();
        let read_here = self.only_read_by(gate, at) && self.only_read_by(up, at);
        if !made_here || !read_here || !plain(first) || !plain(second) {
            return None;
        }
        let (gate, up) = (first.weight.clone(), second.weight.clone());
        let product = Product::Glu { activation: *activation, gate, up, out: out.clone() };
        let project = Project { x: x.clone(), norm: None, product };
        let new = self.step(Op::Project(project), pair.label.clone());
        Some(Rewrite { old: vec![writer, at], at: writer, new })
    }

    /// Fuses a norm into the only projection that reads its result.
    fn folded_norm(&self, at: usize) -> Option<Rewrite> {
        let Op::Normalise(Normalise { x, norm, out }) = &self.plan.steps[at].op else {
            return None;
        };
        let [reader] = self.readers(out.buffer)[..] else { return None };
        let user = &self.plan.steps[reader];
        let Op::Project(Project { x: normed, norm: None, product }) = &user.op else { return None };
        if normed.buffer != out.buffer || !self.only_read_by(out, reader) || !x.is_contiguous() {
            return None;
        }
        let (norm, product) = (Some(norm.clone()), product.clone());
        let project = Project { x: x.clone(), norm, product };
        let new = self.step(Op::Project(project), user.label.clone());
        Some(Rewrite { old: vec![at, reader], at: reader, new })
    }

    /// Fuses `x + projection` into the projection, at the place of the addition.
    fn folded_residual(&self, at: usize) -> Option<Rewrite> {
        let Op::Binary { op: Binary::Add, a, b, out } = &self.plan.steps[at].op else {
            return None;
        };
        [(a, b), (b, a)].into_iter().find_map(|(sum, residual)| {
            let writer = self.writer(sum.buffer)?;
            let user = &self.plan.steps[writer];
            let Op::Project(Project { x, norm: None, product: Product::Each(each) }) = &user.op
            else {
                return None;
            };
            let [Linear { weight, bias, activation: None, .. }] = &each[..] else { return None };
            if !self.only_read_by(sum, at) || !residual.is_contiguous() {
                return None;
            }
            let (weight, bias, residual) = (weight.clone(), bias.clone(), residual.clone());
            let product = Product::Residual { weight, bias, residual, out: out.clone() };
            let project = Project { x: x.clone(), norm: None, product };
            let new = self.step(Op::Project(project), user.label.clone());
            Some(Rewrite { old: vec![writer, at], at, new })
        })
    }

    /// Fuses the rotation of queries and keys, their norms, and both KV writes into one step at the
    /// place of the last. The search starts at the key write. A prefill chunk without logits writes
    /// the last layer's keys and values but has no queries there.
    fn fused_rope_kv(&self, at: usize) -> Option<Rewrite> {
        let steps = &self.plan.steps;
        let kv_write = |step: usize| match &steps[step].op {
            Op::KvWrite { rows, values, cache, ring } => Some((rows, values, cache, *ring)),
            _ => None,
        };
        let (rows, rotated, keys, ring) = kv_write(at)?;
        let k = self.rotated(rotated, at)?;
        let mut later = self.steps().map(|(step, _)| step).skip_while(|step| *step <= at);
        let v_write = later.find(|&step| kv_write(step).is_some())?;
        let (rows_of_v, v, values, ring_of_v) = kv_write(v_write)?;
        if rows_of_v != rows || ring_of_v != ring {
            return None;
        }
        let attention = self.steps().find_map(|(step, s)| match &s.op {
            Op::Attention(Attention { q, caches, .. }) if caches.keys.buffer == keys.buffer => {
                Some((q, step))
            }
            _ => None,
        });
        let q = match attention {
            Some((q, reader)) => Some(self.rotated(q, reader)?),
            None => None,
        };
        let agrees =
            |q: &Rotated<'_>| q.style == k.style && q.table == k.table && q.eps() == k.eps();
        let dense = |q: &Rotated<'_>| q.x.is_contiguous();
        if !q.as_ref().is_none_or(|q| agrees(q) && dense(q)) || !dense(&k) || !v.is_contiguous() {
            return None;
        }
        let weight = |of: &Rotated<'_>| of.norm.map(|(_, norm)| norm.weight.clone());
        let op = Op::RopeKv(RopeKv {
            style: k.style,
            queries: q.as_ref().map(|q| Queries { q: q.x.clone(), out: q.out.clone() }),
            k: k.x.clone(),
            v: v.clone(),
            table: k.table.clone(),
            rows: rows.clone(),
            norm: k.norm.map(|(_, norm)| QkNorm {
                q: q.as_ref().and_then(weight),
                k: norm.weight.clone(),
                eps: norm.eps,
            }),
            caches: Caches { keys: keys.clone(), values: values.clone(), ring },
        });
        let mut old = vec![at, v_write];
        old.extend(q.iter().chain([&k]).flat_map(Rotated::steps));
        let new = self.step(op, steps[k.rope].label.clone());
        Some(Rewrite { at: *old.iter().max()?, new, old })
    }

    /// The rotation that computes `view` for the step at `reader` alone, and the norm before it.
    fn rotated(&self, view: &View, reader: usize) -> Option<Rotated<'_>> {
        let steps = &self.plan.steps;
        let rope = self.writer(view.buffer).filter(|_| self.only_read_by(view, reader))?;
        let Op::Rope { style, x, table, out } = &steps[rope].op else { return None };
        let normed = self.writer(x.buffer).and_then(|at| match &steps[at].op {
            Op::Normalise(normed)
                // A norm per head; a norm over all heads has another shape.
                if normed.out == *x
                    && normed.norm.kind == NormKind::Rms
                    && normed.norm.bias.is_none()
                    && self.only_read_by(x, rope) =>
            {
                Some((at, normed))
            }
            _ => None,
        });
        let norm = normed.map(|(at, normed)| (at, &normed.norm));
        let x = normed.map_or(x, |(_, normed)| &normed.x);
        Some(Rotated { rope, style: *style, table, norm, x, out })
    }

    /// Fuses sampling with the assignments that prepare the next step, at the place of the last.
    fn fused_sample_advance(&self, at: usize) -> Option<Rewrite> {
        let steps = &self.plan.steps;
        let Op::Sample(sample @ Sample { next: None, .. }) = &steps[at].op else { return None };
        let assign = |assigned: BufferId| {
            self.steps().find_map(|(step, s)| match &s.op {
                Op::Assign { value, mailbox } if value.buffer == assigned => Some((step, mailbox)),
                _ => None,
            })
        };
        let (to_tokens, tokens) = assign(sample.ids.buffer)?;
        let one =
            |view: &View| matches!(self.class(view), Class::Constant(one) if one.get() == 1.0);
        let (add, sum) = self.steps().find_map(|(step, s)| match &s.op {
            Op::Binary { op: Binary::Add, a, b, out }
                if *a == sample.inputs.positions && one(b) =>
            {
                Some((step, out))
            }
            _ => None,
        })?;
        let (to_positions, positions) = assign(sum.buffer)?;
        let next = NextInputs { tokens: tokens.clone(), positions: positions.clone() };
        let old = vec![at, add, to_tokens, to_positions];
        let op = Op::Sample(Sample { next: Some(next), ..sample.clone() });
        let new = self.step(op, steps[at].label.clone());
        Some(Rewrite { at: *old.iter().max()?, new, old })
    }

    fn drop_unused_buffers(&mut self) {
        let mut used = vec![false; self.plan.buffers.len()];
        for step in &self.plan.steps {
            for view in step.op.reads().into_iter().chain(step.op.writes()) {
                used[view.buffer.index()] = true;
            }
        }
        let mut next = 0;
        let renumbered: Vec<BufferId> = used
            .iter()
            .map(|&used| {
                next += u32::from(used);
                BufferId(next - u32::from(used))
            })
            .collect();
        let mut used = used.into_iter();
        self.plan.buffers.retain(|_| used.next() == Some(true));
        let renumber =
            |view: &View| View { buffer: renumbered[view.buffer.index()], ..view.clone() };
        for op in self.plan.steps.iter_mut().map(|step| &mut step.op).chain(&mut self.plan.scopes) {
            *op = op.map(renumber, renumber);
        }
    }
}

/// `blk.0.attn_q`, `blk.0.attn_k` -> `blk.0.attn_q,k`: writes the common prefix once.
fn join_labels<'a>(labels: impl Iterator<Item = &'a str>) -> String {
    let mut joined = String::new();
    for label in labels {
        if joined.is_empty() {
            joined.push_str(label);
            continue;
        }
        let common = joined.bytes().zip(label.bytes()).take_while(|(a, b)| a == b).count();
        let cut = label[..common].rfind(['.', '_']).map_or(0, |i| i + 1);
        joined.push(',');
        joined.push_str(&label[cut..]);
    }
    joined
}
