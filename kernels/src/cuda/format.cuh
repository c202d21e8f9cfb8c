// Weight formats: addresses of superblocks, loads of chunks, decoding, and multiplication with
// activations. docs/numerics.md defines order and rounding of every sum, `orind_kernels::repack`
// the layout.
//
// A format defines
//   HEAD, QUANTS, TAIL   pieces before a superblock's quants, pieces of 256 columns of them, bytes behind whole pieces
//   CHUNK     columns that a lane loads and multiplies at a time; a multiple of 32
//   WHOLE     whether every superblock has 256 columns
//   SPAN      activations that share a scale; 0: they stay f32
//   LEAF      whether a superblock's sum is final, or is multiplied by the activations' scale
//   SUMS      sums of a block's activations that it needs: none, one of 32, two of 16
//   ALTERNATES   every other 16 or 32 columns are multiplied with negated activations; 0: none
//   CONVERTS  whether integers are converted, so that no bias affects their rounding
//   Head, head   a lane's registers for a superblock; begin: initial value of its sum
//   Raw, load    the bytes of a chunk, each read once
//   unpack    block b of a chunk: 32 weights as 8 words of bytes, with their scales
//   dot       adds those times 32 activations to a superblock's sum
//   value     decodes the same weights, bit for bit as ggml's reference does
#pragma once
#include "base.cuh"

enum : u32 { PANEL = 8, PIECE = 16, PIECE_STRIDE = PANEL * PIECE, SUPERBLOCK = 256, BLOCK = 32 };

// 1.5 * 2^23 and its negative: adding an integer to these bits replaces a conversion.
enum : u32 { BIAS_BITS = 0x4b400000u, MINUS_BIAS_BITS = 0xcb400000u };
DEVICE float bias() { return __uint_as_float(BIAS_BITS); }

// 32 weights and the factor of each half. `offset` is added: minus the minimum of each half; for
// blocks with their own step, minus the biased step, then the minimum.
struct Weights {
    u32 w[8];
    float scale[2];
    float offset[2];
};

// 32 activations of one plane, with the scale of their span and their integer sums if the format
// needs them.
struct Activations {
    uint4 low, high;
    float scale;
    float sums[2];
};

DEVICE u32 word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

DEVICE u32 word(const Activations& a, int i) { return i < 4 ? word(a.low, i) : word(a.high, i - 4); }

template <class T>
DEVICE T fetch(const void* address) {
    return __ldg(reinterpret_cast<const T*>(address));
}

// A superblock of one row. Offsets are widened before a constant is added, so that loads have it as
// an immediate and share the rest.
struct Superblock {
    const u8* pieces;
    const u8* tail;

    __device__ __forceinline__ const u8* piece(u32 i) const { return pieces + static_cast<u64>(i * PIECE_STRIDE); }
};

DEVICE uint4 fetch_piece(const u8* pieces, int i) {
    return fetch<uint4>(pieces + i * static_cast<int>(PIECE_STRIDE));
}

// Superblocks of a matrix of n rows and k columns.
template <class F>
struct Matrix {
    const u8* pieces;
    const u8* tails;
    u32 panel, tail_panel;

    // Number of pieces of a superblock's first `columns` columns.
    DEVICE u32 pieces_of(u32 columns) {
        return columns ? F::HEAD + (columns + BLOCK - 1) / BLOCK * F::QUANTS / (SUPERBLOCK / BLOCK) : 0;
    }
    DEVICE Matrix make(u64 base, u32 n, u32 k) {
        u32 whole = k / SUPERBLOCK, rest = k % SUPERBLOCK;
        u32 panel = (whole * pieces_of(SUPERBLOCK) + pieces_of(rest)) * PIECE_STRIDE;
        const u8* pieces = at<const u8>(base);
        const u8* tails = pieces;
        if constexpr (F::TAIL) tails = row_of(pieces, (n + PANEL - 1) / PANEL, panel);
        return {pieces, tails, panel, (whole + (rest != 0)) * PANEL * F::TAIL};
    }
    __device__ __forceinline__ Superblock superblock(u32 panel_index, u32 row, u32 s) const {
        Superblock out = {row_of(pieces, panel_index, panel) + s * pieces_of(SUPERBLOCK) * PIECE_STRIDE + row * PIECE,
                          nullptr};
        // Keeps the compiler from recomputing the address for each load.
        asm("" : "+l"(out.pieces));
        if constexpr (F::TAIL) out.tail = row_of(tails, panel_index, tail_panel) + (s * PANEL + row) * F::TAIL;
        return out;
    }
};

