//! A violation of each rule by an otherwise correct program, and the corrected program.

use std::sync::Arc;
use std::time::Duration;

use tegra::pushbuffer::{
    CacheInvalidate, L2Operation, Payload, PushBuffer, Release, Signal, Upload,
};
use tegra_sim::finding::SmFault;
use tegra_sim::finding::{ALL, Rule};
use tegra_sim::gpu::{ComputeEngine, GpuMemory, Launch, MapAccess, MapFlags, TsgId};
use tegra_sim::memory::DmaBuf;
use tegra_sim::trace::Work;

use super::rig::{
    Buffer, Channel, Kernel, LOCAL, Rig, acquire, compute_stream, copy, copy_stream, copying,
    release,
};

type Words = PushBuffer<tegra::class::Copy>;

/// Submits words behind a gate, lets `meddle` happen before it opens, then opens it.
fn gated(rig: &Rig, words: &[u32], meddle: impl FnOnce()) {
    let mut channel = rig.channel();
    let gate = rig.buffer(4096);
    let mut first = Words::new();
    first.acquire(acquire(gate.at(0), 1));
    let first = rig.stream(first.words());
    channel.push(first.entry.encode());
    rig.submit(&mut channel, words);
    assert_eq!(rig.gpu.drain().len(), 1);
    meddle();
    gate.memory.store_u64(0, 1).unwrap();
    rig.gpu.drain();
}

/// Reads the first constant as data.
struct Reader;

impl ComputeEngine for Reader {
    fn launch(&mut self, launch: &Launch, memory: &dyn GpuMemory) -> Result<Work, SmFault> {
        let mut data = [0; 16];
        launch.constants[0]
            .map_or(Ok(()), |bank| memory.read(bank.address, &mut data).map_err(SmFault::Mmu))
            .map(|()| Work::default())
    }
}

/// Engine whose code reads the first bytes of bank 0 and reports a finding.
struct Noticing(Option<Rule>);

impl ComputeEngine for Noticing {
    fn launch(&mut self, _: &Launch, memory: &dyn GpuMemory) -> Result<Work, SmFault> {
        memory.reads_constants(vec![(0, 0x160..0x170)]);
        self.0.inspect(|rule| memory.found(*rule, "lane 0".into()));
        Ok(Work::default())
    }
}

/// Fails at once.
struct Failing;

impl ComputeEngine for Failing {
    fn launch(&mut self, launch: &Launch, memory: &dyn GpuMemory) -> Result<Work, SmFault> {
        let mut data = [0; 4];
        memory.read(launch.program, &mut data).map_err(SmFault::Mmu)?;
        Err(SmFault::Exception {
            name: "illegal-instruction",
            sm: 0,
            global_esr: 0,
            warp_esr: 9,
            warp_pc: launch.program,
            message: "lane 0".into(),
        })
    }
}

/// Launches twice, and lets `meddle` happen in between.
fn twice(rig: &Rig, kernel: &Kernel, between: &[u32], meddle: impl FnOnce()) {
    let mut channel = rig.channel();
    let mut stream = compute_stream();
    stream.launch(kernel.at(0)).wait_for_idle(tegra::class::host::WfiScope::All);
    rig.submit(&mut channel, stream.words());
    rig.gpu.drain();
    meddle();
    let mut stream = PushBuffer::<tegra::class::Compute>::new();
    stream.launch(kernel.at(0));
    rig.submit(&mut channel, &[between, stream.words()].concat());
}

/// A launch that drops no cache by itself.
fn keeping(rig: &Rig) -> Kernel {
    let mut kernel = Kernel::new(rig);
    kernel.launch.invalidate.data = false;
    if let Some(bank) = &mut kernel.launch.constants[0] {
        bank.invalidate = false;
    }
    kernel.store(0, &kernel.launch);
    kernel
}

