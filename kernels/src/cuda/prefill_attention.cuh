// Softmax attention of many rows of one prompt over one KV head's cache: a block's rows share what it
// reads. Numbers and their order are those of `attention.cuh`.
//
// Grid: x = kv head, y = tile of rows, the last first, as it sees most positions. A query is a row's
// head; QUERIES of them, all heads of a tile's rows, meet STEP positions, SPANS spans, at a time. Both
// products are outer ones: a thread has ROWS queries of 8 and COLUMNS of 4 positions, then values. Keys
// and values come through registers into one buffer, a unit of UNIT numbers at a time, widened once for
// all queries; a unit is asked for before the products of the one before it.
//
// A warp has 32 queries and a span, then 32 columns: lane % 8 says which four, lane / 8 which eight
// queries. Of a span they are positions t, t + 8, t + 16, t + 24: two of each chain of the span's sum.
//
// Where there is a window, steps that lie before every row's are left out, spans before a query's own change nothing
// of it, and positions before it in a span that is not have no weight.
#pragma once
#include "attention.cuh"

extern __shared__ uint4 dynamic_shared[];

template <int WIDTH, u32 BITS>
struct PrefillAttention {
    typedef Cache<BITS> Cache;
    enum : u32 { THREADS = 128, WARPS = 4, ROWS = 8, COLUMNS = 4, UNIT = 4096 };
    enum : u32 { SPANS = WIDTH / 32, STEP = SPANS * SPAN, QUERIES = UNIT / WIDTH, UNITS = STEP * WIDTH / UNIT };
    // Dims of a unit of keys, positions of a unit of values; of those a thread brings four columns of so many, and words.
    enum : u32 { DIMS = UNIT / STEP, POSITIONS = UNIT / WIDTH, VALUES = UNIT / 4 / THREADS };
    enum : u32 { VALUE_WORDS = Cache::template Words<4>::ALL, WORDS = VALUES * VALUE_WORDS };
    enum : u32 { KEY_WORDS = Cache::template Words<32>::ALL };
    // Lanes that write weights then meet no bank twice.
    enum : u32 { STRIDE = QUERIES + 4 };

    struct __align__(16) Shared {
        float queries[WIDTH][QUERIES];
        float unit[UNIT];
        float weights[STEP][STRIDE];
        Softmax spans[SPANS][QUERIES];
        // What a run's sums and a span's are multiplied by when they are folded.
        float old[SPANS][QUERIES], young[SPANS][QUERIES];
        // Of the run under way and of those before it, for each query.
        Softmax run[QUERIES], total[QUERIES];
        // Positions up to the last that a query sees, 0 where it is not of this pass; the most and the least of
        // those that are, and the first row of the next pass.
        u32 counts[QUERIES];
        u32 most, least, next;
        // The first tile of what they see.
        u32 cache;
    };
    // Whether some of a pass's rows see a span, and whether all do.
    DEVICE bool any_sees(const AttentionParams& p, const Shared& shared, u32 span) {
        return span < shared.most && span + SPAN > first_seen(p, shared.least);
    }
    DEVICE bool all_see(const AttentionParams& p, const Shared& shared, u32 span) {
        return span + SPAN <= shared.least && span + SPAN > first_seen(p, shared.most);
    }
    typedef float Sums[ROWS][COLUMNS];

    // Which part of the block's work is the thread's.
    struct Place {
        u32 warp, lane, part, row, column;
        DEVICE Place make() {
            // Asked for anew each time: registers are scarce.
            u32 thread;
            asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
            u32 warp = thread / 32, lane = thread % 32;
            return {warp, lane, warp % SPANS, warp / SPANS * 32 + lane / 8 * ROWS, lane % 8 * COLUMNS};
        }
    };

