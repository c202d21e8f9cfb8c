//! Streams: the words seen on hardware, every limit, and round trips of encoding and decoding.

use proptest::prelude::*;
use tegra::address::{AddressError, GpuAddress, QmdAddress};
use tegra::class::host::{MembarType, WfiScope};
use tegra::class::{Compute, Copy, compute};
use tegra::local_memory::{LocalMemory, LocalMemorySize};
use tegra::pushbuffer::{
    Acquire, CacheInvalidate, Condition, DecodeError, Engine, Entry, EntryError, Fill, Header,
    HeaderError, L2Operation, Listing, Operation, OperationError, Payload, PushBuffer, Release,
    Shape, Signal, Transfer, Upload, Windows, decode,
};

use super::at;

fn words(operation: &Operation) -> Vec<u32> {
    let mut words = Vec::new();
    operation.encode(&mut words);
    words
}

const LOCAL: u64 = 0xfd_0000_0000;
const SHARED: u64 = 0xfe_0000_0000;

/// The first compute submission that ran on an Orin: bind, windows, release with timestamp.
#[test]
fn the_first_compute_submission_equals_the_hardwares() {
    let mut stream = PushBuffer::<Compute>::new();
    let release = Release::new(at(0xff_ffb0_0010), Payload::Long(1)).unwrap();
    stream
        .bind()
        .set_windows(Windows::new(at(LOCAL), at(SHARED)).unwrap())
        .release(release.with_timestamp().unwrap());
    assert_eq!(
        stream.words(),
        [
            &[0x2001_2000, 0x0000_c7c0][..],
            &[0x2002_21ec, 0x0000_00fd, 0x0000_0000],
            &[0x2002_20a8, 0x0000_00fe, 0x0000_0000],
            &[0x2005_0017, 0xffb0_0010, 0x0000_00ff, 0x0000_0001, 0x0000_0000, 0x0310_0001],
        ]
        .concat()
    );
}

#[test]
fn launch_words_equal_the_hardwares() {
    let mut stream = PushBuffer::<Compute>::new();
    let wait = CacheInvalidate { instruction: true, data: true, constant: true, wait: true };
    stream
        .invalidate_shader_caches(wait)
        .invalidate_shader_caches(CacheInvalidate { wait: false, ..wait })
        .launch(QmdAddress::new(at(0xff_ffa0_1200)).unwrap());
    assert_eq!(
        stream.words(),
        [
            &[0x2001_2087, 0x0000_1011][..],
            &[0x2001_25a6, 0x0000_1011],
            &[0x2001_20ad, 0xffff_a012],
            &[0x2001_20b0, 0x0000_0009],
        ]
        .concat()
    );
}

#[test]
fn local_memory_words_equal_the_hardwares() {
    let mut stream = PushBuffer::<Compute>::new();
    stream.set_local_memory(LocalMemory::new(at(0xff_e200_0000), 0x1b_0000).unwrap());
    assert_eq!(
        stream.words(),
        [
            &[0x2002_21e4, 0x0000_00ff, 0xe200_0000][..],
            &[0x2003_20b9, 0x0000_0000, 0x001b_0000, 0x0000_00ff],
        ]
        .concat()
    );
}

#[test]
fn copy_words_equal_the_hardwares() {
    let mut stream = PushBuffer::<Copy>::new();
    let bytes = Shape::Linear { bytes: 0x1_0000 };
    stream
        .bind()
        .transfer(Transfer::new(at(0xff_1000_0000), at(0xfe_2000_0000), bytes).unwrap())
        .signal(Signal::new(at(0xff_ffb0_0020), Payload::Word(7), true).unwrap());
    assert_eq!(
        stream.words(),
        [
            &[0x2001_8000, 0x0000_c7b5][..],
            &[0x2004_8100, 0xff, 0x1000_0000, 0xfe, 0x2000_0000],
            &[0x2001_8106, 0x0001_0000],
            &[0x2001_80c0, 0x0000_0182],
            &[0x2003_8090, 0xff, 0xffb0_0020, 7],
            &[0x2001_80c0, 0x0000_0014],
        ]
        .concat()
    );
}

