//! CPU kernels compared with their limits. Decode: products with one row, compared with a plain read of the same bytes.
//! Prefill: products with many rows, compared with the processor's integer products and with their own inner loop
//! alone. Also quantisation of activations, attention of a token (bytes of its cache) and of a prompt (multiply-adds).
//!
//! One thread, so that the numbers are those of the kernels, not of the thread pool. Weights cycle through a buffer
//! larger than the caches.

#![expect(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use device::cpu::mem::AlignedBuf;
use plan::DType;
use simd::Isa;
use simd::activations::{self, ActivationFormat, F32Block, Q8Block};
use simd::attention::{self, Attend, Places};
use simd::cache::CacheFormat;
use simd::matmul::{Activations, Loops, Product, Q8Activations, matmul};
use simd::packed::PackedLayout;

const TYPES: [DType; 6] =
    [DType::Q8_0, DType::Q4_0, DType::Q4_K, DType::Q5_K, DType::Q6_K, DType::F16];
const K: usize = 2048;
const BUFFER: usize = 512 << 20;
const PIECE: usize = 16 << 20;

/// Value of every byte of the weights, so that scales read as `f16` or `f32` are normal numbers. Subnormal scales
/// would measure the processor's slow path, which no model uses.
const ORDINARY: u8 = 0x38;

/// Activation rows, quantised and as `f32`.
struct Acts {
    q8: Vec<Q8Block>,
    f32: Vec<F32Block>,
    planes: usize,
}

impl Acts {
    fn new(isa: Isa, rows: usize, format: ActivationFormat) -> Self {
        let (blocks, planes) = (activations::blocks(K), format.residual_planes);
        let (q8, f32) = (Q8Block::default(), [0.0; 32]);
        let mut acts =
            Self { q8: vec![q8; blocks * rows * planes], f32: vec![f32; blocks * rows], planes };
        for row in 0..rows {
            let x: Vec<f32> =
                (0..K).map(|i| ((i * 7919 + row) % 1000) as f32 / 500.0 - 1.0).collect();
            let [at8, at32] = [planes, 1].map(|each| activations::place(row, rows, blocks * each));
            // SAFETY: both have room for the blocks of all rows.
            unsafe {
                let (q8, f32) = (acts.q8.as_mut_ptr(), acts.f32.as_mut_ptr());
                activations::quantise(isa, x.as_ptr(), K, q8.add(at8.first), at8.step, format);
                activations::arrange(isa, x.as_ptr(), K, f32.add(at32.first), at32.step);
            }
        }
        acts
    }

    /// Multiplies `rows` rows. `out` has room for the layout's rows times `rows`.
    fn multiply(
        &self,
        isa: Isa,
        layout: &PackedLayout,
        weights: &[u8],
        rows: usize,
        out: &mut [f32],
    ) {
        assert!(out.len() >= rows * layout.rows());
        let x = if layout.quantised() {
            Activations::Q8(Q8Activations {
                blocks: self.q8.as_ptr(),
                residual_planes: self.planes,
                used_planes: self.planes,
            })
        } else {
            Activations::F32(self.f32.as_ptr())
        };
        let product = Product {
            layout,
            weights,
            groups: 0..layout.groups(),
            x,
            rows: 0..rows,
            of: rows,
            out: out.as_mut_ptr(),
            stride: layout.rows(),
            residual: None,
            loops: Loops::heuristic(isa, layout, rows),
        };
        // SAFETY: `x` has `rows` rows of the layout's columns, `out` room for their products.
        unsafe { matmul(isa, &product) };
    }
}

