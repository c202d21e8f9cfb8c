//! Anything at all as request, argument, address: an errno perhaps, never a panic.

use proptest::prelude::*;
use tegra_sim::driver::{FileId, Node};

use crate::bench::Bench;

/// An argument: what it points to, or the number itself.
#[derive(Clone, Debug)]
enum Argument {
    Number(u64),
    Bytes(Vec<u8>),
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0u64..16,
        Just(u64::MAX),
        Just(1 << 40),
        Just(0x20_0000),
        Just(4096),
        5000u64..5012,
        0x7fff_ffffu64..0x8000_0008,
        any::<u64>(),
    ]
}

/// Words that mean something here and there, at random places.
fn argument() -> impl Strategy<Value = Argument> {
    let bytes = proptest::collection::vec((any::<bool>(), number()), 33).prop_map(|words| {
        words
            .into_iter()
            .flat_map(|(wide, word)| {
                let pair = [word as u32, if wide { (word >> 32) as u32 } else { word as u32 }];
                pair.map(u32::to_le_bytes).concat()
            })
            .collect()
    });
    prop_oneof![
        8 => bytes.prop_map(Argument::Bytes),
        1 => number().prop_map(Argument::Number),
    ]
}

fn request() -> impl Strategy<Value = u32> {
    let known: Vec<u32> = tegra_sim::driver::requests().map(|(_, _, request)| request).collect();
    prop_oneof![9 => proptest::sample::select(known), 1 => any::<u32>()]
}

/// A request of a node that would wait for ever, or allocate as much memory as it is told.
fn is_left_out(request: u32) -> bool {
    const WAIT: u32 = 0xc018_4866;
    request == WAIT
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn no_request_can_break_the_device(
        calls in proptest::collection::vec((0u64..14, request(), argument()), 1..120),
        closes in proptest::collection::vec(0u64..14, 0..4),
    ) {
        let bench = Bench::new();
        let _ready = bench.running();
        for (file, request, argument) in &calls {
            if is_left_out(*request) {
                continue;
            }
            let result = match argument {
                Argument::Number(arg) => bench.orin.ioctl(FileId(*file), *request, *arg),
                Argument::Bytes(bytes) => {
                    let mut bytes = bytes.clone();
                    bench.orin.ioctl(FileId(*file), *request, bytes.as_mut_ptr() as u64)
                }
            };
            if let Err(refused) = result {
                prop_assert!(refused.errno.code() > 0);
            }
        }
        for file in closes {
            bench.orin.close(FileId(file));
        }
        bench.close_all();
        let live = bench.orin.live();
        prop_assert_eq!((live.channels, live.tsgs, live.address_spaces), (0, 0, 0));
        prop_assert_eq!((live.mappings, live.handles, live.events), (0, 0, 0));
    }

    #[test]
    fn no_mmap_and_no_path_can_break_the_device(bytes in number(), offset in number(), path in ".*") {
        let bench = Bench::new();
        let _ = bench.orin.mmap(bench.ctrl, bytes, offset);
        let _ = bench.orin.mmap(bench.nvmap, bytes, offset);
        let (_, fd) = bench.buffer(8192);
        let fits = bytes.checked_next_multiple_of(4096).and_then(|bytes| bytes.checked_add(offset));
        let mapped = bench.orin.check_dma_buf_mmap(&bench.dma_buf(fd), bytes, 3, offset);
        prop_assert_eq!(mapped.is_ok(), fits.is_some_and(|end| end <= 8192));
        prop_assert_eq!(Node::at(&path), None);
    }
}
