//! Clocks and power mode of the machine, summarised in a line.

use super::{Probe, Root};

/// `governor performance, cpu at most 2000 MHz, gpu at most 1300 MHz, power mode 0`, as far as
/// known; `unknown` if nothing is.
#[must_use]
pub fn summary() -> String {
    let probe = Probe::new(Root::system());
    let now = probe.sample();
    let mhz = |hz: u64| hz / 1_000_000;
    let cpu = now.clusters.first().map(|cluster| &cluster.clock);
    let gpu = now.gpu_clock.as_ref();
    let said = [
        cpu.and_then(|clock| Some(format!("governor {}", clock.governor.as_ref()?))),
        cpu.and_then(|clock| Some(format!("cpu at most {} MHz", mhz(clock.max_hz?)))),
        gpu.and_then(|clock| Some(format!("gpu at most {} MHz", mhz(clock.max_hz?)))),
        probe.power_mode().map(|mode| format!("power mode {mode}")),
    ];
    let said: Vec<String> = said.into_iter().flatten().collect();
    if said.is_empty() { "unknown".into() } else { said.join(", ") }
}
