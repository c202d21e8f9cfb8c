// Matmuls of one to eight rows, with optional norm before and bias, activation, residual or gated
// unit after.
//
// A block stages the activations once, then loops over tiles of matrix rows, `gridDim.x` apart. A
// warp's lanes are 8 rows of a panel times 4 superblocks. A lane has one superblock of a row in
// each of OUTPUTS panels, so an activation read from shared memory serves OUTPUTS weights, and
// loads UNROLL chunks at a time. LANES lanes (LANES / 4 warps) share a row.
//
// The order of sums is that of docs/numerics.md: one lane per output folds the superblock sums of a
// row in column order. So no parameter changes a bit.
#pragma once
#include "stage.cuh"

template <class F, int ROWS, int PLANES, int LANES, int OUTPUTS, int WARPS, int UNROLL>
struct Project {
    enum : u32 {
        THREADS = WARPS * 32,
        COLUMNS = ROWS * PLANES,
        // Superblocks of a warp, and warps that share rows.
        ACROSS = 32 / PANEL,
        SPLITS = LANES / ACROSS,
        GROUPS = WARPS / SPLITS,
        CHUNKS = SUPERBLOCK / F::CHUNK,
        // Sums of a superblock per row of activations.
        FOLDED = F::LEAF ? 1 : PLANES,
        // Rows of activations folded at a time: at most one output per lane.
        TOGETHER = ROWS < ACROSS / OUTPUTS ? ROWS : ACROSS / OUTPUTS,
    };
    static_assert(WARPS % SPLITS == 0 && OUTPUTS <= ACROSS, "whole groups, and a lane for each output");
    typedef Staged<F, COLUMNS> Staged;
    typedef float Sums[ROWS * FOLDED][OUTPUTS];

    // Adds the sums of superblock s, which has `chunks` chunks, for `planes` planes.
    DEVICE void multiply(const Superblock (&rows)[OUTPUTS], u32 s, int chunks, u32 planes, Sums& sums) {
        typename F::Head head[OUTPUTS];
#pragma unroll
        for (int r = 0; r < OUTPUTS; r++) {
            head[r] = F::head(rows[r]);
#pragma unroll
            for (int c = 0; c < ROWS * FOLDED; c++) sums[c][r] = F::begin(head[r]);
        }
#pragma unroll 1
        for (int first = 0; first < chunks; first += UNROLL) {
            typename F::Raw raw[UNROLL][OUTPUTS];
            load(rows, first, chunks, raw);
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                int chunk = first + u;
                if (!F::WHOLE && chunk >= chunks) break;
#pragma unroll
                for (int b = 0; b < F::CHUNK / static_cast<int>(BLOCK); b++) {
                    Weights weights[OUTPUTS];
#pragma unroll
                    for (int r = 0; r < OUTPUTS; r++) weights[r] = F::unpack(head[r], raw[u][r], chunk, b);
#pragma unroll
                    for (int c = 0; c < COLUMNS; c++) {
                        if (c % PLANES > 0 && c % PLANES >= planes) continue;
                        Activations a = Staged::block(s, c, chunk * (F::CHUNK / BLOCK) + b);
                        int to = F::LEAF ? c / PLANES : c;
#pragma unroll
                        for (int r = 0; r < OUTPUTS; r++) sums[to][r] = F::dot(weights[r], a, b, sums[to][r]);
                    }
                }
            }
        }
    }

    // The same for f32 activations: four chains by column mod 4.
    DEVICE void multiply_plain(const Superblock (&rows)[OUTPUTS], u32 s, int chunks, Sums& sums) {
        float chains[ROWS][OUTPUTS][4] = {};
#pragma unroll 1
        for (int first = 0; first < chunks; first += UNROLL) {
            typename F::Raw raw[UNROLL][OUTPUTS];
            load(rows, first, chunks, raw);
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                int chunk = first + u;
                if (chunk >= chunks) break;
#pragma unroll
                for (int i = 0; i < F::CHUNK; i += 4) {
#pragma unroll
                    for (int m = 0; m < ROWS; m++) {
                        uint4 x = Staged::record(s, m)[(chunk * F::CHUNK + i) / 4];
#pragma unroll
                        for (int r = 0; r < OUTPUTS; r++) {
#pragma unroll
                            for (int c = 0; c < 4; c++)
                                chains[m][r][c] = __fmaf_rn(F::value(raw[u][r], i + c), __uint_as_float(word(x, c)),
                                                            chains[m][r][c]);
                        }
                    }
                }
            }
        }
