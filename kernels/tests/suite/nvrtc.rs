//! Tests of run-time compilation, with and without NVRTC.

use std::cell::Cell;
use std::path::PathBuf;

use orind_kernels::catalogue::launch::SHARED_LIMIT;
use orind_kernels::catalogue::{Kernel, ProjectVariant, Weight};
use orind_kernels::cubin::Cubin;
use orind_kernels::generated::{Generated, GroupForm, GroupVariant};
use orind_kernels::jit;
use orind_kernels::nvrtc::{Compiler, Error};
use orind_kernels::params::{Action, Reduction, TensorParams, Width, step};
use orind_kernels::source::Target;
use orind_testing::program::{again, said};

/// A variant that is not prebuilt.
fn odd(weight: Weight) -> Kernel {
    let variant = ProjectVariant { warps: 4, unroll: 1, ..ProjectVariant::heuristic(weight) };
    Kernel::Project { weight, rows: 2, planes: 1, variant }
}

#[test]
fn a_variant_that_is_not_prebuilt_is_compiled_once() {
    if let Err(why) = Compiler::load() {
        return println!("skipped: {why}");
    }
    let kernel = odd(Weight::Q6_K);
    assert!(!kernel.is_prebuilt(Target::Sm87));
    let waited = Cell::new(0);
    let alive = || {
        waited.set(waited.get() + 1);
        true
    };
    let code = jit::code(kernel, Target::Sm87, &alive).unwrap();
    let cubin = Cubin::parse(code).unwrap();
    let found = cubin.kernel(&kernel.symbol()).unwrap();
    assert_eq!((found.stack_bytes, cubin.relocations.len()), (0, 0));
    waited.set(0);
    let again = jit::code(kernel, Target::Sm87, &alive).unwrap();
    assert!(std::ptr::eq(code, again) && waited.get() == 0);
    let ptx = jit::code(kernel, Target::Compute80, &alive).unwrap();
    assert!(String::from_utf8_lossy(ptx).contains(".target sm_80"));
}

/// Maximum of each row of `[2][3]` values, doubled.
fn group(base: u64) -> TensorParams {
    let mut params = TensorParams { body: 1, tail: 3, from: 8, into: 8, ..Default::default() };
    (params.outer, params.length, params.inner) = (2, 3, 1);
    params.reduce = Reduction::Largest as u32;
    let source = &mut params.sources[0];
    (source.base, source.axes, source.padded) = (base, 1, u32::MAX);
    (source.shape[0], source.strides[0]) = (6, 1);
    params.stores[0] = base + 64;
    let steps = params.steps.as_flattened_mut();
    steps[0] = step(Action::Load, 8, [0, 0, 0]);
    steps[1] = step(Action::Add, 9, [8, 8, 0]);
    steps[2] = step(Action::Store, 0, [9, Width::Word as u8, 0]);
    params
}

#[test]
fn groups_that_differ_in_addresses_share_a_kernel() {
    let of = |params: &TensorParams| Generated::of(params, GroupVariant::of(params));
    let [here, there] = [1 << 20, 1 << 30].map(|base| of(&group(base)));
    assert_eq!((here, here.text()), (there, there.text()));
    let longer = TensorParams { length: 4, ..group(1 << 20) };
    assert_ne!(of(&longer).symbol(), here.symbol());
    if let Err(why) = Compiler::load() {
        return println!("skipped: {why}");
    }
    let kernel = Kernel::Generated(here);
    assert!(!kernel.is_prebuilt(Target::Sm87));
    let code = jit::code(kernel, Target::Sm87, &|| true).unwrap();
    let cubin = Cubin::parse(code).unwrap();
    let found = cubin.kernel(&kernel.symbol()).unwrap();
    assert_eq!((found.stack_bytes, found.shared_bytes, cubin.relocations.len()), (0, 0, 0));
}

/// Each variant has its own symbol, its number of threads, and no stack.
#[test]
fn a_group_has_variants() {
    let params = group(1 << 20);
    for (warps, unroll, threads_per_row) in [(1, 8, 16), (8, 4, 256), (2, 2, 32)] {
        let variant = GroupVariant { warps, unroll, threads_per_row };
        let group = Generated::of(&params, variant);
        let plain = Generated::of(&params, GroupVariant::of(&params));
        assert_eq!((group.name(), group.threads()), (plain.name(), 32 * warps));
        assert_eq!(Generated::named(&group.name(), variant), Some(group));
        assert_eq!(group.grid(&params), [(2 * threads_per_row).div_ceil(32 * warps), 1, 1]);
        let kernel = Kernel::Generated(group);
        assert!(kernel.symbol() != plain.symbol());
        if Compiler::load().is_err() {
            continue;
        }
        let code = jit::code(kernel, Target::Sm87, &|| true).unwrap();
        let cubin = Cubin::parse(code).unwrap();
        let found = cubin.kernel(&kernel.symbol()).unwrap();
        assert_eq!((found.stack_bytes, cubin.relocations.len()), (0, 0));
    }
}

