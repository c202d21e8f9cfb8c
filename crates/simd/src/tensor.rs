//! Elementwise functions and reductions of rows of 4-byte values, which fused groups of tensor operations consist
//! of.
//!
//! Each lane computes what `plan` defines: sums, products and roots exactly; `exp`, `ln`, sines and cosines within
//! 2 units in the last place. Sums have sixteen `f64` accumulators over the columns, so that they have the same
//! bits on every instruction set.

use super::isa::dispatch;
use super::rope::cos_sin;
use super::vector::{LANES, Simd, exp, load_first, store_first};
use half::{bf16, f16};
use plan::{Binary, Unary};

dispatch! {
    /// Writes `op(x)` to `y`, which may be `x`.
    ///
    /// # Safety
    ///
    /// `x` and `y` are valid for `n` values; `y` is `x` or overlaps nothing.
    pub unsafe fn unary(op: Unary, x: *const f32, y: *mut f32, n: usize) = unary_in;

    /// Writes `op(a, b)` to `y`, which may be `a` or `b`; `op` is a floating-point operation.
    ///
    /// # Safety
    ///
    /// `a`, `b`, `y` are valid for `n` values; `y` is one of them or overlaps nothing.
    pub unsafe fn binary(op: Binary, a: *const f32, b: *const f32, y: *mut f32, n: usize) = binary_in;

    /// Writes `second(first(a, b), c)` of three operands to `y`, which may be one of them; each step is rounded.
    ///
    /// # Safety
    ///
    /// As for [`binary`].
    pub unsafe fn two(first: First, second: Second, x: [*const f32; 3], y: *mut f32, n: usize) = two_in;

    /// Writes `op(a, b)` to `y`, which may be `a` or `b`; for comparisons the bits of an `f32`.
    ///
    /// # Safety
    ///
    /// As for [`binary`].
    pub unsafe fn binary_of_ints(op: Binary, a: *const i32, b: *const i32, y: *mut i32, n: usize) = ints_in;

    /// Writes `max(x, bound)` or `min(x, bound)` to `y`, which may be `x`; a NaN stays. The bound is not NaN, and
    /// not -0 for a minimum.
    ///
    /// # Safety
    ///
    /// As for [`unary`].
    pub unsafe fn bounded(least: bool, bound: f32, x: *const f32, y: *mut f32, n: usize) = bounded_in;

    /// Writes `a` where `condition` is not 0, and `b` elsewhere, to `y`, which may be one of the three.
    ///
    /// # Safety
    ///
    /// As for [`binary`].
    pub unsafe fn select(condition: *const f32, a: *const f32, b: *const f32, y: *mut f32, n: usize) = select_in;

    /// Converts `x` to another type and writes the bits to `y`, which may be `x`.
    ///
    /// # Safety
    ///
    /// As for [`unary`].
    pub unsafe fn convert(to: Conversion, x: *const f32, y: *mut f32, n: usize) = convert_in;

    /// Widens `n` values to 4 bytes, exactly: 16-bit floats to `f32`, bytes to the bits of `i32`.
    ///
    /// # Safety
    ///
    /// `x` and `y` are valid for `n` values and do not overlap.
    pub unsafe fn widen(from: Narrow, x: *const u8, y: *mut f32, n: usize) = widen_in;

    /// Narrows `n` values: `f32` to the nearest, ties to even; `i32` to the lowest byte.
    ///
    /// # Safety
    ///
    /// As for [`widen`].
    pub unsafe fn narrow(to: Narrow, x: *const f32, y: *mut u8, n: usize) = narrow_in;

    /// Sum of `n` values.
    ///
    /// # Safety
    ///
    /// `x` is valid for `n` values.
    pub unsafe fn sum(x: *const f32, n: usize) -> f64 = sum_in;

    /// Writes `exp(x - less)` to `y`, which may be `x`, and returns the [`sum`] of the results.
    ///
    /// # Safety
    ///
    /// As for [`unary`].
    pub unsafe fn exponentials(x: *const f32, less: f32, y: *mut f32, n: usize) -> f64 = exponentials_in;

    /// [`plan::maximum`] of `n` values; minus infinity for none.
    ///
    /// # Safety
    ///
    /// As for [`sum`].
    pub unsafe fn largest(x: *const f32, n: usize) -> f32 = largest_in;

    /// Adds `n` values to `n` sums.
    ///
    /// # Safety
    ///
    /// `x` and `sums` are valid for `n` values and do not overlap.
    pub unsafe fn add_to(x: *const f32, sums: *mut f64, n: usize) = add_to_in;
}

