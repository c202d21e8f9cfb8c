//! The checks: each is a function from facts to a finding.

use super::facts::{Facts, Fault, Tuned, is_root};
use super::{Finding, Verdict};
use config::{Backend, Config, Tune};
use device::bring_up::{Key, RETRY, Record};
use device::tune::DeviceKey;
use tegra_bundle::Header;
use telemetry::Release;

const GIB: f64 = (1u64 << 30) as f64;
/// Free space below which logs and models may fail.
const LITTLE_DISK: f64 = 2.0 * GIB;
/// GPU utilisation by others that is tolerated.
const IDLE: f64 = 0.05;

/// Machines that a check applies to.
#[derive(Clone, Copy, PartialEq)]
enum AppliesTo {
    Any,
    Orin,
}

type Check = fn(&Facts) -> Finding;

/// All checks by name, in reading order.
const CHECKS: [(&str, AppliesTo, Check); 20] = [
    ("board", AppliesTo::Any, board),
    ("processor", AppliesTo::Any, |facts| ok(&*facts.processor)),
    ("release", AppliesTo::Orin, release),
    ("allocation limit", AppliesTo::Orin, allocations),
    ("power mode", AppliesTo::Orin, power_mode),
    ("clocks", AppliesTo::Orin, clocks),
    ("throttling", AppliesTo::Any, throttling),
    ("device nodes", AppliesTo::Orin, nodes),
    ("permission", AppliesTo::Orin, group),
    ("other GPU users", AppliesTo::Any, gpu_users),
    ("first light", AppliesTo::Any, first_light),
    ("GPU faults", AppliesTo::Any, faults),
    ("CUDA", AppliesTo::Any, cuda),
    ("tuning", AppliesTo::Any, tuning),
    ("configuration", AppliesTo::Any, configuration),
    ("memory", AppliesTo::Any, memory),
    ("swap", AppliesTo::Any, swap),
    ("disk", AppliesTo::Any, disk),
    ("socket", AppliesTo::Any, socket),
    ("not told", AppliesTo::Any, unreadable),
];

pub fn examine(facts: &Facts) -> Vec<Finding> {
    let examine = |(name, on, check): (&str, AppliesTo, Check)| {
        let here = on == AppliesTo::Any || facts.state.orin;
        Finding { check: name.into(), ..if here { check(facts) } else { absent(NO_ORIN) } }
    };
    CHECKS.into_iter().map(examine).collect()
}

const NO_ORIN: &str = "no Orin here";

fn plain(verdict: Verdict, found: impl Into<String>) -> Finding {
    Finding { check: String::new(), verdict, found: found.into(), why: None, fix: None }
}

fn ok(found: impl Into<String>) -> Finding {
    plain(Verdict::Ok, found)
}

fn note(found: impl Into<String>) -> Finding {
    plain(Verdict::Note, found)
}

fn absent(found: &str) -> Finding {
    plain(Verdict::NotApplicable, found)
}

fn warning(found: impl Into<String>, why: &str, fix: impl Into<String>) -> Finding {
    wrong(Verdict::Warning, found, why, fix)
}

fn failure(found: impl Into<String>, why: &str, fix: impl Into<String>) -> Finding {
    wrong(Verdict::Failure, found, why, fix)
}

fn wrong(verdict: Verdict, found: impl Into<String>, why: &str, fix: impl Into<String>) -> Finding {
    Finding { why: Some(why.into()), fix: Some(fix.into()), ..plain(verdict, found) }
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / GIB)
}

fn board(facts: &Facts) -> Finding {
    let name = facts.state.board.as_deref();
    if facts.state.orin {
        return ok(name.unwrap_or("a Jetson Orin"));
    }
    let what = match (name, &facts.state.drivers.nvidia) {
        (Some(name), _) => format!("no Orin here, but {name}"),
        (None, Some(driver)) => format!("no Orin here; an NVIDIA driver {driver} is loaded"),
        (None, None) => "no Orin here".into(),
    };
    let rest = "models run on the CPU, or through CUDA where a GPU and its driver are";
    note(format!("{what}: {rest}"))
}

fn release(facts: &Facts) -> Finding {
    let Some(release) = facts.state.release else {
        return note("the Jetson Linux release is unknown; R36.4 is supported");
    };
    if release.is_supported() {
        return ok(format!("Jetson Linux {release}"));
    }
    let verdict = if release.major == 36 { Verdict::Warning } else { Verdict::Failure };
    wrong(
        verdict,
        format!("Jetson Linux {release}; R36.4 is supported"),
        "the GPU driver's interface differs between releases, and orind supports that of R36.4: \
         device nv may fail, and the CPU is used instead",
        "flash JetPack 6.2 (Jetson Linux R36.4), or use `backend = \"cuda\"` or \"cpu\"",
    )
}