#[test]
fn semaphore_words_equal_the_manuals() {
    let timeline = at(0xff_ffb0_0010);
    let wait = Acquire::new(timeline, Payload::Long(1 << 32 | 5), Condition::Reached).unwrap();
    assert_eq!(
        words(&Operation::Acquire(wait)),
        [0x2005_0017, 0xffb0_0010, 0xff, 5, 1, 0x0100_0003]
    );
    let short = Release::new(at(0x1004), Payload::Word(9)).unwrap();
    assert_eq!(words(&Operation::Release(short))[5], 0x0010_0001);
    let early = Release::new(at(0x1008), Payload::Long(9)).unwrap().at_once();
    assert_eq!(words(&Operation::Release(early))[5], 0x0100_0001);
    let polite = wait.switching_tsg();
    assert_eq!(words(&Operation::Acquire(polite))[5], 0x0100_1003);
    assert_eq!(words(&Operation::NonStallInterrupt), [0x2001_0008, 0]);
}

/// Words derived from headers and manuals, not seen on hardware.
#[test]
fn inferred_words_equal_the_headers() {
    assert_eq!(words(&Operation::WaitForIdle(WfiScope::All)), [0x8001_001e]);
    let system = Operation::MemoryBarrier(MembarType::System);
    assert_eq!(words(&system), [0x2004_000a, 0, 0, 0, 5 << 27]);
    let gpu = Operation::MemoryBarrier(MembarType::Gpu);
    assert_eq!(words(&gpu), [0x2004_000a, 0, 0, 1, 5 << 27]);
    let drop = Operation::L2(L2Operation::InvalidateSysmem);
    assert_eq!(words(&drop), [0x2004_000a, 0, 0, 0, 0xe << 27]);
    let fill = Fill::new(at(0x20_0000), 0xdead_beef, 16).unwrap();
    assert_eq!(
        words(&Operation::Fill(fill)),
        [
            &[0x2002_8102, 0, 0x20_0000][..],
            &[0x2001_81c0, 0xdead_beef],
            &[0x2001_81c2, 0x0003_0004],
            &[0x2001_8106, 16],
            &[0x2001_80c0, 0x0000_0582],
        ]
        .concat()
    );
    let signal = Signal::new(at(0x30_0000), Payload::Long(3), true).unwrap();
    let copy = Transfer::new(at(0x20_0000), at(0x21_0000), Shape::Linear { bytes: 3 }).unwrap();
    let both = words(&Operation::Transfer(copy.then(signal)));
    assert_eq!(both.last(), Some(&(0x0196 | 1 << 27)));
    let upload = Upload::new(at(0x20_0000), vec![1, 2, 3]).unwrap();
    assert_eq!(
        words(&Operation::Upload(upload)),
        [&[0x2004_2060, 12, 1, 0, 0x20_0000][..], &[0x2001_206c, 0x41], &[0x6003_206d, 1, 2, 3],]
            .concat()
    );
}

/// One invalidate word serves both methods only while their fields are at the same positions.
#[test]
fn both_invalidates_share_their_fields() {
    use compute::{invalidate_shader_caches as wait, invalidate_shader_caches_no_wfi as now};
    assert_eq!(wait::INSTRUCTION, now::INSTRUCTION);
    assert_eq!(wait::DATA, now::GLOBAL_DATA);
    assert_eq!(wait::CONSTANT, now::CONSTANT);
}

#[test]
fn a_ring_entry_equals_the_hardwares() {
    let entry = Entry::new(at(0xff_ffa0_1000), 6).unwrap();
    assert_eq!(entry.encode(), 0x0000_1aff_ffa0_1000);
    assert_eq!(entry.after_previous().encode(), 0x8000_1aff_ffa0_1000);
    assert_eq!(Entry::decode(0x0000_1aff_ffa0_1000), Ok(entry));
    assert!(Entry::decode(0x8000_1aff_ffa0_1000).unwrap().waits());
}

