//! What a benchmark found: plain data, in SI units.

use serde::{Deserialize, Serialize};

use super::statistics::Summary;
use super::{Conditions, Spec, Test};
use engine::Provenance;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Why the numbers say nothing: the machine changed under them. Empty when it did not.
    #[serde(default)]
    pub invalid: Vec<String>,
    pub manifest: Manifest,
    pub roof: Roof,
    pub rows: Vec<Row>,
    pub memory: Memory,
    /// Seconds from the start of loading to a model that is ready.
    pub load_seconds: f64,
    /// Time to first token as a client sees it; measured by the client.
    pub first_token: Option<FirstToken>,
    /// Only for a daemon started for this benchmark; measured by the client.
    pub cold_start: Option<ColdStart>,
}

impl Report {
    /// Takes in a later run of the same tests, as if it had been one run: its samples follow.
    pub fn add(&mut self, later: Self) {
        let roof = self.roof.bytes_per_second;
        for row in &mut self.rows {
            let same = later.rows.iter().find(|other| other.test == row.test);
            let more = same.map_or(&[][..], |other| &other.tokens_per_second.samples);
            let samples = [&row.tokens_per_second.samples, more].concat();
            if let Some(speed) = Summary::of(samples) {
                *row = row.clone().at(speed, roof);
                // Of the first run only.
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
    /// Commit it was built from, with `-dirty` where sources differed; `None` for a build without git.
    pub commit: Option<String>,
    /// True for a build with debug assertions, whose speeds mean little.
    pub debug_build: bool,
    /// When the benchmark began, RFC 3339, UTC.
    pub date: String,
    pub model: Model,
    /// Short name of the device.
    pub device: String,
    /// The device in one line.
    pub device_description: String,
    /// Worker threads; 0 for a GPU.
    pub threads: usize,
    /// Tokens a sequence has room for.
    pub context: usize,
    pub machine: Machine,
    #[serde(default)]
    pub conditions: Conditions,
    pub spec: Spec,
    /// Timed repetitions of each test.
    pub repetitions: u32,
    /// What was measured; absent from reports of builds that did not tell.
    #[serde(default)]
    pub provenance: Option<Provenance>,
    /// Seconds the tests took, warm-up included.
    pub seconds: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    pub id: String,
    /// `llama`, `qwen3`.
    pub architecture: String,
    /// As llama.cpp names files: `Q6_K`, `Q4_K_M`.
    pub file_type: String,
    /// True for seeded random weights.
    pub synthetic: bool,
    /// Bytes of tensor data.
    pub bytes: u64,
    pub parameters: u64,
}

/// What the machine said about itself. Fields that it does not tell are `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub processor: Option<String>,
    pub kernel: Option<String>,
    /// Cores this process may use.
    pub cores: usize,
    /// Which these are, as the kernel lists them: `0-3,8`.
    #[serde(default)]
    pub affinity: Option<String>,
    /// Frequency governor of the first core.
    pub governor: Option<String>,
    /// Clock of the first core before and after, in MHz.
    pub mhz: Option<[f64; 2]>,
    /// Fraction of the machine's processor time, 0 to 1, that others took during the tests: other
    /// processes and, on a virtual machine, its host (steal).
    pub taken_by_others: Option<f64>,
}

/// Memory bandwidth for reading, of what reads the weights: what bounds decode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Roof {
    /// Name of the stream that was fastest.
    pub stream: String,
    /// Its best measurement, in bytes per second: the roof that rows are held against. 0 where it could not
    /// be measured; [`Roof::limit`] says why.
    pub bytes_per_second: f64,
    pub lowest: f64,
    /// Bytes read per pass.
    pub bytes: u64,
    /// Threads that read; 0 where the GPU did.
    pub threads: usize,
    /// Times it was measured: before, between and after the tests.
    pub measurements: u32,
    pub streams: Vec<Stream>,
    /// Why it was not measured, or by reading less than usual.
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
    /// Its name, as llama-bench writes it.
    pub name: String,
    #[serde(flatten)]
    pub test: Test,
    /// Tokens per second, all sequences together.
    pub tokens_per_second: Summary,
    pub tokens_per_second_per_sequence: f64,
    pub weight_bytes_per_token: f64,
    /// Bytes of KV cache read or written for each token.
    pub kv_bytes_per_token: f64,
    pub flops_per_token: f64,
    /// Weights and KV cache moved per second, at the median speed.
    pub bytes_per_second: f64,
    /// The same as a fraction of the roof, 0 to 1; 0 without a roof.
    pub fraction_of_roof: f64,
    /// Floating-point operations per second, at the median speed.
    pub flops_per_second: f64,
    /// Joules of the whole module or machine for each token: with a meter, and for tests of a second at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joules_per_token: Option<f64>,
}

impl Row {
    /// The row at another speed, under a roof in bytes per second, 0 for none: what follows from them anew.
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
    /// Largest resident set, without the buffer that the roof is measured on.
    pub peak: u64,
    pub weights: u64,
    pub kv: u64,
    pub activations: u64,
    /// Machine code in a GPU's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u64>,
    /// Whether those are a GPU's memory, reserved from its driver: they are no part of `peak`, but where
    /// the driver lets the process see them.
    #[serde(default)]
    pub gpu: bool,
}

impl Memory {
    pub fn reserved(&self) -> u64 {
        self.weights + self.kv + self.activations + self.code.unwrap_or(0)
    }

    /// What of the process's memory is not reserved; reserved memory that was never touched is not resident
    /// and makes this smaller. Means nothing with a GPU.
    pub fn rest(&self) -> u64 {
        self.peak.saturating_sub(self.reserved())
    }
}

/// Time from sending a request over the socket to its first token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FirstToken {
    pub prompt_tokens: u32,
    pub seconds: Summary,
}

/// Time from starting a daemon to its first token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ColdStart {
    /// From starting the process to a socket that answers, in seconds.
    pub socket_seconds: f64,
    pub loaded_seconds: f64,
    pub first_token_seconds: f64,
    pub prompt_tokens: u32,
}