fn allocations(facts: &Facts) -> Finding {
    let Some(release) = facts.state.release else { return absent(NO_ORIN) };
    if !release.limits_allocations() {
        return ok(format!("{release} allocates large buffers"));
    }
    let largest = facts.state.memory.largest_buffer.map_or_else(String::new, |bytes| {
        format!("; the largest buffer now is about {}", gib(bytes))
    });
    warning(
        format!("{release} refuses large buffers though memory is free{largest}"),
        "since a security update, the driver counts the page cache as used memory; loading a \
         large model can fail with `error 12` (ENOMEM)",
        "sudo apt update && sudo apt dist-upgrade, to R36.5 or later if available; until then \
         drop the page cache before loading: echo 3 | sudo tee /proc/sys/vm/drop_caches",
    )
}

fn power_mode(facts: &Facts) -> Finding {
    let Some(mode) = &facts.state.power_mode else {
        return note("the power mode is unknown: see `not told`");
    };
    let sms = facts.state.gpu.and_then(|gpu| Some((gpu.sms()?, gpu.of_tpcs? * 2)));
    let parts = sms.map_or_else(String::new, |(sms, of)| format!(", {sms} of {of} SMs"));
    match (mode.is_unlimited(), mode.unlimited) {
        (Some(true), _) => ok(format!("{mode}{parts}")),
        (Some(false), Some(unlimited)) => warning(
            format!("{mode}{parts}"),
            "the mode lowers clocks and may switch off parts of the GPU; the default of an AGX Orin, \
             30 W, has half of the SMs at half the clock",
            format!("sudo nvpmodel -m {unlimited}, and reboot if it asks for it"),
        ),
        _ => note(format!("{mode}{parts}; its name is unknown")),
    }
}

fn clocks(facts: &Facts) -> Finding {
    let Some(clock) = &facts.state.now.gpu_clock else {
        return note("the GPU's clock is unknown");
    };
    let mhz = |hz: Option<u64>| hz.map_or_else(|| "?".into(), |hz| (hz / 1_000_000).to_string());
    let (min, max) = (mhz(clock.min_hz), mhz(clock.max_hz));
    match clock.is_pinned() {
        Some(true) => ok(format!("GPU pinned at {max} MHz")),
        Some(false) => warning(
            format!("the GPU's clock follows its load, between {min} and {max} MHz"),
            "each answer begins slowly, and a bench during which the clock changes is invalid",
            "sudo jetson_clocks (until the next restart)",
        ),
        None => note("the range of the GPU's clock is unknown"),
    }
}

fn throttling(facts: &Facts) -> Finding {
    let now = &facts.state.now;
    if now.alarms.is_empty() && now.zones.is_empty() {
        return absent("this machine reports no temperatures");
    }
    let active: Vec<&str> =
        now.alarms.iter().filter(|alarm| alarm.active).map(|alarm| alarm.name.as_str()).collect();
    let hottest = now.hottest().map(|zone| format!("{} at {:.0} °C", zone.name, zone.celsius));
    let hottest = hottest.unwrap_or_else(|| "no temperature reported".into());
    if !active.is_empty() {
        return warning(
            format!("throttled now: {} ({hottest})", active.join(", ")),
            "clocks are lowered to protect the machine, whatever is configured",
            "better cooling (sudo nvfancontrol, or a larger heat sink), a stronger power supply, or a \
             lower power mode",
        );
    }
    let events: Vec<String> = now
        .alarms
        .iter()
        .filter_map(|alarm| Some((alarm, alarm.count.filter(|count| *count > 0)?)))
        .map(|(alarm, count)| format!("{} {count} times", alarm.name))
        .collect();
    if events.is_empty() {
        return ok(format!("none; {hottest}"));
    }
    note(format!("since boot: {}; {hottest}", events.join(", ")))
}

fn nodes(facts: &Facts) -> Finding {
    let missing: Vec<&str> =
        facts.nodes.iter().filter(|node| !node.exists).map(|node| node.path.as_str()).collect();
    if missing.is_empty() {
        return ok("all present");
    }
    let loaded = if facts.state.drivers.nvgpu { "" } else { "; the module nvgpu is not loaded" };
    failure(
        format!("{} missing{loaded}", missing.join(", ")),
        "the GPU cannot be used without them; pass them into a container",
        "sudo modprobe nvgpu; for a container: --device /dev/nvmap --device /dev/nvgpu",
    )
}

