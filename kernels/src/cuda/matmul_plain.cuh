// Matmuls of many rows with up to three matrices of one unquantised type, with f32 multiply-adds.
//
// A block computes 64 matrix rows (8 panels) by TOKENS rows of activations, in stages of 32
// columns. While a stage is multiplied, the activations of the next are copied to shared memory,
// and its weights go through registers, where they are widened once for all rows. A thread computes
// 4 by 4 results, each as the four chains of docs/numerics.md, so the loads of four columns serve
// 64 multiply-adds. Tensor cores round differently, see `matmul_half.cuh`.
//
// Grid: x = tile of activations, so that blocks that read the same weights run together; y = tile
// of a matrix. If tiles are grouped pairs (`group` in `mixture.cuh`), a tile uses its expert's
// matrices: small tiles only, as in `matmul.cuh`. A pair's activations are read from its row.
#pragma once
#include "matmul.cuh"

template <class F, int TOKENS_>
struct MatmulPlain {
    enum : u32 { TOKENS = TOKENS_, PANELS = 8, ROWS = PANELS * PANEL, SIDE = 4, THREADS = TOKENS / SIDE * ROWS / SIDE };
    // True if rows may be pairs of an MoE layer; warps; panels that each warp copies.
    enum : u32 { GROUPS = TOKENS < 64, WARPS = THREADS / 32, OF_WARP = PANELS / WARPS };
    // Columns of a stage; row stride in words, so that 8 threads read 8 rows without bank
    // conflicts.
    enum : u32 { STAGE = 32, STRIDE = STAGE + 4, LEAF = SUPERBLOCK / STAGE };
    // Columns of a piece; pieces of a panel's stage, and rows of activations, that a thread copies.
    enum : u32 { WIDTH = SUPERBLOCK / F::QUANTS, OWN = STAGE / WIDTH / 4, BRINGS = TOKENS * STAGE / 4 / THREADS };
    static_assert(PANELS % WARPS == 0 && BRINGS * THREADS / 8 == TOKENS, "all is brought");

    struct __align__(16) Shared {
        float activations[2][TOKENS][STRIDE];
        float weights[2][ROWS][STRIDE];
    };

    // First matrix row and first row of activations of the thread; it has every 4th and every 8th.
    struct Place {
        u32 row, token;
        DEVICE Place make() {
            u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
            return {warp % 4 * 16 + lane % 4, warp / 4 * 32 + lane / 4};
        }
    };

    // Starts copying a stage's activations: 16 bytes of each of the thread's rows.
    DEVICE void ask(const MatmulParams& p, const u32 (&rows)[BRINGS], u32 stage, Shared& shared) {
#pragma unroll
        for (u32 i = 0; i < BRINGS; i++)
            copy_piece(shared_address(&shared.activations[stage % 2][threadIdx.x / 8 + THREADS / 8 * i][threadIdx.x % 8 * 4]),
                       at<const float>(p.activations) + (rows[i] + stage * STAGE));
    }

    typedef uint4 Raw[OF_WARP][OWN];
    DEVICE void load(const u8* const (&from)[OF_WARP], u32 at, Raw& raw) {
#pragma unroll
        for (u32 w = 0; w < OF_WARP; w++) {
#pragma unroll
            for (u32 i = 0; i < OWN; i++) raw[w][i] = fetch<uint4>(from[w] + at + i * 4 * PIECE_STRIDE);
        }
    }
    // Stores widened weights: a warp has panels, a lane a row of each and every 4th piece.
    DEVICE void store(const Raw& raw, u32 stage, Shared& shared) {
        u32 first = threadIdx.x / 32 * PANEL + threadIdx.x % PANEL, piece = threadIdx.x % 32 / PANEL;
#pragma unroll
        for (u32 w = 0; w < OF_WARP; w++) {
#pragma unroll
            for (u32 i = 0; i < OWN; i++) {
                typename F::Raw of;
                of.pieces[0] = raw[w][i];
                float* row = shared.weights[stage % 2][first + w * WARPS * PANEL];
                float4* to = reinterpret_cast<float4*>(row + (piece + 4 * i) * WIDTH);
#pragma unroll
                for (u32 c = 0; c < WIDTH / 4; c++)
                    to[c] = {F::value(of, 4 * c), F::value(of, 4 * c + 1), F::value(of, 4 * c + 2), F::value(of, 4 * c + 3)};
            }
        }
    }

