//! The launch ABI: one plain struct per kernel family, the kernel's only parameter, copied into its
//! constant bank 0 at the start of the parameters.
//!
//! Fields named for memory are GPU virtual addresses; 0 means "none" where the field says that it
//! may be absent. All tensors are contiguous and row-major. The mirror in CUDA is
//! `src/cuda/params.cuh`; every unit asserts the offsets listed here when it is compiled.

use zerocopy::Immutable;
pub use zerocopy::IntoBytes;

/// A parameter block: [`IntoBytes::as_bytes`] is what goes into constant memory (little-endian, no
/// padding).
pub trait Parameters: Copy + IntoBytes + Immutable {
    /// Name of the struct in CUDA.
    const NAME: &'static str;
    /// Fields and their offsets in bytes.
    const FIELDS: &'static [(&'static str, usize)];
}

macro_rules! parameters {
    ($($(#[$doc:meta])* struct $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, IntoBytes, Immutable)]
        #[repr(C)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

        impl Parameters for $name {
            const NAME: &'static str = stringify!($name);
            const FIELDS: &'static [(&'static str, usize)] =
                &[$((stringify!($field), std::mem::offset_of!($name, $field)),)*];
        }

        const _: () = assert!(size_of::<$name>() % 8 == 0 && cfg!(target_endian = "little"));
    )*};
}

pub(crate) use parameters;

