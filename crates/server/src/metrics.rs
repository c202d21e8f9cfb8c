//! Prometheus metrics: counted as events happen, or read from the engines when scraped.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::residents::{self, Residents};
use device::first_light::Mode;
use engine::{DeviceHealth, DeviceMemory, ModelInfo, Snapshot, State};
use realtime::control_loops::{self, ControlLoops};
use telemetry::{Clock, Probe, memory as process};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answer {
    method: &'static str,
    route: String,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refusal {
    code: &'static str,
}

#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    answers: Family<Answer, Counter>,
    refusals: Family<Refusal, Counter>,
    /// All rejections, with any code.
    refused: AtomicU64,
    first_token: Histogram,
    inter_token: Histogram,
}

pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

impl Metrics {
    pub(super) fn new(
        residents: Arc<Residents>,
        probe: Arc<Probe>,
        lanes: Arc<ControlLoops>,
    ) -> Self {
        let mut registry = Registry::with_prefix("orind");
        let build = Info::new(vec![("version", super::VERSION)]);
        registry.register("build", "The build that runs", build);
        let answers = Family::default();
        let help = "HTTP requests answered, by route and status";
        registry.register("http_requests", help, answers.clone());
        let refusals = Family::default();
        let help = "Rejected generations, by error code";
        registry.register("requests_refused", help, refusals.clone());
        let first_token = Histogram::new(exponential_buckets(0.005, 2.0, 14));
        let help = "Time from a request's arrival to its first token";
        registry.register("time_to_first_token_seconds", help, first_token.clone());
        let inter_token = Histogram::new(exponential_buckets(0.001, 2.0, 12));
        let help = "Time between two tokens of one generation";
        registry.register("inter_token_seconds", help, inter_token.clone());
        registry.register_collector(Box::new(EngineMetrics(residents)));
        registry.register_collector(Box::new(MachineMetrics(probe)));
        registry.register_collector(Box::new(ControlLoopMetrics(lanes)));
        let refused = AtomicU64::new(0);
        Self { registry, answers, refusals, refused, first_token, inter_token }
    }

    /// Counts a rejected generation.
    pub(super) fn refused(&self, code: &'static str) {
        self.refusals.get_or_create(&Refusal { code }).inc();
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of rejected generations.
    pub(super) fn all_refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub(super) fn answered(&self, method: &'static str, route: &str, status: u16) {
        let answer = Answer { method, route: route.to_owned(), status };
        self.answers.get_or_create(&answer).inc();
    }

    pub(super) fn first_token(&self, time: Duration) {
        self.first_token.observe(time.as_secs_f64());
    }

    pub(super) fn inter_token(&self, time: Duration) {
        self.inter_token.observe(time.as_secs_f64());
    }

    /// Renders all metrics in the OpenMetrics text format.
    pub(super) fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// Metrics read from the engines and the process when scraped.
struct EngineMetrics(Arc<Residents>);

impl fmt::Debug for EngineMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineMetrics")
    }
}

