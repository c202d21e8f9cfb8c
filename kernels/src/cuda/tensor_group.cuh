// Fused groups of tensor operations: elementwise steps over a space of elements, optionally
// followed by a reduction and elementwise steps on its results.
//
// A group is interpreted, with four-byte registers in shared memory (one column per thread), or
// compiled (`orind_kernels::generated`). All threads execute the same steps, for one element each.
// Each element is computed by one thread. Sums of rows have the CPU's order: f64, 16 sums over
// every 256 columns, which are added one after the other.
#pragma once
#include "trig.cuh"

enum : u32 { TENSOR_THREADS = 128 };

typedef u32 (&File)[TENSOR_REGISTERS][TENSOR_THREADS];

DEVICE u32 bits(float x) { return __float_as_uint(x); }
DEVICE float number(u32 x) { return __uint_as_float(x); }

// Sign-extends the lowest byte.
DEVICE u32 signed_byte(u32 x) { return static_cast<u32>(static_cast<i32>(x << 24) >> 24); }

// Rounds to nearest, ties to even; a NaN stays NaN.
DEVICE u32 float_to_bf16(float x) {
    u32 u = bits(x);
    if ((u & 0x7fffffffu) > INFINITY_BITS) return (u >> 16) | 0x40u;
    return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}

// Natural logarithm, Cephes' `logf`, without fused multiply-adds, as on the CPU.
DEVICE float natural_logarithm(float x) {
    bool small = x < 1.17549435e-38f;
    i32 scaled = __float_as_int(small ? __fmul_rn(x, 8388608.0f) : x);
    i32 exponent = (scaled - 0x3f3504f3) >> 23;
    float m = __fsub_rn(__int_as_float(scaled - exponent * 0x800000), 1.0f);
    float e = __fsub_rn(static_cast<float>(exponent), small ? 23.0f : 0.0f);
    float z = __fmul_rn(m, m), p = 7.03768363e-2f;
    p = __fadd_rn(__fmul_rn(p, m), -1.15146103e-1f);
    p = __fadd_rn(__fmul_rn(p, m), 1.16769987e-1f);
    p = __fadd_rn(__fmul_rn(p, m), -1.24201408e-1f);
    p = __fadd_rn(__fmul_rn(p, m), 1.42493229e-1f);
    p = __fadd_rn(__fmul_rn(p, m), -1.66680577e-1f);
    p = __fadd_rn(__fmul_rn(p, m), 2.00007148e-1f);
    p = __fadd_rn(__fmul_rn(p, m), -2.4999994e-1f);
    p = __fadd_rn(__fmul_rn(p, m), 3.33333312e-1f);
    float y = __fmul_rn(__fmul_rn(p, m), z);
    y = __fsub_rn(y, __fmul_rn(2.1219444e-4f, e));
    y = __fsub_rn(y, __fmul_rn(0.5f, z));
    y = __fadd_rn(__fadd_rn(m, y), __fmul_rn(0.693359375f, e));
    if (bits(x) == INFINITY_BITS) return x;
    if (x == 0.0f) return -infinity();
    return x > 0.0f ? y : quiet_nan();
}

// Hyperbolic tangent, like Cephes' `tanhf`: a polynomial for small magnitudes, an exponential for
// the others.
DEVICE float hyperbolic_tangent(float x) {
    float size = fabsf(x), z = __fmul_rn(x, x), p = -5.70498872745e-3f;
    p = __fadd_rn(__fmul_rn(p, z), 2.06390887954e-2f);
    p = __fadd_rn(__fmul_rn(p, z), -5.37397155531e-2f);
    p = __fadd_rn(__fmul_rn(p, z), 1.33314422036e-1f);
    p = __fadd_rn(__fmul_rn(p, z), -3.33332819422e-1f);
    if (size < 0.625f) return __fmul_rn(x, __fadd_rn(__fmul_rn(p, z), 1.0f));
    float y = __fsub_rn(1.0f, __fdiv_rn(2.0f, __fadd_rn(exponential(__fmul_rn(size, 2.0f)), 1.0f)));
    return x < 0.0f ? -y : y;
}

// `maximum` of IEEE 754-2019: a NaN wins, and -0 is below +0, as for `fmaxf`.
DEVICE float maximum(float a, float b) {
    float most = fmaxf(a, b);
    return a == a && b == b ? most : quiet_nan();
}

