//! Each step compared with the reference, and NV bit for bit with the CPU.

use std::collections::BTreeMap;

use device::Error;
use device::reference::Reference;
use parity::case::{BuildError, Case};
use parity::steps;
use plan::{Bucket, DType, Outputs, quant};

use super::devices;

#[test]
fn every_step_matches_the_reference() {
    let cases = steps::all().unwrap();
    let expected: Vec<_> = cases.iter().map(|case| case.run(&Reference).unwrap()).collect();
    let mut failed = Vec::new();
    // The CPU's results, whose bits other devices must have. The CPU is the first device.
    let mut page = Vec::new();
    for device in devices() {
        let name = device.info().name;
        let mut groups: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
        for (i, (case, expected)) in cases.iter().zip(&expected).enumerate() {
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
            if name == "cpu" {
                page.push(got);
            } else if let Some(what) = steps::first_unequal(&got, &page[i]) {
                failed.push(format!("{name}: {} {}, {what}: other bits", case.group, case.name));
            }
        }
        for (group, (cases, worst)) in groups {
            println!("{name} {group}: {cases} cases, worst {worst:.1e}");
        }
    }
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), cases.len(), failed.join("\n"));
}

/// Otherwise a case with wrong weights would pass on every device.
#[test]
fn weights_that_do_not_fit_their_type_are_refused() {
    let make = |dtype, shape: &[usize], values: &[f32]| {
        let bucket = Bucket { batch: 1, chunk: 1, context: 1, outputs: Outputs::None };
        let case = Case::new("any", "any", 0.0);
        case.stage(bucket, |s| s.quantised("w", dtype, shape, values).map(|_| ())).map(|_| ())
    };
    make(DType::Q8_0, &[1, 64], &[1.0; 64]).unwrap();
    let mut odd = [1.0; 64];
    odd[40] = f32::INFINITY;
    for (values, short) in [(&odd[..], false), (&[1.0; 63], true)] {
        match make(DType::Q8_0, &[1, 64], values) {
            Err(BuildError::Quantise { weight, source }) => {
                assert_eq!(weight, "w");
                assert_eq!(matches!(source, quant::Error::Length { .. }), short, "{source}");
            }
            other => panic!("{other:?}"),
        }
    }
}
