// Softmax attention of many rows of one prompt over one KV head's cache: the rows of a block share
// what it reads. Values and their order are those of `attention.cuh`.
//
// Grid: x = KV head, y = tile of rows, the last first, as it sees the most positions. A query is
// one head of a row. A block has QUERIES queries, all heads of a tile's rows, and processes STEP
// positions (SPANS spans) at a time. Both products are outer products: a thread has ROWS of 8
// queries by COLUMNS of 4 positions, then columns of values. Keys and values go through registers
// into one buffer, UNIT values at a time, widened once for all queries; a unit is loaded before the
// products of the previous one.
//
// A warp has 32 queries and one span, then 32 columns; with only 16 queries, two spans. lane % 8
// selects four positions, lane / 8 eight queries and the span. Positions of a lane are t, t + 8, t
// + 16, t + 24: two of each chain of the span's sum.
//
// With a window, steps before every row's window are skipped; spans before a query's window do not
// change its result, and earlier positions of a window's first span get no weight.
#pragma once
#include "attention.cuh"

extern __shared__ uint4 dynamic_shared[];

// Rows of a block's tile that share a slot, and the positions that their queries see.
template <class Cache, u32 QUERIES>
struct Seen {
    // Number of positions that each query sees, 0 if it is not part of this pass; their maximum and
    // minimum, the first row of the next pass, and the factor on each query's scores.
    u32 counts[QUERIES];
    float factors[QUERIES];
    u32 most, least, next;
    // Slot of the pass.
    u32 slot;

    // Selects the rows of the tile, from `first` on, that share its slot.
    DEVICE void choose(const AttentionParams& p, u32 tile, u32 rows, u32 first, Seen& seen) {
        if (threadIdx.x == 0) seen.most = 0, seen.least = ~0u, seen.next = rows;
        __syncthreads();
        u32 row = threadIdx.x / (p.heads / p.kv_heads), slot, own, position, end = 0;
        // A row outside the cache belongs to no slot.
        if (!place_of(p, tile + first, slot, position)) slot = p.slot_count;
        if (threadIdx.x == 0) seen.slot = slot;
        if (row >= first && row < rows) {
            if (!place_of(p, tile + row, own, position)) own = p.slot_count;
            else if (own == slot) end = position + 1;
            if (own != slot) atomicMin(&seen.next, row);
        }
        if (threadIdx.x < QUERIES) {
            seen.counts[threadIdx.x] = end;
            seen.factors[threadIdx.x] = factor_of(p, end - 1);
            if (end > 0) atomicMax(&seen.most, end), atomicMin(&seen.least, end);
        }
        __syncthreads();
    }

    // First tile of the head in the KV cache block of a visible position.
    DEVICE u32 head_of(const AttentionParams& p, const Seen& seen, u32 position) {
        return position < seen.most ? Cache::head_of(p, seen.slot, blockIdx.x, position) : 0;
    }

    // True if some (or all) rows of a pass see a span.
    DEVICE bool any_sees(const AttentionParams& p, const Seen& seen, u32 span) {
        return span < seen.most && span + SPAN > first_seen(p, seen.least);
    }
    DEVICE bool all_see(const AttentionParams& p, const Seen& seen, u32 span) {
        return span + SPAN <= seen.least && span + SPAN > first_seen(p, seen.most);
    }
};

template <int WIDTH, u32 BITS>
struct PrefillAttention {
    typedef Cache<BITS> Cache;
    enum : u32 { THREADS = 128, WARPS = 4, ROWS = 8, COLUMNS = 4, UNIT = 4096 };
    enum : u32 { SPANS = WIDTH / 32, STEP = SPANS * SPAN, QUERIES = UNIT / WIDTH, UNITS = STEP * WIDTH / UNIT };
    typedef Seen<Cache, QUERIES> Rows;
    // Spans of a warp, and warps that share spans or columns.
    enum : u32 { WARP_SPANS = QUERIES < 32 ? 32 / QUERIES : 1, ABREAST = SPANS / WARP_SPANS };
    // Dims of a unit of keys; a thread loads those of one or two keys.
    enum : u32 { DIMS = UNIT / STEP, KEY_DIMS = DIMS < 32 ? DIMS : 32, KEY_WORDS = Cache::template Words<KEY_DIMS>::ALL };
    // Positions of a unit of values (at most a span), and how many a thread loads four columns of.
    enum : u32 { POSITIONS = UNIT / WIDTH, PART = POSITIONS < SPAN ? POSITIONS : SPAN, VALUES = UNIT / 4 / THREADS };
    enum : u32 { VALUE_WORDS = Cache::template Words<4>::ALL, WORDS = VALUES * VALUE_WORDS };
    // KV cache blocks of a step, and of up to two steps.
    enum : u32 { BLOCKS = STEP > CACHE_BLOCK ? STEP / CACHE_BLOCK : 1, TILES = 4 };
    // Avoids bank conflicts between lanes that write weights.
    enum : u32 { STRIDE = QUERIES + 4 };

