// Attention of many rows of one prompt in half precision on tensor cores, opt-in; docs/numerics.md
// lists this exception. `prefill_attention.cuh` is exact.
//
// Queries, keys, values and weights are f16; sums are f32, rounded by the tensor core. A block has
// QUERIES queries, a warp 16 of them, and processes STEP positions at a time; scores and weights
// stay in registers. Keys of a step are copied while the previous values are multiplied, values
// while scores are.
//
// Grid: x = KV head, y = tile of rows, the last first, as it sees the most positions. Visibility,
// windows and rings are as in `prefill_attention.cuh`. A position that a query does not see gets no
// weight; a NaN or infinite value still reaches queries that process it in the same step.
#pragma once
#include "matrix.cuh"
#include "prefill_attention.cuh"

enum : u32 { PIECE_BYTES = 16 };
#define LOG2_E 1.44269504f

// 2^x, by the special function unit.
DEVICE float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <int WIDTH, u32 BITS>
struct PrefillAttentionHalf {
    typedef Cache<BITS> Cache;
    enum : u32 { THREADS = 128, QUERIES = 64, STEP = WIDTH > 128 ? 32 : 64 };
    // Pieces of a head's 16-bit values, also its matrices of 8 columns; matrices of 8 positions.
    enum : u32 { PIECES = WIDTH / 8, TILES = STEP / 8 };
    typedef Seen<Cache, QUERIES> Rows;

    struct __align__(16) Shared : Rows {
        // Rows of pieces, piece i at i ^ row % 8 (swizzled), so that eight rows have no bank
        // conflicts.
        uint4 queries[QUERIES][PIECES];
        uint4 values[STEP][PIECES];
        // In the order of an f16 cache.
        uint4 keys[STEP / CACHE_TILE][PIECES][CACHE_TILE];
    };
    DEVICE u32 swizzled(u32 row, u32 piece) { return row * PIECES + (piece ^ row % 8); }

    typedef float Scores[TILES][4];
    typedef float Sums[PIECES][4];

    // Largest score (as a power of two) and sum of weights of each of a thread's two queries.
    struct Softmax {
        float most[2], sum[2];
    };

    DEVICE uint4 halves(const float (&x)[8]) {
        return {Binary16::two(x[0], x[1]), Binary16::two(x[2], x[3]), Binary16::two(x[4], x[5]), Binary16::two(x[6], x[7])};
    }

    // Loads the tile's queries; zeroes without a row. Heads narrower than WIDTH are zero-padded,
    // also in keys and values.
    DEVICE void load_queries(const AttentionParams& p, const float* q, u32 queries, u32 group, Shared& shared) {
        const uint4 none = {};
#pragma unroll 1
        for (u32 i = threadIdx.x; i < QUERIES * PIECES; i += THREADS) {
            u32 query = i / PIECES, piece = i % PIECES;
            float x[8] = {};
            if (query < queries && 8 * piece < p.dim) {
                const float4* from =
                    reinterpret_cast<const float4*>(q + (static_cast<u64>(query / group) * p.heads + query % group) * p.dim) + 2 * piece;
                float4 low = from[0], high = from[1];
                x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w, x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
            }
            shared.queries[0][swizzled(query, piece)] = halves(x);
            if (query >= STEP || 8 * piece < p.dim) continue;
            shared.keys[query / CACHE_TILE][piece][query % CACHE_TILE] = none;
            shared.values[0][swizzled(query, piece)] = none;
        }
    }

    // Starts copying the keys of the step at `start`; `head` is the head's first tile in their KV
    // cache block. Spans that no row sees are zero.
    DEVICE void ask_keys(const AttentionParams& p, u32 start, u32 head, Shared& shared) {
        if (start >= shared.most) return;
#pragma unroll
        for (u32 span = 0; span < STEP / CACHE_TILE; span++) {
            const u8* tile = Cache::tile_of(p, p.keys, head, start + span * CACHE_TILE);
            bool seen = start + span * CACHE_TILE < shared.most;
#pragma unroll
            for (u32 first = 0; first < PIECES * CACHE_TILE; first += THREADS) {
                u32 i = first + threadIdx.x, piece = i / CACHE_TILE;
                uint4* to = shared.keys[span][0] + i;
                if (8 * piece >= p.dim) continue;
                if (!seen) {
                    *to = {};
                } else if constexpr (BITS == 16) {
                    copy_piece(shared_address(to), tile + i * 16);
                } else {
                    u32 words[Cache::template Words<16>::ALL];
                    float x[8];
                    Cache::template read_key<16>(tile, p.dim, i % CACHE_TILE, piece / 2 * 16, words);
                    Cache::template widen_key<16>(words, piece % 2, x);
                    *to = halves(x);
                }
            }
        }
    }

