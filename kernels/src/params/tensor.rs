//! Parameter blocks of tensor operations, and the instructions of interpreted fused groups.

use super::define::{enumerations, parameters};

parameters! {
    /// Strided view of a tensor, with optional zero padding on one axis.
    struct TensorSource {
        /// Address of the first element, or the value itself for [`Width::Fixed`].
        base: u64,
        /// Extents, outermost first.
        shape: [u32; TENSOR_AXES],
        /// Stride of each axis, in elements.
        strides: [u32; TENSOR_AXES],
        /// Number of axes.
        axes: u32,
        /// [`Width`] of an element.
        width: u32,
        /// Axis with zero padding; `axes` or above for none.
        padded: u32,
        /// Number of zeroes before the elements of that axis.
        before: u32,
        /// Number of elements of that axis.
        inside: u32,
        /// 0.
        reserved: u32,
    }

    /// `tensor`: fused group of tensor operations.
    struct TensorParams {
        /// Instructions that run for each element; see [`step`].
        steps: [[u64; TENSOR_STEPS / 2]; 2],
        /// Operands of [`Action::Load`].
        sources: [TensorSource; TENSOR_OPERANDS],
        /// Addresses that [`Action::Store`] writes, one dense element per element of the space.
        stores: [u64; TENSOR_OPERANDS],
        /// Initial values of the first registers.
        constants: [u32; TENSOR_OPERANDS],
        /// Number of instructions before the reduction.
        body: u32,
        /// Number of all instructions.
        tail: u32,
        /// Elements of the space, if there is no reduction.
        elements: u32,
        /// [`Reduction`].
        reduce: u32,
        /// The space of a reduction is `[outer][length][inner]`.
        outer: u32,
        /// Number of elements that are reduced to one.
        length: u32,
        /// Size of the axes behind the reduced one.
        inner: u32,
        /// Register to reduce.
        from: u32,
        /// Register that receives the result.
        into: u32,
        /// 0.
        reserved: u32,
    }

    /// `tensor_matmul`: `a [.., M, K]` times `b [.., N, K]` transposed.
    struct TensorMatmulParams {
        /// Address of the first element.
        a: u64,
        /// Address of the first element.
        b: u64,
        /// `f32 [batches][m][n]`.
        out: u64,
        /// Extents of the axes before the last two.
        shape: [u32; TENSOR_AXES],
        /// Stride of each axis, in elements.
        a_strides: [u32; TENSOR_AXES],
        /// Likewise.
        b_strides: [u32; TENSOR_AXES],
        /// Number of axes, at least 2.
        axes: u32,
        /// Number of matrices; the grid's z.
        batches: u32,
        /// Rows of `a`.
        m: u32,
        /// Rows of `b`.
        n: u32,
        /// Columns of both.
        k: u32,
        /// [`Width`] of an element.
        a_width: u32,
        /// Likewise.
        b_width: u32,
        /// 0.
        reserved: u32,
    }

    /// `tensor_gather` and `tensor_scatter`: read or write rows of a table by index.
    struct TensorRowsParams {
        /// `i32 [count]` for each leading axis of the table.
        indices: [u64; TENSOR_INDICES],
        /// Table to gather from, or rows to scatter.
        source: TensorSource,
        /// Dense output.
        out: u64,
        /// Extents of the table's leading axes.
        extents: [u32; TENSOR_INDICES],
        /// Stride of the indices, in elements.
        apart: [u32; TENSOR_INDICES],
        /// Number of leading axes, at most [`TENSOR_INDICES`].
        leading: u32,
        /// Number of rows.
        count: u32,
        /// Elements of a row.
        width: u32,
        /// Number of elements to write.
        elements: u32,
        /// 1 for scatter-add: rows are summed, starting from zero.
        adds: u32,
        /// [`Width`] of a written element.
        out_width: u32,
    }

    /// `tensor_top_k`: indices of the largest elements of each row.
    struct TensorTopKParams {
        /// Address of the first element, `f32`.
        x: u64,
        /// `i32 [rows][count]`.
        out: u64,
        /// Elements of a row.
        n: u32,
        /// Number of indices to write, at most `n`.
        count: u32,
        /// Stride of rows, in elements.
        row_stride: u32,
        /// Stride of columns, in elements.
        column_stride: u32,
    }
}

/// Most axes of an operand of tensor operations.
pub const TENSOR_AXES: usize = 8;
/// Most instructions of a group.
pub const TENSOR_STEPS: usize = 48;
/// Most sources, results and constants of a group. Constants are in the first registers.
pub const TENSOR_OPERANDS: usize = 8;
/// Most leading axes that are indexed.
pub const TENSOR_INDICES: usize = 3;
/// Number of registers of a group.
pub const TENSOR_REGISTERS: usize = 24;

enumerations! {
    /// Storage type of tensor elements.
    enum Width: u32 {
        /// `f32`, `i32`.
        Word,
        /// `f16`
        Half,
        /// `bf16`
        Bf16,
        /// Constant: every element is [`TensorSource::base`].
        Fixed,
        /// `i8`, widened to `i32` in registers.
        Signed,
        /// `u8`, widened to `i32` in registers.
        Unsigned,
    }
}

enumerations! {
    /// Reduction of a fused group.
    enum Reduction: u32 {
        /// No reduction.
        None,
        /// Sum of `f32`, accumulated in `f64`.
        Sum,
        /// Maximum of `f32`; NaN if an element is NaN.
        Largest,
        /// Wrapping sum of `i32`.
        IntSum,
        /// Maximum of `i32`.
        IntLargest,
    }
}

enumerations! {
    /// Operation of an instruction, with up to three register operands.
    #[expect(missing_docs, reason = "the rest have the names of `plan`'s operations")]
    enum Action: u8 {
        /// Loads an element of a source.
        Load,
        /// Stores a register as an element of a result.
        Store,
        /// Index of the element, as `f32`.
        Iota,
        Neg,
        Exp,
        Ln,
        Sqrt,
        Recip,
        Sin,
        Cos,
        Floor,
        Round,
        Tanh,
        Add,
        Sub,
        Mul,
        Div,
        Max,
        LessEqual,
        Less,
        Equal,
        Rem,
        IntAdd,
        IntSub,
        IntMul,
        IntDiv,
        IntMax,
        IntLessEqual,
        IntLess,
        IntEqual,
        IntRem,
        And,
        Or,
        Xor,
        ShiftLeft,
        ShiftRight,
        /// Second operand if the first is not 0, else the third.
        Select,
        /// `f32` to `i32`.
        ToInt,
        /// `i32` to `f32`.
        ToFloat,
        /// Rounded to `f16`, as `f32`.
        ToHalf,
        /// Rounded to `bf16`, as `f32`.
        ToBf16,
        /// Wraps an `i32` to `i8`.
        ToSigned,
        /// Wraps an `i32` to `u8`.
        ToUnsigned,
        /// 1 for an `i32` that is not 0, else 0.
        ToTruth,
    }
}

/// Encodes an instruction. `out` is the result's register, or the index of a store. `operands` are
/// registers; for a load the index of the source, for a store the register and the [`Width`].
#[must_use]
pub fn step(action: Action, out: u8, operands: [u8; 3]) -> u64 {
    let [a, b, c] = operands;
    u64::from_le_bytes([action as u8, out, a, b, c, 0, 0, 0])
}