/// Wrapping sum of all words, with enough independent accumulators to be limited by memory.
fn read(words: &[u32]) -> u32 {
    let mut sums = [0u32; 128];
    for chunk in words.as_chunks::<128>().0 {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().fold(0u32, |a, b| a.wrapping_add(*b))
}

fn decode(c: &mut Criterion) {
    let isa = Isa::detect();
    let mut buf = AlignedBuf::new(BUFFER).unwrap();
    buf.as_mut_slice::<u8>().fill(ORDINARY);
    let (bytes, words) = (buf.as_slice::<u8>(), buf.as_slice::<u32>());
    let mut group = c.benchmark_group(format!("decode/{isa}"));
    group.throughput(Throughput::Bytes(PIECE as u64));
    let mut at = 0;
    group.bench_function("read", |b| {
        b.iter(|| {
            at = (at + PIECE) % BUFFER;
            black_box(read(&words[at / 4..][..PIECE / 4]))
        });
    });
    for dtype in TYPES {
        let per_group = PackedLayout::new(dtype, 16, K).unwrap().bytes();
        let layout = PackedLayout::new(dtype, PIECE / per_group * 16, K).unwrap();
        group.throughput(Throughput::Bytes(layout.bytes() as u64));
        // Logits take activations in two residual planes.
        let logits = layout.quantised().then_some(("logits", 1, 2));
        let few = [("1", 1, 1), ("2", 2, 1), ("4", 4, 1), ("8", 8, 1)];
        for (name, rows, planes) in few.into_iter().chain(logits) {
            let acts = Acts::new(
                isa,
                rows,
                ActivationFormat { residual_planes: planes, span: layout.span() },
            );
            let mut out = vec![0.0; rows * layout.rows()];
            group.bench_function(BenchmarkId::new(dtype.name(), name), |b| {
                b.iter(|| {
                    at = (at + PIECE) % BUFFER;
                    acts.multiply(isa, &layout, &bytes[at..][..layout.bytes()], rows, &mut out);
                });
            });
        }
    }
    group.finish();
}

/// Prefill on the best instruction set, and without its matrix unit if it has one.
fn prefill(c: &mut Criterion) {
    let best = Isa::detect();
    prefill_on(c, best);
    if best.name() == "amx" {
        Isa::named("avx512").into_iter().for_each(|vectors| prefill_on(c, vectors));
    }
}

fn prefill_on(c: &mut Criterion, isa: Isa) {
    let mut group = c.benchmark_group(format!("prefill/{isa}"));
    group.sample_size(20);
    #[cfg(target_arch = "x86_64")]
    if isa.name() == "avx512" {
        let (rows, mut sums) = ([[1u8; 64]; limits::ROWS], [[0.0f32; 16]; limits::ROWS]);
        group.throughput(Throughput::Elements(limits::OPERATIONS));
        // SAFETY: the instruction set was detected.
        group.bench_function("limit/products", |b| b.iter(|| unsafe { limits::products() }));
        group.bench_function("limit/Q6_K", |b| {
            // SAFETY: as above.
            b.iter(|| unsafe { limits::block(black_box(&rows), black_box(&mut sums)) });
        });
    }
    #[cfg(target_arch = "x86_64")]
    if isa.name() == "amx" {
        group.throughput(Throughput::Elements(limits::TILE_OPERATIONS));
        // SAFETY: the instruction set was detected.
        group.bench_function("limit/tiles", |b| b.iter(|| unsafe { limits::tiles() }));
    }
    for dtype in TYPES {
        let layout = PackedLayout::new(dtype, 256, K).unwrap();
        let weights = vec![ORDINARY; layout.bytes()];
        let (rows, mut out) = (512, vec![0.0; 512 * 256]);
        let acts =
            Acts::new(isa, rows, ActivationFormat { residual_planes: 1, span: layout.span() });
        // A multiply-add counts as two, so that criterion's elements are operations.
        group.throughput(Throughput::Elements((2 * rows * layout.rows() * K) as u64));
        group.bench_function(dtype.name(), |b| {
            b.iter(|| acts.multiply(isa, &layout, &weights, rows, &mut out));
        });
    }
    group.finish();
}

fn quantise(c: &mut Criterion) {
    let isa = Isa::detect();
    let mut group = c.benchmark_group(format!("activations/{isa}"));
    // Few enough rows that they and their quantised blocks stay in L1.
    let rows = 2;
    let x: Vec<f32> = (0..rows * K).map(|i| (i * 7919 % 1000) as f32 / 500.0 - 1.0).collect();
    let forms = [("32 columns", 1, 1), ("256 columns", 1, 8), ("256 columns, two planes", 2, 8)];
    for (name, planes, span) in forms {
        let count = activations::blocks(K) * planes;
        let mut blocks = vec![Q8Block::default(); count * rows];
        group.throughput(Throughput::Elements((rows * K) as u64));
        group.bench_function(name, |b| {
            b.iter(|| {
                for row in 0..rows {
                    let at = activations::place(row, rows, count);
                    // SAFETY: `x` and `blocks` have room for all rows.
                    unsafe {
                        let (x, dst) = (x.as_ptr().add(row * K), blocks.as_mut_ptr().add(at.first));
                        activations::quantise(
                            isa,
                            x,
                            K,
                            dst,
                            at.step,
                            ActivationFormat { residual_planes: planes, span },
                        );
                    }
                }
            });
        });
    }
    group.finish();
}

fn attend(c: &mut Criterion) {
    let isa = Isa::detect();
    let mut group = c.benchmark_group(format!("attention/{isa}"));
    for positions in [512, 4096] {
        let (heads, dim) = (4, 64);
        // Keys and values, of two bytes.
        group.throughput(Throughput::Bytes((2 * 2 * positions * dim) as u64));
        let mut attend = attention(isa, heads, dim, 1, positions);
        group.bench_function(BenchmarkId::from_parameter(positions), |b| {
            b.iter(|| attend(positions));
        });
    }
    for (heads, dim) in [(4, 64), (2, 128)] {
        let (rows, tokens) = (16, 512);
        // Scores and values take the same number of multiply-adds; each token attends to itself and earlier ones.
        let positions = tokens * (tokens + 1) / 2;
        group.throughput(Throughput::Elements((2 * 2 * heads * dim * positions) as u64));
        let mut attend = attention(isa, heads, dim, rows, tokens);
        group.bench_function(BenchmarkId::new("prompt", dim), |b| {
            b.iter(|| (0..tokens).step_by(rows).for_each(|before| attend(before + 1)));
        });
    }
    group.finish();
}

/// Returns attention of `rows` neighbouring tokens as a function of the number of positions that the first one attends
/// to, at most `most`.
fn attention(isa: Isa, heads: usize, dim: usize, rows: usize, most: usize) -> impl FnMut(usize) {
    let cache: Vec<u16> = (0..most * dim).map(|i| 0x3400 + (i * 7919 % 1024) as u16).collect();
    let (q, mut out) = (vec![0.1f32; rows * heads * dim], vec![0.0f32; rows * heads * dim]);
    let mut scratch = vec![0.0f32; attention::scratch_len(dim)];
    move |positions| {
        let job = Attend {
            q: q.as_ptr(),
            rows,
            stride: heads * dim,
            heads,
            dim,
            format: CacheFormat::F16,
            places: Places::Ring(usize::MAX),
            keys: cache.as_ptr().cast(),
            values: cache.as_ptr().cast(),
            positions,
            window: usize::MAX,
            scale: 0.1,
            cap: None,
            sinks: None,
            scratch: scratch.as_mut_ptr(),
            out: out.as_mut_ptr(),
        };
        // SAFETY: all buffers have the sizes that `Attend` documents.
        unsafe { attention::attend(isa, &job) };
    }
}

/// Upper limits of products with many rows.
#[cfg(target_arch = "x86_64")]
mod limits {
    use std::arch::asm;
    use std::arch::x86_64::{__m512, __m512i, _mm512_set1_epi8, _mm512_set1_ps};

    /// Activation rows that are multiplied with a block.
    pub(super) const ROWS: usize = 64;
    /// Operations of a block of 16 rows by 32 columns with [`ROWS`].
    pub(super) const OPERATIONS: u64 = 2 * 16 * 32 * ROWS as u64;

    /// The products of [`block`], with all operands in registers.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub(super) unsafe fn products() {
        let w: __m512i = _mm512_set1_epi8(1);
        for _ in 0..ROWS / 2 {
            // SAFETY: uses only the registers that it declares.
            unsafe {
                asm!(
                    ".irp r, 0, 1, 2, 3, 4, 5, 6, 7",
                    "vpdpbusd zmm\\r, {w}, {w}",
                    "vpdpbusd zmm1\\r, {w}, {w}",
                    ".endr",
                    w = in(zmm_reg) w,
                    out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _,
                    out("zmm4") _, out("zmm5") _, out("zmm6") _, out("zmm7") _,
                    out("zmm10") _, out("zmm11") _, out("zmm12") _, out("zmm13") _,
                    out("zmm14") _, out("zmm15") _, out("zmm16") _, out("zmm17") _,
                    options(nostack, nomem, preserves_flags),
                );
            }
        }
    }

    /// Number of tile products of 32 columns.
    const TILE_PRODUCTS: u64 = 64;
    /// Operations of [`TILE_PRODUCTS`].
    pub(super) const TILE_OPERATIONS: u64 = 2 * 16 * 16 * 32 * TILE_PRODUCTS;

    /// Tile products of 32 columns with all operands in tile registers. Four sums hide their latency.
    ///
    /// # Safety
    ///
    /// The process may use AMX.
    pub(super) unsafe fn tiles() {
        #[repr(align(64))]
        struct Configuration([u8; 64]);
        let mut configuration = Configuration([0; 64]);
        configuration.0[0] = 1;
        for (tile, (rows, bytes)) in
            [(16, 64); 4].into_iter().chain([(16, 32), (8, 64)]).enumerate()
        {
            (configuration.0[48 + tile], configuration.0[16 + 2 * tile]) = (rows, bytes);
        }
        // SAFETY: reads the configuration, computes with the configured tiles, and releases them.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(nostack, readonly));
            for _ in 0..TILE_PRODUCTS / 4 {
                asm!(
                    "tdpbssd tmm0, tmm4, tmm5",
                    "tdpbssd tmm1, tmm4, tmm5",
                    "tdpbssd tmm2, tmm4, tmm5",
                    "tdpbssd tmm3, tmm4, tmm5",
                    options(nostack, nomem, preserves_flags),
                );
            }
            asm!("tilerelease", options(nostack, nomem, preserves_flags));
        }
    }

    /// A block of `Q6_K` in registers with rows in L1, like the kernel: eight rows at a time.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub(super) unsafe fn block(rows: &[[u8; 64]; ROWS], sums: &mut [[f32; 16]; ROWS]) {
        let (w, s): (__m512i, __m512) = (_mm512_set1_epi8(1), _mm512_set1_ps(1e-9));
        for (x, sums) in rows.as_chunks::<8>().0.iter().zip(sums.as_chunks_mut::<8>().0) {
            // SAFETY: reads 64 bytes of each of eight rows, reads and writes their sums.
            unsafe {
                asm!(
                    // Initial values of the dot products of a row's two halves.
                    ".irp r, 0, 1, 2, 3, 4, 5, 6, 7",
                    "vpbroadcastd zmm\\r, dword ptr [{x} + 64*\\r + 48]",
                    "vpbroadcastd zmm1\\r, dword ptr [{x} + 64*\\r + 52]",
                    ".endr",
                    ".irp column, 0, 4, 8, 12",
                    ".irp r, 0, 1, 2, 3, 4, 5, 6, 7",
                    "vpdpbusd zmm\\r, {w}, dword ptr [{x} + 64*\\r + \\column]{{1to16}}",
                    "vpdpbusd zmm1\\r, {w}, dword ptr [{x} + 64*\\r + 16 + \\column]{{1to16}}",
                    ".endr",
                    ".endr",
                    // Adds each half, times its scale, to the sum so far.
                    ".irp r, 0, 1, 2, 3, 4, 5, 6, 7",
                    "vfmadd213ps zmm\\r, {s}, zmmword ptr [{sums} + 64*\\r]",
                    "vfmadd231ps zmm\\r, zmm1\\r, {s}",
                    "vmovups zmmword ptr [{sums} + 64*\\r], zmm\\r",
                    ".endr",
                    x = in(reg) x.as_ptr(),
                    sums = in(reg) sums.as_mut_ptr(),
                    w = in(zmm_reg) w,
                    s = in(zmm_reg) s,
                    out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _,
                    out("zmm4") _, out("zmm5") _, out("zmm6") _, out("zmm7") _,
                    out("zmm10") _, out("zmm11") _, out("zmm12") _, out("zmm13") _,
                    out("zmm14") _, out("zmm15") _, out("zmm16") _, out("zmm17") _,
                    options(nostack, preserves_flags),
                );
            }
        }
    }
}

criterion_group!(benches, decode, prefill, quantise, attend);
criterion_main!(benches);
