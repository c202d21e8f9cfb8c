//! QMDs: the values seen on hardware, every limit, and encoding compared with the header's bits.

use std::collections::BTreeMap;

use super::{at, table::rows};
use proptest::prelude::*;
use tegra::address::QmdAddress;
use tegra::class::qmd::{DependentAction, Membar};
use tegra::pushbuffer::Payload;
use tegra::qmd::{ConstantBank, Dependent, Invalidate, Launch, Program, Qmd, QmdError, QmdRelease};

fn program() -> Program {
    Program {
        address: at(0xff_ffa0_2080),
        code_bytes: 0x1234,
        registers: 40,
        barriers: 1,
        local_bytes: 0x240,
    }
}

/// Reads fields by the header's bit numbers alone, one bit at a time.
struct Reader {
    fields: BTreeMap<String, (usize, usize)>,
}

impl Reader {
    fn new() -> Self {
        let mut fields = BTreeMap::new();
        let number = |text: &str| text.parse::<usize>().expect("number");
        for [class, kind, name, high, low, stride, _] in rows(include_str!("../data/classes.csv")) {
            if class != "qmd-v03_00" || kind != "field" {
                continue;
            }
            let (high, low) = (number(high), number(low));
            if stride.is_empty() {
                fields.insert(name.to_owned(), (high, low));
            } else {
                for i in 0..8 {
                    let at = i * number(stride);
                    fields.insert(format!("{name}[{i}]"), (high + at, low + at));
                }
            }
        }
        Self { fields }
    }

    /// The non-zero fields. Bits outside all fields count as a separate field.
    fn read(&self, qmd: &Qmd) -> BTreeMap<String, u64> {
        let bit = |n: usize| u64::from(qmd.words()[n / 32] >> (n % 32) & 1);
        let mut unnamed = vec![true; 2048];
        let mut values = BTreeMap::new();
        for (name, (high, low)) in &self.fields {
            let value = (*low..=*high).rev().fold(0, |value, n| value << 1 | bit(n));
            unnamed[*low..=*high].fill(false);
            if value != 0 {
                values.insert(name.clone(), value);
            }
        }
        for n in (0..2048).filter(|n| unnamed[*n] && bit(*n) == 1) {
            values.insert(format!("bit {n}"), 1);
        }
        values
    }
}