    // Factors on a run's sums and on a span's sums when they are folded.
    struct Factors {
        float old, young;
    };
    union Span {
        Softmax softmax;
        Factors factors;
    };

    struct __align__(16) Shared : Rows {
        float queries[WIDTH][QUERIES];
        float unit[UNIT];
        float weights[STEP][STRIDE];
        Span spans[SPANS][QUERIES];
        // Softmax of the current run and of all previous runs, per query.
        Softmax run[QUERIES], total[QUERIES];
        // First tiles of the head in the KV cache blocks of two steps, indexed by block number
        // modulo TILES.
        u32 tiles[TILES];
    };
    typedef float Sums[ROWS][COLUMNS];

    // Part of the block's work that this thread has.
    struct Place {
        u32 warp, lane, part, row, column;
        DEVICE Place make() {
            // Recomputed on each use to save registers.
            u32 thread;
            asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
            u32 warp = thread / 32, lane = thread % 32;
            u32 part = warp % ABREAST * WARP_SPANS + lane / 8 % WARP_SPANS;
            return {warp, lane, part, warp / ABREAST * 32 + lane / 8 / WARP_SPANS * ROWS, lane % 8 * COLUMNS};
        }
    };

    // First tile of the head in this thread's KV cache block of the step at `start`, and the index
    // to store it at.
    DEVICE u32 tile_in(const AttentionParams& p, u32 start, const Shared& shared) {
        return Rows::head_of(p, shared, start + threadIdx.x * CACHE_BLOCK);
    }
    DEVICE u32& kept(u32 start, Shared& shared) { return shared.tiles[(start / CACHE_BLOCK + threadIdx.x) % TILES]; }

    // Tile of a span of the step at `start`.
    DEVICE const u8* tile_of(const AttentionParams& p, u64 cache, u32 start, u32 span, const Shared& shared) {
        u32 block = (BLOCKS > 1 ? span : start) / CACHE_BLOCK;
        return Cache::tile_of(p, cache, shared.tiles[block % TILES], span);
    }

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

    // Adds products of rows of `a` and `b` to `sums`; with MASKED only up to each query's end.
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

    // Loads the keys of unit `u` of the step at `start`: a lane has one position of each of the
    // warp's spans.
    DEVICE void load_keys(const AttentionParams& p, u32 start, u32 u, const Shared& shared, u32 (&words)[WORDS]) {
        Place place = Place::make();
        u32 from = u * DIMS + place.warp / ABREAST * KEY_DIMS;
#pragma unroll
        for (u32 s = 0; s < WARP_SPANS; s++) {
            u32 span = start + (place.warp % ABREAST * WARP_SPANS + s) * SPAN;
#pragma unroll
            for (u32 i = 0; i < KEY_WORDS; i++) words[s * KEY_WORDS + i] = 0;
            if (Rows::any_sees(p, shared, span) && from < p.dim)
                Cache::template read_key<KEY_DIMS>(tile_of(p, p.keys, start, span, shared), p.dim, place.lane, from,
                                                   words + s * KEY_WORDS);
        }
    }
    DEVICE void store_keys(Shared& shared, const u32 (&words)[WORDS]) {
        Place place = Place::make();
        float* to = shared.unit + place.lane % 8 * COLUMNS + place.lane / 8;
        to += place.warp % ABREAST * WARP_SPANS * SPAN + place.warp / ABREAST * KEY_DIMS * STEP;
#pragma unroll
        for (u32 s = 0; s < WARP_SPANS; s++) {
#pragma unroll
            for (u32 i = 0; i < KEY_DIMS / 8; i++) {
                float eight[8];
                Cache::template widen_key<KEY_DIMS>(words + s * KEY_WORDS, i, eight);
#pragma unroll
                for (u32 c = 0; c < 8; c++) to[s * SPAN + (8 * i + c) * STEP] = eight[c];
            }
        }
    }

