//! Kernel calls of single operations: those on token rows, and gathers and scatters of tensors.

use super::KernelCall;
use super::resolve::Resolver;
use crate::cpu::check::{forward, is_tensor_op, rows_of};
use crate::cpu::errors::unsupported;
use crate::cpu::gather::{Gather, Index, Scatter, TopK};
use crate::cpu::moe::{Mixture, Phase};
use crate::cpu::moe_workspace::Needs;
use crate::cpu::operand::Operand;
use crate::cpu::projection::{PackActivations, Project, ProjectGlu};
use crate::cpu::variant::{self, Variant};
use crate::precision::{residual_planes, residual_planes_of};
use crate::uses::is_table;
use crate::{Error, Result};
use plan::{Linear, Op, Product, Step, View};
use simd::activations::ActivationFormat;
use simd::packed::PackedLayout;

impl Resolver<'_> {
    /// Appends the kernel calls of a step that is not part of a fused group.
    pub(super) fn single(&self, step: &Step, calls: &mut Vec<KernelCall>) -> Result<()> {
        let op = &step.op;
        let tensor_op = match op {
            Op::Gather(gather) if self.packed(op, &gather.table).is_some() => false,
            Op::Gather(gather) if is_table(self.plan, gather) => {
                self.matrix(&gather.table).is_err()
            }
            op => is_tensor_op(self.plan, op),
        };
        if tensor_op {
            calls.push(self.tensor_op(op)?);
            return Ok(());
        }
        match (op, self.operation(op)?) {
            (Op::Project(project), Op::Project(resolved)) => {
                return self.project(project, resolved, calls);
            }
            (Op::Mixture(mixture), Op::Mixture(resolved)) => {
                let mixture = self.mixture(mixture, resolved)?;
                calls.extend(
                    Phase::ALL.map(|phase| KernelCall::Mixture(phase, Box::new(mixture.clone()))),
                );
            }
            (_, resolved) => {
                if let Op::GatedDelta(delta) = &resolved {
                    calls.push(KernelCall::PrepareDelta(Box::new(delta.clone())));
                }
                let memory = resolved.memory().copied();
                calls.push(KernelCall::Op(Box::new(resolved)));
                calls.extend(memory.map(KernelCall::RecordVersions));
            }
        }
        Ok(())
    }

    /// A gather, scatter or top-k of tensors with any strides.
    fn tensor_op(&self, op: &Op) -> Result<KernelCall> {
        Ok(match op {
            Op::Gather(plan::Gather { table, indices, out }) => {
                let axes = indices.len();
                let row = View {
                    shape: table.shape[axes..].to_vec(),
                    strides: table.strides[axes..].to_vec(),
                    ..table.clone()
                };
                KernelCall::Gather(Box::new(Gather {
                    width: row.elements(),
                    table: self.source(&row)?,
                    indices: self.indices(table, indices)?,
                    rows: indices[0].elements(),
                    out: self.address(out)?.cast(),
                }))
            }
            Op::Scatter { indices, values, table } => {
                KernelCall::Scatter(Box::new(self.scatter(indices, values, table, None)?))
            }
            Op::ScatterAdd { indices, values, out } => {
                let leading = out.shape[..indices.len()].iter().product();
                KernelCall::Scatter(Box::new(self.scatter(indices, values, out, Some(leading))?))
            }
            Op::TopK { x, out } => {
                let ((rows, width), count) = (rows_of(x), out.shape[1]);
                let (x, out) = (self.source(x)?, self.address(out)?.cast());
                KernelCall::TopK(Box::new(TopK { x, rows, width, count, out }))
            }
            op => unreachable!("{} is part of a group", op.name()),
        })
    }

    fn indices(&self, table: &View, indices: &[View]) -> Result<Vec<Index>> {
        let index = |(axis, view): (usize, &View)| {
            let (extent, stride) = (table.shape[axis], forward(table)?[axis]);
            Ok(Index { at: self.i32(view)?, step: forward(view)?[0], extent, stride })
        };
        indices.iter().enumerate().map(index).collect()
    }

    fn scatter(
        &self,
        indices: &[View],
        values: &View,
        table: &View,
        adds: Option<usize>,
    ) -> Result<Scatter> {
        let (at, width) = self.locate(table)?;
        Ok(Scatter {
            indices: self.indices(table, indices)?,
            values: self.source(values)?,
            rows: indices[0].elements(),
            width: table.shape[indices.len()..].iter().product(),
            table: at,
            stored: width,
            adds,
        })
    }

    fn project(
        &self,
        project: &plan::Project,
        resolved: plan::Project<Operand>,
        calls: &mut Vec<KernelCall>,
    ) -> Result<()> {
        let plan::Project { x, norm, product } = resolved;
        let layouts: Vec<PackedLayout> =
            product.weights().iter().map(|weight| weight.matrix().layout).collect();
        if let Some(layout) = layouts.iter().find(|layout| layout.k() != x.last) {
            return Err(Error::Invalid(format!("{} columns times {} rows", x.last, layout.k())));
        }
        let (rows, planes) = (x.rows(), residual_planes(self.plan, project));
        let formats = layouts
            .iter()
            .filter(|layout| layout.quantised())
            .map(|layout| ActivationFormat { residual_planes: planes, span: layout.span() });
        calls.push(KernelCall::PackActivations(PackActivations {
            x,
            norm,
            q8: formats.max_by_key(|format| format.span),
            f32: layouts.iter().any(|layout| !layout.quantised()),
        }));
        let case = variant::case(self.plan, project);
        let variant = Variant::of(self.isa, self.choices, case.as_ref(), widest(&layouts)?, rows);
        let used = |out: &View| residual_planes_of(self.plan, out);
        let used_planes = match &project.product {
            Product::Each(each) => each.iter().map(|linear| used(&linear.out)).collect(),
            Product::Residual { out, .. } => vec![used(out)],
            Product::Glu { .. } => Vec::new(),
        };
        let project = |linears, residual| {
            let residual_planes = planes;
            let project =
                Project { linears, used_planes, rows, residual_planes, residual, variant };
            KernelCall::Project(Box::new(project))
        };
        calls.push(match product {
            Product::Each(linears) => project(linears, None),
            Product::Residual { weight, bias, residual, out } => {
                let linear = Linear { weight, bias, activation: None, out };
                project(vec![linear], Some(residual))
            }
            Product::Glu { activation, gate, up, out } => KernelCall::ProjectGlu(ProjectGlu {
                activation,
                gate: gate.matrix(),
                up: up.matrix(),
                rows,
                residual_planes: planes,
                out: out.f32(),
                variant,
            }),
        });
        Ok(())
    }

    fn mixture(&self, op: &plan::Mixture, resolved: plan::Mixture<Operand>) -> Result<Mixture> {
        let layouts = [&resolved.gate, &resolved.up, &resolved.down]
            .map(|experts| experts.weight.matrix().layout);
        if layouts.map(|layout| layout.quantised()) != [layouts[0].quantised(); 3]
            || layouts[0].span() != layouts[1].span()
        {
            let [gate, up, down] = layouts.map(|layout| layout.dtype());
            return Err(unsupported(format!("a mixture of {gate}, {up} and {down}")));
        }
        let variant =
            Variant::of(self.isa, self.choices, None, widest(&layouts)?, resolved.x.rows());
        Ok(Mixture {
            op: resolved,
            experts: op.experts(),
            hidden: op.hidden(),
            variant,
            buffers: Needs::of(op).at(self.memory.step_scratch()),
        })
    }
}

/// The layout with the largest row groups.
fn widest(layouts: &[PackedLayout]) -> Result<&PackedLayout> {
    let widest = layouts.iter().max_by_key(|layout| layout.group_bytes());
    widest.ok_or_else(|| Error::Invalid("a product with no weights".to_owned()))
}
