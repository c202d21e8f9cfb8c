//! Everything that the GPU and its drivers report: `cargo run -p tegra --example probe [-- --json]`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for a terminal")]

use std::process::ExitCode;

use tegra::Error;
use tegra::abi::ctrl::{CLOCK_GPC, CLOCK_MEMORY};
use tegra::orin::Orin;

/// A heading and rows of name and value, in the order of the report.
struct Section {
    title: &'static str,
    rows: Vec<(String, Value)>,
}

enum Value {
    Number(u64),
    Hex(u64),
    Text(String),
    /// Reason why it is unavailable.
    Missing(String),
}

impl Value {
    fn table(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Hex(number) => format!("{number:#x}"),
            Self::Text(text) => text.clone(),
            Self::Missing(why) => format!("- ({why})"),
        }
    }

    fn json(&self) -> serde_json::Value {
        match self {
            Self::Number(number) | Self::Hex(number) => (*number).into(),
            Self::Text(text) => text.as_str().into(),
            Self::Missing(_) => serde_json::Value::Null,
        }
    }
}

fn number(name: &str, number: impl Into<u64>) -> (String, Value) {
    (name.to_owned(), Value::Number(number.into()))
}

fn hex(name: &str, number: impl Into<u64>) -> (String, Value) {
    (name.to_owned(), Value::Hex(number.into()))
}

fn text(name: &str, text: impl Into<String>) -> (String, Value) {
    (name.to_owned(), Value::Text(text.into()))
}

/// Rows of an optional request, which the driver may refuse.
fn rows<T>(
    name: &str,
    asked: Result<T, Error>,
    rows: impl FnOnce(T) -> Vec<(String, Value)>,
) -> Vec<(String, Value)> {
    match asked {
        Ok(answer) => rows(answer),
        Err(error) => vec![(name.to_owned(), Value::Missing(error.to_string()))],
    }
}

fn chip(orin: &Orin) -> Vec<(String, Value)> {
    let c = orin.characteristics();
    vec![
        text("chip", orin.chip()),
        hex("architecture", c.arch),
        hex("implementation", c.r#impl),
        hex("revision", c.rev),
        hex("device identifier", c.per_device_identifier),
        text(
            "SM version",
            format!("{}.{}", c.sm_arch_sm_version >> 8, c.sm_arch_sm_version & 0xff),
        ),
        text(
            "SPA version",
            format!("{}.{}", c.sm_arch_spa_version >> 8, c.sm_arch_spa_version & 0xff),
        ),
        number("SMs", orin.sms()),
        number("GPCs", c.num_gpc),
        hex("GPC mask", c.gpc_mask),
        number("GPCs of the whole chip", c.max_gpc_count),
        number("TPCs per GPC", c.num_tpc_per_gpc),
        number("PPCs per GPC", c.num_ppc_per_gpc),
        number("warps per TPC", c.sm_arch_warp_count),
        number("L2 bytes", c.L2_cache_size),
        number("L2 caches", c.num_ltc),
        number("slices per L2 cache", c.lts_per_ltc),
        hex("frame-buffer partitions", c.fbp_en_mask),
        hex("memory controllers", c.emc_en_mask),
        number("highest clock, Hz", c.max_freq),
        hex("compute class", c.compute_class),
        hex("copy class", c.dma_copy_class),
        hex("channel class", c.gpfifo_class),
        hex("3D class", c.threed_class),
        hex("2D class", c.twod_class),
        hex("inline-to-memory class", c.inline_to_memory_class),
        number("address bits", c.gpu_va_bit_count),
        number("big page size", c.big_page_size),
        number("compression page size", c.compression_page_size),
        number("maximum GPFIFO entries", c.max_gpfifo_entries),
        number("subcontexts per TSG", c.max_veid_count_per_tsg),
        number("maps per batch", c.map_buffer_batch_limit),
        hex("compute preemption modes", c.compute_preemption_mode_flags),
        hex("graphics preemption modes", c.graphics_preemption_mode_flags),
        hex("flags", c.flags),
        text(
            "last requests: ctrl, TSG, channel, AS",
            format!(
                "{} {} {} {}",
                c.gpu_ioctl_nr_last,
                c.tsg_ioctl_nr_last,
                c.ioctl_channel_nr_last,
                c.as_ioctl_nr_last
            ),
        ),
    ]
}

fn layout(orin: &Orin) -> Vec<(String, Value)> {
    let masks = |name: &'static str| {
        move |masks: Vec<u32>| {
            let masks = masks.into_iter().enumerate();
            masks.map(|(index, mask)| hex(&format!("{name} {index}"), mask)).collect()
        }
    };
    let mut all = rows("TPCs", orin.tpc_masks(), masks("TPCs of GPC"));
    all.extend(rows("L2 slices", orin.l2_masks(), masks("L2 slices of partition")));
    all.extend(rows("physical GPCs", orin.physical_gpcs(), |map| {
        let map = map.into_iter().enumerate();
        map.map(|(local, physical)| number(&format!("physical GPC of {local}"), physical)).collect()
    }));
    all.extend(rows("SM map", orin.sm_map(), |map| {
        let map = map.into_iter().enumerate();
        map.map(|(sm, at)| {
            let place = format!(
                "GPC {} TPC {} SM {}",
                at.gpc_logical_index, at.tpc_local_logical_index, at.sm_local_id
            );
            text(&format!("SM {sm}"), place)
        })
        .collect()
    }));
    all
}

