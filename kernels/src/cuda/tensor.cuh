// Groups of tensor operations: a chain of elementwise steps over a space of elements, then perhaps a reduction of what
// it gave, then a chain over what that left.
//
// A group is a list of steps over registers of four bytes, of which each thread has a column in shared memory. All
// threads take the same steps, for an element each. Every element is computed by one thread in one order, and sums of
// rows are the CPU's: in f64, in 16 sums over the columns of every 256, which are added up one after the other.
#pragma once
#include "trig.cuh"

enum : u32 { TENSOR_THREADS = 128, TENSOR_AXES = 8, TENSOR_REGISTERS = 24, TENSOR_STEPS = 48, ROW_LANES = 16, ROW_BLOCK = 256 };

// How elements lie in memory; of a fixed one the base is the value.
enum : u32 { WORD, HALF, BRAIN, FIXED };

// Elements in the order of a shape, wherever they lie. On one axis those outside of some places are zeroes.
struct TensorSource {
    u64 base;
    u32 shape[TENSOR_AXES];
    u32 strides[TENSOR_AXES];
    u32 axes;
    u32 width;
    u32 padded;
    u32 before;
    u32 inside;
    u32 reserved;
};

struct TensorParams {
    u64 steps[TENSOR_STEPS];
    TensorSource sources[8];
    u64 stores[8];
    u32 constants[8];
    u32 chain;
    u32 tail;
    u32 elements;
    u32 reduce;
    u32 outer;
    u32 length;
    u32 inner;
    u32 from;
    u32 into;
    u32 reserved;
};

// In the order of `orind_kernels::params::Action`.
enum : u32 {
    LOAD, STORE, NUMBER, NEG, EXP, LN, SQRT, RECIP, SIN, COS, FLOOR, ADD, SUB, MUL, MAX, LESS_EQUAL, REM,
    INT_ADD, INT_SUB, INT_MUL, INT_MAX, INT_LESS_EQUAL, INT_REM, AND, OR, XOR, SHIFT_LEFT, SHIFT_RIGHT,
    SELECT, TO_INT, TO_FLOAT, TO_HALF, TO_BRAIN
};

enum : u32 { NO_REDUCTION, SUM, LARGEST, INT_SUM, INT_LARGEST };

typedef u32 (&File)[TENSOR_REGISTERS][TENSOR_THREADS];

DEVICE u32 bits(float x) { return __float_as_uint(x); }
DEVICE float number(u32 x) { return __uint_as_float(x); }

// To nearest, ties to even; a NaN stays one.
DEVICE u32 float_to_brain(float x) {
    u32 u = bits(x);
    if ((u & 0x7fffffffu) > INFINITY_BITS) return (u >> 16) | 0x40u;
    return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}

// The natural logarithm, as Cephes' `logf` has it; no step of it is fused, as on the CPU.
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

// 32 bits of the fraction of 2 / pi, from a place on.
DEVICE u32 two_over_pi(u32 place) {
    auto word = [](u32 i) {
        return i == 0 ? 0xa2f9836eu : i == 1 ? 0x4e441529u : i == 2 ? 0xfc2757d1u : i == 3 ? 0xf534ddc0u
             : i == 4 ? 0xdb629599u : i == 5 ? 0x3c439041u : 0xfe5163abu;
    };
    return __funnelshift_l(word(place / 32 + 1), word(place / 32), place % 32);
}

