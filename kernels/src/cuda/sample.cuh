// Sampler: chooses a token from a row of logits and writes the next step's inputs. Defined by
// `plan::sample`.
//
// Greedy without a temperature; otherwise the largest logit / temperature + noise among the
// candidates of top-k, top-p and min-p. NOT_FINITE for a row with a NaN or plus infinity, or with
// nothing above minus infinity. The search for the largest logit treats NaN as plus infinity, so
// its result shows whether the row is finite.
//
// A row with logit edits uses an edited copy of its logits; each block edits its own part.
//
// Grid: x = part of the row, y = row. Each block finds the best of its part; the last block to
// finish merges them (and applies the cuts), writes the token to `ids`, `next_tokens` and entry
// `cursor % ring_entries` of the ring, the next position to `next_positions`, and, in the last row,
// advances the cursor.
#pragma once
#include "cut.cuh"

enum : u32 { SAMPLE_THREADS = 256, NOT_FINITE = 0xffffffffu };

// Best token of a part without and with noise.
struct Winners {
    Best greedy, noisy;
};

// Edit of one token's logit.
struct alignas(16) Edit {
    u32 id;
    float add, factor, subtract;

    __device__ __forceinline__ float of(float v) const {
        v = __fadd_rn(v, add);
        v = v > 0.0f ? __fdiv_rn(v, factor) : __fmul_rn(v, factor);
        return __fsub_rn(v, subtract);
    }
};

// Logit edits of a row: number of edits, whether there is a mask, the mask, the edits. Each edit
// has a distinct id.
struct Adjustment {
    const u32* words;
    u32 length, vocabulary;

    __device__ __forceinline__ u32 edits_at() const { return 4 + 4 * ((vocabulary + 127) / 128); }
    __device__ __forceinline__ u32 edits() const { return min(words[0], (length - edits_at()) / 4); }
    __device__ __forceinline__ bool masked() const { return words[1] != 0; }
    __device__ __forceinline__ bool allows(u32 id) const {
        return !masked() || (words[4 + id / 32] >> id % 32 & 1u);
    }
    // Copies and edits the logits from `start` to `end`, by all threads of the block. Values that
    // are not finite stay so.
    __device__ __forceinline__ void copy(const float* from, float* to, u32 start, u32 end, u32 threads) const {
        for (u32 i = start + threadIdx.x; i < end; i += threads) {
            float v = from[i];
            to[i] = allows(i) || !(v < infinity()) ? v : -infinity();
        }
        __syncthreads();
        const Edit* list = reinterpret_cast<const Edit*>(words + edits_at());
        for (u32 e = threadIdx.x; e < edits(); e += threads) {
            Edit edit = list[e];
            if (edit.id >= start && edit.id < end && allows(edit.id)) to[edit.id] = edit.of(from[edit.id]);
        }
        __syncthreads();
    }
};

extern "C" __global__ __launch_bounds__(SAMPLE_THREADS) void sample(const __grid_constant__ SampleParams p) {
    after_previous_launch();
    u32 row = blockIdx.y, parts = gridDim.x;
    const float* logits = at<const float>(p.logits) + static_cast<u64>(row) * p.vocabulary;
    float temperature = at<const float>(p.temperature)[row];
    u32 position = at<const u32>(p.positions)[row];
    u32 k = at<const u32>(p.top_k)[row];
    // NaN becomes 0, as in the reference.
    float mass = fminf(fmaxf(at<const float>(p.top_p)[row], 0.0f), 1.0f);
    if (k >= p.vocabulary) k = 0;
    bool random = temperature > 0.0f;
    float offset = at<const float>(p.min_p)[row];
    bool cut = random && (k > 0 || mass < 1.0f || offset > -infinity());
    Draw draw = {random ? __fdiv_rn(1.0f, temperature) : 0.0f, at<const u64>(p.seed)[row], position};

    u32 length = (p.vocabulary + parts - 1) / parts;
    u32 start = min(blockIdx.x * length, p.vocabulary), end = min(start + length, p.vocabulary);
    if (p.adjustments) {
        const u32* words = at<const u32>(p.adjustments) + static_cast<u64>(row) * p.adjustment_words;
        Adjustment adjustment = {words, p.adjustment_words, p.vocabulary};
        if (adjustment.masked() || adjustment.edits() > 0) {
            float* adjusted = at<float>(p.adjusted) + static_cast<u64>(row) * p.vocabulary;
            adjustment.copy(logits, adjusted, start, end, SAMPLE_THREADS);
            logits = adjusted;
        }
    }
    Winners found = {Best::none(), Best::none()};
    for (u32 i = start + threadIdx.x; i < end; i += SAMPLE_THREADS) {
        float v = logits[i];
        found.greedy.take(fminf(v, infinity()), i);
        if (random && !cut) draw.offer(found.noisy, v, i);
    }
    found.greedy = found.greedy.of_block<SAMPLE_THREADS>();
    found.noisy = found.noisy.of_block<SAMPLE_THREADS>();
    Winners* all = at<Winners>(p.partial) + static_cast<u64>(row) * parts;
    if (threadIdx.x == 0) all[blockIdx.x] = found;
    if (!last_block(at<u32>(p.counters) + row, parts)) return;

    found = {Best::none(), Best::none()};
    for (u32 i = threadIdx.x; i < parts; i += SAMPLE_THREADS) {
        found.greedy.take(all[i].greedy.value, all[i].greedy.id);
        found.noisy.take(all[i].noisy.value, all[i].noisy.id);
    }
    found.greedy = found.greedy.of_block<SAMPLE_THREADS>();
    found.noisy = found.noisy.of_block<SAMPLE_THREADS>();
    float largest = found.greedy.value;
    u32 token = is_finite(largest) ? found.greedy.id : NOT_FINITE;
    if (random && is_finite(__fmul_rn(largest, draw.scale))) {
        token = found.noisy.id;
        if (cut) {
            u64* list = at<u64>(p.candidates) + static_cast<u64>(row) * p.vocabulary;
            float least = offset > -infinity() ? __fadd_rn(largest, fminf(offset, 0.0f)) : -infinity();
            Cut<SAMPLE_THREADS> cutter = {logits, list, p.vocabulary, largest, least, draw};
            token = cutter.choose(k, mass, found.greedy.id);
        }
    }
    if (threadIdx.x != 0) return;
    at<u32>(p.ids)[row] = token;
    if (p.next_tokens) at<u32>(p.next_tokens)[row] = token;
    if (p.next_positions) at<u32>(p.next_positions)[row] = position + 1;
    if (!p.ring) return;
    u32* cursor = at<u32>(p.cursor);
    u32 entry = *cursor % p.ring_entries;
    at<u32>(p.ring)[static_cast<u64>(entry) * p.rows + row] = token;
    __threadfence();
    u32* finished = at<u32>(p.counters) + p.rows;
    if (atomicAdd(finished, 1u) + 1 == p.rows) {
        *finished = 0;
        *cursor += 1;
    }
}
