// Softmax attention of one row's query heads over one KV head's cache. Blocks share the positions;
// the last block to finish combines the partial results in order.
//
// Positions are processed in spans of 32; eight spans form a group. A span's weights are the
// exponentials of its scores, as multiples of the power of two next to the largest. Each span
// yields the sum of the weights and the weighted sum of values. Spans fold in order into their
// group and groups in order into the result, scaled by powers of two. The order depends on the
// position alone, never on the grid.
//
// Grid: x = KV head * passes + pass, y = block of a row, z = row. A block serves HEADS query heads
// of the KV head's group and takes every y-th group. Warp w takes spans w and w + 4: for scores, a
// lane has one position of each; for values, half a warp has a span and a lane some columns. A
// block that is alone folds its groups as it goes; several blocks write them to memory.
//
// With a window, groups and spans before it are skipped, and earlier positions of its first span
// get no weight. A ring's length is a multiple of the span, so no span wraps around, and a span
// that a window reaches into is not yet overwritten. A sink is folded last.
//
// With a table of angles, the block first normalises and rotates its queries, and the block whose
// group contains the row's position writes key and value. Rows must then be in different slots.
#pragma once
#include "noise.cuh"
#include "rope.cuh"

enum : u32 { SPAN = CACHE_TILE, SPANS = 8, GROUP = SPANS * SPAN, BLOCKS = GROUP / CACHE_BLOCK };

// Limit on a score's exponent of two, of either sign.
#define MOST_POWER 4194304.0f

// Sum of the exponentials of some positions, over 2^power.
struct Softmax {
    i32 power;
    float sum;
};

// 2^n for n up to 0; 0 below the normal range.
DEVICE float power_of_two(i32 n) { return __int_as_float((max(n, -127) + 127) << 23); }

// Factor on the scores of a row at a position.
DEVICE float factor_of(const AttentionParams& p, u32 position) {
    if (p.length == 0) return p.scale;
    float lengths = __fadd_rn(1.0f, static_cast<float>(position / p.length));
    return __fmul_rn(p.scale, __fmaf_rn(p.slope, logarithm(lengths), 1.0f));
}

// Converts products of query and key to scores.
template <int COUNT>
DEVICE void scores_of(const AttentionParams& p, float factor, float (&products)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) products[i] = __fmul_rn(products[i], factor);
    if (p.cap == 0.0f) return;
#pragma unroll
    for (int i = 0; i < COUNT; i++) products[i] = soft_capped(p.cap, products[i]);
}

// Attention sink of a head, as a span of one position.
DEVICE Softmax sink_of(const AttentionParams& p, u32 head) {
    float score = at<const float>(p.sinks)[head];
    float exponent = __fmul_rn(score, 1.44269504f);
    // Out of range: the result is NaN.
    if (!(fabsf(exponent) <= MOST_POWER)) return {0, quiet_nan()};
    i32 power = __float2int_rn(exponent);
    return {power, exp_over_power(score, score, power)};
}

// First position in the window of a row that sees `count` positions.
DEVICE u32 first_seen(const AttentionParams& p, u32 count) { return count > p.window ? count - p.window : 0; }

// A running softmax, with some columns of the sums that it divides.
template <int COLUMNS>
struct Total {
    // Neutral element of `fold`.
    Softmax softmax = {-(1 << 24), -0.0f};
    float sums[COLUMNS];

    __device__ __forceinline__ Total() {
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) sums[i] = -0.0f;
    }
    // Folds the result of further positions.
    __device__ __forceinline__ void fold(Softmax more, const float (&add)[COLUMNS]) {
        i32 power = max(softmax.power, more.power);
        float old = power_of_two(softmax.power - power), young = power_of_two(more.power - power);
        softmax = {power, __fmaf_rn(more.sum, young, __fmul_rn(softmax.sum, old))};
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) sums[i] = __fmaf_rn(add[i], young, __fmul_rn(sums[i], old));
    }
};

