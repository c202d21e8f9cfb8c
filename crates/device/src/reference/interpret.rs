//! Interpreter of primitives: one plain function per primitive, over strided views.

use half::{bf16, f16};

use super::storage::{Operand, Storage, offsets, offsets_of};
use super::{Error, Result, recurrent};
use plan::sample::{self, Adjustment, Sampling};
use plan::{DType, Gather, Op, Plan, Reduce, Sample, Unary, View, quant};

pub(super) fn supported(plan: &Plan) -> Result<()> {
    match plan.steps.iter().find(|step| !step.op.is_primitive()) {
        Some(step) => Err(Error::Unsupported {
            device: super::DEVICE,
            what: format!("fused step {}", step.op.name()),
        }),
        None => Ok(()),
    }
}

/// Executes the steps and calls `done` with the index of each after it.
pub(super) fn run(plan: &Plan, storage: &mut [Storage], mut done: impl FnMut(usize)) {
    for (steps, count) in plan.blocks() {
        for at in std::iter::repeat_n(steps, count).flatten() {
            execute(&plan.steps[at].op, storage);
            done(at);
        }
    }
}

fn execute(op: &Op, storage: &mut [Storage]) {
    let remembered = match op {
        Op::ShortConv(conv) => Some((&conv.out, recurrent::short_conv(conv, storage))),
        Op::DeltaRule(rule) => Some((&rule.out, recurrent::delta_rule(rule, storage))),
        _ => None,
    };
    if let Some((target, result)) = remembered {
        return put(target, result, storage);
    }
    let read = |view| Operand::of(view, storage);
    let dtype = |view: &View| storage[view.buffer.index()].dtype;
    // The result is computed separately, so that a step may overwrite its inputs.
    let (target, result): (&View, Vec<f32>) = match op {
        Op::Unary { op, x, out } => (out, read(x).elements().map(|x| unary(*op, x)).collect()),
        Op::Binary { op, a, b, out } if dtype(a) == DType::I32 => {
            let result = |(a, b)| match op {
                op if op.is_comparison() => op.of_ints(a, b) as f32,
                op => f32::from_bits(op.of_ints(a, b) as u32),
            };
            (out, read(a).ints().zip(read(b).whole()).map(result).collect())
        }
        Op::Binary { op, a, b, out } => {
            let pairs = read(a).elements().zip(read(b).elements());
            (out, pairs.map(|(a, b)| op.of_floats(a, b)).collect())
        }
        Op::Where { condition, a, b, out } => {
            let chosen = |((c, a), b): ((f32, f32), f32)| if c == 0.0 { b } else { a };
            let pairs = read(condition).elements().zip(read(a).elements());
            (out, pairs.zip(read(b).elements()).map(chosen).collect())
        }
        Op::Cast { x, out } => (out, cast(read(x), dtype(out))),
        Op::Copy { x, out } | Op::Assign { value: x, mailbox: out } => {
            (out, read(x).elements().collect())
        }
        Op::Reduce { op, axis, x, out } => (out, reduce(read(x), *op, *axis)),
        Op::Pad { axis, before, x, out } => (out, pad(read(x), out, *axis, *before)),
        Op::Iota { out } => (out, (0..out.elements()).map(|i| i as f32).collect()),
        Op::MatMul { a, b, out } => (out, matmul(read(a), read(b))),
        Op::TopK { x, out } => (out, top_k(read(x), out.shape[1])),
        Op::Gather(Gather { table, indices, out }) => {
            let indices: Vec<Operand<'_>> = indices.iter().map(read).collect();
            (out, gather(read(table), &indices))
        }
        Op::Scatter { indices, values, table } => {
            let indices: Vec<Operand<'_>> = indices.iter().map(read).collect();
            let writes = scatter(table, &indices, read(values));
            let values = &mut storage[table.buffer.index()].values;
            for (at, value) in writes {
                values[at] = value;
            }
            return;
        }
        Op::ScatterAdd { indices, values, out } => {
            let indices: Vec<Operand<'_>> = indices.iter().map(read).collect();
            let whole = View { offset: 0, ..out.clone() };
            let mut sums = vec![0.0; out.elements()];
            for (at, value) in scatter(&whole, &indices, read(values)) {
                sums[at] += f64::from(value);
            }
            (out, sums.into_iter().map(|sum| sum as f32).collect())
        }
        Op::Sample(sample) => (&sample.ids, choose(sample, storage)),
        fused => unreachable!("`supported` refuses {}", fused.name()),
    };
    put(target, result, storage);
}

