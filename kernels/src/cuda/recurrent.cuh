// Recurrent layers with state of fixed size: short convolutions and the gated delta rule.
//
// A slot has two versions of its state. A step reads the version that covers the tokens before its
// first position (zeroes at position 0) and writes the other; the last block of a sequence to
// finish records what they cover. A repeated step therefore starts from the same state.
//
// Rows without a slot, which come last in their sequence, give zeroes.
#pragma once
#include "noise.cuh"

// State of one sequence in a step.
struct Sequence {
    // First row in the step, and number of rows with a slot.
    u32 first, rows;
    const float* from;
    float* to;
    i32* held;
    i32 holds[2];

    // State of sequence `number`; called by all threads of the block.
    DEVICE Sequence find(const Recurrence& m, u32 number) {
        __shared__ u32 rows;
        u32 first = number * m.chunk;
        const i32* slots = at<const i32>(m.slots) + first;
        if (threadIdx.x == 0) rows = m.chunk;
        __syncthreads();
        for (u32 i = threadIdx.x; i < m.chunk; i += blockDim.x)
            if (slots[i] < 0) atomicMin(&rows, i);
        __syncthreads();
        u32 slot = static_cast<u32>(slots[0]);
        if (slot >= m.slot_count) return {first, 0, nullptr, nullptr, nullptr, {0, 0}};
        i32 position = at<const i32>(m.positions)[first], after = position + static_cast<i32>(rows);
        i32* held = at<i32>(m.held) + 2 * slot;
        float* versions = at<float>(m.state) + static_cast<u64>(slot) * 2 * m.size;
        if (position == 0) return {first, rows, nullptr, versions, held, {after, -1}};
        if (held[1] == position) return {first, rows, versions + m.size, versions, held, {after, position}};
        return {first, rows, versions, versions + m.size, held, {held[0], after}};
    }
    // Records what the versions cover when all blocks of the sequence are done.
    __device__ __forceinline__ void note(const Recurrence& m, u32 number, u32 blocks) const {
        bool last = last_block(at<u32>(m.counter) + number, blocks);
        if (last && rows > 0 && threadIdx.x == 0) held[0] = holds[0], held[1] = holds[1];
    }
};

// Causal convolution of a channel, oldest value first. The state is the last taps - 1 values. Grid:
// x = channels, y = rows, z = sequence.
extern "C" __global__ __launch_bounds__(128) void short_conv(const __grid_constant__ ShortConvParams p) {
    after_previous_launch();
    Sequence sequence = Sequence::find(p.memory, blockIdx.z);
    u32 channel = blockIdx.x * blockDim.x + threadIdx.x, begin = blockIdx.y * CONV_ROWS, rows = sequence.rows;
    if (channel < p.channels) {
        const float* x = at<const float>(p.x) + static_cast<u64>(sequence.first) * p.channels + channel;
        float* out = at<float>(p.out) + static_cast<u64>(sequence.first) * p.channels + channel;
        const float* weight = at<const float>(p.weight) + static_cast<u64>(channel) * p.taps;
        u32 before = p.taps - 1;
        // Value of row `r - before`; values before the first row come from the state.
        auto value = [&](u32 r) {
            if (r >= before) return x[static_cast<u64>(r - before) * p.channels];
            return sequence.from ? sequence.from[r * p.channels + channel] : 0.0f;
        };
        // Right-aligned, so that a row's own value has a constant index.
        float weights[MOST_TAPS] = {}, past[MOST_TAPS] = {};
        u32 skipped = MOST_TAPS - p.taps;
#pragma unroll
        for (u32 t = 0; t < MOST_TAPS; t++) {
            if (t < skipped) continue;
            weights[t] = weight[t - skipped];
            if (t + 1 < MOST_TAPS && begin < rows) past[t] = value(begin + t - skipped);
        }
#pragma unroll 4
        for (u32 row = begin; row < min(begin + CONV_ROWS, p.memory.chunk); row++) {
            float sum = 0.0f;
            if (row < rows) {
                past[MOST_TAPS - 1] = x[static_cast<u64>(row) * p.channels];
#pragma unroll
                for (u32 t = 0; t < MOST_TAPS; t++)
                    if (t >= skipped) sum = __fmaf_rn(weights[t], past[t], sum);
#pragma unroll
                for (u32 t = 0; t + 1 < MOST_TAPS; t++) past[t] = past[t + 1];
            }
            out[static_cast<u64>(row) * p.channels] = sum;
        }
        if (rows > 0 && (rows - 1) / CONV_ROWS == blockIdx.y)
            for (u32 t = 0; t < before; t++) sequence.to[t * p.channels + channel] = value(rows + t);
    }
    sequence.note(p.memory, blockIdx.z, gridDim.x * gridDim.y);
}