// Adds 32 weights times activations to `sum`, four at a time.
template <i32 (*DOT)(u32, u32, i32)>
DEVICE i32 dot_block(const Weights& w, const Activations& a, i32 sum) {
#pragma unroll
    for (int i = 0; i < 8; i++) sum = DOT(w.w[i], word(a, i), sum);
    return sum;
}

// A signed byte of a word times a step: (2^15 + 128 + byte) * step - (2^15 + 128) * step, exact.
DEVICE float times_signed(u32 bytes, u32 i, float step) {
    float above = __uint_as_float(__byte_perm(bytes ^ 0x80808080u, 0x47000000u, 0x7404 | i << 4));
    return __fmaf_rn(above, step, __fmul_rn(-32896.0f, step));
}

// Byte `i` of `bytes` as `2^23 + byte`, ready for a multiply-add; conversions are slow.
DEVICE float byte_above_2_23(u32 bytes, u32 i) {
    return __uint_as_float(__byte_perm(bytes, 0x4b000000u, 0x7440 | i));
}

// Common part of formats whose blocks of 32 columns have their own step. A byte is 2^SHIFT times
// its level, signed if there is no minimum.
template <int SHIFT, int MINIMUM>
struct Leaf {
    enum : int { CHUNK = 32, WHOLE = 0, SPAN = 32, LEAF = 1, SUMS = MINIMUM, ALTERNATES = 0, CONVERTS = 0 };
    struct Head {};
    DEVICE Head head(const Superblock&) { return {}; }
    DEVICE float begin(const Head&) { return 0.0f; }
    DEVICE void scales(float step, float minimum, Weights& out) {
        out.scale[0] = step;
        out.offset[0] = __fmul_rn(-bias(), step), out.offset[1] = minimum;
    }
    DEVICE float dot(const Weights& w, const Activations& a, int, float sum) {
        // Starts from 2^SHIFT times the bias, whose top bits return in the shift.
        constexpr i32 START = static_cast<i32>(BIAS_BITS << SHIFT);
        u32 biased = MINIMUM ? dot_block<dot4_unsigned>(w, a, START) : dot_block<dot4>(w, a, START);
        if constexpr (SHIFT > 0) biased = __funnelshift_r(biased, BIAS_BITS >> (32 - SHIFT), SHIFT);
        float part = __fmaf_rn(__uint_as_float(biased), w.scale[0], w.offset[0]);
        if constexpr (MINIMUM) part = __fmaf_rn(w.offset[1], a.sums[0], part);
        return __fmaf_rn(part, a.scale, sum);
    }
    DEVICE float value(const Weights& w, int, int i) {
        u32 byte = w.w[i / 4] >> (8 * (i % 4));
        if constexpr (!MINIMUM) return __fmul_rn(w.scale[0], static_cast<float>(static_cast<i8>(byte) >> SHIFT));
        return __fadd_rn(__fmul_rn(w.scale[0], static_cast<float>((byte & 255) >> SHIFT)), w.offset[1]);
    }
};

// 32 signed bytes and an f16 step.
struct Q8_0 : Leaf<0, 0> {
    enum : int { HEAD = 1, QUANTS = 16, TAIL = 0 };
    struct Raw {
        uint4 low, high;
        u32 step;
    };
    DEVICE Raw load(const Superblock& s, u32 chunk) {
        const u8* quants = s.piece(2 * chunk);
        return {fetch_piece(quants, 1), fetch_piece(quants, 2), fetch<u16>(s.pieces + static_cast<u64>(2 * chunk))};
    }
    DEVICE Weights unpack(const Head&, const Raw& raw, u32, int) {
        Weights out = {{raw.low.x, raw.low.y, raw.low.z, raw.low.w, raw.high.x, raw.high.y, raw.high.z, raw.high.w}};
        scales(half_to_float(raw.step), 0.0f, out);
        return out;
    }
};

