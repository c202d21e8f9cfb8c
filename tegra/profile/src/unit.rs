//! Units, which are the suffixes of facts' names, and formatting of values for people.
//!
//! | suffix | unit |
//! |---|---|
//! | `_ns` | nanoseconds of the GPU's timer, thus also of the simulator's virtual clock |
//! | `_cpu_ns` | nanoseconds of the CPU's clock: from a simulator they do not predict hardware |
//! | `_gb_per_s`, `_cpu_gb_per_s` | 10^9 bytes a second, by either clock |
//! | `_bytes`, `_hz`, `_addr` | bytes, Hz, a GPU address |

use super::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Nanoseconds,
    /// 10^9 bytes a second.
    Bandwidth,
    Bytes,
    Hertz,
    Address,
    /// A bare number or a word.
    Plain,
}

/// The unit of a fact, from its name.
#[must_use]
pub fn of(name: &str) -> Unit {
    let ends = |end: &str| name == end || name.ends_with(&format!("_{end}"));
    if ends("ns") {
        Unit::Nanoseconds
    } else if ends("gb_per_s") {
        Unit::Bandwidth
    } else if ends("bytes") {
        Unit::Bytes
    } else if ends("hz") {
        Unit::Hertz
    } else if ends("addr") {
        Unit::Address
    } else {
        Unit::Plain
    }
}

/// Returns `true` if a fact was measured by the CPU's clock.
#[must_use]
pub fn by_cpu(name: &str) -> bool {
    name.ends_with("cpu_ns") || name.ends_with("cpu_gb_per_s")
}

/// Returns `true` for a time or a rate, which no two runs measure alike.
#[must_use]
pub fn is_timed(name: &str) -> bool {
    matches!(of(name), Unit::Nanoseconds | Unit::Bandwidth)
}

#[must_use]
pub fn show(name: &str, value: &Value) -> String {
    match (value, value.number()) {
        (Value::Flag(flag), _) => if *flag { "yes" } else { "no" }.into(),
        (Value::Text(text), _) => text.clone(),
        (_, None) => String::new(),
        (_, Some(number)) => match of(name) {
            Unit::Nanoseconds => time(number),
            Unit::Bandwidth => format!("{number:.1} GB/s"),
            Unit::Bytes => scaled(number, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"]),
            Unit::Hertz => scaled(number, 1000.0, &["Hz", "kHz", "MHz", "GHz"]),
            Unit::Address => format!("{:#x}", number as u64),
            Unit::Plain => plain(number),
        },
    }
}

/// A time in nanoseconds for people.
#[must_use]
pub fn time(ns: f64) -> String {
    scaled(ns, 1000.0, &["ns", "µs", "ms", "s"])
}

fn scaled(mut value: f64, base: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while value.abs() >= base && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    format!("{} {}", plain(value), units[unit])
}

fn plain(number: f64) -> String {
    let whole = number == number.trunc() && number.abs() < 1e15;
    if whole || number.abs() >= 100.0 {
        format!("{number:.0}")
    } else if number.abs() >= 1.0 {
        format!("{number:.1}")
    } else {
        format!("{number:.3}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_the_suffix_of_a_name() {
        let shown = |name: &str, value: f64| show(name, &Value::Number(value));
        assert_eq!(shown("launch_ns", 5120.0), "5.1 µs");
        assert_eq!(shown("median_cpu_ns", 1_010_000_000.0), "1.0 s");
        assert_eq!(shown("cached_gb_per_s", 43.21), "43.2 GB/s");
        assert_eq!(shown("largest_bytes", 3.0 * 1024.0 * 1024.0), "3 MiB");
        assert_eq!(shown("gpu_hz", 612_000_000.0), "612 MHz");
        assert_eq!(show("first_addr", &Value::Count(0xff_ffa0_0000)), "0xffffa00000");
        assert_eq!(show("rounds", &Value::Count(7)), "7");
        assert_eq!(show("seen", &Value::Flag(true)), "yes");
        assert_eq!(of("transactions"), Unit::Plain);
        assert!(by_cpu("median_cpu_ns") && !by_cpu("median_ns") && is_timed("median_ns"));
    }
}