    DEVICE void clear(Sums& sums, float value) {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) sums[i][j] = value;
        }
    }

    DEVICE void read(const float* from, float (&out)[4]) {
        float4 v = *reinterpret_cast<const float4*>(from);
        out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
    }

    // Row after row of `a` times that of `b`, onto `sums`; with MASKED the i-th query's until its end.
    template <bool MASKED>
    DEVICE void outer(const float* a, u32 a_stride, const float* b, u32 b_stride, u32 n, Sums& sums,
                      const u32 (&ends)[ROWS]) {
#pragma unroll(MASKED ? 1 : 8)
        for (u32 k = 0; k < n; k++) {
            float left[ROWS], right[COLUMNS];
#pragma unroll
            for (int i = 0; i < ROWS; i += 4) {
                float four[4];
                read(a + k * a_stride + i, four);
#pragma unroll
                for (int c = 0; c < 4; c++) left[i + c] = four[c];
            }
            read(b + k * b_stride, right);
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                if (MASKED && k >= ends[i]) continue;
#pragma unroll
                for (int j = 0; j < COLUMNS; j++) sums[i][j] = __fmaf_rn(left[i], right[j], sums[i][j]);
            }
        }
    }

    // Keys of unit `u` of the step at `start`: a lane has a position, a warp a span and 32 dims.
    DEVICE void load_keys(const AttentionParams& p, u32 start, u32 u, const Shared& shared, u32 (&words)[WORDS]) {
        Place place = Place::make();
        u32 span = start + place.part * SPAN, from = u * DIMS + place.warp / SPANS * 32;
#pragma unroll
        for (u32 i = 0; i < KEY_WORDS; i++) words[i] = 0;
        if (any_sees(p, shared, span) && from < p.dim)
            Cache::read_key(Cache::tile_of(p, p.keys, shared.cache, span), p.dim, place.lane, from, words);
    }
    DEVICE void store_keys(Shared& shared, const u32 (&words)[WORDS]) {
        Place place = Place::make();
        float* to = shared.unit + place.part * SPAN + place.lane % 8 * COLUMNS + place.lane / 8;
        to += place.warp / SPANS * 32 * STEP;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            float eight[8];
            Cache::widen_key(words, i, eight);
#pragma unroll
            for (u32 c = 0; c < 8; c++) to[(8 * i + c) * STEP] = eight[c];
        }
    }

    // Values of unit `u`: a lane has four columns of every few positions.
    DEVICE void load_values(const AttentionParams& p, u32 start, u32 u, const Shared& shared, u32 (&words)[WORDS]) {
        // Positions that a load brings, and loads of a span.
        enum : u32 { AT_ONCE = THREADS * 4 / WIDTH, LOADS = SPAN / AT_ONCE };
        Place place = Place::make();
        u32 thread = place.warp * 32 + place.lane, column = thread % (WIDTH / 4) * 4, row = thread / (WIDTH / 4);
#pragma unroll
        for (u32 i = 0; i < VALUES; i++) {
            u32 span = start + u * POSITIONS + i / LOADS * SPAN, inside = i % LOADS * AT_ONCE + row;
            const u8* tile = Cache::tile_of(p, p.values, shared.cache, span);
#pragma unroll
            for (u32 w = 0; w < VALUE_WORDS; w++) words[VALUE_WORDS * i + w] = 0;
            if (any_sees(p, shared, span) && span + inside < shared.most && column < p.dim)
                Cache::template read_value<4>(Cache::number_at(tile, p.dim, inside, column),
                                              Cache::scale_at(tile, p.dim, inside, column), words + VALUE_WORDS * i);
        }
    }
    DEVICE void store_values(Shared& shared, const u32 (&words)[WORDS]) {
#pragma unroll
        for (u32 i = 0; i < VALUES; i++) {
            float v[4];
            Cache::template widen_value<4>(words + VALUE_WORDS * i, threadIdx.x % 2 * 4, v);
            reinterpret_cast<float4*>(shared.unit)[threadIdx.x + i * THREADS] = {v[0], v[1], v[2], v[3]};
        }
    }

    // Positions from a span's first on up to the last that a query sees; 0 where it sees none of the span.
    DEVICE u32 end_of(const AttentionParams& p, const Shared& shared, u32 span, u32 query) {
        u32 count = shared.counts[query];
        return count > span && span + SPAN > first_seen(p, count) ? count - span : 0;
    }

    // Scores of a span to weights, their power and their sum.
    DEVICE void weigh(const AttentionParams& p, u32 span, Shared& shared, Sums& scores) {
        Place place = Place::make();
        u32 first = place.lane % 8;
        float sums[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float largest = -infinity();
            u32 end = end_of(p, shared, span, place.row + i);
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                float score = score_of(p, p.scale, scores[i][j]);
                u32 position = first + 8 * j;
                scores[i][j] = position < end && end - position <= p.window ? score : -infinity();
                // A NaN is passed over.
                largest = fmaxf(largest, scores[i][j]);
            }
#pragma unroll
            for (int d = 4; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, d));
            float exponent = __fmul_rn(largest, 1.44269504f);
            i32 power = __float2int_rn(exponent);
            // Without such a power there is no number.
            bool lost = !(fabsf(exponent) <= MOST_POWER);
            if (lost) power = 0;
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                float weight = exp_over_power(scores[i][j], largest, power);
                scores[i][j] = lost ? quiet_nan() : weight;
            }
            if (first == 0) shared.spans[place.part][place.row + i].power = power;
            // By position mod 16, then by halves.
            sums[i] = __fadd_rn(__fadd_rn(scores[i][0], scores[i][2]), __fadd_rn(scores[i][1], scores[i][3]));
        }
        bool writer;
        int row = scatter_sum<ROWS, 8>(sums, place.lane, writer);
        shared.spans[place.part][place.row + row].sum = sums[0];
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            float4* to = reinterpret_cast<float4*>(&shared.weights[place.part * SPAN + first + 8 * j][place.row]);
            to[0] = {scores[0][j], scores[1][j], scores[2][j], scores[3][j]};
            to[1] = {scores[4][j], scores[5][j], scores[6][j], scores[7][j]};
        }
    }

    // `old` and `young` of a fold, and its softmax.
    DEVICE void fold(Softmax& softmax, Softmax more, float& old, float& young) {
        i32 power = max(softmax.power, more.power);
        old = power_of_two(softmax.power - power), young = power_of_two(more.power - power);
        softmax = {power, __fmaf_rn(more.sum, young, __fmul_rn(softmax.sum, old))};
    }

    DEVICE void fold(Sums& sums, const Sums& more, const float* old_of, const float* young_of) {
#pragma unroll
        for (int i = 0; i < ROWS; i += 4) {
            float old[4], young[4];
            read(old_of + i, old);
            read(young_of + i, young);
#pragma unroll
            for (int c = 0; c < 4; c++) {
#pragma unroll
                for (int j = 0; j < COLUMNS; j++)
                    sums[i + c][j] = __fmaf_rn(more[i + c][j], young[c], __fmul_rn(sums[i + c][j], old[c]));
            }
        }
    }

    // Queries of the tile in columns; without a row they are zeroes.
    DEVICE void load_queries(const AttentionParams& p, const float* q, u32 queries, u32 group, Shared& shared) {
#pragma unroll 1
        for (u32 i = threadIdx.x; i < QUERIES * (WIDTH / 4); i += THREADS) {
            u32 query = i % QUERIES, dim = i / QUERIES * 4;
            float four[4] = {};
            if (query < queries && dim < p.dim)
                read(q + (static_cast<u64>(query / group) * p.heads + query % group) * p.dim + dim, four);
#pragma unroll
            for (int c = 0; c < 4; c++) shared.queries[dim + c][query] = four[c];
        }
    }

    // Weights of the step at `start`, whose first unit of keys is in `words`; leaves its first unit of values there.
    DEVICE void scores_of(const AttentionParams& p, u32 start, Shared& shared, u32 (&words)[WORDS]) {
        Place place = Place::make();
        u32 span = start + place.part * SPAN;
        u32 ends[ROWS];
        Sums scores;
        clear(scores, 0.0f);
#pragma unroll 1
        for (u32 u = 0; u < UNITS && u * DIMS < p.dim; u++) {
            store_keys(shared, words);
            __syncthreads();
            if (u + 1 < UNITS && (u + 1) * DIMS < p.dim) load_keys(p, start, u + 1, shared, words);
            else load_values(p, start, 0, shared, words);
            if (any_sees(p, shared, span))
                outer<false>(shared.queries[u * DIMS] + place.row, QUERIES, shared.unit + place.part * SPAN + place.column, STEP,
                             min(p.dim - u * DIMS, static_cast<u32>(DIMS)), scores, ends);
            __syncthreads();
        }
        if (any_sees(p, shared, span)) weigh(p, span, shared, scores);
    }

    // What the step's weights make of its values, onto `run`; leaves the next step's keys in `words`.
    DEVICE void values_of(const AttentionParams& p, u32 start, Shared& shared, Sums& run, u32 (&words)[WORDS]) {
        Place place = Place::make();
        bool inside = place.part * 32 + place.column < p.dim;
#pragma unroll 1
        for (u32 u = 0; u < UNITS && start + u * POSITIONS < shared.most; u++) {
            store_values(shared, words);
            __syncthreads();
            if (u + 1 < UNITS && start + (u + 1) * POSITIONS < shared.most) load_values(p, start, u + 1, shared, words);
            else load_keys(p, start + STEP, 0, shared, words);
#pragma unroll 1
            for (u32 s = 0; s < SPANS / UNITS && inside; s++) {
                u32 span = u * (SPANS / UNITS) + s, first = start + span * SPAN;
                if (!any_sees(p, shared, first)) continue;
                const float* weights = shared.weights[span * SPAN] + place.row;
                const float* from = shared.unit + s * SPAN * WIDTH + place.part * 32 + place.column;
                u32 ends[ROWS];
                Sums sums;
                clear(sums, 0.0f);
                if (all_see(p, shared, first)) {
                    outer<false>(weights, STRIDE, from, WIDTH, SPAN, sums, ends);
                } else {
#pragma unroll
                    for (int i = 0; i < ROWS; i++) ends[i] = end_of(p, shared, first, place.row + i);
                    outer<true>(weights, STRIDE, from, WIDTH, SPAN, sums, ends);
                }
                fold(run, sums, shared.old[span] + place.row, shared.young[span] + place.row);
            }
            __syncthreads();
        }
    }

    // Finds the rows of the tile from `first` on that share its slot, and what they see.
    DEVICE void choose(const AttentionParams& p, u32 tile, u32 rows, u32 first, Shared& shared) {
        if (threadIdx.x == 0) shared.most = 0, shared.least = ~0u, shared.next = rows;
        __syncthreads();
        u32 row = threadIdx.x / (p.heads / p.kv_heads), slot, own, position, end = 0;
        // Without a place it is in none of them.
        if (!place_of(p, tile + first, slot, position)) slot = p.slot_count;
        if (threadIdx.x == 0) shared.cache = Cache::head_of(p, slot, blockIdx.x);
        if (row >= first && row < rows) {
            if (!place_of(p, tile + row, own, position)) own = p.slot_count;
            else if (own == slot) end = position + 1;
            if (own != slot) atomicMin(&shared.next, row);
        }
        if (threadIdx.x < QUERIES) {
            shared.counts[threadIdx.x] = end;
            if (end > 0) atomicMax(&shared.most, end), atomicMin(&shared.least, end);
        }
        __syncthreads();
    }

    // The results of rows `first` to `end` of the tile; without a place they are zeroes.
    DEVICE void write(const AttentionParams& p, float* out, u32 first, u32 end, const Sums& total, const Shared& shared) {
        Place place = Place::make();
        u32 group = p.heads / p.kv_heads, column = place.part * 32 + place.column;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            u32 query = place.row + i, row = query / group;
            if (row < first || row >= end || column >= p.dim) continue;
            float4 result = {0.0f, 0.0f, 0.0f, 0.0f};
            if (shared.counts[query] > 0) {
                float sum = shared.total[query].sum;
                result = {__fdiv_rn(total[i][0], sum), __fdiv_rn(total[i][1], sum), __fdiv_rn(total[i][2], sum),
                          __fdiv_rn(total[i][3], sum)};
            }
            float* to = out + (static_cast<u64>(row) * p.heads + query % group) * p.dim + column;
            *reinterpret_cast<float4*>(to) = result;
        }
    }

    DEVICE void run(const AttentionParams& p) {
        Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared);
        Place place = Place::make();
        u32 group = p.heads / p.kv_heads, kv_head = blockIdx.x, of_tile = QUERIES / group;
        u32 tile = (gridDim.y - 1 - blockIdx.y) * of_tile, rows = min(p.rows - tile, of_tile);
        u64 head = (static_cast<u64>(tile) * p.heads + kv_head * group) * p.dim;
        load_queries(p, at<const float>(p.q) + head, rows * group, group, shared);
        // Rows of a prompt share a slot: one pass.
