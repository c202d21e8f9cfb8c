//! Machines with defects and drivers of other releases, as seen by a program.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tegra::abi::{address_space, channel, ctrl, nvmap, tsg};
use tegra::address::{GpuAddress, QmdAddress};
use tegra::class::Compute;
use tegra::pushbuffer::{PushBuffer, Windows};
use tegra::qmd::Program;
use tegra_sim::config::Config;
use tegra_sim::driver::{Errno, requests};
use tegra_sim::finding::SmFault;
use tegra_sim::gpu::{ComputeEngine, GpuMemory, Launch};
use tegra_sim::trace::Work;

use super::bench::{Bench, bytes, errno, whole};
use super::events::INTERRUPT;

fn bench(variable: &str, value: &str) -> Bench {
    let get = |name: &str| (name == variable).then(|| value.to_owned());
    Bench::with(&Config::from_variables(get).unwrap())
}

fn record_bytes(bench: &Bench) -> u64 {
    let none = ctrl::GetCharacteristics::default();
    bench.ask(bench.ctrl, ctrl::GET_CHARACTERISTICS, none).gpu_characteristics_buf_size
}

#[test]
fn an_event_never_comes() {
    for (words, woken) in [("", true), ("no-event", false)] {
        let bench = bench("TEGRA_SIM_MACHINE", words);
        let ready = bench.running();
        let event = bench.event(ready.tsg, 2);
        bench.run(&ready, &INTERRUPT);
        assert_eq!(bench.fds.poll(event), woken, "{words}");
    }
}

#[test]
fn heap_queries_are_refused() {
    for (words, expected) in [("", Ok(0)), ("no-heap-query", Err(Errno::ENOTTY))] {
        let bench = bench("TEGRA_SIM_MACHINE", words);
        let mut heaps = nvmap::AvailableHeaps::default();
        let listed = bench.call(bench.nvmap, nvmap::GET_AVAILABLE_HEAPS, &mut heaps);
        assert_eq!(errno(listed), expected);
        let mut query =
            nvmap::QueryHeapParams { heap_mask: 1 << 30, ..nvmap::QueryHeapParams::default() };
        assert_eq!(errno(bench.call(bench.nvmap, nvmap::QUERY_HEAP_PARAMS, &mut query)), expected);
        bench.buffer(4096);
    }
}

#[test]
fn address_spaces_must_end_where_proven_ones_do() {
    let made = |words: &str, end: u64| {
        let bench = bench("TEGRA_SIM_MACHINE", words);
        let mut space = ctrl::AllocAs {
            flags: ctrl::AS_UNIFIED_VA,
            va_range_start: 0x20_0000,
            va_range_end: end,
            ..ctrl::AllocAs::default()
        };
        errno(bench.call(bench.ctrl, ctrl::ALLOC_AS, &mut space))
    };
    for end in [0xff_0000_0000, 0xff_ffe0_0000] {
        assert_eq!(made("", end), Ok(0));
    }
    assert_eq!(made("short-range-refused", 0xff_0000_0000), Err(Errno::EINVAL));
    assert_eq!(made("short-range-refused", 0xff_ffe0_0000), Ok(0));
}

/// A release to and an acquire from a mapping, of which the second only reads.
#[test]
fn the_gpu_cannot_read_through_a_read_only_mapping() {
    let acquired = |words: &str, access: u32| {
        let bench = bench("TEGRA_SIM_MACHINE", words);
        let ready = bench.running();
        let (_, notifier) = bench.buffer(4096);
        bench.notifier(ready.channel, notifier, 0);
        let (_, fd) = bench.buffer(4096);
        let mut map = whole(fd);
        map.flags |= access;
        let va = bench.map(ready.space, &mut map).unwrap();
        // Equal to 0, which is there.
        bench.run(&ready, &[0x2005_0017, va as u32, (va >> 32) as u32, 0, 0, 0]);
        let mut record = [0; 16];
        bench.dma_buf(notifier).read(0, &mut record).unwrap();
        (bench.timedout(ready.channel), record[8])
    };
    let (read_only, read_write) =
        (address_space::MAP_ACCESS_READ_ONLY, address_space::MAP_ACCESS_READ_WRITE);
    assert_eq!(acquired("", read_only), (0, 0));
    assert_eq!(acquired("read-only-maps-fault", read_write), (0, 0));
    assert_eq!(acquired("read-only-maps-fault", 0), (0, 0));
    assert_eq!(acquired("read-only-maps-fault", read_only), (1, 31));
}

