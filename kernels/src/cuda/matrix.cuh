// Asynchronous copies to shared memory, `ldmatrix` loads, and `mma` of half precision.
#pragma once
#include "base.cuh"

// Loads and copies have the constant part of an address as an immediate, to save registers.

// Loads four 8 x 8 matrices of 16-bit elements: lane l has the address of row l % 8 of matrix l /
// 8.
template <u32 OFFSET>
DEVICE void load_matrices(u32 (&out)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4+%5];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address), "n"(OFFSET));
}
// The same, transposed.
DEVICE void load_transposed(u32 (&out)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address));
}

// Copies pieces asynchronously from global to shared memory with a stride, until `copies_arrive`.
template <u32 COUNT, u32 STRIDE, u32 FROM = 0, u32 TO = 0>
DEVICE void copy_pieces(u32 to, const u8* from) {
    if constexpr (COUNT > 0) {
        asm volatile("cp.async.cg.shared.global [%0+%2], [%1+%3], 16;" ::"r"(to), "l"(from), "n"(TO), "n"(FROM));
        copy_pieces<COUNT - 1, STRIDE, FROM + STRIDE, TO + STRIDE>(to, from);
    }
}
DEVICE void copy_piece(u32 to, const void* from) { copy_pieces<1, 0>(to, static_cast<const u8*>(from)); }
// Waits for all copies of the block; afterwards earlier buffers may be overwritten.
DEVICE void copies_arrive() {
    asm volatile("cp.async.wait_all;");
    __syncthreads();
}

DEVICE u32 shared_address(const void* pointer) { return static_cast<u32>(__cvta_generic_to_shared(pointer)); }

// 16-bit types: conversion of two f32 (to nearest), and `mma` of 16 x 16 by 16 x 8, added to `sum`.
#define HALVES_OF(name, type)                                                                                        \
    struct name {                                                                                                    \
        DEVICE u32 two(float first, float second) {                                                                  \
            u32 both;                                                                                                \
            asm("cvt.rn." type "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));                         \
            return both;                                                                                             \
        }                                                                                                            \
        DEVICE void multiply(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {                                   \
            asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "   \
                "{%8, %9}, {%0, %1, %2, %3};"                                                                        \
                : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                             \
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                     \
        }                                                                                                            \
    }
HALVES_OF(Binary16, "f16");
HALVES_OF(Brain16, "bf16");