// 6 bits as the signed byte 4 (q - 32): 64 weights in the pieces A, B, C. The upper six bits of
// their bytes are the first 48 weights; their combined lower two bits are the last 16.
struct Q6_K {
    enum : int { HEAD = 1, QUANTS = 12, TAIL = 2, CHUNK = 64, WHOLE = 1 };
    enum : int { SPAN = 256, LEAF = 0, SUMS = 0, ALTERNATES = 0, CONVERTS = 0 };
    struct Head {
        float step;
        i32 scales;
    };
    struct Raw {
        uint4 a, b, c;
        u32 scales;
    };
    DEVICE Head head(const Superblock& s) {
        uint4 scales = fetch_piece(s.pieces, 0);
        i32 sum = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) sum = dot4(word(scales, i), 0x01010101u, sum);
        return {half_to_float(fetch<u16>(s.tail)), sum};
    }
    DEVICE float begin(const Head& head) {
        return __fmul_rn(__fmul_rn(-bias(), head.step), static_cast<float>(head.scales));
    }
    DEVICE Raw load(const Superblock& s, u32 chunk) {
        const u8* quants = s.piece(3 * chunk);
        return {fetch_piece(quants, 1), fetch_piece(quants, 2), fetch_piece(quants, 3),
                fetch<u32>(s.pieces + static_cast<u64>(4 * chunk))};
    }
    // Scale of 16 weights.
    DEVICE float scale(const Head& head, u32 scales, int i) { return times_signed(scales, i, head.step); }
    DEVICE Weights unpack(const Head& head, const Raw& raw, u32, int b) {
        Weights out;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 a = word(raw.a, i), second = word(raw.b, i), c = word(raw.c, i);
            out.w[i] = (b == 0 ? a : c) & 0xfcfcfcfcu;
            u32 fourth = (a << 6) & 0xc0c0c0c0u;
            fourth = ((second << 4) & 0x30303030u) | fourth;
            fourth = ((c << 2) & 0x0c0c0c0cu) | fourth;
            out.w[i + 4] = b == 0 ? second & 0xfcfcfcfcu : fourth;
        }
        out.scale[0] = scale(head, raw.scales, 2 * b);
        out.scale[1] = scale(head, raw.scales, 2 * b + 1);
        return out;
    }
    DEVICE float dot(const Weights& w, const Activations& a, int, float sum) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            // A byte is four times the weight: starts from four times the bias, whose top bits
            // return in the shift.
            i32 products = static_cast<i32>(BIAS_BITS << 2);
#pragma unroll
            for (int i = 0; i < 4; i++) products = dot4(w.w[4 * h + i], word(a, 4 * h + i), products);
            u32 biased = __funnelshift_r(static_cast<u32>(products), BIAS_BITS >> 30, 2);
            sum = __fmaf_rn(__uint_as_float(biased), w.scale[h], sum);
        }
        return sum;
    }
    DEVICE float value(const Weights& w, int, int i) {
        float four = static_cast<float>(static_cast<i8>(w.w[i / 4] >> (8 * (i % 4))));
        return __fmul_rn(w.scale[i / 16], __fmul_rn(four, 0.25f));
    }
};

// Common part of Q4_K and Q5_K: a chunk is two blocks; a byte of each word below is a block's scale
// or minimum.
struct WithMinimum {
    enum : int { CHUNK = 64, WHOLE = 1, SPAN = 256, LEAF = 0, SUMS = 1, ALTERNATES = 32, CONVERTS = 0 };
    struct Head {
        u32 scales[2], minima[2];
        float step, minus_least;
    };
    DEVICE Head head(const Superblock& s) {
        uint4 v = fetch_piece(s.pieces, 0);
        return {{v.y & 0x3f3f3f3fu, (v.w & 0x0f0f0f0fu) | ((v.y >> 2) & 0x30303030u)},
                {v.z & 0x3f3f3f3fu, ((v.w >> 4) & 0x0f0f0f0fu) | ((v.z >> 2) & 0x30303030u)},
                half_to_float(v.x & 0xffff),
                -half_to_float(v.x >> 16)};
    }
    DEVICE float begin(const Head& head) {
        i32 even = dot4_unsigned(head.scales[0], 0x01010101u, 0);
        i32 difference = dot4_unsigned(head.scales[1], 0xffffffffu, even);
        return __fmul_rn(__fmul_rn(-bias(), head.step), static_cast<float>(difference));
    }
    // Byte `i` times a factor, exact.
    DEVICE float times(u32 bytes, u32 i, float factor) {
        return __fmaf_rn(byte_above_2_23(bytes, i), factor, __fmul_rn(-8388608.0f, factor));
    }
    DEVICE void scales(const Head& head, u32 chunk, int b, Weights& out) {
        out.scale[0] = out.scale[1] = times(head.scales[b], chunk, head.step);
        out.offset[0] = times(head.minima[b], chunk, head.minus_least);
    }
    DEVICE float add(i32 biased, const Weights& w, const Activations& a, float sum) {
        sum = __fmaf_rn(__int_as_float(biased), w.scale[0], sum);
        return __fmaf_rn(w.offset[0], a.sums[0], sum);
    }
    DEVICE float value_of(const Weights& w, u32 q) {
        return __fadd_rn(__fmul_rn(w.scale[0], static_cast<float>(q)), w.offset[0]);
    }
};