/// Returns whether `call` has not returned after a while; its thread then runs for ever.
fn never_returns<T: Send + 'static>(
    bench: &Arc<Bench>,
    call: impl FnOnce(&Bench) -> T + Send + 'static,
) -> bool {
    let bench = Arc::clone(bench);
    let caller = thread::spawn(move || call(&bench));
    thread::sleep(Duration::from_millis(50));
    !caller.is_finished()
}

#[test]
fn a_frozen_request_never_returns() {
    for (words, at_channel, at_object) in [
        ("", false, false),
        ("freeze=open-channel", true, false),
        ("freeze=object", false, true),
        ("freeze=doorbell", false, false),
    ] {
        let bench = Arc::new(bench("TEGRA_SIM_MACHINE", words));
        let open = never_returns(&bench, |bench| bench.open_channel(-1));
        assert_eq!(open, at_channel, "{words}");
        if !open {
            let ready = bench.ready();
            bench.setup(ready.channel, &mut ready.request()).unwrap();
            let object = move |bench: &Bench| bench.object(ready.channel, 0xc7c0);
            assert_eq!(never_returns(&bench, object), at_object, "{words}");
        }
        bench.tsg();
    }
}

#[test]
fn r36_is_the_default_release() {
    for release in ["", "r36.2", "r36.4"] {
        let bench = bench("TEGRA_SIM_RELEASE", release);
        assert_eq!(record_bytes(&bench), 328);
        bench.running();
    }
}

#[test]
fn r35_has_a_shorter_record_and_shorter_requests() {
    let bench = bench("TEGRA_SIM_RELEASE", "r35.4");
    assert_eq!(record_bytes(&bench), 312);
    let mut record = [0xee_u8; 328];
    let mut args = ctrl::GetCharacteristics {
        gpu_characteristics_buf_size: 328,
        gpu_characteristics_buf_addr: record.as_mut_ptr() as u64,
    };
    bench.call(bench.ctrl, ctrl::GET_CHARACTERISTICS, &mut args).unwrap();
    assert_eq!((record[0], record[312]), (0x70, 0xee));
    // As r36 asks.
    let longer = bench.call(bench.ctrl, ctrl::OPEN_TSG, &mut ctrl::OpenTsg::default());
    assert_eq!(errno(longer), Err(Errno::ENOTTY));
    // As r35 asks.
    let mut args = [0; 8];
    bench.orin.ioctl(bench.ctrl, 0xc008_4709, args.as_mut_ptr() as u64).unwrap();
    let tsg = i32::from_le_bytes(args[..4].try_into().unwrap());
    let space = bench.space();
    let subcontext = bench.subcontext(tsg, tsg::SUBCONTEXT_ASYNC, space);
    assert_eq!(errno(subcontext), Err(Errno::EINVAL));
    let channel = bench.channel();
    bench.bind_space(space, channel).unwrap();
    bench.raw(bench.file(tsg), "NVGPU_TSG_IOCTL_BIND_CHANNEL", &mut channel.to_le_bytes()).unwrap();
    bench.watchdog(channel, channel::WDT_DISABLE).unwrap();
    let ((_, ring), (_, userd)) = (bench.buffer(8192), bench.buffer(4096));
    let mut longer = channel::SetupBind {
        num_gpfifo_entries: 1024,
        flags: channel::BIND_DETERMINISTIC | channel::BIND_USERMODE,
        userd_dmabuf_fd: userd,
        gpfifo_dmabuf_fd: ring,
        ..channel::SetupBind::default()
    };
    assert_eq!(errno(bench.setup(channel, &mut longer)), Err(Errno::ENOTTY));
    let mut shorter = bytes::<80>(&[
        (0, 1024, 4),
        (8, longer.flags.into(), 4),
        (12, userd as u64, 4),
        (16, ring as u64, 4),
    ]);
    let file = bench.file(channel);
    bench.orin.ioctl(file, 0xc050_4880, shorter.as_mut_ptr() as u64).unwrap();
    assert_eq!(shorter[20..24], 511u32.to_le_bytes());
    bench.object(channel, 0xc7c0).unwrap();
    // And r36 does not know what r35 asks.
    let newer = Bench::new();
    let asked = newer.orin.ioctl(newer.ctrl, 0xc008_4709, args.as_mut_ptr() as u64);
    assert_eq!(errno(asked), Err(Errno::ENOTTY));
}