#pragma unroll 1
        for (u32 first = 0, next; first < rows; first = next) {
            choose(p, tile, rows, first, shared);
            // A thread's queries and columns; the first threads have a query's softmax each.
            Sums run, total;
            clear(run, -0.0f);
            clear(total, -0.0f);
            const Softmax none = {-(1 << 24), -0.0f};
            u32 query = threadIdx.x;
            bool owner = query < QUERIES;
            if (owner) shared.run[query] = shared.total[query] = none;
            u32 words[WORDS];
            u32 start = first_seen(p, shared.least) / STEP * STEP;
            load_keys(p, start, 0, shared, words);
#pragma unroll 1
            for (; start < shared.most; start += STEP) {
                scores_of(p, start, shared, words);
                __syncthreads();
#pragma unroll
                for (u32 s = 0; s < SPANS && owner; s++) {
                    // A span that is not seen, whose sums are +0, changes not even a minus zero.
                    float old = 1.0f, young = -0.0f;
                    if (end_of(p, shared, start + s * SPAN, query) > 0)
                        fold(shared.run[query], shared.spans[s][query], old, young);
                    shared.old[s][query] = old, shared.young[s][query] = young;
                }
                values_of(p, start, shared, run, words);
                if ((start + STEP) % GROUP != 0 && start + STEP < shared.most) continue;
                if (owner) {
                    fold(shared.total[query], shared.run[query], shared.old[0][query], shared.young[0][query]);
                    shared.run[query] = none;
                }
                __syncthreads();
                fold(total, run, shared.old[0] + place.row, shared.young[0] + place.row);
                clear(run, -0.0f);
            }
            if (p.sinks) {
                __syncthreads();
                if (owner)
                    fold(shared.total[query], sink_of(p, kv_head * group + query % group), shared.old[0][query],
                         shared.young[0][query]);
                __syncthreads();
                clear(run, 0.0f);
                fold(total, run, shared.old[0] + place.row, shared.young[0] + place.row);
            }
            next = shared.next;
            write(p, at<float>(p.out) + head, first, next, total, shared);
            __syncthreads();
        }
    }
};

// Registers for three blocks an SM; of 128 columns for two on Hopper, whose compiler keeps sums in memory else.
#if __CUDA_ARCH__ < 900
#define PREFILL_ATTENTION_BLOCKS(width) 3
#else
#define PREFILL_ATTENTION_BLOCKS(width) ((width) > 64 ? 2 : 3)
#endif

#define PREFILL_ATTENTION(name, width, bits, shared_bytes)                                            \
    static_assert(sizeof(PrefillAttention<width, bits>::Shared) == shared_bytes, "ABI");              \
    extern "C" __global__ __launch_bounds__(128, PREFILL_ATTENTION_BLOCKS(width)) void name(          \
        const __grid_constant__ AttentionParams p) {                                                  \
        after_previous_launch();                                                                      \
        PrefillAttention<width, bits>::run(p);                                                        \
    }
