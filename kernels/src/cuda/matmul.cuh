// Matmuls of many rows with up to three matrices of one quantised type, on tensor cores.
//
// A block computes 64 matrix rows (8 panels) by TOKENS rows of activations; a warp computes TALL
// times 16 by WIDE times 8. The block loops over superblocks. Each warp copies a panel's bytes to
// shared memory while the previous superblock is multiplied, then unpacks them to signed bytes, in
// `ldmatrix` order, and f32 scales. Activations are copied in two stages per superblock: one
// arrives while the other is multiplied. Everything is stored in copy order, so a thread's
// addresses are two pointers and constants. An integer sum of a block starts from the bias, so the
// tensor core's result is a float and takes one multiply-add with its scale. Order and rounding are
// those of docs/numerics.md; results equal `project.cuh`'s.
//
// Activations are the output of `quantise.cuh`. With two planes a superblock takes two passes: one
// per plane, or for formats with LEAF one per half, with both planes of a block in turn.
//
// Grid: x = tile of activations, so that blocks that read the same weights run together; y = tile
// of a matrix. If tiles are grouped pairs (`group` in `mixture.cuh`), a tile uses its expert's
// matrices. Only small tiles support that: large tiles have no register left for it.
#pragma once
#include "matrix.cuh"
#include "quantise.cuh"
#include "tile.cuh"

// Loads two consecutive values exactly here: the compiler would hoist the load and need more
// registers.
template <u32 OFFSET>
DEVICE float2 load_two(u32 address) {
    float2 value;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2+%3];" : "=f"(value.x), "=f"(value.y) : "r"(address), "n"(OFFSET));
    return value;
}

// 16 rows of 32 (or 16) signed bytes times 8 columns, added to `start`.
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

// Work of a block: expert, matrix and tile.
struct Work {
    u32 segment, tile, expert;

    template <u32 ROWS, bool GROUPS = false>
    DEVICE Work choose(const MatmulParams& p) {
        u32 tile = blockIdx.y, segment = 0;
#pragma unroll 1
        for (; !p.swiglu && segment < 2; segment++) {
            u32 tiles = (p.segments[segment].n + ROWS - 1) / ROWS;
            if (tile < tiles) break;
            tile -= tiles;
        }
        return {segment, tile, GROUPS && p.experts ? at<const u32>(p.experts)[blockIdx.x] : 0};
    }
};

// One panel of a tile; with a gated unit, panels of gate and up alternate.
template <class F, u32 PANELS>
DEVICE Superblock panel_of(const MatmulParams& p, const Work& work, u32 which) {
    u32 n = p.segments[work.segment].n;
    u32 panel = p.swiglu ? work.tile * (PANELS / 2) + which / 2 : work.tile * PANELS + which;
    u64 weights = p.segments[p.swiglu ? which % 2 : work.segment].weights + work.expert * p.stride;
    Matrix<F> matrix = Matrix<F>::make(weights, n, p.k);
    // Panels behind the last one read the last one again and are not written.
    panel = min(panel, (n - 1) / PANEL);
    return {row_of(matrix.pieces, panel, matrix.panel), row_of(matrix.tails, panel, matrix.tail_panel)};
}

// Destination of a thread: from a row of its tile on, of which `left` belong to the matrix. With a
// gated unit the first 8 of 16 rows are the gate, the others up.
struct Output {
    float* out;
    const float* bias;
    const float* met_bias;
    const float* residual;
    u32 n, left, activation, glu;

