// Operations across a warp's lanes that compilers rarely emit: small and bitwise matrix products,
// transposed matrices, reductions by masks, barriers whose number and count are in registers.
typedef unsigned u32;
#define PRODUCT(name, text, A, B, C) extern "C" __global__ void name(u32* __restrict__ d, const u32* __restrict__ a, const u32* __restrict__ b) { \
  int l = threadIdx.x; u32 x[4] = {0}, y[2] = {0}, z[4] = {0}; \
  for (int i = 0; i < A; ++i) x[i] = a[l * A + i]; \
  for (int i = 0; i < B; ++i) y[i] = b[l * B + i]; \
  for (int i = 0; i < C; ++i) z[i] = d[l * C + i]; \
  text; \
  for (int i = 0; i < C; ++i) d[l * C + i] = z[i]; }
#define SMALL(name, form) PRODUCT(name, asm volatile("mma.sync.aligned." form " {%0,%1}, {%2}, {%3}, {%0,%1};" : "+r"(z[0]), "+r"(z[1]) : "r"(x[0]), "r"(y[0])), 1, 1, 2)
#define MIDDLE(name, form) PRODUCT(name, asm volatile("mma.sync.aligned." form " {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};" : "+r"(z[0]), "+r"(z[1]), "+r"(z[2]), "+r"(z[3]) : "r"(x[0]), "r"(x[1]), "r"(y[0])), 2, 1, 4)
#define LARGE(name, form) PRODUCT(name, asm volatile("mma.sync.aligned." form " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" : "+r"(z[0]), "+r"(z[1]), "+r"(z[2]), "+r"(z[3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1])), 4, 2, 4)
SMALL(bytes_8, "m8n8k16.row.col.s32.s8.u8.s32")
SMALL(nibbles_8, "m8n8k32.row.col.s32.u4.s4.s32")
MIDDLE(nibbles_16, "m16n8k32.row.col.s32.s4.s4.s32")
SMALL(bits_8, "m8n8k128.row.col.s32.b1.b1.s32.and.popc")
MIDDLE(bits_16, "m16n8k128.row.col.s32.b1.b1.s32.xor.popc")
LARGE(bits_256, "m16n8k256.row.col.s32.b1.b1.s32.xor.popc")
extern "C" __global__ void doubles(double* __restrict__ d, const double* __restrict__ a, const double* __restrict__ b) {
  int l = threadIdx.x; asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+d"(d[2 * l]), "+d"(d[2 * l + 1]) : "d"(a[l]), "d"(b[l]));
}
extern "C" __global__ void transposed(u32* __restrict__ d, const u32* __restrict__ a) {
  u32 r; asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(a[threadIdx.x])); d[threadIdx.x] = r;
}
extern "C" __global__ void sums_by_mask(u32* __restrict__ d, const u32* __restrict__ a, const u32* __restrict__ masks) {
  d[threadIdx.x] = __reduce_add_sync(masks[threadIdx.x], a[threadIdx.x]);
}
extern "C" __global__ void barrier_in_registers(u32* __restrict__ d, const u32* __restrict__ p) {
  u32 id = p[0], count = p[1], r; if (threadIdx.x >= count) return;
  asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; barrier.red.popc.u32 %0, %2, %3, p;}" : "=r"(r) : "r"(threadIdx.x % 3), "r"(id), "r"(count));
  u32 q; asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; barrier.red.popc.u32 %0, 3, %2, p;}" : "=r"(q) : "r"(threadIdx.x & 1), "r"(count));
  u32 s; asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; barrier.red.popc.u32 %0, %2, 64, p;}" : "=r"(s) : "r"(threadIdx.x & 3), "r"(id));
  d[threadIdx.x] = r | q << 8 | s << 16;
}
