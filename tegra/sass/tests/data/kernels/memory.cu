// Memory: atomics, widths, caches, local arrays, generic addresses, constants.
#include <cuda_fp16.h>
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned u32; typedef unsigned long long u64;
__constant__ float table[64]; __device__ int counter; __device__ int* volatile where;
extern "C" __global__ void atomics(int* i, u32* u, float* f, u64* l, double* d, __half2* h, int v) {
  __shared__ int s[32]; __shared__ u32 us[8]; __shared__ u64 ls[2]; __shared__ float fs[2]; int t = threadIdx.x; s[t & 31] = 0; if (t < 8) us[t] = t; if (t < 2) { ls[t] = 0; fs[t] = 0; } __syncthreads();
  atomicAdd(i, v); atomicSub(i + 1, v); atomicMin(i + 2, v); atomicMax(i + 3, v); atomicAnd(i + 4, v); atomicOr(i + 5, v); atomicXor(i + 6, v); atomicInc(u, 7); atomicDec(u + 1, 9); atomicMin(u + 2, (u32)v); atomicMax(u + 3, (u32)v);
  atomicAdd(f, 1.5f); atomicAdd(l, 3ull); atomicMax(l + 1, 5ull); atomicAdd(d, 0.5); atomicAdd(h, __floats2half2_rn(1, 2));
  int r = atomicAdd(i + 7, t); r += atomicExch(i + 8, t); r += atomicCAS(i + 9, 0, t); r += atomicMin(i + 10, t); r += atomicOr(i + 11, 1 << (t & 31)); r += atomicInc(u + 4, 5); r += atomicMax(u + 5, (u32)t);
  float q = atomicAdd(f + 1, 2.f) + atomicExch(f + 2, 1.f); u64 w = atomicCAS(l + 2, 1ull, 2ull) + atomicExch(l + 3, 4ull) + atomicAdd(l + 4, 5ull) + atomicMin(l + 5, 1ull); double e = atomicAdd(d + 1, 1.0);
  r += atomicAdd(&s[t & 31], 1); atomicAdd(&s[0], 2); r += atomicMax(&s[1], t); r += atomicCAS(&s[2], 0, t); r += atomicExch(&s[3], t); r += atomicXor(&s[4], t); r += atomicInc(&us[0], 3); atomicDec(&us[1], 3); w += atomicAdd(&ls[0], 1ull); w += atomicCAS(&ls[1], 0ull, 1ull); q += atomicAdd(&fs[0], 1.f); r += atomicMin(&s[5], t);
  __half2 g = atomicAdd(h + 1, __floats2half2_rn(t, 1)); __syncthreads(); i[64 + t] = r + s[t & 31]; f[64 + t] = q; l[64 + t] = w; d[64 + t] = e; h[64 + t] = g; r = atomicAdd_system(i + 12, 1); atomicAdd_block(i + 13, r); atomicAdd(&counter, 1);
}
extern "C" __global__ void widths(const u8* a, const u16* b, const signed char* c, const short* d, const uint2* e, const uint4* f, uint4* o, u8* o8, u16* o16, const double2* g) {
  int t = threadIdx.x; uint4 v = f[t]; uint2 w = e[t]; v.x += a[t] + b[t] + c[t] + d[t] + w.x; v.y ^= w.y; o[t] = v; o8[t] = v.x; o16[t] = v.y; __stcs(&o[t + 32], __ldcs(&f[t + 32])); __stcg(&o[t + 64], __ldcg(&f[t + 64])); __stwt(&o[t + 96], __ldcv(&f[t + 96])); o[t + 128] = __ldlu(&f[t + 128]);
  uint4 x = __ldg(&f[t + 160]); o[t + 160] = x; double2 y = g[t]; ((double2*)o)[t + 192] = make_double2(y.x + y.y, y.x * y.y);
  u32 r; asm volatile("ld.global.L1::no_allocate.L2::128B.u32 %0, [%1];" : "=r"(r) : "l"(a + 4 * t)); ((u32*)o)[t + 900] = r; asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(r) : "l"(a + 4 * t)); asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(o8 + 4 * t), "r"(r)); asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(r) : "l"(a + 4 * t)); asm volatile("st.relaxed.sys.global.u32 [%0], %1;" :: "l"(o8 + 4 * t), "r"(r)); asm volatile("st.volatile.global.u32 [%0], %1;" :: "l"(o8 + 4 * t), "r"(r)); asm volatile("prefetch.global.L2 [%0];" :: "l"(a + t)); asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(f + t)); o[t + 400] = v; asm volatile("red.release.gpu.global.add.u32 [%0], %1;" :: "l"(o8), "r"(r)); asm volatile("ld.global.L1::evict_last.u32 %0, [%1];" : "=r"(r) : "l"(a + 4 * t)); ((u32*)o)[t + 1900] = r;
}
extern "C" __global__ void shared_widths(const uint4* g, uint4* o, u8* b) {
  __shared__ uint4 s[64]; int t = threadIdx.x; s[t] = g[t]; __syncthreads(); uint4 v = s[t ^ 1]; ((u8*)s)[t * 3] = b[t]; ((u16*)s)[t * 5 + 64] = b[t + 1]; ((uint2*)s)[t ^ 2] = make_uint2(v.x, v.y); __syncthreads();
  v.x += ((u8*)s)[t * 7]; v.y += ((signed char*)s)[t]; v.z += ((u16*)s)[t * 3]; v.w += ((short*)s)[t]; uint2 w = ((uint2*)s)[t * 2 % 64]; o[t] = v; o[t + 64].x = w.x + w.y;
}
extern "C" __global__ void transpose(const float* __restrict__ a, float* __restrict__ b, int n) {
  __shared__ float s[32][33]; int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += 8) s[threadIdx.y + j][threadIdx.x] = a[(y + j) * n + x]; __syncthreads();
  x = blockIdx.y * 32 + threadIdx.x; y = blockIdx.x * 32 + threadIdx.y; for (int j = 0; j < 32; j += 8) b[(y + j) * n + x] = s[threadIdx.x][threadIdx.y + j];
}
extern "C" __global__ void local_array(const int* a, int* o, int n) { int h[64]; for (int i = 0; i < 64; ++i) h[i] = a[i * 32 + threadIdx.x]; for (int i = 0; i < n; ++i) h[(h[i & 63] + i) & 63] += i; int s = 0; for (int i = 0; i < n; ++i) s = s * 31 + h[(i * 7) & 63]; o[threadIdx.x] = s; }
extern "C" __global__ void local_bytes(const u8* a, uint4* o, int n) { __align__(16) u8 h[64]; for (int i = 0; i < n; ++i) h[i & 63] = a[i]; ((u16*)h)[n & 7] += 3; o[threadIdx.x] = ((uint4*)h)[n & 3]; ((uint2*)o)[threadIdx.x + 90] = ((uint2*)h)[n & 7]; }
__device__ __noinline__ int through(int* p, int v) { *p += v; return *(volatile int*)p; }
extern "C" __global__ void generic(int* g, int n) { __shared__ int s[32]; int l[4] = {1, 2, 3, 4}; s[threadIdx.x & 31] = threadIdx.x; __syncthreads(); int* p = n == 0 ? g + threadIdx.x : n == 1 ? &s[threadIdx.x & 31] : &l[threadIdx.x & 3]; int r = through(p, n); atomicAdd(p, 1); r += __isShared(p) + 2 * __isLocal(p) + 4 * __isGlobal(p); g[threadIdx.x + 32] = r + l[n & 3] + atomicCAS(p, 1, 2); where = g; }
extern "C" __global__ void constants(float* o, int n, float4 big, const int* idx) { int t = threadIdx.x; o[t] = table[(t + n) & 63] * table[3] + big.z; o[t + 32] = table[n & 63]; o[t + 64] = table[idx[n]]; }
extern "C" __global__ void fences(volatile int* a, int* b) { a[threadIdx.x] = 1; __threadfence_block(); b[threadIdx.x] = a[threadIdx.x ^ 1]; __threadfence(); a[2] = 3; __threadfence_system(); b[7] = a[9]; }
