//! Rewrites a plan of primitives into the fused steps a device knows.
//!
//! Passes run from the inside out: composites first, then projections around them, then RoPE with
//! the KV write, then sampling. Each leaves a valid plan; what a device does not know stays as it
//! was.

use std::collections::BTreeMap;

use super::cost::cost_of;
use super::{BufferId, Class, Composite, Epilogue, Op, Plan, ScopeId, Step, View};

/// The fused steps a device knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fusions {
    /// Composites as single steps.
    pub composites: bool,
    /// Matrix products with weights as [`Op::Project`], those of one operand merged (Q, K and V as
    /// one; gate and up with SiLU and product).
    pub projections: bool,
    /// RMSNorm into the projection that alone reads it.
    pub norm: bool,
    /// Residual addition into the projection before it.
    pub residual: bool,
    /// QK-norm, RoPE and the KV write as [`Op::RopeKv`].
    pub rope_kv: bool,
    /// The next step's inputs written by the sampling step.
    pub sample_advance: bool,
}

impl Fusions {
    /// No fusion: the plan stays in primitives.
    pub const NONE: Self = Self {
        composites: false,
        projections: false,
        norm: false,
        residual: false,
        rope_kv: false,
        sample_advance: false,
    };

    /// Everything this module can do.
    pub const ALL: Self = Self {
        composites: true,
        projections: true,
        norm: true,
        residual: true,
        rope_kv: true,
        sample_advance: true,
    };
}

/// The plan rewritten to use `fusions`.
#[must_use]
pub fn fuse(plan: &Plan, fusions: Fusions) -> Plan {
    let mut rewriter = Rewriter { plan: plan.clone() };
    if fusions.composites {
        rewriter.collapse_composites();
        if fusions.projections {
            rewriter.merge_projections();
            rewriter.fold_swiglu();
            if fusions.norm {
                rewriter.fold_norms();
            }
            if fusions.residual {
                rewriter.fold_residuals();
            }
        }
        if fusions.rope_kv {
            rewriter.fuse_rope_kv();
        }
    }
    if fusions.sample_advance {
        rewriter.fuse_sample_advance();
    }
    rewriter.drop_unused_buffers();
    rewriter.plan
}

struct Rewriter {
    plan: Plan,
}

/// Queries or keys on their way through norm and rotation.
struct Rotated<'a> {
    /// The step that rotates.
    rope: usize,
    /// The step that normalises, and its epsilon.
    norm: Option<(usize, super::Attribute)>,
    /// What goes in.
    x: &'a View,
}

impl Rotated<'_> {
    fn eps(&self) -> Option<super::Attribute> {
        self.norm.map(|(_, eps)| eps)
    }
}

impl Rewriter {
    fn step(&self, op: Op, label: String, reads: Vec<View>, writes: Vec<View>) -> Step {
        let cost = cost_of(&op, &reads, &writes, &self.plan.buffers, &self.plan.bucket);
        Step { op, label, reads, writes, scope: None, cost }
    }

    /// Steps that read any part of the buffer.
    fn readers(&self, buffer: BufferId) -> Vec<usize> {
        let reads = |step: &Step| step.reads.iter().any(|view| view.buffer == buffer);
        (0..self.plan.steps.len()).filter(|&at| reads(&self.plan.steps[at])).collect()
    }

    /// The step that writes the (scratch) buffer.
    fn writer(&self, buffer: BufferId) -> Option<usize> {
        self.plan.steps.iter().position(|step| step.writes.iter().any(|view| view.buffer == buffer))
    }

    fn class(&self, view: &View) -> Class {
        self.plan.buffer(view.buffer).class
    }

    /// True when `view` is a scratch buffer that only the step at `reader` reads.
    fn only_read_by(&self, view: &View, reader: usize) -> bool {
        self.class(view) == Class::Scratch && self.readers(view.buffer) == [reader]
    }

    /// Replaces the steps at `old` (ascending) by `new`, standing where `at` stood.
    fn replace(&mut self, old: &[usize], at: usize, new: Step) {
        let steps = std::mem::take(&mut self.plan.steps);
        let mut new = Some(new);
        for (i, step) in steps.into_iter().enumerate() {
            if i == at {
                self.plan.steps.extend(new.take());
            } else if !old.contains(&i) {
                self.plan.steps.push(step);
            }
        }
    }

