// Tensor cores, asynchronous copies, matrix loads.
#include <cuda_fp16.h>
typedef unsigned u32; typedef unsigned long long u64;
__device__ __forceinline__ void cp16(void* d, const void* s) { u32 a = (u32)__cvta_generic_to_shared(d); asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(a), "l"(s)); }
__device__ __forceinline__ void cp4(void* d, const void* s, int n) { u32 a = (u32)__cvta_generic_to_shared(d); asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"(a), "l"(s), "r"(n)); }
#define COMMIT asm volatile("cp.async.commit_group;")
extern "C" __global__ void gemm_f16(const __half* __restrict__ a, const __half* __restrict__ b, float* __restrict__ c, int k) {
  __shared__ __align__(16) __half sa[2][16 * 16], sb[2][16 * 8]; int l = threadIdx.x; float d[4] = {0, 0, 0, 0};
  auto fetch = [&](int s, int t) { cp16(&sa[s][l * 8], a + (l >> 1) * k + t * 16 + (l & 1) * 8); if (l < 16) cp16(&sb[s][l * 8], b + (t * 16 + l) * 8); COMMIT; };
  fetch(0, 0);
  for (int t = 0; t < k / 16; ++t) { if (t + 1 < k / 16) { fetch((t + 1) & 1, t + 1); asm volatile("cp.async.wait_group 1;"); } else asm volatile("cp.async.wait_all;");
    __syncthreads(); u32 r[4], q[2]; u32 pa = (u32)__cvta_generic_to_shared(&sa[t & 1][(l & 15) * 16 + (l >> 4) * 8]), pb = (u32)__cvta_generic_to_shared(&sb[t & 1][(l & 15) * 8]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(pa));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(q[0]), "=r"(q[1]) : "r"(pb));
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(q[0]), "r"(q[1]));
    __syncthreads(); }
  int row = l >> 2, col = (l & 3) * 2; c[row * 8 + col] = d[0]; c[row * 8 + col + 1] = d[1]; c[(row + 8) * 8 + col] = d[2]; c[(row + 8) * 8 + col + 1] = d[3];
}
extern "C" __global__ void mma_forms(const u32* __restrict__ a, const u32* __restrict__ b, u32* __restrict__ c) {
  int l = threadIdx.x; u32 A[4] = {a[l], a[l + 32], a[l + 64], a[l + 96]}, B[2] = {b[l], b[l + 32]}; float f[4] = {0, 0, 0, 0}; int d[4] = {0, 0, 0, 0}; u32 h[2] = {0, 0};
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};" : "+f"(f[0]), "+f"(f[1]), "+f"(f[2]), "+f"(f[3]) : "r"(A[0]), "r"(A[1]), "r"(B[0]));
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" : "+f"(f[0]), "+f"(f[1]), "+f"(f[2]), "+f"(f[3]) : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "r"(B[0]), "r"(B[1]));
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" : "+f"(f[0]), "+f"(f[1]), "+f"(f[2]), "+f"(f[3]) : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "r"(B[0]), "r"(B[1]));
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};" : "+r"(h[0]), "+r"(h[1]) : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "r"(B[0]), "r"(B[1]));
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "r"(B[0]), "r"(B[1]));
  asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};" : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(A[0]), "r"(A[1]), "r"(B[0]));
  asm volatile("mma.sync.aligned.m16n8k16.row.col.satfinite.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};" : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(A[0]), "r"(A[1]), "r"(B[0]));
  asm volatile("mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "r"(B[0]), "r"(B[1]));
  for (int i = 0; i < 4; ++i) { c[l * 4 + i] = __float_as_uint(f[i]); c[128 + l * 4 + i] = d[i]; } c[256 + l] = h[0]; c[288 + l] = h[1];
}
extern "C" __global__ void stage(const float* __restrict__ g, float* __restrict__ o, int n) {
  extern __shared__ __align__(16) float s[]; int t = threadIdx.x; cp4(&s[t], g + t, t < n ? 4 : 0);
  u32 a = (u32)__cvta_generic_to_shared(&s[256 + t * 2]); asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" :: "r"(a), "l"(g + 2 * t)); COMMIT;
  asm volatile("cp.async.wait_group 0;"); __syncthreads(); o[t] = s[t ^ 1] + s[256 + t];
  u32 r; u32 p = (u32)__cvta_generic_to_shared(&s[(t & 7) * 4]); asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r) : "r"(p)); ((u32*)o)[256 + t] = r;
}
