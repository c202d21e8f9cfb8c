//! Fuzzes simulator profiles: a profile is rejected with a reason, or the simulator accepts it and
//! its clock advances.
//!
//! Run with `cargo +nightly fuzz run profile`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tegra_profile::{Profile, diff};
use tegra_sim::profile::Calibration;

fuzz_target!(|data: &[u8]| {
    if let Ok(profile) = Profile::parse(data) {
        let text = profile.to_json().expect("what was read can be written");
        assert_eq!(Profile::parse(text.as_bytes()).expect("and read again"), profile);
        let _ = diff::compare(&profile, &profile);
        if let Ok(calibration) = Calibration::of(&profile) {
            assert!(calibration.latency.copy_bytes > 0 && calibration.latency.entry > 0);
        }
    }
});
