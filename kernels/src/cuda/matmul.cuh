// Products of many rows with up to three matrices of one quantised type, on tensor cores.
//
// A block has 64 rows of matrices, 8 panels, and 128 rows of activations; its 8 warps have 32 of each. It goes
// through the columns in stages of 128: a half of a superblock, whose bytes and activations are copied to
// shared memory while the stage before is multiplied. Weights become signed bytes there, once for all warps,
// in pieces as `ldmatrix` takes them; the steps of a superblock become f32. An integer sum of a block starts
// from the bias, so that what the tensor core gives is a number already and meets its scale in one
// multiply-add. Order and rounding are those of docs/numerics.md: the bits are those of `project.cuh`.
//
// Activations are what `quantise.cuh` made. Where a matrix meets two planes of them, they follow each other:
// superblock by superblock, or block by block where sums are of leaves.
//
// Grid: x = 128 rows of activations, so that those who read the same weights run together; y = tile of a matrix.
#pragma once
#include "quantise.cuh"
#include "tile.cuh"

struct MatmulParams {
    u64 quants;
    u64 extras;
    u64 residual;
    Segment segments[3];
    u32 k;
    u32 rows;
    u32 swiglu;
    u32 reserved;
};

// Four 8 x 8 matrices of 16-bit elements: lane l gives the address of row l % 8 of matrix l / 8.
DEVICE void load_matrices(u32 (&out)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address));
}

// 16 bytes from global to shared memory, on their way until `copies_arrive`.
DEVICE void copy_piece(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}
DEVICE void copies_arrive() { asm volatile("cp.async.wait_all;"); }

DEVICE u32 shared_address(const void* pointer) { return static_cast<u32>(__cvta_generic_to_shared(pointer)); }

// 16 rows of 32 signed bytes, or of 16, times 8 columns of them, from `start` on.
DEVICE void multiply(u32 (&out)[4], const u32 (&a)[4], u32 b0, u32 b1, const u32 (&start)[4]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(start[0]), "r"(start[1]), "r"(start[2]),
          "r"(start[3]));
}
DEVICE void multiply(u32 (&out)[4], u32 a0, u32 a1, u32 b, const u32 (&start)[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
        : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(start[0]), "r"(start[1]), "r"(start[2]), "r"(start[3]));
}

