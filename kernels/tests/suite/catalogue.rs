//! Tests of the catalogue: every requested kernel exists, variants are in their space, and launch
//! geometry matches the kernels.

use orind_kernels::catalogue::launch::{
    SHARED_LIMIT, attention_counters, attention_grid, attention_partial_bytes, elements_grid,
    embed_grid, project_shared_bytes, project_tiles, rope_kv_grid,
};
use orind_kernels::catalogue::{CacheType, Kernel, PROJECT_SPACE, ProjectVariant, Weight};

#[test]
fn prebuilt_variants_are_few_and_valid_and_start_with_the_default() {
    for weight in Weight::ALL {
        for &rows in weight.rows() {
            let variants = ProjectVariant::prebuilt(weight, rows);
            assert!(variants.len() <= 16);
            assert_eq!(variants[0], ProjectVariant::heuristic(weight));
            for variant in &variants {
                for planes in 1..=if weight.is_quantised() { 2 } else { 1 } {
                    assert_eq!(variant.check(weight, rows * planes), Ok(()), "{variant:?}");
                }
            }
        }
    }
}

/// Size of the space with a compiler, as docs/tuning.md states it.
#[test]
fn every_value_of_every_parameter_is_in_some_combination() {
    // A chunk of F32 takes 32 registers, so four chunks are too many.
    for weight in Weight::ALL.into_iter().filter(|weight| *weight != Weight::F32) {
        let all = ProjectVariant::all(weight, 1);
        assert!((36..=62).contains(&all.len()), "{weight:?}: {}", all.len());
        for (i, parameter) in PROJECT_SPACE.iter().enumerate() {
            for value in parameter.values {
                let has = all.iter().any(|v| v.values()[i] == *value);
                assert!(has, "{weight:?} {} = {value}", parameter.name);
            }
        }
        assert!(all.iter().all(|v| ProjectVariant::of(v.values()) == *v));
        let many = weight.most_rows() * if weight.is_quantised() { 2 } else { 1 };
        let many = ProjectVariant::all(weight, many);
        assert!(many.len() <= all.len() && many.contains(&ProjectVariant::heuristic(weight)));
    }
}

#[test]
fn values_outside_the_space_are_rejected_by_name() {
    let good = ProjectVariant::heuristic(Weight::Q6_K);
    let refused = |v: ProjectVariant, weight, columns| {
        v.check(weight, columns).expect_err("refused").to_string()
    };
    let message = |v: ProjectVariant| refused(v, Weight::Q6_K, 1);
    for (variant, named) in [
        (ProjectVariant { threads_per_row: 128, ..good }, "threads_per_row = 128"),
        (ProjectVariant { warps: 1, ..good }, "warps = 1"),
        (ProjectVariant { unroll: 3, ..good }, "unroll = 3"),
        (
            ProjectVariant { threads_per_row: 32, warps: 4, ..good },
            "threads_per_row 32 over 4 warps",
        ),
        (ProjectVariant { warps: 16, rows_per_thread: 4, unroll: 4, ..good }, "registers"),
    ] {
        assert!(message(variant).contains(named), "{}", message(variant));
    }
    let wide = ProjectVariant { warps: 16, unroll: 1, ..good };
    assert_eq!(wide.check(Weight::Q6_K, 16), Ok(()));
    assert!(refused(wide, Weight::F16, 8).contains("with 8 columns of activations"));
}

#[test]
fn every_shape_of_the_known_models_has_a_kernel() {
    let all = Kernel::all();
    for weight in Weight::ALL {
        let most = weight.most_rows();
        for rows in 1..=most {
            let kernel = Kernel::project(weight, rows, 1).expect("one plane");
            assert!(all.contains(&kernel));
            let Kernel::Project { rows: room, .. } = kernel else { panic!("{kernel:?}") };
            assert!(rows <= room && (room < 2 * rows || most == 4));
        }
        assert_eq!(Kernel::project(weight, most, 2).is_some(), weight.is_quantised());
        assert_eq!(Kernel::project(weight, most + 1, 1), None);
        assert_eq!(Kernel::project(weight, 1, 3), None);
    }
    // Llama 3.2 1B, Qwen3, and groups that are not divisible by a power of two.
    for (dim, group, symbol) in [
        (64, 4, "attention_d64_h4"),
        (128, 2, "attention_d128_h2"),
        (80, 7, "attention_d128_h1"),
        (128, 8, "attention_d128_h4"),
        (256, 8, "attention_d256_h2"),
        (512, 2, "attention_d512_h1"),
    ] {
        let kernel = Kernel::attention(dim, group, CacheType::F16).expect("a kernel");
        assert_eq!(kernel.symbol(), symbol);
        assert!(all.contains(&kernel));
    }
    let wide = Kernel::prefill_attention(256, 16, CacheType::F16).expect("a kernel");
    assert_eq!(wide.symbol(), "prefill_attention_d256");
    for (dim, group) in [(512, 1), (256, 17)] {
        assert_eq!(Kernel::prefill_attention(dim, group, CacheType::F16), None, "{dim} {group}");
    }
    for (dim, group) in [(520, 1), (136, 1), (60, 1), (0, 1), (64, 0)] {
        assert_eq!(Kernel::attention(dim, group, CacheType::F16), None, "{dim} {group}");
    }
    let blocks = Kernel::attention(96, 2, CacheType::Q4_0).expect("a kernel");
    assert_eq!(blocks.symbol(), "attention_q4_0_d128_h2");
    assert_eq!(Kernel::attention(80, 2, CacheType::Q8_0), None, "heads are no whole blocks");
}