#[test]
fn ring_entries_check_their_limits() {
    let length = |words| EntryError::Length { words };
    assert_eq!(Entry::new(at(0x1000), 0), Err(length(0)));
    assert_eq!(Entry::new(at(0x1000), 1 << 21), Err(length(1 << 21)));
    assert!(Entry::new(at(0x1000), (1 << 21) - 1).is_ok());
    assert!(matches!(Entry::new(at(0x1002), 1), Err(EntryError::Address(_))));
    // The last word of the space cannot be fetched.
    assert!(Entry::new(at((1 << 40) - 8), 1).is_ok());
    assert!(matches!(Entry::new(at((1 << 40) - 4), 1), Err(EntryError::Address(_))));
    // Control entries, conditional fetches, main level and the reserved bit are never encoded.
    for entry in [0, 0x0000_1aff_ffa0_1001, 0x0000_18ff_ffa0_1000, 0x0000_1bff_ffa0_1000] {
        assert_eq!(Entry::decode(entry), Err(EntryError::NotAFetch { entry }));
    }
}

#[test]
fn addresses_check_their_limits() {
    assert!(matches!(GpuAddress::new(1 << 40), Err(AddressError::TooHigh { .. })));
    assert!(at(0xff_ffff_ffff).spanning(1).is_ok());
    assert!(at(0xff_ffff_ffff).spanning(2).is_err());
    assert!(at(1).spanning(u64::MAX).is_err());
    assert!(at(0xff_ffff_ffff).offset(1).is_err());
    assert_eq!(at(0xff_0000_0000).offset(0x10), Ok(at(0xff_0000_0010)));
    assert_eq!((at(0x12_3456_789a).upper(), at(0x12_3456_789a).lower()), (0x12, 0x3456_789a));
    assert!(QmdAddress::new(at(0x1080)).is_err());
    let qmd = QmdAddress::new(at(0xff_ffff_ff00)).unwrap();
    assert_eq!((qmd.shifted(), QmdAddress::from_shifted(u32::MAX)), (u32::MAX, qmd));
}

#[test]
fn operations_check_their_limits() {
    let misaligned = |result: Result<(), OperationError>| {
        matches!(result, Err(OperationError::Address(AddressError::Misaligned { .. })))
    };
    assert!(misaligned(Release::new(at(0x1002), Payload::Word(1)).map(drop)));
    assert!(misaligned(Release::new(at(0x1004), Payload::Long(1)).map(drop)));
    let release = Release::new(at(0x1008), Payload::Long(1)).unwrap();
    assert!(misaligned(release.with_timestamp().map(drop)));
    assert!(misaligned(Acquire::new(at(0x1004), Payload::Long(1), Condition::Equal).map(drop)));
    assert!(Acquire::new(at(0x1008), Payload::Long(1), Condition::Equal).is_ok());
    assert!(misaligned(Signal::new(at(0x1008), Payload::Long(1), true).map(drop)));
    assert!(Signal::new(at(0x1008), Payload::Long(1), false).is_ok());

    assert!(matches!(Windows::new(at(LOCAL), at(LOCAL)), Err(OperationError::Windows { .. })));
    assert!(misaligned(Windows::new(at(LOCAL + 0x1000), at(SHARED)).map(drop)));

    let linear = |bytes| Transfer::new(at(0x20_0000), at(0x30_0000), Shape::Linear { bytes });
    assert!(linear(0).is_err());
    assert!(linear(1 << 31).is_ok());
    assert!(linear((1 << 31) + 1).is_err());
    let lines = |source_pitch, count| {
        let shape = Shape::Lines { width: 64, count, source_pitch, destination_pitch: 64 };
        Transfer::new(at(0xff_0000_0000), at(0x30_0000), shape)
    };
    assert!(lines(64, 4).is_ok());
    assert!(matches!(lines(63, 4), Err(OperationError::Pitch { width: 64, pitch: 63 })));
    assert!(lines(64, 0).is_err());
    assert!(lines(1 << 31, 4).is_err(), "the source leaves the address space");
    assert!(Fill::new(at(0x20_0002), 0, 1).is_err());
    assert!(Fill::new(at(0x20_0000), 0, 0).is_err());
    assert!(Upload::new(at(0x20_0000), vec![]).is_err());
    assert!(Upload::new(at(0x20_0000), vec![0; 8191]).is_ok());
    assert!(Upload::new(at(0x20_0000), vec![0; 8192]).is_err());
    assert!(LocalMemory::new(at(0), 1 << 40).is_err());
    assert!(LocalMemory::new(at(0), 0x1000).is_err());
}

