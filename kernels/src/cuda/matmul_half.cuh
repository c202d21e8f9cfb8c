// Matmuls of a prompt's rows in half precision on tensor cores, opt-in: activations are rounded to
// the weights' type, and the tensor core rounds sums of 8 or 16 products. docs/numerics.md lists
// this exception; `matmul_plain.cuh` is exact.
//
// `halves_*` converts rows to copy order:
//   [tile of rows] of
//     half  [64 columns][rows / 8][8 pieces][8][8]   in `ldmatrix` order
//     f32   [rows]                                    factor on a row's sums
// Rows of f16 are scaled by a power of two to stay in the type's range.
//
// A block computes 64 matrix rows (8 panels) by 128 rows of activations, in stages of 64 columns;
// one stage is copied while the other is multiplied. Weights are stored in `ldmatrix` order. Every
// 256 columns the sums are added in f32, because tensor cores truncate when they add.
//
// Grid: as in `matmul_plain.cuh`.
#pragma once
#include "matmul_plain.cuh"

// Conversion of a format to halves, and whether rows are scaled.
template <class F>
struct Half;
template <>
struct Half<F16> : Binary16 {
    enum : u32 { SCALED = 1 };
};
template <>
struct Half<BF16> : Brain16 {
    enum : u32 { SCALED = 0 };
};

// Layout of a tile of rows, for `halves_*` and `matmul_half_*`.
struct Halves {
    // Columns of a stage, pieces of 8 columns, bytes of those for 8 rows.
    enum : u32 { STAGE = 64, PIECES = STAGE / 8, EIGHT = PIECES * PIECE_STRIDE };

    DEVICE u32 stages(u32 k) { return (k + STAGE - 1) / STAGE; }
    DEVICE u32 scales_at(u32 tile, u32 k) { return stages(k) * (tile / 8 * EIGHT); }
    DEVICE u64 bytes(u32 tile, u32 k) { return scales_at(tile, k) + tile * sizeof(float); }
};

// Grid x is the row.
template <class F>
DEVICE void halves(const QuantiseParams& p) {
    typedef Staged<F, 1> Staged;
    u32 row = blockIdx.x % p.tile, thread = threadIdx.x;
    ProjectParams one = {};
    one.x = p.x + 4ull * blockIdx.x * p.k, one.norm_weight = p.norm_weight;
    one.k = p.k, one.rows = blockIdx.x < p.rows, one.eps = p.eps;
    stage<F, 1, 1, 128>(one);
    // Ratio of a row to its halves.
    float scale = 1.0f, inverse = 1.0f;
    if constexpr (Half<F>::SCALED) {
        __shared__ u32 warps[4];
        u32 largest = 0;
#pragma unroll 1
        for (u32 i = thread; i < p.k / 4; i += 128)
            largest = max(largest, largest_of(reinterpret_cast<const float4*>(Staged::record(4 * i / SUPERBLOCK, 0))[i % (SUPERBLOCK / 4)]));
#pragma unroll
        for (int d = 16; d > 0; d /= 2) largest = max(largest, __shfl_xor_sync(ALL_LANES, largest, d));
        if (thread % 32 == 0) warps[thread / 32] = largest;
        __syncthreads();
        largest = max(max(warps[0], warps[1]), max(warps[2], warps[3]));
        // Scales the largest magnitude to below 2^15; tiny and non-finite values are not scaled.
        u32 exponent = largest >> 23;
        if (exponent > 64 && exponent < 255) {
            scale = __uint_as_float((exponent - 14) << 23);
            inverse = __uint_as_float((254 - (exponent - 14)) << 23);
        }
    }
    u8* tile = at<u8>(p.out) + blockIdx.x / p.tile * Halves::bytes(p.tile, p.k);
#pragma unroll 1
    for (u32 i = thread; i < Halves::stages(p.k) * Halves::PIECES; i += 128) {
        const float4* from = reinterpret_cast<const float4*>(Staged::record(8 * i / SUPERBLOCK, 0)) + 2 * i % (SUPERBLOCK / 4);
        float4 low = from[0], high = from[1];
        auto two = [&](float first, float second) { return Half<F>::two(__fmul_rn(first, inverse), __fmul_rn(second, inverse)); };
        uint4 piece = {two(low.x, low.y), two(low.z, low.w), two(high.x, high.y), two(high.z, high.w)};
        u32 to = (i / Halves::PIECES * (p.tile / 8) + row / 8) * Halves::EIGHT + i % Halves::PIECES * PIECE_STRIDE + row % 8 * PIECE;
        *reinterpret_cast<uint4*>(tile + to) = piece;
    }
    if (thread == 0) reinterpret_cast<float*>(tile + Halves::scales_at(p.tile, p.k))[row] = scale;
}

template <class F>
struct MatmulHalf {
    typedef Part<128, 2, 4> Place;
    typedef Place::Sums Sums;
    enum : u32 { TOKENS = Place::TOKENS, TALL = Place::TALL, WIDE = Place::WIDE, PANELS = Place::PANELS };
    enum : u32 { STAGE = Halves::STAGE, EIGHT = Halves::EIGHT, LEAF = SUPERBLOCK / STAGE };
    // Bytes of a stage's activations, and of 16 columns.
    enum : u32 { UNIT = TOKENS / 8 * EIGHT, STEP = 16 / 8 * PIECE_STRIDE };