#[test]
fn launch_sizes() {
    // 2048 columns of Q6_K: 8 superblocks of 16 pieces and one of scales.
    assert_eq!(project_shared_bytes(Weight::Q6_K, 1, 1, 2048), Some(8 * 16 * 17));
    // With sums, and the scales of two planes; an odd number of pieces.
    assert_eq!(project_shared_bytes(Weight::Q4_K, 1, 2, 256), Some(16 * 37));
    assert_eq!(project_shared_bytes(Weight::Q8_0, 1, 1, 288), Some(2 * 16 * 19));
    // Eight rows of a 1B model's widest operand fit as integers, not as floats.
    assert!(project_shared_bytes(Weight::Q6_K, 8, 1, 8192).is_some_and(|b| b <= SHARED_LIMIT));
    assert_eq!(project_shared_bytes(Weight::F16, 8, 1, 8192), None);
    // Below 99 KiB, but not together with static shared memory.
    assert_eq!(project_shared_bytes(Weight::F16, 8, 1, 2816), None);
    assert!(project_shared_bytes(Weight::F16, 2, 1, 8192).is_some());
    assert_eq!(project_shared_bytes(Weight::Q8_0, 8, 2, usize::MAX), None);

    let variant = ProjectVariant::heuristic(Weight::Q6_K);
    // Four groups of two warps, with two panels each.
    assert_eq!(project_tiles(variant, &[2048, 512, 513], false), 32 + 8 + 9);
    assert_eq!(project_tiles(variant, &[8192], true), 256);
    assert_eq!(attention_partial_bytes(1, 32, 64, 300, false), 32 * 2 * (8 + 256));
    // A window of 270 positions may overlap three groups.
    assert_eq!(attention_partial_bytes(1, 32, 64, 300, true), 32 * 3 * (8 + 256));

    // Llama 3.2 1B: 2048 columns in blocks of 32, 32 heads over 8.
    assert_eq!(embed_grid(Weight::Q6_K, 2048, 3), [1, 3, 1]);
    assert_eq!(embed_grid(Weight::F16, 4097, 1), [2, 1, 1]);
    assert_eq!(elements_grid(2049, 2), [17, 2, 1]);
    assert_eq!(rope_kv_grid(32, 8, 4), [12, 4, 1]);
    assert_eq!(rope_kv_grid(0, 8, 4), [4, 4, 1]);
    let attention = Kernel::attention(64, 4, CacheType::F16).expect("a kernel");
    let grid = attention_grid(attention, 32, 8, 8, 2).expect("heads divide");
    assert_eq!((grid, attention_counters(grid)), ([8, 8, 2], 16));
    // Eight heads per KV head take two passes of four.
    assert_eq!(attention_grid(attention, 64, 8, 4, 1), Some([16, 4, 1]));
    assert_eq!(attention_grid(attention, 32, 5, 8, 1), None);
    assert_eq!(attention_grid(Kernel::Sample, 32, 8, 8, 1), None);
}

/// A unit's hash depends on its own text and headers only.
#[test]
fn units_have_separate_hashes() {
    use orind_kernels::catalogue::Unit;
    use orind_kernels::source::{Target, unit_hash};
    let mut all: Vec<String> =
        Unit::all().flat_map(|unit| Target::ALL.map(|target| unit_hash(unit, target))).collect();
    assert!(all.iter().all(|hash| hash.len() == 64));
    assert_eq!(all, {
        let again = Unit::all().flat_map(|unit| Target::ALL.map(|target| unit_hash(unit, target)));
        again.collect::<Vec<_>>()
    });
    let count = all.len();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count);
}
