//! Result of a benchmark: plain data in SI units.

use serde::{Deserialize, Serialize};

use super::statistics::Summary;
use super::{Conditions, Spec, Test};
use engine::Provenance;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Reasons why the run is invalid: the machine changed during it. Empty for a valid run.
    #[serde(default)]
    pub invalid: Vec<String>,
    pub manifest: Manifest,
    pub roof: Roof,
    pub rows: Vec<Row>,
    pub memory: Memory,
    /// Seconds from the start of loading until the model was ready.
    pub load_seconds: f64,
    /// Time to first token, as measured by a client.
    pub first_token: Option<FirstToken>,
    /// Only for a daemon started for this benchmark; measured by the client.
    pub cold_start: Option<ColdStart>,
}

impl Report {
    /// Merges a later run of the same tests, as if both were one run.
    pub fn add(&mut self, later: Self) {
        let roof = self.roof.bytes_per_second;
        for row in &mut self.rows {
            let same = later.rows.iter().find(|other| other.test == row.test);
            let more = same.map_or(&[][..], |other| &other.tokens_per_second.samples);
            let samples = [&row.tokens_per_second.samples, more].concat();
            if let Some(speed) = Summary::of(samples) {
                *row = row.clone().at(speed, roof);
                // Measured in the first run only.
                row.joules_per_token = None;
            }
        }
        for reason in later.invalid {
            if !self.invalid.contains(&reason) {
                self.invalid.push(reason);
            }
        }
        self.memory.peak = self.memory.peak.max(later.memory.peak);
        let (all, later) = (&mut self.manifest, later.manifest);
        all.repetitions += later.repetitions;
        all.spec.repetitions = Some(all.repetitions);
        all.seconds += later.seconds;
        all.conditions.add(later.conditions);
        if let (Some(all), Some(later)) = (&mut all.machine.mhz, later.machine.mhz) {
            all[1] = later[1];
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub version: String,
    /// Commit of the sources, with `-dirty` if they were modified; `None` for a build without git.
    pub commit: Option<String>,
    /// True if this is a build with debug assertions, whose speeds mean little.
    pub debug_build: bool,
    /// When the benchmark began, RFC 3339, UTC.
    pub date: String,
    pub model: Model,
    /// Short name of the device.
    pub device: String,
    /// Description of the device in one line.
    pub device_description: String,
    /// Worker threads; 0 for a GPU.
    pub threads: usize,
    /// Context length of a sequence, in tokens.
    pub context: usize,
    pub machine: Machine,
    #[serde(default)]
    pub conditions: Conditions,
    pub spec: Spec,
    /// Timed repetitions of each test.
    pub repetitions: u32,
    /// Provenance of the model and build; absent from reports of older builds.
    #[serde(default)]
    pub provenance: Option<Provenance>,
    /// Duration of the tests in seconds, warm-up included.
    pub seconds: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    pub id: String,
    /// Architecture: `llama`, `qwen3`.
    pub architecture: String,
    /// File type in llama.cpp's notation: `Q6_K`, `Q4_K_M`.
    pub file_type: String,
    /// True if the weights are seeded random numbers.
    pub synthetic: bool,
    /// Bytes of tensor data.
    pub bytes: u64,
    pub parameters: u64,
}

/// Facts about the machine; unknown ones are `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub processor: Option<String>,
    pub kernel: Option<String>,
    /// Number of cores that this process may use.
    pub cores: usize,
    /// Usable cores, in the kernel's list format: `0-3,8`.
    #[serde(default)]
    pub affinity: Option<String>,
    /// Frequency governor of the first core.
    pub governor: Option<String>,
    /// Clock of the first core before and after, in MHz.
    pub mhz: Option<[f64; 2]>,
    /// Fraction of the machine's CPU time, 0 to 1, used by others during the tests: other processes
    /// and, on a virtual machine, its host (steal).
    pub taken_by_others: Option<f64>,
}

/// Read bandwidth of the memory that contains the weights; it bounds decode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Roof {
    /// Name of the fastest access pattern.
    pub stream: String,
    /// Best measurement in bytes per second, the roof of all rows; 0 if it could not be measured,
    /// see [`Roof::limit`].
    pub bytes_per_second: f64,
    pub lowest: f64,
    /// Bytes read per pass.
    pub bytes: u64,
    /// Reader threads; 0 for a GPU.
    pub threads: usize,
    /// Number of measurements: before, between and after the tests.
    pub measurements: u32,
    pub streams: Vec<Stream>,
    /// Reason why the bandwidth was not measured, or with a smaller buffer than usual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
}

impl Roof {
    pub(super) fn not_asked_for() -> Self {
        Self {
            stream: String::new(),
            bytes_per_second: 0.0,
            lowest: 0.0,
            bytes: 0,
            threads: 0,
            measurements: 0,
            streams: Vec::new(),
            limit: Some("not asked for".into()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    pub name: String,
    pub bytes_per_second: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name in llama-bench's notation.
    pub name: String,
    #[serde(flatten)]
    pub test: Test,
    /// Tokens per second, summed over all sequences.
    pub tokens_per_second: Summary,
    pub tokens_per_second_per_sequence: f64,
    pub weight_bytes_per_token: f64,
    /// KV cache bytes read or written per token.
    pub kv_bytes_per_token: f64,
    pub flops_per_token: f64,
    /// Bytes of weights and KV cache per second, at the median speed.
    pub bytes_per_second: f64,
    /// Fraction of the roof, 0 to 1; 0 without a roof.
    pub fraction_of_roof: f64,
    /// Floating-point operations per second, at the median speed.
    pub flops_per_second: f64,
    /// Energy per token of the whole module or machine, in joules; only with a power meter and for
    /// tests of at least a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joules_per_token: Option<f64>,
}

impl Row {
    /// Recomputes the row for another speed and another roof in bytes per second (0 for none).
    pub fn at(self, speed: Summary, roof: f64) -> Self {
        let median = speed.median;
        let bytes_per_second = median * (self.weight_bytes_per_token + self.kv_bytes_per_token);
        Self {
            tokens_per_second_per_sequence: median / f64::from(self.test.batch),
            bytes_per_second,
            fraction_of_roof: if roof > 0.0 { bytes_per_second / roof } else { 0.0 },
            flops_per_second: median * self.flops_per_token,
            tokens_per_second: speed,
            ..self
        }
    }
}

/// Memory of the process that ran the tests, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Largest resident set, without the buffer of the bandwidth measurement.
    pub peak: u64,
    pub weights: u64,
    pub kv: u64,
    pub activations: u64,
    /// Machine code in GPU memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u64>,
    /// True if weights, KV cache and activations are in GPU memory; then they are not part of
    /// `peak`, unless the driver makes them resident.
    #[serde(default)]
    pub gpu: bool,
}

impl Memory {
    pub fn reserved(&self) -> u64 {
        self.weights + self.kv + self.activations + self.code.unwrap_or(0)
    }

    /// Resident memory that is not reserved. Reserved but untouched memory is not resident and
    /// makes this smaller. Meaningless with a GPU.
    pub fn rest(&self) -> u64 {
        self.peak.saturating_sub(self.reserved())
    }
}

/// Time from sending a request over the socket until its first token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FirstToken {
    pub prompt_tokens: u32,
    pub seconds: Summary,
}

/// Time from starting a daemon until its first token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ColdStart {
    /// Seconds from starting the process until its socket answers.
    pub socket_seconds: f64,
    pub loaded_seconds: f64,
    pub first_token_seconds: f64,
    pub prompt_tokens: u32,
}
