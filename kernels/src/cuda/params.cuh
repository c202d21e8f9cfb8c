// Written by `cargo run -p orind-kernels -- header`; do not edit.
// Fields are documented in `src/params`.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;

enum : u32 {
    SILU = 1,
    GELU = 2,
    CLAMPED = 3,
    CACHE_TILE = 32,
    CACHE_BLOCK = 128,
    MOST_EXPERTS = 1024,
    MOST_TAPS = 8,
    CONV_ROWS = 16,
    MOST_KEY = 128,
    DELTA_COLUMNS = 32,
    ROW_LANES = 16,
    ROW_BLOCK = 256,
    TENSOR_AXES = 8,
    TENSOR_STEPS = 48,
    TENSOR_OPERANDS = 8,
    TENSOR_INDICES = 3,
    TENSOR_REGISTERS = 24,
    ATOMICS_THREADS = 64,
    HANDOVER_THREADS = 256,
};

struct Function {
    enum : u32 {
        ADD = 0,
        MULTIPLY = 1,
        GATE = 2,
        SCALE = 3,
        SOFT_CAP = 4,
        SILU = 5,
        GELU = 6,
        SWI_GLU = 7,
        GE_GLU = 8,
    };
};

struct Width {
    enum : u32 {
        WORD = 0,
        HALF = 1,
        BF16 = 2,
        FIXED = 3,
        SIGNED = 4,
        UNSIGNED = 5,
    };
};

struct Reduction {
    enum : u32 {
        NONE = 0,
        SUM = 1,
        LARGEST = 2,
        INT_SUM = 3,
        INT_LARGEST = 4,
    };
};

struct Action {
    enum : u32 {
        LOAD = 0,
        STORE = 1,
        IOTA = 2,
        NEG = 3,
        EXP = 4,
        LN = 5,
        SQRT = 6,
        RECIP = 7,
        SIN = 8,
        COS = 9,
        FLOOR = 10,
        ROUND = 11,
        TANH = 12,
        ADD = 13,
        SUB = 14,
        MUL = 15,
        DIV = 16,
        MAX = 17,
        LESS_EQUAL = 18,
        LESS = 19,
        EQUAL = 20,
        REM = 21,
        INT_ADD = 22,
        INT_SUB = 23,
        INT_MUL = 24,
        INT_DIV = 25,
        INT_MAX = 26,
        INT_LESS_EQUAL = 27,
        INT_LESS = 28,
        INT_EQUAL = 29,
        INT_REM = 30,
        AND = 31,
        OR = 32,
        XOR = 33,
        SHIFT_LEFT = 34,
        SHIFT_RIGHT = 35,
        SELECT = 36,
        TO_INT = 37,
        TO_FLOAT = 38,
        TO_HALF = 39,
        TO_BF16 = 40,
        TO_SIGNED = 41,
        TO_UNSIGNED = 42,
        TO_TRUTH = 43,
    };
};

struct Segment {
    u64 weights;
    u64 out;
    u64 bias;
    u32 n;
    u32 planes;
    u32 activation;
    u32 reserved;
};
static_assert(sizeof(Segment) == 40, "ABI");

struct ProjectParams {
    u64 x;
    u64 norm_weight;
    u64 residual;
    u64 next;
    Segment segments[3];
    u32 k;
    u32 rows;
    u32 swiglu;
    float eps;
    float inverse_k;
    u32 next_bytes;
};
static_assert(sizeof(ProjectParams) == 176, "ABI");

struct QuantiseParams {
    u64 x;
    u64 norm_weight;
    u64 out;
    u64 pairs;
    u32 k;
    u32 rows;
    u32 tile;
    u32 planes;
    float eps;
    u32 share;
};
static_assert(sizeof(QuantiseParams) == 56, "ABI");

