//! GPUs with defects: each defect has its effect, and everything else works.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tegra::class::qmd::DependentAction;
use tegra::local_memory::LocalMemory;
use tegra::pushbuffer::Payload;
use tegra::qmd::{Dependent, QmdRelease};
use tegra_sim::finding::Rule;
use tegra_sim::trace::Event;

use super::rig::{Kernel, Rig, at, compute_stream, release};

/// Launches that ran.
fn launches(rig: &Rig) -> usize {
    rig.trace.take().iter().filter(|record| matches!(record.event, Event::Launch { .. })).count()
}

#[test]
fn a_cut_qmd_chain_leaves_the_engine_idle() {
    for (words, ran) in [("", 5), ("chain-cut=3", 3), ("chain-cut=1", 1), ("chain-cut=5", 5)] {
        let rig = Rig::on_machine(1, words);
        let kernel = Kernel::new(&rig);
        let slot = rig.buffer(4096);
        for index in 0..5 {
            let mut launch = kernel.launch;
            launch.dependent = (index < 4).then(|| Dependent {
                qmd: kernel.at(index + 1),
                action: DependentAction::Schedule,
                prefetch: true,
            });
            kernel.store(index, &launch);
        }
        let mut stream = compute_stream();
        stream.launch(kernel.at(0)).release(release(slot.at(0), 1));
        // A separate launch starts its own QMD chain.
        stream.launch(kernel.at(4)).release(release(slot.at(16), 1));
        rig.run(stream.words());
        assert_eq!(launches(&rig), ran + 1, "{words}");
        assert_eq!((slot.long(0), slot.long(16)), (1, 1), "{words}");
    }
}

#[test]
fn releases_of_qmds_are_not_done() {
    for (words, released) in [("", 7), ("no-qmd-release", 0)] {
        let rig = Rig::on_machine(1, words);
        let mut kernel = Kernel::new(&rig);
        let slot = rig.buffer(4096);
        let payload = Payload::Long(7);
        kernel.launch.releases[0] =
            Some(QmdRelease { at: slot.at(16), payload, timestamp: true, system_barrier: true });
        kernel.store(0, &kernel.launch);
        let mut stream = compute_stream();
        stream.launch(kernel.at(0)).release(release(slot.at(0), 1));
        rig.run(stream.words());
        assert_eq!((slot.long(0), slot.long(16)), (1, released), "{words}");
    }
}

#[test]
fn a_lost_event_wakes_no_waiter() {
    for (words, woken) in [("", 1), ("no-event", 0)] {
        let rig = Rig::on_machine(1, words);
        let mut stream = compute_stream();
        stream.non_stall_interrupt();
        rig.run(stream.words());
        assert_eq!(*rig.driver.interrupts.lock(), woken, "{words}");
    }
}

#[test]
fn local_memory_for_48_warps_of_an_sm_is_refused() {
    let warp = (0x240u64 * 32).next_multiple_of(0x200);
    for (words, warps, fault) in [
        ("", 96, None),
        ("local-memory-refused", 96, Some((13, Rule::SkedException))),
        ("local-memory-refused", 192, None),
    ] {
        let rig = Rig::on_machine(1, words);
        let kernel = Kernel::new(&rig);
        let mut stream = compute_stream();
        stream.set_local_memory(LocalMemory::new(at(0x10_0000_0000), warp * warps).unwrap());
        stream.launch(kernel.at(0));
        rig.submit(&mut rig.channel(), stream.words());
        rig.gpu.drain();
        let told: Vec<_> =
            rig.driver.errors.lock().iter().map(|(_, code, f)| (*code, f.finding.rule)).collect();
        assert_eq!(told, Vec::from_iter(fault), "{words}, {warps} warps");
    }
}

/// Returns whether `work` has not returned after a while; its thread then runs for ever.
fn never_returns<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> bool {
    let worker = thread::spawn(work);
    thread::sleep(Duration::from_millis(50));
    !worker.is_finished()
}

#[test]
fn a_frozen_doorbell_blocks_the_ringing_thread() {
    for (words, frozen) in [("", false), ("freeze=doorbell", true)] {
        let rig = Rig::on_machine(1, words);
        let slot = rig.buffer(4096);
        let mut stream = compute_stream();
        stream.release(release(slot.at(0), 1));
        let stream = rig.stream(stream.words());
        let mut channel = rig.channel();
        channel.push(stream.entry.encode());
        assert_eq!(never_returns(move || channel.ring()), frozen, "{words}");
        rig.gpu.drain();
        assert_eq!(slot.long(0), u64::from(!frozen), "{words}");
    }
}

#[test]
fn a_frozen_launch_also_blocks_its_doorbell() {
    let rig = Rig::on_machine(1, "freeze=launch");
    let slot = rig.buffer(4096);
    let mut stream = compute_stream();
    stream.release(release(slot.at(0), 1));
    rig.run(stream.words());
    assert_eq!(slot.long(0), 1, "anything else works");
    let kernel = Kernel::new(&rig);
    let stream = rig.stream(&kernel.stream());
    let mut channel = rig.channel();
    channel.push(stream.entry.encode());
    assert!(never_returns(move || channel.ring()));
    let gpu = Arc::clone(&rig.gpu);
    assert!(never_returns(move || gpu.open_tsg()), "nor does anything of the GPU");
    // Its thread does not end any more, so that it cannot be waited for.
    std::mem::forget(rig);
}