fn caches(instruction: bool, data: bool, constant: bool) -> Vec<u32> {
    let mut stream = PushBuffer::<tegra::class::Compute>::new();
    stream.invalidate_shader_caches(CacheInvalidate { instruction, data, constant, wait: true });
    stream.into_words()
}

fn filled(rig: &Rig) -> Buffer {
    let buffer = rig.buffer(4096);
    buffer.write(0, &[7; 4096]);
    buffer
}

/// A channel of another TSG that must not notice.
fn bystander(rig: &Rig) -> (Channel, TsgId) {
    let channel = rig.channel();
    let tsg = channel.tsg;
    (channel, tsg)
}

/// Runs a program that breaks `rule` when `broken`, and is right otherwise.
fn run(rule: Rule, broken: bool, seed: u64) -> Rig {
    let faults = match rule {
        Rule::ChannelTimeout if broken => "channel-timeout@1",
        _ => "",
    };
    let deadlock_timeout = if rule == Rule::Deadlock { Duration::ZERO } else { Duration::MAX };
    let rig = Rig::with(seed, faults, deadlock_timeout);
    fault(&rig, rule, broken);
    rig
}

/// Faults that hardware raises.
fn fault(rig: &Rig, rule: Rule, broken: bool) {
    let words = |wrong: &[u32], right: &[u32]| (if broken { wrong } else { right }).to_vec();
    let bind_copy = [0x2001_8000, 0xc7b5];
    let bind_compute = [0x2001_2000, 0xc7c0];
    let submit = |words: &[u32]| drop(rig.submit(&mut rig.channel(), words));
    match rule {
        Rule::MmuFault => {
            let (from, to) = (filled(rig), rig.buffer(4096));
            submit(&copying(from.at(0), to.at(0), if broken { 4097 } else { 4096 }));
        }
        Rule::PbdmaEntry => submit(&words(&[0xc000_0000], &[0])),
        Rule::PbdmaMethod => submit(&words(&[0x2001_0001, 0], &[0x2001_0002, 0])),
        Rule::PbdmaDevice => submit(&words(&[0x2001_a040, 0], &[0x2001_8000, 0xc7b5])),
        Rule::PushbufferCrc => {
            let mut channel = rig.channel();
            channel.push(if broken { 3 << 32 } else { 0 });
            channel.ring();
        }
        Rule::IllegalClass => submit(&words(&[0x2001_2044, 0], &[0x2001_2000, 0xc7c0])),
        Rule::IllegalMethod => {
            let method = words(&[0x2001_204a, 0], &[0x2001_2040, 0]);
            submit(&[&bind_compute[..], &method].concat());
        }
        Rule::CopyMethod => {
            let method = words(&[0x2001_8041, 0], &[0x2001_8040, 0]);
            submit(&[&bind_copy[..], &method].concat());
        }
        Rule::CopyPrivileged => {
            let method = words(&[0x2001_80c0, 0x1182], &[0x2001_80c0, 0]);
            submit(&[&bind_copy[..], &method].concat());
        }
        Rule::ReservedBits => {
            let method = words(&[0x2001_80c0, 0x8000_0000], &[0x2001_80c0, 0]);
            submit(&[&bind_copy[..], &method].concat());
        }
        Rule::SkedException => {
            let kernel = Kernel::new(rig);
            let mut stream = PushBuffer::<tegra::class::Compute>::new();
            stream.bind().launch(kernel.at(0));
            let wrong = stream.into_words();
            submit(&words(&wrong, &kernel.stream()));
        }
        Rule::SmException => {
            if broken {
                rig.gpu.set_compute_engine(Box::new(Failing));
            }
            let kernel = Kernel::new(rig);
            submit(&kernel.stream());
        }
        Rule::ChannelTimeout => submit(&[0]),
        Rule::ForceReset => {
            let (channel, tsg) = bystander(rig);
            if broken {
                rig.gpu.force_reset(tsg);
            }
            channel.ring();
        }
        _ => ring(rig, rule, broken),
    }
}