/// Sizes of the proven code, which ran on 4 TPCs, the 30 W mode; the whole chip has 8.
#[test]
fn local_memory_sizes_equal_the_hardwares() {
    let size = LocalMemorySize::new(0, 8).unwrap();
    assert_eq!(size, LocalMemorySize { per_thread: 0x240, per_tpc: 0x36_0000, total: 27 << 20 });
    assert_eq!(LocalMemorySize::new(0, 4).unwrap().total, 27 << 19);
    assert_eq!(LocalMemorySize::new(1, 8).unwrap().per_thread, 0x260);
    assert_eq!(LocalMemorySize::new(1 << 24, 8), None);
    assert_eq!(LocalMemorySize::new(u32::MAX, 8), None);
}

#[test]
fn headers_reject_what_the_host_unit_rejects() {
    assert_eq!(Header::decode(0), Ok(Header::Nop));
    assert_eq!(Header::decode(0xe000_0000), Ok(Header::EndSegment));
    for word in [0x0001_0000, 0x4001_2000, 0xc000_0000] {
        assert_eq!(Header::decode(word), Err(HeaderError::Opcode { word }));
    }
    let word = 0x2001_3000;
    assert_eq!(Header::decode(word), Err(HeaderError::Reserved { word }));
    let word = 0x2002_2fff;
    assert_eq!(Header::decode(word), Err(HeaderError::Overflow { word }));
    assert!(Header::decode(0x6002_2fff).is_ok(), "one method, repeatedly");
    let word = 0xa002_2fff;
    assert_eq!(Header::decode(word), Err(HeaderError::Overflow { word }));
}

#[test]
fn decode_errors_name_the_wrong_word() {
    let missing = |method, operand| Err(DecodeError::Missing { method, operand });
    assert_eq!(decode(&[0x2002_0017, 0]), Err(DecodeError::Truncated { missing: 1 }));
    assert_eq!(decode(&[0x2001_20b0, 9]), missing("SEND_SIGNALING_PCAS2_B", "SEND_PCAS_A"));
    assert_eq!(decode(&[0x2001_20ad, 1]), Err(DecodeError::Unused { operand: "SEND_PCAS_A" }));
    let unknown = DecodeError::UnknownMethod { subchannel: 1, address: 0x13c };
    assert_eq!(decode(&[0x2001_204f, 1]), Err(unknown));
    let unknown = DecodeError::UnknownMethod { subchannel: 0, address: 0x13c };
    assert_eq!(decode(&[0x2001_004f, 1]), Err(unknown));
    let word = DecodeError::Word { method: "SET_OBJECT", word: 0xc7b5 };
    assert_eq!(decode(&[0x2001_2000, 0xc7b5]), Err(word));
    let word = DecodeError::Word { method: "SEM_EXECUTE", word: 0x0310_0006 };
    assert_eq!(decode(&[0x2005_0017, 0x10, 0, 0, 0, 0x0310_0006]), Err(word));
    let upload = missing("LAUNCH_DMA", "LOAD_INLINE_DATA");
    assert_eq!(decode(&[0x2004_2060, 4, 1, 0, 0, 0x2001_206c, 0x41]), upload);
    let misaligned = decode(&[0x2005_0017, 0x8, 0, 0, 0, 0x0310_0001]);
    assert!(matches!(misaligned, Err(DecodeError::Operation(OperationError::Address(_)))));
}

/// Other header forms of the same methods decode to the same operations.
#[test]
fn decoding_does_not_depend_on_the_form() {
    let launch = Operation::Launch(QmdAddress::new(at(0x1200)).unwrap());
    assert_eq!(decode(&[0x8012_20ad, 0, 0x8009_20b0]), Ok(vec![launch]));
    // The words after the end of a segment are ignored.
    assert_eq!(decode(&[0xe000_0000, 0xffff_ffff]), Ok(vec![]));
}

