//! Configuration variables: accepted values, error messages, and injected failures.

use sass::isa::Opcode;
use tegra_sim::config::{Checks, Config, FaultRequest, Injection, Occasion, When};
use tegra_sim::finding::{Action, Policy, Rule};
use tegra_sim::quirks::{Freeze, Quirks, Release};

fn config(variables: &[(&str, &str)]) -> Result<Config, String> {
    let get = |name: &str| {
        variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    };
    Config::from_variables(get).map_err(|error| error.to_string())
}

fn faults(list: &str) -> Result<Config, String> {
    config(&[("TEGRA_SIM_FAULTS", list)])
}

#[test]
fn nothing_set_is_the_default() {
    assert_eq!(config(&[]).unwrap(), Config::default());
    assert_eq!(
        config(&[("TEGRA_SIM_SEED", ""), ("TEGRA_SIM_LINT", "")]).unwrap(),
        Config::default()
    );
    assert_eq!(Config::default().lint.of(Rule::StaleL2), Action::Abort);
}

#[test]
fn everything_set() {
    let list = "ioctl:MAP_BUFFER_EX:ENOMEM@3, ioctl:*:EINTR@1/10,mmu-fault@100,bit-error@6,lost-event@2,\
                channel-timeout@5,stuck-semaphore@1/7,memory-full=1G";
    let config = config(&[
        ("TEGRA_SIM_SEED", "18446744073709551615"),
        ("TEGRA_SIM_LINT", "warn"),
        ("TEGRA_SIM_TRACE", "/tmp/t"),
        ("TEGRA_SIM_FAULTS", list),
    ])
    .unwrap();
    assert_eq!((config.seed, config.memory), (u64::MAX, Some(1 << 30)));
    assert_eq!(config.lint, Policy::parse("warn").unwrap());
    assert_eq!(config.trace.as_deref(), Some(std::path::Path::new("/tmp/t")));
    let request = |what, when| FaultRequest { what, when };
    let map = Occasion::Ioctl { request: Some("MAP_BUFFER_EX".into()), errno: libc::ENOMEM };
    let any = Occasion::Ioctl { request: None, errno: libc::EINTR };
    assert_eq!(
        config.faults,
        [
            request(map, When::Count(3)),
            request(any, When::OneIn(10)),
            request(Occasion::MmuFault, When::Count(100)),
            request(Occasion::BitError, When::Count(6)),
            request(Occasion::LostEvent, When::Count(2)),
            request(Occasion::ChannelTimeout, When::Count(5)),
            request(Occasion::StuckSemaphore, When::OneIn(7)),
        ]
    );
}

#[test]
fn configuration_errors_list_the_valid_values() {
    for (variable, value, parts) in [
        ("TEGRA_SIM_SEED", "x", &["TEGRA_SIM_SEED=x", "a number"][..]),
        ("TEGRA_SIM_SEED", "-1", &["TEGRA_SIM_SEED=-1"]),
        ("TEGRA_SIM_LINT", "off", &["TEGRA_SIM_LINT: unknown word \"off\"", "abort, warn"]),
        ("TEGRA_SIM_LINT", "mmu-faul=off", &["\"mmu-faul\"", "gp-entry"]),
        ("TEGRA_SIM_SUPPRESS", "/nowhere/known", &["TEGRA_SIM_SUPPRESS: \"/nowhere/known\""]),
        ("TEGRA_SIM_FAULTS", "mmu@3", &["\"mmu@3\"", "mmu-fault@WHEN", "memory-full=SIZE"]),
        ("TEGRA_SIM_FAULTS", "mmu-fault", &["\"mmu-fault\"", "@1/N"]),
        ("TEGRA_SIM_FAULTS", "mmu-fault@0", &["does not say when"]),
        ("TEGRA_SIM_FAULTS", "mmu-fault@1/0", &["does not say when"]),
        ("TEGRA_SIM_FAULTS", "ioctl:CREATE@1", &["ioctl:REQUEST:ERRNO"]),
        ("TEGRA_SIM_FAULTS", "ioctl:MAP_BUFER:EIO@1", &["no request \"MAP_BUFER\"", "errnos"]),
        ("TEGRA_SIM_FAULTS", "mmu-fault@1,lost@2", &["\"lost@2\"", "(word 2 of the list)"]),
        ("TEGRA_SIM_FAULTS", "ioctl:CREATE:EBOGUS@1", &["\"EBOGUS\"", "ENOMEM", "ETIMEDOUT"]),
        ("TEGRA_SIM_MACHINE", "no-events", &["\"no-events\"", "no-event", "chain-cut=N"]),
        ("TEGRA_SIM_MACHINE", "no-event,chain-cut=0", &["\"chain-cut=0\""]),
        ("TEGRA_SIM_MACHINE", "nan=foo", &["\"nan=foo\""]),
        ("TEGRA_SIM_MACHINE", "freeze=now", &["\"freeze=now\"", "freeze=launch"]),
        ("TEGRA_SIM_DESKTOP", "yes", &["TEGRA_SIM_DESKTOP=yes", "0 or 1"]),
        ("TEGRA_SIM_RELEASE", "r34", &["TEGRA_SIM_RELEASE=r34", "r35.4, r36.2, r36.4, r39"]),
        ("TEGRA_SIM_RELEASE", "r39:SETUP", &["TEGRA_SIM_RELEASE=r39:SETUP"]),
        ("TEGRA_SIM_FAULTS", "memory-full=1T", &["\"1T\"", "K, M or G"]),
        ("TEGRA_SIM_FAULTS", "memory-full=99999999999G", &["is no size"]),
    ] {
        let error = config(&[(variable, value)]).unwrap_err();
        for part in parts {
            assert!(error.contains(part), "{error}");
        }
    }
}

