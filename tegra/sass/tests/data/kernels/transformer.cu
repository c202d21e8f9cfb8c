// The rest of a decode step: norms, rotary embedding, attention, argmax.
#include <cuda_fp16.h>
#define INFINITY __int_as_float(0x7f800000)
typedef unsigned u32; typedef unsigned long long u64;
extern "C" __global__ void rms_norm(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y, int n, float eps) {
  __shared__ float part[32]; float s = 0.f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) { float v = x[blockIdx.x * n + i]; s += v * v; }
  for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = s;
  __syncthreads();
  s = (threadIdx.x & 31) < (blockDim.x >> 5) ? part[threadIdx.x & 31] : 0.f;
  for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
  float r = rsqrtf(s / n + eps);
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] * r * w[i];
}
extern "C" __global__ void rope(float* __restrict__ q, __half* __restrict__ k, const int* __restrict__ pos, float base, int d) {
  int p = pos[blockIdx.y], i = threadIdx.x, h = blockIdx.x; float inv = powf(base, -2.f * i / d), s, c; sincosf(p * inv, &s, &c);
  float* v = q + h * d; float a = v[i], b = v[i + d / 2]; v[i] = a * c - b * s; v[i + d / 2] = a * s + b * c; k[(p * gridDim.x + h) * d + i] = __float2half(a);
}
extern "C" __global__ void rope_fast(float* __restrict__ q, const int* __restrict__ pos, const float* __restrict__ f, int d) {
  int p = *pos, i = threadIdx.x; float s = __sinf(p * f[i]), c = __cosf(p * f[i]); float2 v = ((float2*)q)[blockIdx.x * d + i]; ((float2*)q)[blockIdx.x * d + i] = make_float2(v.x * c - v.y * s, v.x * s + v.y * c);
}
extern "C" __global__ void silu_product(const float4* __restrict__ g, const float4* __restrict__ u, float4* __restrict__ y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x; float4 a = g[i], b = u[i];
  a.x = a.x / (1.f + __expf(-a.x)) * b.x; a.y = a.y / (1.f + expf(-a.y)) * b.y; a.z = __fdividef(a.z, 1.f + exp2f(-a.z)) * b.z; a.w = tanhf(a.w) * b.w; y[i] = a;
}
extern "C" __global__ void __launch_bounds__(128) attention(const float* __restrict__ q, const __half* __restrict__ k, const __half* __restrict__ v, float* __restrict__ o, const int* __restrict__ len, float scale) {
  extern __shared__ float p[]; __shared__ float red[8]; int n = *len, lane = threadIdx.x & 31, warp = threadIdx.x >> 5; float m = -INFINITY;
  for (int t = warp; t < n; t += 4) { float2 a = ((const float2*)q)[blockIdx.x * 32 + lane]; float2 b = __half22float2(((const __half2*)k)[t * 32 + lane]);
    float s = a.x * b.x + a.y * b.y; for (int x = 16; x; x >>= 1) s += __shfl_xor_sync(~0u, s, x); s *= scale; if (!lane) p[t] = s; m = fmaxf(m, s); }
  if (!lane) red[warp] = m; __syncthreads();
  m = fmaxf(fmaxf(red[0], red[1]), fmaxf(red[2], red[3])); float sum = 0.f;
  for (int t = threadIdx.x; t < n; t += 128) { float e = __expf(p[t] - m); p[t] = e; sum += e; }
  for (int x = 16; x; x >>= 1) sum += __shfl_xor_sync(~0u, sum, x);
  if (!lane) red[4 + warp] = sum; __syncthreads(); sum = red[4] + red[5] + red[6] + red[7];
  if (threadIdx.x < 64) { float acc = 0.f; for (int t = 0; t < n; ++t) acc += p[t] * __half2float(v[t * 64 + threadIdx.x]); o[blockIdx.x * 64 + threadIdx.x] = acc / sum; }
}
extern "C" __global__ void softmax(const float* __restrict__ x, float* __restrict__ y, int n) {
  __shared__ float s[256]; int t = threadIdx.x; float m = -INFINITY; for (int i = t; i < n; i += 256) m = fmaxf(m, x[blockIdx.x * n + i]);
  s[t] = m; __syncthreads(); for (int k = 128; k; k >>= 1) { if (t < k) s[t] = fmaxf(s[t], s[t + k]); __syncthreads(); } m = s[0]; __syncthreads();
  float a = 0; for (int i = t; i < n; i += 256) a += expf(x[blockIdx.x * n + i] - m); s[t] = a; __syncthreads();
  for (int k = 128; k; k >>= 1) { if (t < k) s[t] += s[t + k]; __syncthreads(); } a = s[0];
  for (int i = t; i < n; i += 256) y[blockIdx.x * n + i] = expf(x[blockIdx.x * n + i] - m) / a;
}
extern "C" __global__ void argmax(const float* __restrict__ x, int n, u64* __restrict__ best, int* __restrict__ out, u32* count) {
  u64 b = 0; for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) { u32 u = __float_as_uint(x[i]); u = (u & 0x80000000u) ? ~u : (u | 0x80000000u); u64 c = ((u64)u << 32) | (u32)~i; b = c > b ? c : b; }
  for (int o = 16; o; o >>= 1) { u64 c = __shfl_xor_sync(~0u, b, o); b = c > b ? c : b; }
  if ((threadIdx.x & 31) == 0) atomicMax(best, b);
  __threadfence(); __syncthreads(); __shared__ bool last;
  if (threadIdx.x == 0) last = atomicInc(count, gridDim.x - 1) == gridDim.x - 1; __syncthreads();
  if (last && threadIdx.x == 0) { u64 r = atomicAdd(best, 0ull); *out = ~(u32)r; *best = 0; }
}
extern "C" __global__ void embed(const int* __restrict__ tok, const uint2* __restrict__ w, float* __restrict__ y, int n) {
  int t = tok[blockIdx.y]; for (int i = threadIdx.x; i < n; i += blockDim.x) { uint2 v = w[(size_t)t * n + i]; __half2* h = (__half2*)&v; float2 a = __half22float2(h[0]), b = __half22float2(h[1]); ((float4*)y)[blockIdx.y * n + i] = make_float4(a.x, a.y, b.x, b.y); }
}