// Sine, or a quarter of a turn later cosine. Angles that `sin_cos` does not take are brought into +-pi/4 by as many bits of
// 2 / pi as count for them (Payne and Hanek, 1983).
DEVICE float sine(float x, u32 quarters) {
    float s, c, r = x;
    u32 turned = quarters;
    if (!is_finite(x)) return quiet_nan();
    if (fabsf(x) >= 1e6f) {
        // Of x = mantissa * 2^(exponent - 150). A turn is 2^64; whole ones do not count.
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

// The element of a source, as far in as `place` and without its first axes.
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
    if (source.width == FIXED) return static_cast<u32>(source.base);
    // Strides may go backward.
    int from = static_cast<int>(place);
    if (source.width == WORD) return at<const u32>(source.base)[from];
    u32 half = at<const u16>(source.base)[from];
    return source.width == HALF ? bits(half_to_float(half)) : half << 16;
}

DEVICE void stored(u64 base, u32 width, u32 element, u32 value) {
    if (width == WORD) at<u32>(base)[element] = value;
    else at<u16>(base)[element] = static_cast<u16>(width == HALF ? float_to_half(number(value)) : float_to_brain(number(value)));
}

DEVICE u32 of_one(u32 action, u32 x) {
    float v = number(x);
    if (action == NEG) return bits(-v);
    if (action == EXP) return bits(exponential(v));
    if (action == LN) return bits(natural_logarithm(v));
    if (action == SQRT) return bits(__fsqrt_rn(v));
    if (action == RECIP) return bits(__fdiv_rn(1.0f, v));
    if (action == SIN) return bits(sine(v, 0));
    if (action == COS) return bits(sine(v, 1));
    return bits(floorf(v));
}

DEVICE u32 of_two(u32 action, u32 x, u32 y) {
    float a = number(x), b = number(y);
    if (action == ADD) return bits(__fadd_rn(a, b));
    if (action == SUB) return bits(__fsub_rn(a, b));
    if (action == MUL) return bits(__fmul_rn(a, b));
    if (action == MAX) return bits(fmaxf(a, b));
    if (action == LESS_EQUAL) return bits(a <= b ? 1.0f : 0.0f);
    return bits(fmodf(a, b));
}

DEVICE u32 of_ints(u32 action, u32 a, u32 b) {
    i32 x = static_cast<i32>(a), y = static_cast<i32>(b);
    if (action == INT_ADD) return a + b;
    if (action == INT_SUB) return a - b;
    if (action == INT_MUL) return a * b;
    if (action == INT_MAX) return static_cast<u32>(max(x, y));
    if (action == INT_LESS_EQUAL) return bits(x <= y ? 1.0f : 0.0f);
    // Of -1 nothing is left, which the machine's division does not know.
    if (action == INT_REM) return y == 0 || y == -1 ? 0 : static_cast<u32>(x % y);
    if (action == AND) return a & b;
    if (action == OR) return a | b;
    if (action == XOR) return a ^ b;
    if (action == SHIFT_LEFT) return a << (b & 31);
    return static_cast<u32>(x >> (b & 31));
}

DEVICE u32 converted(u32 action, u32 x) {
    float v = number(x);
    if (action == TO_INT) return static_cast<u32>(__float2int_rz(v));
    if (action == TO_FLOAT) return bits(__int2float_rn(static_cast<i32>(x)));
    if (action == TO_HALF) return bits(half_to_float(float_to_half(v)));
    return float_to_brain(v) << 16;
}

// Some steps, for an element.
DEVICE void take(const TensorParams& p, u32 first, u32 last, u32 element, File file) {
#pragma unroll 1
    for (u32 s = first; s < last; s++) {
        u32 low = static_cast<u32>(p.steps[s]), third = static_cast<u32>(p.steps[s] >> 32);
        u32 action = low & 0xff, out = low >> 8 & 0xff, a = low >> 16 & 0xff, b = low >> 24;
        u32 value;
        if (action == STORE) {
            stored(p.stores[out], b, element, file[a][threadIdx.x]);
            continue;
        }
        if (action == LOAD) {
            value = loaded(p.sources[a], element);
        } else if (action == NUMBER) {
            value = bits(__uint2float_rn(element));
        } else {
            u32 x = file[a][threadIdx.x];
            if (action < ADD) value = of_one(action, x);
            else if (action < INT_ADD) value = of_two(action, x, file[b][threadIdx.x]);
            else if (action < SELECT) value = of_ints(action, x, file[b][threadIdx.x]);
            else if (action > SELECT) value = converted(action, x);
            else value = number(x) == 0.0f ? file[third][threadIdx.x] : file[b][threadIdx.x];
        }
        file[out][threadIdx.x] = value;
    }
}

// What elements have come to so far.
struct Reduced {
    double sum;
    float largest;
    u32 ints;

    DEVICE Reduced none(u32 reduce) { return {0.0, -infinity(), reduce == INT_LARGEST ? 0x80000000u : 0u}; }
    __device__ __forceinline__ void take(u32 reduce, u32 x) {
        if (reduce == SUM) sum = __dadd_rn(sum, static_cast<double>(number(x)));
        else if (reduce == LARGEST) largest = fmaxf(largest, number(x));
        else if (reduce == INT_SUM) ints += x;
        else ints = static_cast<u32>(max(static_cast<i32>(ints), static_cast<i32>(x)));
    }
    __device__ __forceinline__ u32 value(u32 reduce) const {
        if (reduce == SUM) return bits(__double2float_rn(sum));
        return reduce == LARGEST ? bits(largest) : ints;
    }
    // With those of the row's other lanes, the first of them first.
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
        if (reduce == SUM) sum = __dadd_rn(sum, other.sum);
        else take(reduce, reduce == LARGEST ? bits(other.largest) : other.ints);
    }
};