#[test]
fn machines_and_releases() {
    let list = "no-event, no-qmd-release,lost-atomics,chain-cut=64,local-memory-refused,\
                read-only-maps-fault,nan=dp4a,freeze=object,no-heap-query,short-range-refused,\
                stale-handover";
    let set = config(&[("TEGRA_SIM_MACHINE", list), ("TEGRA_SIM_RELEASE", "r39:SETUP_BIND")]);
    let set = set.unwrap();
    let quirks = Quirks {
        no_event: true,
        no_qmd_release: true,
        lost_atomics: true,
        chain_cut: Some(64),
        local_memory_refused: true,
        read_only_maps_fault: true,
        wrong: Some(Opcode::Idp),
        freeze: Some(Freeze::Object),
        no_heap_query: true,
        short_range_refused: true,
        stale_handover: true,
    };
    assert_eq!(set.quirks, quirks);
    assert_eq!(set.release, Release::R39 { renumbered: Some("SETUP_BIND".into()) });
    for (name, release) in [
        ("r35.4", Release::R35),
        ("r36.2", Release::R36),
        ("r36.4", Release::R36),
        ("r39", Release::R39 { renumbered: None }),
    ] {
        assert_eq!(config(&[("TEGRA_SIM_RELEASE", name)]).unwrap().release, release);
    }
    let faults = faults("ioctl:SETUP_BIND:ENOTTY@1/1").unwrap().faults;
    let what = Occasion::Ioctl { request: Some("SETUP_BIND".into()), errno: libc::ENOTTY };
    assert_eq!(faults, [FaultRequest { what, when: When::OneIn(1) }]);
}

#[test]
fn failures_occur_on_the_requested_occasions() {
    let config = faults("ioctl:CREATE:ENOMEM@2,ioctl:*:EINTR@4,lost-event@1").unwrap();
    let injection = Injection::new(&config);
    let seen: Vec<_> =
        ["CREATE", "ALLOC", "CREATE", "ALLOC", "CREATE"].map(|name| injection.ioctl(name)).into();
    assert_eq!(seen, [None, None, Some(libc::ENOMEM), Some(libc::EINTR), None]);
    assert!(injection.fires(&Occasion::LostEvent));
    assert!(!injection.fires(&Occasion::LostEvent));
    assert!(!injection.fires(&Occasion::MmuFault));
}

#[test]
fn chance_follows_the_seed() {
    let draw = |seed| {
        let config = Config { seed, ..faults("mmu-fault@1/4").unwrap() };
        let injection = Injection::new(&config);
        (0..400).map(|_| injection.fires(&Occasion::MmuFault)).collect::<Vec<_>>()
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
    let fired = draw(3).iter().filter(|fired| **fired).count();
    assert!((60..140).contains(&fired), "{fired} of 400");
}

#[test]
fn checks_of_shader_code() {
    let checks = |value| config(&[("TEGRA_SIM_CHECKS", value)]).map(|config| config.checks);
    assert_eq!(checks("fast"), Ok(Checks::Fast));
    assert_eq!(checks(""), Ok(Checks::Strict));
    assert_eq!(checks("strict"), Ok(Checks::Strict));
    assert_eq!(checks("race"), Ok(Checks::Race));
    assert_eq!(checks("timing"), Ok(Checks::Timing));
    assert!(checks("slow").unwrap_err().contains("race, strict, fast or timing"));
}

/// Errors are reported before the program starts, in the name of the option. Not for cross-compiled
/// tests, because `echo` is for another architecture.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_command_reports_invalid_options() {
    let run = |options: &[&str], variables: &[(&str, &str)]| {
        let mut command = orind_testing::program::command(env!("CARGO_BIN_EXE_tegra-sim"));
        command.arg("run").args(options).args(["--", "echo", "started"]);
        let library = orind_testing::program::preload_library();
        command.env("TEGRA_SIM_PRELOAD", library).envs(variables.iter().copied());
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    for (options, variables, said) in [
        (&["--faults", "mmu-fault@1,lost@2"][..], &[][..], "--faults: no failure \"lost@2\""),
        (&["--machine", "no-events"], &[], "--machine: no word \"no-events\""),
        (&["--release", "r34"], &[], "--release=r34: expected r35.4"),
        (&[], &[("TEGRA_SIM_SEED", "x")], "TEGRA_SIM_SEED=x: expected a number"),
        (&[], &[("TEGRA_SIM_CHECKS", "none")], "TEGRA_SIM_CHECKS=none: expected race"),
        (&["--trace", "/nowhere/run.jsonl"], &[], "\"/nowhere\""),
        (&["--profile", "/nowhere.json"], &[], "/nowhere.json"),
    ] {
        let (code, out, error) = run(options, variables);
        assert_eq!((code, out.as_str()), (Some(125), ""), "{options:?}: {error}");
        assert!(error.contains(said), "{options:?}: {error}");
    }
    let faults = ["--faults", "ioctl:*:EIO@1/9,memory-full=1G"];
    assert_eq!(run(&faults, &[]), (Some(0), "started\n".into(), String::new()));
    let mut command = orind_testing::program::command(env!("CARGO_BIN_EXE_tegra-sim"));
    let help = orind_testing::program::said(command.args(["run", "--help"]));
    for word in ["ioctl:REQUEST:ERRNO@WHEN", "channel-timeout@WHEN", "memory-full=SIZE"] {
        assert!(help.contains(word), "{word}");
    }
}
