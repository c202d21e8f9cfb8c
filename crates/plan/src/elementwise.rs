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
}

/// Elementwise functions of two operands. Bitwise functions and shifts take `i32` only; the others
/// take `f32` or `i32`. Integer arithmetic wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binary {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
    /// `max(a, b)`
    Max,
    /// 1 if `a <= b`, else 0; the result is `F32` for any operand type.
    LessEqual,
    /// Remainder of truncated division, like C's `fmod`: it has the sign of `a`.
    Rem,
    And,
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

    /// Evaluates the function on integers; [`Binary::LessEqual`] also returns an integer.
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
            // A remainder by zero is defined as 0.
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

/// Reductions along one axis, which stays with extent 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduce {
    Sum,
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