extern "C" __global__ __launch_bounds__(128) void tensor(const __grid_constant__ TensorParams p) {
    after_previous_launch();
    __shared__ u32 file[TENSOR_REGISTERS][TENSOR_THREADS];
    // The constants come first.
#pragma unroll
    for (u32 c = 0; c < 8; c++) file[c][threadIdx.x] = p.constants[c];
    u32 thread = blockIdx.x * TENSOR_THREADS + threadIdx.x, lane = threadIdx.x % ROW_LANES;
    bool reduces = p.reduce != NO_REDUCTION, rows = reduces && p.inner == 1;
    // What comes out at last is the element `index`; on the way there `element`, and more, `apart`.
    u32 index = rows ? thread / ROW_LANES : thread, element = index, apart = 0, rounds = 1;
    bool inside = index < (reduces ? p.outer * p.inner : p.elements);
    if (rows) {
        element = index * p.length + lane;
        apart = ROW_LANES;
        rounds = (p.length + ROW_LANES - 1) / ROW_LANES;
    } else if (reduces) {
        element = index / p.inner * p.length * p.inner + index % p.inner;
        apart = p.inner;
        rounds = p.length;
    }
    Reduced total = Reduced::none(p.reduce), part = total;
#pragma unroll 1
    for (u32 round = 0; round <= rounds; round++, element += apart) {
        bool last = round == rounds, takes = inside;
        if (last) {
            if (!reduces) return;
            takes = takes && !(rows && lane > 0);
            element = index;
            file[p.into][threadIdx.x] = total.value(p.reduce);
        } else if (rows) {
            takes = takes && round * ROW_LANES + lane < p.length;
        }
        if (takes) take(p, last ? p.chain : 0, last ? p.tail : p.chain, element, file);
        if (!reduces || last) continue;
        if (takes) part.take(p.reduce, file[p.from][threadIdx.x]);
        if (rows && round % (ROW_BLOCK / ROW_LANES) != ROW_BLOCK / ROW_LANES - 1 && round + 1 < rounds) continue;
        __syncwarp();
        if (rows) part = part.gathered(p.reduce);
        // A column is added up in its order.
        if (rows) total.add(p.reduce, part), part = Reduced::none(p.reduce);
        else total = part;
    }
}

struct TensorMatmulParams {
    u64 a;
    u64 b;
    u64 out;
    u32 shape[TENSOR_AXES];
    u32 a_strides[TENSOR_AXES];
    u32 b_strides[TENSOR_AXES];
    u32 axes;
    u32 batches;
    u32 m;
    u32 n;
    u32 k;
    u32 a_width;
    u32 b_width;
    u32 reserved;
};

