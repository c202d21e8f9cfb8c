//! Tests of the view, cell by cell.

use super::*;
use api::{Device, Model, ProcessMemory, Requests, Roof, State, Status};
use telemetry::{Alarm, Clock, Gpu, PowerMode, Rail, Zone};

fn status(steps: u64) -> Status {
    let mut status = Status {
        loading: None,
        version: "0.1.0".into(),
        pid: 7,
        uptime_s: 61.0,
        state: State::Ready,
        model: Some(Model {
            id: "llama-3.2-1b".into(),
            file_type: "Q6_K".into(),
            bytes: 1 << 30,
            context: 1000,
            slots: 4,
            device: Device { name: "nv".into(), ..Device::default() },
            step_bytes: 1_000_000_000,
            ..Model::default()
        }),
        requests: Requests {
            active: 2,
            queued: 1,
            queue_limit: 64,
            kv_tokens: 1000,
            finished: 5,
            completion_tokens: 2 * steps,
            steps,
            ..Requests::default()
        },
        memory: ProcessMemory::default(),
        searching: None,
        devices: vec![],
        machine: telemetry::State { orin: true, ..Default::default() },
        roof: Some(Roof { bytes_per_second: 200e9, source: "memory clock".into() }),
        lanes: vec![],
        residents: vec![],
    };
    let machine = &mut status.machine;
    machine.power_mode =
        Some(PowerMode { id: 0, name: Some("MAXN".into()), unlimited: Some(0), default: None });
    machine.gpu = Some(Gpu { gated_mask: Some(0), tpcs: Some(8), of_tpcs: Some(8) });
    let hz = Some(1_300_500_000);
    machine.now.gpu_clock =
        Some(Clock { now_hz: hz, min_hz: hz, max_hz: hz, hardware_max_hz: hz, governor: None });
    machine.now.zones = vec![Zone { name: "tj".into(), celsius: 52.3, throttles_at: Some(99.0) }];
    machine.now.rails = vec![Rail { name: "VDD_IN".into(), watts: 31.4, all: true }];
    machine.now.alarms =
        vec![Alarm { name: "gpu-throttle-alert".into(), active: true, count: None }];
    status
}

/// Two statuses, a second apart: 100 steps, 200 tokens.
fn history() -> History {
    let mut history = History::new("/run/orind/orind.sock".into());
    let start = Instant::now();
    history.answered(start, status(0));
    history.answered(start + Duration::from_secs(1), status(100));
    history
}

#[test]
fn everything_fits_on_80_by_24() {
    let text = page(&history()).unwrap();
    let bar = |name: &str, number: &str, bars: &str| {
        [format!("{name:<10}{number:<26}{bars}"), format!("{:36}{bars}", "")]
    };
    let lines = [
        &["orind     0.1.0, up 1 min 1 s: ready", "model     llama-3.2-1b Q6_K, 1.0 GiB on nv", ""]
            .map(str::to_owned)[..],
        &bar("decode", "200.0 tok/s", "█"),
        &bar("prefill", "0.0 tok/s", ""),
        &bar("weights", "100.0 GB/s, 50 % of roof", "█"),
        &bar("power", "31.4 W", "██"),
        &bar("heat", "tj 52 °C", "██"),
        &[
            "requests  2 of 4 slots, 1 of 64 waiting, 5 finished, 0 failed, 0 refused",
            "KV cache  25 % full, 1000 tokens",
            "roof      200.0 GB/s by the memory clock",
            "power     MAXN (mode 0), 16 of 16 SMs, 31.4 W",
            "GPU       1300 of 1300 MHz pinned",
            "alarms    gpu-throttle-alert NOW",
            "",
            "",
            "",
            "",
            "q quits",
        ]
        .map(str::to_owned)[..],
    ]
    .concat();
    let expected: String = lines.iter().map(|line| format!("{}\n", line.trim_end())).collect();
    assert_eq!(text, expected);
}

#[test]
fn the_view_waits_for_a_stopped_daemon_and_resets_after_a_restart() {
    let mut history = history();
    history.silent("no daemon is listening on /run/orind/orind.sock".into());
    let text = page(&history).unwrap();
    assert!(text.contains("waiting: no daemon is listening"), "{text}");
    assert!(text.contains("decode    0.0 tok/s"), "{text}");
    // Lower counters of a new process are not negative speeds.
    let anew = Status { pid: 8, ..status(1) };
    history.answered(Instant::now(), anew);
    let text = page(&history).unwrap();
    assert!(text.contains(": ready") && text.contains("decode    0.0 tok/s"), "{text}");
}

#[test]
fn any_terminal_size_is_drawn() {
    let history = history();
    for (width, height) in [(1, 1), (10, 3), (40, 12), (80, 24), (200, 60)] {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view::draw(frame, &history)).unwrap();
    }
    // No status yet.
    assert!(page(&History::new("/x".into())).unwrap().contains("asking"));
}