fn group(facts: &Facts) -> Finding {
    let Some(refused) = facts.nodes.iter().find(|node| node.exists && !node.permitted) else {
        return ok("this user may use the existing nodes");
    };
    let group = refused.group.as_deref().unwrap_or("video");
    failure(
        format!("this user may not open {}, which belongs to group {group}", refused.path),
        "only members of that group may use the GPU's driver",
        format!("sudo usermod -aG {group} $USER, then log in again"),
    )
}

fn gpu_users(facts: &Facts) -> Finding {
    if !facts.state.orin && facts.state.drivers.nvidia.is_none() {
        return absent(NO_ORIN);
    }
    let users = &facts.users;
    let names: Vec<String> =
        users.processes.iter().map(|user| format!("{} ({})", user.name, user.pid)).collect();
    let hidden = match users.hidden {
        0 => String::new(),
        hidden => format!("; {hidden} processes are not visible (run as root to see all)"),
    };
    let load = facts.state.now.gpu_load;
    if facts.loaded.is_none()
        && let Some(load) = load.filter(|load| *load > IDLE)
    {
        let who = if names.is_empty() { "no visible process".into() } else { names.join(", ") };
        return warning(
            format!("the GPU is {:.0} % busy: {who}{hidden}", load * 100.0),
            "they take time and memory bandwidth from every token",
            "stop them; to boot without a desktop: sudo systemctl set-default multi-user.target",
        );
    }
    match names.is_empty() {
        true => ok(format!("none seen{hidden}")),
        false => note(format!("open in {}{hidden}", names.join(", "))),
    }
}

/// Hardware modes that devices have proven, and records that disable devices.
fn first_light(facts: &Facts) -> Finding {
    const HARMLESS: &str = "models run on the next device, slower but without crashing the machine";
    let retry = format!(
        "find the cause (sudo journalctl -k -b -1, orinctl first-contact), then: {}",
        RETRY.trim_matches('`')
    );
    let book = match &facts.light {
        Ok(book) => book,
        Err(reason) => return failure(reason, "the GPU is not used until this can be read", retry),
    };
    let here = Key::here(String::new());
    let listed = |of: &dyn Fn(&Record) -> Option<String>| -> Vec<String> {
        let listed = |(name, record)| Some(format!("{name}: {}", of(record)?));
        book.devices.iter().filter_map(listed).collect()
    };
    let withheld = listed(&|record| record.withheld(&here));
    if !withheld.is_empty() {
        return failure(withheld.join("; "), HARMLESS, retry);
    }
    if !facts.left.is_empty() {
        let left: Vec<String> =
            facts.left.iter().map(|(name, why)| format!("{name} is not used: {why}")).collect();
        let fix =
            "check the logs of the daemon and the kernel (sudo dmesg), then restart the daemon";
        return warning(left.join("; "), HARMLESS, fix);
    }
    let failed = listed(&|record| record.failed.as_ref().map(|_| record.to_string()));
    if !failed.is_empty() {
        let fix = "orinctl first-contact tests the machine in detail; each load tries it again";
        return warning(failed.join("; "), HARMLESS, fix);
    }
    let passed = listed(&|record| Some(record.to_string()));
    let noted = book.devices.values().any(|record| !record.notes.is_empty());
    match (passed.is_empty(), facts.state.orin) {
        (true, true) => note("not tested yet: the first load tests the GPU"),
        (true, false) => absent("nothing is recorded"),
        (false, _) if noted => note(passed.join(". ")),
        (false, _) => ok(passed.join(". ")),
    }
}

/// Fault bundles, and the contents of the newest.
fn faults(facts: &Facts) -> Finding {
    let Fault { file, kept, header } = match &facts.fault {
        Ok(Some(fault)) => fault,
        Ok(None) if facts.state.orin => return ok("no fault bundle"),
        Ok(None) => return absent(NO_ORIN),
        Err(reason) => {
            let hint = if is_root() { "" } else { "; root may see more" };
            return note(format!("fault bundles cannot be read: {reason}{hint}"));
        }
    };
    let name = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
    let contents = match header {
        Ok(header) => {
            let Header { at, device, rule, message, launches, .. } = &**header;
            let at = at.as_deref().unwrap_or("an unknown day");
            let launches = match &launches[..] {
                [] => "no launch recorded".to_owned(),
                [only] => only.name.clone(),
                [first, .., last] => {
                    format!("{} launches, {} to {}", launches.len(), first.name, last.name)
                }
            };
            format!("{rule} on {at}, {device}: {launches}; {message}")
        }
        Err(reason) => format!("it cannot be read: {reason}"),
    };
    note(format!(
        "the newest of {kept} bundles is {name}: {contents}. To replay it on any machine: tegra-sim \
         replay {}",
        file.display()
    ))
}