/// Few long rows have many threads and their own blocks; many rows have 16 threads each.
#[test]
fn long_rows_have_more_threads_if_there_are_few() {
    for (rows, length, warps, threads_per_row) in [
        // One pass over a row, and no thread without a column.
        (1, 1, 1, 16),
        (1, 256, 1, 16),
        (1, 257, 1, 32),
        (1, 700, 2, 64),
        (1, 4096, 8, 256),
        (1, u32::MAX, 8, 256),
        // Blocks for every SM before blocks of several rows.
        (5, 700, 2, 64),
        (16, 256, 1, 16),
        (64, 256, 2, 16),
        (128, 256, 4, 16),
        // No more threads than keep the GPU busy.
        (32, 4096, 8, 256),
        (64, 4096, 4, 128),
        (128, 1024, 4, 64),
        (256, 4096, 4, 32),
        (512, 4096, 4, 16),
        (100_000, 4096, 4, 16),
        (u32::MAX, 7, 4, 16),
        (0, 7, 1, 16),
        (7, 0, 1, 16),
    ] {
        let variant = GroupVariant { warps, unroll: 1, threads_per_row };
        let have = GroupVariant::heuristic(GroupForm::Rows, rows, length);
        assert_eq!(have, variant, "{rows} rows of {length}");
        assert!(have.threads().is_multiple_of(threads_per_row));
        let known = |values: &[u32], value| values.contains(&value);
        assert!(known(GroupVariant::WARPS, warps));
        assert!(known(GroupVariant::THREADS_PER_ROW, threads_per_row));
    }
    for form in [GroupForm::Elements, GroupForm::Columns] {
        let have = GroupVariant::heuristic(form, 3, 100_000);
        assert_eq!(have, GroupVariant { warps: 4, unroll: 1, threads_per_row: 16 });
    }
}

/// Most static shared memory of a kernel: 8 rows, and 16 warps that fold two planes.
#[test]
fn the_largest_static_shared_memory_fits() {
    if let Err(why) = Compiler::load() {
        return println!("skipped: {why}");
    }
    let weight = Weight::Q4_K;
    let variant = ProjectVariant {
        threads_per_row: 4,
        warps: 16,
        unroll: 1,
        ..ProjectVariant::heuristic(weight)
    };
    assert_eq!(variant.check(weight, 16), Ok(()));
    let kernel = Kernel::Project { weight, rows: 8, planes: 2, variant };
    let code = jit::code(kernel, Target::Sm87, &|| true).unwrap();
    let own = Cubin::parse(code).unwrap().kernel(&kernel.symbol()).unwrap().shared_bytes;
    assert_eq!(own + u64::from(SHARED_LIMIT), 99 << 10);
}

#[test]
fn compile_errors_contain_the_compiler_s_message() {
    let compiler = match Compiler::load() {
        Ok(compiler) => compiler,
        Err(why) => return println!("skipped: {why}"),
    };
    let options = ["--gpu-architecture=sm_87".to_owned()];
    let error = compiler.compile("x.cu", "int x = y;", &[], &options, false).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Call { call: "nvrtcCompileProgram", .. }), "{error:?}");
    assert!(text.contains("x.cu") && text.contains("\"y\" is undefined"), "{text}");
}

/// Names of CUDA 12, which an Orin has, and of CUDA 13, with and without the development package.
#[test]
fn nvrtc_is_found_by_the_names_of_cuda_12_and_13() {
    // Any library will do: the error about a missing function shows that it was loaded.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let library = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .find(|path| path.contains("libgcc_s"))
        .unwrap();
    if let Ok(compiler) = Compiler::load() {
        return println!("skipped: NVRTC {:?} is here, and found first", compiler.version());
    }
    for name in ["libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so"] {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::copy(library, folder.join(name)).unwrap();
        let mut command = again(module_path!(), "print_the_loaded_library");
        let text = said(command.env("LD_LIBRARY_PATH", &folder).env_remove("ORIND_NVRTC"));
        assert!(text.contains(&format!("{name} has no nvrtcVersion")), "{name}: {text}");
    }
}

#[test]
#[ignore = "run by `nvrtc_is_found_by_the_names_of_cuda_12_and_13`"]
fn print_the_loaded_library() {
    println!("{}", Compiler::load().unwrap_err());
}