// 32 bits of the fraction of 2 / pi, starting at bit `place`.
DEVICE u32 two_over_pi(u32 place) {
    auto word = [](u32 i) {
        return i == 0 ? 0xa2f9836eu : i == 1 ? 0x4e441529u : i == 2 ? 0xfc2757d1u : i == 3 ? 0xf534ddc0u
             : i == 4 ? 0xdb629599u : i == 5 ? 0x3c439041u : 0xfe5163abu;
    };
    return __funnelshift_l(word(place / 32 + 1), word(place / 32), place % 32);
}

// Sine, or cosine for `quarters` = 1. Angles too large for `sin_cos` are reduced to +-pi/4 with as
// many bits of 2 / pi as matter (Payne and Hanek, 1983).
DEVICE float sine(float x, u32 quarters) {
    float s, c, r = x;
    u32 turned = quarters;
    if (!is_finite(x)) return quiet_nan();
    if (fabsf(x) >= 1e6f) {
        // x = mantissa * 2^(exponent - 150). A turn is 2^64, so whole turns overflow away.
        u64 mantissa = (bits(x) & 0x7fffffu) | 0x800000u;
        u32 exponent = bits(x) >> 23 & 0xff, place = max(exponent, 152u) - 152, less = 152 - min(exponent, 152u);
        u64 low = mantissa * two_over_pi(place + 64), middle = mantissa * two_over_pi(place + 32) + (low >> 32);
        u64 high = mantissa * two_over_pi(place) + (middle >> 32);
        u64 turn = (high << (32 - less)) | ((middle & 0xffffffffu) >> less);
        u32 quarter = static_cast<u32>((turn + (1ull << 61)) >> 62);
        double rest = static_cast<double>(static_cast<long long>(turn << 2)) * (1.5707963267948966 / 18446744073709551616.0);
        r = static_cast<float>(rest);
        if (bits(x) >> 31) quarter = 0u - quarter, r = -r;
        turned += quarter;
    }
    sin_cos(1.0f, r, s, c);
    float value = turned & 1 ? c : s;
    return turned & 2 ? -value : value;
}

// Loads an element. Strides may be negative.
DEVICE u32 element_at(u64 base, u32 width, u32 place) {
    int from = static_cast<int>(place);
    if (width == Width::WORD) return at<const u32>(base)[from];
    if (width >= Width::SIGNED) {
        u32 byte = at<const u8>(base)[from];
        return width == Width::SIGNED ? signed_byte(byte) : byte;
    }
    u32 half = at<const u16>(base)[from];
    return width == Width::HALF ? bits(half_to_float(half)) : half << 16;
}

// Loads an element of a source, `place` elements further and without its first `leading` axes.
DEVICE u32 loaded(const TensorSource& source, u32 element, u32 place = 0, u32 leading = 0) {
    u32 left = element;
    bool outside = false;
#pragma unroll 1
    for (u32 axis = source.axes; axis-- > leading;) {
        u32 extent = source.shape[axis], i = left % extent;
        left /= extent;
        if (axis == source.padded) {
            i -= source.before;
            outside = i >= source.inside;
        }
        place += i * source.strides[axis];
    }
    if (outside) return 0;
    if (source.width == Width::FIXED) return static_cast<u32>(source.base);
    return element_at(source.base, source.width, place);
}

DEVICE void stored(u64 base, u32 width, u32 element, u32 value) {
    if (width == Width::WORD) at<u32>(base)[element] = value;
    else if (width >= Width::SIGNED) at<u8>(base)[element] = static_cast<u8>(value);
    else at<u16>(base)[element] = static_cast<u16>(width == Width::HALF ? float_to_half(number(value)) : float_to_bf16(number(value)));
}

DEVICE u32 of_one(u32 action, u32 x) {
    float v = number(x);
    if (action == Action::NEG) return bits(-v);
    if (action == Action::EXP) return bits(exponential(v));
    if (action == Action::LN) return bits(natural_logarithm(v));
    if (action == Action::SQRT) return bits(__fsqrt_rn(v));
    if (action == Action::RECIP) return bits(__fdiv_rn(1.0f, v));
    if (action == Action::SIN) return bits(sine(v, 0));
    if (action == Action::COS) return bits(sine(v, 1));
    if (action == Action::ROUND) return bits(rintf(v));
    if (action == Action::TANH) return bits(hyperbolic_tangent(v));
    return bits(floorf(v));
}

