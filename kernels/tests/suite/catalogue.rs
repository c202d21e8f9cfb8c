//! The catalogue: every kernel that is asked for exists, variants are in their space, launch
//! arithmetic is that of the kernels.

use orind_kernels::catalogue::launch::{
    SHARED_LIMIT, attention_counters, attention_grid, attention_partial_bytes, elements_grid,
    embed_grid, project_shared_bytes, project_tiles, rope_kv_grid,
};
use orind_kernels::catalogue::{Kernel, PROJECT_SPACE, ProjectVariant, Weight};

#[test]
fn prebuilt_variants_are_few_valid_and_begin_with_the_heuristic() {
    for weight in Weight::ALL {
        for rows in [1, 2, 4, 8] {
            let variants = ProjectVariant::prebuilt(weight, rows);
            assert!(variants.len() <= 16);
            assert_eq!(variants[0], ProjectVariant::heuristic(weight));
            assert_eq!(variants[0].threads_per_row, 32, "as measured on an Orin");
            for variant in &variants {
                for planes in 1..=if weight.is_quantised() { 2 } else { 1 } {
                    assert_eq!(variant.check(weight, rows * planes), Ok(()), "{variant:?}");
                }
            }
        }
    }
}

/// What decides the order of additions must be available for every batch.
#[test]
fn every_order_exists_for_every_batch() {
    let orders = |weight, rows| {
        let mut orders: Vec<u32> =
            ProjectVariant::prebuilt(weight, rows).iter().map(|v| v.threads_per_row).collect();
        orders.sort_unstable();
        orders.dedup();
        orders
    };
    assert!(PROJECT_SPACE.iter().all(|p| p.decides_order == (p.name == "threads_per_row")));
    for weight in Weight::ALL {
        for rows in [2, 4, 8] {
            assert_eq!(orders(weight, rows), orders(weight, 1), "{weight:?}");
        }
    }
}

/// The space that a compiler opens, as docs/tuning.md states its size.
#[test]
fn every_value_of_every_parameter_is_in_some_combination() {
    for weight in Weight::ALL {
        let all = ProjectVariant::all(weight, 1);
        assert_eq!(all.len(), if weight.is_quantised() { 624 } else { 208 }, "{weight:?}");
        for (i, parameter) in PROJECT_SPACE.iter().enumerate() {
            let one = parameter.name == "accumulators" && !weight.is_quantised();
            for value in if one { &[1] } else { parameter.values } {
                let has = all.iter().any(|v| v.values()[i] == *value);
                assert!(has, "{weight:?} {} = {value}", parameter.name);
            }
        }
        assert!(all.iter().all(|v| ProjectVariant::of(v.values()) == *v));
        let many = ProjectVariant::all(weight, 16);
        assert!(many.len() <= all.len() && many.contains(&ProjectVariant::heuristic(weight)));
    }
}

#[test]
fn a_second_warp_needs_columns() {
    let two = ProjectVariant { threads_per_row: 64, ..ProjectVariant::heuristic(Weight::Q6_K) };
    assert!(!two.has_work(Weight::Q6_K, 2048) && two.has_work(Weight::Q6_K, 2304));
    assert!(!two.has_work(Weight::Q8_0, 1024) && two.has_work(Weight::Q8_0, 2048));
    assert!(ProjectVariant::heuristic(Weight::Q6_K).has_work(Weight::Q6_K, 256));
}

#[test]
fn values_outside_the_space_are_refused_by_name() {
    let good = ProjectVariant::heuristic(Weight::Q6_K);
    let refused = |v: ProjectVariant, weight, columns| {
        v.check(weight, columns).expect_err("refused").to_string()
    };
    let message = |v: ProjectVariant| refused(v, Weight::Q6_K, 1);
    for (variant, named) in [
        (ProjectVariant { threads_per_row: 128, ..good }, "threads_per_row = 128"),
        (ProjectVariant { warps: 1, ..good }, "warps = 1"),
        (ProjectVariant { stages: 0, ..good }, "stages = 0"),
        (ProjectVariant { vector_bytes: 32, ..good }, "vector_bytes = 32"),
        (ProjectVariant { accumulators: 3, ..good }, "accumulators = 3"),
        (ProjectVariant { rows_per_thread: 4, unroll: 4, ..good }, "registers"),
        (ProjectVariant { rows_per_thread: 4, stages: 3, ..good }, "stages 3 over 8 warps"),
        (ProjectVariant { unroll: 2, stages: 2, ..good }, "unroll 2 with stages 2"),
        (ProjectVariant { rows_per_thread: 4, vector_bytes: 8, ..good }, "vector_bytes 8 with"),
    ] {
        assert!(message(variant).contains(named), "{}", message(variant));
    }
    let two = ProjectVariant { accumulators: 2, ..good };
    assert_eq!(two.check(Weight::Q6_K, 1), Ok(()));
    assert!(refused(two, Weight::F16, 1).contains("accumulators 2 of F16"));
    let wide = ProjectVariant { warps: 16, ..good };
    assert_eq!(wide.check(Weight::Q6_K, 8), Ok(()));
    assert!(refused(wide, Weight::Q6_K, 16).contains("16 columns of activations: at most 1"));
}