#[test]
fn any_one_request_of_r39_may_have_another_number() {
    let bench39 = bench("TEGRA_SIM_RELEASE", "r39");
    assert_eq!(record_bytes(&bench39), 360);
    bench39.running();
    for (node, request) in requests() {
        let bench = bench("TEGRA_SIM_RELEASE", &format!("r39:{}", request.name));
        let file = match node {
            "nvmap" => bench.nvmap,
            "ctrl" => bench.ctrl,
            "as" if request.name != "ALLOC_AS" => bench.file(bench.space()),
            "tsg" if request.name != "OPEN_TSG" => bench.file(bench.tsg()),
            _ => bench.file(bench.channel()),
        };
        let mut args = [0u8; 264];
        let answer = bench.orin.ioctl(file, request.code, args.as_mut_ptr() as u64);
        let refused = answer.unwrap_err();
        assert_eq!((refused.errno, refused.node), (Errno::ENOTTY, "release"), "{node} {request:?}");
    }
}

/// Launches of 150 ms.
struct Slow;

impl ComputeEngine for Slow {
    fn launch(&mut self, _: &Launch, _: &dyn GpuMemory) -> Result<Work, SmFault> {
        Ok(Work { bytes_touched: 150_000_000 * 45, ..Work::default() })
    }
}

/// Launches, one at a time, that a channel beside a desktop survives, of at most 80; what `prepare` did before
/// and `change` when the channel ran.
fn survived(prepare: impl Fn(&Bench, i32), change: impl Fn(&Bench, i32)) -> usize {
    let bench = bench("TEGRA_SIM_DESKTOP", "1");
    bench.orin.gpu().set_compute_engine(Box::new(Slow));
    let ready = bench.ready();
    prepare(&bench, ready.channel);
    bench.setup(ready.channel, &mut ready.request()).unwrap();
    bench.object(ready.channel, 0xc7c0).unwrap();
    change(&bench, ready.channel);
    let (_, notifier) = bench.buffer(4096);
    bench.notifier(ready.channel, notifier, 0);
    let (_, fd) = bench.buffer(4096);
    let va = bench.map(ready.space, &mut whole(fd)).unwrap();
    // Code, and a QMD behind it.
    let memory = bench.dma_buf(fd);
    memory.write(0, &[0; 2048]).unwrap();
    let at = |address| GpuAddress::new(address).unwrap();
    let program =
        Program { address: at(va), code_bytes: 512, registers: 16, barriers: 0, local_bytes: 0 };
    let qmd = tegra::qmd::Launch::new(program, [1, 1, 1], [32, 1, 1]).encode().unwrap();
    let words: Vec<u8> = qmd.words().iter().flat_map(|word| word.to_le_bytes()).collect();
    memory.write(2048, &words).unwrap();
    let mut stream = PushBuffer::<Compute>::new();
    stream.bind().set_windows(Windows::new(at(0xfd_0000_0000), at(0xfe_0000_0000)).unwrap());
    stream.launch(QmdAddress::new(at(va + 2048)).unwrap());
    let mut survived = 0;
    while survived < 80 && bench.timedout(ready.channel) == 0 {
        bench.run(&ready, stream.words());
        survived += 1;
    }
    let mut code = [0; 4];
    bench.dma_buf(notifier).read(8, &mut code).unwrap();
    assert_eq!(u32::from_le_bytes(code), if survived < 80 { 8 } else { 0 });
    assert_eq!(bench.findings.take().len(), usize::from(survived < 80));
    survived
}

#[test]
fn a_desktop_ends_a_channel_unless_its_limit_is_raised_or_it_yields() {
    let nothing = |_: &Bench, _: i32| {};
    let limit = |timeout: u32| {
        move |bench: &Bench, channel: i32| {
            let file = bench.file(channel);
            bench.ask(file, channel::SET_TIMEOUT, channel::SetTimeout { timeout });
        }
    };
    let longer = |bench: &Bench, channel: i32| {
        let mut args = bytes::<8>(&[(0, 6000, 4)]);
        bench.raw(bench.file(channel), "NVGPU_IOCTL_CHANNEL_SET_TIMEOUT_EX", &mut args).unwrap();
    };
    let yields = |kind: u32| {
        move |bench: &Bench, channel: i32| {
            let args =
                channel::PreemptionMode { graphics_preempt_mode: 0, compute_preempt_mode: kind };
            bench.ask(bench.file(channel), channel::SET_PREEMPTION_MODE, args);
        }
    };
    assert_eq!(survived(nothing, nothing), 31);
    assert_eq!(survived(limit(6000), nothing), 61);
    assert_eq!(survived(nothing, limit(5000)), 51);
    assert_eq!(survived(nothing, longer), 61);
    assert_eq!(survived(nothing, limit(100_000)), 80);
    // A launch is more than 100 ms.
    assert_eq!(survived(nothing, yields(channel::COMPUTE_PREEMPTION_CTA)), 31);
    assert_eq!(survived(nothing, yields(channel::COMPUTE_PREEMPTION_CILP)), 80);
}
