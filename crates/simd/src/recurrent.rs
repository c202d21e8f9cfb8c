//! Recurrent layers: short convolutions and delta rules, 16 columns of a state at a time.

use super::isa::dispatch;
use super::scores::sigmoid_of;
use super::vector::{LANES, Simd, exp, load_first, one_and_exp, store_first};

/// Largest kernel size of a short convolution.
pub const TAPS: usize = 8;

/// Up to 16 channels of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct ShortConv {
    pub rows: usize,
    pub channels: usize,
    /// The first of these channels in the first row. Rows are `stride` apart, in all operands except `weight`.
    pub x: *const f32,
    pub stride: usize,
    /// `taps` weights per channel.
    pub weight: *const f32,
    pub taps: usize,
    /// The `taps - 1` values before the first row, or `None` for zeroes. `to` receives those up to the last row.
    pub from: Option<*const f32>,
    pub to: *mut f32,
    pub out: *mut f32,
}

/// Up to 16 columns of the state matrix of one head of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct GatedDelta {
    pub rows: usize,
    /// Rows of the matrix.
    pub size: usize,
    pub columns: usize,
    /// The first row's query; rows are `key_stride` apart.
    pub query: *const f32,
    pub key: *const f32,
    pub key_stride: usize,
    /// The first row's value; rows are `value_stride` apart.
    pub value: *const f32,
    pub value_stride: usize,
    /// The first row's decay; rows are `gate_stride` apart.
    pub decay: *const f32,
    pub beta: *const f32,
    pub gate_stride: usize,
    /// The matrix before the first row, or `None` for zeroes. `to` receives the matrix after the last row. Rows of
    /// both are `state_stride` apart.
    pub from: Option<*const f32>,
    pub to: *mut f32,
    pub state_stride: usize,
    /// `16 * size` values.
    pub scratch: *mut f32,
    /// The first row's result; rows are `out_stride` apart.
    pub out: *mut f32,
    pub out_stride: usize,
}

/// Up to 16 columns of the state matrix of one head of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRule {
    pub rows: usize,
    /// Rows of the matrix.
    pub size: usize,
    pub columns: usize,
    /// The first row's query; rows are `key_stride` apart.
    pub query: *const f32,
    pub decay: *const f32,
    pub key: *const f32,
    pub take: *const f32,
    pub add: *const f32,
    pub key_stride: usize,
    /// The first row's value; rows of it and of `out` are `value_stride` apart.
    pub value: *const f32,
    pub out: *mut f32,
    pub value_stride: usize,
    /// The matrix before the first row, or `None` for zeroes. `to` receives the matrix after the last row. Rows of
    /// both are `state_stride` apart.
    pub from: Option<*const f32>,
    pub to: *mut f32,
    pub state_stride: usize,
    /// `16 * size` values.
    pub scratch: *mut f32,
}

dispatch! {
    /// Multiplies the last `taps` values of each channel with its weights and adds the products, the oldest first.
    ///
    /// # Safety
    ///
    /// Everything is valid for channels, rows and taps as described; `taps` is 2 to [`TAPS`]; outputs overlap
    /// nothing.
    pub unsafe fn short_conv(job: &ShortConv) = short_conv_in;

    /// Updates the state matrix and multiplies it with the query, row after row.
    ///
    /// # Safety
    ///
    /// Everything is valid for rows, columns and the matrix as described; outputs overlap nothing.
    pub unsafe fn gated_delta(job: &GatedDelta) = gated_delta_in;

    /// The same with one decay per row of the matrix.
    ///
    /// # Safety
    ///
    /// As for [`gated_delta`].
    pub unsafe fn delta_rule(job: &DeltaRule) = delta_rule_in;

    /// Writes `exp(rate * softplus(step + bias))` of `n` heads to `gates`, followed by `1 / (1 + exp(-strength))`.
    ///
    /// # Safety
    ///
    /// All are valid for `n` values, `gates` for twice as many; outputs overlap nothing.
    pub unsafe fn gates(step: *const f32, bias: *const f32, rate: *const f32, strength: *const f32, n: usize, gates: *mut f32) = gates_in;
}

#[inline(always)]
unsafe fn short_conv_in<S: Simd>(job: &ShortConv) {
    let ShortConv { rows, channels: n, x, stride, weight, taps, from, to, out } = *job;
    // SAFETY: the caller's contract; every access is cut at `n` channels.
    unsafe {
        let mut weights = [S::splat(0.0); TAPS];
        for (tap, to) in weights[..taps].iter_mut().enumerate() {
            let mut column = [0.0; LANES];
            for (channel, value) in column[..n].iter_mut().enumerate() {
                *value = *weight.add(channel * taps + tap);
            }
            *to = S::load(column.as_ptr());
        }
        // The values before the next row, the oldest first.
        let mut past = [S::splat(0.0); TAPS];
        if let Some(from) = from {
            for (tap, value) in past[..taps - 1].iter_mut().enumerate() {
                *value = load_first::<S>(from.add(tap * stride), n);
            }
        }
        for row in 0..rows {
            past[taps - 1] = load_first::<S>(x.add(row * stride), n);
            let mut sum = S::splat(0.0);
            for tap in 0..taps {
                sum = S::fma(weights[tap], past[tap], sum);
            }
            store_first::<S>(out.add(row * stride), sum, n);
            past.copy_within(1..taps, 0);
        }
        for (tap, value) in past[..taps - 1].iter().enumerate() {
            store_first::<S>(to.add(tap * stride), *value, n);
        }
    }
}