DEVICE u32 of_two(u32 action, u32 x, u32 y) {
    float a = number(x), b = number(y);
    if (action == Action::ADD) return bits(__fadd_rn(a, b));
    if (action == Action::SUB) return bits(__fsub_rn(a, b));
    if (action == Action::MUL) return bits(__fmul_rn(a, b));
    if (action == Action::DIV) return bits(__fdiv_rn(a, b));
    if (action == Action::MAX) return bits(maximum(a, b));
    if (action == Action::LESS_EQUAL) return bits(a <= b ? 1.0f : 0.0f);
    if (action == Action::LESS) return bits(a < b ? 1.0f : 0.0f);
    if (action == Action::EQUAL) return bits(a == b ? 1.0f : 0.0f);
    return bits(fmodf(a, b));
}

DEVICE u32 of_ints(u32 action, u32 a, u32 b) {
    i32 x = static_cast<i32>(a), y = static_cast<i32>(b);
    if (action == Action::INT_ADD) return a + b;
    if (action == Action::INT_SUB) return a - b;
    if (action == Action::INT_MUL) return a * b;
    if (action == Action::INT_MAX) return static_cast<u32>(max(x, y));
    if (action == Action::INT_LESS_EQUAL) return bits(x <= y ? 1.0f : 0.0f);
    if (action == Action::INT_LESS) return bits(x < y ? 1.0f : 0.0f);
    if (action == Action::INT_EQUAL) return bits(x == y ? 1.0f : 0.0f);
    // Divisors that the hardware's division does not handle: 0, and -1 for the least integer.
    if (action == Action::INT_DIV) return y == 0 ? 0 : y == -1 ? 0u - a : static_cast<u32>(x / y);
    if (action == Action::INT_REM) return y == 0 || y == -1 ? 0 : static_cast<u32>(x % y);
    if (action == Action::AND) return a & b;
    if (action == Action::OR) return a | b;
    if (action == Action::XOR) return a ^ b;
    if (action == Action::SHIFT_LEFT) return a << (b & 31);
    return static_cast<u32>(x >> (b & 31));
}

DEVICE u32 converted(u32 action, u32 x) {
    float v = number(x);
    if (action == Action::TO_INT) return static_cast<u32>(__float2int_rz(v));
    if (action == Action::TO_FLOAT) return bits(__int2float_rn(static_cast<i32>(x)));
    if (action == Action::TO_HALF) return bits(half_to_float(float_to_half(v)));
    if (action == Action::TO_BF16) return float_to_bf16(v) << 16;
    if (action == Action::TO_SIGNED) return signed_byte(x);
    return action == Action::TO_UNSIGNED ? x & 0xff : x != 0;
}

// Executes instructions for an element.
DEVICE void take(const TensorParams& p, u32 first, u32 last, u32 element, File file) {
#pragma unroll 1
    for (u32 s = first; s < last; s++) {
        u32 low = static_cast<u32>(p.steps[s]), third = static_cast<u32>(p.steps[s] >> 32);
        u32 action = low & 0xff, out = low >> 8 & 0xff, a = low >> 16 & 0xff, b = low >> 24;
        u32 value;
        if (action == Action::STORE) {
            stored(p.stores[out], b, element, file[a][threadIdx.x]);
            continue;
        }
        if (action == Action::LOAD) {
            value = loaded(p.sources[a], element);
        } else if (action == Action::IOTA) {
            value = bits(__uint2float_rn(element));
        } else {
            u32 x = file[a][threadIdx.x];
            if (action < Action::ADD) value = of_one(action, x);
            else if (action < Action::INT_ADD) value = of_two(action, x, file[b][threadIdx.x]);
            else if (action < Action::SELECT) value = of_ints(action, x, file[b][threadIdx.x]);
            else if (action > Action::SELECT) value = converted(action, x);
            else value = number(x) == 0.0f ? file[third][threadIdx.x] : file[b][threadIdx.x];
        }
        file[out][threadIdx.x] = value;
    }
}

// Accumulator of a reduction.
struct Reduced {
    double sum;
    float largest;
    u32 ints;