impl Collector for EngineMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (now, all) = (self.0.first().engine.snapshot(), self.0.counts());
        let sum = |of: fn(&DeviceHealth) -> u64| now.devices.iter().map(of).sum::<u64>();
        for (name, help, value) in [
            ("prompt_tokens", "Prompt tokens evaluated", all.prompt_tokens),
            ("cached_tokens", "Prompt tokens read from the prefix cache", all.cached_tokens),
            ("prefix_blocks_read", "Prefix blocks read from disk", all.prefixes.read),
            ("prefix_blocks_written", "Prefix blocks written to disk", all.prefixes.written),
            (
                "prefix_files_refused",
                "Prefix files that were damaged, truncated or foreign",
                all.prefixes.refused,
            ),
            (
                "prefix_write_failures",
                "Prefix blocks that could not be written to disk",
                all.prefixes.failed,
            ),
            ("completion_tokens", "Tokens generated", all.completion_tokens),
            ("generations", "Generations finished, whatever the reason", all.requests),
            ("generation_failures", "Generations accepted that failed", all.failures),
            ("device_steps", "Steps submitted to the device", all.steps),
            ("device_losses", "Device losses while a model was loaded", sum(|d| d.losses)),
            (
                "device_mode_changes",
                "Changes of a device to a slower mode",
                sum(|d| d.mode_changes),
            ),
        ] {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(
                name,
                help,
                None,
                counter.metric_type(),
            )?)?;
        }
        let model = residents::loaded(&now.state);
        let health = model.and_then(|m| now.devices.iter().find(|d| d.name == m.device.name));
        if let Some((health, mode)) = health.and_then(|health| Some((health, health.mode?))) {
            let info = Info::new(vec![
                ("device", health.name.as_str()),
                ("chains", mode.chains.name()),
                ("wake", mode.wake.name()),
                ("maps", mode.maps.name()),
                ("range", mode.range.name()),
            ]);
            let help = "How launches are submitted to the device of the model";
            info.encode(encoder.encode_descriptor(
                "device_mode",
                help,
                None,
                info.metric_type(),
            )?)?;
        }
        let states: Vec<(String, Snapshot)> =
            self.0.all().map(|one| (one.name.clone(), one.engine.snapshot())).collect();
        let models: Vec<&ModelInfo> =
            states.iter().filter_map(|(_, now)| residents::loaded(&now.state)).collect();
        let memory =
            |of: fn(&DeviceMemory) -> u64| models.iter().map(|m| of(&m.memory)).sum::<u64>();
        let ready = matches!(now.state, State::Ready(_));
        for (name, help, value) in [
            ("ready", "1 when generations are served", u64::from(ready)),
            ("active_requests", "Generations being served", all.active as u64),
            (
                "kv_tokens",
                "Positions of the KV cache filled by generations in flight",
                all.kv_tokens as u64,
            ),
            ("queued_requests", "Generations waiting for a slot", all.queued as u64),
            (
                "slots",
                "Generations that can be served at once",
                models.iter().map(|m| m.slots as u64).sum(),
            ),
            ("weights_bytes", "Memory of the weights", memory(|m| m.weights)),
            ("kv_bytes", "Memory of the KV cache", memory(|m| m.kv)),
            ("prefix_bytes", "Size of prefix files on disk", all.prefixes.bytes),
            ("activations_bytes", "Memory of the activations", memory(|m| m.activations)),
            ("code_bytes", "Machine code in a GPU's memory", memory(|m| m.code.unwrap_or(0))),
            ("resident_bytes", "Resident set of the process", process::resident().unwrap_or(0)),
        ] {
            let gauge = ConstGauge::<u64>::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        models_apart(&mut encoder, &states)
    }
}

/// Writes the metrics of each model, including configured models that are not loaded.
fn models_apart(encoder: &mut DescriptorEncoder<'_>, states: &[(String, Snapshot)]) -> fmt::Result {
    type Value = fn(&Snapshot) -> u64;
    let values: [(_, _, Value); 5] = [
        ("model_ready", "1 when generations of the model are served", |now| {
            u64::from(matches!(now.state, State::Ready(_)))
        }),
        ("model_active_requests", "Its generations being served", |now| now.active as u64),
        ("model_queued_requests", "Its generations waiting for a slot", |now| now.queued as u64),
        ("model_kv_tokens", "Positions of its KV cache filled by its generations", |now| {
            now.kv_tokens as u64
        }),
        ("model_memory_bytes", "Memory reserved for it", |now| {
            let memory =
                residents::loaded(&now.state).map(|model| model.memory).unwrap_or_default();
            memory.weights + memory.kv + memory.activations
        }),
    ];
    for (name, help, value) in values {
        let values = states.iter().filter_map(|(name, now)| {
            let id = residents::loaded(&now.state).map(|model| &model.id);
            let id = id.or_else(|| (!name.is_empty()).then_some(name))?;
            Some((id.clone(), value(now) as f64))
        });
        gauges(encoder, name, help, "model", values)?;
    }
    Ok(())
}

/// Metrics read from the machine when scraped. Values that a machine does not report have no gauge.
#[derive(Debug)]
struct MachineMetrics(Arc<Probe>);