#[inline(always)]
unsafe fn gated_delta_in<S: Simd>(job: &GatedDelta) {
    let GatedDelta { rows, size, columns: n, scratch, .. } = *job;
    // SAFETY: the caller's contract; every access is cut at `n` columns.
    unsafe {
        gather::<S>(job.from, job.to, job.state_stride, n, scratch, size);
        for row in 0..rows {
            let query = job.query.add(row * job.key_stride);
            let key = job.key.add(row * job.key_stride);
            let decay = S::splat(*job.decay.add(row * job.gate_stride));
            let beta = S::splat(*job.beta.add(row * job.gate_stride));
            let value = load_first::<S>(job.value.add(row * job.value_stride), n);
            // Four accumulators each, which take the matrix's rows in turn.
            let mut known = [S::splat(0.0); 4];
            for i in 0..size {
                let s = S::load(scratch.add(i * LANES));
                known[i % 4] = S::fma(s, S::splat(*key.add(i)), known[i % 4]);
            }
            let known = S::mul(decay, sum::<S>(known));
            let new = S::mul(beta, S::sub(value, known));
            let mut asked = [S::splat(0.0); 4];
            for i in 0..size {
                let s = S::mul(decay, S::load(scratch.add(i * LANES)));
                let s = S::fma(S::splat(*key.add(i)), new, s);
                S::store(scratch.add(i * LANES), s);
                asked[i % 4] = S::fma(s, S::splat(*query.add(i)), asked[i % 4]);
            }
            store_first::<S>(job.out.add(row * job.out_stride), sum::<S>(asked), n);
        }
        for i in 0..size {
            let s = S::load(scratch.add(i * LANES));
            store_first::<S>(job.to.add(i * job.state_stride), s, n);
        }
    }
}

#[inline(always)]
unsafe fn delta_rule_in<S: Simd>(job: &DeltaRule) {
    let DeltaRule { rows, size, columns: n, scratch, .. } = *job;
    // SAFETY: the caller's contract; every access is cut at `n` columns.
    unsafe {
        gather::<S>(job.from, job.to, job.state_stride, n, scratch, size);
        for row in 0..rows {
            let [query, decay, key, take, add] = [job.query, job.decay, job.key, job.take, job.add]
                .map(|p| p.add(row * job.key_stride));
            let value = load_first::<S>(job.value.add(row * job.value_stride), n);
            // Four accumulators each, which take the matrix's rows in turn.
            let mut taken = [S::splat(0.0); 4];
            for i in 0..size {
                let s = S::load(scratch.add(i * LANES));
                taken[i % 4] = S::fma(s, S::splat(*take.add(i)), taken[i % 4]);
            }
            let taken = sum::<S>(taken);
            let mut asked = [S::splat(0.0); 4];
            for i in 0..size {
                // The new part is added first, so that values of the matrix's magnitude are rounded once.
                let new = S::mul(S::splat(*add.add(i)), taken);
                let new = S::fma(S::splat(*key.add(i)), value, new);
                let s = S::fma(S::splat(*decay.add(i)), S::load(scratch.add(i * LANES)), new);
                S::store(scratch.add(i * LANES), s);
                asked[i % 4] = S::fma(s, S::splat(*query.add(i)), asked[i % 4]);
            }
            store_first::<S>(job.out.add(row * job.value_stride), sum::<S>(asked), n);
        }
        for i in 0..size {
            let s = S::load(scratch.add(i * LANES));
            store_first::<S>(job.to.add(i * job.state_stride), s, n);
        }
    }
}

/// Loads the columns of a matrix to `scratch`, and prefetches their destination: stores to distant lines would
/// otherwise wait for one another.
///
/// # Safety
///
/// As for [`gated_delta`].
#[inline(always)]
unsafe fn gather<S: Simd>(
    from: Option<*const f32>,
    to: *mut f32,
    stride: usize,
    n: usize,
    scratch: *mut f32,
    size: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        for i in 0..size {
            S::prefetch(to.add(i * stride).cast());
            let row = match from {
                Some(from) => load_first::<S>(from.add(i * stride), n),
                None => S::splat(0.0),
            };
            S::store(scratch.add(i * LANES), row);
        }
    }
}

/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
unsafe fn sum<S: Simd>([a, b, c, d]: [S::F; 4]) -> S::F {
    // SAFETY: the caller's contract.
    unsafe { S::add(S::add(a, b), S::add(c, d)) }
}

#[inline(always)]
unsafe fn gates_in<S: Simd>(
    step: *const f32,
    bias: *const f32,
    rate: *const f32,
    strength: *const f32,
    n: usize,
    gates: *mut f32,
) {
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        let zero = S::splat(0.0);
        for i in (0..n).step_by(LANES) {
            let of = |p: *const f32| load_first::<S>(p.add(i), n - i);
            let x = S::add(of(step), of(bias));
            let small = one_and_exp::<S>(S::sub(zero, S::abs(x)));
            // The standard library has no vector logarithm, and there are few heads.
            let mut rest = [0.0; LANES];
            S::store(rest.as_mut_ptr(), small);
            for rest in &mut rest {
                *rest = plan::sample::logarithm(*rest);
            }
            // The operand order of `max` preserves a NaN.
            let softplus = S::add(S::max(zero, x), S::load(rest.as_ptr()));
            let y = exp::<S>(S::mul(of(rate), softplus));
            store_first::<S>(gates.add(i), y, n - i);
            let y = sigmoid_of::<S>(of(strength));
            store_first::<S>(gates.add(n + i), y, n - i);
        }
    }
}