// Head, then nibbles: the low ones are the even block, the high ones the odd block.
struct Q4_K : WithMinimum {
    enum : int { HEAD = 1, QUANTS = 8, TAIL = 0 };
    struct Raw {
        uint4 low, high;
    };
    DEVICE Raw load(const Superblock& s, u32 chunk) {
        const u8* quants = s.piece(2 * chunk);
        return {fetch_piece(quants, 1), fetch_piece(quants, 2)};
    }
    DEVICE Weights unpack(const Head& head, const Raw& raw, u32 chunk, int b) {
        Weights out;
        scales(head, chunk, b, out);
        // A high nibble is not shifted: its byte is 16 q.
#pragma unroll
        for (int i = 0; i < 8; i++) {
            u32 v = i < 4 ? word(raw.low, i) : word(raw.high, i - 4);
            out.w[i] = v & (b == 0 ? 0x0f0f0f0fu : 0xf0f0f0f0u);
        }
        return out;
    }
    DEVICE float dot(const Weights& w, const Activations& a, int b, float sum) {
        i32 biased = b == 0 ? dot_block<dot4_unsigned>(w, a, BIAS_BITS)
                            : (dot_block<dot4_unsigned>(w, a, 0) >> 4) + static_cast<i32>(MINUS_BIAS_BITS);
        return add(biased, w, a, sum);
    }
    DEVICE float value(const Weights& w, int b, int i) {
        return value_of(w, (w.w[i / 4] >> (8 * (i % 4) + 4 * b)) & 15);
    }
};

// Head, fifth bits, nibbles. Bit 8 j + i of a block's fifth bits belongs to byte j of its word i.
struct Q5_K : WithMinimum {
    enum : int { HEAD = 3, QUANTS = 8, TAIL = 0 };
    struct Raw {
        uint4 low, high;
        uint2 fifths;
    };
    DEVICE Raw load(const Superblock& s, u32 chunk) {
        const u8* quants = s.piece(2 * chunk);
        return {fetch_piece(quants, 3), fetch_piece(quants, 4),
                fetch<uint2>(s.piece(chunk / 2) + PIECE_STRIDE + static_cast<u64>(chunk % 2 * 8))};
    }
    DEVICE Weights unpack(const Head& head, const Raw& raw, u32 chunk, int b) {
        Weights out;
        scales(head, chunk, b, out);
        u32 fifths = b == 0 ? raw.fifths.x : raw.fifths.y;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            u32 nibbles = i < 4 ? word(raw.low, i) : word(raw.high, i - 4);
            u32 fifth = i < 4 ? fifths << (4 - i) : fifths >> (i - 4);
            out.w[i] = ((nibbles >> (4 * b)) & 0x0f0f0f0fu) | (fifth & 0x10101010u);
        }
        return out;
    }
    DEVICE float dot(const Weights& w, const Activations& a, int b, float sum) {
        return add(dot_block<dot4_unsigned>(w, a, b == 0 ? BIAS_BITS : MINUS_BIAS_BITS), w, a, sum);
    }
    DEVICE float value(const Weights& w, int, int i) { return value_of(w, (w.w[i / 4] >> (8 * (i % 4))) & 255); }
};

// Unquantised values of BYTES bytes, zero-padded to whole blocks. Activations stay f32.
template <int BYTES>
struct Numbers {
    enum : int { PIECES = 2 * BYTES, HEAD = 0, QUANTS = 8 * PIECES, TAIL = 0, CHUNK = 32, WHOLE = 0 };
    enum : int { SPAN = 0, LEAF = 1, SUMS = 0, ALTERNATES = 0, CONVERTS = 0 };
    struct Raw {
        uint4 pieces[PIECES];
    };
    DEVICE Raw load(const Superblock& s, u32 chunk) {
        const u8* quants = s.piece(PIECES * chunk);
        Raw raw;
#pragma unroll
        for (int i = 0; i < PIECES; i++) raw.pieces[i] = fetch_piece(quants, i);
        return raw;
    }
    // Word that contains value `i`.
    DEVICE u32 of(const Raw& raw, int i) { return word(raw.pieces[i * BYTES / 16], i * BYTES / 4 % 4); }
};

struct F16 : Numbers<2> {
    DEVICE float value(const Raw& raw, int i) { return half_to_float(of(raw, i) >> (16 * (i % 2))); }
};

// bfloat16: the upper half of single precision.
struct BF16 : Numbers<2> {
    DEVICE float value(const Raw& raw, int i) {
        return __uint_as_float(i % 2 == 0 ? of(raw, i) << 16 : of(raw, i) & 0xffff0000u);
    }
};

struct F32 : Numbers<4> {
    DEVICE float value(const Raw& raw, int i) { return __uint_as_float(of(raw, i)); }
};
