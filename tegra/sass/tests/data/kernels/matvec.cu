// Quantised and half-precision matrix times vector, as a decode step does it.
#include <cuda_fp16.h>
#include <cuda_bf16.h>
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned u32; typedef unsigned long long u64;
extern "C" __global__ void __launch_bounds__(32) matvec_q8(const int4* __restrict__ w, const __half* __restrict__ s,
    const int4* __restrict__ x, const float* __restrict__ xs, float* __restrict__ y, int blocks) {
  int row = blockIdx.x, lane = threadIdx.x; float acc = 0.f;
  for (int b = lane; b < blocks; b += 32) {
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) { int4 a = w[(row * blocks + b) * 2 + i], v = x[b * 2 + i];
      sum = __dp4a(a.x, v.x, sum); sum = __dp4a(a.y, v.y, sum); sum = __dp4a(a.z, v.z, sum); sum = __dp4a(a.w, v.w, sum); }
    acc += (float)sum * __half2float(s[row * blocks + b]) * xs[b];
  }
#pragma unroll
  for (int o = 16; o; o >>= 1) acc += __shfl_xor_sync(~0u, acc, o);
  if (!lane) y[row] = acc;
}
extern "C" __global__ void matvec_half2(const uint4* __restrict__ w, const uint4* __restrict__ x, __half* __restrict__ y, int n) {
  int row = blockIdx.x * blockDim.y + threadIdx.y; __half2 acc = __float2half2_rn(0.f);
  for (int i = threadIdx.x; i < n; i += 32) { uint4 a = w[row * n + i], b = x[i];
    const __half2 *pa = (const __half2*)&a, *pb = (const __half2*)&b;
    for (int k = 0; k < 4; ++k) acc = __hfma2(pa[k], pb[k], acc); }
  float s = __low2float(acc) + __high2float(acc);
  for (int o = 16; o; o >>= 1) s += __shfl_down_sync(~0u, s, o);
  if (threadIdx.x == 0) y[row] = __float2half(s);
}
extern "C" __global__ void unpack_q6(const u8* __restrict__ w, const signed char* __restrict__ x, const __half* d, float* __restrict__ y, int n) {
  int row = blockIdx.x; float acc = 0;
  for (int b = threadIdx.x; b < n; b += blockDim.x) { const u8* q = w + (size_t)(row * n + b) * 210; const u8* h = q + 128; const signed char* sc = (const signed char*)(q + 192);
    float s = 0; for (int i = 0; i < 64; ++i) { int lo = q[i] & 15, hi = (h[i & 31] >> ((i >> 5) * 2)) & 3; int v = (lo | (hi << 4)) - 32; s += v * sc[i >> 4] * x[b * 64 + i]; }
    acc += s * __half2float(*(const __half*)(q + 208)); }
  atomicAdd(&y[row], acc);
}
extern "C" __global__ void matvec_bf16(const uint4* __restrict__ w, const float4* __restrict__ x, float* __restrict__ y, int n) {
  int row = blockIdx.x; float acc = 0.f;
  for (int i = threadIdx.x; i < n; i += 32) { uint4 a = w[row * n + i]; const __nv_bfloat162* p = (const __nv_bfloat162*)&a;
    float4 v = x[2 * i], u = x[2 * i + 1]; float2 f0 = __bfloat1622float2(p[0]), f1 = __bfloat1622float2(p[1]), f2 = __bfloat1622float2(p[2]), f3 = __bfloat1622float2(p[3]);
    acc = fmaf(f0.x, v.x, acc); acc = fmaf(f0.y, v.y, acc); acc = fmaf(f1.x, v.z, acc); acc = fmaf(f1.y, v.w, acc);
    acc = fmaf(f2.x, u.x, acc); acc = fmaf(f2.y, u.y, acc); acc = fmaf(f3.x, u.z, acc); acc = fmaf(f3.y, u.w, acc); }
  for (int o = 16; o; o >>= 1) acc += __shfl_xor_sync(~0u, acc, o);
  if (threadIdx.x == 0) y[row] = acc;
}
extern "C" __global__ void quantise(const float* __restrict__ x, u32* __restrict__ q, float* __restrict__ s) {
  float v = x[blockIdx.x * 32 + threadIdx.x], m = fabsf(v);
  for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
  float d = m / 127.f; int i = d > 0 ? __float2int_rn(v / d) : 0;
  ((signed char*)q)[blockIdx.x * 32 + threadIdx.x] = (signed char)max(-127, min(127, i));
  if (!threadIdx.x) s[blockIdx.x] = d;
}
extern "C" __global__ void bf16_math(const __nv_bfloat162* a, const __nv_bfloat162* b, __nv_bfloat162* c, __nv_bfloat16* d, const float* f) {
  int i = threadIdx.x; c[i] = __hfma2(a[i], b[i], __hadd2(a[i], __hmul2(b[i], a[i]))); d[i] = __float2bfloat16(f[i]); d[i + 32] = __hmax(__low2bfloat16(a[i]), __high2bfloat16(b[i]));
  c[i + 64] = __floats2bfloat162_rn(f[i], f[i + 1]); c[i + 96] = __hmin2(a[i], b[i]);
}
extern "C" __global__ void half_math(const __half2* a, const __half2* b, __half2* c, __half* d, int n) {
  int i = threadIdx.x; __half2 x = a[i], y = b[i];
  c[i] = __hadd2(x, y); c[i + 32] = __hmul2(x, __hsub2(y, x)); c[i + 64] = __hmax2(x, y); c[i + 96] = __hmin2(__habs2(x), __hneg2(y));
  c[i + 128] = __hfma2_sat(x, y, x); c[i + 160] = __hfma2_relu(x, y, y); c[i + 192] = h2exp2(x); c[i + 224] = h2rcp(y);
  d[i] = __hgt(__low2half(x), __high2half(y)) ? __low2half(x) : __hadd(__high2half(x), __float2half(1.5f));
  d[i + 32] = hsqrt(__low2half(y)); d[i + 64] = __int2half_rn(n); d[i + 96] = __ushort2half_rn((u16)n); d[i + 128] = __hmul(__low2half(x), __float2half(3.0f));
  c[i + 256] = __hge2(x, y); c[i + 288] = __hfma2(x, __half2half2(__high2half(y)), __float2half2_rn(0.5f));
  c[i + 320] = __hmul2_sat(x, y); if (__hbgt2(x, y)) c[i + 352] = __lowhigh2highlow(x); c[i + 384] = __hne2(x, y);
  ((u32*)c)[i + 416] = __hgt2_mask(x, y); ((short*)c)[i + 900] = __half2short_rn(__low2half(x)); ((int*)c)[i + 600] = __half2int_rz(__high2half(x)); c[i+700] = h2log2(x); c[i+732]=h2rsqrt(x); c[i+764]=h2sin(x);
}