    fn collapse_composites(&mut self) {
        let mut last_of: BTreeMap<ScopeId, usize> = BTreeMap::new();
        for (at, step) in self.plan.steps.iter().enumerate() {
            if let Some(scope) = step.scope {
                last_of.insert(scope, at);
            }
        }
        let steps = std::mem::take(&mut self.plan.steps);
        for (at, step) in steps.into_iter().enumerate() {
            let Some(id) = step.scope else {
                self.plan.steps.push(step);
                continue;
            };
            if last_of.get(&id) == Some(&at) {
                let scope = self.plan.scopes[id.0 as usize].clone();
                let fused = self.step(
                    Op::Composite(scope.composite),
                    step.label,
                    scope.reads,
                    scope.writes,
                );
                self.plan.steps.push(fused);
            }
        }
        self.plan.scopes.clear();
    }

    /// Every product with a weight becomes a projection; neighbours that read the same operand
    /// become one, at the place of the first.
    fn merge_projections(&mut self) {
        for at in 0..self.plan.steps.len() {
            let step = &self.plan.steps[at];
            let is_weight =
                |view: &View| self.class(view) == Class::Weight && view.shape.len() == 2;
            if step.op == Op::MatMul && is_weight(&step.reads[1]) && step.reads[0].is_contiguous() {
                self.plan.steps[at].op =
                    Op::Project { norm: None, weights: 1, epilogue: Epilogue::None };
            }
        }
        let mut at = 0;
        while at < self.plan.steps.len() {
            let mut group = vec![at];
            if let Op::Project { weights: 1, .. } = self.plan.steps[at].op {
                let x = self.plan.steps[at].reads[0].clone();
                // The operand is written once, before the first of them: the others may move up.
                for next in at + 1..self.plan.steps.len() {
                    let step = &self.plan.steps[next];
                    if matches!(step.op, Op::Project { weights: 1, .. })
                        && step.reads[0] == x
                        && group.len() < 3
                    {
                        group.push(next);
                    }
                }
            }
            if group.len() > 1 {
                let members: Vec<&Step> = group.iter().map(|&i| &self.plan.steps[i]).collect();
                let mut reads = vec![members[0].reads[0].clone()];
                reads.extend(members.iter().map(|step| step.reads[1].clone()));
                let writes = members.iter().map(|step| step.writes[0].clone()).collect();
                let label = join_labels(members.iter().map(|step| step.label.as_str()));
                let op = Op::Project { norm: None, weights: group.len(), epilogue: Epilogue::None };
                let merged = self.step(op, label, reads, writes);
                self.replace(&group, at, merged);
            }
            at += 1;
        }
    }

    /// `silu(gate) * up` into the pair of projections that made `gate` and `up`.
    fn fold_swiglu(&mut self) {
        let mut at = 0;
        while at < self.plan.steps.len() {
            let step = &self.plan.steps[at];
            let folded = (step.op == Op::Composite(Composite::SwiGlu)).then(|| {
                let [gate, up] = &step.reads[..] else { return None };
                let writer = self.writer(gate.buffer)?;
                let pair = &self.plan.steps[writer];
                let is_pair = pair.op
                    == Op::Project { norm: None, weights: 2, epilogue: Epilogue::None }
                    && pair.writes[0].buffer == gate.buffer
                    && pair.writes[1].buffer == up.buffer
                    && self.only_read_by(gate, at)
                    && self.only_read_by(up, at);
                is_pair.then(|| {
                    let op = Op::Project { norm: None, weights: 2, epilogue: Epilogue::SwiGlu };
                    (
                        writer,
                        self.step(op, pair.label.clone(), pair.reads.clone(), step.writes.clone()),
                    )
                })
            });
            if let Some(Some((writer, new))) = folded {
                self.replace(&[writer, at], writer, new);
            } else {
                at += 1;
            }
        }
    }