parameters! {
    /// One matrix of a projection.
    struct Segment {
        /// The matrix as [`crate::repack`] lays it out, 256-byte aligned; unused when `n` is 0.
        weights: u64,
        /// `f32 [rows][n]`.
        out: u64,
        /// `f32 [n]` added to its products; 0 for none.
        bias: u64,
        /// Rows of the matrix.
        n: u32,
        /// Planes of the activations that its products have, at most the kernel's.
        planes: u32,
        /// [`SILU`] or [`GELU`] of what comes out; 0 for none. Not with `glu`.
        activation: u32,
        /// 0.
        reserved: u32,
    }

    /// `project_*`: products of one to eight rows with up to three matrices of one type.
    struct ProjectParams {
        /// `f32 [rows][k]`, 16-byte aligned.
        x: u64,
        /// `f32 [k]`, 16-byte aligned; 0 for no norm.
        norm_weight: u64,
        /// `f32 [rows][n]` added to the first segment's result; 0 for none. May be its `out`.
        residual: u64,
        /// What the next launch reads first.
        next: u64,
        /// The matrices; with `swiglu` the gate, then the up projection.
        segments: [Segment; 3],
        /// Columns of every matrix.
        k: u32,
        /// Rows, at most the kernel's.
        rows: u32,
        /// [`SILU`], [`GELU`] or [`CLAMPED`]: `activation(x W0^T) * (x W1^T)` into the first segment's `out`; 0: none.
        swiglu: u32,
        /// Added to the mean square of the norm.
        eps: f32,
        /// `1 / k`.
        inverse_k: f32,
        /// Bytes of it that are asked for at the end; 0 for none.
        next_bytes: u32,
    }

    /// `quantise_*`: rows of activations as `matmul_*` reads them.
    struct QuantiseParams {
        /// `f32 [rows][k]`, 16-byte aligned.
        x: u64,
        /// `f32 [k]`, 16-byte aligned; 0 for no norm.
        norm_weight: u64,
        /// Of [`crate::catalogue::launch::matmul_activations_bytes`], 16-byte aligned.
        out: u64,
        /// What `group` wrote, where rows are pairs; 0: they are rows.
        pairs: u64,
        /// Columns.
        k: u32,
        /// Rows, or pairs; the grid's x is that of whole tiles.
        rows: u32,
        /// Rows of a tile.
        tile: u32,
        /// Planes that are written, 1 or 2.
        planes: u32,
        /// Added to the mean square of the norm.
        eps: f32,
        /// Neighbouring pairs that share a row of `x`; 1 of rows.
        share: u32,
    }

    /// `matmul_*`: products of any number of rows with up to three matrices of one type.
    struct MatmulParams {
        /// What `quantise_*` or `halves_*` of the same type wrote; of plain weights in single precision `f32 [rows][k]`.
        activations: u64,
        /// `f32 [rows][n]` added to the first segment's result, without `swiglu`; 0 for none. May be its `out`.
        residual: u64,
        /// What `group` wrote, where rows are pairs, with tiles of [`crate::catalogue::launch::GROUP_TILE`]; 0: they are rows.
        pairs: u64,
        /// `u32`: of each tile the expert, whose matrices and biases are meant; with `pairs`.
        experts: u64,
        /// Bytes from a matrix of an expert to the next one's.
        stride: u64,
        /// The matrices; with `swiglu` the gate, then the up projection.
        segments: [Segment; 3],
        /// Columns of every matrix.
        k: u32,
        /// Rows, or pairs.
        rows: u32,
        /// [`SILU`], [`GELU`] or [`CLAMPED`]: `activation(x W0^T) * (x W1^T)` into the first segment's `out`; 0: none.
        swiglu: u32,
        /// Planes of the activations.
        planes: u32,
        /// Neighbouring pairs that share a row of what is read in single precision; 1 of rows.
        share: u32,
        /// 0.
        reserved: u32,
    }

    /// `embed_*`: rows of a weight matrix, decoded.
    struct EmbedParams {
        /// The matrix as [`crate::repack`] lays it out.
        table: u64,
        /// `i32 [rows]`; a row whose id is outside the table is zeroes.
        ids: u64,
        /// `f32 [rows][k]`.
        out: u64,
        /// Rows of the matrix.
        n: u32,
        /// Columns of the matrix.
        k: u32,
        /// Rows written; the grid's y.
        rows: u32,
        /// 0.
        reserved: u32,
    }

    /// `gather`: rows of 4-byte elements picked by index.
    struct GatherParams {
        /// `[extent][width]` words.
        table: u64,
        /// `i32 [rows]`; a row whose index is outside the table is zeroes.
        ids: u64,
        /// `[rows][width]` words.
        out: u64,
        /// Rows of the table.
        extent: u32,
        /// Words of a row.
        width: u32,
        /// Rows written; the grid's y.
        rows: u32,
        /// 0.
        reserved: u32,
    }

    /// `rope_table`: cosines and sines of positions.
    struct RopeTableParams {
        /// `i32 [rows]`.
        positions: u64,
        /// `f32 [half]`, radians per position.
        frequencies: u64,
        /// `f32 [rows][2][half]`: cosines, then sines.
        out: u64,
        /// Half the head's dim.
        half: u32,
        /// Rows; the grid's x.
        rows: u32,
        /// Factor on both.
        magnitude: f32,
        /// 0.
        reserved: u32,
    }

    /// `rope_kv` and `attention_*`.
    struct AttentionParams {
        /// Queries, `f32 [rows][heads][dim]`: rotated already where there is no table, but for
        /// `rope_kv`.
        q: u64,
        /// New keys, `f32 [rows][kv_heads][dim]`; not read without a table.
        k: u64,
        /// New values, likewise.
        v: u64,
        /// `f32 [rows][2][rotated / 2]` from `rope_table`; 0: `attention_*` neither rotates nor writes.
        table: u64,
        /// `i32 [rows]`: the row's place in the cache; a row outside it gets zeroes, writes nothing.
        slots: u64,
        /// `i32 [rows]`: the row attends to positions 0 up to and including this.
        positions: u64,
        /// `f32 [dim]`: weight of the norm on queries; 0 for none.
        q_norm: u64,
        /// `f32 [dim]`: weight of the norm on keys; 0 for none.
        k_norm: u64,
        /// Blocks of [`crate::catalogue::launch::CACHE_BLOCK`] positions, or each slot's ring: `[kv_heads]` of tiles of
        /// [`crate::catalogue::launch::CACHE_TILE`] positions that fill it, in the kernel's type: `cuda/cache.cuh`;
        /// 16-byte aligned.
        keys: u64,
        /// Likewise.
        values: u64,
        /// `u32 [slot_count][entries]`: the blocks in which a slot's positions lie, one after the other; positions of
        /// an entry [`u32::MAX`] are outside the cache. Not read of a ring.
        blocks: u64,
        /// `rope_kv` only: rotated queries, `f32 [rows][heads][dim]`.
        q_out: u64,
        /// `attention_*` only: `f32 [rows][heads][dim]`.
        out: u64,
        /// `attention_*` only, with more than one block in the grid's y: scratch of
        /// [`crate::catalogue::launch::attention_partial_bytes`], 8-byte aligned.
        partial: u64,
        /// Likewise: `u32 [rows][grid x]`, 0 before the first launch; the kernel leaves them 0. To
        /// be cleared again after a launch that faulted.
        counters: u64,
        /// `attention_*` and `prefill_attention_*`: of each query head a score that takes weight and has no value,
        /// `f32 [heads]`; 0 for none.
        sinks: u64,
        /// What the next launch reads first.
        next: u64,
        /// Rows; the grid's z (y for `rope_kv`).
        rows: u32,
        /// Query heads.
        heads: u32,
        /// Key and value heads; divides `heads`. 0 for `rope_kv` without keys and values.
        kv_heads: u32,
        /// Values of a head: a multiple of 8, of 32 where they lie in blocks.
        dim: u32,
        /// Slots of the cache.
        slot_count: u32,
        /// Positions of a slot.
        capacity: u32,
        /// Blocks of a slot, no fewer than its positions fill. 0 for a ring: positions begin anew after the capacity,
        /// a multiple of [`crate::catalogue::launch::CACHE_TILE`] and no less than a tile more than the window.
        entries: u32,
        /// 1: pairs are `2i, 2i + 1`; 0: `i, i + rotated / 2`.
        interleaved: u32,
        /// Values of a head that are rotated, the first ones: an even number.
        rotated: u32,
        /// Positions that a row attends to, its own the last; [`u32::MAX`] for all up to it.
        window: u32,
        /// Added to the mean square of the norms.
        eps: f32,
        /// Factor on the scores.
        scale: f32,
        /// Soft cap of the scores; 0 for none.
        cap: f32,
        /// Slope of the scores' temperature: by how much each e-fold of `length` positions sharpens them.
        slope: f32,
        /// Positions that it counts in; 0 for none.
        length: u32,
        /// Bytes of it that `attention_*` asks for at its end; 0 for none.
        next_bytes: u32,
    }

    /// `sample`: tokens from logits, and the next step's inputs.
    struct SampleParams {
        /// `f32 [rows][vocabulary]`.
        logits: u64,
        /// `f32 [rows]`; 0 or less (or NaN) is greedy.
        temperature: u64,
        /// `u32 [rows]`; 0 keeps all.
        top_k: u64,
        /// `f32 [rows]`; 1 keeps all.
        top_p: u64,
        /// `f32 [rows]`: the logarithm of min-p; minus infinity (or NaN) keeps all.
        min_p: u64,
        /// `u64 [rows]`, 8-byte aligned: key of the noise.
        seed: u64,
        /// `i32 [rows]`.
        positions: u64,
        /// `i32 [rows]`: the tokens.
        ids: u64,
        /// `i32 [rows]`: the tokens again, where the next step reads them; 0 for none.
        next_tokens: u64,
        /// `i32 [rows]`: positions plus one; may be `positions`; 0 for none.
        next_positions: u64,
        /// `i32 [ring_entries][rows]`: the tokens again, at entry `cursor % ring_entries`; 0 for none.
        ring: u64,
        /// `u32`: launches so far; advanced by one when all rows are written. Not read without a ring.
        cursor: u64,
        /// Scratch, 16 bytes for each row and part (the grid's x), 8-byte aligned.
        partial: u64,
        /// `u32 [rows + 1]`, 0 before the first launch; the kernel leaves them 0. To be cleared
        /// again after a launch that faulted.
        counters: u64,
        /// Scratch, `u64 [rows][vocabulary]`, for rows with top-k, top-p or min-p.
        candidates: u64,
        /// `u32 [rows][adjustment_words]`, 16-byte aligned: what is done to logits first, as `plan::sample` lays it out; 0
        /// for none.
        adjustments: u64,
        /// Scratch, `f32 [rows][vocabulary]`: logits of rows that something is done to.
        adjusted: u64,
        /// Logits of a row, at least 1.
        vocabulary: u32,
        /// Rows; the grid's y.
        rows: u32,
        /// Entries of the ring, at least 1 if there is one.
        ring_entries: u32,
        /// Words of a row's adjustment, a multiple of 4.
        adjustment_words: u32,
    }

    /// `rms_norm`, `add`, `swiglu`: whole rows.
    struct RowsParams {
        /// `f32 [rows][n]`.
        a: u64,
        /// `f32 [n]` for `rms_norm` (the weight), else `f32 [rows][n]`.
        b: u64,
        /// `f32 [rows][n]`; may be `a` or `b`, but not for `rms_norm`.
        out: u64,
        /// Values of a row.
        n: u32,
        /// Rows; the grid's y (x for `rms_norm`).
        rows: u32,
        /// `rms_norm`: added to the mean square.
        eps: f32,
        /// 0.
        reserved: u32,
    }

    /// `elementwise`: a function of each element.
    struct ElementwiseParams {
        /// `f32 [rows][n]`.
        a: u64,
        /// The other operand's `f32`; 0 for functions of one.
        b: u64,
        /// `f32 [rows][n]`; may be `a`, or a `b` that lies as `a` does.
        out: u64,
        /// Values of a row.
        n: u32,
        /// Rows; the grid's y.
        rows: u32,
        /// Elements between rows of `b`.
        row_stride: u32,
        /// Elements between columns of `b`.
        column_stride: u32,
        /// A [`Function`].
        function: u32,
        /// What it has beside operands: factor or cap.
        by: f32,
    }

    /// `normalise`: LayerNorm of rows, or RMSNorm with a bias.
    struct NormParams {
        /// `f32 [rows][n]`.
        x: u64,
        /// `f32 [n]`.
        weight: u64,
        /// `f32 [n]`; 0 for none.
        bias: u64,
        /// `f32 [rows][n]`; not `x`.
        out: u64,
        /// Values of a row.
        n: u32,
        /// Rows; the grid's x.
        rows: u32,
        /// 1: the mean is taken off first.
        centred: u32,
        /// Added to the mean square.
        eps: f32,
    }

    /// `route`: the experts of each row, best first.
    struct RouteParams {
        /// `f32 [rows][experts]`.
        logits: u64,
        /// `f32 [experts]`, added to what experts are chosen by; 0 for none.
        preference: u64,
        /// `f32 [experts]`, factors on their weights; 0 for none.
        scales: u64,
        /// `u32 [rows][count]`: the experts.
        chosen: u64,
        /// `f32 [rows][count]`: their weights.
        weights: u64,
        /// At most [`crate::catalogue::launch::MOST_EXPERTS`].
        experts: u32,
        /// Experts of a row, at most all.
        count: u32,
        /// Rows; the grid's x.
        rows: u32,
        /// 1: scores are sigmoids; 0: a softmax.
        sigmoid: u32,
        /// 1: weights are divided by their sum.
        normalised: u32,
        /// Factor on the weights.
        scale: f32,
    }

    /// `experts_*`: products of pairs, a row and one of its experts, with matrices of that expert.
    struct ExpertsParams {
        /// `f32 [pairs / share][k]`, 16-byte aligned.
        x: u64,
        /// `u32 [pairs]`: the expert of each.
        chosen: u64,
        /// The first expert's matrix; with `glu` the gate.
        first: u64,
        /// With `glu`, the first expert's up projection.
        second: u64,
        /// Bytes from an expert's matrix to the next one's.
        stride: u64,
        /// `f32 [experts][n]` added to the products with the first matrix; 0 for none.
        first_bias: u64,
        /// Likewise with the second.
        second_bias: u64,
        /// `f32 [pairs][n]`.
        out: u64,
        /// Rows of a matrix.
        n: u32,
        /// Columns.
        k: u32,
        /// Pairs; the grid's y.
        pairs: u32,
        /// Neighbouring pairs that share a row of `x`.
        share: u32,
        /// [`SILU`], [`GELU`] or [`CLAMPED`]: `activation(x W0^T) * (x W1^T)`; 0: `x W0^T`.
        glu: u32,
        /// 0.
        reserved: u32,
    }

    /// `group`: pairs by expert, in tiles of one expert each.
    struct GroupParams {
        /// `u32 [count]`: the expert of each pair.
        chosen: u64,
        /// `u32 [tiles][tile]`: of each place its pair, `0xffffffff` for none.
        pairs: u64,
        /// `u32 [tiles]`: the expert of each tile with pairs.
        experts: u64,
        /// Pairs.
        count: u32,
        /// Experts, at most [`crate::catalogue::launch::MOST_EXPERTS`].
        of: u32,
        /// Places of a tile.
        tile: u32,
        /// At least [`crate::catalogue::launch::group_tiles`].
        tiles: u32,
    }

    /// `combine`: the weighted sum of each row's pairs.
    struct CombineParams {
        /// `f32 [rows][count][n]`.
        results: u64,
        /// `f32 [rows][count]`.
        weights: u64,
        /// `f32 [rows][n]`.
        out: u64,
        /// Values of a row.
        n: u32,
        /// Rows; the grid's y.
        rows: u32,
        /// Pairs of a row.
        count: u32,
        /// 0.
        reserved: u32,
    }

    /// A state of fixed size, of which each slot has two versions, and the rows that move it on.
    struct Recurrence {
        /// `f32 [slot_count][2][size]`.
        state: u64,
        /// Tokens that each version holds, `i32 [slot_count][2]`.
        held: u64,
        /// `i32 [sequences][chunk]`; negative for padding, which comes last in its sequence.
        slots: u64,
        /// `i32 [sequences][chunk]`.
        positions: u64,
        /// `u32 [sequences]`, 0 before the first launch; the kernel leaves them 0. To be cleared again after a launch
        /// that faulted.
        counter: u64,
        /// Slots of the state.
        slot_count: u32,
        /// Sequences of the step; the grid's z.
        sequences: u32,
        /// Rows of each.
        chunk: u32,
        /// Elements of a version.
        size: u32,
    }

    /// `short_conv`: products of a channel's last values with its weights.
    struct ShortConvParams {
        /// Of `taps - 1` values for each channel, `[taps - 1][channels]`.
        memory: Recurrence,
        /// `f32 [rows][channels]`.
        x: u64,
        /// `f32 [channels][taps]`, the last for a row's own value.
        weight: u64,
        /// `f32 [rows][channels]`.
        out: u64,
        /// Channels.
        channels: u32,
        /// Weights of a channel: 2 to [`crate::catalogue::launch::MOST_TAPS`].
        taps: u32,
    }

    /// `gated_delta`: a matrix for each head, moved on and asked once a row.
    struct GatedDeltaParams {
        /// Of `[heads][key_size][value_size]`.
        memory: Recurrence,
        /// Queries, keys and values, `f32 [rows][2 * key_heads * key_size + heads * value_size]`.
        mixed: u64,
        /// `f32 [rows][heads]`.
        step: u64,
        /// `f32 [rows][heads]`.
        strength: u64,
        /// `f32 [heads]`.
        rate: u64,
        /// `f32 [heads]`.
        bias: u64,
        /// `f32 [rows][heads][value_size]`.
        out: u64,
        /// Heads of queries and keys; divides `heads`.
        key_heads: u32,
        /// Heads of values; the grid's y.
        heads: u32,
        /// Width of queries and keys, at most [`crate::catalogue::launch::MOST_KEY`].
        key_size: u32,
        /// Width of values.
        value_size: u32,
        /// 1: neighbouring heads share keys; 0: those that are `key_heads` apart.
        grouped: u32,
        /// Added to the mean square of queries and keys.
        eps: f32,
        /// Factor on queries of mean square 1.
        query_scale: f32,
        /// Factor on keys of mean square 1.
        key_scale: f32,
    }

    /// Where elements of a group of tensor operations come from, in the order of a shape.
    struct TensorSource {
        /// The first element.
        base: u64,
        /// Extents, outermost first.
        shape: [u32; TENSOR_AXES],
        /// Distance between neighbours of each axis, in elements.
        strides: [u32; TENSOR_AXES],
        /// Axes in use.
        axes: u32,
        /// [`Width`] of an element.
        width: u32,
        /// The axis on which there are zeroes around; none where it is not below `axes`.
        padded: u32,
        /// Zeroes before the elements there.
        before: u32,
        /// Elements there.
        inside: u32,
        /// 0.
        reserved: u32,
    }

    /// `tensor`: a group of tensor operations.
    struct TensorParams {
        /// Steps that are taken for each element: [`step`].
        steps: [[u64; TENSOR_STEPS / 2]; 2],
        /// What [`Action::Load`] reads.
        sources: [TensorSource; TENSOR_OPERANDS],
        /// Where [`Action::Store`] writes: an element for each of the space.
        stores: [u64; TENSOR_OPERANDS],
        /// What the first registers hold.
        constants: [u32; TENSOR_OPERANDS],
        /// Steps before the reduction.
        chain: u32,
        /// All steps.
        tail: u32,
        /// Elements of the space, without a reduction.
        elements: u32,
        /// [`Reduction`].
        reduce: u32,
        /// The space is `[outer][length][inner]` where there is one.
        outer: u32,
        /// Elements that become one.
        length: u32,
        /// Neighbours that do not.
        inner: u32,
        /// The register that is reduced.
        from: u32,
        /// The register that what comes out is in.
        into: u32,
        /// 0.
        reserved: u32,
    }

    /// `tensor_matmul`: `a [.., M, K]` times `b [.., N, K]` transposed.
    struct TensorMatmulParams {
        /// First element.
        a: u64,
        /// First element.
        b: u64,
        /// `f32 [batches][m][n]`.
        out: u64,
        /// Extents of the axes before the last two.
        shape: [u32; TENSOR_AXES],
        /// Distance between neighbours of each axis, in elements.
        a_strides: [u32; TENSOR_AXES],
        /// Likewise.
        b_strides: [u32; TENSOR_AXES],
        /// Axes of each, 2 at least.
        axes: u32,
        /// Matrices; the grid's z.
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

    /// `tensor_gather` and `tensor_scatter`: rows of a table by indices.
    struct TensorRowsParams {
        /// The first of `count` `i32` for each leading axis of the table.
        indices: [u64; TENSOR_INDICES],
        /// The table that is gathered from, or the rows that are scattered.
        source: TensorSource,
        /// What is written, dense.
        out: u64,
        /// Extents of the table's leading axes.
        extents: [u32; TENSOR_INDICES],
        /// Distance between neighbouring indices.
        apart: [u32; TENSOR_INDICES],
        /// Leading axes, at most [`TENSOR_INDICES`].
        leading: u32,
        /// Rows.
        count: u32,
        /// Elements of a row.
        width: u32,
        /// What is written.
        elements: u32,
        /// 1: rows are added up from zero.
        adds: u32,
        /// [`Width`] of what is written.
        out_width: u32,
    }

    /// `tensor_top_k`: the numbers of the greatest elements of each row.
    struct TensorTopKParams {
        /// The first element, `f32`.
        x: u64,
        /// `i32 [rows][count]`.
        out: u64,
        /// Elements of a row.
        n: u32,
        /// How many are wanted, at most `n`.
        count: u32,
        /// Distance between neighbouring rows, in elements.
        row_stride: u32,
        /// Distance between neighbours in a row, in elements.
        column_stride: u32,
    }

    /// `delta_rule`: a matrix for each head, with a decay for each of its rows, moved on and asked once a row.
    struct DeltaRuleParams {
        /// Of `[heads][key_size][value_size]`.
        memory: Recurrence,
        /// `f32 [rows][heads][key_size]`, as are `decay`, `key`, `take` and `add`.
        query: u64,
        /// Factor on each row of the matrix.
        decay: u64,
        /// What values are written under.
        key: u64,
        /// What is asked before.
        take: u64,
        /// What the answer to that is written under.
        add: u64,
        /// `f32 [rows][heads][value_size]`.
        value: u64,
        /// `f32 [rows][heads][value_size]`.
        out: u64,
        /// The grid's y.
        heads: u32,
        /// At most [`crate::catalogue::launch::MOST_KEY`].
        key_size: u32,
        /// Width of values.
        value_size: u32,
        /// 0.
        reserved: u32,
    }
}

/// Most axes of an operand of tensor operations.
pub const TENSOR_AXES: usize = 8;
/// Most steps of a group.
pub const TENSOR_STEPS: usize = 48;
/// Most sources of a group, and most results; and its constants, which are in as many registers.
pub const TENSOR_OPERANDS: usize = 8;
/// Most leading axes of a table that indices are for.
pub const TENSOR_INDICES: usize = 3;
/// Registers of a group.
pub const TENSOR_REGISTERS: usize = 24;

/// How elements of tensors lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Width {
    /// `f32`, `i32`.
    Word,
    /// `f16`
    Half,
    /// `bf16`
    Brain,
    /// Nowhere: all have the value that [`TensorSource::base`] is.
    Fixed,
    /// `i8`, in a register an `i32`.
    Signed,
    /// `u8`, in a register an `i32`.
    Unsigned,
}

