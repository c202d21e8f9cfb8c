//! Untrusted files: read completely, or refused with a reason.

use proptest::prelude::*;
use tegra_profile::{
    Clock, Error, Experiment, FORMAT, MAX_BYTES, MAX_EXPERIMENTS, MAX_LINES, MAX_SAMPLES, MAX_TEXT,
    Machine, Profile, Proven, Value, Verdict, diff, facts,
};

fn sample() -> Profile {
    let clocks = [("gpu".to_owned(), Clock { now_hz: Some(1), ..Clock::default() })].into();
    let machine = Machine { l4t: Some("36.4.4".into()), clocks, ..Machine::default() };
    let mut profile = Profile::new("orinctl 0.1.0", 1_700_000_000, machine);
    let mut experiment = Experiment::new("launch-latency", "What?", "So.", Verdict::Measured);
    experiment.facts.insert("launch_ns".into(), Value::Number(5120.5));
    experiment.facts.insert("taken".into(), Value::Flag(true));
    experiment.facts.insert("at_addr".into(), Value::Count(u64::MAX));
    experiment.facts.insert("note".into(), Value::Text("two\nlines [".into()));
    experiment.samples.insert("launch_ns".into(), vec![1.0, 2.5, 3.0]);
    experiment.samples.insert("none".into(), vec![]);
    experiment.driver_log = vec!["[1.5] nvgpu: [".into(), "{ ] nvmap".into()];
    profile.experiments.push(experiment);
    profile.experiments.push(Experiment::new("other", "", "", Verdict::TimedOut));
    profile
}