    // Loads the values of unit `u`: a lane has four columns of every few positions.
    DEVICE void load_values(const AttentionParams& p, u32 start, u32 u, const Shared& shared, u32 (&words)[WORDS]) {
        // Positions of a load, and loads of a part.
        enum : u32 { AT_ONCE = THREADS * 4 / WIDTH, LOADS = PART / AT_ONCE };
        Place place = Place::make();
        u32 thread = place.warp * 32 + place.lane, column = thread % (WIDTH / 4) * 4, row = thread / (WIDTH / 4);
#pragma unroll
        for (u32 i = 0; i < VALUES; i++) {
            u32 at = u * POSITIONS + i / LOADS * PART, span = start + at / SPAN * SPAN;
            u32 inside = at % SPAN + i % LOADS * AT_ONCE + row;
            const u8* tile = tile_of(p, p.values, start, span, shared);
#pragma unroll
            for (u32 w = 0; w < VALUE_WORDS; w++) words[VALUE_WORDS * i + w] = 0;
            if (Rows::any_sees(p, shared, span) && span + inside < shared.most && column < p.dim)
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

    // Number of positions of a span that a query sees.
    DEVICE u32 end_of(const AttentionParams& p, const Shared& shared, u32 span, u32 query) {
        u32 count = shared.counts[query];
        return count > span && span + SPAN > first_seen(p, count) ? count - span : 0;
    }

    // Converts a span's scores to weights, their power and their sum.
    DEVICE void weigh(const AttentionParams& p, u32 span, Shared& shared, Sums& scores) {
        Place place = Place::make();
        u32 first = place.lane % 8;
        float sums[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            u32 end = end_of(p, shared, span, place.row + i), from = first_seen(p, end);
            float factor = shared.factors[place.row + i];
            ::scores_of(p, factor, scores[i]);
            float largest = -infinity();
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                if (first + 8 * j - from >= end - from) scores[i][j] = -infinity();
                // Ignores NaN.
                largest = fmaxf(largest, scores[i][j]);
            }
#pragma unroll
            for (int d = 4; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, d));
            float exponent = __fmul_rn(largest, 1.44269504f);
            i32 power = __float2int_rn(exponent);
            // Out of range: the result is NaN.
            bool lost = !(fabsf(exponent) <= MOST_POWER);
            if (lost) power = 0;
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                float weight = exp_over_power(scores[i][j], largest, power);
                scores[i][j] = lost ? quiet_nan() : weight;
            }
            if (first == 0) shared.spans[place.part][place.row + i].softmax.power = power;
            // Sums by position mod 16, then by halves.
            sums[i] = __fadd_rn(__fadd_rn(scores[i][0], scores[i][2]), __fadd_rn(scores[i][1], scores[i][3]));
        }
        bool writer;
        int row = scatter_sum<ROWS, 8>(sums, place.lane, writer);
        shared.spans[place.part][place.row + row].softmax.sum = sums[0];
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            float4* to = reinterpret_cast<float4*>(&shared.weights[place.part * SPAN + first + 8 * j][place.row]);
            to[0] = {scores[0][j], scores[1][j], scores[2][j], scores[3][j]};
            to[1] = {scores[4][j], scores[5][j], scores[6][j], scores[7][j]};
        }
    }

    // Folds a softmax and returns the factors on the sums.
    DEVICE Factors fold(Softmax& softmax, Softmax more) {
        i32 power = max(softmax.power, more.power);
        Factors factors = {power_of_two(softmax.power - power), power_of_two(more.power - power)};
        softmax = {power, __fmaf_rn(more.sum, factors.young, __fmul_rn(softmax.sum, factors.old))};
        return factors;
    }

    // Folds the sums of the thread's queries with the factors in `of`.
    DEVICE void fold(Sums& sums, const Sums& more, const Span* of) {
#pragma unroll
        for (int i = 0; i < ROWS; i += 2) {
            float factors[4];
            read(&of[i].factors.old, factors);
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float old = factors[2 * c], young = factors[2 * c + 1];
#pragma unroll
                for (int j = 0; j < COLUMNS; j++)
                    sums[i + c][j] = __fmaf_rn(more[i + c][j], young, __fmul_rn(sums[i + c][j], old));
            }
        }
    }

    // Loads the tile's queries as columns; zeroes without a row.
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

    // Computes the weights of the step at `start`. `words` has its first unit of keys on entry, its
    // first unit of values on return.
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
            if (Rows::any_sees(p, shared, span))
                outer<false>(shared.queries[u * DIMS] + place.row, QUERIES, shared.unit + place.part * SPAN + place.column, STEP,
                             min(p.dim - u * DIMS, static_cast<u32>(DIMS)), scores, ends);
            __syncthreads();
        }
        // Spans that no row sees are skipped.
        if (__any_sync(ALL_LANES, Rows::any_sees(p, shared, span))) weigh(p, span, shared, scores);
    }

    // Adds the step's weighted values to `run`; `words` has the next step's keys on return.
    DEVICE void values_of(const AttentionParams& p, u32 start, Shared& shared, Sums& run, u32 (&words)[WORDS]) {
        Place place = Place::make();
        bool inside = place.part * 32 + place.column < p.dim;
        // A span may extend over two units.
        Sums sums;
#pragma unroll 1
        for (u32 u = 0; u < UNITS && start + first_of(u) < shared.most; u++) {
            store_values(shared, words);
            __syncthreads();
            if (u + 1 < UNITS && start + first_of(u + 1) < shared.most) load_values(p, start, u + 1, shared, words);
            else load_keys(p, start + STEP, 0, shared, words);
#pragma unroll 1
            for (u32 s = 0; s < POSITIONS / PART && inside; s++) {
                u32 at = u * POSITIONS + s * PART, span = at / SPAN, first = start + span * SPAN;
                if (!Rows::any_sees(p, shared, first)) continue;
                const float* weights = shared.weights[at] + place.row;
                const float* from = shared.unit + s * PART * WIDTH + place.part * 32 + place.column;
                u32 ends[ROWS];
                if (PART == SPAN || at % SPAN == 0) clear(sums, 0.0f);
                if (Rows::all_see(p, shared, first)) {
                    outer<false>(weights, STRIDE, from, WIDTH, PART, sums, ends);
                } else {
#pragma unroll
                    for (int i = 0; i < ROWS; i++) {
                        u32 end = end_of(p, shared, first, place.row + i);
                        ends[i] = end > at % SPAN ? end - at % SPAN : 0;
                    }
                    outer<true>(weights, STRIDE, from, WIDTH, PART, sums, ends);
                }
                if (PART == SPAN || (at + PART) % SPAN == 0) fold(run, sums, &shared.spans[span][place.row]);
            }
            __syncthreads();
        }
    }
    // Start of the span that contains a unit of values.
    DEVICE u32 first_of(u32 u) { return u * POSITIONS / SPAN * SPAN; }

    // Writes the results of rows `first` to `end` of the tile; zeroes for rows outside the cache.
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
        // Rows of a prompt share a slot, so there is usually one pass.
