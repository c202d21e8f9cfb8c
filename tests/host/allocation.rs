//! The decode loop allocates nothing, on any thread: every allocation is counted while it runs.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use orind::engine::LoadSpec;
use orind_testing::engine::{spec, start};
use orind_testing::program::{again, said};
use orind_testing::tiny;

struct Counting;

static ARMED: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if ARMED.load(Ordering::Relaxed) {
            COUNT.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(work: impl FnOnce()) -> usize {
    COUNT.store(0, Ordering::SeqCst);
    ARMED.store(true, Ordering::SeqCst);
    work();
    ARMED.store(false, Ordering::SeqCst);
    COUNT.load(Ordering::SeqCst)
}

#[test]
#[ignore = "run by the other test, in a process where nothing else allocates"]
fn counted() {
    assert!(count(|| drop(std::hint::black_box(vec![1u8; 100]))) > 0, "the counter counts");
    for model in ["tiny-llama-Q4_K_M", "tiny-qwen3-Q8_0", "tiny-llama-f16"] {
        let spec = spec(tiny(model), "cpu");
        let handle =
            start(LoadSpec { slots: 3, context: 512, prefill_chunk: 64, threads: 2, ..spec });
        let counted = handle.exclusive("count", |core| {
            core.reset();
            for slot in 0..3 {
                core.prefill(slot, &[1, 2, 3]).unwrap();
            }
            // The first steps may fill pools that are kept.
            core.decode(3, 2).unwrap();
            core.decode(1, 2).unwrap();
            count(|| {
                core.decode(3, 40).unwrap();
                core.decode(1, 40).unwrap();
            })
        });
        assert_eq!(counted.blocking_recv().unwrap().unwrap(), 0, "{model}");
    }
}

#[test]
fn decoding_allocates_nothing() {
    said(&mut again(module_path!(), "counted"));
}
