//! A file of the tuning store with arbitrary text: it may be refused, but what is accepted is written
//! back so that it reads the same.
//!
//! Run with `cargo +nightly fuzz run tune_store`. The corpus beside this file is also replayed by the
//! ordinary tests of `device::tune::store`.

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
