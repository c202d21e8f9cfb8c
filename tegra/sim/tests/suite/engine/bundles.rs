//! Bundles of failed launches, and their replay.

use std::fs;
use std::path::{Path, PathBuf};

use orind_kernels::catalogue::Kernel;
use orind_kernels::catalogue::launch::{elements_grid, rows_grid};
use orind_kernels::params::RowsParams;
use proptest::prelude::*;
use tegra_bundle::{Bundle, Header, Launch, Mapping, Range, Simulated};
use tegra_sim::config::Checks;
use tegra_sim::engine::Replay;

use super::loaded::{Loaded, floats, rig_with};
use crate::gpu::rig::Rig;

fn params(rig: &Rig) -> RowsParams {
    let ones = floats(rig, &[1.0; 512]);
    let (a, b, out) = (ones.va, ones.va, rig.buffer(2048).va);
    RowsParams { a, b, out, n: 512, rows: 1, eps: 1e-5, reserved: 0 }
}

/// The only bundle that a bad launch leaves.
fn left(directory: &Path, faults: &str, spoil: impl FnOnce(&Rig, &mut Loaded)) -> PathBuf {
    let rig = rig_with(1, faults, Some(directory));
    let mut loaded = Loaded::new(&rig, Kernel::RmsNorm, rows_grid(1), &params(&rig));
    spoil(&rig, &mut loaded);
    assert!(!loaded.run(&rig));
    let files: Vec<_> = fs::read_dir(directory).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 1);
    files[0].clone()
}

fn replayed(spoil: impl FnOnce(&Rig, &mut Loaded)) -> (Bundle, Replay) {
    let directory = tempfile::tempdir().unwrap();
    let bundle = Bundle::read(&left(directory.path(), "", spoil)).unwrap();
    let replay = Replay::run(&bundle, None).unwrap();
    assert!(replay.is_same(), "{replay}");
    (bundle, replay)
}

#[test]
fn a_fault_at_an_instruction() {
    let (bundle, replay) = replayed(|_, loaded| loaded.launch.shared_bytes = 0);
    assert_eq!((bundle.header.notifier, bundle.header.rule.as_str()), (Some(13), "sm-exception"));
    assert!(bundle.header.stream.iter().any(|line| line.contains("PCAS")));
    let text = replay.to_string();
    for part in ["shared-out-of-range", "lane ", "bank 0 at ", "  R0  ", "STS", "  R8  "] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let marked = text.lines().find(|line| line.starts_with('>')).unwrap();
    assert!(marked.contains("STS"), "{text}");
}

#[test]
fn an_mmu_fault() {
    let (_, replay) =
        replayed(|_, loaded| loaded.bank.write(0x160, &0x7_0000_0000u64.to_le_bytes()));
    let text = replay.to_string();
    assert!(text.contains("InvalidPde at GPU address 0x70000") && text.contains("> 0x"), "{text}");
}

#[test]
fn a_launch_that_the_scheduler_refuses() {
    let (bundle, replay) = replayed(|rig, loaded| {
        // A mapping that is large and was never written costs the bundle nothing.
        rig.buffer(1 << 28);
        loaded.launch.grid = [70_000, 1, 1];
        loaded.spoil = Some(|words| words[12] = 0);
    });
    assert!(bundle.memory.iter().map(Vec::len).sum::<usize>() < 1 << 20);
    assert!(replay.to_string().contains("is refused"), "{replay}");
}

#[test]
fn injected_faults_are_reproduced_in_a_replay() {
    let directory = tempfile::tempdir().unwrap();
    let path = left(directory.path(), "mmu-fault@1", |_, _| {});
    let bundle = Bundle::read(&path).unwrap();
    assert!(bundle.header.simulated.as_ref().unwrap().injected);
    let replay = Replay::run(&bundle, None).unwrap();
    assert!(replay.is_same() && replay.to_string().contains("runs to its end"), "{replay}");
    // Once nothing is made to happen it is another story.
    let mut bundle = bundle;
    bundle.header.simulated.as_mut().unwrap().injected = false;
    assert!(!Replay::run(&bundle, Some(Checks::Race)).unwrap().is_same());
}

#[test]
fn bundles_omit_memory_beyond_the_limit() {
    let directory = tempfile::tempdir().unwrap();
    let mut address = 0;
    let path = left(directory.path(), "", |rig, loaded| {
        let large = rig.buffer(65 << 20);
        large.write(0, &vec![1; 65 << 20]);
        address = large.va;
        loaded.launch.shared_bytes = 0;
    });
    let bundle = Bundle::read(&path).unwrap();
    assert_eq!(bundle.header.left_out, [Range { va: address, bytes: 65 << 20 }]);
    let replay = Replay::run(&bundle, None).unwrap();
    assert!(replay.is_same() && replay.to_string().contains("left out"), "{replay}");
}

#[test]
fn the_command_tells_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let path = left(directory.path(), "", |_, loaded| loaded.launch.program.registers = 4);
    let replay = |path: &Path| {
        let mut command = orind_testing::program::command(env!("CARGO_BIN_EXE_tegra-sim"));
        command.arg("replay").arg(path).output().unwrap()
    };
    let output = replay(&path);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("register-out-of-range") && text.ends_with("the same fault\n"), "{text}");
    fs::write(&path, "tegra fault bundle 1\n{}").unwrap();
    let output = replay(&path);
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not a fault bundle of version 2"));
}