/// What a group of tensor operations does to elements before its last steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reduction {
    /// There is none.
    None,
    /// Of numbers, in `f64`.
    Sum,
    /// Of numbers, NaN left aside.
    Largest,
    /// Wrapping.
    IntSum,
    /// Of integers.
    IntLargest,
}

/// What a step of `tensor` does with up to three registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "the rest have the names of `plan`'s operations")]
pub enum Action {
    /// The element of a source.
    Load,
    /// Writes a register as the element of a result.
    Store,
    /// The number of the element, as `f32`.
    Number,
    Neg,
    Exp,
    Ln,
    Sqrt,
    Recip,
    Sin,
    Cos,
    Floor,
    Add,
    Sub,
    Mul,
    Max,
    LessEqual,
    Rem,
    IntAdd,
    IntSub,
    IntMul,
    IntMax,
    IntLessEqual,
    IntRem,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
    /// The second where the first is not 0, the third elsewhere.
    Select,
    /// `f32` to `i32`.
    ToInt,
    /// `i32` to `f32`.
    ToFloat,
    /// Rounded to `f16`, as `f32`.
    ToHalf,
    /// Rounded to `bf16`, as `f32`.
    ToBrain,
    /// What an `i8` keeps of an `i32`.
    ToSigned,
    /// What a `u8` keeps of an `i32`.
    ToUnsigned,
    /// 1 of an `i32` that is not 0.
    ToTruth,
}