#pragma unroll
        for (int m = 0; m < ROWS; m++) {
#pragma unroll
            for (int r = 0; r < OUTPUTS; r++) {
                float(&c)[4] = chains[m][r];
                sums[m][r] = __fadd_rn(__fadd_rn(c[0], c[1]), __fadd_rn(c[2], c[3]));
            }
        }
    }

    DEVICE void load(const Superblock (&rows)[OUTPUTS], int first, int chunks, typename F::Raw (&raw)[UNROLL][OUTPUTS]) {
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (!F::WHOLE && first + u >= chunks) break;
#pragma unroll
            for (int r = 0; r < OUTPUTS; r++) raw[u][r] = F::load(rows[r], first + u);
        }
    }

    // Barrier for the warps of a group. All warps of the block call it equally often.
    DEVICE void meet() {
        if constexpr (SPLITS > 1) {
            __syncthreads();
        } else {
            __syncwarp();
        }
    }

    // Folds the sums of up to LANES superblocks, starting at `first`, into a lane's outputs: row
    // lane % 8 of panel lane / 8 % OUTPUTS, for one of every TOGETHER rows of activations.
    DEVICE void fold(const Sums& sums, u32 first, u32 superblocks, u32 planes, float (&totals)[ROWS / TOGETHER]) {
        constexpr u32 OWN = TOGETHER * OUTPUTS;
        // Padded, so that a warp reads its outputs without bank conflicts.
        __shared__ float exchange[GROUPS][FOLDED * OWN][SPLITS * 32 + PANEL];
        u32 lane = threadIdx.x % 32, group = threadIdx.x / 32 / SPLITS, split = threadIdx.x / 32 % SPLITS;
        u32 output = lane / PANEL, row = lane % PANEL;
        u32 count = min(static_cast<u32>(LANES), superblocks - first);
#pragma unroll
        for (u32 batch = 0; batch < ROWS / TOGETHER; batch++) {
#pragma unroll
            for (u32 f = 0; f < FOLDED; f++) {
#pragma unroll
                for (u32 i = 0; i < OWN; i++) {
                    u32 m = batch * TOGETHER + i / OUTPUTS;
                    exchange[group][f * OWN + i][split * 32 + lane] = sums[m * FOLDED + f][i % OUTPUTS];
                }
            }
            meet();
            if (split == 0 && output < OWN) {
                u32 m = batch * TOGETHER + output / OUTPUTS;
#pragma unroll
                for (u32 i = 0; i < LANES; i++) {
                    if (i >= count) continue;
#pragma unroll
                    for (u32 f = 0; f < FOLDED; f++) {
                        if (f > 0 && f >= planes) continue;
                        float sum = exchange[group][f * OWN + output][i * PANEL + row];
                        if constexpr (F::LEAF) {
                            totals[batch] = __fadd_rn(totals[batch], sum);
                        } else {
                            totals[batch] = __fmaf_rn(sum, Staged::scale(first + i, m * PLANES + f), totals[batch]);
                        }
                    }
                }
            }
            meet();
        }
    }

    DEVICE void run(const ProjectParams& p) {
        stage<F, ROWS, PLANES, THREADS>(p);
        // Panels that a group writes: half of those it reads with SwiGLU.
        u32 written = p.swiglu ? OUTPUTS / 2 : OUTPUTS;
        u32 segments = p.swiglu ? 1 : 3;
        u32 index = blockIdx.x;
#pragma unroll 1
        for (u32 s = 0; s < segments; s++) {
            u32 panels = (p.segments[s].n + PANEL - 1) / PANEL;
            u32 tiles = (panels + GROUPS * written - 1) / (GROUPS * written);
#pragma unroll 1
            for (; index < tiles; index += gridDim.x) tile(p, s, written, index);
            index -= tiles;
        }
    }

    DEVICE void tile(const ProjectParams& p, u32 segment, u32 written, u32 index) {
        u32 n = p.segments[segment].n, planes = p.segments[segment].planes;
        u32 superblocks = (p.k + SUPERBLOCK - 1) / SUPERBLOCK;
        u32 lane = threadIdx.x % 32, group = threadIdx.x / 32 / SPLITS, split = threadIdx.x / 32 % SPLITS;
        u32 base = (index * GROUPS + group) * written;
        Matrix<F> lower = Matrix<F>::make(p.segments[segment].weights, n, p.k);
        // The upper half of the panels may belong to another matrix.
        Matrix<F> upper = Matrix<F>::make(p.swiglu ? p.segments[1].weights : p.segments[segment].weights, n, p.k);
        float totals[ROWS / TOGETHER] = {};
#pragma unroll 1
        for (u32 first = 0; first < superblocks; first += LANES) {
            u32 s = first + split * ACROSS + lane / PANEL;
            Sums sums = {};
            if (s < superblocks) {
                Superblock rows[OUTPUTS];
#pragma unroll
                for (int r = 0; r < OUTPUTS; r++) {
                    // Panels behind the last one read the last one again and are not written.
                    u32 panel = min(base + (r & (written - 1)), (n + PANEL - 1) / PANEL - 1);
                    rows[r] = (r < OUTPUTS / 2 ? lower : upper).superblock(panel, lane % PANEL, s);
                }
                int chunks = CHUNKS;
                if constexpr (!F::WHOLE) chunks = min(chunks, (p.k - s * SUPERBLOCK + F::CHUNK - 1) / F::CHUNK);
                if constexpr (F::SPAN == 0) {
                    multiply_plain(rows, s, chunks, sums);
                } else {
                    multiply(rows, s, chunks, planes, sums);
                }
            }
            fold(sums, first, superblocks, planes, totals);
        }
        if (split > 0) return;
        u32 panel = lane / PANEL % OUTPUTS, row = (base + (panel & (written - 1))) * PANEL + lane % PANEL;
        const Segment& own = p.segments[segment];
        const float* bias = at<const float>(panel < written ? own.bias : p.segments[1].bias);
#pragma unroll
        for (u32 batch = 0; batch < ROWS / TOGETHER; batch++) {
            float value = totals[batch];
            if (bias && row < n) value = __fadd_rn(value, bias[row]);
            if (p.swiglu) value = glu_product(p.swiglu, value, __shfl_down_sync(ALL_LANES, value, OUTPUTS / 2 * PANEL));
            if (own.activation) value = activated(own.activation, value);
            u32 m = batch * TOGETHER + lane / PANEL / OUTPUTS;
            if (panel < written && lane / PANEL < TOGETHER * OUTPUTS && m < p.rows && row < n) {
                u64 to = static_cast<u64>(m) * n + row;
                if (p.residual) value = __fadd_rn(value, at<const float>(p.residual)[to]);
                at<float>(own.out)[to] = value;
            }
        }
    }
};

#define PROJECT(name, format, rows, planes, ...)                                                           \
    extern "C" __global__ __launch_bounds__(Project<format, rows, planes, __VA_ARGS__>::THREADS, 1) void   \
        name(const __grid_constant__ ProjectParams p) {                                                    \
        after_previous_launch();                                                                           \
        Project<format, rows, planes, __VA_ARGS__>::run(p);                                                \
        prefetch_next_launch(p.next, p.next_bytes);                                                                  \
    }