#[test]
fn every_shape_of_the_known_models_has_a_kernel() {
    let all = Kernel::all();
    for weight in Weight::ALL {
        for rows in 1..=8 {
            let kernel = Kernel::project(weight, rows, 1).expect("one plane");
            assert!(all.contains(&kernel));
            let Kernel::Project { rows: most, .. } = kernel else { panic!("{kernel:?}") };
            assert!(rows <= most && most < 2 * rows);
        }
        assert_eq!(Kernel::project(weight, 8, 2).is_some(), weight != Weight::F16);
        assert_eq!(Kernel::project(weight, 9, 1), None);
        assert_eq!(Kernel::project(weight, 1, 3), None);
    }
    // Llama 3.2 1B, Qwen3, and groups that no power of two divides.
    for (dim, group, symbol) in [
        (64, 4, "attention_rope_d64_h4"),
        (128, 2, "attention_rope_d128_h2"),
        (80, 7, "attention_rope_d128_h1"),
        (128, 8, "attention_rope_d128_h4"),
    ] {
        let kernel = Kernel::attention(dim, group, true).expect("a kernel");
        assert_eq!(kernel.symbol(), symbol);
        assert!(all.contains(&kernel));
    }
    for (dim, group) in [(136, 1), (60, 1), (0, 1), (64, 0)] {
        assert_eq!(Kernel::attention(dim, group, false), None, "{dim} {group}");
    }
}

#[test]
fn launch_arithmetic() {
    // 2048 columns of Q6_K: 32 chunks of 64, 34 pieces apart, each 4 x 16 bytes and 2 scales.
    assert_eq!(project_shared_bytes(Weight::Q6_K, 1, 1, 2048), Some(34 * (64 + 8)));
    // With sums.
    assert_eq!(project_shared_bytes(Weight::Q4_K, 1, 2, 256), Some(2 * (8 + 2) * (64 + 16)));
    // Eight rows of the longest operand of a 1B model fit as steps, not as numbers.
    assert!(project_shared_bytes(Weight::Q6_K, 8, 1, 8192).is_some_and(|b| b <= SHARED_LIMIT));
    assert_eq!(project_shared_bytes(Weight::F16, 8, 1, 8192), None);
    // Within 99 KiB, but not together with what the kernel declares itself.
    assert_eq!(project_shared_bytes(Weight::F16, 8, 1, 3136), None);
    assert!(project_shared_bytes(Weight::F16, 2, 1, 8192).is_some());
    assert_eq!(project_shared_bytes(Weight::Q8_0, 8, 2, usize::MAX), None);

    let variant = ProjectVariant::heuristic(Weight::Q6_K);
    // Eight warps of one group with two rows each.
    assert_eq!(project_tiles(variant, &[2048, 512, 513], false), 128 + 32 + 33);
    assert_eq!(project_tiles(variant, &[8192], true), 1024);
    assert_eq!(attention_partial_bytes(1, 32, 64, 300), 32 * 2 * (8 + 256));

    // Llama 3.2 1B: 2048 columns in blocks of 32, 32 heads over 8.
    assert_eq!(embed_grid(Weight::Q6_K, 2048, 3), [1, 3, 1]);
    assert_eq!(embed_grid(Weight::F16, 2049, 1), [3, 1, 1]);
    assert_eq!(elements_grid(2049, 2), [17, 2, 1]);
    assert_eq!(rope_kv_grid(32, 8, 4), [12, 4, 1]);
    assert_eq!(rope_kv_grid(0, 8, 4), [4, 4, 1]);
    let attention = Kernel::attention(64, 4, true).expect("a kernel");
    let grid = attention_grid(attention, 32, 8, 8, 2).expect("heads divide");
    assert_eq!((grid, attention_counters(grid)), ([8, 8, 2], 16));
    // Eight heads to a KV head are two passes of four.
    assert_eq!(attention_grid(attention, 64, 8, 4, 1), Some([16, 4, 1]));
    assert_eq!(attention_grid(attention, 32, 5, 8, 1), None);
    assert_eq!(attention_grid(Kernel::Sample, 32, 8, 8, 1), None);
}

/// A unit's hash is its own: another unit's text or header does not enter into it.
#[test]
fn units_have_hashes_of_their_own() {
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
