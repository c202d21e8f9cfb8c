//! Instruction sets: their names, and what follows from the maker.

use plan::DType;
use simd::Isa;
use simd::matmul::Loops;
use simd::packed::PackedLayout;

#[test]
fn every_available_set_is_found_by_its_name_and_others_are_refused() {
    for isa in Isa::available() {
        assert_eq!(Isa::named(&isa.name().to_uppercase()), Ok(isa));
    }
    let e = Isa::named("sve9").unwrap_err();
    assert!(e.to_string().contains("sve9") && e.to_string().contains("scalar"), "{e}");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn amx_is_the_best_where_the_system_lists_it_and_else_an_error_that_names_it() {
    let about = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let listed = about.lines().any(|l| l.starts_with("flags") && l.contains(" amx_int8"));
    match Isa::named("amx") {
        Ok(isa) => assert!(listed && Isa::detect() == isa),
        Err(e) => assert!(e.to_string().contains("`amx` is not available"), "{e}"),
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn how_far_ahead_follows_from_the_maker_that_the_system_names() {
    let about = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let amd = about.lines().any(|l| l.starts_with("vendor_id") && l.ends_with("AuthenticAMD"));
    assert_eq!(Isa::detect().ahead(), if amd { 1024 } else { 8192 });
}

#[test]
fn short_codes_and_several_rows_are_asked_for_far_ahead() {
    let near = Isa::detect().ahead();
    for (dtype, rows, ahead) in [
        (DType::Q4_K, 1, near),
        (DType::F16, 1, near),
        (DType::Q3_K, 1, 8192),
        (DType::TQ2_0, 1, 8192),
        (DType::Q4_K, 2, 8192),
    ] {
        let layout = PackedLayout::new(dtype, 16, 256).unwrap();
        let loops = Loops::heuristic(Isa::detect(), &layout, rows);
        assert_eq!(loops.prefetch_distance, ahead, "{dtype}, {rows} rows");
    }
}
