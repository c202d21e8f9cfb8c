//! Methods, fields and values, compared with a table extracted from NVIDIA's class headers.

use std::collections::{BTreeMap, BTreeSet};

use super::table::rows;
use tegra::class::{Class, Compute, Copy, Definition, Host, Meaning, compute, copy, host, qmd};

/// Meaning and, for repeated fields, distance of each name of a class.
fn header(class: &str) -> BTreeMap<&'static str, (Meaning, &'static str)> {
    let number = |text: &str| text.parse::<u32>().expect("number");
    rows::<7>(include_str!("../data/classes.csv"))
        .into_iter()
        .filter(|row| row[0] == class)
        .map(|[_, kind, name, first, low, stride, _]| {
            let meaning = match kind {
                "field" => Meaning::Bits { high: number(first), low: number(low) },
                _ => Meaning::Number(number(first)),
            };
            (name, (meaning, stride))
        })
        .collect()
}

fn assert_same(class: &str, definitions: &[Definition]) {
    let header = header(class);
    let mut names = BTreeSet::new();
    for definition in definitions {
        let found = header.get(definition.name);
        assert_eq!(
            found.map(|(meaning, _)| meaning),
            Some(&definition.meaning),
            "{class} {}",
            definition.name
        );
        assert!(names.insert(definition.name), "{} is defined twice", definition.name);
    }
}

#[test]
fn definitions_equal_the_headers() {
    assert_same("c76f", host::DEFINITIONS);
    assert_same("c7b5", copy::DEFINITIONS);
    assert_same("c7c0", compute::DEFINITIONS);
    assert_same("qmd-v03_00", qmd::DEFINITIONS);
}

#[test]
fn repeated_qmd_fields_have_the_headers_distance() {
    let header = header("qmd-v03_00");
    for (name, count, step) in qmd::REPEATED {
        assert_eq!(header[name].1, step.to_string(), "{name}");
        assert_eq!(*count, qmd::BANKS, "{name}");
    }
}

/// Shared aliases: one Rust item represents several header names with equal values.
#[test]
fn aliases_are_equal_in_the_headers() {
    let copy = header("c7b5");
    for name in ["OFFSET_OUT_UPPER_UPPER", "SET_SEMAPHORE_A_UPPER"] {
        assert_eq!(copy[name], copy["OFFSET_IN_UPPER_UPPER"], "{name}");
    }
    let compute = header("c7c0");
    for name in [
        "OFFSET_OUT_UPPER_VALUE",
        "SET_SHADER_LOCAL_MEMORY_A_ADDRESS_UPPER",
        "SET_SHADER_LOCAL_MEMORY_WINDOW_A_BASE_ADDRESS_UPPER",
    ] {
        let shared = compute["SET_SHADER_SHARED_MEMORY_WINDOW_A_BASE_ADDRESS_UPPER"];
        assert_eq!(compute[name], shared, "{name}");
    }
    let qmd = header("qmd-v03_00");
    for slot in ["RELEASE1", "RELEASE2"] {
        for name in ["STRUCTURE_SIZE_SEMAPHORE_ONE_WORD", "MEMBAR_TYPE_FE_SYSMEMBAR"] {
            assert_eq!(qmd[&*format!("{slot}_{name}")], qmd[&*format!("RELEASE0_{name}")]);
        }
    }
}

#[test]
fn host_and_engine_methods_are_disjoint() {
    assert!(host::METHODS.iter().all(|m| m.address() < host::METHODS_END));
    assert!(compute::METHODS.iter().all(|m| m.address() >= host::METHODS_END));
    assert!(copy::METHODS.iter().all(|m| m.address() >= host::METHODS_END));
}

#[test]
fn classes_use_the_subchannels_of_the_graphics_runlist() {
    assert_eq!((Host::SUBCHANNEL, Compute::SUBCHANNEL, Copy::SUBCHANNEL), (0, 1, 4));
    assert_eq!(Compute::ID as u32, 0xc7c0);
    assert_eq!(Copy::ID as u32, 0xc7b5);
    assert_eq!(Host::ID as u32, 0xc76f);
}

#[test]
fn userd_offsets_equal_the_control_structure() {
    // Word numbers of GPGet, GPPut and Reference in the header's control structure.
    assert_eq!(host::userd::GP_GET, 4 * 0x22);
    assert_eq!(host::userd::GP_PUT, 4 * 0x23);
    assert_eq!(host::userd::REFERENCE, 4 * 0x12);
    assert_eq!(host::userd::SIZE, 4 * (0x24 + 0x5c));
}

/// Tokens seen on hardware: the first two channels, on the graphics runlist.
#[test]
fn doorbell_tokens_decode_as_on_hardware() {
    use tegra::class::usermode::{self, token};
    for channel in [511, 510] {
        assert_eq!((token::CHANNEL.get(channel), token::RUNLIST.get(channel)), (channel, 0));
    }
    assert_eq!(token::CHANNEL.put(510) | token::RUNLIST.put(2), 0x0002_01fe);
    assert_eq!(usermode::NOTIFY_CHANNEL_PENDING, 0x90);
}

#[test]
fn values_round_trip_through_their_numbers() {
    let (operation, action) =
        (host::sem_execute::OPERATION, compute::send_signaling_pcas2_b::PCAS_ACTION);
    for value in host::SemOperation::ALL {
        assert_eq!(operation.get(operation.put(*value)), Some(*value));
    }
    for value in compute::PcasAction::ALL {
        assert_eq!(action.get(action.put(*value)), Some(*value));
    }
    assert_eq!(operation.get(7), None);
    assert_eq!(action.get(4), None);
}

#[test]
fn fields_encode_and_decode() {
    let field = host::dma::METHOD_COUNT;
    assert_eq!(field.max(), 0x1fff);
    assert_eq!(field.put(5), 0x0005_0000);
    assert_eq!(field.get(0xffff_ffff), 0x1fff);
    assert_eq!(field.mask(), 0x1fff_0000);
    assert_eq!(host::sem_execute::RELEASE_WFI.put(true), 1 << 20);
    assert!(!host::sem_execute::RELEASE_WFI.get(!(1 << 20)));
    assert!(std::panic::catch_unwind(|| field.put(0x2000)).is_err());

    let mut words = [u32::MAX; qmd::WORDS];
    qmd::REGISTER_COUNT_V.set(&mut words, 0);
    assert_eq!(words[20], !(0x1ff << 8));
    qmd::CONSTANT_BUFFER_SIZE_SHIFTED4[3].set(&mut words, 0x123);
    assert_eq!(qmd::CONSTANT_BUFFER_SIZE_SHIFTED4[3].get(&words), 0x123);
    assert_eq!(words[39], 0x0007_ffff | 0x123 << 19);
}