/// The first operation of [`two`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    Add,
    Sub,
    Mul,
}

/// The second operation of [`two`], applied to the first one's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Second {
    Plus,
    Minus,
    /// The operand minus the result.
    From,
    Times,
}

/// Conversion of 4-byte values by [`convert`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conversion {
    /// `f32` to `i32`: rounds towards 0, saturates, NaN becomes 0.
    ToInt,
    /// `i32` to `f32`, ties to even.
    ToFloat,
    /// `f32` rounded to `f16`.
    ToHalf,
    /// `f32` rounded to `bf16`.
    ToBrain,
    /// `i32` to its lowest byte, sign extended.
    ToSigned,
    /// `i32` to its lowest byte, zero extended.
    ToUnsigned,
    /// `i32` to 1 unless it is 0.
    ToTruth,
}

/// Storage types of fewer than 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Narrow {
    /// `f16`
    Half,
    /// `bf16`
    Brain,
    /// `i8`
    Signed,
    /// `u8`
    Unsigned,
}

impl Narrow {
    /// Bytes of an element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Half | Self::Brain => 2,
            Self::Signed | Self::Unsigned => 1,
        }
    }
}

/// Loads `n` (at most 16) values, zeroes in the other lanes.
///
/// # Safety
///
/// `p` is valid for `n` values.
#[inline(always)]
unsafe fn lanes<T: Copy + Default>(p: *const T, n: usize) -> [T; LANES] {
    // SAFETY: the caller's contract; the array holds 16 values.
    unsafe {
        if n >= LANES {
            return p.cast::<[T; LANES]>().read_unaligned();
        }
        let mut t = [T::default(); LANES];
        std::ptr::copy_nonoverlapping(p, t.as_mut_ptr(), n);
        t
    }
}

/// Stores the first `n` (at most 16) values.
///
/// # Safety
///
/// `p` is valid for `n` values.
#[inline(always)]
unsafe fn put<T: Copy>(p: *mut T, x: [T; LANES], n: usize) {
    // SAFETY: the caller's contract; the array holds 16 values.
    unsafe {
        if n >= LANES {
            return p.cast::<[T; LANES]>().write_unaligned(x);
        }
        std::ptr::copy_nonoverlapping(x.as_ptr(), p, n);
    }
}

/// Applies a function to each of `n` values of some operands and writes the results to `y`, sixteen at a time. This
/// is a macro because closures are not compiled for an instruction set.
macro_rules! each {
    ($y:expr, $n:expr, [$($v:ident = $x:expr),+] => $f:expr) => {
        for i in (0..$n).step_by(LANES) {
            $(let $v = lanes($x.add(i), $n - i);)+
            let mut out = [Default::default(); LANES];
            for lane in 0..LANES {
                $(let $v = $v[lane];)+
                out[lane] = $f;
            }
            put($y.add(i), out, $n - i);
        }
    };
}

/// The same for functions that have a vector operation.
macro_rules! vectors {
    ($y:expr, $n:expr, [$($v:ident = $x:expr),+] => $f:expr) => {{
        let whole = $n / LANES * LANES;
        for i in (0..whole).step_by(LANES) {
            $(let $v = S::load($x.add(i));)+
            S::store($y.add(i), $f);
        }
        if whole < $n {
            $(let $v = load_first::<S>($x.add(whole), $n - whole);)+
            store_first::<S>($y.add(whole), $f, $n - whole);
        }
    }};
}

