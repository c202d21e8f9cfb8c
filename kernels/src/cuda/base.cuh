// Basics of every kernel: integer types, loads, conversions, reductions over lanes.
//
// No header of the CUDA toolkit is included, so NVRTC alone compiles the kernels. Arithmetic that
// decides a result uses rounding intrinsics: the compiler can neither fuse nor split them, and
// every instance of a template gives the same bits.
#pragma once

#include "params.cuh"

typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;

#define DEVICE static __device__ __forceinline__

// Enumerators, not constants: NVRTC would store constants in global memory.
enum : u32 { ALL_LANES = 0xffffffffu, INFINITY_BITS = 0x7f800000u };

DEVICE float infinity() { return __int_as_float(INFINITY_BITS); }
DEVICE float quiet_nan() { return __int_as_float(0x7fc00000u); }
DEVICE bool is_finite(float x) { return (__float_as_uint(x) & 0x7fffffffu) < INFINITY_BITS; }

// First statement of every kernel. On sm_90 a launch may begin while the previous one still runs
// (programmatic dependent launch). It waits here until the previous launch is complete and its
// writes are visible, and allows the next launch to begin. As every kernel waits, results equal
// those of serial launches.
DEVICE void after_previous_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Pointer from a parameter block.
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

// Rounds to nearest, ties to even; overflow gives infinity.
DEVICE u32 float_to_half(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// Dot product of four signed bytes, plus `sum`.
DEVICE i32 dot4(u32 weights, u32 activations, i32 sum) {
    return __dp4a(static_cast<i32>(weights), static_cast<i32>(activations), sum);
}

// Dot product of four unsigned and signed bytes, plus `sum`.
DEVICE i32 dot4_unsigned(u32 weights, u32 activations, i32 sum) {
    i32 result;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(weights), "r"(activations), "r"(sum));
    return result;
}

// e^x / 2^power; 0 for x 87.33 or more below `max`, which is about power * ln 2. Within 2 ulp:
// range reduction by ln 2 in two parts, then a polynomial; `power` affects the last, exact step
// only. NaN stays NaN.
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

// e^x for x up to 88; `exponential` takes any x and gives infinity above 88.
DEVICE float exp_to_88(float x) { return exp_over_power(x, 0.0f, 0); }

DEVICE float exponential(float x) { return x > 88.0f ? infinity() : exp_to_88(x); }

// 1 / sqrt(squares / n + eps), each step rounded correctly.
DEVICE float root_mean_inverse(float squares, u32 n, float eps) {
    float mean = __fdiv_rn(squares, static_cast<float>(n));
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}

DEVICE float sigmoid(float x) { return __fdiv_rn(1.0f, __fadd_rn(1.0f, exponential(-x))); }

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

// Butterfly sum over the lanes of a warp: the same bits in every lane.
DEVICE float warp_sum(float value) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) value = __fadd_rn(value, __shfl_xor_sync(ALL_LANES, value, d));
    return value;
}

// Sum of squares of one head, in every lane of a warp, in the order of a norm's 256 strides: trees
// of 32 neighbours, one after the other.
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

// Sums `VALUES` values over groups of `LANES` lanes and leaves each total in some of the lanes: at
// every distance a lane keeps half of its values and sends the other half. The order of a value's
// additions does not depend on `VALUES`.
//
// Returns the index of the lane's first total; `v[0..VALUES / LANES]` (at least one) are its
// totals. `writer` is true in one of the lanes that have them.
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

// True in the last of `blocks` blocks to call this; it then sees what the others wrote before. The
// counter is 0 before the first call and after the last.
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

// Prefetches the first bytes that the next launch reads into the L2, at the end of a launch, when
// memory is idle. Changes no result.
DEVICE void prefetch_next_launch(u64 next, u32 bytes) {
    enum : u32 { LINE = 128 };
    u32 block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    u32 threads = gridDim.x * gridDim.y * gridDim.z * blockDim.x;
#pragma unroll 1
    for (u32 to = (block * blockDim.x + threadIdx.x) * LINE; to < bytes; to += threads * LINE)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(next + to));
}
