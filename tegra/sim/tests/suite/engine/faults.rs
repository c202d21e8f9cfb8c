//! Faulting launches: the fault that the driver receives, and its message.

use orind_kernels::catalogue::Kernel;
use orind_kernels::catalogue::launch::{elements_grid, rows_grid};
use orind_kernels::params::RowsParams;
use tegra::local_memory::LocalMemorySize;
use tegra_bundle::Bundle;
use tegra_sim::engine::Replay;
use tegra_sim::finding::SmFault;
use tegra_sim::finding::{Rule, notifier};
use tegra_sim::gpu::{Access, MapAccess, MapFlags, MmuFaultKind};

use super::loaded::{Loaded, TPCS, floats, rig, rig_with};
use crate::gpu::rig::Rig;

fn params(rig: &Rig) -> RowsParams {
    let ones = floats(rig, &[1.0; 512]);
    let out = rig.buffer(2048);
    RowsParams { a: ones.va, b: ones.va, out: out.va, n: 512, rows: 1, eps: 1e-5, reserved: 0 }
}

/// Fault of one launch of `kernel` that `spoil` has changed.
fn fault(
    kernel: Kernel,
    spoil: impl FnOnce(&Rig, &mut Loaded, &mut RowsParams),
) -> (u32, Rule, SmFault, String) {
    let rig = rig(1);
    let mut params = params(&rig);
    let grid = if kernel == Kernel::Add { elements_grid(512, 1) } else { rows_grid(1) };
    let mut loaded = Loaded::new(&rig, kernel, grid, &params);
    spoil(&rig, &mut loaded, &mut params);
    assert!(!loaded.run(&rig), "nothing is released behind a fault");
    let errors = rig.driver.errors.lock();
    let (_, code, told) = &errors[0];
    assert_eq!(errors.len(), 1);
    let message = told.finding.message.clone();
    (*code, told.finding.rule, told.sm.clone().unwrap(), message)
}

/// Writes parameters again.
fn again(loaded: &Loaded, params: &RowsParams) {
    use orind_kernels::params::IntoBytes;
    loaded.bank.write(0x160, params.as_bytes());
}

#[track_caller]
fn exception(found: &(u32, Rule, SmFault, String), name: &str, warp_esr: u32) {
    let (code, rule, fault, message) = found;
    assert_eq!((*code, *rule), (notifier::GR_EXCEPTION, Rule::SmException), "{message}");
    let SmFault::Exception { name: told, warp_esr: esr, .. } = fault else { panic!("{fault:?}") };
    assert_eq!((*told, *esr), (name, warp_esr), "{message}");
    assert!(message.contains(name), "{message}");
}

#[test]
fn registers() {
    let found = fault(Kernel::Add, |_, loaded, _| loaded.launch.program.registers = 4);
    exception(&found, "register-out-of-range", 0xd);
}

#[test]
fn a_bank_that_is_too_small() {
    let found = fault(Kernel::Add, |_, loaded, _| {
        let bank = loaded.launch.constants[0].as_mut().unwrap();
        bank.bytes = 0x160;
    });
    exception(&found, "constant-out-of-range", 0x12);
    assert!(found.3.contains("constant bank 0, which has 0x160"), "{}", found.3);
}

#[test]
fn a_bank_that_claims_more_than_is_mapped() {
    let found = fault(Kernel::Add, |rig, loaded, _| {
        // The last 0x170 bytes of a page, and nothing behind it.
        let bank = rig.buffer(4096);
        bank.write(4096 - 0x180, &loaded.bank.read(0, 0x180));
        let constants = loaded.launch.constants[0].as_mut().unwrap();
        constants.address = bank.at(4096 - 0x140);
        constants.bytes = 0x1000;
    });
    assert_eq!((found.0, found.1), (notifier::MMU_FAULT, Rule::MmuFault), "{}", found.3);
}

#[test]
fn a_bad_pointer() {
    let found = fault(Kernel::Add, |_, loaded, params| {
        params.a = 0x7_0000_0000;
        again(loaded, params);
    });
    assert_eq!((found.0, found.1), (notifier::MMU_FAULT, Rule::MmuFault));
    let SmFault::Mmu(fault) = found.2 else { panic!("{:?}", found.2) };
    assert!((0x7_0000_0000..0x7_0000_0800).contains(&fault.va), "{fault}");
}

#[test]
fn a_misaligned_pointer() {
    let found = fault(Kernel::Add, |_, loaded, params| {
        params.a += 2;
        again(loaded, params);
    });
    exception(&found, "misaligned-address", 0xf);
    let SmFault::Exception { warp_pc, .. } = found.2 else { panic!("{:?}", found.2) };
    // Kernel, instruction and lane are named.
    assert!(found.3.contains("(LDG") || found.3.contains(" LDG"), "{}", found.3);
    assert!(
        found.3.contains("lane 0") && found.3.contains(&format!("{warp_pc:#x}")),
        "{}",
        found.3
    );
}

#[test]
fn too_little_shared_memory() {
    let found = fault(Kernel::RmsNorm, |_, loaded, _| loaded.launch.shared_bytes = 0);
    exception(&found, "shared-out-of-range", 0xe);
}

#[test]
fn too_few_barriers() {
    let found = fault(Kernel::RmsNorm, |_, loaded, _| loaded.launch.program.barriers = 0);
    exception(&found, "barrier-operand", 0xb);
}