#[inline(always)]
unsafe fn unary_in<S: Simd>(op: Unary, x: *const f32, y: *mut f32, n: usize) {
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        match op {
            Unary::Neg => vectors!(y, n, [v = x] => S::mul(v, S::splat(-1.0))),
            Unary::Sqrt => each!(y, n, [v = x] => v.sqrt()),
            Unary::Recip => vectors!(y, n, [v = x] => S::div(S::splat(1.0), v)),
            Unary::Floor => vectors!(y, n, [v = x] => {
                let near = rounded::<S>(v);
                S::select_lt(v, near, S::sub(near, S::splat(1.0)), near)
            }),
            Unary::Round => vectors!(y, n, [v = x] => rounded::<S>(v)),
            Unary::Tanh => vectors!(y, n, [v = x] => tanh::<S>(v)),
            Unary::Ln => each!(y, n, [v = x] => ln(v)),
            Unary::Exp => vectors!(y, n, [v = x] => exp::<S>(v)),
            Unary::Sin | Unary::Cos => {
                for i in (0..n).step_by(LANES) {
                    let angles = lanes(x.add(i), n - i);
                    // The vector code loses precision for larger angles.
                    let out = if angles.iter().all(|angle| angle.abs() < 1e6) {
                        let [cosine, sine] = cos_sin::<S>(S::splat(1.0), S::load(angles.as_ptr()));
                        let mut out = [0.0; LANES];
                        S::store(out.as_mut_ptr(), if op == Unary::Sin { sine } else { cosine });
                        out
                    } else if op == Unary::Sin {
                        angles.map(|angle| f64::from(angle).sin() as f32)
                    } else {
                        angles.map(|angle| f64::from(angle).cos() as f32)
                    };
                    put(y.add(i), out, n - i);
                }
            }
        }
    }
}

/// The nearest whole numbers, ties to even. 2^23 added to a smaller magnitude leaves no fraction.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
unsafe fn rounded<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's contract.
    unsafe {
        let (whole, zero) = (S::splat(8_388_608.0), S::splat(0.0));
        let size = S::abs(x);
        let near = S::sub(S::add(size, whole), whole);
        let signed = S::select_lt(x, zero, S::mul(near, S::splat(-1.0)), near);
        // A zero has the sign of `x`.
        let signed = S::select_le(near, zero, S::mul(x, zero), signed);
        S::select_lt(size, whole, signed, x)
    }
}

/// Hyperbolic tangent, like Cephes' `tanhf`: a polynomial for magnitudes below 0.625, else `1 - 2 / (e^2x + 1)`.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
#[expect(clippy::excessive_precision, reason = "constants as the source has them")]
unsafe fn tanh<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's contract.
    unsafe {
        let (size, z, one) = (S::abs(x), S::mul(x, x), S::splat(1.0));
        let mut p = S::splat(-5.704_988_727_45e-3);
        for k in [
            2.063_908_879_54e-2,
            -5.373_971_555_31e-2,
            1.333_144_220_36e-1,
            -3.333_328_194_22e-1,
            1.0,
        ] {
            p = S::add(S::mul(p, z), S::splat(k));
        }
        let near = S::mul(x, p);
        let below = S::div(S::splat(2.0), S::add(exp::<S>(S::mul(size, S::splat(2.0))), one));
        let far = S::sub(one, below);
        let far = S::select_lt(x, S::splat(0.0), S::sub(S::splat(0.0), far), far);
        S::select_lt(size, S::splat(0.625), near, far)
    }
}