#pragma unroll 1
        for (u32 first = 0, next; first < rows; first = next) {
            Rows::choose(p, tile, rows, first, shared);
            // Queries and columns of the thread; the first threads also have a query's softmax.
            Sums run, total;
            clear(run, -0.0f);
            clear(total, -0.0f);
            const Softmax none = {-(1 << 24), -0.0f};
            u32 query = threadIdx.x;
            bool owner = query < QUERIES;
            if (owner) shared.run[query] = shared.total[query] = none;
            u32 words[WORDS];
            u32 start = first_seen(p, shared.least) / STEP * STEP;
            if (threadIdx.x < BLOCKS) kept(start, shared) = tile_in(p, start, shared);
            __syncthreads();
            load_keys(p, start, 0, shared, words);
#pragma unroll 1
            for (; start < shared.most; start += STEP) {
                scores_of(p, start, shared, words);
                __syncthreads();
                // Prefetched for the next step.
                u32 tile = threadIdx.x < BLOCKS ? tile_in(p, start + STEP, shared) : 0;
#pragma unroll
                for (u32 s = 0; s < SPANS && owner; s++) {
                    // A span that is not seen has sums of +0; this factor leaves even -0 unchanged.
                    Factors factors = {1.0f, -0.0f};
                    Span& span = shared.spans[s][query];
                    if (end_of(p, shared, start + s * SPAN, query) > 0) factors = fold(shared.run[query], span.softmax);
                    span.factors = factors;
                }
                if (threadIdx.x < BLOCKS) kept(start + STEP, shared) = tile;
                values_of(p, start, shared, run, words);
                if ((start + STEP) % GROUP != 0 && start + STEP < shared.most) continue;
                if (owner) {
                    shared.spans[0][query].factors = fold(shared.total[query], shared.run[query]);
                    shared.run[query] = none;
                }
                __syncthreads();
                fold(total, run, &shared.spans[0][place.row]);
                clear(run, -0.0f);
            }
            if (p.sinks) {
                __syncthreads();
                if (owner) {
                    Softmax sink = sink_of(p, kv_head * group + query % group);
                    shared.spans[0][query].factors = fold(shared.total[query], sink);
                }
                __syncthreads();
                clear(run, 0.0f);
                fold(total, run, &shared.spans[0][place.row]);
            }
            next = shared.next;
            write(p, at<float>(p.out) + head, first, next, total, shared);
            __syncthreads();
        }
    }
};

// Register limit for three blocks per SM; for 128 columns two on Hopper, where the compiler would
// spill.
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
