//! Compares the simulator's class tables with the independent `tegra::class`: common names agree,
//! and everything that `tegra` can encode is known.

use std::collections::BTreeMap;

use tegra::class::{Definition, Meaning, compute, copy, host, qmd};
use tegra_sim::class::{self as sim, Method};

/// Every name of a table as the header has it: methods, fields and values.
fn names(table: &[Method]) -> BTreeMap<String, Meaning> {
    let mut names = BTreeMap::new();
    for method in table {
        names.insert(method.name.to_owned(), Meaning::Number(method.address));
        for field in method.fields {
            let name = format!("{}_{}", method.name, field.name);
            for (number, value) in field.values {
                names.insert(format!("{name}_{value}"), Meaning::Number(*number));
            }
            names.insert(name, Meaning::Bits { high: field.high, low: field.low });
        }
    }
    names
}

/// Encodings that are no methods: ring entries and push-buffer headers.
fn is_method(definition: &&Definition) -> bool {
    !definition.name.starts_with("GP_ENTRY") && !definition.name.starts_with("DMA_")
}

#[track_caller]
fn assert_known(table: &[Method], definitions: &[Definition]) {
    let names = names(table);
    for definition in definitions.iter().filter(is_method) {
        assert_eq!(names.get(definition.name), Some(&definition.meaning), "{}", definition.name);
    }
}

#[test]
fn methods_fields_and_values_agree() {
    assert_known(sim::host::METHODS, host::DEFINITIONS);
    assert_known(sim::copy::METHODS, copy::DEFINITIONS);
    assert_known(sim::compute::METHODS, compute::DEFINITIONS);
}

#[test]
fn qmd_fields_agree() {
    let mut names = BTreeMap::new();
    // The first element of an array.
    for field in sim::qmd::FIELDS.iter().rev() {
        for (number, value) in field.values {
            names.insert(format!("{}_{value}", field.name), Meaning::Number(*number));
        }
        names.insert(field.name.into(), Meaning::Bits { high: field.high, low: field.low });
    }
    for definition in qmd::DEFINITIONS {
        assert_eq!(names.get(definition.name), Some(&definition.meaning), "{}", definition.name);
    }
    for (name, count, step) in qmd::REPEATED {
        let fields: Vec<_> = sim::qmd::FIELDS.iter().filter(|field| field.name == *name).collect();
        assert_eq!(fields.len(), *count, "{name}");
        assert!(fields.windows(2).all(|pair| pair[1].low - pair[0].low == *step), "{name}");
    }
    // Fields do not overlap, so that one with a wrong bit would be noticed.
    let mut taken = vec![None; 2048];
    for field in sim::qmd::FIELDS {
        assert_eq!(field.low / 32, field.high / 32, "{} crosses a word", field.name);
        for bit in field.low..=field.high {
            assert_eq!(taken[bit as usize].replace(field.name), None, "bit {bit}");
        }
    }
}

#[test]
fn tables_are_sorted_and_addresses_are_found() {
    for table in [sim::host::METHODS, sim::copy::METHODS, sim::compute::METHODS] {
        assert!(table.is_sorted_by_key(|method| method.address));
        for method in table {
            for index in 0..method.count {
                let found = sim::find(table, method.address + index * method.step).unwrap();
                assert_eq!(found.name, method.name);
            }
        }
    }
    assert!(sim::find(sim::compute::METHODS, 0x128).is_none());
    assert!(sim::find(sim::compute::METHODS, 0x101).is_none());
    assert_eq!(sim::name(sim::COPY, 0x300), Some("LAUNCH_DMA"));
    assert_eq!(sim::name(sim::COPY, 0x6c), Some("SEM_EXECUTE"));
    assert_eq!(sim::name(0x1234, 0x300), None);
}

/// Words observed on hardware, with their fields.
#[test]
fn words_of_the_hardware_pass_and_are_named() {
    let copy = |address| sim::find(sim::copy::METHODS, address).unwrap();
    let host = |address| sim::find(sim::host::METHODS, address).unwrap();
    let compute = |address| sim::find(sim::compute::METHODS, address).unwrap();
    for (method, data) in [
        (host(0x6c), 0x0310_0001),
        (host(0x6c), 0x0100_0003),
        (copy(0x300), 0x182),
        (copy(0x300), 0x14),
        (compute(0x21c), 0x1011),
        (compute(0x1698), 0x1011),
        (compute(0x2c0), 9),
        (compute(0x2ec), 0xff),
        (compute(0x2ec), 0x100),
        (compute(0x2a0), 0xfe),
        (compute(0x7b0), 0xfd),
        (compute(0x1b0), 0x41),
    ] {
        assert_eq!(method.check(data), Ok(()), "{} {data:#x}", method.name);
    }
    assert_eq!(
        copy(0x300).decode(0x182).to_string(),
        "LAUNCH_DMA = 0x182 (DATA_TRANSFER_TYPE NON_PIPELINED, SRC_MEMORY_LAYOUT PITCH, \
         DST_MEMORY_LAYOUT PITCH)"
    );
    for (method, data, part) in [
        (copy(0x300), 0x100_0182, "reserved bits 0x1000000"),
        (copy(0x300), 0x1000_0182, "reserved bits 0x10000000"),
        (copy(0x300), 0x183, "DATA_TRANSFER_TYPE has no value 0x3"),
        (host(0x6c), 7, "OPERATION has no value 0x7"),
        (compute(0x2c0), 4, "PCAS_ACTION has no value 0x4"),
        (compute(0x2ec), 0x200, "reserved bits 0x200"),
    ] {
        let error = method.check(data).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