    DEVICE void multiply(const Shared& shared, u32 stage, float (&chains)[SIDE][SIDE][4]) {
        Place place = Place::make();
        const float(*activations)[STRIDE] = shared.activations[stage % 2] + place.token;
        const float(*weights)[STRIDE] = shared.weights[stage % 2] + place.row;
#pragma unroll 1
        for (u32 c = 0; c < STAGE; c += 4) {
            float4 w[SIDE];
#pragma unroll
            for (u32 j = 0; j < SIDE; j++) w[j] = *reinterpret_cast<const float4*>(&weights[4 * j][c]);
#pragma unroll
            for (u32 i = 0; i < SIDE; i++) {
                float4 x = *reinterpret_cast<const float4*>(&activations[8 * i][c]);
#pragma unroll
                for (u32 j = 0; j < SIDE; j++) {
                    float(&of)[4] = chains[i][j];
                    of[0] = __fmaf_rn(w[j].x, x.x, of[0]), of[1] = __fmaf_rn(w[j].y, x.y, of[1]);
                    of[2] = __fmaf_rn(w[j].z, x.z, of[2]), of[3] = __fmaf_rn(w[j].w, x.w, of[3]);
                }
            }
        }
    }

    DEVICE void run(const MatmulParams& p) {
        if (GROUPS && row_at(p, 0) >= p.rows) return;
        Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared);
        Work work = Work::choose<ROWS, GROUPS>(p);
        u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, stages = p.k / STAGE, at = 0;
        const u8* weights[OF_WARP];
#pragma unroll
        for (u32 w = 0; w < OF_WARP; w++) weights[w] = panel_of<F, PANELS>(p, work, warp + w * WARPS).pieces + lane * PIECE;
        // Rows behind the last one read the last one again and are not written.
        u32 rows[BRINGS];
#pragma unroll
        for (u32 i = 0; i < BRINGS; i++) {
            u32 row = min(row_at(p, threadIdx.x / 8 + THREADS / 8 * i), p.rows - 1);
            rows[i] = (GROUPS ? row / p.share : row) * p.k + threadIdx.x % 8 * 4;
        }
        float chains[SIDE][SIDE][4] = {}, total[SIDE][SIDE] = {};
        Raw raw;
        ask(p, rows, 0, shared);
        load(weights, at, raw);
        store(raw, 0, shared);
#pragma unroll 1
        for (u32 stage = 0; stage < stages; stage++) {
            copies_arrive();
            at += STAGE / WIDTH * PIECE_STRIDE;
            bool more = stage + 1 < stages;
            if (more) {
                ask(p, rows, stage + 1, shared);
                load(weights, at, raw);
            }
            multiply(shared, stage, chains);
            if (more) store(raw, stage + 1, shared);
            if (more && (stage + 1) % LEAF != 0) continue;
#pragma unroll
            for (u32 i = 0; i < SIDE; i++) {
#pragma unroll
                for (u32 j = 0; j < SIDE; j++) {
                    float(&of)[4] = chains[i][j];
                    total[i][j] = __fadd_rn(total[i][j], __fadd_rn(__fadd_rn(of[0], of[1]), __fadd_rn(of[2], of[3])));
                    of[0] = of[1] = of[2] = of[3] = 0.0f;
                }
            }
        }
        if (p.swiglu) write<true>(p, work, total);
        else write<false>(p, work, total);
    }

    // Row (or pair) at a place of the block's tile; out of range if the place is empty.
    DEVICE u32 row_at(const MatmulParams& p, u32 place) { return ::row_at(GROUPS ? p.pairs : 0, blockIdx.x * TOKENS + place); }

    template <bool GATED>
    DEVICE void write(const MatmulParams& p, const Work& work, float (&total)[SIDE][SIDE]) {
        Place place = Place::make();
        Output output = Output::make<ROWS, GROUPS>(p, work, place.row);
#pragma unroll
        for (u32 i = 0; i < SIDE; i++) {
            u32 m = row_at(p, place.token + 8 * i);
            if (m < p.rows) output.write<GATED, 4, GROUPS>(m, total[i]);
        }
    }
};

#define MATMUL_PLAIN(name, format, tokens, shared_bytes)                                                                \
    static_assert(sizeof(MatmulPlain<format, tokens>::Shared) == shared_bytes, "ABI");                                  \
    extern "C" __global__ __launch_bounds__(tokens * 4, tokens < 64 ? 3 : 2) void name(const __grid_constant__ MatmulParams p) { \
        after_previous_launch();                                                                                        \
        MatmulPlain<format, tokens>::run(p);                                                                            \
    }