    // Starts copying the step's values; positions that no row sees are zero.
    DEVICE void ask_values(const AttentionParams& p, u32 start, u32 head, Shared& shared) {
        // A thread copies one piece of every few positions.
        u32 piece = threadIdx.x % PIECES, row = threadIdx.x / PIECES;
        if (8 * piece >= p.dim) return;
#pragma unroll
        for (u32 span = 0; span < STEP / CACHE_TILE; span++) {
            const u8* tile = Cache::tile_of(p, p.values, head, start + span * CACHE_TILE);
            const u8* number = Cache::number_at(tile, p.dim, row, 8 * piece);
#pragma unroll
            for (u32 first = 0; first < CACHE_TILE; first += THREADS / PIECES) {
                u32 place = span * CACHE_TILE + first + row;
                uint4* to = shared.values[0] + swizzled(place, piece);
                if (start + place >= shared.most) {
                    *to = {};
                } else if constexpr (BITS == 16) {
                    copy_piece(shared_address(to), number + first * Cache::row_bytes(p.dim));
                } else {
                    u32 words[Cache::template Words<8>::ALL];
                    float x[8];
                    Cache::template read_value<8>(number + first * Cache::row_bytes(p.dim),
                                                  Cache::scale_at(tile, p.dim, first + row, 8 * piece), words);
                    Cache::template widen_value<8>(words, 0, x);
                    *to = halves(x);
                }
            }
        }
    }

    // Multiplies the warp's queries with the step's keys.
    DEVICE void multiply_keys(const AttentionParams& p, const Shared& shared, Scores& scores) {
        u32 lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane % 16;
        u32 queries = shared_address(shared.queries[row]), piece = lane / 16 ^ row % 8;
        u32 keys = shared_address(&shared.keys[0][lane / 8 % 2][lane / 16 * 8 + lane % 8]);
#pragma unroll
        for (u32 t = 0; t < TILES; t++) {
#pragma unroll
            for (u32 c = 0; c < 4; c++) scores[t][c] = 0.0f;
        }
#pragma unroll
        for (u32 k = 0; k < WIDTH / 16; k++) {
            if (16 * k >= p.dim) continue;
            u32 a[4];
            load_matrices<0>(a, queries + (piece ^ 2 * k) * PIECE_BYTES);
#pragma unroll
            for (u32 t = 0; t < TILES; t += 2) {
                u32 b[4];
                load_matrices<0>(b, keys + ((t / 4 * PIECES + 2 * k) * CACHE_TILE + t % 4 * 8) * PIECE_BYTES);
                Binary16::multiply(scores[t], a, b[0], b[1]);
                Binary16::multiply(scores[t + 1], a, b[2], b[3]);
            }
        }
    }