/// Natural logarithm, like Cephes' `logf`: the mantissa is reduced to between the roots of 1/2 and 2, a polynomial
/// of degree 9 is evaluated, and the exponent's share is added in two parts.
#[inline(always)]
#[expect(clippy::excessive_precision, reason = "constants as the source has them")]
fn ln(x: f32) -> f32 {
    const COEFFICIENTS: [f32; 8] = [
        -1.151_461_03e-1,
        1.167_699_87e-1,
        -1.242_014_08e-1,
        1.424_932_28e-1,
        -1.666_805_77e-1,
        2.000_071_48e-1,
        -2.499_999_4e-1,
        3.333_333_12e-1,
    ];
    // Subnormal numbers are scaled to normal ones.
    let small = x < f32::MIN_POSITIVE;
    let scaled = if small { x * 8_388_608.0 } else { x };
    let bits = scaled.to_bits() as i32;
    // Exponent and mantissa; the mantissa starts at the root of 1/2.
    let shifted = bits.wrapping_sub(0x3f35_04f3);
    let exponent = shifted >> 23;
    let m = f32::from_bits((bits.wrapping_sub(exponent << 23)) as u32) - 1.0;
    let e = exponent as f32 - if small { 23.0 } else { 0.0 };
    let z = m * m;
    let mut p = 7.037_683_63e-2;
    for k in COEFFICIENTS {
        p = p * m + k;
    }
    let y = p * m * z - 2.121_944_4e-4 * e - 0.5 * z;
    let y = m + y + 0.693_359_375 * e;
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x >= 0.0 { y } else { f32::NAN }
}

#[inline(always)]
unsafe fn binary_in<S: Simd>(op: Binary, a: *const f32, b: *const f32, y: *mut f32, n: usize) {
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        match op {
            Binary::Add => vectors!(y, n, [a = a, b = b] => S::add(a, b)),
            Binary::Sub => vectors!(y, n, [a = a, b = b] => S::sub(a, b)),
            Binary::Mul => vectors!(y, n, [a = a, b = b] => S::mul(a, b)),
            Binary::Div => vectors!(y, n, [a = a, b = b] => S::div(a, b)),
            Binary::Max => vectors!(y, n, [a = a, b = b] => S::maximum(a, b)),
            Binary::Rem => each!(y, n, [a = a, b = b] => a % b),
            Binary::LessEqual => {
                let (one, zero) = (S::splat(1.0), S::splat(0.0));
                vectors!(y, n, [a = a, b = b] => S::select_le(a, b, one, zero));
            }
            Binary::Less => {
                let (one, zero) = (S::splat(1.0), S::splat(0.0));
                vectors!(y, n, [a = a, b = b] => S::select_lt(a, b, one, zero));
            }
            Binary::Equal => {
                let (one, zero) = (S::splat(1.0), S::splat(0.0));
                vectors!(y, n, [a = a, b = b] => {
                    S::select_le(a, b, S::select_le(b, a, one, zero), zero)
                });
            }
            Binary::Or => each!(y, n, [a = a, b = b] => f32::from_bits(a.to_bits() | b.to_bits())),
            Binary::And | Binary::Xor | Binary::ShiftLeft | Binary::ShiftRight => {
                unreachable!("{op:?} is of integers")
            }
        }
    }
}

#[inline(always)]
unsafe fn two_in<S: Simd>(
    first: First,
    second: Second,
    [a, b, c]: [*const f32; 3],
    y: *mut f32,
    n: usize,
) {
    macro_rules! all {
        ($($first:ident $by:ident)+) => {
            match (first, second) {
                $(
                    (First::$first, Second::Plus) => {
                        vectors!(y, n, [a = a, b = b, c = c] => S::add(S::$by(a, b), c));
                    }
                    (First::$first, Second::Minus) => {
                        vectors!(y, n, [a = a, b = b, c = c] => S::sub(S::$by(a, b), c));
                    }
                    (First::$first, Second::From) => {
                        vectors!(y, n, [a = a, b = b, c = c] => S::sub(c, S::$by(a, b)));
                    }
                    (First::$first, Second::Times) => {
                        vectors!(y, n, [a = a, b = b, c = c] => S::mul(S::$by(a, b), c));
                    }
                )+
            }
        };
    }
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe { all!(Add add Sub sub Mul mul) }
}

/// [`Simd::maximum`] of values and a number.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn at_least<S: Simd>(bound: f32, x: S::F) -> S::F {
    // Adding +0 turns -0 into +0, which a bound of +0 exceeds; adding -0 changes nothing.
    let zero = if bound.to_bits() == 0 { 0.0 } else { -0.0 };
    // SAFETY: the caller's contract. A NaN is the second operand, which `max` then returns.
    unsafe { S::add(S::max(S::splat(bound), x), S::splat(zero)) }
}