    /// RMSNorm into the one projection that reads its result.
    fn fold_norms(&mut self) {
        let mut at = 0;
        while at < self.plan.steps.len() {
            let step = &self.plan.steps[at];
            let folded = match step.op {
                Op::Composite(Composite::RmsNorm { eps }) => {
                    match self.readers(step.writes[0].buffer)[..] {
                        [reader] => Some((eps, reader)),
                        _ => None,
                    }
                }
                _ => None,
            };
            let new = folded.and_then(|(eps, reader)| {
                let user = &self.plan.steps[reader];
                let Op::Project { norm: None, weights, epilogue } = user.op else { return None };
                if user.reads[0].buffer != step.writes[0].buffer || !step.reads[0].is_contiguous() {
                    return None;
                }
                let mut reads = vec![step.reads[0].clone(), step.reads[1].clone()];
                reads.extend(user.reads[1..].iter().cloned());
                let op = Op::Project { norm: Some(eps), weights, epilogue };
                Some((reader, self.step(op, user.label.clone(), reads, user.writes.clone())))
            });
            if let Some((reader, new)) = new {
                self.replace(&[at, reader], reader, new);
            } else {
                at += 1;
            }
        }
    }

    /// `x + projection` into the projection, at the place of the addition.
    fn fold_residuals(&mut self) {
        let mut at = 0;
        while at < self.plan.steps.len() {
            let step = &self.plan.steps[at];
            let mut new = None;
            if step.op == Op::Binary(super::Binary::Add) {
                for side in 0..2 {
                    let (product, residual) = (&step.reads[side], &step.reads[1 - side]);
                    let Some(writer) = self.writer(product.buffer) else { continue };
                    let user = &self.plan.steps[writer];
                    let plain = Op::Project { norm: None, weights: 1, epilogue: Epilogue::None };
                    if user.op == plain
                        && self.only_read_by(product, at)
                        && residual.is_contiguous()
                    {
                        let mut reads = user.reads.clone();
                        reads.push(residual.clone());
                        let op =
                            Op::Project { norm: None, weights: 1, epilogue: Epilogue::Residual };
                        new = Some((
                            writer,
                            self.step(op, user.label.clone(), reads, step.writes.clone()),
                        ));
                        break;
                    }
                }
            }
            if let Some((writer, new)) = new {
                self.replace(&[writer, at], at, new);
            } else {
                at += 1;
            }
        }
    }

    /// The rotation of queries and keys and both KV writes, with the norms before them, as one step
    /// at the place of the last.
    fn fuse_rope_kv(&mut self) {
        while let Some((old, at, new)) = self.find_rope_kv() {
            self.replace(&old, at, new);
        }
    }

    fn find_rope_kv(&self) -> Option<(Vec<usize>, usize, Step)> {
        (0..self.plan.steps.len()).find_map(|k_write| self.rope_kv_at(k_write))
    }

    /// The fusion around the KV write of rotated keys at `k_write`, if there is one. A prefill chunk
    /// without logits writes the last layer's keys and values but has no queries there.
    fn rope_kv_at(&self, k_write: usize) -> Option<(Vec<usize>, usize, Step)> {
        let steps = &self.plan.steps;
        let is_write = |at: usize| steps[at].op == Op::Composite(Composite::KvWrite);
        let keys = steps.get(k_write).filter(|_| is_write(k_write))?;
        let [slots, positions, k_rotated] = &keys.reads[..] else { return None };
        let (k, style) = self.rotated(k_rotated, k_write)?;
        let v_write = (k_write + 1..steps.len()).find(|&at| is_write(at))?;
        let values = &steps[v_write];
        let table = &steps[k.rope].reads[1];
        if values.reads[..2] != keys.reads[..2] {
            return None;
        }
        let attention = steps.iter().position(|step| {
            matches!(step.op, Op::Composite(Composite::Attention { .. }))
                && step.reads[1].buffer == keys.writes[0].buffer
        });
        let q = match attention {
            Some(at) => {
                let (q, q_style) = self.rotated(&steps[at].reads[0], at)?;
                let agrees = q_style == style && steps[q.rope].reads[1] == *table;
                Some(if agrees && q.eps() == k.eps() { q } else { return None })
            }
            None => None,
        };
        let parts: Vec<&Rotated<'_>> = q.iter().chain([&k]).collect();
        let mut reads: Vec<View> = parts.iter().map(|part| part.x.clone()).collect();
        reads.push(values.reads[2].clone());
        if reads.iter().any(|view| !view.is_contiguous()) {
            return None;
        }
        reads.extend([table, slots, positions].map(View::clone));
        reads.extend(parts.iter().filter_map(|part| Some(steps[part.norm?.0].reads[1].clone())));
        let mut writes: Vec<View> = q.iter().map(|q| steps[q.rope].writes[0].clone()).collect();
        writes.extend([keys.writes[0].clone(), values.writes[0].clone()]);
        let mut old = vec![k_write, v_write];
        old.extend(parts.iter().flat_map(|p| [Some(p.rope), p.norm.map(|n| n.0)]).flatten());
        let op = Op::RopeKv { style, norm: k.eps(), queries: q.is_some() };
        let label = steps[k.rope].label.clone();
        let at = *old.iter().max()?;
        Some((old, at, self.step(op, label, reads, writes)))
    }

