// Kernels that do what they must not when their argument says so.
extern "C" __global__ void misaligned(char* p, int offset) { *(int*)(p + offset) = 1; }
extern "C" __global__ void vector(char* p, int offset, int4* o) { *o = *(int4*)(p + offset); }
extern "C" __global__ void shared_bounds(int* o, int i) { __shared__ int s[32]; s[threadIdx.x] = 1; __syncthreads(); s[i] = 2; __syncthreads(); o[threadIdx.x] = s[threadIdx.x]; }
extern "C" __global__ void local_bounds(int* o, int i) { int l[100]; for (int k = 0; k < 100; ++k) l[k] = o[k & 15]; l[i & 0xffffff] = 5; o[0] = l[o[1] & 63]; }
__constant__ int table[16];
extern "C" __global__ void bank(int* o, int i) { o[0] = table[i]; }
extern "C" __global__ void divergent(int* o, int n) { if ((int)threadIdx.x < n) __syncthreads(); else o[threadIdx.x] = 1; __syncthreads(); o[threadIdx.x] = 2; }
extern "C" __global__ void deadlock(int* o, int n) { if ((int)threadIdx.x / 32 < n) asm volatile("bar.sync 1, 96;"); o[threadIdx.x] = 1; }
extern "C" __global__ void race(int* o, int n) { __shared__ int s[64]; s[threadIdx.x] = threadIdx.x; if (n) __syncthreads(); o[threadIdx.x] = s[threadIdx.x ^ 32]; }
extern "C" __global__ void unset(int* o, int n) { __shared__ int s[64]; if ((int)threadIdx.x < n) s[threadIdx.x] = 1; __syncthreads(); o[threadIdx.x] = s[threadIdx.x]; }
extern "C" __global__ void unset_way(int* o, int n) { __shared__ int s[64]; if ((int)threadIdx.x < n) s[threadIdx.x] = 1; __syncthreads(); if (s[threadIdx.x] == 1) o[threadIdx.x] = 1; }
extern "C" __global__ void unset_address(int* o, int n) { __shared__ int s[64]; if ((int)threadIdx.x < n) s[threadIdx.x] = 1; __syncthreads(); o[s[threadIdx.x]] = 1; }
extern "C" __global__ void unwaited(const int* g, int* o, int n) { __shared__ int s[32]; unsigned a = (unsigned)__cvta_generic_to_shared(&s[threadIdx.x]); asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(a), "l"(g + threadIdx.x)); asm volatile("cp.async.commit_group;"); if (n) asm volatile("cp.async.wait_group 0;"); __syncthreads(); o[threadIdx.x] = s[threadIdx.x]; }
extern "C" __global__ void forever(volatile int* p) { while (*p == 0) ; }
