//! Instruction sets: their names, and the prefetch distance that the CPU vendor decides.

use plan::DType;
use simd::Isa;
use simd::matmul::Loops;
use simd::packed::PackedLayout;

#[test]
fn available_sets_are_found_by_name_and_others_rejected() {
    for isa in Isa::available() {
        assert_eq!(Isa::named(&isa.name().to_uppercase()), Ok(isa));
    }
    let e = Isa::named("sve9").unwrap_err();
    assert!(e.to_string().contains("sve9") && e.to_string().contains("scalar"), "{e}");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn amx_is_the_best_set_if_listed_and_an_error_otherwise() {
    let about = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let listed = about.lines().any(|l| l.starts_with("flags") && l.contains(" amx_int8"));
    match Isa::named("amx") {
        Ok(isa) => assert!(listed && Isa::detect() == isa),
        Err(e) => assert!(e.to_string().contains("`amx` is not available"), "{e}"),
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn prefetch_distance_depends_on_the_cpu_vendor() {
    let about = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let amd = about.lines().any(|l| l.starts_with("vendor_id") && l.ends_with("AuthenticAMD"));
    assert_eq!(Isa::detect().prefetch_distance(), if amd { 1024 } else { 8192 });
}

#[test]
fn short_codes_and_several_rows_are_prefetched_far_ahead() {
    let near = Isa::detect().prefetch_distance();
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