#[test]
fn a_written_profile_is_read_back() {
    let profile = sample();
    let text = profile.to_json().unwrap();
    assert_eq!(Profile::parse(text.as_bytes()).unwrap(), profile);
    assert!(text.lines().any(|line| line.contains("[1.0,2.5,3.0]")), "a series is a line: {text}");
    let directory = std::env::temp_dir().join(format!("tegra-profile-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("profile.json");
    profile.write(&file).unwrap();
    profile.write(&file).unwrap();
    assert_eq!(Profile::read(&file).unwrap(), profile);
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
    let mut other = profile.clone();
    other.taken += 1;
    let refused = other.create(&file).unwrap_err();
    assert!(matches!(refused, Error::Exists { .. }) && refused.to_string().contains("--resume"));
    assert_eq!(Profile::read_if_there(&file).unwrap(), Some(profile), "unchanged");
    std::fs::remove_file(&file).unwrap();
    other.create(&file).unwrap();
    assert_eq!(Profile::read(&file).unwrap(), other);
    std::fs::write(&file, "{}").unwrap();
    assert!(Profile::read_if_there(&file).is_err(), "an invalid file is not a missing one");
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(Profile::read_if_there(&file).unwrap(), None);
    let error = Profile::read(&file).unwrap_err().to_string();
    assert!(error.contains("profile.json"), "{error}");
    assert!(other.write(&file).is_err(), "there is no such directory");
}

/// An experiment with one fact.
fn found(experiment: &str, fact: &str, value: impl Into<Value>) -> Experiment {
    let mut experiment = Experiment::new(experiment, "", "", Verdict::Expected);
    experiment.facts.insert(fact.into(), value.into());
    experiment
}

#[test]
fn proven_lists_the_results_of_experiments() {
    let mut profile = Profile::new("t", 0, Machine::default());
    assert_eq!(profile.proven().unwrap(), Proven::default());
    assert_eq!(Proven::default().to_string(), "nothing usable");
    let limit = facts::LARGEST_IS_LIMIT;
    profile.experiments = vec![
        found(facts::READ_ONLY.experiment, facts::READ_ONLY.name, true),
        found(facts::EVENT.experiment, facts::EVENT.name, false),
        found(facts::LONGEST_CHAIN.experiment, facts::LONGEST_CHAIN.name, 2048u32),
        found(facts::LARGEST.experiment, facts::LARGEST.name, 3u64 << 30),
        Experiment::new(facts::SWITCH_TIMEOUT.experiment, "", "", Verdict::Crashed),
    ];
    let mut expected = Proven {
        read_only_maps: Some(true),
        longest_chain: Some(2048),
        event: Some(false),
        switch_timeout: Some(false),
        largest_buffer: None,
    };
    assert_eq!(profile.proven().unwrap(), expected, "the search stopped at 3 GiB: no limit");
    profile.experiments[3].facts.insert(limit.into(), true.into());
    expected.largest_buffer = Some(3 << 30);
    assert_eq!(profile.proven().unwrap(), expected);
    assert_eq!(
        expected.to_string(),
        "read-only maps work, chains to 2048 launches, the event does not wake, the switch limit is \
         fixed, buffers to 3072 MiB"
    );
    // A crash of the machine counts as a failure; an experiment that never ran proves nothing.
    profile.experiments[0] =
        Experiment::new(facts::READ_ONLY.experiment, "", "", Verdict::Unfinished);
    assert_eq!(profile.proven().unwrap().read_only_maps, Some(false));
    profile.experiments[0].verdict = Verdict::Skipped;
    assert_eq!(profile.proven().unwrap().read_only_maps, None);
    profile.experiments[2].facts.insert(facts::LONGEST_CHAIN.name.into(), 1e12.into());
    assert!(profile.proven().unwrap_err().to_string().contains("first-light-order.longest"));
}

#[test]
fn different_machines_are_detected() {
    let clocks = [("gpu".to_owned(), Clock { now_hz: Some(1), ..Clock::default() })].into();
    let then = Machine {
        l4t: Some("36.4.4".into()),
        sms: Some(8),
        power_mode: Some("MODE_30W".into()),
        clocks,
        ..Machine::default()
    };
    let unclocked = Machine { clocks: [].into(), model: Some("AGX".into()), ..then.clone() };
    assert_eq!(then.difference(&unclocked), None, "a missing value is no difference");
    let differs = |now: Machine, expected: &str| {
        assert_eq!(then.difference(&now).as_deref(), Some(expected));
    };
    differs(Machine { l4t: Some("36.2.0".into()), ..then.clone() }, "L4T 36.2.0, not 36.4.4");
    differs(Machine { sms: Some(16), ..then.clone() }, "number of SMs 16, not 8");
    differs(
        Machine { power_mode: Some("MAXN".into()), ..then.clone() },
        "power mode MAXN, not MODE_30W",
    );
    differs(Machine { simulated: true, ..then.clone() }, "a simulated Orin, not a real one");
}

#[test]
fn invalid_profiles_are_refused() {
    let refuse = |change: &dyn Fn(&mut Profile), expected: &str| {
        let mut profile = sample();
        change(&mut profile);
        let text = serde_json::to_string(&profile).unwrap();
        let error = Profile::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    };
    let first = |profile: &mut Profile, change: &dyn Fn(&mut Experiment)| {
        change(&mut profile.experiments[0]);
    };
    refuse(&|p| p.format = "x".repeat(100), "format \"xxx");
    refuse(&|p| p.version = 2, "version 2");
    refuse(&|p| p.experiments[1].name = "launch-latency".into(), "appears twice");
    refuse(&|p| first(p, &|e| e.name = "Launch Latency".into()), "lower-case letters");
    refuse(&|p| first(p, &|e| e.name = "x".repeat(65)), "lower-case letters");
    refuse(&|p| first(p, &|e| e.question = "\u{1b}[2J".into()), "control character");
    refuse(&|p| first(p, &|e| e.error = Some("x".repeat(MAX_TEXT + 1))), "more than");
    refuse(&|p| first(p, &|e| e.driver_log = vec!["\u{1b}[2J".into()]), "control character");
    refuse(
        &|p| first(p, &|e| e.driver_log = vec![String::new(); MAX_LINES + 1]),
        "lines of the log",
    );
    refuse(&|p| p.machine.driver_log = Some("\r".into()), "control character");
    refuse(
        &|p| {
            first(p, &|e| {
                e.facts.insert("bad name".into(), true.into());
            });
        },
        "a fact's name",
    );
    refuse(
        &|p| {
            first(p, &|e| {
                e.samples.insert("long".into(), vec![0.0; MAX_SAMPLES + 1]);
            });
        },
        "long",
    );
    refuse(
        &|p| {
            for i in 0..MAX_EXPERIMENTS {
                p.experiments.push(Experiment::new(&format!("e{i}"), "", "", Verdict::Failed));
            }
        },
        "experiments",
    );
    let parse = |text: &str| Profile::parse(text.as_bytes()).unwrap_err().to_string();
    assert!(parse("").contains("not a profile"));
    assert!(parse("[]").contains("format \"\""));
    assert!(parse("7").contains("not a profile"));
    assert!(parse("{}").contains("format \"\""));
    let text = sample().to_json().unwrap();
    assert!(parse(&text.replace("5120.5", "1e999")).contains("out of range"));
    assert!(parse(&text.replace("\"tool\"", "\"took\"")).contains("took"));
    assert!(parse(&text.replace("timed-out", "fine")).contains("fine"));
    assert!(matches!(Profile::parse(&vec![b' '; MAX_BYTES + 1]), Err(Error::TooLarge)));
    let deep =
        format!("{{\"format\":\"{FORMAT}\",\"version\":1,\"machine\":{}", "[".repeat(100_000));
    assert!(parse(&deep).contains("not a profile"), "deep nesting must not overflow the stack");
}

#[test]
fn facts_have_bounds() {
    let mut profile = sample();
    assert_eq!(facts::LAUNCH.read(&profile).unwrap(), Some(5120.5));
    assert_eq!(facts::DEPENDENT.read(&profile).unwrap(), None);
    for wrong in [Value::Number(-1.0), Value::Number(1e12), "5 µs".into(), true.into()] {
        profile.experiments[0].facts.insert("launch_ns".into(), wrong);
        let error = facts::LAUNCH.read(&profile).unwrap_err().to_string();
        assert!(error.starts_with("launch-latency.launch_ns is "), "{error}");
    }
}

#[test]
fn two_profiles_are_compared_fact_by_fact() {
    let (one, mut other) = (sample(), sample());
    other.experiments[0].facts.insert("launch_ns".into(), Value::Number(20_482.0));
    other.experiments[0].facts.insert("at_addr".into(), Value::Count(7));
    other.experiments[0].facts.insert("wait_cpu_ns".into(), Value::Number(7.0));
    other.experiments[1].verdict = Verdict::Skipped;
    let rows = diff::compare(&one, &other);
    let row = |fact: Option<&str>, experiment: &str| {
        rows.iter()
            .find(|row| row.fact.as_deref() == fact && row.experiment == experiment)
            .map(|row| row.comparison.clone())
    };
    use diff::Comparison;
    assert_eq!(row(None, "launch-latency"), Some(Comparison::Same));
    assert_eq!(row(Some("launch_ns"), "launch-latency"), Some(Comparison::Factor(4.0)));
    assert_eq!(row(Some("at_addr"), "launch-latency"), Some(Comparison::Differs));
    assert_eq!(row(Some("taken"), "launch-latency"), Some(Comparison::Same));
    assert_eq!(row(Some("wait_cpu_ns"), "launch-latency"), Some(Comparison::NotModelled));
    assert_eq!(row(None, "other"), Some(Comparison::Missing));
}

/// A value of any kind, of a realistic size.
fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-1e300..1e300f64).prop_map(Value::from),
        "[ -~\n\t\u{e0}-\u{17f}]{0,40}".prop_map(Value::from),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    /// Any bytes give a result, never a panic.
    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        let _ = Profile::parse(&bytes);
    }

    /// A damaged file is refused, or is a profile that can be written again.
    #[test]
    fn damaged_files(changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..8)) {
        let mut bytes = sample().to_json().unwrap().into_bytes();
        for (at, byte) in changes {
            let at = usize::from(at) % bytes.len();
            bytes[at] = byte;
        }
        if let Ok(profile) = Profile::parse(&bytes) {
            prop_assert_eq!(Profile::parse(profile.to_json().unwrap().as_bytes()).unwrap(), profile);
        }
    }

    /// Facts with any value are read back unchanged, and never beyond their bounds.
    #[test]
    fn any_facts(values in proptest::collection::vec(value(), facts::FACTS.len())) {
        let mut profile = Profile::new("t", 0, Machine::default());
        for (fact, value) in facts::FACTS.iter().zip(&values) {
            if profile.experiment(fact.experiment).is_none() {
                let experiment = Experiment::new(fact.experiment, "", "", Verdict::Measured);
                profile.experiments.push(experiment);
            }
            let found = profile.experiments.iter_mut().find(|e| e.name == fact.experiment).unwrap();
            found.facts.insert(fact.name.into(), value.clone());
        }
        let again = Profile::parse(profile.to_json().unwrap().as_bytes()).unwrap();
        for fact in facts::FACTS {
            if let Ok(Some(number)) = fact.read(&again) {
                prop_assert!((fact.least..=fact.most).contains(&number));
            }
        }
    }
}
