// Matrices times one to eight rows, with norm in front and residual or SiLU-product behind.
//
// A block stages the activations once and then walks over tiles of matrix rows, `gridDim.x` apart.
// LANES lanes share a group of OUTPUTS matrix rows (so an activation read from shared memory serves
// OUTPUTS weights); lane t takes chunks t, t + LANES, ..., UNROLL of them in flight.
//
// Order of a sum: the chunks of a lane in turn; planes; lanes by halving distance. It depends on
// LANES and the format, on nothing else: not on rows, OUTPUTS, WARPS, UNROLL or grid.
#pragma once
#include "stage.cuh"

template <class F, int ROWS, int PLANES, int LANES, int OUTPUTS, int WARPS, int UNROLL>
struct Project {
    enum : int { THREADS = WARPS * 32, COLUMNS = ROWS * PLANES };
    enum : u32 { GROUPS = THREADS / LANES };
    typedef typename F::Matrix Matrix;
    typedef typename F::Raw Raw;
    typedef Staged<F, COLUMNS> Activation;

    // `weights` of a chunk of OUTPUTS rows times the activations of all columns.
    DEVICE void products(const Raw (&raw)[OUTPUTS], const Activation& staged, u32 chunk,
                         float (&sums)[COLUMNS][OUTPUTS]) {
        if constexpr (F::PLAIN) {
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                uint4 low = staged.piece(c, 0, chunk), high = staged.piece(c, 1, chunk);
#pragma unroll
                for (int r = 0; r < OUTPUTS; r++) {
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        float x = __uint_as_float(i < 4 ? word(low, i) : word(high, i - 4));
                        sums[c][r] = __fmaf_rn(F::value(raw[r], i), x, sums[c][r]);
                    }
                }
            }
        } else {
#pragma unroll
            for (int b = 0; b < F::BLOCKS; b++) {
                Weights weights[OUTPUTS];
#pragma unroll
                for (int r = 0; r < OUTPUTS; r++) weights[r] = F::unpack(raw[r], b, chunk);
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    Activations a = staged.block(c, b, chunk);
#pragma unroll
                    for (int r = 0; r < OUTPUTS; r++) sums[c][r] = F::dot(weights[r], a, sums[c][r]);
                }
            }
        }
    }

    // Tiles of a matrix, of which a group writes WRITTEN outputs.
    template <int WRITTEN>
    DEVICE u32 tiles_of(u32 n) {
        return (n + GROUPS * WRITTEN - 1) / (GROUPS * WRITTEN);
    }

    DEVICE void run(const ProjectParams& p) {
        u32 chunks = (p.k + F::CHUNK - 1) / F::CHUNK;
        Activation staged = Activation::make(chunks);
        stage<F, ROWS, PLANES, THREADS>(p, staged);
        // Outputs of a group: with SiLU-product, half as many as matrix rows.
        u32 written = p.swiglu ? OUTPUTS / 2 : OUTPUTS;
        u32 segments = p.swiglu ? 1 : 3;
        u32 first = blockIdx.x;
#pragma unroll 1
        for (u32 s = 0; s < segments; s++) {
            u32 n = p.segments[s].n;
            u32 tiles = p.swiglu ? tiles_of<OUTPUTS / 2>(n) : tiles_of<OUTPUTS>(n);
#pragma unroll 1
            for (; first < tiles; first += gridDim.x) tile(p, s, written, first, chunks, staged);
            first -= tiles;
        }
    }

    DEVICE void tile(const ProjectParams& p, u32 segment, u32 written, u32 index, u32 chunks,
                     const Activation& staged) {
        u32 n = p.segments[segment].n;
        u32 lane = threadIdx.x % LANES;
        u32 base = (index * GROUPS + threadIdx.x / LANES) * written;
        // The upper half of the rows may come from another matrix.
        Matrix lower = Matrix::make(p.segments[segment].weights, n, p.k);
        Matrix upper = Matrix::make(p.segments[p.swiglu ? 1 : segment].weights, n, p.k);
        float sums[COLUMNS][OUTPUTS] = {};
#pragma unroll 1
        for (u32 start = lane; start < chunks; start += LANES * UNROLL) {
            Raw raw[UNROLL][OUTPUTS];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                u32 chunk = start + u * LANES;
                if (chunk < chunks) {
#pragma unroll
                    for (int r = 0; r < OUTPUTS; r++) {
                        // Beyond the last row the last is read again and not written.
                        u32 row = min(base + (r & (written - 1)), n - 1);
                        raw[u][r] = F::load(r < OUTPUTS / 2 ? lower : upper, row, chunk);
                    }
                }
            }
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                u32 chunk = start + u * LANES;
                if (chunk < chunks) products(raw[u], staged, chunk, sums);
            }
        }
        float totals[ROWS * OUTPUTS];
#pragma unroll
        for (int r = 0; r < OUTPUTS; r++) {
#pragma unroll
            for (int m = 0; m < ROWS; m++) {
                float sum = sums[m * PLANES][r];
                if (PLANES == 2) sum = __fadd_rn(sum, sums[m * PLANES + PLANES - 1][r]);
                totals[r * ROWS + m] = sum;
            }
        }
        bool writer;
        u32 held = scatter_sum<ROWS * OUTPUTS, LANES>(totals, lane, writer);
        constexpr int KEPT = ROWS * OUTPUTS > LANES ? ROWS * OUTPUTS / LANES : 1;
#pragma unroll
        for (int i = 0; i < KEPT; i++) {
            u32 r = (held + i) / ROWS, m = (held + i) % ROWS;
            float value = totals[i];
            // The first exchange parted gates from ups.
            if (p.swiglu) value = silu_product(value, __shfl_xor_sync(ALL_LANES, value, LANES / 2));
            u32 row = base + r;
            if (writer && r < written && m < p.rows && row < n) {
                u64 to = static_cast<u64>(m) * n + row;
                if (p.residual) value = __fadd_rn(value, at<const float>(p.residual)[to]);
                at<float>(p.segments[segment].out)[to] = value;
            }
        }
    }
};

#define PROJECT(name, format, rows, planes, lanes, outputs, warps, unroll)                                \
    extern "C" __global__ __launch_bounds__(warps * 32, 1) void name(const __grid_constant__ ProjectParams p) { \
        Project<format, rows, planes, lanes, outputs, warps, unroll>::run(p);                             \
    }
