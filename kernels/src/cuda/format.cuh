// Weight formats: how a lane reads a chunk of a row, and what its bytes stand for.
//
// A format gives
//   CHUNK     columns that a lane takes at a time; BLOCKS of 32 columns in it, PIECES of 16 bytes of
//             activations
//   SUMS      whether a block needs the sum of its activations
//   PLAIN     whether activations stay f32
//   Matrix    where the planes of a matrix of n rows and k columns begin (kernels/README.md has the
//             layouts; `orind_kernels::repack` makes them)
//   load      the bytes of a chunk, each read once, in loads of VECTOR bytes
//   unpack    32 weights as 8 words of bytes, with what a byte is worth
//   dot       those weights times 32 activations, with CHAINS integer sums for each run of a scale
//   scale_of, value   the same weights as numbers, bit for bit as ggml's reference decodes them
#pragma once
#include "base.cuh"

// 32 weights. `scale` and `minimum` are per block, `sub` per half block (Q6_K only).
struct Weights {
    u32 w[8];
    float scale;
    float minimum;
    i32 sub[2];
};

// 32 activations: `scale * q`, and `scale` times the sum of `q`.
struct Activations {
    uint4 low;
    uint4 high;
    float scale;
    float sum;
};

DEVICE u32 word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

DEVICE u32 word(const Activations& a, int i) { return i < 4 ? word(a.low, i) : word(a.high, i - 4); }

template <class T>
DEVICE T fetch(const void* address) {
    return __ldg(reinterpret_cast<const T*>(address));
}

// 16 bytes, in loads of VECTOR.
template <int VECTOR>
DEVICE uint4 fetch_piece(const void* address) {
    const u8* bytes = reinterpret_cast<const u8*>(address);
    if constexpr (VECTOR == 16) {
        return fetch<uint4>(bytes);
    } else if constexpr (VECTOR == 8) {
        uint2 low = fetch<uint2>(bytes), high = fetch<uint2>(bytes + 8);
        return {low.x, low.y, high.x, high.y};
    } else {
        return {fetch<u32>(bytes), fetch<u32>(bytes + 4), fetch<u32>(bytes + 8), fetch<u32>(bytes + 12)};
    }
}

template <int CHAINS>
DEVICE i32 total(const i32 (&sums)[CHAINS]) {
    i32 sum = sums[0];
#pragma unroll
    for (int c = 1; c < CHAINS; c++) sum += sums[c];
    return sum;
}

// 32 weights times activations, four at a time, in CHAINS sums.
template <int CHAINS, i32 (*DOT)(u32, u32, i32)>
DEVICE i32 dot_block(const Weights& w, const Activations& a) {
    i32 sums[CHAINS] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) sums[i % CHAINS] = DOT(w.w[i], word(a, i), sums[i % CHAINS]);
    return total(sums);
}

// 32 signed bytes and an f16 step: quants [n][k], then steps [n][k / 32].
struct Q8_0 {
    enum : int { CHUNK = 32, BLOCKS = 1, PIECES = 2, SUMS = 0, PLAIN = 0 };
    struct Matrix {
        const u8* quants;
        const u16* steps;
        u32 quant_stride, step_stride;
        DEVICE Matrix make(u64 base, u32 n, u32 k) {
            const u8* quants = at<const u8>(base);
            return {quants, reinterpret_cast<const u16*>(quants + static_cast<u64>(n) * k), k, k / 32};
        }
    };
    struct Raw {
        uint4 low, high;
        u32 step;
    };
    template <int VECTOR = 16>
    DEVICE Raw load(const Matrix& m, u32 row, u32 chunk) {
        const u8* quants = row_of(m.quants + chunk * 32, row, m.quant_stride);
        return {fetch_piece<VECTOR>(quants), fetch_piece<VECTOR>(quants + 16),
                fetch<u16>(row_of(m.steps + chunk, row, m.step_stride))};
    }
    DEVICE Weights unpack(const Raw& raw, int, u32) {
        return {{raw.low.x, raw.low.y, raw.low.z, raw.low.w, raw.high.x, raw.high.y, raw.high.z, raw.high.w},
                half_to_float(raw.step), 0.0f, {0, 0}};
    }
    template <int CHAINS>
    DEVICE float dot(const Weights& w, const Activations& a, float sum) {
        i32 products = dot_block<CHAINS, dot4>(w, a);
        return __fmaf_rn(__fmul_rn(w.scale, a.scale), __int2float_rn(products), sum);
    }
    DEVICE float value(const Weights& w, int i) {
        return __fmul_rn(w.scale, static_cast<float>(static_cast<i8>(w.w[i / 4] >> (8 * (i % 4)))));
    }
};

