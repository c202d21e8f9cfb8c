//! Parameter blocks of language model kernels: projections, attention, sampling, MoE and recurrent
//! layers.

use super::define::{enumerations, parameters};

parameters! {
    /// One matrix of a projection.
    struct Segment {
        /// Matrix in the layout of [`crate::repack`], 256-byte aligned; unused if `n` is 0.
        weights: u64,
        /// `f32 [rows][n]`.
        out: u64,
        /// `f32 [n]` added to the products; 0 for none.
        bias: u64,
        /// Rows of the matrix.
        n: u32,
        /// Planes of activations to multiply, at most the kernel's.
        planes: u32,
        /// [`SILU`] or [`GELU`], applied to the result; 0 for none. Not with `swiglu`.
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
        /// Address to prefetch: what the next launch reads first.
        next: u64,
        /// The matrices; with `swiglu` the gate, then the up projection.
        segments: [Segment; 3],
        /// Columns of every matrix.
        k: u32,
        /// Rows, at most the kernel's.
        rows: u32,
        /// [`SILU`], [`GELU`] or [`CLAMPED`]: writes `activation(x W0^T) * (x W1^T)` to the first
        /// segment's `out`; 0 for none.
        swiglu: u32,
        /// Added to the mean square of the norm.
        eps: f32,
        /// `1 / k`.
        inverse_k: f32,
        /// Bytes to prefetch at the end; 0 for none.
        next_bytes: u32,
    }

    /// `quantise_*`: converts rows of activations for `matmul_*`.
    struct QuantiseParams {
        /// `f32 [rows][k]`, 16-byte aligned.
        x: u64,
        /// `f32 [k]`, 16-byte aligned; 0 for no norm.
        norm_weight: u64,
        /// Size: [`crate::catalogue::launch::matmul_activations_bytes`]; 16-byte aligned.
        out: u64,
        /// Output of `group` if rows are pairs, else 0.
        pairs: u64,
        /// Columns.
        k: u32,
        /// Rows, or pairs; the grid's x is rounded up to whole tiles.
        rows: u32,
        /// Rows of a tile.
        tile: u32,
        /// Planes to write, 1 or 2.
        planes: u32,
        /// Added to the mean square of the norm.
        eps: f32,
        /// Consecutive pairs that share a row of `x`; 1 without pairs.
        share: u32,
    }

    /// `matmul_*`: products of any number of rows with up to three matrices of one type.
    struct MatmulParams {
        /// Output of `quantise_*` or `halves_*` of the same type; `f32 [rows][k]` for plain weights
        /// in single precision.
        activations: u64,
        /// `f32 [rows][n]` added to the first segment's result, without `swiglu`; 0 for none. May
        /// be its `out`.
        residual: u64,
        /// Output of `group` with tiles of [`crate::catalogue::launch::GROUP_TILE`] if rows are
        /// pairs, else 0.
        pairs: u64,
        /// `u32`: expert of each tile, which selects matrix and bias; only with `pairs`.
        experts: u64,
        /// Bytes between matrices of consecutive experts.
        stride: u64,
        /// The matrices; with `swiglu` the gate, then the up projection.
        segments: [Segment; 3],
        /// Columns of every matrix.
        k: u32,
        /// Rows, or pairs.
        rows: u32,
        /// [`SILU`], [`GELU`] or [`CLAMPED`]: `activation(x W0^T) * (x W1^T)` into the first
        /// segment's `out`; 0: none.
        swiglu: u32,
        /// Planes of the activations.
        planes: u32,
        /// Consecutive pairs that share a row of unquantised activations; 1 without pairs.
        share: u32,
        /// 0.
        reserved: u32,
    }

    /// `embed_*`: rows of a weight matrix, decoded.
    struct EmbedParams {
        /// The matrix as [`crate::repack`] lays it out.
        table: u64,
        /// `i32 [rows]`; an id outside the table gives zeroes.
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
        /// `i32 [rows]`; an index outside the table gives zeroes.
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
        /// Queries, `f32 [rows][heads][dim]`. Already rotated if there is no table, except for
        /// `rope_kv`.
        q: u64,
        /// New keys, `f32 [rows][kv_heads][dim]`; not read without a table.
        k: u64,
        /// New values, like `k`.
        v: u64,
        /// `f32 [rows][2][rotated / 2]` from `rope_table`; 0: `attention_*` neither rotates nor
        /// writes.
        table: u64,
        /// `i32 [rows]`: slot of the row. A row outside the cache reads zeroes and writes nothing.
        slots: u64,
        /// `i32 [rows]`: position of the row, the last one that it attends to.
        positions: u64,
        /// `f32 [dim]`: weight of the norm on queries; 0 for none.
        q_norm: u64,
        /// `f32 [dim]`: weight of the norm on keys; 0 for none.
        k_norm: u64,
        /// KV cache: blocks of [`crate::catalogue::launch::CACHE_BLOCK`] positions, or a ring per
        /// slot. Each is `[kv_heads]` tiles of [`crate::catalogue::launch::CACHE_TILE`] positions,
        /// in the kernel's type; see `cuda/cache.cuh`. 16-byte aligned.
        keys: u64,
        /// Values, like `keys`.
        values: u64,
        /// Block table, `u32 [slot_count][entries]`. Positions of an entry [`u32::MAX`] are outside
        /// the cache. Unused for a ring.
        blocks: u64,
        /// `rope_kv` only: rotated queries, `f32 [rows][heads][dim]`.
        q_out: u64,
        /// `attention_*` only: `f32 [rows][heads][dim]`.
        out: u64,
        /// `attention_*` only, with more than one block in the grid's y: scratch of
        /// [`crate::catalogue::launch::attention_partial_bytes`], 8-byte aligned.
        partial: u64,
        /// `u32 [rows][grid x]`, like `partial`. Must be 0 before a launch; the kernel resets it.
        /// Clear it after a launch that faulted.
        counters: u64,
        /// Attention sinks, `f32 [heads]`: a score per query head that takes weight but has no
        /// value; 0 for none. Not for `rope_kv`.
        sinks: u64,
        /// Address to prefetch: what the next launch reads first.
        next: u64,
        /// Rows; the grid's z (y for `rope_kv`).
        rows: u32,
        /// Query heads.
        heads: u32,
        /// Key and value heads; divides `heads`. 0 for `rope_kv` without keys and values.
        kv_heads: u32,
        /// Values of a head: a multiple of 8, or of 32 for quantised caches.
        dim: u32,
        /// Slots of the cache.
        slot_count: u32,
        /// Positions of a slot.
        capacity: u32,
        /// Entries per slot of the block table. 0 for a ring, which wraps around at `capacity`: a
        /// multiple of [`crate::catalogue::launch::CACHE_TILE`], at least one tile more than the
        /// window.
        entries: u32,
        /// 1: pairs are `2i, 2i + 1`; 0: `i, i + rotated / 2`.
        interleaved: u32,
        /// Number of leading values of a head that are rotated, an even number.
        rotated: u32,
        /// Positions that a row attends to, including its own; [`u32::MAX`] for no window.
        window: u32,
        /// Added to the mean square of the norms.
        eps: f32,
        /// Factor on the scores.
        scale: f32,
        /// Soft cap of the scores; 0 for none.
        cap: f32,
        /// Slope of the attention temperature: how much each e-fold of `length` positions sharpens
        /// the scores.
        slope: f32,
        /// Unit of positions for `slope`; 0 for none.
        length: u32,
        /// Bytes that `attention_*` prefetches at its end; 0 for none.
        next_bytes: u32,
    }

    /// `sample`: chooses tokens from logits and writes the next step's inputs.
    struct SampleParams {
        /// `f32 [rows][vocabulary]`.
        logits: u64,
        /// `f32 [rows]`; greedy if not above 0 (or NaN).
        temperature: u64,
        /// `u32 [rows]`; 0 keeps all.
        top_k: u64,
        /// `f32 [rows]`; 1 keeps all.
        top_p: u64,
        /// `f32 [rows]`: logarithm of min-p; minus infinity (or NaN) keeps all.
        min_p: u64,
        /// `u64 [rows]`, 8-byte aligned: noise keys.
        seed: u64,
        /// `i32 [rows]`.
        positions: u64,
        /// `i32 [rows]`: the chosen tokens.
        ids: u64,
        /// `i32 [rows]`: copy of the tokens for the next step; 0 for none.
        next_tokens: u64,
        /// `i32 [rows]`: positions plus one for the next step; may be `positions`; 0 for none.
        next_positions: u64,
        /// `i32 [ring_entries][rows]`: copy of the tokens at entry `cursor % ring_entries`; 0 for
        /// none.
        ring: u64,
        /// `u32`: number of launches, incremented when all rows are written. Unused without a ring.
        cursor: u64,
        /// Scratch: 16 bytes for each row and part (the grid's x), 8-byte aligned.
        partial: u64,
        /// `u32 [rows + 1]`. Must be 0 before a launch; the kernel resets it. Clear it after a
        /// launch that faulted.
        counters: u64,
        /// Scratch, `u64 [rows][vocabulary]`, for rows with top-k, top-p or min-p.
        candidates: u64,
        /// Logit edits, `u32 [rows][adjustment_words]` in the format of `plan::sample`, 16-byte
        /// aligned; 0 for none.
        adjustments: u64,
        /// Scratch, `f32 [rows][vocabulary]`: edited logits.
        adjusted: u64,
        /// Logits of a row, at least 1.
        vocabulary: u32,
        /// Rows; the grid's y.
        rows: u32,
        /// Entries of the ring, at least 1 if there is one.
        ring_entries: u32,
        /// Words of a row's logit edits, a multiple of 4.
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
        /// Second operand, `f32`; 0 for unary functions.
        b: u64,
        /// `f32 [rows][n]`; may be `a`, or `b` if it has the layout of `a`.
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
        /// Constant of the function: factor or cap.
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
        /// 1 to subtract the mean first.
        centred: u32,
        /// Added to the mean square.
        eps: f32,
    }

    /// `route`: chooses the experts of each row, best first.
    struct RouteParams {
        /// `f32 [rows][experts]`.
        logits: u64,
        /// `f32 [experts]`: bias on the choice only; 0 for none.
        preference: u64,
        /// `f32 [experts]`: factors on the weights; 0 for none.
        scales: u64,
        /// `u32 [rows][count]`: the chosen experts.
        chosen: u64,
        /// `f32 [rows][count]`: the weights of the chosen experts.
        weights: u64,
        /// Number of experts, at most [`crate::catalogue::launch::MOST_EXPERTS`].
        experts: u32,
        /// Experts of a row, at most `experts`.
        count: u32,
        /// Rows; the grid's x.
        rows: u32,
        /// 1: scores are sigmoids; 0: softmax.
        sigmoid: u32,
        /// 1 to divide weights by their sum.
        normalised: u32,
        /// Factor on the weights.
        scale: f32,
    }

    /// `experts_*`: multiplies pairs (a row and one of its experts) with the expert's matrices.
    struct ExpertsParams {
        /// `f32 [pairs / share][k]`, 16-byte aligned.
        x: u64,
        /// `u32 [pairs]`: expert of each pair.
        chosen: u64,
        /// First expert's matrix: the gate with `glu`.
        first: u64,
        /// First expert's up projection, with `glu`.
        second: u64,
        /// Bytes between matrices of consecutive experts.
        stride: u64,
        /// `f32 [experts][n]` added to the products with the first matrix; 0 for none.
        first_bias: u64,
        /// Bias of the second matrix, like `first_bias`.
        second_bias: u64,
        /// `f32 [pairs][n]`.
        out: u64,
        /// Rows of a matrix.
        n: u32,
        /// Columns.
        k: u32,
        /// Pairs; the grid's y.
        pairs: u32,
        /// Consecutive pairs that share a row of `x`.
        share: u32,
        /// [`SILU`], [`GELU`] or [`CLAMPED`]: `activation(x W0^T) * (x W1^T)`; 0: `x W0^T`.
        glu: u32,
        /// 0.
        reserved: u32,
    }

    /// `group`: sorts pairs into tiles of one expert each.
    struct GroupParams {
        /// `u32 [count]`: expert of each pair.
        chosen: u64,
        /// `u32 [tiles][tile]`: pairs of each tile, `0xffffffff` for padding.
        pairs: u64,
        /// `u32 [tiles]`: expert of each tile that has pairs.
        experts: u64,
        /// Pairs.
        count: u32,
        /// Number of experts, at most [`crate::catalogue::launch::MOST_EXPERTS`].
        of: u32,
        /// Pairs of a tile.
        tile: u32,
        /// Number of tiles, at least [`crate::catalogue::launch::group_tiles`].
        tiles: u32,
    }

    /// `combine`: weighted sum of each row's pairs.
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

    /// Recurrent state of fixed size with two versions per slot, and the rows that advance it.
    struct Recurrence {
        /// `f32 [slot_count][2][size]`.
        state: u64,
        /// Tokens that each version covers, `i32 [slot_count][2]`.
        held: u64,
        /// `i32 [sequences][chunk]`; negative for padding at the end of a sequence.
        slots: u64,
        /// `i32 [sequences][chunk]`.
        positions: u64,
        /// `u32 [sequences]`. Must be 0 before a launch; the kernel resets it. Clear it after a
        /// launch that faulted.
        counter: u64,
        /// Slots of the state.
        slot_count: u32,
        /// Sequences of the step; the grid's z.
        sequences: u32,
        /// Rows of each sequence.
        chunk: u32,
        /// Elements of a version.
        size: u32,
    }

    /// `short_conv`: causal convolution of each channel.
    struct ShortConvParams {
        /// State: the last `taps - 1` values of each channel, `[taps - 1][channels]`.
        memory: Recurrence,
        /// `f32 [rows][channels]`.
        x: u64,
        /// `f32 [channels][taps]`; the last tap multiplies the current value.
        weight: u64,
        /// `f32 [rows][channels]`.
        out: u64,
        /// Channels.
        channels: u32,
        /// Taps of a channel: 2 to [`crate::catalogue::launch::MOST_TAPS`].
        taps: u32,
    }

    /// `gated_delta`: gated delta rule, one state matrix per head.
    struct GatedDeltaParams {
        /// State, `[heads][key_size][value_size]`.
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

    /// `delta_rule`: delta rule with a decay for each row of the state, one state matrix per head.
    struct DeltaRuleParams {
        /// State, `[heads][key_size][value_size]`.
        memory: Recurrence,
        /// `f32 [rows][heads][key_size]`, as are `decay`, `key`, `take` and `add`.
        query: u64,
        /// Factor on each row of the state.
        decay: u64,
        /// Vector whose outer product with `value` is added to the state.
        key: u64,
        /// Vector that the state is multiplied with before the update.
        take: u64,
        /// Vector whose outer product with that result is added to the state.
        add: u64,
        /// `f32 [rows][heads][value_size]`.
        value: u64,
        /// `f32 [rows][heads][value_size]`.
        out: u64,
        /// Number of heads; the grid's y.
        heads: u32,
        /// Size of a key, at most [`crate::catalogue::launch::MOST_KEY`].
        key_size: u32,
        /// Size of a value.
        value_size: u32,
        /// 0.
        reserved: u32,
    }
}

/// SiLU, as a value of `activation` fields; 0 is none.
pub const SILU: u32 = 1;
/// GELU, tanh approximation.
pub const GELU: u32 = 2;
/// gpt-oss's gated unit: `g / (1 + exp(-1.702 g)) * (u + 1)`, with `g` at most 7 and `u` clamped to
/// -7..7. Needs a second operand.
pub const CLAMPED: u32 = 3;

enumerations! {
    /// Function of `elementwise` for an element `a` of the first operand and `b` of the second.
    enum Function: u32 {
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
}