fn engines(orin: &Orin) -> Vec<(String, Value)> {
    rows("engines", orin.engines(), |engines| {
        let engines = engines.into_iter();
        engines
            .map(|engine| {
                let kind = match engine.engine_id {
                    0 => "graphics and compute",
                    1 => "copy, on the graphics runlist",
                    2 => "asynchronous copy",
                    5 => "video encoder",
                    6 => "optical flow",
                    7 => "video decoder",
                    8 => "JPEG",
                    _ => "other",
                };
                let name = format!("engine {}.{}", engine.engine_id, engine.engine_instance);
                text(&name, format!("{kind}, runlist {}", engine.runlist_id))
            })
            .collect()
    })
}

fn clocks(orin: &Orin) -> Vec<(String, Value)> {
    rows("clocks", orin.clocks(), |clocks| {
        let mut all = Vec::new();
        for clock in clocks {
            let name = match clock.domain {
                CLOCK_MEMORY => "memory".to_owned(),
                CLOCK_GPC => "GPU".to_owned(),
                other => format!("domain {other}"),
            };
            all.push(number(&format!("{name} clock minimum, Hz"), clock.min_hz));
            all.push(number(&format!("{name} clock maximum, Hz"), clock.max_hz));
            if let Some(now) = clock.now_hz {
                all.push(number(&format!("{name} clock now, Hz"), now));
            }
            let points: Vec<_> = clock.points_hz.iter().map(u64::to_string).collect();
            all.push(text(&format!("{name} clock points, Hz"), points.join(" ")));
        }
        all
    })
}

fn memory(orin: &Orin) -> Vec<(String, Value)> {
    rows("memory", orin.memory(), |memory| {
        vec![
            number("total bytes", memory.total),
            number("free bytes", memory.free),
            hex("carveouts", memory.carveouts),
        ]
    })
}

fn time(orin: &Orin) -> Vec<(String, Value)> {
    let mut all =
        rows("GPU timer, ns", orin.gpu_time(), |time| vec![number("GPU timer, ns", time)]);
    all.extend(rows("system time", orin.time_pair(), |pair| {
        vec![
            number("system time, ns", pair.cpu_timestamp),
            number("GPU timer at that time, ns", pair.gpu_timestamp),
        ]
    }));
    all
}

fn main() -> ExitCode {
    let json = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--json") => true,
        Some(other) => {
            eprintln!("probe: unknown argument {other}; the only option is --json");
            return ExitCode::from(2);
        }
    };
    let orin = match Orin::open() {
        Ok(orin) => orin,
        Err(error) => {
            eprintln!("probe: {error}");
            return ExitCode::FAILURE;
        }
    };
    let sections = [
        Section { title: "chip", rows: chip(&orin) },
        Section { title: "layout", rows: layout(&orin) },
        Section { title: "engines", rows: engines(&orin) },
        Section { title: "clocks", rows: clocks(&orin) },
        Section { title: "memory", rows: memory(&orin) },
        Section { title: "time", rows: time(&orin) },
    ];
    let print = if json { print_json } else { print_table };
    print(&sections);
    ExitCode::SUCCESS
}

fn print_table(sections: &[Section]) {
    let names = sections.iter().flat_map(|section| &section.rows).map(|(name, _)| name.len());
    let width = names.max().unwrap_or(0);
    for Section { title, rows } in sections {
        println!("{title}");
        for (name, value) in rows {
            println!("  {name:width$}  {}", value.table());
        }
    }
}

fn print_json(sections: &[Section]) {
    let object = |rows: &[(String, Value)]| -> serde_json::Map<_, _> {
        rows.iter().map(|(name, value)| (name.clone(), value.json())).collect()
    };
    let sections = sections.iter().map(|section| (section.title.to_owned(), object(&section.rows)));
    let report: serde_json::Map<_, _> =
        sections.map(|(title, rows)| (title, serde_json::Value::Object(rows))).collect();
    println!("{:#}", serde_json::Value::Object(report));
}