    template <u32 ROWS, bool GROUPS = false>
    DEVICE Output make(const MatmulParams& p, const Work& work, u32 row) {
        const Segment& own = p.segments[work.segment];
        u32 n = own.n, first = p.swiglu ? work.tile * (ROWS / 2) + row / 16 * 8 + row % 8 : work.tile * ROWS + row;
        u64 of_expert = GROUPS ? static_cast<u64>(work.expert) * n + first : first;
        auto bias = [&](u64 of) { return of ? at<const float>(of) + of_expert : nullptr; };
        return {at<float>(own.out) + first, bias(own.bias), bias(GROUPS && p.swiglu ? p.segments[1].bias : 0),
                p.residual ? at<const float>(p.residual) + first : nullptr, n, first < n ? n - first : 0, own.activation,
                p.swiglu};
    }
    // Row of the i-th value, STEP rows from the previous one; with a gated unit every second half
    // of 16 is multiplied into the first.
    template <bool GATED, u32 STEP>
    DEVICE u32 row_of(u32 i) {
        return GATED ? STEP * i / 16 * 8 + STEP * i % 8 : STEP * i;
    }
    template <bool GATED, u32 STEP, u32 COUNT>
    __device__ __forceinline__ void add(const float* more, float (&values)[COUNT]) const {
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            u32 row = row_of<GATED, STEP>(i);
            if (row < left) values[i] = __fadd_rn(values[i], more[row]);
        }
    }
    // Writes COUNT values of row `m` of activations. Rarely used parameters are loaded once for all
    // of them.
    template <bool GATED, u32 STEP, bool GROUPS = false, u32 COUNT>
    __device__ __forceinline__ void write(u32 m, float (&values)[COUNT]) const {
        if constexpr (GATED) {
#pragma unroll
            for (u32 i = 0; i < COUNT; i++) {
                u32 row = row_of<true, STEP>(i);
                if (STEP * i % 16 >= 8 || row >= left) continue;
                float& met = values[(i + 8 / STEP) % COUNT];
                if (GROUPS && bias) values[i] = __fadd_rn(values[i], bias[row]);
                if (GROUPS && met_bias) met = __fadd_rn(met, met_bias[row]);
                values[i] = glu_product(glu, values[i], met);
            }
        } else {
            if (bias) add<false, STEP>(bias, values);
            if (activation) {
#pragma unroll
                for (u32 i = 0; i < COUNT; i++) values[i] = activated(activation, values[i]);
            }
            if (residual) add<false, STEP>(residual + static_cast<u64>(m) * n, values);
        }
        float* to = out + static_cast<u64>(m) * n;
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            u32 row = row_of<GATED, STEP>(i);
            if (!(GATED && STEP * i % 16 >= 8) && row < left) to[row] = values[i];
        }
    }
};

// A thread's part of a block's work, as `mma` distributes it: its first matrix row and first row of
// activations.
template <int TOKENS_, int TALL_, int WIDE_>
struct Part {
    enum : u32 { TOKENS = TOKENS_, TALL = TALL_, WIDE = WIDE_, WARPS = 8, PANELS = 8, ROWS = PANELS * PANEL };
    // Warps along the matrix; the others have other rows of activations.
    enum : u32 { ACROSS = ROWS / (16 * TALL) };
    // True if rows may be pairs of an MoE layer.
    enum : u32 { GROUPS = TOKENS < 128 };
    static_assert(WARPS / ACROSS * WIDE * 8 == TOKENS && WIDE % 2 == 0, "a warp for every part");
    typedef float Sums[TALL][WIDE][4];

    u32 lane, tall, wide, row, token;
    DEVICE Part make() {
        u32 lane = threadIdx.x % 32, tall = threadIdx.x / 32 % ACROSS, wide = threadIdx.x / 32 / ACROSS;
        return {lane, tall, wide, tall * TALL * 16 + lane / 4, wide * WIDE * 8 + lane % 4 * 2};
    }

    // Row (or pair) at a place of the block's tile; out of range if the place is empty.
    DEVICE u32 row_at(const MatmulParams& p, u32 place) { return ::row_at(GROUPS ? p.pairs : 0, blockIdx.x * TOKENS + place); }

    template <bool GATED>
    DEVICE void write(const MatmulParams& p, const Work& work, const Sums& total) {
        Part place = make();
        Output output = Output::make<ROWS, GROUPS>(p, work, place.row);
#pragma unroll
        for (u32 w = 0; w < WIDE; w++) {
#pragma unroll
            for (u32 c = 0; c < 2; c++) {
                u32 m = row_at(p, place.token + 8 * w + c);
                if (m >= p.rows) continue;
                float values[2 * TALL];
#pragma unroll
                for (u32 i = 0; i < 2 * TALL; i++) values[i] = total[i / 2][w][i % 2 * 2 + c];
                output.write<GATED, 8, GROUPS>(m, values);
            }
        }
    }
    DEVICE void write(const MatmulParams& p, const Work& work, const Sums& total) {
        if (p.swiglu) write<true>(p, work, total);
        else write<false>(p, work, total);
    }
};

