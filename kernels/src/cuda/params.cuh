// The launch ABI: one plain struct per family, the kernel's only parameter. The build asserts every
// offset against `orind_kernels::params`, which documents the fields.
#pragma once
#include "base.cuh"

struct Segment {
    u64 weights;
    u64 out;
    u64 bias;
    u32 n;
    u32 planes;
    u32 activation;
    u32 reserved;
};

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

struct EmbedParams {
    u64 table;
    u64 ids;
    u64 out;
    u32 n;
    u32 k;
    u32 rows;
    u32 reserved;
};

struct GatherParams {
    u64 table;
    u64 ids;
    u64 out;
    u32 extent;
    u32 width;
    u32 rows;
    u32 reserved;
};

struct RopeTableParams {
    u64 positions;
    u64 frequencies;
    u64 out;
    u32 half;
    u32 rows;
    float magnitude;
    u32 reserved;
};

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

struct RowsParams {
    u64 a;
    u64 b;
    u64 out;
    u32 n;
    u32 rows;
    float eps;
    u32 reserved;
};

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

struct CombineParams {
    u64 results;
    u64 weights;
    u64 out;
    u32 n;
    u32 rows;
    u32 count;
    u32 reserved;
};

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

struct ShortConvParams {
    Recurrence memory;
    u64 x;
    u64 weight;
    u64 out;
    u32 channels;
    u32 taps;
};

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

// Asks the L2 for what the next launch reads first, which decides no number: at the end of a launch memory has nothing
// else to do.
DEVICE void look_ahead(u64 next, u32 bytes) {
    enum : u32 { LINE = 128 };
    u32 block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    u32 threads = gridDim.x * gridDim.y * gridDim.z * blockDim.x;
#pragma unroll 1
    for (u32 to = (block * blockDim.x + threadIdx.x) * LINE; to < bytes; to += threads * LINE)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(next + to));
}