fn cuda(facts: &Facts) -> Finding {
    let drivers = &facts.state.drivers;
    let toolkit = drivers.cuda_toolkit.as_deref();
    let Some(driver) = facts.state.release.and_then(Release::cuda) else {
        return match toolkit {
            Some(version) => note(format!("toolkit {version} is installed")),
            None => absent("no CUDA toolkit; none is needed"),
        };
    };
    let (major, minor) = driver;
    let number = |text: &str| text.parse::<u32>().ok();
    let installed = toolkit.and_then(|version| {
        let mut parts = version.split('.');
        Some((number(parts.next()?)?, number(parts.next()?)?))
    });
    match (toolkit, installed) {
        (Some(version), Some(installed)) if installed > driver => warning(
            format!("toolkit {version}, but the driver supports CUDA {major}.{minor}"),
            "programs compiled by that toolkit may not load; device nv does not use CUDA",
            format!(
                "sudo apt install cuda-toolkit-{major}-{minor}, and point /usr/local/cuda at it"
            ),
        ),
        _ if major < 12 => warning(
            format!("the driver supports CUDA {major}.{minor}; device cuda needs 12.0"),
            "device cuda cannot be used",
            "flash JetPack 6",
        ),
        (Some(version), _) => ok(format!("toolkit {version}, driver for {major}.{minor}")),
        (None, _) => ok(format!("driver for {major}.{minor}; no toolkit, none is needed")),
    }
}

fn tuning(facts: &Facts) -> Finding {
    if facts.config.as_ref().is_ok_and(|config| config.tune == Tune::Off) {
        return note("switched off by the configuration");
    }
    // This file name denotes an Orin's GPU, even if this user may not open it.
    let clock = facts.state.now.gpu_clock.as_ref().and_then(|clock| clock.max_hz);
    let sms = facts.state.gpu.and_then(|gpu| gpu.sms());
    let orin = sms.zip(clock).filter(|_| facts.state.orin).map(|(sms, hz)| {
        DeviceKey::gpu(87, sms, u32::try_from(hz / 1_000_000).unwrap_or(u32::MAX)).stem()
    });
    let (mine, others): (Vec<&Tuned>, Vec<&Tuned>) = facts
        .tuned
        .iter()
        .partition(|tuned| tuned.entries.is_some() || Some(&tuned.device) == orin.as_ref());
    let names = |tuned: &[&Tuned]| {
        tuned.iter().map(|tuned| tuned.device.as_str()).collect::<Vec<_>>().join(", ")
    };
    let of_gpu = |tuned: &&Tuned| tuned.device.starts_with("gpu-sm87");
    if let (Some(own), false) = (&orin, mine.iter().any(of_gpu)) {
        let others: Vec<&Tuned> = others.into_iter().filter(of_gpu).collect();
        if !others.is_empty() {
            return warning(
                format!("stale: kernels are tuned for {}, but this is {own}", names(&others)),
                "the best choice depends on the number of SMs and on the clock: the tuned choices are \
                 not used",
                "orinctl tune, or restore the power mode of the tuning",
            );
        }
        let found = format!("no tuned choices for {own}; `orinctl tune` finds the fastest kernels");
        return note(found);
    }
    let entries = mine.iter().filter_map(|tuned| tuned.entries);
    let (current, stale) = entries.fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
    if mine.is_empty() {
        let found = "no tuned choices for this machine; `orinctl tune` finds the fastest kernels";
        return note(found);
    }
    if stale > 0 {
        return warning(
            format!(
                "stale: {stale} of {} entries for {} are outdated",
                current + stale,
                names(&mine)
            ),
            "the kernels have changed since then; these cases use the heuristic",
            "orinctl tune (`orinctl tune show` lists them)",
        );
    }
    ok(format!("kernels are tuned for {}", names(&mine)))
}