impl Collector for MachineMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let state = self.0.state();
        let now = &state.now;
        let hz = |clock: Option<&Clock>, pick: fn(&Clock) -> Option<u64>| {
            clock.and_then(pick).map(|hz| hz as f64)
        };
        let (gpu, memory) = (now.gpu_clock.as_ref(), now.memory_clock.as_ref());
        let mode = state.power_mode.as_ref().map(|mode| f64::from(mode.id));
        let sms = state.gpu.and_then(|gpu| gpu.sms()).map(f64::from);
        let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
        for (name, help, value) in [
            ("power_mode", "Number of the power mode", mode),
            ("gpu_multiprocessors", "Streaming multiprocessors in use", sms),
            ("gpu_clock_hertz", "GPU clock", hz(gpu, |clock| clock.now_hz)),
            ("gpu_clock_max_hertz", "Maximum clock", hz(gpu, |clock| clock.max_hz)),
            ("gpu_load_ratio", "Fraction of time that the GPU is busy", now.gpu_load),
            ("memory_clock_hertz", "Memory clock", hz(memory, |clock| clock.now_hz)),
            ("memory_clock_max_hertz", "Maximum clock", hz(memory, |clock| clock.max_hz)),
            ("power_watts", "Power of the module or the machine", now.watts()),
            ("machine_memory_available_bytes", "Available memory", bytes(state.memory.available)),
            (
                "machine_memory_cma_free_bytes",
                "Free contiguous memory",
                bytes(state.memory.cma_free),
            ),
            ("machine_memory_nvmap_bytes", "Memory of GPU buffers", bytes(state.memory.nvmap)),
        ] {
            let Some(gauge) = value.map(ConstGauge::<f64>::new) else { continue };
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        let cpus = now.clusters.iter().filter_map(|cluster| {
            Some((cluster.cpus.clone(), hz(Some(&cluster.clock), |clock| clock.now_hz)?))
        });
        gauges(&mut encoder, "cpu_clock_hertz", "Clock of a cluster of cores", "cpus", cpus)?;
        let zones = now.zones.iter().map(|zone| (zone.name.clone(), zone.celsius));
        gauges(&mut encoder, "temperature_celsius", "Temperature", "zone", zones)?;
        let rails = now.rails.iter().map(|rail| (rail.name.clone(), rail.watts));
        gauges(&mut encoder, "rail_watts", "Power of one supply", "rail", rails)?;
        let active = now.alarms.iter().filter(|alarm| alarm.count.is_none());
        let active = active.map(|alarm| (alarm.name.clone(), f64::from(u8::from(alarm.active))));
        gauges(&mut encoder, "alarm_active", "1 while it limits clocks", "alarm", active)?;
        let counted = now.alarms.iter().filter_map(|a| Some((a.name.clone(), a.count? as f64)));
        gauges(&mut encoder, "alarm_events", "Events since the machine started", "alarm", counted)
    }
}

/// Metrics read from the control loops when scraped.
struct ControlLoopMetrics(Arc<ControlLoops>);

impl fmt::Debug for ControlLoopMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ControlLoopMetrics")
    }
}

impl Collector for ControlLoopMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // No metric depends on the chain mode.
        let all = self.0.status(Mode::default().chains);
        if all.is_empty() {
            return Ok(());
        }
        type Count = fn(&control_loops::Status) -> u64;
        let counts: [(_, _, Count); 4] = [
            ("lane_deadlines_met", "Steps answered in time", |lane| lane.met),
            ("lane_deadlines_missed", "Steps answered too late", |lane| lane.missed),
            ("lane_starts_skipped", "Starts that came before the last answer", |lane| lane.skipped),
            ("lane_failures", "Steps that the device failed", |lane| lane.failed),
        ];
        for (name, help, count) in counts {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for lane in &all {
                let label = [("lane", lane.name.clone())];
                let family = metric.encode_family(&label)?;
                ConstCounter::<u64>::new(count(lane)).encode(family)?;
            }
        }
        type Time = fn(&control_loops::Status) -> Option<f64>;
        let times: [(_, _, Time); 3] = [
            ("lane_latency_p50_seconds", "Time from a start to its answer", |lane| lane.p50_s),
            ("lane_latency_p999_seconds", "Time that one step in a thousand exceeds", |lane| {
                lane.p999_s
            }),
            ("lane_latency_worst_seconds", "Longest time of a step", |lane| lane.worst_s),
        ];
        for (name, help, time) in times {
            let values = all.iter().filter_map(|lane| Some((lane.name.clone(), time(lane)?)));
            gauges(&mut encoder, name, help, "lane", values)?;
        }
        Ok(())
    }
}

/// Writes gauges that have one name and differ in one label; nothing without values.
fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &str,
    values: impl IntoIterator<Item = (String, f64)>,
) -> fmt::Result {
    let mut values = values.into_iter().peekable();
    if values.peek().is_none() {
        return Ok(());
    }
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (value_of, value) in values {
        ConstGauge::<f64>::new(value).encode(metric.encode_family(&[(label, value_of)])?)?;
    }
    Ok(())
}