    // Converts scores to weights; `factors` are the factors on earlier sums.
    DEVICE void weigh(const AttentionParams& p, u32 start, const Shared& shared, Scores& scores, Softmax& softmax, float (&factors)[2]) {
        u32 lane = threadIdx.x % 32;
        bool all = start + STEP <= shared.least && start >= first_seen(p, shared.most);
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            u32 query = threadIdx.x / 32 * 16 + 8 * h + lane / 4;
            float factor = shared.factors[query], most = softmax.most[h];
            // Weights are powers of two.
            if (p.cap == 0.0f) factor = __fmul_rn(factor, LOG2_E);
            float own[2 * TILES];
#pragma unroll
            for (u32 i = 0; i < 2 * TILES; i++) own[i] = __fmul_rn(scores[i / 2][2 * h + i % 2], factor);
            if (p.cap != 0.0f) {
#pragma unroll
                for (u32 i = 0; i < 2 * TILES; i++) own[i] = __fmul_rn(soft_capped(p.cap, own[i]), LOG2_E);
            }
            if (!all) {
                u32 count = shared.counts[query], first = first_seen(p, count), position = start + lane % 4 * 2 - first;
#pragma unroll
                for (u32 i = 0; i < 2 * TILES; i++)
                    if (position + i / 2 * 8 + i % 2 >= count - first) own[i] = -infinity();
            }
#pragma unroll
            for (u32 i = 0; i < 2 * TILES; i++) most = fmaxf(most, own[i]);
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
            // The query has seen no position yet.
            float base = most == -infinity() ? 0.0f : most;
            factors[h] = fast_exp2(softmax.most[h] - base);
            float sum = 0.0f;
#pragma unroll
            for (u32 i = 0; i < 2 * TILES; i++) sum += scores[i / 2][2 * h + i % 2] = fast_exp2(own[i] - base);
            softmax.most[h] = most;
            softmax.sum[h] = softmax.sum[h] * factors[h] + sum;
        }
    }

    // Adds the step's weighted values.
    DEVICE void multiply_values(const AttentionParams& p, const Shared& shared, const Scores& weights, Sums& sums) {
        u32 lane = threadIdx.x % 32, values = shared_address(shared.values[lane % 16]), piece = lane / 16 ^ lane % 8;
#pragma unroll
        for (u32 t = 0; t < TILES; t += 2) {
            u32 a[4] = {Binary16::two(weights[t][0], weights[t][1]), Binary16::two(weights[t][2], weights[t][3]),
                        Binary16::two(weights[t + 1][0], weights[t + 1][1]), Binary16::two(weights[t + 1][2], weights[t + 1][3])};
#pragma unroll
            for (u32 n = 0; n < PIECES; n += 2) {
                if (8 * n >= p.dim) continue;
                u32 b[4];
                load_transposed(b, values + (8 * t * PIECES + (piece ^ n)) * PIECE_BYTES);
                Binary16::multiply(sums[n], a, b[0], b[1]);
                Binary16::multiply(sums[n + 1], a, b[2], b[3]);
            }
        }
    }

    DEVICE void scale(Sums& sums, const float (&factors)[2]) {
        if (!__any_sync(ALL_LANES, factors[0] != 1.0f || factors[1] != 1.0f)) return;
#pragma unroll
        for (u32 n = 0; n < PIECES; n++) {
#pragma unroll
            for (u32 c = 0; c < 4; c++) sums[n][c] *= factors[c / 2];
        }
    }

    // Writes the results of rows `from` to `end` of the tile; zeroes for rows outside the cache.
    DEVICE void write(const AttentionParams& p, float* out, u32 from, u32 end, const Sums& sums, const Softmax& softmax, const Shared& shared) {
        u32 lane = threadIdx.x % 32, group = p.heads / p.kv_heads;
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            u32 query = threadIdx.x / 32 * 16 + 8 * h + lane / 4, row = query / group;
            if (row < from || row >= end) continue;
            float share = shared.counts[query] > 0 ? __fdiv_rn(1.0f, softmax.sum[h]) : 0.0f;
            float* to = out + (static_cast<u64>(row) * p.heads + query % group) * p.dim + lane % 4 * 2;
#pragma unroll
            for (u32 n = 0; n < PIECES; n++)
                if (8 * n < p.dim) *reinterpret_cast<float2*>(to + 8 * n) = {sums[n][2 * h] * share, sums[n][2 * h + 1] * share};
        }
    }

    DEVICE void run(const AttentionParams& p) {
        Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared);
        u32 group = p.heads / p.kv_heads, kv_head = blockIdx.x, of_tile = QUERIES / group, lane = threadIdx.x % 32;
        u32 tile = (gridDim.y - 1 - blockIdx.y) * of_tile, rows = min(p.rows - tile, of_tile);
        u64 head = (static_cast<u64>(tile) * p.heads + kv_head * group) * p.dim;
        load_queries(p, at<const float>(p.q) + head, rows * group, group, shared);
        // Rows of a prompt share a slot, so there is usually one pass.
#pragma unroll 1
        for (u32 from = 0, next; from < rows; from = next) {
            Rows::choose(p, tile, rows, from, shared);
            Sums sums = {};
            Softmax softmax = {{-infinity(), -infinity()}, {0.0f, 0.0f}};
            float factors[2];
            u32 start = first_seen(p, shared.least) / STEP * STEP;
            u32 block = Rows::head_of(p, shared, start);
            ask_keys(p, start, block, shared);
#pragma unroll 1
            for (; start < shared.most; start += STEP) {
                copies_arrive();
                ask_values(p, start, block, shared);
                // Prefetched for the next step.
                block = Rows::head_of(p, shared, start + STEP);
                Scores scores;
                multiply_keys(p, shared, scores);
                weigh(p, start, shared, scores, softmax, factors);
                copies_arrive();
                ask_keys(p, start + STEP, block, shared);
                scale(sums, factors);
                multiply_values(p, shared, scores, sums);
            }
#pragma unroll
            for (u32 h = 0; h < 2; h++) {
                softmax.sum[h] += __shfl_xor_sync(ALL_LANES, softmax.sum[h], 1);
                softmax.sum[h] += __shfl_xor_sync(ALL_LANES, softmax.sum[h], 2);
                if (!p.sinks) continue;
                u32 query = threadIdx.x / 32 * 16 + 8 * h + lane / 4;
                float sink = at<const float>(p.sinks)[kv_head * group + query % group] * LOG2_E;
                if (!is_finite(sink)) sink = quiet_nan();
                float most = fmaxf(softmax.most[h], sink);
                factors[h] = fast_exp2(softmax.most[h] - most);
                softmax.sum[h] = softmax.sum[h] * factors[h] + fast_exp2(sink - most);
            }
            if (p.sinks) scale(sums, factors);
            next = shared.next;
            write(p, at<float>(p.out) + head, from, next, sums, softmax, shared);
            __syncthreads();
        }
    }
};

#define PREFILL_ATTENTION_HALF(name, width, bits, shared_bytes)                                          \
    static_assert(sizeof(PrefillAttentionHalf<width, bits>::Shared) == shared_bytes, "ABI");             \
    extern "C" __global__ __launch_bounds__(128, (width) > 128 ? 2 : 3) void name(                       \
        const __grid_constant__ AttentionParams p) {                                                     \
        after_previous_launch();                                                                         \
        PrefillAttentionHalf<width, bits>::run(p);                                                       \
    }