/// Rings, streams and semaphores.
fn ring(rig: &Rig, rule: Rule, broken: bool) {
    let submit = |words: &[u32]| drop(rig.submit(&mut rig.channel(), words));
    match rule {
        Rule::GpPutRange => {
            let channel = rig.channel();
            let put = if broken { channel.entries } else { 0 };
            channel.userd.store_u32(0x8c, put).unwrap();
            channel.ring();
        }
        Rule::GpEntry => {
            let mut channel = rig.channel();
            channel.push(if broken { 1 << 32 } else { 0 });
            channel.ring();
        }
        Rule::SemaphoreMisuse => {
            let slot = rig.buffer(4096);
            let low = slot.va as u32 + if broken { 8 } else { 0 };
            submit(&[0x2005_0017, low, 0, 1, 0, 0x0310_0001]);
        }
        Rule::RingRewritten => {
            let mut channel = rig.channel();
            rig.gpu.disable(channel.id);
            rig.submit(&mut channel, &[0]);
            rig.gpu.drain();
            if broken {
                let other = rig.stream(&[0, 0]);
                channel.ring.store_u64(0, other.entry.encode()).unwrap();
            }
            rig.gpu.enable(channel.id);
        }
        Rule::BodyRewritten => {
            let slot = rig.buffer(4096);
            let mut stream = Words::new();
            stream.release(release(slot.at(0), 1));
            let mut channel = rig.channel();
            rig.gpu.disable(channel.id);
            let body = rig.submit(&mut channel, stream.words());
            rig.gpu.drain();
            if broken {
                body.buffer.memory.store_u32(12, 2).unwrap();
            }
            rig.gpu.enable(channel.id);
        }
        Rule::PatchedWithoutSync => {
            let (patch, slot) = (rig.buffer(4096), rig.buffer(4096));
            patch.memory.store_u32(0, 9).unwrap();
            let mut release = Words::new();
            release.release(Release::new(slot.at(0), Payload::Long(1)).unwrap());
            let body = rig.stream(release.words());
            let mut stream = copy_stream();
            stream.transfer(copy(patch.at(0), body.buffer.at(12), 4));
            stream.wait_for_idle(tegra::class::host::WfiScope::All);
            let mut channel = rig.channel();
            channel.push(rig.stream(stream.words()).entry.encode());
            let entry = if broken { body.entry } else { body.entry.after_previous() };
            channel.push(entry.encode());
            channel.ring();
        }
        _ => memory(rig, rule, broken),
    }
}