// The thread's number, such that what follows from it is computed again rather than kept in registers.
DEVICE u32 thread_anew() {
    u32 thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

template <class F>
struct Matmul {
    enum : u32 { WARPS = 8, THREADS = WARPS * 32, PANELS = 8, TOKENS = 128, ROWS = PANELS * PANEL };
    enum : u32 { HALF = SUPERBLOCK / 2, BLOCKS = SUPERBLOCK / BLOCK };
    // Tiles of a warp: of 16 matrix rows, of 8 rows of activations.
    enum : u32 { TALL = 2, WIDE = 4 };
    // Scales of a superblock; what stands between those of neighbouring rows keeps them in different banks.
    enum : u32 { SCALES = Tile<F>::SCALES, STRIDE = SCALES + 4, EXTRAS = Quantise<F>::EXTRAS };
    enum : u32 { HEADS = Tile<F>::HEADS, QUANTS = Tile<F>::QUANTS, AS_IS = Tile<F>::AS_IS };

    struct __align__(16) Shared {
        Bytes activations[2][TOKENS / PANEL];
        Pieces<HEADS + QUANTS> raw[2][PANELS];
        Bytes bytes[AS_IS ? 1 : PANELS];
        // Of activations, of a superblock at a time.
        float extras[2][EXTRAS * (F::LEAF ? 2 : 1)][TOKENS];
        u8 tails[2][PANELS][PIECE];
        float scales[ROWS][STRIDE];
        float minima[F::SUMS ? ROWS : 1][STRIDE];
        float begin[ROWS];
        const u8* panels[PANELS];
        const u8* panel_tails[PANELS];
        u32 segment, tile, planes;
    };
    typedef float Sums[TALL][WIDE][4];

    // A stage by its number, of 1 or 2 planes.
    struct At {
        u32 number, planes;
        __device__ __forceinline__ u32 superblock() const { return number >> planes; }
        // How many stages of the superblock have been before.
        __device__ __forceinline__ u32 stage() const { return number & 2 * planes - 1; }
        // Which half of the superblock it is of.
        __device__ __forceinline__ u32 half() const { return F::LEAF ? stage() >> planes - 1 : number & 1; }
        // Block and plane of its `i`-th 32 columns.
        __device__ __forceinline__ u32 block(u32 i) const {
            return half() * 4 + (F::LEAF && planes == 2 ? number % 2 * 2 + i / 2 : i);
        }
        __device__ __forceinline__ u32 plane(u32 i) const { return F::LEAF ? i & planes - 1 : stage() / 2; }
        // Whether the sums of a superblock begin or end with it.
        __device__ __forceinline__ bool first() const { return F::LEAF ? stage() == 0 : number % 2 == 0; }
        __device__ __forceinline__ bool last() const { return F::LEAF ? stage() == 2 * planes - 1 : number % 2 == 1; }
        // Which of two buffers the stage is in, and which the extras of its sums are in.
        __device__ __forceinline__ u32 buffer() const { return number % 2; }
        __device__ __forceinline__ u32 parity() const { return F::LEAF ? superblock() % 2 : number / 2 % 2; }
    };
    // Which part of the block's work is the thread's: of 64 rows and of 128 its first.
    struct Place {
        u32 lane, tall, wide, row, token;
        DEVICE Place make() {
            u32 thread = thread_anew(), lane = thread % 32, tall = thread / 32 % 2, wide = thread / 64;
            return {lane, tall, wide, tall * 32 + lane / 4, wide * 32 + lane % 4 * 2};
        }
    };

    // Asks for what a stage reads.
    DEVICE void ask(const MatmulParams& p, const At& stage, Shared& shared) {
        u32 tid = thread_anew(), half = stage.half(), s = stage.superblock(), buffer = stage.buffer();
        u32 blocks = F::WHOLE ? BLOCKS : min((p.k - s * SUPERBLOCK) / BLOCK, static_cast<u32>(BLOCKS));
        u32 padded = round_up(p.rows, static_cast<u32>(TOKENS)), token = blockIdx.x * TOKENS;
        // Activations: 8 threads have a piece of 8 rows.
        const u8* quants = at<const u8>(p.quants) + static_cast<u64>(token) * p.k;
        u32 to = shared_address(shared.activations[buffer]) + tid * PIECE;
        u32 block = stage.block(tid / 16 % 4), plane = stage.plane(tid / 16 % 4);
        const u8* from = quants + static_cast<u64>(plane) * padded * p.k + tid / 64 * PANEL * p.k
            + (s * (SUPERBLOCK / PIECE) + block * 2 + tid / 8 % 2) * PIECE_STRIDE + tid % 8 * PIECE;
#pragma unroll
        for (u32 i = 0; i < TOKENS * HALF / PIECE / THREADS; i++) {
            // Up to whole warps' worth of rows.
            bool real = token + (tid / 64 + i * (THREADS / 64)) / WIDE * WIDE * PANEL < p.rows;
            if (real && (F::WHOLE || block < blocks)) copy_piece(to + i * THREADS * PIECE, from + i * (THREADS / 64) * PANEL * p.k);
        }
        // Weights.
        u32 first = s * (F::HEAD + F::QUANTS) * PIECE_STRIDE;
#pragma unroll
        for (u32 i = tid; i < PANELS * QUANTS * PANEL; i += THREADS) {
            u32 panel = i / (QUANTS * PANEL), rest = i % (QUANTS * PANEL);
            u32 piece = half * QUANTS + rest / PANEL;
            if (F::WHOLE || piece < blocks * F::QUANTS / BLOCKS)
                copy_piece(shared_address(shared.raw[buffer][panel].bytes[HEADS]) + rest * PIECE,
                           shared.panels[panel] + first + (F::HEAD + half * QUANTS) * PIECE_STRIDE + rest * PIECE);
        }
        if (stage.stage() == 0 || HEADS > 1) {
            u32 piece = tid / 64, panel = tid / PANEL % PANELS, row = tid % PANEL * PIECE;
            if (piece < HEADS && (piece > 0 || stage.stage() == 0))
                copy_piece(shared_address(shared.raw[buffer][panel].bytes[piece]) + row,
                           shared.panels[panel] + first + (piece > 0 ? piece + half : 0) * PIECE_STRIDE + row);
        }
        if (F::TAIL && stage.stage() == 0 && tid < PANELS)
            copy_piece(shared_address(shared.tails[buffer][tid]), shared.panel_tails[tid] + s * PANEL * F::TAIL);
        if (stage.first()) {
            u32 superblocks = (p.k + SUPERBLOCK - 1) / SUPERBLOCK;
            u32 rows = F::LEAF ? EXTRAS * stage.planes : EXTRAS;
            for (u32 i = tid; i < rows * (TOKENS / 4); i += THREADS) {
                u32 extra = i / (TOKENS / 4), plane = F::LEAF ? extra / EXTRAS : stage.stage() / 2;
                const float* from = at<const float>(p.extras)
                    + ((static_cast<u64>(plane) * superblocks + s) * EXTRAS + extra % EXTRAS) * padded + token;
                copy_piece(shared_address(shared.extras[stage.parity()][extra]) + i % (TOKENS / 4) * 16,
                           from + i % (TOKENS / 4) * 4);
            }
        }
    }

    // The steps of a superblock: four threads have a row.
    DEVICE void prepare_scales(u32 buffer, Shared& shared) {
        u32 row = threadIdx.x / 4, quarter = threadIdx.x % 4;
        Tile<F>::scales(shared.raw[buffer][row / PANEL].row(0, row % PANEL),
                        shared.tails[buffer][row / PANEL] + row % PANEL * F::TAIL, quarter, shared.scales[row],
                        shared.minima[F::SUMS ? row : 0], shared.begin[row]);
    }

    DEVICE void run(const MatmulParams& p) {
        Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared);
        choose(p, shared);
        __syncthreads();
        // A warp without rows copies and unpacks for the others.
        if (blockIdx.x * TOKENS + Place::make().wide * WIDE * PANEL < p.rows) go<true>(p, shared);
        else go<false>(p, shared);
    }

    // Stage after stage.
    template <bool MULTIPLIES>
    DEVICE void go(const MatmulParams& p, Shared& shared) {
        u32 up[4];
#pragma unroll
        for (int i = 0; i < 4; i++) asm volatile("mov.u32 %0, 0x4b400000;" : "=r"(up[i]));
        Sums total = {}, part = {};
        ask(p, {0, shared.planes}, shared);
#pragma unroll 1
        for (u32 number = 0;; number++) {
            At now = {number, shared.planes};
            if (now.superblock() * SUPERBLOCK >= p.k) break;
            copies_arrive();
            __syncthreads();
            At next = {now.number + 1, now.planes};
            if (next.superblock() * SUPERBLOCK < p.k) ask(p, next, shared);
            if (now.stage() == 0) prepare_scales(now.buffer(), shared);
            if constexpr (!AS_IS) Tile<F>::unpack(shared.raw[now.buffer()], shared.bytes);
            __syncthreads();
            if constexpr (MULTIPLIES) {
                if (!F::LEAF && now.first()) begin_superblock(shared, part);
                multiply_stage(p, now, shared, up, part);
                if (now.last()) end_superblock(now, shared, part, total);
            }
        }
        if constexpr (MULTIPLIES) write(p, shared, total);
    }

    // The tile's matrix and panels; of a gate and what it meets, panels in turns of two.
    DEVICE void choose(const MatmulParams& p, Shared& shared) {
        u32 tile = blockIdx.y, segment = 0;
#pragma unroll 1
        for (; !p.swiglu && segment < 2; segment++) {
            u32 tiles = (p.segments[segment].n + ROWS - 1) / ROWS;
            if (tile < tiles) break;
            tile -= tiles;
        }
        u32 thread = threadIdx.x, n = p.segments[segment].n;
        if (thread == 0) shared.segment = segment, shared.tile = tile, shared.planes = p.segments[segment].planes;
        if (thread < PANELS) {
            u32 which = p.swiglu ? thread / 2 % 2 : segment;
            u32 panel = p.swiglu ? tile * (PANELS / 2) + thread / 4 * 2 + thread % 2 : tile * PANELS + thread;
            // Beyond the last the last is read again and not written.
            panel = min(panel, (n - 1) / PANEL);
            Matrix<F> matrix = Matrix<F>::make(p.segments[which].weights, n, p.k);
            shared.panels[thread] = row_of(matrix.pieces, panel, matrix.panel);
            shared.panel_tails[thread] = row_of(matrix.tails, panel, matrix.tail_panel);
        }
    }

    DEVICE void begin_superblock(const Shared& shared, Sums& part) {
        u32 row = Place::make().row;
#pragma unroll
        for (u32 i = 0; i < TALL; i++) {
#pragma unroll
            for (u32 h = 0; h < 2; h++) {
                float begin = shared.begin[row + 16 * i + 8 * h];
#pragma unroll
                for (u32 w = 0; w < WIDE; w++) part[i][w][2 * h] = part[i][w][2 * h + 1] = begin;
            }
        }
    }

    DEVICE void multiply_stage(const MatmulParams& p, const At& now, const Shared& shared, const u32 (&up)[4], Sums& part) {
        Place place = Place::make();
        u32 lane = place.lane, buffer = now.buffer();
        // Matrices of 32 columns: of two tiles of activations and two pieces; of two panels and two pieces.
        u32 activations = shared_address(&shared.activations[buffer][place.wide * WIDE + lane / 16])
            + lane / 8 % 2 * PIECE_STRIDE + lane % 8 * PIECE;
        const u8* pieces = AS_IS ? shared.raw[buffer][0].bytes[HEADS] : shared.bytes[0].bytes[0];
        constexpr u32 PANEL_STRIDE = AS_IS ? sizeof(shared.raw[0][0]) : sizeof(Bytes);
        u32 weights = shared_address(pieces) + (place.tall * 4 + lane / 8 % 2) * PANEL_STRIDE + lane / 16 * PIECE_STRIDE
            + lane % 8 * PIECE;
#pragma unroll 1
        for (u32 i = 0; i < HALF / BLOCK; i++) {
            u32 block = now.block(i);
            if (!F::WHOLE && now.superblock() * SUPERBLOCK + block * BLOCK >= p.k) break;
            u32 b[WIDE / 2][4];
#pragma unroll
            for (u32 w = 0; w < WIDE / 2; w++)
                load_matrices(b[w], activations + 2 * w * sizeof(Bytes) + 2 * i * PIECE_STRIDE);
            const float* scales = shared.scales[place.row] + block * (SCALES / BLOCKS);
            const float* extras = shared.extras[now.parity()][F::LEAF ? now.plane(i) * EXTRAS + block : 0];
            // Where blocks have minima: those, and the sums of activations that they meet.
            const float* minus_minima = shared.minima[F::SUMS ? place.row : 0] + block;
            const float* sums = shared.extras[now.parity()][F::SUMS ? 1 + block : 0] + place.token;
#pragma unroll
            for (u32 r = 0; r < TALL; r++) {
                u32 a[4];
                load_matrices(a, weights + 2 * r * PANEL_STRIDE + block % 4 * 2 * PIECE_STRIDE);
                if constexpr (SCALES == 2 * BLOCKS) {
#pragma unroll
                    for (u32 h = 0; h < 2; h++) {
                        float upper = here(scales + 16 * r * STRIDE + h), lower = here(scales + (16 * r + 8) * STRIDE + h);
#pragma unroll
                        for (u32 w = 0; w < WIDE; w++) {
                            u32 products[4];
                            multiply(products, a[2 * h], a[2 * h + 1], b[w / 2][w % 2 * 2 + h], up);
                            add(part[r][w], products, upper, lower);
                        }
                    }
                } else {
                    float scale[2] = {scales[16 * r * STRIDE], scales[(16 * r + 8) * STRIDE]};
                    float minima[4];
#pragma unroll
                    for (u32 c = 0; c < 4 && F::SUMS; c++) minima[c] = minus_minima[(16 * r + c / 2 * 8) * STRIDE];
#pragma unroll
                    for (u32 w = 0; w < WIDE; w++) {
                        u32 products[4];
                        multiply(products, a, b[w / 2][w % 2 * 2], b[w / 2][w % 2 * 2 + 1], up);
                        if constexpr (F::LEAF) {
                            float sum[4] = {__fmul_rn(-bias(), scale[0]), __fmul_rn(-bias(), scale[0]),
                                            __fmul_rn(-bias(), scale[1]), __fmul_rn(-bias(), scale[1])};
                            add(sum, products, scale[0], scale[1]);
                            add(part[r][w], sum, two(extras + place.token + 8 * w));
                        } else {
                            add(part[r][w], products, scale[0], scale[1]);
                            add(part[r][w], minima, two(sums + 8 * w));
                        }
                    }
                }
            }
        }
    }

    // Read where it stands: what the compiler moves further up it keeps for longer, and registers are few.
    DEVICE float here(const float* from) {
        float value;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(shared_address(from)));
        return value;
    }
    DEVICE float2 two(const float* from) { return *reinterpret_cast<const float2*>(from); }

    // Adds products, biased integers, times the scales of their rows.
    DEVICE void add(float (&sums)[4], const u32 (&products)[4], float upper, float lower) {
#pragma unroll
        for (u32 c = 0; c < 4; c++) sums[c] = __fmaf_rn(__uint_as_float(products[c]), c < 2 ? upper : lower, sums[c]);
    }
    // Adds sums times the scales of their activations.
    DEVICE void add(float (&to)[4], const float (&sums)[4], float2 scale) {
#pragma unroll
        for (u32 c = 0; c < 4; c++) to[c] = __fmaf_rn(sums[c], c % 2 == 0 ? scale.x : scale.y, to[c]);
    }

    // A superblock's sums into those of the row.
    DEVICE void end_superblock(const At& now, const Shared& shared, Sums& part, Sums& total) {
        Place place = Place::make();
        u32 token = place.token;
        const float(*extras)[TOKENS] = shared.extras[now.parity()];
#pragma unroll
        for (u32 w = 0; w < WIDE; w++) {
            float2 scale = {1.0f, 1.0f};
            if constexpr (!F::LEAF) scale = two(extras[0] + token + 8 * w);
#pragma unroll
            for (u32 r = 0; r < TALL; r++) {
                if constexpr (F::LEAF) {
#pragma unroll
                    for (u32 c = 0; c < 4; c++) total[r][w][c] = __fadd_rn(total[r][w][c], part[r][w][c]), part[r][w][c] = 0.0f;
                } else {
                    add(total[r][w], part[r][w], scale);
                }
            }
        }
    }

    DEVICE void write(const MatmulParams& p, const Shared& shared, const Sums& total) {
        Place thread = Place::make();
        u32 segment = shared.segment, tile = shared.tile, row = thread.row, token = thread.token;
        u32 n = p.segments[segment].n, first = blockIdx.x * TOKENS + token;
        float* out = at<float>(p.segments[segment].out);
        // With a gate, the first 16 of a warp's rows are its, the others what it meets.
        u32 place = p.swiglu ? tile * (ROWS / 2) + row / 32 * 16 + row % 32 : tile * ROWS + row;
#pragma unroll
        for (u32 r = 0; r < TALL; r++) {
            if (r > 0 && p.swiglu) break;
#pragma unroll
            for (u32 w = 0; w < WIDE; w++) {
#pragma unroll
                for (u32 c = 0; c < 4; c++) {
                    u32 i = place + 16 * r + c / 2 * 8, m = first + 8 * w + c % 2;
                    if (i >= n || m >= p.rows) continue;
                    float value = total[r][w][c];
                    if (p.swiglu) value = silu_product(value, total[TALL - 1][w][c]);
                    u64 to = static_cast<u64>(m) * n + i;
                    if (p.residual) value = __fadd_rn(value, at<const float>(p.residual)[to]);
                    out[to] = value;
                }
            }
        }
    }
};

// Registers for two blocks an SM, but where the compiler would keep some of sums of 16 columns in memory.
#if __CUDA_ARCH__ < 900
#define MATMUL_BLOCKS(format) 2
#else
#define MATMUL_BLOCKS(format) (Tile<format>::SCALES > 8 ? 1 : 2)
#endif

#define MATMUL(name, format, shared_bytes)                                              \
    static_assert(sizeof(Matmul<format>::Shared) == shared_bytes, "ABI");               \
    extern "C" __global__ __launch_bounds__(256, MATMUL_BLOCKS(format)) void name(      \
        const __grid_constant__ MatmulParams p) {                                       \
        Matmul<format>::run(p);                                                         \
    }
