//! The GPU's characteristics, engines and clocks. Only queries the driver; opens no channel.

use std::fmt::Write as _;
use std::time::Duration;

use tegra::abi::ctrl::{CLOCK_GPC, CLOCK_MEMORY};
use tegra::orin::Orin;
use tegra_profile::facts;

use super::answer::Answer;
use super::error::Error;
use super::raw::Nodes;

/// Position of the board's unique number in the record: not for a shared file.
const DEVICE_IDENTIFIER: std::ops::Range<usize> = 280..288;

pub(super) fn characteristics() -> Result<Answer, Error> {
    let mut record = Nodes::open()?.characteristics().map_err(Error::refused("characteristics"))?;
    if let Some(identifier) = record.get_mut(DEVICE_IDENTIFIER) {
        identifier.fill(0);
    }
    let orin = Orin::open()?;
    let c = orin.characteristics();
    let mut answer = Answer::new();
    let mut digits = String::new();
    for byte in &record {
        let _ = write!(digits, "{byte:02x}");
    }
    let masks = |masks: Vec<u32>| {
        masks.iter().map(|mask| format!("{mask:#x}")).collect::<Vec<_>>().join(" ")
    };
    answer
        .fact(facts::RECORD, digits)
        .fact("record_bytes", record.len())
        .fact("chip", orin.chip())
        .fact("gpcs", c.num_gpc)
        .fact("tpcs", orin.tpcs())
        .fact("sms", orin.sms())
        .fact("tpc_masks", orin.tpc_masks().map_or_else(|e| e.to_string(), masks))
        .fact("l2_bytes", c.L2_cache_size)
        .fact("address_bits", u32::from(c.gpu_va_bit_count))
        .fact("big_page_bytes", c.big_page_size)
        .fact("highest_hz", c.max_freq)
        .fact("flags", format!("{:#x}", c.flags));
    let known = record.len() == 328
        && orin.chip() == "ga10b"
        && c.gpu_va_bit_count == 40
        && c.big_page_size == 0
        && c.available_big_page_sizes == 0
        && orin.sms() == orin.tpcs() * 2;
    let text = format!("{} with {} SMs, {} TPCs", orin.chip(), orin.sms(), orin.tpcs());
    Ok(answer.judged(known, text))
}

pub(super) fn engines() -> Result<Answer, Error> {
    let engines = Orin::open()?.engines()?;
    let mut answer = Answer::new();
    let list: Vec<String> = engines
        .iter()
        .map(|e| format!("{}.{}@{}", e.engine_id, e.engine_instance, e.runlist_id))
        .collect();
    let count = |id: u32| engines.iter().filter(|engine| engine.engine_id == id).count();
    let (near, far) = (count(1), count(2));
    answer
        .fact(facts::ENGINE_LIST, list.join(" "))
        .fact("copy_engines_of_graphics", near)
        .fact("asynchronous_copy_engines", far);
    let graphics = engines.iter().any(|engine| engine.engine_id == 0 && engine.runlist_id == 0);
    let text = format!("{near} copy engines on the graphics runlist, {far} on their own");
    Ok(answer.judged(graphics, text))
}

/// The timer, and the driver's clock domains.
pub(super) fn clocks() -> Result<Answer, Error> {
    let orin = Orin::open()?;
    let mut answer = Answer::new();
    let mut times = Vec::new();
    for _ in 0..64 {
        times.push(orin.gpu_time()?);
    }
    let step = times.windows(2).fold(0, |step, pair| gcd(step, pair[1].saturating_sub(pair[0])));
    let before = orin.time_pair()?;
    std::thread::sleep(Duration::from_millis(50));
    let after = orin.time_pair()?;
    let cpu = after.cpu_timestamp.saturating_sub(before.cpu_timestamp) as f64;
    let gpu = after.gpu_timestamp.saturating_sub(before.gpu_timestamp) as f64;
    answer
        .fact("step_ns", step)
        .fact("drift_ppm", if cpu > 0.0 { (gpu / cpu - 1.0) * 1e6 } else { 0.0 });
    for clock in orin.clocks().unwrap_or_default() {
        let name = match clock.domain {
            CLOCK_MEMORY => "memory".to_owned(),
            CLOCK_GPC => "gpu".to_owned(),
            other => format!("domain{other}"),
        };
        answer.fact(format!("{name}_min_hz"), clock.min_hz);
        answer.fact(format!("{name}_max_hz"), clock.max_hz);
        if let Some(now) = clock.now_hz {
            answer.fact(format!("{name}_now_hz"), now);
        }
        let points = clock.points_hz.iter().map(|&hz| hz as f64).collect();
        answer.samples.insert(format!("{name}_points_hz"), points);
    }
    let known = step.is_multiple_of(32) && step > 0;
    Ok(answer.judged(known, format!("the timer has steps of {step} ns")))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