template <class F, int TOKENS_, int TALL_, int WIDE_>
struct Matmul {
    typedef Part<TOKENS_, TALL_, WIDE_> Place;
    enum : u32 { TOKENS = TOKENS_, TALL = TALL_, WIDE = WIDE_, THREADS = Place::WARPS * 32, PANELS = Place::PANELS, ROWS = Place::ROWS };
    enum : u32 { GROUPS = Place::GROUPS };
    // Bytes of activations of a block, half a superblock and a record, and of a panel's superblock.
    enum : u32 { UNIT = TOKENS * BLOCK, HALF = TOKENS * Record<F>::HALF, RECORD = TOKENS * Record<F>::ALL };
    enum : u32 { PIECES = F::HEAD + F::QUANTS, BLOCKS = SUPERBLOCK / BLOCK };
    enum : u32 { AS_IS = Tile<F>::AS_IS, RAWS = AS_IS ? 2 : 1, PANEL_STRIDE = AS_IS ? sizeof(Pieces<PIECES>) : sizeof(Bytes) };
    // Pairs of scales of a block and of a row, and the row stride, which avoids bank conflicts
    // among 8 rows.
    enum : u32 { PAIRS = F::SUMS == 2 ? 2 : 1, SCALES = 8 * PAIRS + 2, STRIDE = SCALES * sizeof(float2) };
    // f32 values stored with a block's activations.
    enum : u32 { EXTRAS = Record<F>::OF_BLOCK, EXTRAS_STRIDE = TOKENS * 4 * sizeof(float) };

    struct __align__(16) Shared {
        u8 stages[2][HALF];
        float scale[TOKENS];
        Pieces<PIECES> raw[RAWS][PANELS];
        Bytes bytes[AS_IS ? 1 : PANELS];
        u8 tails[PANELS][F::TAIL > 0 ? F::TAIL * PANEL : PIECE];
        float2 scales[ROWS][SCALES];
        float begin[ROWS];
        // Rarely used values are in shared memory to save registers.
        Superblock panels[PANELS];
        Work work;
        u32 planes;
    };
    typedef typename Place::Sums Sums;
    // The thread's extras, two neighbouring columns at a time.
    typedef float2 Extras[EXTRAS > 0 ? EXTRAS : 1][WIDE];

    // Starts copying stage B of a pass; `from` is the thread's part of the first 4 KiB of the
    // record.
    template <int B>
    DEVICE void ask(const u8* from, u32 planes, u32 pass, Shared& shared) {
        u32 thread = threadIdx.x, to = shared_address(shared.stages[B]) + thread * PIECE;
        if (F::LEAF && planes == 2) {
            // Two blocks, both planes in turn.
            const u8* half = from - thread * PIECE + pass * HALF;
#pragma unroll
            for (u32 i = 0; i < UNIT / PIECE * 4 / THREADS; i++) {
                u32 piece = i * THREADS + thread, unit = piece / (UNIT / PIECE);
                copy_piece(to + i * THREADS * PIECE, half + unit % 2 * RECORD + (2 * B + unit / 2) * UNIT + piece % (UNIT / PIECE) * PIECE);
            }
            u32 unit = thread / (TOKENS / 4);
            if (thread < TOKENS)
                copy_pieces<EXTRAS, EXTRAS_STRIDE>(to + 4 * UNIT, half + unit % 2 * RECORD + 4 * UNIT
                                                       + (2 * B + unit / 2) * TOKENS * 4 + thread % (TOKENS / 4) * PIECE);
        } else {
            copy_pieces<UNIT / PIECE * 4 / THREADS, THREADS * PIECE, B * HALF>(to, from);
            if (thread < TOKENS) copy_pieces<EXTRAS, EXTRAS_STRIDE, B * HALF + 4 * UNIT, 4 * UNIT>(to, from);
        }
        // The previous pass has finished reading it.
        if (Record<F>::OF_ALL && B == 1 && thread < TOKENS / 4)
            copy_pieces<1, 0, 2 * HALF>(shared_address(shared.scale) + thread * PIECE, from);
    }