fn configuration(facts: &Facts) -> Finding {
    match &facts.config {
        Ok(config) if config.model.is_empty() => note("valid; no model is loaded at start"),
        Ok(_) => ok("valid"),
        Err(error) => failure(
            error.clone(),
            "the daemon does not start with it",
            "correct the line; docs/configuration.md lists the keys, `orind --check` tries it",
        ),
    }
}

fn memory(facts: &Facts) -> Finding {
    let memory = &facts.state.memory;
    let Some(available) = memory.available else {
        return absent("this machine does not report its memory");
    };
    if let Some(model) = &facts.loaded {
        return ok(format!("{model} is loaded; {} more are available", gib(available)));
    }
    let need = match &facts.need {
        None => return ok(format!("{} available; no model is configured", gib(available))),
        Some(Err(reason)) => {
            let found = format!("the model's memory needs are unknown: {reason}");
            return note(found);
        }
        Some(Ok(need)) => need,
    };
    // Buffers are not allocated from free contiguous memory (CMA).
    let usable = available.saturating_sub(memory.cma_free.unwrap_or(0));
    let on_gpu = |config: &&Config| facts.state.orin && config.backend != Backend::Cpu;
    let config = facts.config.as_ref().ok().filter(on_gpu);
    let reserve = config.map_or(0, |config| config.memory_reserve_mib << 20);
    let usable = usable.saturating_sub(reserve);
    let sum = need.weights.saturating_add(need.kv);
    let sums = format!(
        "weights {} and KV cache {} need {}, {} are available",
        gib(need.weights),
        gib(need.kv),
        gib(sum),
        gib(usable)
    );
    if sum <= usable {
        return ok(sums);
    }
    failure(
        sums,
        "GPU and CPU share this memory, all of it is reserved at load, and `memory_reserve_mib` stays free: \
         the load will fail",
        "lower `context` or `slots`, take a smaller model, or stop the desktop: sudo systemctl isolate \
         multi-user.target",
    )
}

fn swap(facts: &Facts) -> Finding {
    use telemetry::SwapDevice::{Emmc, SdCard};
    let swaps = &facts.state.memory.swaps;
    let flash = swaps.iter().find(|swap| [Emmc, SdCard].contains(&swap.device));
    match flash {
        None if swaps.is_empty() => ok("none"),
        None => ok("not on flash memory"),
        Some(swap) => warning(
            format!(
                "{} of swap on the {}, {} in use",
                gib(swap.bytes),
                if swap.device == Emmc { "eMMC" } else { "SD card" },
                gib(swap.used)
            ),
            "it is slow and wears out the flash; swapped weights cost seconds per token",
            "move it to an NVMe drive, or: sudo swapoff -a (to restore zram: sudo systemctl restart \
             nvzramconfig)",
        ),
    }
}

fn disk(facts: &Facts) -> Finding {
    let Some(disk) = &facts.disk else {
        return absent("the directory of models cannot be read");
    };
    let found = format!("{} free for models", gib(disk.free));
    if disk.free as f64 >= LITTLE_DISK {
        return ok(found);
    }
    warning(
        found,
        "a model, a log or an update will soon not fit",
        "free some: sudo journalctl --vacuum-size=200M, sudo apt clean; or set models_dir to another \
         drive",
    )
}

fn socket(facts: &Facts) -> Finding {
    let socket = &facts.socket;
    let Some(mode) = socket.mode else {
        return note("no daemon has created the socket; start one with `orind`");
    };
    let group = socket.group.as_deref().unwrap_or("unknown");
    if !socket.permitted {
        return failure(
            format!("this user may not connect (mode {mode:04o}, group {group})"),
            "every request fails",
            format!("sudo usermod -aG {group} $USER, then log in again"),
        );
    }
    if mode & 0o002 != 0 {
        return warning(
            format!("every user of the machine may connect (mode {mode:04o})"),
            "every client can load models and cancel the work of others",
            "set socket_mode = \"0660\" in the configuration",
        );
    }
    ok(format!("usable (mode {mode:04o}, group {group})"))
}

/// Facts that could not be read.
fn unreadable(facts: &Facts) -> Finding {
    let unread: Vec<String> = facts
        .state
        .unread
        .iter()
        .map(|unread| format!("{} ({}: {})", unread.what, unread.path, unread.reason))
        .collect();
    if unread.is_empty() {
        return ok("everything could be read");
    }
    let found = unread.join("; ");
    let hint = if is_root() { "" } else { "; root may see more" };
    note(format!("{found}{hint}"))
}