fn expected(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

/// Exactly the fields of every launch of the proven code.
#[test]
fn a_plain_launch_equals_the_hardwares() {
    let launch = Launch::new(program(), [70_000, 3, 2], [128, 2, 1]);
    let qmd = launch.encode().unwrap();
    let plain = expected(&[
        ("QMD_GROUP_ID", 0x3f),
        ("SM_GLOBAL_CACHING_ENABLE", 1),
        ("INVALIDATE_TEXTURE_HEADER_CACHE", 1),
        ("INVALIDATE_TEXTURE_SAMPLER_CACHE", 1),
        ("INVALIDATE_TEXTURE_DATA_CACHE", 1),
        ("INVALIDATE_SHADER_DATA_CACHE", 1),
        ("PROGRAM_PREFETCH_ADDR_LOWER_SHIFTED", 0xffff_a020),
        ("CWD_MEMBAR_TYPE", 1),
        ("API_VISIBLE_CALL_LIMIT", 1),
        ("SAMPLER_INDEX", 1),
        ("CTA_RASTER_WIDTH", 70_000),
        ("CTA_RASTER_HEIGHT", 3),
        ("CTA_RASTER_DEPTH", 2),
        ("SHARED_MEMORY_SIZE", 0x400),
        ("MIN_SM_CONFIG_SHARED_MEM_SIZE", 9),
        ("MAX_SM_CONFIG_SHARED_MEM_SIZE", 0x1a),
        ("TARGET_SM_CONFIG_SHARED_MEM_SIZE", 9),
        ("QMD_MAJOR_VERSION", 3),
        ("CTA_THREAD_DIMENSION0", 128),
        ("CTA_THREAD_DIMENSION1", 2),
        ("CTA_THREAD_DIMENSION2", 1),
        ("REGISTER_COUNT_V", 40),
        ("BARRIER_COUNT", 1),
        ("SHADER_LOCAL_MEMORY_HIGH_SIZE", 0x240),
        ("PROGRAM_ADDRESS_LOWER", 0xffa0_2080),
        ("PROGRAM_ADDRESS_UPPER", 0xff),
        ("PROGRAM_PREFETCH_SIZE", 0x12),
        ("SASS_VERSION", 0x87),
    ]);
    assert_eq!(Reader::new().read(&qmd), plain);
    // Bytes that the proven code is known to store.
    assert_eq!(qmd.words()[72 / 4] & 0xff, 0x30, "version 3.0 in byte 72");
    assert_eq!(qmd.words()[207 / 4] >> 24, 0x87, "machine code in byte 207");
}

#[test]
fn every_field_of_a_launch_is_encoded() {
    let mut launch = Launch::new(program(), [1, 1, 1], [32, 1, 1]);
    let plain = Reader::new().read(&launch.encode().unwrap());
    launch.shared_bytes = 40 << 10;
    launch.constants[0] =
        Some(ConstantBank { address: at(0xfe_1234_5640), bytes: 0x171, invalidate: true });
    launch.constants[7] =
        Some(ConstantBank { address: at(0x4000), bytes: 0x1_0000, invalidate: false });
    launch.invalidate =
        Invalidate { texture: false, data: true, instruction: true, constant: true };
    launch.membar = Membar::Gpu;
    let release = |at, payload, timestamp, system_barrier| {
        Some(QmdRelease { at, payload, timestamp, system_barrier })
    };
    launch.releases = [
        release(at(0xff_0000_0010), Payload::Long(0x1_0000_0002), true, true),
        release(at(0x14), Payload::Word(5), false, false),
        release(at(0x28), Payload::Long(6), false, true),
    ];
    launch.dependent = Some(Dependent {
        qmd: QmdAddress::new(at(0xff_ffa0_1200)).unwrap(),
        action: DependentAction::Schedule,
        prefetch: true,
    });
    launch.dependence_count = 3;
    let qmd = launch.encode().unwrap();
    let mut wanted = plain;
    for name in ["HEADER", "SAMPLER", "DATA"] {
        wanted.remove(&format!("INVALIDATE_TEXTURE_{name}_CACHE"));
    }
    wanted.extend(expected(&[
        ("SHARED_MEMORY_SIZE", (40 << 10) + 0x400),
        ("MIN_SM_CONFIG_SHARED_MEM_SIZE", 17),
        ("TARGET_SM_CONFIG_SHARED_MEM_SIZE", 17),
        ("CONSTANT_BUFFER_VALID[0]", 1),
        ("CONSTANT_BUFFER_ADDR_LOWER[0]", 0x1234_5640),
        ("CONSTANT_BUFFER_ADDR_UPPER[0]", 0xfe),
        ("CONSTANT_BUFFER_INVALIDATE[0]", 1),
        ("CONSTANT_BUFFER_SIZE_SHIFTED4[0]", 0x18),
        ("CONSTANT_BUFFER_VALID[7]", 1),
        ("CONSTANT_BUFFER_ADDR_LOWER[7]", 0x4000),
        ("CONSTANT_BUFFER_SIZE_SHIFTED4[7]", 0x1000),
        ("INVALIDATE_INSTRUCTION_CACHE", 1),
        ("INVALIDATE_SHADER_CONSTANT_CACHE", 1),
        ("CWD_MEMBAR_TYPE", 3),
        ("RELEASE0_ENABLE", 1),
        ("RELEASE0_ADDRESS_LOWER", 0x10),
        ("RELEASE0_ADDRESS_UPPER", 0xff),
        ("RELEASE0_MEMBAR_TYPE", 1),
        ("RELEASE0_PAYLOAD64B", 1),
        ("RELEASE0_PAYLOAD_LOWER", 2),
        ("RELEASE0_PAYLOAD_UPPER", 1),
        ("RELEASE1_ENABLE", 1),
        ("RELEASE1_ADDRESS_LOWER", 0x14),
        ("RELEASE1_STRUCTURE_SIZE", 1),
        ("RELEASE1_PAYLOAD_LOWER", 5),
        ("RELEASE2_ENABLE", 1),
        ("RELEASE2_ADDRESS_LOWER", 0x28),
        ("RELEASE2_MEMBAR_TYPE", 1),
        ("RELEASE2_PAYLOAD64B", 1),
        ("RELEASE2_STRUCTURE_SIZE", 2),
        ("RELEASE2_PAYLOAD_LOWER", 6),
        ("DEPENDENCE_COUNTER", 3),
        ("DEPENDENT_QMD0_ENABLE", 1),
        ("DEPENDENT_QMD0_POINTER", 0xffff_a012),
        ("DEPENDENT_QMD0_ACTION", 1),
        ("DEPENDENT_QMD0_PREFETCH", 1),
    ]));
    assert_eq!(Reader::new().read(&qmd), wanted);
}

#[test]
fn shared_memory_selects_the_carve_out() {
    let carve_out = |shared_bytes| {
        let launch = Launch { shared_bytes, ..Launch::new(program(), [1; 3], [1; 3]) };
        let fields = Reader::new().read(&launch.encode().unwrap());
        (fields["SHARED_MEMORY_SIZE"], fields["TARGET_SM_CONFIG_SHARED_MEM_SIZE"])
    };
    assert_eq!(carve_out(1), (0x480, 9));
    assert_eq!(carve_out((32 << 10) - 0x400), (32 << 10, 9));
    assert_eq!(carve_out((32 << 10) - 0x3ff), ((32 << 10) + 128, 17));
    assert_eq!(carve_out((64 << 10) - 0x3ff), ((64 << 10) + 128, 26));
    assert_eq!(carve_out((100 << 10) - 0x400), (100 << 10, 26));
    let shared_bytes = (100 << 10) - 0x3ff;
    let launch = Launch { shared_bytes, ..Launch::new(program(), [1; 3], [1; 3]) };
    assert!(matches!(launch.encode(), Err(QmdError::Range { .. })));
}

#[test]
fn grid_and_block_check_their_limits() {
    let encode = |grid, block| Launch::new(program(), grid, block).encode().map(drop);
    assert!(encode([0x7fff_ffff, 0xffff, 0xffff], [1, 1, 1]).is_ok());
    for grid in [[0x8000_0000, 1, 1], [1, 0x1_0000, 1], [1, 1, 0x1_0000], [0, 1, 1], [1, 1, 0]] {
        assert!(matches!(encode(grid, [1, 1, 1]), Err(QmdError::Range { .. })), "{grid:?}");
    }
    for block in [[1024, 1, 1], [1, 1024, 1], [16, 1, 64]] {
        assert!(encode([1, 1, 1], block).is_ok(), "{block:?}");
    }
    for block in [[1025, 1, 1], [1, 1, 65], [0, 1, 1], [33, 32, 1], [u32::MAX, u32::MAX, 1]] {
        assert!(matches!(encode([1, 1, 1], block), Err(QmdError::Range { .. })), "{block:?}");
    }
}

#[test]
fn programs_check_their_limits() {
    let encode = |program| Launch::new(program, [1, 1, 1], [256, 1, 1]).encode().map(drop);
    assert!(encode(Program { registers: 255, ..program() }).is_ok());
    for registers in [0, 256] {
        assert!(encode(Program { registers, ..program() }).is_err());
    }
    assert!(encode(Program { barriers: 16, ..program() }).is_ok());
    assert!(encode(Program { barriers: 17, ..program() }).is_err());
    assert!(encode(Program { local_bytes: 0xff_ffe0, ..program() }).is_ok());
    assert!(encode(Program { local_bytes: 1 << 24, ..program() }).is_err());
    assert!(matches!(
        encode(Program { local_bytes: 0x250, ..program() }),
        Err(QmdError::Granule { value: 0x250, granule: 32, .. })
    ));
    assert!(matches!(
        encode(Program { address: at(0x1040), ..program() }),
        Err(QmdError::Address(_))
    ));
    let end = Program { address: at((1 << 40) - 0x80), code_bytes: 0x81, ..program() };
    assert!(matches!(encode(end), Err(QmdError::Address(_))));
}

/// 65536 registers: 1024 threads may have 64 each; with one more register only 896 threads fit.
#[test]
fn the_register_file_limits_threads() {
    let encode = |registers, threads| {
        Launch::new(Program { registers, ..program() }, [1; 3], [threads, 1, 1]).encode().map(drop)
    };
    assert!(encode(64, 1024).is_ok());
    let error = QmdError::RegisterFile { threads: 1024, registers: 65, limit: 896 };
    assert_eq!(encode(65, 1024), Err(error));
    assert!(encode(65, 896).is_ok());
    assert!(encode(255, 256).is_ok());
    assert!(encode(255, 257).is_err());
}

#[test]
fn banks_and_releases_check_their_limits() {
    let mut launch = Launch::new(program(), [1; 3], [1; 3]);
    let mut with = |address, bytes| {
        launch.constants[1] = Some(ConstantBank { address: at(address), bytes, invalidate: true });
        launch.encode().map(drop)
    };
    assert!(with(0x40, 1 << 16).is_ok());
    assert!(with(0x40, (1 << 16) + 1).is_err());
    assert!(with(0x40, 0).is_err());
    assert!(with(0x20, 16).is_err());
    let mut launch = Launch::new(program(), [1; 3], [1; 3]);
    let (payload, timestamp) = (Payload::Long(1), true);
    launch.releases[2] =
        Some(QmdRelease { at: at(0x18), payload, timestamp, system_barrier: true });
    assert!(matches!(launch.encode(), Err(QmdError::Address(_))));
}

#[test]
fn foreign_qmds_are_rejected() {
    let qmd = Launch::new(program(), [1; 3], [1; 3]).encode().unwrap();
    let change = |word: usize, bits: u32| {
        let mut words = *qmd.words();
        words[word] ^= bits;
        Launch::decode(&Qmd::from_words(words)).map(drop)
    };
    assert!(change(0, 0).is_ok());
    // Minor version 1.
    let not_ours =
        QmdError::NotOurs { word: 18, found: qmd.words()[18] ^ 1, expected: qmd.words()[18] };
    assert_eq!(change(18, 1), Err(not_ours));
    // Membar 2 does not exist.
    let value = QmdError::Value { field: "CWD_MEMBAR_TYPE", value: 2 };
    assert_eq!(change(11, 3 << 16), Err(value));
    assert!(Launch::decode(&Qmd::from_words([0; 64])).is_err());
    assert!(Launch::decode(&Qmd::from_words([u32::MAX; 64])).is_err());
}

#[test]
fn listings_name_fields_and_banks() {
    let mut launch = Launch::new(program(), [5, 1, 1], [32, 1, 1]);
    launch.constants[3] =
        Some(ConstantBank { address: at(0xff_0000_0040), bytes: 64, invalidate: true });
    let listing = launch.encode().unwrap().to_string();
    assert!(listing.contains("CTA_RASTER_WIDTH = 0x5\n"), "{listing}");
    assert!(listing.contains("SASS_VERSION = 0x87\n"), "{listing}");
    assert!(listing.ends_with("bank 3 = 0xff00000040, 0x40 bytes\n"), "{listing}");
    assert!(!listing.contains("DEPENDENT"), "{listing}");
}

fn launch() -> impl Strategy<Value = Launch> {
    let program = (0..1u64 << 32, 0..0x1ffu32, 1..=64u32, 0..=16u32, 0..1u32 << 19).prop_map(
        |(address, blocks, registers, barriers, local)| Program {
            address: at(address << 7),
            code_bytes: blocks << 8,
            registers,
            barriers,
            local_bytes: local << 5,
        },
    );
    let bank =
        (0..1u64 << 33, 1..=1u32 << 12, any::<bool>()).prop_map(|(address, size, invalidate)| {
            ConstantBank { address: at(address << 6), bytes: size << 4, invalidate }
        });
    let payload =
        prop_oneof![any::<u32>().prop_map(Payload::Word), any::<u64>().prop_map(Payload::Long)];
    let release = (0..1u64 << 36, payload, any::<bool>(), any::<bool>()).prop_map(
        |(address, payload, timestamp, system_barrier)| QmdRelease {
            at: at(address << 4),
            payload,
            timestamp,
            system_barrier,
        },
    );
    let dependent = (any::<u32>(), prop::sample::select(DependentAction::ALL), any::<bool>())
        .prop_map(|(qmd, action, prefetch)| Dependent {
            qmd: QmdAddress::from_shifted(qmd),
            action,
            prefetch,
        });
    let grid = [1..=0x7fff_ffffu32, 1..=0xffff, 1..=0xffff];
    let block = [1..=16u32, 1..=8, 1..=8];
    let invalidate = any::<[bool; 4]>().prop_map(|[texture, data, instruction, constant]| {
        Invalidate { texture, data, instruction, constant }
    });
    let rest = (
        (0..(99u32 << 10) / 128),
        prop::array::uniform8(prop::option::of(bank)),
        invalidate,
        prop::sample::select(Membar::ALL),
        prop::array::uniform3(prop::option::of(release)),
        prop::option::of(dependent),
        any::<u16>(),
    );
    (program, grid, block, rest).prop_map(
        |(
            program,
            grid,
            block,
            (shared, constants, invalidate, membar, releases, dependent, n),
        )| {
            Launch {
                program,
                grid,
                block,
                shared_bytes: shared * 128,
                constants,
                invalidate,
                membar,
                releases,
                dependent,
                dependence_count: n,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn encoded_launches_decode_to_the_same(launch in launch()) {
        // Code may end beyond the address space; everything else is in range.
        if let Ok(qmd) = launch.encode() {
            prop_assert_eq!(Launch::decode(&qmd), Ok(launch));
            let unnamed = Reader::new().read(&qmd).into_keys().find(|name| name.starts_with("bit"));
            prop_assert_eq!(unnamed, None);
        } else {
            let end = launch.program.address.get() + u64::from(launch.program.code_bytes);
            let beyond = |bank: &ConstantBank| bank.address.get() + u64::from(bank.bytes) > 1 << 40;
            prop_assert!(end > 1 << 40 || launch.constants.iter().flatten().any(beyond));
        }
    }

    #[test]
    fn no_bit_is_ignored(launch in launch(), bit in 0..2048usize) {
        if let Ok(qmd) = launch.encode() {
            let mut words = *qmd.words();
            words[bit / 32] ^= 1 << (bit % 32);
            prop_assert_ne!(Launch::decode(&Qmd::from_words(words)), Ok(launch));
        }
    }
}