#[inline(always)]
unsafe fn bounded_in<S: Simd>(least: bool, bound: f32, x: *const f32, y: *mut f32, n: usize) {
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        if least {
            vectors!(y, n, [v = x] => at_least::<S>(bound, v));
        } else {
            // A NaN is the second operand, which `min` then returns.
            let bound = S::splat(bound);
            vectors!(y, n, [v = x] => S::min(bound, v));
        }
    }
}

/// Bits of 1 as `f32`.
const ONE: i32 = 0x3f80_0000;

#[inline(always)]
unsafe fn ints_in<S: Simd>(op: Binary, a: *const i32, b: *const i32, y: *mut i32, n: usize) {
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        match op {
            Binary::Add => each!(y, n, [a = a, b = b] => a.wrapping_add(b)),
            Binary::Sub => each!(y, n, [a = a, b = b] => a.wrapping_sub(b)),
            Binary::Mul => each!(y, n, [a = a, b = b] => a.wrapping_mul(b)),
            Binary::Max => each!(y, n, [a = a, b = b] => a.max(b)),
            Binary::Div => each!(y, n, [a = a, b = b] => Binary::Div.of_ints(a, b)),
            Binary::Rem => each!(y, n, [a = a, b = b] => Binary::Rem.of_ints(a, b)),
            Binary::LessEqual => each!(y, n, [a = a, b = b] => if a <= b { ONE } else { 0 }),
            Binary::Less => each!(y, n, [a = a, b = b] => if a < b { ONE } else { 0 }),
            Binary::Equal => each!(y, n, [a = a, b = b] => if a == b { ONE } else { 0 }),
            Binary::And => each!(y, n, [a = a, b = b] => a & b),
            Binary::Or => each!(y, n, [a = a, b = b] => a | b),
            Binary::Xor => each!(y, n, [a = a, b = b] => a ^ b),
            Binary::ShiftLeft => each!(y, n, [a = a, b = b] => a.wrapping_shl(b as u32)),
            Binary::ShiftRight => each!(y, n, [a = a, b = b] => a.wrapping_shr(b as u32)),
        }
    }
}

#[inline(always)]
unsafe fn select_in<S: Simd>(
    condition: *const f32,
    a: *const f32,
    b: *const f32,
    y: *mut f32,
    n: usize,
) {
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        let zero = S::splat(0.0);
        vectors!(y, n, [c = condition, a = a, b = b] => {
            S::select_le(c, zero, S::select_le(zero, c, b, a), a)
        });
    }
}

#[inline(always)]
unsafe fn convert_in<S: Simd>(to: Conversion, x: *const f32, y: *mut f32, n: usize) {
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        match to {
            Conversion::ToInt => each!(y, n, [v = x] => f32::from_bits(v as i32 as u32)),
            Conversion::ToFloat => each!(y, n, [v = x] => v.to_bits() as i32 as f32),
            Conversion::ToHalf => {
                for i in (0..n).step_by(LANES) {
                    let mut half = [0u16; LANES];
                    S::store_f16(half.as_mut_ptr(), load_first::<S>(x.add(i), n - i));
                    store_first::<S>(y.add(i), S::load_f16(half.as_ptr()), n - i);
                }
            }
            Conversion::ToBrain => each!(y, n, [v = x] => bf16::from_f32(v).to_f32()),
            Conversion::ToSigned => each!(y, n, [v = x] => integer(v.to_bits() as i8 as i32)),
            Conversion::ToUnsigned => each!(y, n, [v = x] => integer(v.to_bits() as u8 as i32)),
            Conversion::ToTruth => each!(y, n, [v = x] => integer((v.to_bits() != 0) as i32)),
        }
    }
}