// Sum of four chains, each in 8 neighbouring lanes: (c0 + c1) + (c2 + c3).
DEVICE float sum_of_chains(float chain) {
    chain = __fadd_rn(chain, __shfl_xor_sync(ALL_LANES, chain, 8));
    return __fadd_rn(chain, __shfl_xor_sync(ALL_LANES, chain, 16));
}

DEVICE u32 address_of(const float* shared) { return static_cast<u32>(__cvta_generic_to_shared(shared)); }

// Loads four values from shared memory exactly here: the compiler would hoist the load and need
// more registers.
DEVICE void here(u32 address, float (&out)[4]) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(out[0]), "=f"(out[1]), "=f"(out[2]), "=f"(out[3])
                 : "r"(address));
}

// Rows that a block prepares at a time.
enum : u32 { DELTA_ROWS = 4 };

// Gated delta rule: one state matrix per head, a row per key value, updated and queried once per
// row.
//
// A block has 32 columns of a head's matrix in registers. A warp has 8 of them; each of four groups
// of 8 lanes has one of the four chains of rows. A warp prepares one of four rows: normalised query
// and key, decay and strength.
//
// Grid: x = columns, y = head, z = sequence.
extern "C" __global__ __launch_bounds__(128, 4) void gated_delta(const __grid_constant__ GatedDeltaParams p) {
    after_previous_launch();
    enum : u32 { OWN = MOST_KEY / 4 };
    struct Shared {
        // Queries and keys, sorted by chain.
        float keyed[DELTA_ROWS][2][4][OWN];
        float values[DELTA_ROWS][DELTA_COLUMNS];
        float decay[DELTA_ROWS], beta[DELTA_ROWS];
    };
    __shared__ __align__(16) Shared shared;
    Sequence sequence = Sequence::find(p.memory, blockIdx.z);
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, chain = lane / 8, head = blockIdx.y;
    u32 own = warp * 8 + lane % 8, column = blockIdx.x * DELTA_COLUMNS + own;
    bool real = column < p.value_size;
    u32 key_head = p.grouped ? head / (p.heads / p.key_heads) : head % p.key_heads;
    u32 keys = p.key_heads * p.key_size, columns = 2 * keys + p.heads * p.value_size;
    // First element of the matrix, and number of elements, of this thread.
    u32 first = (head * p.key_size + chain) * p.value_size + column;
    u32 count = real && chain < p.key_size ? (p.key_size - chain + 3) / 4 : 0;

    float state[OWN];
    const float* from = sequence.from + first;
#pragma unroll
    for (u32 j = 0; j < OWN; j++) {
        state[j] = sequence.from && j < count ? *from : 0.0f;
        from += 4 * p.value_size;
    }
    // Padding of queries and keys to whole chains stays zero.
    for (u32 i = threadIdx.x; i < sizeof(shared.keyed) / 4; i += blockDim.x) (&shared.keyed[0][0][0][0])[i] = 0.0f;

#pragma unroll 1
    for (u32 base = 0; base < p.memory.chunk; base += DELTA_ROWS) {
        __syncthreads();
        u32 row = base + warp;
        if (row < sequence.rows) {
            const float* mixed = at<const float>(p.mixed) + static_cast<u64>(sequence.first + row) * columns;
#pragma unroll 1
            for (u32 part = 0; part < 2; part++) {
                const float* x = mixed + part * keys + key_head * p.key_size;
                float factor = root_mean_inverse(squares_of_head(x, p.key_size), p.key_size, p.eps);
                float scale = part ? p.key_scale : p.query_scale;
                for (u32 i = lane; i < p.key_size; i += 32)
                    shared.keyed[warp][part][i % 4][i / 4] = __fmul_rn(__fmul_rn(x[i], factor), scale);
            }
            u32 value = blockIdx.x * DELTA_COLUMNS + lane;
            shared.values[warp][lane] = value < p.value_size ? mixed[2 * keys + head * p.value_size + value] : 0.0f;
            if (lane == 0) {
                u64 gate = static_cast<u64>(sequence.first + row) * p.heads + head;
                float x = __fadd_rn(at<const float>(p.step)[gate], at<const float>(p.bias)[head]);
                float log = logarithm(__fadd_rn(1.0f, exponential(-fabsf(x))));
                float softplus = __fadd_rn(0.0f > x ? 0.0f : x, log);
                shared.decay[warp] = exponential(__fmul_rn(at<const float>(p.rate)[head], softplus));
                shared.beta[warp] = sigmoid(at<const float>(p.strength)[gate]);
            }
        }
        __syncthreads();
#pragma unroll 1
        for (u32 r = 0; r < DELTA_ROWS && base + r < p.memory.chunk; r++) {
            float result = 0.0f;
            if (base + r < sequence.rows) {
                u32 query = address_of(shared.keyed[r][0][chain]), key = address_of(shared.keyed[r][1][chain]);
                float decay = shared.decay[r], known = 0.0f, k[4], q[4];
#pragma unroll
                for (u32 j = 0; j < OWN; j += 4) {
                    here(key + 4 * j, k);
#pragma unroll
                    for (u32 i = 0; i < 4; i++) known = __fmaf_rn(state[j + i], k[i], known);
                }
                known = __fmul_rn(decay, sum_of_chains(known));
                float add = __fmul_rn(shared.beta[r], __fsub_rn(shared.values[r][own], known));
#pragma unroll
                for (u32 j = 0; j < OWN; j += 4) {
                    here(key + 4 * j, k);
                    here(query + 4 * j, q);
#pragma unroll
                    for (u32 i = 0; i < 4; i++) {
                        state[j + i] = __fmaf_rn(k[i], add, __fmul_rn(decay, state[j + i]));
                        result = __fmaf_rn(state[j + i], q[i], result);
                    }
                }
                result = sum_of_chains(result);
            }
            u64 to = (static_cast<u64>(sequence.first + base + r) * p.heads + head) * p.value_size + column;
            if (chain == 0 && real) at<float>(p.out)[to] = result;
        }
    }
    float* to = sequence.to + first;
#pragma unroll
    for (u32 j = 0; j < OWN; j++) {
        if (sequence.rows > 0 && j < count) *to = state[j];
        to += 4 * p.value_size;
    }
    sequence.note(p.memory, blockIdx.z, gridDim.x * gridDim.y);
}