#[test]
fn listings_print_operations_or_methods() {
    let mut stream = PushBuffer::<Compute>::new();
    let release = Release::new(at(0xff_ffb0_0010), Payload::Long(5)).unwrap();
    stream
        .bind()
        .launch(QmdAddress::new(at(0xff_ffa0_1200)).unwrap())
        .release(release.with_timestamp().unwrap());
    assert_eq!(
        Listing(stream.words()).to_string(),
        "bind Compute\nlaunch 0xffffa01200\nrelease 0xffffb00010 = 0x5 when idle, timestamp\n"
    );
    let foreign = Listing(&[0x2002_20ad, 1, 2, 0x8001_001e, 0x2003_8090, 7]).to_string();
    assert_eq!(
        foreign,
        "not a stream of this crate: no method 0x2b8 on subchannel 1\n     \
         0: 200220ad Incrementing, 2 words\n        \
         00000001 SEND_PCAS_A\n        \
         00000002 subchannel 1 method 0x2b8\n     \
         3: 8001001e WFI = 0x1\n     \
         4: 20038090 Incrementing, 3 words\n        \
         00000007 SET_SEMAPHORE_A\n"
    );
}

fn address(alignment: u64) -> impl Strategy<Value = GpuAddress> {
    // 4 GiB below the end leaves space for any operation's range.
    (0..((1u64 << 40) - (1 << 32)) / alignment).prop_map(move |n| at(n * alignment))
}

fn payload() -> impl Strategy<Value = Payload> {
    prop_oneof![any::<u32>().prop_map(Payload::Word), any::<u64>().prop_map(Payload::Long)]
}

fn condition() -> impl Strategy<Value = Condition> {
    prop::sample::select(vec![
        Condition::Equal,
        Condition::AtLeast,
        Condition::Reached,
        Condition::AnyBit,
        Condition::AnyClear,
    ])
}

fn signal() -> impl Strategy<Value = Signal> {
    (address(16), payload(), any::<bool>(), any::<bool>()).prop_map(|(at, payload, stamp, wake)| {
        let signal = Signal::new(at, payload, stamp).expect("aligned");
        if wake { signal.interrupting() } else { signal }
    })
}

fn shape() -> impl Strategy<Value = Shape> {
    let linear = (1..=Transfer::MAX_BYTES).prop_map(|bytes| Shape::Linear { bytes });
    let lines =
        (1..1000u32, 1..1000u32, 0..1000u32, 0..1000u32).prop_map(|(width, count, s, d)| {
            Shape::Lines { width, count, source_pitch: width + s, destination_pitch: width + d }
        });
    prop_oneof![linear, lines]
}

fn transfer() -> impl Strategy<Value = Transfer> {
    (address(1), address(1), shape(), any::<bool>(), prop::option::of(signal())).prop_map(
        |(source, destination, shape, overlap, then)| {
            let plain = Transfer::new(source, destination, shape).expect("in range");
            let ordered = if overlap { plain.overlapping_previous() } else { plain };
            then.map_or(ordered, |signal| ordered.then(signal))
        },
    )
}