// WIDTH is the largest head size: 64, 128, 256 or 512. BITS is the size of a cached value.
template <int WIDTH, int HEADS, u32 BITS>
struct Attention {
    typedef Cache<BITS> Cache;
    // Columns of a lane, and values loaded at a time.
    enum : u32 { WARPS = SPANS / 2, THREADS = WARPS * 32, COLUMNS = WIDTH / 16, VALUES = 32 / COLUMNS };
    // Threads that fold a head, and columns of each.
    enum : u32 { FOLDERS = THREADS / HEADS, FOLDED = (WIDTH + FOLDERS - 1) / FOLDERS };

    struct Shared {
        float queries[HEADS][WIDTH];
        float weights[SPANS][SPAN][HEADS];
        float sums[SPANS][HEADS][WIDTH];
        Softmax spans[SPANS][HEADS];
        // Slot and KV head of the row, and the head's first tile in each KV cache block of the
        // current group.
        u32 slot, kv_head, tiles[BLOCKS];
    };

    // First tile of the head in this thread's KV cache block of a group (only the first BLOCKS
    // threads); 0 behind `count`.
    DEVICE u32 tile_in(const AttentionParams& p, u32 slot, u32 kv_head, u32 group, u32 count) {
        u32 position = group * GROUP + threadIdx.x * CACHE_BLOCK;
        return position < count ? Cache::head_of(p, slot, kv_head, position) : 0;
    }

