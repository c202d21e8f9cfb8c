//! Instruction counts of a 512-token prompt on an Orin; `docs/kernels.md` has the table.

use orind_kernels::catalogue::launch::{matmul_shared_bytes, prefill_attention_shared_bytes};
use orind_kernels::catalogue::{CacheType, Kernel, Weight};
use orind_kernels::{occupancy, prebuilt};
use orind_testing::random::Random;
use sass::count::{Class, Counters};

use super::attention::{How, of_prompt};
use super::device::Device;
use super::matmul::Case;

const ROWS: u64 = 512;
/// Tile of quantised weights.
const TILE: u32 = 128;

/// Layers of a model.
struct Model {
    name: &'static str,
    weight: Weight,
    layers: u64,
    /// Outputs and columns of the projections: queries, keys and values together; attention output;
    /// gate and up; down. Outputs with two planes count twice.
    projections: [(u64, u64); 4],
    /// Values of a head, query heads per KV head, KV heads.
    heads: (usize, usize, u64),
    vocabulary: u64,
    /// Least bound in tokens per second for each of [`MODES`].
    goals: [f64; 2],
}

const MODELS: [Model; 3] = [
    Model {
        name: "Llama-3.2-1B Q6_K",
        weight: Weight::Q6_K,
        layers: 16,
        projections: [(3584, 2048), (2048, 2048), (16_384, 2048), (2048, 8192)],
        heads: (64, 4, 8),
        vocabulary: 128_256,
        goals: [12_000.0, 3_500.0],
    },
    Model {
        name: "Qwen3-0.6B Q8_0",
        weight: Weight::Q8_0,
        layers: 28,
        projections: [(5120, 1024), (1024, 2048), (6144, 1024), (1024, 3072)],
        heads: (128, 2, 8),
        vocabulary: 151_936,
        goals: [0.0; 2],
    },
    Model {
        name: "Qwen3-1.7B Q4_K",
        weight: Weight::Q4_K,
        layers: 28,
        projections: [(5120, 2048), (2048, 2048), (12_288, 2048), (2048, 6144)],
        heads: (128, 2, 8),
        vocabulary: 151_936,
        goals: [0.0; 2],
    },
];

/// SMs times clock of an Orin at MAXN and at 30 W; an SM issues four warp instructions per clock.
pub(crate) const MODES: [(&str, f64); 2] = [("MAXN", 16.0 * 1.3e9), ("30 W", 8.0 * 0.612e9)];

pub(crate) fn instructions(counters: &Counters) -> u64 {
    counters.warp_instructions.iter().sum()
}

/// Fraction of shared memory passes that are bank conflicts.
fn conflicts(counters: &Counters) -> f64 {
    counters.bank_conflicts as f64 / (counters.shared_bytes as f64 / 128.0)
}

/// Costs of 64 outputs of 128 rows.
struct Tile {
    /// Instructions besides superblocks, instructions per superblock, and tensor core instructions
    /// among those.
    once: u64,
    superblock: u64,
    matrix: u64,
    conflicts: f64,
    /// Instructions for 256 columns of a row of activations.
    quantise: u64,
}

impl Tile {
    fn counted(weight: Weight) -> Self {
        let [[_, short], [quantise, long]] = [1024, 2048].map(|k| {
            let case =
                Case::new((weight.dtype(), TILE), TILE as usize, k, &[(64, 1)], &mut Random(1));
            case.launch(&mut Device::new(1)).1
        });
        let superblock = (instructions(&long) - instructions(&short)) / 4;
        Self {
            once: instructions(&short) - 4 * superblock,
            superblock,
            matrix: (long.warps(Class::Matrix) - short.warps(Class::Matrix)) / 4,
            conflicts: conflicts(&long),
            quantise: instructions(&quantise) / 128 / 8,
        }
    }

    /// Instructions of a projection of all rows, and tensor core instructions among those.
    fn projection(&self, (n, k): (u64, u64)) -> [u64; 2] {
        let (tiles, superblocks) = (n.div_ceil(64) * ROWS / 128, k / 256);
        let products = tiles * (self.once + superblocks * self.superblock);
        [products + ROWS * superblocks * self.quantise, tiles * superblocks * self.matrix]
    }
}

