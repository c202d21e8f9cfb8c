//! Fuzzes files of the tuning store: they may be rejected, but accepted ones survive a round trip.
//!
//! Run with `cargo +nightly fuzz run tune_store`. The ordinary tests of `device::tune::store` also
//! replay the corpus.

#![no_main]

use libfuzzer_sys::fuzz_target;
use device::tune::store::File;

fuzz_target!(|text: &str| {
    let Ok(file) = File::parse(text) else { return };
    let once = file.text();
    let again = File::parse(&once).expect("what is written can be read");
    assert_eq!(again.text(), once);
    assert_eq!(again.unusable.len(), file.unusable.len());
    assert_eq!(again.records, file.records);
});
