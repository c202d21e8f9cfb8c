//! Machines on which shaders compute wrong results.

use orind_kernels::catalogue::Kernel;
use orind_kernels::catalogue::launch::{elements_grid, rows_grid};
use orind_kernels::params::{GatherParams, RowsParams};
use tegra_sim::config::Config;
use tegra_sim::engine::MachineCode;

use super::loaded::{Loaded, floats, read};
use crate::gpu::rig::{Buffer, Rig};

fn rig(seed: u64, words: &str) -> Rig {
    let get = |name: &str| (name == "TEGRA_SIM_MACHINE").then(|| words.to_owned());
    let config = Config::from_variables(get).unwrap();
    let rig = Rig::on_machine(seed, words);
    let engine = MachineCode::new(config.checks).with_quirks(config.quirks);
    rig.gpu.set_compute_engine(Box::new(engine));
    rig
}

/// Result of a kernel of `a` and `b`.
fn rows(words: &str, kernel: Kernel) -> Vec<f32> {
    let rig = rig(1, words);
    let n = 256;
    let values: Vec<f32> = (1..=n).map(|i| i as f32).collect();
    let out = rig.buffer(4096);
    let params = RowsParams {
        a: floats(&rig, &values).va,
        b: floats(&rig, &values).va,
        out: out.va,
        n,
        rows: 1,
        eps: 1e-5,
        reserved: 0,
    };
    let grid = if kernel == Kernel::Add { elements_grid(n, 1) } else { rows_grid(1) };
    assert!(Loaded::new(&rig, kernel, grid, &params).run(&rig));
    rig.assert_clean();
    read(&out, n as usize)
}

#[test]
fn one_instruction_gives_nan_and_the_others_do_not() {
    let nan = |values: Vec<f32>| values.iter().filter(|value| value.is_nan()).count();
    assert_eq!(nan(rows("", Kernel::RmsNorm)), 0);
    // The reciprocal of a root.
    assert_eq!(nan(rows("nan=mufu", Kernel::RmsNorm)), 256);
    assert_eq!(nan(rows("nan=mufu", Kernel::Add)), 0);
    assert_eq!(nan(rows("nan=FADD", Kernel::Add)), 256);
    assert_eq!(nan(rows("nan=hmma", Kernel::RmsNorm)), 0);
}

/// Count of 600 blocks when the last of them has reset it.
fn counted(words: &str) -> u32 {
    let rig = rig(1, words);
    let values: Vec<f32> = (0..600).map(|i| i as f32).collect();
    let [best, out, count] = [(); 3].map(|()| {
        let buffer = rig.buffer(4096);
        buffer.write(0, &[0; 8]);
        buffer
    });
    let mut params = floats(&rig, &values).va.to_le_bytes().to_vec();
    params.extend(600u64.to_le_bytes());
    params.extend([&best, &out, &count].map(|buffer| buffer.va.to_le_bytes()).concat());
    let cubin = include_bytes!("../../../../sass/tests/data/sm_87/transformer.cubin");
    let loaded = Loaded::of(&rig, cubin, "argmax", ([600, 1, 1], [32, 1, 1]), &params);
    assert!(loaded.run(&rig));
    count.word(0)
}

#[test]
fn some_atomic_operations_are_lost() {
    assert_eq!(counted(""), 0);
    let left = counted("lost-atomics");
    assert!((500..600).contains(&left), "{left}");
}

/// Number of times that an SM reads the previous table, of 32 that the CPU writes.
fn stale(words: &str, invalidate: bool) -> usize {
    let rig = rig(1, words);
    let table = floats(&rig, &[0.0; 100]);
    let ids = rig.buffer(4096);
    ids.write(0, &[0; 4]);
    let out = rig.buffer(4096);
    let params = GatherParams {
        table: table.va,
        ids: ids.va,
        out: out.va,
        extent: 1,
        width: 100,
        rows: 1,
        reserved: 0,
    };
    let mut loaded = Loaded::new(&rig, Kernel::Gather, elements_grid(100, 1), &params);
    loaded.launch.invalidate.data = invalidate;
    loaded.invalidate = true;
    let fill = |table: &Buffer, value: f32| {
        let bytes: Vec<u8> = (0..100).flat_map(|_| value.to_le_bytes()).collect();
        table.write(0, &bytes);
    };
    let mut stale = 0;
    for round in 1..=32u32 {
        fill(&table, round as f32);
        assert!(loaded.run(&rig));
        rig.assert_clean();
        let seen = read(&out, 100);
        assert!(seen.iter().all(|value| *value == seen[0] && *value <= round as f32), "{seen:?}");
        stale += usize::from(seen[0] != round as f32);
    }
    stale
}

#[test]
fn lost_invalidates_leave_stale_data_in_l1() {
    assert_eq!(stale("", false), 0);
    let seen = stale("stale-handover", false);
    assert!((4..29).contains(&seen), "{seen} of 32");
    assert_eq!(stale("stale-handover", true), 0, "a QMD that invalidates is enough");
}