/// Memory that changes under the GPU, and stale caches.
fn memory(rig: &Rig, rule: Rule, broken: bool) {
    let submit = |words: &[u32]| drop(rig.submit(&mut rig.channel(), words));
    match rule {
        Rule::QmdRewritten => {
            let kernel = Kernel::new(rig);
            gated(rig, &kernel.stream(), || {
                let mut launch = kernel.launch;
                launch.grid = [5, 1, 1];
                kernel.store(u64::from(!broken), &launch);
            });
        }
        Rule::ConstantsRewritten => {
            let kernel = Kernel::new(rig);
            gated(rig, &kernel.stream(), || {
                kernel.constants.write(if broken { 0x170 } else { 0x180 }, &[2]);
            });
        }
        Rule::ConstantsOversized => {
            rig.gpu.set_compute_engine(Box::new(Noticing(None)));
            let kernel = Kernel::new(rig);
            gated(rig, &kernel.stream(), || {
                kernel.constants.write(if broken { 0x170 } else { 0x180 }, &[2]);
            });
        }
        Rule::UninitialisedUse | Rule::SharedRace => {
            rig.gpu.set_compute_engine(Box::new(Noticing(broken.then_some(rule))));
            submit(&Kernel::new(rig).stream());
        }
        // The driver detects these; see its tests.
        Rule::RingBeyondHost | Rule::DriverBeyondHost => {}
        Rule::BufferReused => {
            let (from, to) = (filled(rig), rig.buffer(4096));
            gated(rig, &copying(from.at(0), to.at(0), 64), || {
                from.write(if broken { 63 } else { 64 }, &[1]);
            });
        }
        Rule::UninitialisedRead => {
            let (from, to) = (rig.buffer(8192), rig.buffer(8192));
            from.write(0, &[1; 4096]);
            submit(&copying(from.at(0), to.at(0), if broken { 4097 } else { 4096 }));
        }
        Rule::StaleL2 => {
            let flags = MapFlags { cacheable: true, ..MapFlags::default() };
            let (from, to) = (rig.mapped(4096, flags), rig.buffer(4096));
            from.write(0, &[1; 64]);
            let mut channel = rig.channel();
            rig.submit(&mut channel, &copying(from.at(0), to.at(0), 64));
            rig.gpu.drain();
            from.write(0, &[2; 64]);
            let mut stream = Words::new();
            if !broken {
                stream.l2(L2Operation::InvalidateSysmem);
            }
            stream.transfer(copy(from.at(0), to.at(0), 64));
            rig.submit(&mut channel, stream.words());
        }
        Rule::StaleConstantCache => {
            let kernel = keeping(rig);
            let between = if broken { vec![] } else { caches(false, false, true) };
            twice(rig, &kernel, &between, || kernel.constants.write(8, &[9]));
        }
        Rule::StaleInstructionCache => {
            let kernel = keeping(rig);
            let between = if broken { vec![] } else { caches(true, false, false) };
            twice(rig, &kernel, &between, || kernel.code.write(300, &[9]));
        }
        Rule::StaleDataCache => {
            rig.gpu.set_compute_engine(Box::new(Reader));
            let kernel = keeping(rig);
            let between = caches(false, !broken, true);
            twice(rig, &kernel, &between, || kernel.constants.write(8, &[9]));
        }
        _ => order(rig, rule, broken),
    }
}

/// Order between channels and engines.
fn order(rig: &Rig, rule: Rule, broken: bool) {
    let submit = |words: &[u32]| drop(rig.submit(&mut rig.channel(), words));
    match rule {
        Rule::ReleaseBeforeIdle => {
            let (from, to, slot) = (filled(rig), rig.buffer(4096), rig.buffer(4096));
            let mut stream = copy_stream();
            stream.transfer(copy(from.at(0), to.at(0), 64));
            let signal = Release::new(slot.at(0), Payload::Long(1)).unwrap();
            stream.release(if broken { signal.at_once() } else { signal });
            submit(stream.words());
        }
        Rule::ReleaseWithoutFlush => {
            let (from, to, slot) = (filled(rig), rig.buffer(4096), rig.buffer(4096));
            let mut stream = copy_stream();
            stream.transfer(copy(from.at(0), to.at(0), 64));
            stream.signal(Signal::new(slot.at(0), Payload::Word(1), true).unwrap());
            let mut words = stream.into_words();
            if broken {
                // Removes the flush of the launch.
                *words.last_mut().unwrap() &= !4;
            }
            submit(&words);
        }
        Rule::UnorderedAccess => {
            let (from, middle, to) = (filled(rig), rig.buffer(4096), rig.buffer(4096));
            let slot = rig.buffer(4096);
            let (mut first, mut second) = (rig.channel(), rig.channel());
            let mut producer = copy_stream();
            producer.transfer(copy(from.at(0), middle.at(0), 64)).release(release(slot.at(0), 1));
            let mut consumer = copy_stream();
            if !broken {
                consumer.acquire(acquire(slot.at(0), 1));
            }
            consumer.transfer(copy(middle.at(32), to.at(0), 8));
            // Both are rung before either may run, so the CPU orders nothing.
            rig.gpu.disable(first.id);
            rig.gpu.disable(second.id);
            rig.submit(&mut first, producer.words());
            rig.submit(&mut second, consumer.words());
            middle.write(0, &[1]);
            rig.gpu.drain();
            rig.gpu.enable(first.id);
            rig.gpu.enable(second.id);
        }
        Rule::CopyOverlap => {
            let from = filled(rig);
            submit(&copying(from.at(0), from.at(if broken { 63 } else { 64 }), 64));
        }
        _ => rest(rig, rule, broken),
    }
}