struct MatmulParams {
    u64 activations;
    u64 residual;
    u64 pairs;
    u64 experts;
    u64 stride;
    Segment segments[3];
    u32 k;
    u32 rows;
    u32 swiglu;
    u32 planes;
    u32 share;
    u32 reserved;
};
static_assert(sizeof(MatmulParams) == 184, "ABI");

struct EmbedParams {
    u64 table;
    u64 ids;
    u64 out;
    u32 n;
    u32 k;
    u32 rows;
    u32 reserved;
};
static_assert(sizeof(EmbedParams) == 40, "ABI");

struct GatherParams {
    u64 table;
    u64 ids;
    u64 out;
    u32 extent;
    u32 width;
    u32 rows;
    u32 reserved;
};
static_assert(sizeof(GatherParams) == 40, "ABI");

struct RopeTableParams {
    u64 positions;
    u64 frequencies;
    u64 out;
    u32 half;
    u32 rows;
    float magnitude;
    u32 reserved;
};
static_assert(sizeof(RopeTableParams) == 40, "ABI");

struct AttentionParams {
    u64 q;
    u64 k;
    u64 v;
    u64 table;
    u64 slots;
    u64 positions;
    u64 q_norm;
    u64 k_norm;
    u64 keys;
    u64 values;
    u64 blocks;
    u64 q_out;
    u64 out;
    u64 partial;
    u64 counters;
    u64 sinks;
    u64 next;
    u32 rows;
    u32 heads;
    u32 kv_heads;
    u32 dim;
    u32 slot_count;
    u32 capacity;
    u32 entries;
    u32 interleaved;
    u32 rotated;
    u32 window;
    float eps;
    float scale;
    float cap;
    float slope;
    u32 length;
    u32 next_bytes;
};
static_assert(sizeof(AttentionParams) == 200, "ABI");

struct SampleParams {
    u64 logits;
    u64 temperature;
    u64 top_k;
    u64 top_p;
    u64 min_p;
    u64 seed;
    u64 positions;
    u64 ids;
    u64 next_tokens;
    u64 next_positions;
    u64 ring;
    u64 cursor;
    u64 partial;
    u64 counters;
    u64 candidates;
    u64 adjustments;
    u64 adjusted;
    u32 vocabulary;
    u32 rows;
    u32 ring_entries;
    u32 adjustment_words;
};
static_assert(sizeof(SampleParams) == 152, "ABI");

struct RowsParams {
    u64 a;
    u64 b;
    u64 out;
    u32 n;
    u32 rows;
    float eps;
    u32 reserved;
};
static_assert(sizeof(RowsParams) == 40, "ABI");

struct ElementwiseParams {
    u64 a;
    u64 b;
    u64 out;
    u32 n;
    u32 rows;
    u32 row_stride;
    u32 column_stride;
    u32 function;
    float by;
};
static_assert(sizeof(ElementwiseParams) == 48, "ABI");

struct NormParams {
    u64 x;
    u64 weight;
    u64 bias;
    u64 out;
    u32 n;
    u32 rows;
    u32 centred;
    float eps;
};
static_assert(sizeof(NormParams) == 48, "ABI");

struct RouteParams {
    u64 logits;
    u64 preference;
    u64 scales;
    u64 chosen;
    u64 weights;
    u32 experts;
    u32 count;
    u32 rows;
    u32 sigmoid;
    u32 normalised;
    float scale;
};
static_assert(sizeof(RouteParams) == 64, "ABI");

struct ExpertsParams {
    u64 x;
    u64 chosen;
    u64 first;
    u64 second;
    u64 stride;
    u64 first_bias;
    u64 second_bias;
    u64 out;
    u32 n;
    u32 k;
    u32 pairs;
    u32 share;
    u32 glu;
    u32 reserved;
};
static_assert(sizeof(ExpertsParams) == 88, "ABI");

struct GroupParams {
    u64 chosen;
    u64 pairs;
    u64 experts;
    u32 count;
    u32 of;
    u32 tile;
    u32 tiles;
};
static_assert(sizeof(GroupParams) == 40, "ABI");

