//! Every step by itself.

use std::collections::BTreeMap;

use device::Error;
use device::reference::Reference;
use orind::parity::steps;

use super::devices;

#[test]
fn every_step_computes_what_the_reference_computes() {
    let cases = steps::all().unwrap();
    let expected: Vec<_> = cases.iter().map(|case| case.run(&Reference).unwrap()).collect();
    let mut failed = Vec::new();
    for device in devices() {
        let name = device.info().name;
        let mut groups: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
        for (case, expected) in cases.iter().zip(&expected) {
            let got = match case.run(&*device) {
                Ok(got) => got,
                Err(Error::Unsupported { what, .. }) => {
                    failed.push(format!("{name} does not take {}: {what}", case.name));
                    continue;
                }
                Err(error) => panic!("{name}, {} {}: {error}", case.group, case.name),
            };
            let outcome = steps::compare(case, &got, expected);
            let relative = outcome.difference.relative();
            let group = groups.entry(case.group).or_default();
            *group = (group.0 + 1, group.1.max(relative));
            if !outcome.passed {
                let (what, tolerance) = (outcome.result, case.tolerance);
                let (group, case) = (case.group, &case.name);
                failed.push(format!(
                    "{name}: {group} {case}, {what}: {relative:.2e}, allowed {tolerance:.0e}"
                ));
            }
        }
        for (group, (cases, worst)) in groups {
            println!("{name} {group}: {cases} cases, worst {worst:.1e}");
        }
    }
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), cases.len(), failed.join("\n"));
}
