//! Fuzzes the cubin loader: it may reject arbitrary bytes, but accepted ones must be consistent.
//!
//! Run with `cargo +nightly fuzz run cubin`; `kernels/prebuilt` makes a good corpus.

#![no_main]

use libfuzzer_sys::fuzz_target;
use orind_kernels::cubin::Cubin;

fuzz_target!(|data: &[u8]| {
    let Ok(cubin) = Cubin::parse(data) else { return };
    for kernel in &cubin.kernels {
        let end = kernel.params_offset as usize + kernel.params_bytes as usize;
        assert!(end <= kernel.constants0.len() && kernel.code.len() % 16 == 0);
    }
});