#[test]
fn a_successful_launch_writes_no_bundle() {
    let directory = tempfile::tempdir().unwrap();
    let rig = rig_with(1, "", Some(directory.path()));
    let loaded = Loaded::new(&rig, Kernel::Add, elements_grid(512, 1), &params(&rig));
    assert!(loaded.run(&rig));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

fn header() -> Header {
    Header {
        channel: 1,
        rule: "sm-exception".into(),
        notifier: Some(13),
        launches: vec![Launch { qmd: 0x1000, words: vec![0; 64], ..Launch::default() }],
        shared_window: 1 << 32,
        local_window: 2 << 32,
        simulated: Some(Simulated { checks: "strict".into(), ..Simulated::default() }),
        ..Header::default()
    }
}

#[test]
fn inconsistent_bundles_are_rejected() {
    let mapping =
        |va, bytes| Mapping { va, bytes, writable: true, valid: true, ..Mapping::default() };
    let refused = |change: &dyn Fn(&mut Bundle)| {
        let mut bundle = Bundle { header: header(), memory: Vec::new() };
        change(&mut bundle);
        Replay::run(&bundle, None).unwrap_err().to_string()
    };
    for (va, bytes) in [(1, 4096), (0, 0), (u64::MAX - 4095, 4096), (0, 5), (0, 1 << 41)] {
        let message = refused(&|bundle| bundle.header.mappings.push(mapping(va, bytes)));
        assert!(message.contains("mapping"), "{message}");
    }
    let twice = refused(&|bundle| bundle.header.mappings = vec![mapping(0, 4096); 2]);
    assert!(twice.contains("not free"), "{twice}");
    let outside = refused(&|bundle| {
        bundle.header.contents.push(Range { va: u64::MAX, bytes: 4 });
        bundle.memory.push(vec![0; 4]);
    });
    assert!(outside.contains("not mapped"), "{outside}");
    let short = refused(&|bundle| bundle.header.launches[0].words.truncate(63));
    assert!(short.contains("63 words"), "{short}");
    let none = refused(&|bundle| bundle.header.launches.clear());
    assert!(none.contains("no launch"), "{none}");
    let checks = refused(&|bundle| bundle.header.simulated.as_mut().unwrap().checks.push('s'));
    assert!(checks.contains("\"stricts\""), "{checks}");
}

/// The bundle has only what an Orin's driver reports: the notifier code and where an SM stopped.
/// The launches before the failing one complete.
#[test]
fn a_fault_of_an_orin_is_found_among_the_pending_launches() {
    let directory = tempfile::tempdir().unwrap();
    let good = left(directory.path(), "mmu-fault@1", |_, _| {});
    let mut bundle = Bundle::read(&good).unwrap();
    let launch = bundle.header.launches[0].clone();
    // The same launch, of code that names more registers than it is given.
    let mut bad = Launch { name: "blk.0.bad".into(), ..launch.clone() };
    bad.words[20] &= !0x1_ff00;
    bad.words[20] |= 4 << 8;
    bundle.header.launches = vec![Launch { name: "blk.0.good".into(), ..launch }, bad];
    bundle.header.simulated = None;
    for (notifier, stopped_at, same) in [
        (Some(13), vec![], true),
        (Some(31), vec![], false),
        (Some(13), vec![1], false),
        (None, vec![], false),
    ] {
        let told = format!("{notifier:?} {stopped_at:?}");
        (bundle.header.notifier, bundle.header.stopped_at) = (notifier, stopped_at);
        let replay = Replay::run(&bundle, None).unwrap();
        let text = replay.to_string();
        assert_eq!(replay.is_same(), same, "{told}: {text}");
        assert!(text.contains("ran to its end: blk.0.good: kernel "), "{text}");
        assert!(text.contains("replayed: register-out-of-range"), "{text}");
    }
    bundle.header.launches.pop();
    let replay = Replay::run(&bundle, None).unwrap();
    assert!(!replay.is_same() && replay.to_string().contains("the launch runs to its end"));
}

proptest! {
    #[test]
    fn any_file_is_read_or_refused(bytes: Vec<u8>, cut in 0usize..4096, flip in 0usize..4096) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bundle");
        fs::write(&path, &bytes).unwrap();
        prop_assert!(Bundle::read(&path).is_err());
        let mut header = header();
        header.contents = vec![Range { va: 0x1000, bytes: 16 }];
        let bundle = Bundle { header, memory: vec![vec![7; 16]] };
        bundle.write(&path).unwrap();
        prop_assert_eq!(&Bundle::read(&path).unwrap(), &bundle);
        let mut file = fs::read(&path).unwrap();
        let mut flipped = file.clone();
        let at = flip % file.len();
        flipped[at] ^= 1 << (flip % 8);
        fs::write(&path, &flipped).unwrap();
        if let Ok(bundle) = Bundle::read(&path) {
            // Replaying what can be read must not bring the program down either.
            let _ = Replay::run(&bundle, None);
        }
        file.truncate(cut % file.len());
        fs::write(&path, &file).unwrap();
        prop_assert!(Bundle::read(&path).is_err());
    }
}
