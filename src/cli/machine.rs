//! State of the machine in a few lines, for `status` and `top`.

use super::text;
use api::Machine;
use telemetry::Clock;

/// Rows of name and value; empty for a machine that reports nothing, such as most PCs.
pub(super) fn rows(machine: &Machine) -> Vec<Vec<String>> {
    let parts = [
        ("board", board(machine)),
        ("power", power(machine)),
        ("clocks", clocks(machine)),
        ("heat", heat(machine)),
        ("alarms", alarms(machine)),
        ("shared", shared(machine)),
    ];
    let mut rows: Vec<Vec<String>> =
        parts.into_iter().filter_map(|(name, value)| Some(vec![name.to_owned(), value?])).collect();
    if machine.orin && !machine.unread.is_empty() {
        let unread: Vec<&str> = machine.unread.iter().map(|unread| unread.what.as_str()).collect();
        rows.push(vec!["unreadable".into(), format!("{} (see --json)", unread.join(", "))]);
    }
    rows
}

fn board(machine: &Machine) -> Option<String> {
    let mut parts = vec![machine.board.clone()?];
    parts.extend(machine.release.map(|release| format!("L4T {release}")));
    let cuda = machine.drivers.cuda_toolkit.as_ref();
    parts.extend(cuda.map(|version| format!("CUDA toolkit {version}")));
    Some(parts.join(", "))
}

/// Formats the power mode and the power draw.
pub(super) fn power(machine: &Machine) -> Option<String> {
    let mut parts: Vec<String> = machine.power_mode.iter().map(ToString::to_string).collect();
    if let (Some(sms), Some(gpu)) = (machine.gpu.and_then(|gpu| gpu.sms()), machine.gpu) {
        let of = gpu.of_tpcs.map_or_else(String::new, |all| format!(" of {}", all * 2));
        parts.push(format!("{sms}{of} SMs"));
    }
    if let Some(watts) = machine.now.watts() {
        let rails = &machine.now.rails;
        let each: Vec<String> =
            rails.iter().map(|rail| format!("{} {:.1}", rail.name, rail.watts)).collect();
        let each = if rails.len() > 1 { format!(" ({})", each.join(", ")) } else { String::new() };
        parts.push(format!("{watts:.1} W{each}"));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn clocks(machine: &Machine) -> Option<String> {
    let now = &machine.now;
    if !machine.orin {
        return None;
    }
    let gpu = now.gpu_clock.as_ref().map(|clock| format!("GPU {}", clock_text(clock)));
    let memory = now.memory_clock.as_ref().map(|clock| format!("memory {}", clock_text(clock)));
    let cpu = now.clusters.iter().map(|cluster| &cluster.clock).max_by_key(|clock| clock.now_hz);
    let cpu = cpu.map(|clock| format!("CPU {}", clock_text(clock)));
    let parts: Vec<String> = [gpu, memory, cpu].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Formats a clock: `612 of 1300 MHz, pinned`.
pub(super) fn clock_text(clock: &Clock) -> String {
    let mhz = |hz: u64| format!("{:.0}", hz as f64 / 1e6);
    let now = clock.now_hz.map_or_else(|| "?".to_owned(), mhz);
    let most = clock.hardware_max_hz.or(clock.max_hz);
    let of = most.map_or_else(String::new, |hz| format!(" of {}", mhz(hz)));
    let capped = clock.max_hz.zip(clock.hardware_max_hz).filter(|(max, most)| max < most);
    let capped = capped.map_or_else(String::new, |(max, _)| format!(" (limit {})", mhz(max)));
    let pinned = if clock.is_pinned() == Some(true) { " pinned" } else { "" };
    format!("{now}{of} MHz{capped}{pinned}")
}

/// Formats the hottest zones first.
fn heat(machine: &Machine) -> Option<String> {
    if !machine.orin {
        return None;
    }
    let mut zones: Vec<_> = machine.now.zones.iter().collect();
    zones.sort_by(|a, b| b.celsius.total_cmp(&a.celsius));
    let first = zones.first()?;
    let at =
        first.throttles_at.map_or_else(String::new, |at| format!("; slowed down from {at:.0}"));
    let each: Vec<String> =
        zones.iter().take(4).map(|zone| format!("{} {:.0} °C", zone.name, zone.celsius)).collect();
    Some(format!("{}{at}", each.join(", ")))
}

/// Formats active alarms and past events; `None` if there are none.
pub(super) fn alarms(machine: &Machine) -> Option<String> {
    let alarms = machine.now.alarms.iter().filter_map(|alarm| match alarm.count {
        Some(0) => None,
        Some(count) => Some(format!("{} {count} times since start", alarm.name)),
        None => alarm.active.then(|| format!("{} NOW", alarm.name)),
    });
    let alarms: Vec<String> = alarms.collect();
    (machine.orin && !alarms.is_empty()).then(|| alarms.join(", "))
}

/// Formats the memory that CPU and GPU share.
fn shared(machine: &Machine) -> Option<String> {
    let memory = &machine.memory;
    if !machine.orin {
        return None;
    }
    let parts = [
        ("free", memory.free),
        ("available", memory.available),
        ("free CMA", memory.cma_free),
        ("GPU buffers", memory.nvmap),
        ("largest buffer possible", memory.largest_buffer),
    ];
    let parts: Vec<String> = parts
        .into_iter()
        .filter_map(|(name, bytes)| Some(format!("{name} {}", text::bytes(bytes?))))
        .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}