    // Starts copying superblock `s` of the warp's panel, `pieces` pieces.
    DEVICE void ask_weights(u32 s, u32 pieces, Shared& shared) {
        u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        u32 to = shared_address(&shared.raw[s % RAWS][warp]) + lane * PIECE;
        const u8* from = shared.panels[warp].pieces + s * PIECES * PIECE_STRIDE + lane * PIECE;
        if (F::WHOLE || pieces == PIECES) {
            constexpr u32 WHOLE = PIECES * PANEL / 32, AT = WHOLE * 32 * PIECE;
            copy_pieces<WHOLE, 32 * PIECE>(to, from);
            if (lane < PIECES * PANEL % 32) copy_pieces<1, 0, AT, AT>(to, from);
        } else {
            // Missing pieces are unpacked too.
            uint4* missing = reinterpret_cast<uint4*>(&shared.raw[s % RAWS][warp]);
            for (u32 i = 0; i * 32 + lane < PIECES * PANEL; i++) {
                if (i * 32 + lane < pieces * PANEL) copy_piece(to + i * 32 * PIECE, from + i * 32 * PIECE);
                else missing[i * 32 + lane] = {};
            }
        }
        if (F::TAIL > 0 && lane < F::TAIL * PANEL / PIECE)
            copy_piece(shared_address(shared.tails[warp]) + lane * PIECE, shared.panels[warp].tail + s * (PANEL * F::TAIL) + lane * PIECE);
    }

    // Unpacks superblock `s` of the warp's panel: four lanes share a row, for its scales and for 64
    // columns each.
    DEVICE void unpack(u32 s, Shared& shared) {
        u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const Pieces<PIECES>& raw = shared.raw[s % RAWS][warp];
        u32 row = warp * PANEL + lane / 4;
        Tile<F>::scales(raw, lane / 4, shared.tails[warp] + lane / 4 * F::TAIL, lane % 4, shared.scales[row] + lane % 4 * 2 * PAIRS,
                        shared.begin[row]);
        if constexpr (!AS_IS) Tile<F>::unpack(raw, lane / PANEL, lane % PANEL, shared.bytes[warp]);
    }

