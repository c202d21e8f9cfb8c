//! Scalar functions that operations apply: elementwise functions, reductions, activations.

/// Elementwise functions of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unary {
    /// `-x`
    Neg,
    /// `e^x`
    Exp,
    /// Natural logarithm; `ln 0` is minus infinity.
    Ln,
    Sqrt,
    /// `1 / x`
    Recip,
    /// Sine of an angle in radians.
    Sin,
    /// Cosine of an angle in radians.
    Cos,
    /// Largest integer that is not above `x`.
    Floor,
    /// Nearest integer, ties to even.
    Round,
    /// Hyperbolic tangent.
    Tanh,
}

/// Elementwise functions of two operands. Bitwise functions and shifts take `i32` only, except
/// [`Binary::Or`]; the others take `f32` or `i32`. Integer arithmetic wraps.
///
/// Comparisons are those of IEEE 754: false for a NaN, and -0 equals +0. Their results are `F32` for
/// any operand type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binary {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
    /// `a / b`: correctly rounded, or truncated for integers. An integer divided by 0 is 0.
    Div,
    /// `maximum(a, b)` of IEEE 754-2019: NaN if one of them is NaN, and -0 is below +0.
    Max,
    /// 1 if `a <= b`, else 0.
    LessEqual,
    /// 1 if `a < b`, else 0.
    Less,
    /// 1 if `a == b`, else 0.
    Equal,
    /// Remainder of truncated division, like C's `fmod`: it has the sign of `a`.
    Rem,
    And,
    /// Bitwise, also of two `f32`: joins parts that are padded with zeroes, without rounding.
    Or,
    Xor,
    /// `a << b`; uses the lowest five bits of `b`.
    ShiftLeft,
    /// Arithmetic `a >> b`; uses the lowest five bits of `b`.
    ShiftRight,
}

impl Binary {
    /// True if it takes integers only.
    #[must_use]
    pub const fn is_of_bits(self) -> bool {
        matches!(self, Self::And | Self::Or | Self::Xor | Self::ShiftLeft | Self::ShiftRight)
    }

    /// True if the result is 0 or 1.
    #[must_use]
    pub const fn is_comparison(self) -> bool {
        matches!(self, Self::LessEqual | Self::Less | Self::Equal)
    }

    /// Evaluates the function on floats.
    #[must_use]
    pub const fn of_floats(self, a: f32, b: f32) -> f32 {
        let truth = match self {
            Self::Add => return a + b,
            Self::Sub => return a - b,
            Self::Mul => return a * b,
            Self::Div => return a / b,
            Self::Max => return maximum(a, b),
            Self::Rem => return a % b,
            Self::LessEqual => a <= b,
            Self::Less => a < b,
            Self::Equal => a == b,
            Self::And | Self::Or | Self::Xor | Self::ShiftLeft | Self::ShiftRight => {
                let [a, b] = [a.to_bits().cast_signed(), b.to_bits().cast_signed()];
                return f32::from_bits(self.of_ints(a, b).cast_unsigned());
            }
        };
        if truth { 1.0 } else { 0.0 }
    }

    /// Evaluates the function on integers; comparisons also return an integer.
    #[must_use]
    pub const fn of_ints(self, a: i32, b: i32) -> i32 {
        match self {
            Self::Add => a.wrapping_add(b),
            Self::Sub => a.wrapping_sub(b),
            Self::Mul => a.wrapping_mul(b),
            Self::Max => {
                if a > b {
                    a
                } else {
                    b
                }
            }
            Self::LessEqual => (a <= b) as i32,
            Self::Less => (a < b) as i32,
            Self::Equal => (a == b) as i32,
            // A quotient and a remainder by zero are defined as 0.
            Self::Div => match b {
                0 => 0,
                _ => a.wrapping_div(b),
            },
            Self::Rem => match b {
                0 => 0,
                _ => a.wrapping_rem(b),
            },
            Self::And => a & b,
            Self::Or => a | b,
            Self::Xor => a ^ b,
            Self::ShiftLeft => a.wrapping_shl(b as u32),
            Self::ShiftRight => a.wrapping_shr(b as u32),
        }
    }
}

/// `maximum` of IEEE 754-2019: NaN if one of them is NaN, and -0 is below +0.
#[must_use]
pub const fn maximum(a: f32, b: f32) -> f32 {
    if a > b {
        a
    } else if a < b {
        b
    } else if a == b {
        // Equal bits, or zeroes of both signs.
        f32::from_bits(a.to_bits() & b.to_bits())
    } else {
        f32::NAN
    }
}

/// Reductions along one axis, which stays with extent 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduce {
    /// 0 for no elements.
    Sum,
    /// [`maximum`] of all elements, so NaN if one of them is NaN; minus infinity for none.
    Max,
}

/// Activation functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x * sigmoid(x)`
    Silu,
    /// GELU by tanh, like ggml's `gelu` and PyTorch's `tanh` variant: `x / 2 * (1 + tanh(sqrt(2 /
    /// pi) * (x + 0.044715 x^3)))`.
    Gelu,
}

impl Activation {
    /// Coefficients `[a, b]`: both functions are `x * sigmoid(a x + b x^3)`, since `1 + tanh y = 2
    /// sigmoid(2 y)`.
    #[must_use]
    pub const fn angle(self) -> [f32; 2] {
        match self {
            Self::Silu => [1.0, 0.0],
            // 2 sqrt(2 / pi), and 0.044715 times it.
            Self::Gelu => [1.595_769, 0.071_354_814],
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Silu => "silu",
            Self::Gelu => "gelu",
        }
    }

    /// Name of the gated linear unit: SwiGLU, GeGLU.
    pub(crate) const fn glu(self) -> &'static str {
        match self {
            Self::Silu => "swiglu",
            Self::Gelu => "geglu",
        }
    }
}