fn put(target: &View, result: Vec<f32>, storage: &mut [Storage]) {
    let values = &mut storage[target.buffer.index()].values;
    for (at, value) in offsets(target).zip(result) {
        values[at] = value;
    }
}

fn unary(op: Unary, x: f32) -> f32 {
    let x = f64::from(x);
    (match op {
        Unary::Neg => -x,
        Unary::Exp => x.exp(),
        Unary::Ln => x.ln(),
        Unary::Sqrt => x.sqrt(),
        Unary::Recip => 1.0 / x,
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Floor => x.floor(),
        Unary::Round => x.round_ties_even(),
        Unary::Tanh => x.tanh(),
    }) as f32
}

fn cast(x: Operand<'_>, to: DType) -> Vec<f32> {
    let bits = |value: i32| f32::from_bits(value as u32);
    match (x.storage.dtype.is_integer(), to) {
        (false, DType::F16) => x.elements().map(|v| f16::from_f32(v).to_f32()).collect(),
        (false, DType::BF16) => x.elements().map(|v| bf16::from_f32(v).to_f32()).collect(),
        (false, DType::I32) => x.elements().map(|v| bits(v as i32)).collect(),
        (false, _) if to.is_quantised() => stored(&x.elements().collect::<Vec<f32>>(), to),
        (true, DType::F32) => x.ints().map(|v| v as f32).collect(),
        (true, _) => x.ints().map(|v| bits(to.stored(v))).collect(),
        (false, _) => x.elements().collect(),
    }
}

/// Values after a round trip through blocks of a type.
fn stored(values: &[f32], dtype: DType) -> Vec<f32> {
    let mut bytes = vec![0; values.len() / dtype.block_len() * dtype.block_bytes()];
    quant::store(dtype, values, &mut bytes);
    let mut stored = vec![0.0; values.len()];
    match quant::dequantise(dtype, &bytes, &mut stored) {
        Ok(()) => stored,
        Err(error) => unreachable!("as many bytes as there are values: {error}"),
    }
}

fn reduce(x: Operand<'_>, op: Reduce, axis: usize) -> Vec<f32> {
    let (len, stride) = (x.view.shape[axis], x.view.strides[axis]);
    let first = x.view.slice(axis, 0, 1);
    let place = move |at: usize, i: usize| at.wrapping_add_signed(i.cast_signed() * stride);
    let run = |at: usize| (0..len).map(move |i| x.storage.values[place(at, i)]);
    let ints = |at: usize| (0..len).map(move |i| x.storage.int(place(at, i)));
    let bits = |value: i32| f32::from_bits(value as u32);
    offsets(&first)
        .map(|at| match op {
            Reduce::Sum if x.storage.dtype == DType::I32 => {
                bits(ints(at).fold(0, i32::wrapping_add))
            }
            Reduce::Max if x.storage.dtype == DType::I32 => bits(ints(at).fold(i32::MIN, i32::max)),
            Reduce::Sum => run(at).map(f64::from).sum::<f64>() as f32,
            Reduce::Max => run(at).fold(f32::NEG_INFINITY, plan::maximum),
        })
        .collect()
}

fn pad(x: Operand<'_>, target: &View, axis: usize, before: usize) -> Vec<f32> {
    let mut result = vec![0.0; target.elements()];
    let window = View { offset: 0, ..target.clone() }.slice(axis, before, x.view.shape[axis]);
    for (at, value) in offsets(&window).zip(x.elements()) {
        result[at] = value;
    }
    result
}

/// Values of a row of a matrix that starts at offset `base`.
fn matrix_row(x: Operand<'_>, base: usize, row: usize) -> Vec<f64> {
    let [rows, columns] = *x.view.strides.last_chunk().unwrap_or(&[0; 2]);
    let first = base.wrapping_add_signed(row.cast_signed() * rows);
    let places = (0..).map(|column| first.wrapping_add_signed(column * columns));
    let count = x.view.shape.last().copied().unwrap_or(1);
    places.take(count).map(|place| f64::from(x.storage.values[place])).collect()
}

