//! Facts that the simulator uses from a profile, and profiles that it refuses.

use proptest::prelude::*;
use tegra_profile::{Experiment, Machine, Profile, Value, Verdict, facts};
use tegra_sim::gpu::Latency;
use tegra_sim::profile::{Calibration, SIMULATED};

fn with(experiment: &str, fact: &str, value: impl Into<Value>) -> Profile {
    let mut profile = Profile::new("test", 0, Machine::default());
    let mut record = Experiment::new(experiment, "", "", Verdict::Measured);
    record.facts.insert(fact.into(), value.into());
    profile.experiments.push(record);
    profile
}

fn refused(experiment: &str, fact: &str, value: &str) -> String {
    Calibration::of(&with(experiment, fact, value)).unwrap_err().to_string()
}

/// The record of the simulator's own answers gives the simulator that made it.
#[test]
fn its_own_record_changes_next_to_nothing() {
    let calibration = Calibration::of(&Profile::parse(SIMULATED.as_bytes()).unwrap()).unwrap();
    let (found, own) = (calibration.latency, Latency::default());
    let near = |a: u64, b: u64| a.abs_diff(b) <= 8.max(b / 10);
    for (what, found, own) in [
        ("doorbell", found.doorbell, own.doorbell),
        ("entry", found.entry, own.entry),
        ("method", found.method, own.method),
        ("release", found.release, own.release),
        ("launch", found.launch, own.launch),
        ("dependent", found.dependent, own.dependent),
        ("copy_start", found.copy_start, own.copy_start),
        ("copy_bytes", found.copy_bytes, own.copy_bytes),
        ("kernel_bytes", found.kernel_bytes, own.kernel_bytes),
    ] {
        assert!(near(found, own), "{what}: {found}, own {own}");
    }
    assert!(calibration.hardware.record.is_some() && calibration.hardware.engines.is_some());
    assert!(calibration.unused.iter().any(|name| name == "event-latency"));
}

#[test]
fn an_empty_profile_changes_nothing() {
    let calibration = Calibration::of(&Profile::new("test", 0, Machine::default())).unwrap();
    assert_eq!(calibration, Calibration::default());
}

#[test]
fn lists_are_checked() {
    let engines = |list| refused(facts::ENGINES, facts::ENGINE_LIST, list);
    assert!(engines("0.0@0 x").contains("\"x\""));
    assert!(engines("0.0@9").contains("runlist 9"));
    assert!(engines("2.0@1").contains("lacks the graphics engine"));
    assert!(engines("").contains("lacks the graphics engine"));
    assert!(engines(&"0.0@0 ".repeat(33)).contains("more than 32"));
    let record = |digits: &str| refused(facts::CHARACTERISTICS, facts::RECORD, digits);
    assert!(record("7001").contains("2 bytes, not 328"));
    assert!(record("zz").contains("hexadecimal"));
    assert!(record("é").contains("hexadecimal"));
    assert!(record(&"00".repeat(328)).contains("another chip"));
    let profile = Profile::parse(SIMULATED.as_bytes()).unwrap();
    let own = profile.fact(facts::CHARACTERISTICS, facts::RECORD).unwrap().text().unwrap();
    let mut whole = own.to_owned();
    // Both GPCs: their number and their mask.
    whole.replace_range(24..26, "02");
    assert!(record(&whole).contains("2 GPCs, mask 0x1"));
    whole.replace_range(192..194, "03");
    let calibration =
        Calibration::of(&with(facts::CHARACTERISTICS, facts::RECORD, whole.as_str())).unwrap();
    assert_eq!(calibration.hardware.shape().sms(), 16);
}

/// The largest allocation limits only where more was refused.
#[test]
fn the_largest_allocation_is_a_limit_only_if_more_was_refused() {
    let mut profile = with(facts::LARGEST.experiment, facts::LARGEST.name, 1u64 << 32);
    assert_eq!(Calibration::of(&profile).unwrap().hardware.largest, None);
    let facts = &mut profile.experiments[0].facts;
    facts.insert(facts::LARGEST_IS_LIMIT.into(), true.into());
    assert_eq!(Calibration::of(&profile).unwrap().hardware.largest, Some(1 << 32));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    /// Any numbers: refused, or a clock that goes on.
    #[test]
    fn any_numbers(numbers in proptest::collection::vec(prop_oneof![-1e12..1e12f64, 0.0..1e6f64], 10)) {
        let mut profile = Profile::new("test", 0, Machine::default());
        for (fact, number) in facts::FACTS.iter().zip(numbers) {
            let mut record = Experiment::new(fact.experiment, "", "", Verdict::Measured);
            record.facts.insert(fact.name.into(), number.into());
            profile.experiments.push(record);
        }
        if let Ok(Calibration { latency, .. }) = Calibration::of(&profile) {
            prop_assert!(latency.copy_bytes > 0 && latency.release > 0 && latency.launch > 0);
            prop_assert!(latency.doorbell > 0 && latency.entry > 0 && latency.copy_start > 0);
        }
    }

    /// Any lists: refused or taken, never a panic.
    #[test]
    fn any_lists(list in "[0-9.@ ]{0,60}", digits in "[0-9a-f]{0,700}") {
        let _ = Calibration::of(&with(facts::ENGINES, facts::ENGINE_LIST, list));
        let _ = Calibration::of(&with(facts::CHARACTERISTICS, facts::RECORD, digits));
    }
}