struct CombineParams {
    u64 results;
    u64 weights;
    u64 out;
    u32 n;
    u32 rows;
    u32 count;
    u32 reserved;
};
static_assert(sizeof(CombineParams) == 40, "ABI");

struct Recurrence {
    u64 state;
    u64 held;
    u64 slots;
    u64 positions;
    u64 counter;
    u32 slot_count;
    u32 sequences;
    u32 chunk;
    u32 size;
};
static_assert(sizeof(Recurrence) == 56, "ABI");

struct ShortConvParams {
    Recurrence memory;
    u64 x;
    u64 weight;
    u64 out;
    u32 channels;
    u32 taps;
};
static_assert(sizeof(ShortConvParams) == 88, "ABI");

struct GatedDeltaParams {
    Recurrence memory;
    u64 mixed;
    u64 step;
    u64 strength;
    u64 rate;
    u64 bias;
    u64 out;
    u32 key_heads;
    u32 heads;
    u32 key_size;
    u32 value_size;
    u32 grouped;
    float eps;
    float query_scale;
    float key_scale;
};
static_assert(sizeof(GatedDeltaParams) == 136, "ABI");

struct DeltaRuleParams {
    Recurrence memory;
    u64 query;
    u64 decay;
    u64 key;
    u64 take;
    u64 add;
    u64 value;
    u64 out;
    u32 heads;
    u32 key_size;
    u32 value_size;
    u32 reserved;
};
static_assert(sizeof(DeltaRuleParams) == 128, "ABI");

struct TensorSource {
    u64 base;
    u32 shape[8];
    u32 strides[8];
    u32 axes;
    u32 width;
    u32 padded;
    u32 before;
    u32 inside;
    u32 reserved;
};
static_assert(sizeof(TensorSource) == 96, "ABI");

struct TensorParams {
    u64 steps[48];
    TensorSource sources[8];
    u64 stores[8];
    u32 constants[8];
    u32 body;
    u32 tail;
    u32 elements;
    u32 reduce;
    u32 outer;
    u32 length;
    u32 inner;
    u32 from;
    u32 into;
    u32 reserved;
};
static_assert(sizeof(TensorParams) == 1288, "ABI");

struct TensorMatmulParams {
    u64 a;
    u64 b;
    u64 out;
    u32 shape[8];
    u32 a_strides[8];
    u32 b_strides[8];
    u32 axes;
    u32 batches;
    u32 m;
    u32 n;
    u32 k;
    u32 a_width;
    u32 b_width;
    u32 reserved;
};
static_assert(sizeof(TensorMatmulParams) == 152, "ABI");

struct TensorRowsParams {
    u64 indices[3];
    TensorSource source;
    u64 out;
    u32 extents[3];
    u32 apart[3];
    u32 leading;
    u32 count;
    u32 width;
    u32 elements;
    u32 adds;
    u32 out_width;
};
static_assert(sizeof(TensorRowsParams) == 176, "ABI");

struct TensorTopKParams {
    u64 x;
    u64 out;
    u32 n;
    u32 count;
    u32 row_stride;
    u32 column_stride;
};
static_assert(sizeof(TensorTopKParams) == 32, "ABI");

struct ProbeParams {
    u64 out;
    u32 seed;
    u32 turns;
    u32 table[4];
};
static_assert(sizeof(ProbeParams) == 32, "ABI");

struct OrderParams {
    u64 out;
    u32 index;
    u32 reserved;
};
static_assert(sizeof(OrderParams) == 16, "ABI");

struct AtomicsParams {
    u64 counter;
    u64 parts;
    u64 marks;
    u32 round;
    u32 reserved;
};
static_assert(sizeof(AtomicsParams) == 32, "ABI");

struct HandoverParams {
    u64 words;
    u64 copy;
    u64 sums;
    u32 count;
    u32 key;
};
static_assert(sizeof(HandoverParams) == 32, "ABI");
