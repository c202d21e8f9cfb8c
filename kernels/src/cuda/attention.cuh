// Softmax attention of one row's query heads over one KV head's cache, its positions divided among
// blocks; the block that finishes last adds the parts up in order.
//
// Positions are taken in spans of 32, eight of them to a group. A span has weights, its scores'
// exponentials as multiples of the power of two next to the largest, and their sum and that of the
// values they weigh; spans are folded in order into their group, groups in order into the whole, by
// powers of two. All of it depends on the position alone, never on the grid.
//
// Grid: x = kv head * passes + pass, y = block of a row, z = row. A block serves HEADS query heads of
// the KV head's group. It takes every y-th group, a warp of it the spans w and w + 4: for the scores a
// lane has a position of each, for the values half a warp has a span and a lane some of the columns.
// A block that is alone folds its groups as it goes; several write them to memory.
//
// Where there is a window, groups and spans before it are left out; positions before it in a span that is not have
// no weight. In a ring no span is torn, as its length is a multiple of theirs; a span that a window reaches into is
// still whole when a row is written. A sink is folded last.
//
// Where there is a table of angles the block first normalises and rotates its queries, and the one whose group holds
// the row's position writes key and value (rows must then be in different slots).
#pragma once
#include "noise.cuh"
#include "rope.cuh"

enum : u32 { SPAN = TILE, SPANS = 8, GROUP = SPANS * SPAN, BLOCKS = GROUP / CACHE_BLOCK };

// No exponent of two beyond this, of either sign, stands for a score's exponential.
#define MOST_POWER 4194304.0f

// Sum of the exponentials of some positions, over 2^power.
struct Softmax {
    i32 power;
    float sum;
};

// 2^n for n up to 0, and 0 where it would not be a normal number.
DEVICE float power_of_two(i32 n) { return __int_as_float((max(n, -127) + 127) << 23); }

// The factor on the scores of a row at a position.
DEVICE float factor_of(const AttentionParams& p, u32 position) {
    if (p.length == 0) return p.scale;
    float lengths = __fadd_rn(1.0f, static_cast<float>(position / p.length));
    return __fmul_rn(p.scale, __fmaf_rn(p.slope, logarithm(lengths), 1.0f));
}

// Products of query and key as scores.
template <int COUNT>
DEVICE void scores_of(const AttentionParams& p, float factor, float (&products)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) products[i] = __fmul_rn(products[i], factor);
    if (p.cap == 0.0f) return;
#pragma unroll
    for (int i = 0; i < COUNT; i++) products[i] = soft_capped(p.cap, products[i]);
}

// A head's sink, as a span of one position.
DEVICE Softmax sink_of(const AttentionParams& p, u32 head) {
    float score = at<const float>(p.sinks)[head];
    float exponent = __fmul_rn(score, 1.44269504f);
    // Without such a power there is no number.
    if (!(fabsf(exponent) <= MOST_POWER)) return {0, quiet_nan()};
    i32 power = __float2int_rn(exponent);
    return {power, exp_over_power(score, score, power)};
}

// The first position that a row sees that sees up to `count`.
DEVICE u32 first_seen(const AttentionParams& p, u32 count) { return count > p.window ? count - p.window : 0; }

// A running softmax beside some columns of the sums that it divides.
template <int COLUMNS>
struct Total {
    // What changes nothing that is added to it.
    Softmax softmax = {-(1 << 24), -0.0f};
    float sums[COLUMNS];

    __device__ __forceinline__ Total() {
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) sums[i] = -0.0f;
    }
    // Adds what further positions gave.
    __device__ __forceinline__ void fold(Softmax more, const float (&add)[COLUMNS]) {
        i32 power = max(softmax.power, more.power);
        float old = power_of_two(softmax.power - power), young = power_of_two(more.power - power);
        softmax = {power, __fmaf_rn(more.sum, young, __fmul_rn(softmax.sum, old))};
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) sums[i] = __fmaf_rn(add[i], young, __fmul_rn(sums[i], old));
    }
};

// WIDTH is the head's dim at most: 64, 128, 256 or 512. BITS are those of the cache's numbers.
template <int WIDTH, int HEADS, u32 BITS>
struct Attention {
    typedef Cache<BITS> Cache;
    // Columns of a lane, and values that are asked for at a time.
    enum : u32 { WARPS = SPANS / 2, THREADS = WARPS * 32, COLUMNS = WIDTH / 16, VALUES = 32 / COLUMNS };
    // Threads that fold a head, and how many of its columns each.
    enum : u32 { FOLDERS = THREADS / HEADS, FOLDED = (WIDTH + FOLDERS - 1) / FOLDERS };

    struct Shared {
        float queries[HEADS][WIDTH];
        float weights[SPANS][SPAN][HEADS];
        float sums[SPANS][HEADS][WIDTH];
        Softmax spans[SPANS][HEADS];
        // Whose positions a row sees, and the head's first tiles in the blocks of the group under way.
        u32 slot, kv_head, tiles[BLOCKS];
    };

    // The head's first tile in the block of a group that is the thread's, of the first BLOCKS; 0 behind `count`.
    DEVICE u32 tile_in(const AttentionParams& p, u32 slot, u32 kv_head, u32 group, u32 count) {
        u32 position = group * GROUP + threadIdx.x * CACHE_BLOCK;
        return position < count ? Cache::head_of(p, slot, kv_head, position) : 0;
    }

    // The weights of the warp's two spans, the first of which begins at `start`, into `shared`; positions from
    // `first` to `count` have some.
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
                // A NaN is passed over.
                float largest = score;
#pragma unroll
                for (int d = 16; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, d));
                float exponent = __fmul_rn(largest, 1.44269504f);
                i32 power = __float2int_rn(exponent);
                float weight = exp_over_power(score, largest, power);
                // Without such a power there is no number.
                if (!(fabsf(exponent) <= MOST_POWER)) weight = quiet_nan(), power = 0;
                shared.weights[span][lane][h] = weights[t * HEADS + h] = weight;
                if (lane == 0) shared.spans[span][h].power = power;
            }
        }
        // By position mod 16, then by halves.
        bool writer;
        int total = scatter_sum<2 * HEADS, 32>(weights, lane, writer);
        if (writer) shared.spans[warp + total / HEADS * WARPS][total % HEADS].sum = weights[0];
    }

    // What the weights of the warp's two spans make of the values, into `shared`. WHOLE says that
    // every position of both is among those that count.
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
        // Queries, and beside the last group the new key and value.
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

        // Parts of [row][head][group], from the first group that is seen: the softmax of each, then the sums of values.
        u32 most = (p.capacity + GROUP - 1) / GROUP + !p.entries;
        Softmax* softmax_of = at<Softmax>(p.partial);
        float* sums_of = reinterpret_cast<float*>(softmax_of + static_cast<u64>(p.rows) * p.heads * most);
        // This thread's columns, FOLDERS apart, of one head.
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
            // Asked for before it is needed.
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

// Registers for four blocks an SM, or five: with fewer the compiler keeps sums in memory. Three where a lane has most
// columns.
#define ATTENTION(name, width, heads, bits)                                                        \
    extern "C" __global__ __launch_bounds__(128, width > 256 ? 3 : heads > (width > 128 ? 1 : 2) ? 4 : 5) void name(    \
        const __grid_constant__ AttentionParams p) {                                                \
        after_previous_launch();                                                                    \
        Attention<width, heads, bits>::run(p);                                                      \
        look_ahead(p.next, p.next_bytes);                                                           \
    }