#[test]
fn unmapped_code_faults() {
    let found = fault(Kernel::Add, |rig, loaded, _| {
        // The first instructions only, at the end of what is mapped.
        let page = rig.buffer(4096);
        page.write(4096 - 128, &loaded.code.read(0, 128));
        loaded.launch.program.address = page.at(4096 - 128);
        loaded.launch.program.code_bytes = 128;
    });
    assert_eq!((found.0, found.1), (notifier::MMU_FAULT, Rule::MmuFault), "{}", found.3);
}

#[test]
fn invalid_code_faults() {
    let found = fault(Kernel::Add, |_, loaded, _| {
        let end = loaded.code_bytes;
        loaded.code.write(0, &vec![0x5a; end as usize]);
    });
    exception(&found, "illegal-instruction", 0x9);
    assert!(found.3.contains(&"5a".repeat(16)), "{}", found.3);
}

#[test]
fn code_that_changes_is_decoded_again() {
    let rig = rig(1);
    let loaded = Loaded::new(&rig, Kernel::Add, elements_grid(512, 1), &params(&rig));
    assert!(loaded.run(&rig));
    loaded.code.write(0, &[0x5a; 16]);
    assert!(!loaded.run(&rig));
    assert_eq!(rig.fault(), (notifier::GR_EXCEPTION, Rule::SmException));
}

/// Kernels of `faults.cu` that do what their argument says.
const BAD: &[u8] = include_bytes!("../../../../sass/tests/data/sm_87/faults.cubin");

/// One launch of a kernel of `faults.cu` on 128 words, with its stack in `store`.
fn bad(
    name: &str,
    threads: u32,
    argument: i32,
    store: impl FnOnce(&Rig) -> Option<(u64, u64)>,
) -> Result<(), (u32, Rule, SmFault, String)> {
    let rig = rig(1);
    let words = rig.buffer(512);
    words.write(0, &[3; 512]);
    let mut params = words.va.to_le_bytes().to_vec();
    params.extend(argument.to_le_bytes());
    let mut loaded = Loaded::of(&rig, BAD, name, ([1; 3], [threads, 1, 1]), &params);
    loaded.local = store(&rig);
    if loaded.run(&rig) {
        rig.assert_clean();
        return Ok(());
    }
    let errors = rig.driver.errors.lock();
    let (_, code, told) = &errors[0];
    Err((*code, told.finding.rule, told.sm.clone().unwrap(), told.finding.message.clone()))
}

#[test]
fn mistakes_that_hardware_lets_pass() {
    bad("deadlock", 96, 3, |_| None).unwrap();
    exception(&bad("deadlock", 96, 2, |_| None).unwrap_err(), "barrier-deadlock", 0);
}

/// Mistakes that hardware would not notice are findings: the launch succeeds and the driver
/// receives nothing. The bundle can be replayed and stops at the finding.
#[test]
fn uninitialised_values_and_races_are_findings() {
    for (name, good, wrong, rule, instruction) in [
        ("unset", 64, 50, Rule::UninitialisedUse, "(STG"),
        ("race", 1, 0, Rule::SharedRace, "(LDS"),
    ] {
        bad(name, 64, good, |_| None).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let rig = rig_with(1, "", Some(folder.path()));
        let words = rig.buffer(512);
        words.write(0, &[3; 512]);
        let mut params = words.va.to_le_bytes().to_vec();
        params.extend(i32::to_le_bytes(wrong));
        let loaded = Loaded::of(&rig, BAD, name, ([1; 3], [64, 1, 1]), &params);
        assert!(loaded.run(&rig), "{name}: it ends");
        assert!(rig.driver.errors.lock().is_empty(), "{name}");
        let found = rig.findings();
        let found = found.iter().find(|found| found.message.contains(instruction)).unwrap();
        assert_eq!(found.rule, rule);
        assert!(found.message.contains(", code-"), "{}", found.message);
        let path = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        let replay = Replay::run(&Bundle::read(&path).unwrap(), None).unwrap();
        assert!(replay.is_same(), "{replay}");
    }
}

#[test]
fn local_memory() {
    let size = LocalMemorySize::new(512, TPCS).unwrap();
    let store = |rig: &Rig| Some((rig.buffer(size.total).va, size.per_tpc));
    bad("local_bounds", 1, 15, store).unwrap();
    exception(&bad("local_bounds", 1, 0x2000, store).unwrap_err(), "local-out-of-range", 0xe);
    // The store is large enough, says the channel, but it is not mapped.
    let nowhere = |_: &Rig| Some((0x10_0000_0000, size.per_tpc));
    let found = bad("local_bounds", 1, 15, nowhere).unwrap_err();
    assert_eq!((found.0, found.1), (notifier::MMU_FAULT, Rule::MmuFault), "{}", found.3);
}

#[test]
fn writes_to_read_only_memory_fault() {
    let found = fault(Kernel::Add, |rig, loaded, params| {
        let flags = MapFlags { access: MapAccess::ReadOnly, ..MapFlags::default() };
        params.out = rig.mapped(4096, flags).va;
        again(loaded, params);
    });
    let SmFault::Mmu(fault) = found.2 else { panic!("{:?}", found.2) };
    assert_eq!((fault.kind, fault.access), (MmuFaultKind::WriteToReadOnly, Access::Write));
}