#[test]
fn prompt_of_512_tokens_costs() {
    let manifest = prebuilt::manifest().unwrap();
    for Model { name, weight, layers, projections, heads, vocabulary, goals } in MODELS {
        let tile = Tile::counted(weight);
        let [products, matrix] = projections
            .iter()
            .map(|&projection| tile.projection(projection))
            .fold([0; 2], |sum, one| [sum[0] + one[0], sum[1] + one[1]]);
        let (dim, group, kv_heads) = heads;
        let attention = of_prompt(dim, group, ROWS as i32, How::Prefill);
        let all = products + kv_heads * instructions(&attention);
        // Clocks of a partition of an SM, which computes 512 byte multiply-adds per clock; a
        // product of formats with a scale per 16 columns is half as large.
        let clocks = if weight == Weight::Q6_K { 4 } else { 8 };
        println!(
            "{name}: of a layer {all} instructions, {:.3} attention's, {:.3} the tensor cores', which are busy {:.2}",
            1.0 - products as f64 / all as f64,
            matrix as f64 / all as f64,
            (clocks * matrix) as f64 / all as f64,
        );
        let Tile { once, superblock, quantise, .. } = tile;
        println!(
            "  a tile: {superblock} a superblock, {once} once; {quantise} for 256 activations"
        );
        // Logits use two planes of activations.
        println!("  output layer: {}", tile.projection((2 * vocabulary, projections[0].1))[0]);
        println!("  conflicts: {:.4}, attention {:.4}", tile.conflicts, conflicts(&attention));
        assert!(tile.conflicts < 0.02 && conflicts(&attention) < 0.02);
        let kernel = Kernel::Matmul { weight, tile: TILE };
        let registers = manifest.kernels[&kernel.symbol()].registers;
        let shared = matmul_shared_bytes(weight, TILE);
        assert!(occupancy::blocks_per_sm(kernel.threads(), registers, shared) >= 2);
        for ((mode, clocks), goal) in MODES.into_iter().zip(goals) {
            let tokens = 4.0 * clocks * ROWS as f64 / (layers * all) as f64;
            println!("  {mode}: {tokens:.0} tokens a second");
            assert!(tokens >= goal, "{name}, {mode}: {tokens}, not {goal}");
        }
    }
}

/// Cost per query and position if rows share a block, and if each has its own blocks.
#[test]
fn prompt_attention_costs() {
    let manifest = prebuilt::manifest().unwrap();
    for (dim, group) in [(64, 4), (128, 2), (256, 2), (256, 8)] {
        let kernel = Kernel::prefill_attention(dim, group, CacheType::F16).unwrap();
        let symbol = kernel.symbol();
        let [shared, alone, half] = [How::Prefill, How::Rows, How::Half]
            .map(|how| of_prompt(dim as usize, group as usize, ROWS as i32, how));
        let pairs = (u64::from(group) * ROWS * (ROWS + 1) / 2) as f64;
        let [of_shared, of_alone, of_half] =
            [&shared, &alone, &half].map(|counters| 32.0 * instructions(counters) as f64 / pairs);
        println!(
            "{symbol}, {group} queries a row: {of_shared:.0} instructions of a lane for a query and a position, \
             {of_alone:.0} row by row, {of_half:.1} in half precision; conflicts {:.4}, {:.4}",
            conflicts(&shared),
            conflicts(&half)
        );
        assert!(of_shared < of_alone && 6.0 * of_half < of_shared);
        assert!(conflicts(&shared) < 0.02 && conflicts(&half) < 0.02);
        let half = Kernel::prefill_attention_half(dim, group, CacheType::F16).unwrap();
        for kernel in [kernel, half] {
            let registers = manifest.kernels[&kernel.symbol()].registers;
            let bytes = prefill_attention_shared_bytes(kernel);
            assert!(occupancy::blocks_per_sm(kernel.threads(), registers, bytes) >= 2);
        }
    }
}
