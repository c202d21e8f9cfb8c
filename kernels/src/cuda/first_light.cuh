// Self-test kernels for first light: every kind of instruction, memory and constant that other
// kernels use, on integers, so that each result is exact.
//
// `orind_kernels::first_light` documents parameters, launches and results.
#pragma once
#include "base.cuh"

enum : u32 {
    PROBE_THREADS = 64,
    STACK_WORDS = 16,
    GOLDEN = 0x9e3779b9u,
};

// Dot product of four unsigned bytes, plus `sum`.
DEVICE u32 dot4_both_unsigned(u32 a, u32 b, u32 sum) {
    u32 result;
    asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(sum));
    return result;
}

// Loads a vector by a generic address, from global memory, or by the read-only path.
DEVICE uint4 load_generic(const uint4* from) {
    uint4 v;
    asm volatile("ld.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
}

DEVICE uint4 load_global(const uint4* from) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
}

DEVICE uint4 load_constant(const uint4* from) {
    uint4 v;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

// Weighted sum of a vector; the weight of word `i` is 2 i + 1.
DEVICE u32 weigh(uint4 v, u32 first) {
    u32 weight = 2 * first + 1;
    return v.x * weight + v.y * (weight + 2) + v.z * (weight + 4) + v.w * (weight + 6);
}

// Runs eight kinds of work on a value per thread and writes the result of each: the first wrong
// word identifies the faulty kind.
extern "C" __global__ __launch_bounds__(PROBE_THREADS) void first_light_probe(const __grid_constant__ ProbeParams p) {
    after_previous_launch();
    __shared__ u32 fixed[PROBE_THREADS];
    extern __shared__ u32 dynamic[];

    // Indices, sizes and an indexed parameter from bank 0, literals from bank 2, multiply-add.
    u32 t = threadIdx.y * blockDim.x + threadIdx.x;
    u32 threads = blockDim.x * blockDim.y;
    u32 thread = (blockIdx.y * gridDim.x + blockIdx.x) * threads + t;
    u32 all = gridDim.x * gridDim.y * threads;
    u32* out = at<u32>(p.out) + thread;
    u32 v = (thread + 1) * GOLDEN + p.seed;
    v = v * blockDim.x + blockDim.y;
    v = v * (gridDim.x + 5) + gridDim.y;
    v ^= __umulhi(v, 0x85ebca6bu) + p.table[thread % 4];
    *out = v;
    out += all;

    // Dot products of signed, mixed and unsigned bytes.
    i32 sum = dot4(v, v * 0x01000193u + 7, static_cast<i32>(v));
    sum = dot4_unsigned(v ^ 0x80ff7f01u, static_cast<u32>(sum), sum);
    v = dot4_both_unsigned(static_cast<u32>(sum), v, static_cast<u32>(sum) ^ v);
    *out = v;
    out += all;

    // Shuffles: by distance, by a per-lane index, and votes.
    v += 3 * __shfl_xor_sync(ALL_LANES, v, 5);
    v ^= __shfl_sync(ALL_LANES, v, (v >> 3) & 31);
    v = 7 * v + __shfl_up_sync(ALL_LANES, v, 3);
    v ^= __shfl_down_sync(ALL_LANES, v, 7) >> 1;
    v += __ballot_sync(ALL_LANES, (v & 4) != 0);
    *out = v;
    out += all;

    // Static shared memory and a barrier.
    fixed[t] = v;
    __syncthreads();
    v = 5 * v + fixed[(29 * t + 17) % PROBE_THREADS];
    *out = v;
    out += all;

    // Dynamic shared memory and a barrier.
    dynamic[PROBE_THREADS - 1 - t] = v;
    __syncthreads();
    v = 9 * v + dynamic[(t + 33) % PROBE_THREADS];
    *out = v;
    out += all;

    // The stack, with data-dependent indices.
    u32 stack[STACK_WORDS];
#pragma unroll
    for (u32 i = 0; i < STACK_WORDS; i++) stack[i] = v * (2 * i + 1) ^ i;
#pragma unroll 1
    for (u32 turn = 0; turn < p.turns; turn++) {
        v = 5 * v + stack[(v >> 7) % STACK_WORDS];
        stack[(v >> 11) % STACK_WORDS] ^= v;
    }
    *out = v;
    out += all;

    // Divergent branches.
#pragma unroll 1
    for (u32 turn = 0; turn < p.turns; turn++) {
        switch ((v >> 13) % 8) {
            case 0: v = v * 0x0019660du + 0x3c6ef35fu; break;
            case 1: v = (v << 7 | v >> 25) ^ turn; break;
            case 2: v = __popc(v) * 0x01010101u - v; break;
            case 3: v = __brev(v) + 0x1b873593u; break;
            case 4: v = v / 3 + 0xdeadbeefu; break;
            case 5: v = __umulhi(v, GOLDEN) ^ ~v; break;
            case 6: v = __clz(v) + 33 * v; break;
            default: v = __byte_perm(v, p.seed, 0x2513) + thread; break;
        }
    }
    *out = v;
    out += all;

    // A loop with a different trip count per lane, and 64-bit arithmetic.
    u32 steps = 0;
#pragma unroll 1
    for (u32 x = v % 1009 + 1; x != 1 && steps < 40; steps++) x = x % 2 == 0 ? x / 2 : 3 * x + 1;
    u64 wide = (static_cast<u64>(v) << 32 | p.seed) * 0x9e3779b97f4a7c15ull + steps;
    *out = static_cast<u32>(wide >> 32) + static_cast<u32>(wide);
}

// Computes one word from the previous one. The index selects the block, and so the SM.
extern "C" __global__ __launch_bounds__(32) void first_light_order(const __grid_constant__ OrderParams p) {
    after_previous_launch();
    if (blockIdx.x != p.index % gridDim.x || threadIdx.x != 0) return;
    u32* out = at<u32>(p.out) + p.index;
    *out = 5 * out[-1] + p.index;
}

// Every block writes its part; the last block sums all parts, thread by thread.
extern "C" __global__ __launch_bounds__(ATOMICS_THREADS) void first_light_atomics(
    const __grid_constant__ AtomicsParams p) {
    after_previous_launch();
    u32* parts = at<u32>(p.parts) + threadIdx.x;
    u32 index = blockIdx.x * ATOMICS_THREADS + threadIdx.x;
    parts[blockIdx.x * ATOMICS_THREADS] = (p.round + 1) * GOLDEN + index;
    if (!last_block(at<u32>(p.counter), gridDim.x)) return;
    u32 sum = 0;
#pragma unroll 1
    for (u32 block = 0; block < gridDim.x; block++) sum += parts[block * ATOMICS_THREADS];
    at<u32>(p.marks)[threadIdx.x] = sum;
}

// Every block sums all words with each kind of load; all blocks together write a copy.
extern "C" __global__ __launch_bounds__(HANDOVER_THREADS) void first_light_handover(
    const __grid_constant__ HandoverParams p) {
    after_previous_launch();
    const uint4* words = at<const uint4>(p.words);
    u32 generic = p.key, global = p.key, constant = p.key;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < p.count / 4; i += HANDOVER_THREADS) {
        generic += weigh(load_generic(words + i), 4 * i);
        global += weigh(load_global(words + i), 4 * i);
        constant += weigh(load_constant(words + i), 4 * i);
    }
    u32* sums = at<u32>(p.sums) + blockIdx.x * 3 * HANDOVER_THREADS + threadIdx.x;
    sums[0] = generic;
    sums[HANDOVER_THREADS] = global;
    sums[2 * HANDOVER_THREADS] = constant;

    uint4* copy = at<uint4>(p.copy);
#pragma unroll 1
    for (u32 i = blockIdx.x * HANDOVER_THREADS + threadIdx.x; i < p.count / 4; i += gridDim.x * HANDOVER_THREADS) {
        uint4 v = load_global(words + i);
        copy[i] = {5 * v.x + p.key, 5 * v.y + p.key, 5 * v.z + p.key, 5 * v.w + p.key};
    }
}