fn matmul(a: Operand<'_>, b: Operand<'_>) -> Vec<f32> {
    let rank = a.view.shape.len();
    let (m, n) = (a.view.shape[rank - 2], b.view.shape[rank - 2]);
    let heads = |x: &View| {
        offsets_of(x.offset, x.shape[..rank - 2].to_vec(), x.strides[..rank - 2].to_vec())
    };
    let mut result = vec![0.0; a.view.shape[..rank - 1].iter().product::<usize>() * n];
    for (head, (base_a, base_b)) in heads(a.view).zip(heads(b.view)).enumerate() {
        let left: Vec<Vec<f64>> = (0..m).map(|row| matrix_row(a, base_a, row)).collect();
        for j in 0..n {
            let right = matrix_row(b, base_b, j);
            for (i, left) in left.iter().enumerate() {
                let sum = left.iter().zip(&right).map(|(x, y)| x * y).sum::<f64>();
                result[(head * m + i) * n + j] = sum as f32;
            }
        }
    }
    result
}

fn top_k(x: Operand<'_>, count: usize) -> Vec<f32> {
    let values: Vec<f32> = x.elements().collect();
    let mut best = vec![0; count];
    let rows = values.chunks(x.view.shape[1]);
    rows.flat_map(|row| {
        plan::top_k(row, &mut best);
        best.iter().map(|&index| f32::from_bits(index)).collect::<Vec<_>>()
    })
    .collect()
}

/// Start of each indexed row in the table; `None` for an index out of range.
fn row_starts(table: &View, indices: &[Operand<'_>]) -> Vec<Option<usize>> {
    let rows = indices[0].view.elements();
    let columns: Vec<Vec<i32>> = indices.iter().map(|i| i.ints().collect()).collect();
    let start = |row: usize| {
        columns.iter().enumerate().try_fold(table.offset, |at, (axis, column)| {
            let index = usize::try_from(column[row]).ok().filter(|i| *i < table.shape[axis])?;
            Some(at.wrapping_add_signed(index.cast_signed() * table.strides[axis]))
        })
    };
    (0..rows).map(start).collect()
}

fn gather(table: Operand<'_>, indices: &[Operand<'_>]) -> Vec<f32> {
    let (shape, strides) =
        (&table.view.shape[indices.len()..], &table.view.strides[indices.len()..]);
    let width: usize = shape.iter().product();
    let mut result = Vec::new();
    for start in row_starts(table.view, indices) {
        match start {
            Some(at) => {
                result.extend(
                    offsets_of(at, shape.to_vec(), strides.to_vec())
                        .map(|at| table.storage.values[at]),
                );
            }
            None => result.resize(result.len() + width, 0.0),
        }
    }
    result
}

/// Offsets in the target with their new values.
fn scatter(target: &View, indices: &[Operand<'_>], values: Operand<'_>) -> Vec<(usize, f32)> {
    let (shape, strides) = (&target.shape[indices.len()..], &target.strides[indices.len()..]);
    let mut values = values.elements();
    let width: usize = shape.iter().product();
    let mut writes = Vec::new();
    for start in row_starts(target, indices) {
        let row = values.by_ref().take(width);
        match start {
            Some(at) => writes.extend(offsets_of(at, shape.to_vec(), strides.to_vec()).zip(row)),
            None => row.for_each(drop),
        }
    }
    writes
}

fn choose(sample: &Sample, storage: &[Storage]) -> Vec<f32> {
    let floats = |view| Operand::of(view, storage).elements().collect::<Vec<f32>>();
    let ints = |view| Operand::of(view, storage).ints().collect::<Vec<i32>>();
    let (logits, inputs) = (floats(&sample.logits), &sample.inputs);
    let (temperature, top_p) = (floats(&inputs.temperature), floats(&inputs.top_p));
    let (min_p, top_k, seed) = (floats(&inputs.min_p), ints(&inputs.top_k), ints(&inputs.seed));
    let vocabulary = sample.logits.shape[1].max(1);
    let adjustments = inputs.adjustments.as_ref().map(ints);
    let positions = ints(&inputs.positions);
    let row = |(i, logits): (usize, &[f32])| {
        let sampling = Sampling {
            temperature: temperature[i],
            top_k: top_k[i] as u32,
            top_p: top_p[i],
            min_p: min_p[i],
            seed: u64::from(seed[2 * i] as u32) | u64::from(seed[2 * i + 1] as u32) << 32,
        };
        let mut logits = logits.to_vec();
        let words = Adjustment::words(vocabulary);
        let row = adjustments.as_ref().map(|all| &all[i * words..][..words]);
        if let Some(adjustment) = row.and_then(|row| Adjustment::of(row, vocabulary)) {
            adjustment.apply(&mut logits);
        }
        f32::from_bits(sample::choose(&logits, sampling, positions[i] as u32, &mut Vec::new()))
    };
    logits.chunks(vocabulary).enumerate().map(row).collect()
}