fn operation() -> impl Strategy<Value = Operation> {
    let acquire =
        (address(8), payload(), condition(), any::<bool>()).prop_map(|(at, p, c, yields)| {
            let acquire = Acquire::new(at, p, c).expect("aligned");
            Operation::Acquire(if yields { acquire.switching_tsg() } else { acquire })
        });
    let release =
        (address(16), payload(), any::<bool>(), any::<bool>()).prop_map(|(at, p, stamp, idle)| {
            let mut release = Release::new(at, p).expect("aligned");
            if stamp {
                release = release.with_timestamp().expect("aligned");
            }
            Operation::Release(if idle { release } else { release.at_once() })
        });
    let windows = (0..1000u64, 1000..2000u64).prop_map(|(local, shared)| {
        let windows = Windows::new(at(local << 24), at(shared << 24)).expect("apart");
        Operation::SetWindows(windows)
    });
    let memory = (address(4096), 0..1u64 << 16).prop_map(|(base, n)| {
        Operation::SetLocalMemory(LocalMemory::new(base, n << 15).expect("granule"))
    });
    let caches = any::<[bool; 4]>().prop_map(|[instruction, data, constant, wait]| {
        Operation::InvalidateShaderCaches(CacheInvalidate { instruction, data, constant, wait })
    });
    let upload = (address(4), prop::collection::vec(any::<u32>(), 1..64))
        .prop_map(|(at, words)| Operation::Upload(Upload::new(at, words).expect("in range")));
    let fill = (address(4), any::<u32>(), 1..=Fill::MAX_WORDS)
        .prop_map(|(at, value, words)| Operation::Fill(Fill::new(at, value, words).expect("fits")));
    let simple = prop::sample::select(vec![
        Operation::Bind(Engine::Compute),
        Operation::Bind(Engine::Copy),
        Operation::NonStallInterrupt,
        Operation::WaitForIdle(WfiScope::CurrentVeid),
        Operation::WaitForIdle(WfiScope::All),
        Operation::MemoryBarrier(MembarType::System),
        Operation::MemoryBarrier(MembarType::Gpu),
        Operation::L2(L2Operation::InvalidateSysmem),
        Operation::L2(L2Operation::FlushDirty),
    ]);
    prop_oneof![
        simple,
        acquire,
        release,
        any::<u32>().prop_map(Operation::SetReference),
        windows,
        memory,
        caches,
        any::<u32>().prop_map(|n| Operation::Launch(QmdAddress::from_shifted(n))),
        upload,
        transfer().prop_map(Operation::Transfer),
        fill,
        signal().prop_map(Operation::Signal),
    ]
}

/// Positions of data words in a stream.
fn data_words(stream: &[u32]) -> Vec<usize> {
    let mut data = Vec::new();
    let mut next = 0;
    while let Some(word) = stream.get(next) {
        next += 1;
        if let Ok(Header::Methods { count, .. }) = Header::decode(*word) {
            data.extend(next..next + count as usize);
            next += count as usize;
        }
    }
    data
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn encoded_operations_decode_to_the_same(operations in prop::collection::vec(operation(), 0..20)) {
        let mut words = Vec::new();
        for operation in &operations {
            operation.encode(&mut words);
        }
        prop_assert_eq!(decode(&words), Ok(operations.clone()));
        // One non-empty line per operation.
        let listing = Listing(&words).to_string();
        prop_assert_eq!(listing.lines().count(), operations.len());
    }

    /// Every single-bit change of a data word is detected: the stream decodes to something else or
    /// not at all. Headers have bits without effect, such as the form of a single word.
    #[test]
    fn no_data_bit_is_ignored(operation in operation(), bit in any::<prop::sample::Index>()) {
        let mut words = words(&operation);
        let data = data_words(&words);
        if data.is_empty() {
            return Ok(());
        }
        let bit = bit.index(data.len() * 32);
        words[data[bit / 32]] ^= 1 << (bit % 32);
        prop_assert_ne!(decode(&words), Ok(vec![operation]));
    }

    #[test]
    fn any_words_decode_or_fail_and_print(words in prop::collection::vec(any::<u32>(), 0..64)) {
        let listing = Listing(&words).to_string();
        if let Ok(operations) = decode(&words) {
            let mut again = Vec::new();
            operations.iter().for_each(|operation| operation.encode(&mut again));
            prop_assert_eq!(listing.lines().count(), operations.len());
            prop_assert_eq!(decode(&again), Ok(operations));
        } else {
            prop_assert!(listing.starts_with("not a stream of this crate: "), "{}", listing);
        }
    }

    #[test]
    fn headers_round_trip_through_their_word(word in any::<u32>()) {
        if let Ok(header) = Header::decode(word) {
            prop_assert_eq!(header.encode(), word);
        }
    }

    #[test]
    fn ring_entries_round_trip_through_their_word(
        address in address(4), words in 1..=Entry::MAX_WORDS, waits in any::<bool>(), raw in any::<u64>(),
    ) {
        let entry = Entry::new(address, words as usize).expect("in range");
        let entry = if waits { entry.after_previous() } else { entry };
        prop_assert_eq!(Entry::decode(entry.encode()), Ok(entry));
        if let Ok(entry) = Entry::decode(raw) {
            prop_assert_eq!(entry.encode(), raw);
        }
    }
}