// 6 bits in 4 (q - 32), which fits a signed byte: 64 weights in 48 bytes A[4] B[4] C[4]. The upper
// six bits of each byte of A, B, C are weights; their lower two are the fourth of every four words.
// quants [n][k / 64][48], scales [n][k / 16], steps [n][k / 256].
struct Q6_K {
    enum : int { CHUNK = 64, BLOCKS = 2, PIECES = 4, SUMS = 0, PLAIN = 0 };
    struct Matrix {
        const u8* quants;
        const u8* scales;
        const u16* steps;
        u32 quant_stride, scale_stride, step_stride;
        DEVICE Matrix make(u64 base, u32 n, u32 k) {
            const u8* quants = at<const u8>(base);
            const u8* scales = quants + static_cast<u64>(n) * (k / 4 * 3);
            const u8* steps = scales + static_cast<u64>(n) * (k / 16);
            return {quants, scales, reinterpret_cast<const u16*>(steps), k / 4 * 3, k / 16, k / 256};
        }
    };
    struct Raw {
        uint4 a, b, c;
        u32 scales, step;
    };
    template <int VECTOR = 16>
    DEVICE Raw load(const Matrix& m, u32 row, u32 chunk) {
        const u8* quants = row_of(m.quants + chunk * 48, row, m.quant_stride);
        return {fetch_piece<VECTOR>(quants), fetch_piece<VECTOR>(quants + 16), fetch_piece<VECTOR>(quants + 32),
                fetch<u32>(row_of(m.scales + chunk * 4, row, m.scale_stride)),
                fetch<u16>(row_of(m.steps + chunk / 4, row, m.step_stride))};
    }
    DEVICE Weights unpack(const Raw& raw, int block, u32) {
        Weights out;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            u32 a = word(raw.a, 2 * block + h), b = word(raw.b, 2 * block + h), c = word(raw.c, 2 * block + h);
            out.w[4 * h] = a & 0xfcfcfcfcu;
            out.w[4 * h + 1] = b & 0xfcfcfcfcu;
            out.w[4 * h + 2] = c & 0xfcfcfcfcu;
            u32 fourth = (a << 6) & 0xc0c0c0c0u;
            fourth = ((b << 4) & 0x30303030u) | fourth;
            out.w[4 * h + 3] = ((c << 2) & 0x0c0c0c0cu) | fourth;
            out.sub[h] = static_cast<i8>(raw.scales >> (8 * (2 * block + h)));
        }
        // A byte is 4 (q - 32).
        out.scale = __fmul_rn(half_to_float(raw.step), 0.25f);
        out.minimum = 0.0f;
        return out;
    }
    template <int CHAINS>
    DEVICE float dot(const Weights& w, const Activations& a, float sum) {
        i32 first[CHAINS] = {}, second[CHAINS] = {};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            first[i % CHAINS] = dot4(w.w[i], word(a, i), first[i % CHAINS]);
            second[i % CHAINS] = dot4(w.w[i + 4], word(a, i + 4), second[i % CHAINS]);
        }
        i32 products = total(first) * w.sub[0] + total(second) * w.sub[1];
        return __fmaf_rn(__fmul_rn(w.scale, a.scale), __int2float_rn(products), sum);
    }
    DEVICE float value(const Weights& w, int i) {
        float q = static_cast<float>(static_cast<i8>(w.w[i / 4] >> (8 * (i % 4))));
        return __fmul_rn(__fmul_rn(w.scale, static_cast<float>(w.sub[i / 16])), q);
    }
};

// The 6-bit scales and minima of two neighbouring sub-blocks, a byte each, out of a K block's 12 bytes
// (words y, z, w of its head): ggml's packing, see `scale_and_min` in the engine's `quant`.
struct ScalePair {
    u32 scales, minima;
    DEVICE ScalePair make(const uint4& head, u32 pair) {
        u32 shift = 16 * (pair & 1);
        u32 low = head.y >> shift, mid = head.z >> shift, high = head.w >> shift;
        if (pair < 2) return {low & 0x3f3f, mid & 0x3f3f};
        return {(high & 0x0f0f) | ((low >> 2) & 0x3030), ((high >> 4) & 0x0f0f) | ((mid >> 2) & 0x3030)};
    }
};

// What Q4_K and Q5_K share: bytes are unsigned, a block has a scale and a minimum.
struct WithMinimum {
    DEVICE void scales(const uint4& head, u32 chunk, int block, Weights& out) {
        ScalePair pair = ScalePair::make(head, chunk & 3);
        out.scale = __fmul_rn(half_to_float(head.x & 0xffff), byte_to_float(pair.scales, block));
        out.minimum = __fmul_rn(half_to_float(head.x >> 16), byte_to_float(pair.minima, block));
    }
    // A byte in the lowest bits of 2^23, less 2^23: conversions of bytes are slow.
    DEVICE float byte_to_float(u32 bytes, int i) {
        return __fsub_rn(__uint_as_float(__byte_perm(bytes, 0x4b000000u, 0x7440 | i)), 8388608.0f);
    }
    template <int CHAINS>
    DEVICE float dot(const Weights& w, const Activations& a, float sum) {
        i32 products = dot_block<CHAINS, dot4_unsigned>(w, a);
        sum = __fmaf_rn(__fmul_rn(w.scale, a.scale), __int2float_rn(products), sum);
        return __fmaf_rn(-w.minimum, a.sum, sum);
    }
    DEVICE float value(const Weights& w, int i) {
        float q = static_cast<float>((w.w[i / 4] >> (8 * (i % 4))) & 255);
        return __fsub_rn(__fmul_rn(w.scale, q), w.minimum);
    }
};