    DEVICE void run(const MatmulParams& p) {
        if (GROUPS && Place::row_at(p, 0) >= p.rows) return;
        Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared);
        choose(p, shared);
        __syncthreads();
        u32 superblocks = (p.k + SUPERBLOCK - 1) / SUPERBLOCK;
        const u8* record = at<const u8>(p.activations) + static_cast<u64>(blockIdx.x * superblocks * p.planes) * RECORD
            + threadIdx.x * PIECE;
        // Warps without rows only copy and unpack.
        bool multiplies = Place::row_at(p, Place::make().wide * WIDE * 8) < p.rows;
        u32 up[4];
#pragma unroll
        for (int i = 0; i < 4; i++) asm volatile("mov.u32 %0, 0x4b400000;" : "=r"(up[i]));
        Sums total = {}, part;
        ask<0>(record, shared.planes, 0, shared);
        ask_weights(0, pieces_of(p, 0), shared);
#pragma unroll 1
        for (u32 s = 0; s < superblocks; s++) {
            u32 blocks = min((p.k - s * SUPERBLOCK) / BLOCK, static_cast<u32>(BLOCKS));
#pragma unroll 1
            for (u32 pass = 0; pass < shared.planes; pass++) {
                copies_arrive();
                u32 planes = shared.planes;
                ask<1>(record, planes, pass, shared);
                if (pass == 0) {
                    unpack(s, shared);
                    __syncthreads();
                    if (s + 1 < superblocks) ask_weights(s + 1, pieces_of(p, s + 1), shared);
                }
                if (multiplies) multiply_stage<0>(s, pass, planes, blocks, shared, up, part);
                copies_arrive();
                bool last = pass + 1 == planes;
                if (!F::LEAF || last) record += RECORD * (last ? p.planes - (F::LEAF ? 0 : planes - 1) : 1);
                if (!last || s + 1 < superblocks) ask<0>(record, planes, last ? 0 : pass + 1, shared);
                if (!multiplies) continue;
                multiply_stage<1>(s, pass, planes, blocks, shared, up, part);
                if (!F::LEAF || last) end(shared, part, total);
            }
        }
        if (multiplies) Place::write(p, shared.work, total);
    }

    DEVICE void choose(const MatmulParams& p, Shared& shared) {
        Work work = Work::choose<ROWS, GROUPS>(p);
        u32 warp = threadIdx.x / 32;
        if (threadIdx.x % 32 == 0) shared.panels[warp] = panel_of<F, PANELS>(p, work, warp);
        if (threadIdx.x == 0) shared.work = work, shared.planes = p.segments[work.segment].planes;
    }

    // Number of pieces of a panel's superblock `s`.
    DEVICE u32 pieces_of(const MatmulParams& p, u32 s) {
        return F::WHOLE ? PIECES : Matrix<F>::pieces_of(min(p.k - s * SUPERBLOCK, static_cast<u32>(SUPERBLOCK)));
    }

    // Up to four blocks: columns in order, or for LEAF formats with two planes both planes of every
    // two columns.
    template <int B>
    DEVICE void multiply_stage(u32 s, u32 pass, u32 planes, u32 blocks, const Shared& shared, const u32 (&up)[4], Sums& part) {
        Place place = Place::make();
        // `ldmatrix` operands of 32 columns: two tiles of activations by two pieces; two panels by
        // two pieces.
        u32 activations = shared_address(shared.stages[0]) + place.wide * WIDE * 2 * PIECE_STRIDE + place.lane * PIECE;
        u32 pieces = AS_IS ? shared_address(shared.raw[s % RAWS][0].bytes[F::HEAD]) : shared_address(shared.bytes);
        u32 weights = pieces + (place.tall * TALL * 2 + place.lane / 8 % 2) * PANEL_STRIDE + place.lane / 16 * PIECE_STRIDE
            + place.lane % 8 * PIECE;
        u32 scales = shared_address(shared.scales[place.row]), extras = shared_address(shared.stages[0]) + place.token * 4;
        if (B == 0 && (!F::LEAF || pass == 0)) begin(shared, part);
        u32 first = F::LEAF && planes == 2 ? 4 * pass + 2 * B : 4 * B, count = 4;
        if constexpr (!F::WHOLE) count = first < blocks ? min((blocks - first) * planes, 4u) : 0;
        asm volatile("" : "+r"(count));
#pragma unroll 1
        for (u32 i = 0; i < count; i++) {
            u32 block = F::LEAF ? first + (i >> planes - 1) : i;
            constexpr u32 FIRST = F::LEAF ? 0 : 4 * B;
            multiply_block<B * HALF, FIRST>(activations + i * UNIT, weights + block * 2 * PIECE_STRIDE, scales + block * PAIRS * sizeof(float2),
                                            extras + i * TOKENS * 4, up, part);
        }
    }

    // Initial value of a superblock's sums.
    DEVICE void begin(const Shared& shared, Sums& part) {
        const float* begin = shared.begin + Place::make().row;
#pragma unroll
        for (u32 r = 0; r < TALL; r++) {
#pragma unroll
            for (u32 c = 0; c < 4; c++) {
                float start = F::LEAF ? 0.0f : begin[16 * r + c / 2 * 8];
#pragma unroll
                for (u32 w = 0; w < WIDE; w++) part[r][w][c] = start;
            }
        }
    }

    // Adds 32 columns to `part`: the half AT of the thread's addresses, BLOCK_AT blocks further.
    template <u32 AT, u32 BLOCK_AT>
    DEVICE void multiply_block(u32 activations, u32 weights, u32 scales, u32 extras, const u32 (&up)[4], Sums& part) {
        u32 b[WIDE / 2][4];
        Extras extra;
        load_activations<AT, 0>(activations, extras, b, extra);
        multiply_rows<BLOCK_AT, 0>(weights, scales, b, extra, up, part);
    }

    template <u32 AT, u32 W>
    DEVICE void load_activations(u32 activations, u32 extras, u32 (&b)[WIDE / 2][4], Extras& extra) {
        if constexpr (W < WIDE) {
            load_matrices<AT + W * 2 * PIECE_STRIDE>(b[W / 2], activations);
            load_extras<AT + 4 * UNIT, W, 0>(extras, extra);
            load_activations<AT, W + 2>(activations, extras, b, extra);
        }
    }

    template <u32 AT, u32 W, u32 I>
    DEVICE void load_extras(u32 extras, Extras& extra) {
        if constexpr (I < EXTRAS) {
            extra[I][W] = load_two<AT + I * EXTRAS_STRIDE + 32 * W>(extras);
            extra[I][W + 1] = load_two<AT + I * EXTRAS_STRIDE + 32 * (W + 1)>(extras);
            load_extras<AT, W, I + 1>(extras, extra);
        }
    }

    template <u32 BLOCK_AT, u32 R>
    DEVICE void multiply_rows(u32 weights, u32 scales, const u32 (&b)[WIDE / 2][4], const Extras& extra, const u32 (&up)[4],
                              Sums& part) {
        if constexpr (R < TALL) {
            constexpr u32 SCALE_AT = BLOCK_AT * PAIRS * sizeof(float2) + 16 * R * STRIDE;
            u32 a[4];
            load_matrices<BLOCK_AT * 2 * PIECE_STRIDE + 2 * R * PANEL_STRIDE>(a, weights);
            float2 scale[2] = {load_two<SCALE_AT>(scales), load_two<SCALE_AT + 8 * STRIDE>(scales)}, minima[2];
            if constexpr (PAIRS == 2) {
                minima[0] = load_two<SCALE_AT + sizeof(float2)>(scales);
                minima[1] = load_two<SCALE_AT + sizeof(float2) + 8 * STRIDE>(scales);
            }
#pragma unroll
            for (u32 h = 0; h < (Tile<F>::OF_16 ? 2 : 1); h++) {
#pragma unroll
                for (u32 w = 0; w < WIDE; w++) {
                    u32 products[4];
                    const u32* of = b[w / 2] + w % 2 * 2;
                    if constexpr (Tile<F>::OF_16) multiply(products, a[2 * h], a[2 * h + 1], of[h], up);
                    else multiply(products, a, of[0], of[1], up);
#pragma unroll
                    for (u32 c = 0; c < 4; c++) {
                        float number = __uint_as_float(products[c]);
                        if constexpr (F::CONVERTS) number = __fsub_rn(number, bias());
                        float2 of_row = scale[c / 2];
                        auto of_token = [&](u32 i) { return c % 2 == 0 ? extra[i][w].x : extra[i][w].y; };
                        float& sum = part[R][w][c];
                        if constexpr (F::LEAF) {
                            float offset = F::SUMS ? __fmul_rn(-bias(), of_row.x) : of_row.y;
                            float product = __fmaf_rn(number, of_row.x, offset);
                            if constexpr (F::SUMS) product = __fmaf_rn(of_row.y, of_token(1), product);
                            sum = __fmaf_rn(product, of_token(0), sum);
                        } else {
                            sum = __fmaf_rn(number, h == 0 ? of_row.x : of_row.y, sum);
                            if constexpr (PAIRS == 2) sum = __fmaf_rn(h == 0 ? minima[c / 2].x : minima[c / 2].y, of_token(h), sum);
                            else if constexpr (F::SUMS) sum = __fmaf_rn(of_row.y, of_token(0), sum);
                        }
                    }
                }
            }
            multiply_rows<BLOCK_AT, R + 1>(weights, scales, b, extra, up, part);
        }
    }

    // Adds a superblock's sums to those of the row.
    DEVICE void end(const Shared& shared, const Sums& part, Sums& total) {
        const float* scales = shared.scale + Place::make().token;
#pragma unroll
        for (u32 w = 0; w < WIDE; w++) {
            float2 scale = {1.0f, 1.0f};
            if constexpr (!F::LEAF) scale = *reinterpret_cast<const float2*>(scales + 8 * w);
#pragma unroll
            for (u32 r = 0; r < TALL; r++) {
#pragma unroll
                for (u32 c = 0; c < 4; c++) {
                    if constexpr (F::LEAF) total[r][w][c] = __fadd_rn(total[r][w][c], part[r][w][c]);
                    else total[r][w][c] = __fmaf_rn(part[r][w][c], c % 2 == 0 ? scale.x : scale.y, total[r][w][c]);
                }
            }
        }
    }
};

// Register limit for two blocks per SM, three for small tiles. Formats with a minimum per 16
// columns would spill, and so would some others on Hopper.
#if __CUDA_ARCH__ < 900
#define MATMUL_BLOCKS(format, tokens) ((tokens) < 128 ? 3 : format::SUMS == 2 ? 1 : 2)
#else
#define MATMUL_BLOCKS(format, tokens) ((tokens) < 128 ? 3 : Tile<format>::OF_16 || (format::SPAN == BLOCK && format::SUMS > 0) ? 1 : 2)
#endif

#define MATMUL(name, format, tokens, tall, wide, shared_bytes)                                      \
    static_assert(sizeof(Matmul<format, tokens, tall, wide>::Shared) == shared_bytes, "ABI");       \
    extern "C" __global__ __launch_bounds__(256, MATMUL_BLOCKS(format, tokens)) void name(          \
        const __grid_constant__ MatmulParams p) {                                                   \
        after_previous_launch();                                                                    \
        Matmul<format, tokens, tall, wide>::run(p);                                                 \
    }