#[inline(always)]
unsafe fn widen_in<S: Simd>(from: Narrow, x: *const u8, y: *mut f32, n: usize) {
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        match from {
            Narrow::Signed => each!(y, n, [v = x.cast::<i8>()] => integer(i32::from(v))),
            Narrow::Unsigned => each!(y, n, [v = x] => integer(i32::from(v))),
            Narrow::Half => {
                for i in (0..n).step_by(LANES) {
                    let bits = lanes(x.cast::<u16>().add(i), n - i);
                    store_first::<S>(y.add(i), S::load_f16(bits.as_ptr()), n - i);
                }
            }
            Narrow::Brain => {
                for i in (0..n).step_by(LANES) {
                    let bits = lanes(x.cast::<u16>().add(i), n - i);
                    store_first::<S>(y.add(i), S::load_bf16(bits.as_ptr()), n - i);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn narrow_in<S: Simd>(to: Narrow, x: *const f32, y: *mut u8, n: usize) {
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        match to {
            Narrow::Signed | Narrow::Unsigned => each!(y, n, [v = x] => v.to_bits() as u8),
            Narrow::Brain => each!(y.cast::<u16>(), n, [v = x] => bf16::from_f32(v).to_bits()),
            Narrow::Half => {
                for i in (0..n).step_by(LANES) {
                    let mut half = [0u16; LANES];
                    S::store_f16(half.as_mut_ptr(), load_first::<S>(x.add(i), n - i));
                    put(y.cast::<u16>().add(i), half, n - i);
                }
            }
        }
    }
}

/// Stores an `i32` in a 4-byte `f32` slot.
#[inline(always)]
const fn integer(value: i32) -> f32 {
    f32::from_bits(value as u32)
}

/// Widens one value, like [`widen`].
///
/// # Safety
///
/// `x` is valid for the value.
#[must_use]
pub unsafe fn widened(from: Narrow, x: *const u8) -> f32 {
    // SAFETY: the caller's contract.
    unsafe {
        match from {
            Narrow::Half => f16::from_bits(*x.cast()).to_f32(),
            Narrow::Brain => bf16::from_bits(*x.cast()).to_f32(),
            Narrow::Signed => integer(i32::from(*x.cast::<i8>())),
            Narrow::Unsigned => integer(i32::from(*x)),
        }
    }
}

#[inline(always)]
unsafe fn sum_in<S: Simd>(x: *const f32, n: usize) -> f64 {
    let mut sums = [0.0f64; LANES];
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        for i in (0..n).step_by(LANES) {
            let values = lanes(x.add(i), n - i);
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum += f64::from(value);
            }
        }
    }
    sums.iter().sum()
}

#[inline(always)]
unsafe fn exponentials_in<S: Simd>(x: *const f32, less: f32, y: *mut f32, n: usize) -> f64 {
    let mut sums = [0.0f64; LANES];
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        let less = S::splat(less);
        for i in (0..n).step_by(LANES) {
            let e = exp::<S>(S::sub(load_first::<S>(x.add(i), n - i), less));
            let e = S::first(e, n - i, S::splat(0.0));
            store_first::<S>(y.add(i), e, n - i);
            let mut values = [0.0; LANES];
            S::store(values.as_mut_ptr(), e);
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum += f64::from(value);
            }
        }
    }
    sums.iter().sum()
}

#[inline(always)]
unsafe fn largest_in<S: Simd>(x: *const f32, n: usize) -> f32 {
    const CHAINS: usize = 4;
    let none = f32::NEG_INFINITY;
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        let mut largest = [S::splat(none); CHAINS];
        for i in (0..n).step_by(CHAINS * LANES) {
            for (chain, largest) in largest.iter_mut().enumerate() {
                let at = i + chain * LANES;
                if at < n {
                    let x = S::first(load_first::<S>(x.add(at), n - at), n - at, S::splat(none));
                    *largest = S::maximum(*largest, x);
                }
            }
        }
        let [a, b, c, d] = largest;
        let mut lanes = [none; LANES];
        S::store(lanes.as_mut_ptr(), S::maximum(S::maximum(a, b), S::maximum(c, d)));
        lanes.into_iter().fold(none, plan::maximum)
    }
}

#[inline(always)]
unsafe fn add_to_in<S: Simd>(x: *const f32, sums: *mut f64, n: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        for i in 0..n {
            *sums.add(i) += f64::from(*x.add(i));
        }
    }
}