/// A step of [`TensorParams`]: `out` is the register of the result, or the number of the store; `operands` are registers,
/// of a load the number of the source, of a store the register and the [`Width`].
#[must_use]
pub fn step(action: Action, out: u8, operands: [u8; 3]) -> u64 {
    let [a, b, c] = operands;
    u64::from_le_bytes([action as u8, out, a, b, c, 0, 0, 0])
}

/// Numbers of activations; 0 is none.
pub const SILU: u32 = 1;
/// GELU by tanh.
pub const GELU: u32 = 2;
/// gpt-oss's gate: `g / (1 + exp(-1.702 g)) * (u + 1)` with `g` up to 7 and `u` within -7 to 7; with a second operand only.
pub const CLAMPED: u32 = 3;

/// What `elementwise` does with an element `a` and what stands beside it, `b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Function {
    /// `a + b`
    Add,
    /// `a * b`
    Multiply,
    /// `a` times the sigmoid of `b`.
    Gate,
    /// `a * by`
    Scale,
    /// `by * tanh(a / by)`
    SoftCap,
    /// SiLU of `a`.
    Silu,
    /// GELU of `a`.
    Gelu,
    /// SiLU of `a`, times `b`.
    SwiGlu,
    /// GELU of `a`, times `b`.
    GeGlu,
}