/// Windows, reserved bits, deadlocks, and methods that are not modelled.
fn rest(rig: &Rig, rule: Rule, broken: bool) {
    let submit = |words: &[u32]| drop(rig.submit(&mut rig.channel(), words));
    match rule {
        Rule::MappingInWindow => {
            let memory = DmaBuf::new(4096).unwrap();
            let va = LOCAL + if broken { 0xff_f000 } else { 0x100_0000 };
            rig.mmu.map(va, memory, 0, 4096, MapFlags::default()).unwrap();
            let kernel = Kernel::new(rig);
            submit(&kernel.stream());
        }
        Rule::QmdReserved => {
            let kernel = Kernel::new(rig);
            if broken {
                // A bit of HW_ONLY_INNER_GET.
                kernel.qmd.memory.store_u32(57 * 4, 1).unwrap();
            }
            submit(&kernel.stream());
        }
        Rule::Deadlock => {
            let slot = rig.buffer(4096);
            let mut stream = Words::new();
            stream.acquire(acquire(slot.at(0), 1));
            slot.memory.store_u64(0, u64::from(!broken)).unwrap();
            submit(stream.words());
        }
        Rule::DoorbellMissing => {
            let mut channel = rig.channel();
            channel.push(rig.stream(&[0]).entry.encode());
            if !broken {
                channel.ring();
            }
            rig.gpu.drain();
            rig.gpu.close_channel(channel.id);
        }
        Rule::NotModelled => {
            let to = rig.buffer(4096);
            let mut stream = PushBuffer::<tegra::class::Compute>::new();
            stream.bind().upload(Upload::new(to.at(0), vec![1]).unwrap());
            let mut words = stream.into_words();
            // The upload's layout: block linear.
            words[8] &= !u32::from(broken);
            words.truncate(if broken { 9 } else { 11 });
            submit(&words);
        }
        _ => panic!("no program breaks {rule}"),
    }
}

#[test]
fn every_broken_rule_is_found_and_every_kept_one_is_quiet() {
    let of_driver = [Rule::RingBeyondHost, Rule::DriverBeyondHost];
    for rule in ALL.iter().filter(|rule| !of_driver.contains(rule)) {
        for seed in [1, 2, 3] {
            let rig = run(*rule, true, seed);
            rig.assert_found(*rule);
            // The driver receives faults only.
            let told = rig.driver.errors.lock().len();
            let fault = rule.severity() == tegra_sim::finding::Severity::Fault;
            assert_eq!(told, usize::from(fault), "{rule}");

            let rig = run(*rule, false, seed);
            assert_eq!(rig.findings(), [], "{rule} kept");
        }
    }
}

/// The finding names the exact word that changed and is read. The same word of a bank whose code
/// does not read it is a note about the declared size.
#[test]
fn the_constant_that_changed_is_named() {
    let rig = Rig::new(1);
    rig.gpu.set_compute_engine(Box::new(Noticing(None)));
    let kernel = Kernel::new(&rig);
    gated(&rig, &kernel.stream(), || kernel.constants.write(0x16c, &[2]));
    let [found] = &rig.findings()[..] else { panic!("{:?}", rig.findings()) };
    assert_eq!(found.rule, Rule::ConstantsRewritten);
    let word = kernel.constants.va + 0x16c;
    for part in ["bank 0", "+0x16c", &format!("{word:#x}"), "is 0x01010102", "constants of its own"]
    {
        assert!(found.message.contains(part), "no {part:?} in {}", found.message);
    }

    let rig = Rig::new(1);
    rig.gpu.set_compute_engine(Box::new(Noticing(None)));
    let kernel = Kernel::new(&rig);
    gated(&rig, &kernel.stream(), || kernel.constants.write(0x174, &[2]));
    let [found] = &rig.findings()[..] else { panic!("{:?}", rig.findings()) };
    assert_eq!(found.rule, Rule::ConstantsOversized);
    for part in ["0x180 bytes are declared", "none from +0x170 on", "+0x174"] {
        assert!(found.message.contains(part), "no {part:?} in {}", found.message);
    }
}