    struct __align__(16) Shared {
        u8 activations[2][UNIT];
        u8 weights[2][PANELS][EIGHT];
    };

    // Starts copying a stage of `columns` columns; each warp copies a panel's weights.
    DEVICE void ask(const u8* activations, const u8* weights, u32 stage, u32 columns, Shared& shared) {
        u32 lane = threadIdx.x % 32;
        copy_pieces<UNIT / PIECE / 256, 256 * PIECE>(shared_address(shared.activations[stage % 2]) + threadIdx.x * PIECE,
                                                     activations + stage * UNIT + threadIdx.x * PIECE);
        u32 to = shared_address(shared.weights[stage % 2][threadIdx.x / 32]) + lane * PIECE;
        const u8* from = weights + stage * EIGHT + lane * PIECE;
        copy_piece(to, from);
        if (columns > STAGE / 2) copy_piece(to + EIGHT / 2, from + EIGHT / 2);
    }

    // Adds 16 columns at the thread's addresses to `part`.
    DEVICE void multiply(u32 activations, u32 weights, Sums& part) {
        u32 b[WIDE / 2][4];
        load_activations<0>(activations, b);
        multiply_rows<0>(weights, b, part);
    }
    template <u32 W>
    DEVICE void load_activations(u32 activations, u32 (&b)[WIDE / 2][4]) {
        if constexpr (W < WIDE) {
            load_matrices<W * EIGHT>(b[W / 2], activations);
            load_activations<W + 2>(activations, b);
        }
    }
    template <u32 R>
    DEVICE void multiply_rows(u32 weights, const u32 (&b)[WIDE / 2][4], Sums& part) {
        if constexpr (R < TALL) {
            u32 a[4];
            load_matrices<2 * R * EIGHT>(a, weights);
#pragma unroll
            for (u32 w = 0; w < WIDE; w++) Half<F>::multiply(part[R][w], a, b[w / 2][w % 2 * 2], b[w / 2][w % 2 * 2 + 1]);
            multiply_rows<R + 1>(weights, b, part);
        }
    }

    DEVICE void run(const MatmulParams& p) {
        Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared);
        Work work = Work::choose<Place::ROWS>(p);
        Place place = Place::make();
        u32 stages = Halves::stages(p.k);
        const u8* weights = panel_of<F, PANELS>(p, work, threadIdx.x / 32).pieces;
        const u8* activations = at<const u8>(p.activations) + blockIdx.x * Halves::bytes(TOKENS, p.k);
        // `ldmatrix` operands of 16 columns: two tiles of activations by two pieces; two panels by
        // two pieces.
        u32 of_activations = (place.wide * WIDE + place.lane / 16) * EIGHT + place.lane / 8 % 2 * PIECE_STRIDE + place.lane % 8 * PIECE;
        u32 of_weights = (place.tall * TALL * 2 + place.lane / 8 % 2) * EIGHT + place.lane / 16 * PIECE_STRIDE + place.lane % 8 * PIECE;
        of_activations += shared_address(shared.activations), of_weights += shared_address(shared.weights);
        Sums total = {}, part = {};
        ask(activations, weights, 0, p.k, shared);
#pragma unroll 1
        for (u32 stage = 0; stage < stages; stage++) {
            copies_arrive();
            bool more = stage + 1 < stages;
            u32 columns = p.k - stage * STAGE, half = stage % 2;
            if (more) ask(activations, weights, stage + 1, columns - STAGE, shared);
#pragma unroll
            for (u32 c = 0; c < STAGE / 16; c++)
                if (c < 2 || columns > STAGE / 2)
                    multiply(of_activations + half * UNIT + c * STEP, of_weights + half * (PANELS * EIGHT) + c * STEP, part);
            if (more && (stage + 1) % LEAF != 0) continue;
#pragma unroll
            for (u32 r = 0; r < TALL; r++) {
#pragma unroll
                for (u32 w = 0; w < WIDE; w++) {
#pragma unroll
                    for (u32 c = 0; c < 4; c++) total[r][w][c] = __fadd_rn(total[r][w][c], part[r][w][c]), part[r][w][c] = 0.0f;
                }
            }
        }
        if constexpr (Half<F>::SCALED) {
            const float* scales = reinterpret_cast<const float*>(activations + Halves::scales_at(TOKENS, p.k)) + place.token;
#pragma unroll
            for (u32 w = 0; w < WIDE; w++) {
                float2 scale = fetch<float2>(scales + 8 * w);
#pragma unroll
                for (u32 r = 0; r < TALL; r++) {
#pragma unroll
                    for (u32 c = 0; c < 4; c++) total[r][w][c] = __fmul_rn(total[r][w][c], c % 2 == 0 ? scale.x : scale.y);
                }
            }
        }
        Place::write(p, work, total);
    }
};

#define HALVES(name, format)                                                                           \
    extern "C" __global__ __launch_bounds__(128) void name(const __grid_constant__ QuantiseParams p) { \
        after_previous_launch();                                                                       \
        halves<format>(p);                                                                             \
    }

#define MATMUL_HALF(name, format, shared_bytes)                                                         \
    static_assert(sizeof(MatmulHalf<format>::Shared) == shared_bytes, "ABI");                           \
    extern "C" __global__ __launch_bounds__(256, 2) void name(const __grid_constant__ MatmulParams p) { \
        after_previous_launch();                                                                        \
        MatmulHalf<format>::run(p);                                                                     \
    }