    /// The rotation that makes `view` for the step at `reader` alone, and the norm before it.
    fn rotated(&self, view: &View, reader: usize) -> Option<(Rotated<'_>, super::RopeStyle)> {
        let steps = &self.plan.steps;
        let rope = self.writer(view.buffer).filter(|_| self.only_read_by(view, reader))?;
        let Op::Composite(Composite::Rope { style }) = steps[rope].op else { return None };
        let x = &steps[rope].reads[0];
        let norm = self.writer(x.buffer).and_then(|at| match steps[at].op {
            Op::Composite(Composite::RmsNorm { eps }) if self.only_read_by(x, rope) => {
                Some((at, eps))
            }
            _ => None,
        });
        let x = norm.map_or(x, |(at, _)| &steps[at].reads[0]);
        Some((Rotated { rope, norm, x }, style))
    }

    /// Sampling and the assignments that prepare the next step, at the place of the last.
    fn fuse_sample_advance(&mut self) {
        let steps = &self.plan.steps;
        let Some(sample) = steps.iter().position(|step| step.op == Op::Sample) else { return };
        let ids = &steps[sample].writes[0];
        let assign = |value: BufferId| {
            steps.iter().position(|step| step.op == Op::Assign && step.reads[0].buffer == value)
        };
        let Some(tokens) = assign(ids.buffer) else { return };
        let next = steps.iter().position(|step| {
            step.op == Op::Binary(super::Binary::Add)
                && step.reads[0] == steps[sample].reads[5]
                && matches!(self.class(&step.reads[1]), Class::Constant(one) if one.get() == 1.0)
        });
        let Some(next) = next else { return };
        let Some(positions) = assign(steps[next].writes[0].buffer) else { return };
        let writes =
            vec![ids.clone(), steps[tokens].writes[0].clone(), steps[positions].writes[0].clone()];
        let old = [sample, next, tokens, positions];
        let Some(&at) = old.iter().max() else { return };
        let new = self.step(
            Op::SampleAdvance,
            steps[sample].label.clone(),
            steps[sample].reads.clone(),
            writes,
        );
        self.replace(&old, at, new);
    }

    fn drop_unused_buffers(&mut self) {
        let used = |id: BufferId, plan: &Plan| plan.steps.iter().any(|step| step.touches(id));
        let keep: Vec<bool> = (0..self.plan.buffers.len())
            .map(|i| u32::try_from(i).is_ok_and(|i| used(BufferId(i), &self.plan)))
            .collect();
        let mut renumbered = Vec::with_capacity(keep.len());
        let mut next = 0;
        for &kept in &keep {
            renumbered.push(BufferId(next));
            next += u32::from(kept);
        }
        let mut kept = keep.iter();
        self.plan.buffers.retain(|_| kept.next().is_some_and(|k| *k));
        for step in &mut self.plan.steps {
            for view in step.reads.iter_mut().chain(&mut step.writes) {
                view.buffer = renumbered[view.buffer.index()];
            }
        }
    }
}

/// `blk.0.attn_q`, `blk.0.attn_k` -> `blk.0.attn_q,k`: the common prefix once.
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