/// A launch that waits to be counted down, and a wait for it that nothing ends.
#[test]
fn a_wait_for_a_launch_that_is_never_counted_down() {
    let rig = Rig::new(1);
    let slot = rig.buffer(4096);
    let mut kernel = Kernel::new(&rig);
    kernel.launch.dependence_count = 1;
    kernel.store(0, &kernel.launch);
    let mut stream = compute_stream();
    stream.launch(kernel.at(0)).release(release(slot.at(0), 1));
    rig.submit(&mut rig.channel(), stream.words());
    assert_eq!(rig.rules(), [Rule::Deadlock]);
    assert_eq!(slot.long(0), 0);
}

/// A gate that the CPU opens after it has seen the other channel's release orders the two.
#[test]
fn the_cpu_orders_channels_by_a_gate() {
    let rig = Rig::new(1);
    let (from, middle, to) = (filled(&rig), rig.buffer(4096), rig.buffer(4096));
    let (slot, gate) = (rig.buffer(4096), rig.buffer(4096));
    let (mut first, mut second) = (rig.channel(), rig.channel());
    let mut consumer = copy_stream();
    consumer.acquire(acquire(gate.at(0), 1)).transfer(copy(middle.at(0), to.at(0), 64));
    rig.submit(&mut second, consumer.words());
    assert_eq!(rig.gpu.drain().len(), 1);
    let mut producer = copy_stream();
    producer.transfer(copy(from.at(0), middle.at(0), 64)).release(release(slot.at(0), 1));
    rig.submit(&mut first, producer.words());
    rig.gpu.drain();
    assert_eq!(slot.long(0), 1);
    gate.memory.store_u64(0, 1).unwrap();
    // The GPU changed the copy's source after its doorbell, which is correct.
    rig.assert_clean();
    assert_eq!(to.read(0, 64), [7; 64]);
}

#[test]
fn names_are_stable_words_and_lead_back() {
    for rule in ALL {
        let name = rule.name();
        assert!(
            name.bytes().all(|byte| byte.is_ascii_lowercase() || b"-0123456789".contains(&byte))
        );
        assert_eq!(Rule::from_name(name), Some(*rule));
        assert!(rule.why().ends_with('.'));
    }
}

#[test]
fn a_read_only_mapping_is_not_written() {
    let rig = Rig::new(1);
    let flags = MapFlags { access: MapAccess::ReadOnly, ..MapFlags::default() };
    let (from, to) = (filled(&rig), rig.mapped(4096, flags));
    rig.submit(&mut rig.channel(), &copying(from.at(0), to.at(0), 64));
    assert_eq!(rig.fault(), (31, Rule::MmuFault));
    let errors = rig.driver.errors.lock();
    assert!(errors[0].2.finding.message.contains("id=6"), "{}", errors[0].2.finding.message);
}

#[test]
fn freed_memory_is_not_reached() {
    let rig = Rig::new(1);
    let (from, to) = (filled(&rig), rig.buffer(4096));
    gated(&rig, &copying(from.at(0), to.at(0), 64), || rig.mmu.unmap(to.va, 4096));
    assert_eq!(rig.fault(), (31, Rule::MmuFault));
    drop(Arc::clone(&to.memory));
}