    DEVICE Reduced none(u32 reduce) { return {0.0, -infinity(), reduce == Reduction::INT_LARGEST ? 0x80000000u : 0u}; }
    __device__ __forceinline__ void take(u32 reduce, u32 x) {
        if (reduce == Reduction::SUM) sum = __dadd_rn(sum, static_cast<double>(number(x)));
        else if (reduce == Reduction::LARGEST) largest = maximum(largest, number(x));
        else if (reduce == Reduction::INT_SUM) ints += x;
        else ints = static_cast<u32>(max(static_cast<i32>(ints), static_cast<i32>(x)));
    }
    __device__ __forceinline__ u32 value(u32 reduce) const {
        if (reduce == Reduction::SUM) return bits(__double2float_rn(sum));
        return reduce == Reduction::LARGEST ? bits(largest) : ints;
    }
    // Combines the accumulators of a row's lanes, in lane order.
    __device__ __forceinline__ Reduced gathered(u32 reduce) const {
        Reduced all = none(reduce);
#pragma unroll 1
        for (u32 lane = 0; lane < ROW_LANES; lane++) {
            Reduced other;
            other.sum = __hiloint2double(__shfl_sync(ALL_LANES, __double2hiint(sum), lane, ROW_LANES),
                                         __shfl_sync(ALL_LANES, __double2loint(sum), lane, ROW_LANES));
            other.largest = __shfl_sync(ALL_LANES, largest, lane, ROW_LANES);
            other.ints = __shfl_sync(ALL_LANES, ints, lane, ROW_LANES);
            all.add(reduce, other);
        }
        return all;
    }
    __device__ __forceinline__ void add(u32 reduce, const Reduced& other) {
        if (reduce == Reduction::SUM) sum = __dadd_rn(sum, other.sum);
        else take(reduce, reduce == Reduction::LARGEST ? bits(other.largest) : other.ints);
    }
};

// Registers of an interpreted group.
DEVICE File registers() {
    __shared__ u32 file[TENSOR_REGISTERS][TENSOR_THREADS];
    return file;
}

// An interpreted group.
struct Listed {
    u32 reduce, elements, outer, length, inner;

    // Stores the reduction's result before the remaining steps.
    __device__ __forceinline__ void reduced(const TensorParams& p, u32 value) { registers()[p.into][threadIdx.x] = value; }
    // Executes an element's steps, before or after the reduction.
    __device__ __forceinline__ void steps(const TensorParams& p, bool tail, u32 element) {
        take(p, tail ? p.body : 0, tail ? p.tail : p.body, element, registers());
    }
    // Value to reduce.
    __device__ __forceinline__ u32 value(const TensorParams& p) const { return registers()[p.from][threadIdx.x]; }
};

// Runs a group. `g` is a copy: a reference to parameters or shared memory would be accessed as if
// it were in global memory.
template <class Group>
DEVICE void run(const TensorParams& p, Group g) {
    u32 thread = blockIdx.x * TENSOR_THREADS + threadIdx.x, lane = threadIdx.x % ROW_LANES;
    bool reduces = g.reduce != Reduction::NONE, rows = reduces && g.inner == 1;
    // `index` is the element of the result; `element` the current one of the space, `apart` its
    // distance to the next.
    u32 index = rows ? thread / ROW_LANES : thread, element = index, apart = 0, rounds = 1;
    bool inside = index < (reduces ? g.outer * g.inner : g.elements);
    if (rows) {
        element = index * g.length + lane;
        apart = ROW_LANES;
        rounds = (g.length + ROW_LANES - 1) / ROW_LANES;
    } else if (reduces) {
        element = index / g.inner * g.length * g.inner + index % g.inner;
        apart = g.inner;
        rounds = g.length;
    }
    Reduced total = Reduced::none(g.reduce), part = total;
#pragma unroll 1
    for (u32 round = 0; round <= rounds; round++, element += apart) {
        bool last = round == rounds, takes = inside;
        if (last) {
            if (!reduces) return;
            takes = takes && !(rows && lane > 0);
            element = index;
            g.reduced(p, total.value(g.reduce));
        } else if (rows) {
            takes = takes && round * ROW_LANES + lane < g.length;
        }
        if (takes) g.steps(p, last, element);
        if (!reduces || last) continue;
        if (takes) part.take(g.reduce, g.value(p));
        if (rows && round % (ROW_BLOCK / ROW_LANES) != ROW_BLOCK / ROW_LANES - 1 && round + 1 < rounds) continue;
        __syncwarp();
        if (rows) part = part.gathered(g.reduce);
        // The sum of a column has no parts.
        if (rows) total.add(g.reduce, part), part = Reduced::none(g.reduce);
        else total = part;
    }
}