    // Writes the weights of the warp's two spans to `shared`. The first span starts at `start`;
    // positions from `first` to `count` get a weight.
    DEVICE void weigh(const AttentionParams& p, float factor, u32 start, u32 first, u32 count, Shared& shared) {
        u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        bool seen[2];
        const u8* tiles[2];
#pragma unroll
        for (int t = 0; t < 2; t++) {
            u32 span = start + t * WARPS * SPAN;
            seen[t] = span + lane >= first && span + lane < count;
            tiles[t] = Cache::tile_of(p, p.keys, shared.tiles[t], span);
        }
        float dots[2][HEADS] = {};
#pragma unroll 1
        for (u32 from = 0; from < p.dim; from += 32) {
            u32 words[2][Cache::template Words<32>::ALL] = {};
#pragma unroll
            for (int t = 0; t < 2; t++)
                if (seen[t]) Cache::template read_key<32>(tiles[t], p.dim, lane, from, words[t]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (from + 8 * i >= p.dim) break;
                float key[2][8];
                Cache::template widen_key<32>(words[0], i, key[0]);
                Cache::template widen_key<32>(words[1], i, key[1]);
#pragma unroll
                for (int h = 0; h < HEADS; h++) {
                    const float4* query = reinterpret_cast<const float4*>(&shared.queries[h][from + 8 * i]);
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        float4 q = query[j];
#pragma unroll
                        for (int t = 0; t < 2; t++) {
                            dots[t][h] = __fmaf_rn(q.x, key[t][4 * j], dots[t][h]);
                            dots[t][h] = __fmaf_rn(q.y, key[t][4 * j + 1], dots[t][h]);
                            dots[t][h] = __fmaf_rn(q.z, key[t][4 * j + 2], dots[t][h]);
                            dots[t][h] = __fmaf_rn(q.w, key[t][4 * j + 3], dots[t][h]);
                        }
                    }
                }
            }
        }
        float weights[2 * HEADS];
#pragma unroll
        for (int t = 0; t < 2; t++) {
            u32 span = warp + t * WARPS;
            ::scores_of(p, factor, dots[t]);
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                float score = seen[t] ? dots[t][h] : -infinity();
                // Ignores NaN.
                float largest = score;
#pragma unroll
                for (int d = 16; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, d));
                float exponent = __fmul_rn(largest, 1.44269504f);
                i32 power = __float2int_rn(exponent);
                float weight = exp_over_power(score, largest, power);
                // Out of range: the weight is NaN.
                if (!(fabsf(exponent) <= MOST_POWER)) weight = quiet_nan(), power = 0;
                shared.weights[span][lane][h] = weights[t * HEADS + h] = weight;
                if (lane == 0) shared.spans[span][h].power = power;
            }
        }
        // Sums by position mod 16, then by halves.
        bool writer;
        int total = scatter_sum<2 * HEADS, 32>(weights, lane, writer);
        if (writer) shared.spans[warp + total / HEADS * WARPS][total % HEADS].sum = weights[0];
    }

    // Writes the weighted sums of the warp's two spans to `shared`. WHOLE: every position of both
    // spans counts.
    template <bool WHOLE>
    DEVICE void mix(const AttentionParams& p, u32 start, u32 count, Shared& shared) {
        u32 half = threadIdx.x % 32 / 16, column = threadIdx.x % 16 * COLUMNS;
        u32 span = threadIdx.x / 32 + half * WARPS, from = start + half * WARPS * SPAN;
        bool inside = column < p.dim;
        const u8* tile = Cache::tile_of(p, p.values, shared.tiles[half], from);
        const u8* number = Cache::number_at(tile, p.dim, 0, inside ? column : 0);
        const u8* scale = Cache::scale_at(tile, p.dim, 0, inside ? column : 0);
        float sums[HEADS][COLUMNS] = {};
#pragma unroll 1
        for (u32 base = 0; base < SPAN && (WHOLE || start + base < count); base += VALUES) {
            u32 words[VALUES][Cache::template Words<COLUMNS>::ALL];
#pragma unroll
            for (int i = 0; i < VALUES; i++) {
                if (!WHOLE) Cache::template no_value<COLUMNS>(words[i]);
                if (WHOLE || (inside && from + base + i < count))
                    Cache::template read_value<COLUMNS>(number, scale, words[i]);
                number += Cache::row_bytes(p.dim);
                scale += Cache::scale_bytes(p.dim);
            }
#pragma unroll
            for (int i = 0; i < VALUES; i++) {
                float value[COLUMNS];
                Cache::template widen_value<COLUMNS>(words[i], column, value);
#pragma unroll
                for (int h = 0; h < HEADS; h++) {
                    float weight = shared.weights[span][base + i][h];
#pragma unroll
                    for (int c = 0; c < COLUMNS; c++) sums[h][c] = __fmaf_rn(weight, value[c], sums[h][c]);
                }
            }
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) shared.sums[span][h][column + c] = sums[h][c];
        }
    }

    DEVICE void run(const AttentionParams& p) {
        __shared__ __align__(16) Shared shared;
        u32 group_heads = p.heads / p.kv_heads;
        u32 passes = group_heads / HEADS;
        u32 kv_head = blockIdx.x / passes;
        u32 first_head = kv_head * group_heads + blockIdx.x % passes * HEADS;
        u32 row = blockIdx.z;
        u64 row_heads = static_cast<u64>(row) * p.heads + first_head;
        float* out = at<float>(p.out) + row_heads * p.dim;

        u32 slot, position;
        if (!place_of(p, row, slot, position)) {
            if (blockIdx.y == 0)
#pragma unroll 1
                for (u32 i = threadIdx.x; i < HEADS * p.dim; i += THREADS) out[i] = 0.0f;
            return;
        }
        u32 count = position + 1, groups = (count + GROUP - 1) / GROUP;
        u32 first = first_seen(p, count), first_group = first / GROUP;
        u32 active = min(groups - first_group, gridDim.y);
        if (blockIdx.y >= active) return;

        float factor = factor_of(p, position);

        if (threadIdx.x == 0) shared.slot = slot, shared.kv_head = kv_head;
        if (threadIdx.x < BLOCKS) shared.tiles[threadIdx.x] = tile_in(p, slot, kv_head, first_group + blockIdx.y, count);
        // Queries; with the last group also the new key and value.
        u32 warp = threadIdx.x / 32;
        const float* q = at<const float>(p.q) + row_heads * p.dim;
#pragma unroll 1
        for (u32 item = warp; item < HEADS + 2; item += WARPS) {
            if (item < HEADS) {
                if (p.table) {
                    rotate_head(p, row, q + item * p.dim, at<const float>(p.q_norm),
                                [&](u32 i, float v) { shared.queries[item][i] = v; });
                } else {
#pragma unroll 1
                    for (u32 i = threadIdx.x % 32; i < p.dim; i += 32) shared.queries[item][i] = q[item * p.dim + i];
                }
            } else if (p.table && (groups - 1 - first_group) % active == blockIdx.y) {
                if (item == HEADS) write_key<BITS>(p, row, kv_head, slot, position, shared.sums[0][0]);
                else write_value<BITS>(p, row, kv_head, slot, position);
            }
        }
        __syncthreads();

        // Partial results, [row][head][group] from the first visible group on: softmax of each,
        // then sums of values.
        u32 most = (p.capacity + GROUP - 1) / GROUP + !p.entries;
        Softmax* softmax_of = at<Softmax>(p.partial);
        float* sums_of = reinterpret_cast<float*>(softmax_of + static_cast<u64>(p.rows) * p.heads * most);
        // This thread's columns of one head are FOLDERS apart.
        u32 head = threadIdx.x / FOLDERS, column = threadIdx.x % FOLDERS;
        u64 parts = (row_heads + head) * most;
        Total<FOLDED> total;
#pragma unroll 1
        for (u32 group = first_group + blockIdx.y; group < groups; group += active) {
            u32 start = group * GROUP + warp * SPAN;
            if (start < count && start + (WARPS + 1) * SPAN > first) {
                weigh(p, factor, start, first, count, shared);
                __syncwarp();
                if (start + (WARPS + 1) * SPAN <= count) mix<true>(p, start, count, shared);
                else mix<false>(p, start, count, shared);
            }
            __syncthreads();
            // Prefetched for the next group.
            u32 next = threadIdx.x < BLOCKS ? tile_in(p, shared.slot, shared.kv_head, group + active, count) : 0;
            u32 spans = min((count - group * GROUP + SPAN - 1) / SPAN, static_cast<u32>(SPANS));
            Total<FOLDED> of_group;
#pragma unroll 1
            for (u32 s = group == first_group ? first % GROUP / SPAN : 0; s < spans; s++) {
                float sums[FOLDED];
#pragma unroll
                for (int i = 0; i < FOLDED; i++)
                    sums[i] = column + i * FOLDERS < WIDTH ? shared.sums[s][head][column + i * FOLDERS] : 0.0f;
                of_group.fold(shared.spans[s][head], sums);
            }
            if (active == 1) {
                total.fold(of_group.softmax, of_group.sums);
            } else {
                u64 part = parts + group - first_group;
                if (column == 0) softmax_of[part] = of_group.softmax;
#pragma unroll
                for (int i = 0; i < FOLDED; i++) {
                    u32 c = column + i * FOLDERS;
                    if (c < p.dim) sums_of[part * p.dim + c] = of_group.sums[i];
                }
            }
            if (threadIdx.x < BLOCKS) shared.tiles[threadIdx.x] = next;
            __syncthreads();
        }
        if (active > 1) {
            if (!last_block(at<u32>(p.counters) + row * gridDim.x + blockIdx.x, active)) return;
#pragma unroll 4
            for (u64 part = parts; part < parts + groups - first_group; part++) {
                float sums[FOLDED];
#pragma unroll
                for (int i = 0; i < FOLDED; i++) {
                    u32 c = column + i * FOLDERS;
                    sums[i] = c < p.dim ? sums_of[part * p.dim + c] : 0.0f;
                }
                total.fold(softmax_of[part], sums);
            }
        }
        if (p.sinks) {
            const float nothing[FOLDED] = {};
            total.fold(sink_of(p, first_head + head), nothing);
        }
#pragma unroll
        for (int i = 0; i < FOLDED; i++) {
            u32 c = column + i * FOLDERS;
            if (c < p.dim) out[head * p.dim + c] = __fdiv_rn(total.sums[i], total.softmax.sum);
        }
    }
};

// Register limit for four blocks per SM, or five; below that the compiler spills sums. Three with
// the most columns per lane.
#define ATTENTION(name, width, heads, bits)                                                        \
    extern "C" __global__ __launch_bounds__(128, width > 256 ? 3 : heads > (width > 128 ? 1 : 2) ? 4 : 5) void name(    \
        const __grid_constant__ AttentionParams p) {                                                \
        after_previous_launch();                                                                    \
        Attention<width, heads, bits>::run(p);                                                      \
        prefetch_next_launch(p.next, p.next_bytes);                                                           \
    }