// a [.., M, K] times b [.., N, K] transposed. The last two axes of the strides are those of the matrices. Sums are of f32,
// the columns one after the other. Grid: x = columns, y = rows, z = matrices.
extern "C" __global__ __launch_bounds__(128) void tensor_matmul(const __grid_constant__ TensorMatmulParams p) {
    after_previous_launch();
    enum : u32 { SIDE = 32, DEEP = 16, OWN = SIDE * SIDE / TENSOR_THREADS };
    __shared__ float left[DEEP][SIDE + 1], right[DEEP][SIDE + 1];
    u32 batch = blockIdx.z, a_at = 0, b_at = 0;
#pragma unroll 1
    for (u32 axis = p.axes - 2; axis-- > 0;) {
        u32 i = batch % p.shape[axis];
        batch /= p.shape[axis];
        a_at += i * p.a_strides[axis];
        b_at += i * p.b_strides[axis];
    }
    u32 row_at = blockIdx.y * SIDE, column_at = blockIdx.x * SIDE;
    auto value = [](u64 base, u32 width, u32 place) {
        if (width == WORD) return at<const float>(base)[place];
        u32 half = at<const u16>(base)[place];
        return width == HALF ? half_to_float(half) : number(half << 16);
    };
    float sums[OWN] = {};
    u32 column = threadIdx.x % SIDE, row = threadIdx.x / SIDE;
#pragma unroll 1
    for (u32 k = 0; k < p.k; k += DEEP) {
        for (u32 i = threadIdx.x; i < SIDE * DEEP; i += TENSOR_THREADS) {
            u32 deep = i % DEEP, side = i / DEEP;
            bool inside = k + deep < p.k;
            left[deep][side] = inside && row_at + side < p.m
                ? value(p.a, p.a_width, a_at + (row_at + side) * p.a_strides[p.axes - 2] + (k + deep) * p.a_strides[p.axes - 1])
                : 0.0f;
            right[deep][side] = inside && column_at + side < p.n
                ? value(p.b, p.b_width, b_at + (column_at + side) * p.b_strides[p.axes - 2] + (k + deep) * p.b_strides[p.axes - 1])
                : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (u32 d = 0; d < DEEP; d++) {
            if (k + d >= p.k) break;
#pragma unroll
            for (u32 o = 0; o < OWN; o++) sums[o] = __fmaf_rn(left[d][row + 4 * o], right[d][column], sums[o]);
        }
        __syncthreads();
    }
    float* out = at<float>(p.out) + static_cast<u64>(blockIdx.z) * p.m * p.n;
#pragma unroll
    for (u32 o = 0; o < OWN; o++) {
        u32 to = row_at + row + 4 * o;
        if (to < p.m && column_at + column < p.n) out[to * p.n + column_at + column] = sums[o];
    }
}

enum : u32 { TENSOR_INDICES = 3 };

// Rows of a table by up to three indices each, or rows that a table gets.
struct TensorRowsParams {
    u64 indices[TENSOR_INDICES];
    TensorSource source;
    u64 out;
    u32 extents[TENSOR_INDICES];
    u32 apart[TENSOR_INDICES];
    u32 leading;
    u32 count;
    u32 width;
    u32 elements;
    u32 adds;
    u32 out_width;
};

// out[i] = source[indices[i]], zeroes for an index that is not in the table.
extern "C" __global__ __launch_bounds__(128) void tensor_gather(const __grid_constant__ TensorRowsParams p) {
    after_previous_launch();
    u32 element = blockIdx.x * TENSOR_THREADS + threadIdx.x;
    if (element >= p.elements) return;
    u32 row = element / p.width, place = 0, value = 0;
    bool inside = true;
#pragma unroll
    for (u32 axis = 0; axis < TENSOR_INDICES; axis++) {
        if (axis >= p.leading) break;
        u32 index = static_cast<u32>(at<const i32>(p.indices[axis])[row * p.apart[axis]]);
        inside = inside && index < p.extents[axis];
        place += index * p.source.strides[axis];
    }
    if (inside) value = loaded(p.source, element % p.width, place, p.leading);
    stored(p.out, p.out_width, element, value);
}

// out[indices[i]] = source[i], the last of those with the same index; or the sums of all of them in f64, and zeroes
// elsewhere. The table is dense; a thread has an element of it and looks at all rows.
extern "C" __global__ __launch_bounds__(128) void tensor_scatter(const __grid_constant__ TensorRowsParams p) {
    after_previous_launch();
    u32 element = blockIdx.x * TENSOR_THREADS + threadIdx.x;
    if (element >= p.elements) return;
    u32 own = element / p.width, value = 0, place[TENSOR_INDICES] = {};
#pragma unroll
    for (u32 axis = TENSOR_INDICES; axis-- > 0;) {
        if (axis >= p.leading) continue;
        place[axis] = own % p.extents[axis];
        own /= p.extents[axis];
    }
    double sum = 0.0;
    bool found = p.adds;
#pragma unroll 1
    for (u32 row = 0; row < p.count; row++) {
        bool here = true;
#pragma unroll
        for (u32 axis = 0; axis < TENSOR_INDICES; axis++)
            if (axis < p.leading) here = here && static_cast<u32>(at<const i32>(p.indices[axis])[row * p.apart[axis]]) == place[axis];
        if (!here) continue;
        value = loaded(p.source, row * p.width + element % p.width);
        sum = __dadd_rn(sum, static_cast<double>(number(value)));
        found = true;
    }
    if (found) stored(p.out, p.out_width, element, p.adds ? bits(__double2float_rn(sum)) : value);
}

struct TensorTopKParams {
    u64 x;
    u64 out;
    u32 n;
    u32 count;
    u32 row_stride;
    u32 column_stride;
};

// The numbers of the greatest elements of a row, best first, of equal ones the first; NaN is the greatest. Each is looked
// for among those behind the one before it. A block has a row.
extern "C" __global__ __launch_bounds__(128) void tensor_top_k(const __grid_constant__ TensorTopKParams p) {
    after_previous_launch();
    __shared__ float values[TENSOR_THREADS];
    __shared__ u32 numbers[TENSOR_THREADS];
    auto above = [](float a, float b) { return a > b || (a != a && b == b); };
    auto before = [&](float a, u32 i, float b, u32 j) { return above(a, b) || (!above(b, a) && i < j); };
    const float* x = at<const float>(p.x) + static_cast<u64>(blockIdx.x) * p.row_stride;
    float last = 0.0f;
    u32 last_at = 0;
#pragma unroll 1
    for (u32 k = 0; k < p.count; k++) {
        float best = 0.0f;
        u32 best_at = ALL_LANES;
#pragma unroll 1
        for (u32 i = threadIdx.x; i < p.n; i += TENSOR_THREADS) {
            float value = x[i * p.column_stride];
            if (k > 0 && !before(last, last_at, value, i)) continue;
            if (best_at == ALL_LANES || before(value, i, best, best_at)) best = value, best_at = i;
        }
        values[threadIdx.x] = best;
        numbers[threadIdx.x] = best_at;
        __syncthreads();
#pragma unroll 1
        for (u32 half = TENSOR_THREADS / 2; half > 0; half /= 2) {
            if (threadIdx.x < half) {
                u32 i = numbers[threadIdx.x], j = numbers[threadIdx.x + half];
                bool other = j != ALL_LANES && (i == ALL_LANES || before(values[threadIdx.x + half], j, values[threadIdx.x], i));
                if (other) values[threadIdx.x] = values[threadIdx.x + half], numbers[threadIdx.x] = j;
            }
            __syncthreads();
        }
        last = values[0];
        last_at = numbers[0];
        if (threadIdx.x == 0) at<u32>(p.out)[static_cast<u64>(blockIdx.x) * p.count + k] = last_at;
        __syncthreads();
    }
}