// GGUF's own blocks of 144 bytes: head [16], nibbles [128].
struct Q4_K : WithMinimum {
    enum : int { CHUNK = 64, BLOCKS = 2, PIECES = 4, SUMS = 1, PLAIN = 0 };
    struct Matrix {
        const u8* blocks;
        u32 stride;
        DEVICE Matrix make(u64 base, u32, u32 k) { return {at<const u8>(base), k / 256 * 144}; }
    };
    struct Raw {
        uint4 head, low, high;
    };
    template <int VECTOR = 16>
    DEVICE Raw load(const Matrix& m, u32 row, u32 chunk) {
        const u8* block = row_of(m.blocks + chunk / 4 * 144, row, m.stride);
        const u8* nibbles = block + 16 + (chunk & 3) * 32;
        return {fetch_piece<VECTOR>(block), fetch_piece<VECTOR>(nibbles), fetch_piece<VECTOR>(nibbles + 16)};
    }
    DEVICE Weights unpack(const Raw& raw, int block, u32 chunk) {
        Weights out;
        scales(raw.head, chunk, block, out);
        // The upper nibble is left where it is: a byte is 16 q.
        if (block == 1) out.scale = __fmul_rn(out.scale, 0.0625f);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            u32 v = i < 4 ? word(raw.low, i) : word(raw.high, i - 4);
            out.w[i] = v & (block == 0 ? 0x0f0f0f0fu : 0xf0f0f0f0u);
        }
        return out;
    }
};

// GGUF's own blocks of 176 bytes: head [16], fifth bits [32], nibbles [128].
struct Q5_K : WithMinimum {
    enum : int { CHUNK = 64, BLOCKS = 2, PIECES = 4, SUMS = 1, PLAIN = 0 };
    struct Matrix {
        const u8* blocks;
        u32 stride;
        DEVICE Matrix make(u64 base, u32, u32 k) { return {at<const u8>(base), k / 256 * 176}; }
    };
    struct Raw {
        uint4 head, fifth_low, fifth_high, low, high;
    };
    template <int VECTOR = 16>
    DEVICE Raw load(const Matrix& m, u32 row, u32 chunk) {
        const u8* block = row_of(m.blocks + chunk / 4 * 176, row, m.stride);
        const u8* nibbles = block + 48 + (chunk & 3) * 32;
        return {fetch_piece<VECTOR>(block), fetch_piece<VECTOR>(block + 16), fetch_piece<VECTOR>(block + 32),
                fetch_piece<VECTOR>(nibbles), fetch_piece<VECTOR>(nibbles + 16)};
    }
    DEVICE Weights unpack(const Raw& raw, int block, u32 chunk) {
        Weights out;
        scales(raw.head, chunk, block, out);
        // The sub-block's bit of each byte to bit 4.
        u32 rotation = (2 * (chunk & 3) + block - 4) & 31;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            u32 nibbles = i < 4 ? word(raw.low, i) : word(raw.high, i - 4);
            u32 fifths = i < 4 ? word(raw.fifth_low, i) : word(raw.fifth_high, i - 4);
            fifths = __funnelshift_r(fifths, fifths, rotation);
            out.w[i] = ((nibbles >> (4 * block)) & 0x0f0f0f0fu) | (fifths & 0x10101010u);
        }
        return out;
    }
};

// Halves, rows padded with zeroes to 8 columns: [n][round_up(k, 8)]. Activations stay f32.
struct F16 {
    enum : int { CHUNK = 8, PIECES = 2, PLAIN = 1 };
    struct Matrix {
        const u16* values;
        u32 stride;
        DEVICE Matrix make(u64 base, u32, u32 k) { return {at<const u16>(base), round_up(k, 8u)}; }
    };
    struct Raw {
        uint4 values;
    };
    template <int VECTOR = 16>
    DEVICE Raw load(const Matrix& m, u32 row, u32 chunk) {
        return {fetch_piece<VECTOR>(row_of(m.values + chunk * 8, row, m.stride))};
    }
    DEVICE float value(const Raw& raw, int i) {
        return half_to_float(word(raw.values, i / 2) >> (16 * (i % 2)));
    }
};