// Delta rule with a decay for each row of the state, and with separate vectors for reading (take)
// and writing (add) it. All vectors are used unchanged.
//
// Grid: x = columns, y = head, z = sequence.
extern "C" __global__ __launch_bounds__(128, 4) void delta_rule(const __grid_constant__ DeltaRuleParams p) {
    after_previous_launch();
    enum : u32 { OWN = MOST_KEY / 4, QUERY = 0, DECAY, KEY, TAKE, GIVE, VECTORS };
    struct Shared {
        // Vectors, sorted by chain.
        float keyed[DELTA_ROWS][VECTORS][4][OWN];
        float values[DELTA_ROWS][DELTA_COLUMNS];
    };
    __shared__ __align__(16) Shared shared;
    Sequence sequence = Sequence::find(p.memory, blockIdx.z);
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, chain = lane / 8, head = blockIdx.y;
    u32 own = warp * 8 + lane % 8, column = blockIdx.x * DELTA_COLUMNS + own;
    bool real = column < p.value_size;
    // First element of the matrix, and number of elements, of this thread.
    u32 first = (head * p.key_size + chain) * p.value_size + column;
    u32 count = real && chain < p.key_size ? (p.key_size - chain + 3) / 4 : 0;

    float state[OWN];
    const float* from = sequence.from + first;
#pragma unroll
    for (u32 j = 0; j < OWN; j++) {
        state[j] = sequence.from && j < count ? *from : 0.0f;
        from += 4 * p.value_size;
    }
    // Padding of vectors to whole chains stays zero.
    for (u32 i = threadIdx.x; i < sizeof(shared.keyed) / 4; i += blockDim.x) (&shared.keyed[0][0][0][0])[i] = 0.0f;

#pragma unroll 1
    for (u32 base = 0; base < p.memory.chunk; base += DELTA_ROWS) {
        __syncthreads();
        u32 row = base + warp;
        if (row < sequence.rows) {
            u64 at_row = static_cast<u64>(sequence.first + row) * p.heads + head;
            u64 vectors[VECTORS] = {p.query, p.decay, p.key, p.take, p.add};
#pragma unroll
            for (u32 v = 0; v < VECTORS; v++) {
                const float* x = at<const float>(vectors[v]) + at_row * p.key_size;
#pragma unroll 1
                for (u32 i = lane; i < p.key_size; i += 32) shared.keyed[warp][v][i % 4][i / 4] = x[i];
            }
            u32 value = blockIdx.x * DELTA_COLUMNS + lane;
            shared.values[warp][lane] = value < p.value_size ? at<const float>(p.value)[at_row * p.value_size + value] : 0.0f;
        }
        __syncthreads();
#pragma unroll 1
        for (u32 r = 0; r < DELTA_ROWS && base + r < p.memory.chunk; r++) {
            float result = 0.0f;
            if (base + r < sequence.rows) {
                u32 vector[VECTORS];
#pragma unroll
                for (u32 v = 0; v < VECTORS; v++) vector[v] = address_of(shared.keyed[r][v][chain]);
                float taken = 0.0f, value = shared.values[r][own], x[VECTORS][4];
#pragma unroll
                for (u32 j = 0; j < OWN; j += 4) {
                    here(vector[TAKE] + 4 * j, x[TAKE]);
#pragma unroll
                    for (u32 i = 0; i < 4; i++) taken = __fmaf_rn(state[j + i], x[TAKE][i], taken);
                }
                taken = sum_of_chains(taken);
#pragma unroll
                for (u32 j = 0; j < OWN; j += 4) {
#pragma unroll
                    for (u32 v = 0; v < VECTORS; v++)
                        if (v != TAKE) here(vector[v] + 4 * j, x[v]);
#pragma unroll
                    for (u32 i = 0; i < 4; i++) {
                        float added = __fmaf_rn(x[KEY][i], value, __fmul_rn(x[GIVE][i], taken));
                        state[j + i] = __fmaf_rn(x[DECAY][i], state[j + i], added);
                        result = __fmaf_rn(state[j + i], x[QUERY][i], result);
                    }
                }
                result = sum_of_chains(result);
            }
            u64 to = (static_cast<u64>(sequence.first + base + r) * p.heads + head) * p.value_size + column;
            if (chain == 0 && real) at<float>(p.out)[to] = result;
        }
    }
    float* to = sequence.to + first;
#pragma unroll
    for (u32 j = 0; j < OWN; j++) {
        if (sequence.rows > 0 && j < count) *to = state[j];
        to += 4 * p.value_size;
    }
    sequence.note(p.memory, blockIdx.z, gridDim.x * gridDim.y);
}
