// The vocabulary of every kernel: integer names, loads, conversions, reductions over lanes.
//
// No header of the CUDA toolkit is included, so that NVRTC alone compiles the kernels. Arithmetic
// that decides a result is spelled with the rounding intrinsics: the compiler may then neither fuse
// nor split it, and every instance of a template gives the same bits.
#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE static __device__ __forceinline__

// Enumerators, not constants: NVRTC would give each of those a place in global memory.
enum : u32 { ALL_LANES = 0xffffffffu, INFINITY_BITS = 0x7f800000u };

DEVICE float infinity() { return __int_as_float(INFINITY_BITS); }
DEVICE float quiet_nan() { return __int_as_float(0x7fc00000u); }
DEVICE bool is_finite(float x) { return (__float_as_uint(x) & 0x7fffffffu) < INFINITY_BITS; }

// The first thing in every kernel. On sm_90 a launch may begin while the one before it still runs (programmatic
// dependent launch): it waits here until that one is done and what it wrote is seen, and lets the next one come so
// far. Since all kernels do, whatever a launch reads is as if each had run by itself.
DEVICE void after_previous_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// A pointer out of a parameter block.
template <class T>
DEVICE T* at(u64 address) {
    return reinterpret_cast<T*>(address);
}

// `base` plus `row` strides: one 32 x 32 + 64 bit multiply-add.
template <class T>
DEVICE const T* row_of(const T* base, u32 row, u32 stride) {
    return base + static_cast<u64>(row) * stride;
}

template <class T>
DEVICE T round_up(T value, T unit) {
    return (value + unit - 1) / unit * unit;
}

DEVICE float half_to_float(u32 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<u16>(bits)));
    return value;
}

// To nearest, ties to even; beyond the range becomes infinity.
DEVICE u32 float_to_half(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// Four products of signed bytes, added.
DEVICE i32 dot4(u32 weights, u32 activations, i32 sum) {
    return __dp4a(static_cast<i32>(weights), static_cast<i32>(activations), sum);
}

// Four products of an unsigned with a signed byte, added.
DEVICE i32 dot4_unsigned(u32 weights, u32 activations, i32 sum) {
    i32 result;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(weights), "r"(activations), "r"(sum));
    return result;
}

// e^x / 2^power, and 0 for what is 87.33 or more below `max`, which is about power * ln 2. Within 2
// ulp: ln 2 in two parts is taken off, the rest is a polynomial; only the last step, which is exact,
// knows `power`. A NaN stays one.
DEVICE float exp_over_power(float x, float max, i32 power) {
    float least = __fsub_rn(max, 87.5f);
    float c = least > x ? least : x;
    i32 turns = __float2int_rn(__fmul_rn(c, 1.44269504f));
    float n = static_cast<float>(turns);
    float r = __fmaf_rn(n, -355.0f / 512.0f, c);
    r = __fmaf_rn(n, 2.1219444e-4f, r);
    float y = __fmaf_rn(1.0f / 720.0f, r, 1.0f / 120.0f);
    y = __fmaf_rn(y, r, 1.0f / 24.0f);
    y = __fmaf_rn(y, r, 1.0f / 6.0f);
    y = __fmaf_rn(y, r, 0.5f);
    y = __fmaf_rn(y, r, 1.0f);
    y = __fmaf_rn(y, r, 1.0f);
    u32 exponent = static_cast<u32>(turns) + 127 - static_cast<u32>(power);
    return x < __fsub_rn(max, 87.33f) ? 0.0f : __fmul_rn(y, __uint_as_float(exponent << 23));
}

// e^x of what is not above 88, and of anything: infinity above 88.
DEVICE float exp_to_88(float x) { return exp_over_power(x, 0.0f, 0); }

DEVICE float exponential(float x) { return x > 88.0f ? infinity() : exp_to_88(x); }

// 1 / sqrt(squares / n + eps), each step rounded correctly.
DEVICE float root_mean_inverse(float squares, u32 n, float eps) {
    float mean = __fdiv_rn(squares, static_cast<float>(n));
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}

