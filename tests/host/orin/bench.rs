//! A bench on a machine whose state changes.

use std::ops::ControlFlow;
use std::sync::Arc;

use bench::{Progress, Report, Spec};
use orind_testing::{engine, tiny};

use super::tree::Machine;

/// Runs a bench on the CPU, and calls `change` on the machine after the tests have begun.
fn bench(machine: Machine, change: impl Fn(&Machine) + Send + 'static) -> Report {
    let engine = engine::start(engine::spec(tiny("tiny-llama-Q8_0"), "cpu"));
    let spec = Spec {
        prompts: Some(vec![]),
        generate: Some(vec![200]),
        repetitions: Some(12),
        warmup: 0,
        ..Spec::default()
    };
    let probe = Arc::new(machine.probe());
    let outcome = engine.exclusive("bench", move |core| {
        bench::run(core, &probe, &spec, &mut |progress| {
            if let Progress::Test { done: 1, .. } = progress {
                change(&machine);
            }
            ControlFlow::Continue(())
        })
    });
    outcome.blocking_recv().unwrap().unwrap().unwrap()
}

#[test]
fn a_run_on_a_steady_machine_is_valid_and_has_its_state() {
    let report = bench(Machine::new("agx64-maxn"), |_| ());
    assert_eq!(report.invalid, [""; 0]);
    let conditions = &report.manifest.conditions;
    assert_eq!(conditions.before, conditions.after);
    assert_eq!(conditions.before.gpu.unwrap().sms(), Some(16));
    let watts = conditions.watts.unwrap();
    assert!(watts.samples >= 2 && watts.min == watts.max);
    // The power meter is constant too, so energy is power times time, if the run took a second.
    let row = &report.rows[0];
    let seconds: f64 = row.tokens_per_second.samples.iter().map(|speed| 200.0 / speed).sum();
    match row.joules_per_token {
        Some(joules) => {
            let expected = watts.mean * seconds / (200.0 * 12.0);
            assert!((joules / expected - 1.0).abs() < 0.01, "{joules} {expected}");
        }
        None => assert!(seconds < 1.0, "{seconds}"),
    }
    let table = analysis::table(&report);
    assert!(table.contains("state   MAXN (mode 0), 16 SMs"), "{table}");
}

#[test]
fn a_run_on_a_changing_machine_is_invalid() {
    let report = bench(Machine::new("agx64-maxn"), |machine| {
        machine.write("/var/lib/nvpmodel/status", "pmode:0002");
        machine.write("/sys/class/hwmon/hwmon3/oc3_event_cnt", "5");
    });
    assert_eq!(
        report.invalid,
        [
            "the power mode changed from MAXN (mode 0) to MODE_30W (mode 2)",
            "throttled: instantaneous over-current (OC3) 5 times"
        ]
    );
    assert!(analysis::table(&report).contains("INVALID: the power mode changed"));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["invalid"].as_array().unwrap().len(), 2);
}