DEVICE float sigmoid(float x) { return __fdiv_rn(1.0f, __fadd_rn(1.0f, exponential(-x))); }

// Numbers of activations in parameter blocks; 0 is none.
enum : u32 { SILU = 1, GELU = 2, CLAMPED = 3 };

// x / (1 + e^-angle)
DEVICE float activated(u32 activation, float x) {
    float angle = x;
    if (activation == GELU) angle = __fmul_rn(__fmaf_rn(__fmul_rn(x, x), 0.071354814f, 1.595769f), x);
    return __fdiv_rn(x, __fadd_rn(1.0f, exponential(-angle)));
}

// activation(gate) * up
DEVICE float glu_product(u32 activation, float gate, float up) {
    if (activation != CLAMPED) return __fmul_rn(activated(activation, gate), up);
    gate = gate < 7.0f ? gate : 7.0f;
    up = up < 7.0f ? up : 7.0f;
    up = up > -7.0f ? up : -7.0f;
    float open = __fdiv_rn(gate, __fadd_rn(1.0f, exponential(__fmul_rn(gate, -1.702f))));
    return __fmul_rn(open, __fadd_rn(up, 1.0f));
}

// cap - 2 cap / (1 + e^(2 x / cap))
DEVICE float soft_capped(float cap, float x) {
    float e = exponential(__fmul_rn(x, __fdiv_rn(2.0f, cap)));
    return __fsub_rn(cap, __fdiv_rn(__fmul_rn(2.0f, cap), __fadd_rn(1.0f, e)));
}

// The sum over the lanes of a warp, in a butterfly: the same bits in every lane.
DEVICE float warp_sum(float value) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) value = __fadd_rn(value, __shfl_xor_sync(ALL_LANES, value, d));
    return value;
}

// The sum of the squares of one head, in every lane of a warp, in the order of a norm's 256 strides: the trees of
// 32 neighbours, one after the other.
DEVICE float squares_of_head(const float* x, u32 dim) {
    u32 lane = threadIdx.x % 32;
    float sum = 0.0f;
#pragma unroll 1
    for (u32 first = 0; first < min(dim, 256u); first += 32) {
        float squares = 0.0f;
#pragma unroll 1
        for (u32 i = first + lane; i < dim; i += 256) squares = __fmaf_rn(x[i], x[i], squares);
        sum = __fadd_rn(sum, warp_sum(squares));
    }
    return sum;
}

// Sums `VALUES` values over groups of `LANES` lanes and leaves each total in some lanes: at every
// distance a lane keeps one half of its values and sends the other. The order of the additions of
// one value does not depend on how many values there are.
//
// Returns the index of the first total this lane holds; `v[0..VALUES / LANES]` (at least one) are
// the totals, and `writer` is true in one of the lanes that hold them.
template <int VALUES, int LANES>
DEVICE int scatter_sum(float (&v)[VALUES], u32 lane, bool& writer) {
    int count = VALUES;
    int first = 0;
    writer = true;
#pragma unroll
    for (int d = LANES / 2; d > 0; d /= 2) {
        bool upper = (lane & d) != 0;
        if (count > 1) {
            count /= 2;
#pragma unroll
            for (int i = 0; i < VALUES / 2; i++) {
                if (i < count) {
                    float send = upper ? v[i] : v[i + count];
                    float keep = upper ? v[i + count] : v[i];
                    v[i] = __fadd_rn(keep, __shfl_xor_sync(ALL_LANES, send, d));
                }
            }
            first += upper ? count : 0;
        } else {
            v[0] = __fadd_rn(v[0], __shfl_xor_sync(ALL_LANES, v[0], d));
            writer = writer && !upper;
        }
    }
    return first;
}

// True in the block that is the last of `blocks` to come here; what the others wrote before is then
// visible to it. The counter is 0 before the first and after the last.
DEVICE bool last_block(u32* counter, u32 blocks) {
    __shared__ u32 arrived;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) arrived = atomicAdd(counter, 1u);
    __syncthreads();
    bool last = arrived + 1 == blocks;
    if (last) {
        __threadfence();
        if (threadIdx.x == 0) *counter = 0;
    }
    return last;
}
