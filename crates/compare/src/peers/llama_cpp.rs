//! llama.cpp: `llama-bench` for speeds, `llama-batched-bench` for several sequences if it is
//! installed, `llama-server` for latencies, answers and build flags.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::process::Command;

use super::{Error, PeerAnswers, Vocabulary, list};
use crate::facts::{self, Facts};
use crate::outcome::{Memory, Outcome};
use crate::process::{self, Process};
use crate::server::{Dialect, Server};
use crate::workload::Workload;
use api::client::Client;
use bench::{Kind, Test};

const BENCH: &str = "llama-bench";
const BATCHED: &str = "llama-batched-bench";
const SERVER: &str = "llama-server";
const LIMIT: Duration = Duration::from_secs(3600);
/// Time limit for loading a model.
const LOADING: Duration = Duration::from_secs(600);
const INSTALL: &str = "its sources are part of PyPI's llama-cpp-python: `pip download --no-deps --no-binary :all: \
     llama-cpp-python`, unpack, and in vendor/llama.cpp `cmake -B build -DGGML_NATIVE=ON && cmake --build build \
     --config Release --target llama-bench llama-batched-bench llama-server`; then --llama-cpp build/bin";

pub(super) struct LlamaCpp {
    pub(super) folder: Option<PathBuf>,
}

/// Row of `llama-bench -o json`.
#[derive(Deserialize)]
struct Row {
    build_commit: String,
    build_number: u64,
    n_ubatch: u32,
    n_threads: usize,
    type_k: String,
    type_v: String,
    #[serde(deserialize_with = "truth")]
    flash_attn: bool,
    /// Compiled backends, `CPU` or `CUDA`.
    #[serde(default)]
    backends: String,
    #[serde(default)]
    n_gpu_layers: i64,
    /// Architecture, size and file type: `llama 1B Q4_K - Medium`.
    #[serde(default)]
    model_type: String,
    no_warmup: Option<bool>,
    n_prompt: u32,
    n_gen: u32,
    #[serde(default)]
    n_depth: u32,
    avg_ts: f64,
}

impl Row {
    /// Device that evaluated the layers.
    fn device(&self) -> Option<String> {
        let on_gpu = self.n_gpu_layers != 0 && self.backends != "CPU";
        let device = if on_gpu { self.backends.to_lowercase() } else { "cpu".into() };
        (!self.backends.is_empty()).then_some(device)
    }

    /// File type of the weights in the names of files: `Q4_K_M`.
    fn weights(&self) -> Option<String> {
        let (name, variant) = self.model_type.split_once(" - ").unwrap_or((&self.model_type, ""));
        let name = name.rsplit(' ').next().filter(|name| !name.is_empty())?;
        // `Small`, `Medium`, `Large`.
        Some(match variant.chars().next() {
            Some(size) => format!("{name}_{size}"),
            None => name.into(),
        })
    }
}

/// Line of `llama-batched-bench --output-format jsonl`.
#[derive(Deserialize)]
struct Batched {
    /// Tokens in each sequence at the start, tokens generated in each, and number of sequences.
    pp: u32,
    tg: u32,
    pl: u32,
    /// Summed over all sequences.
    speed_tg: f64,
}

/// Parses a flag that versions write as a number, a boolean or a word.
fn truth<'de, D: serde::Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    Ok(match Value::deserialize(from)? {
        Value::Bool(flag) => flag,
        Value::Number(n) => n.as_i64().is_some_and(|n| n > 0),
        Value::String(word) => ["1", "on", "true", "enabled"].contains(&word.as_str()),
        _ => false,
    })
}

impl LlamaCpp {
    fn program(&self, name: &str) -> Result<PathBuf, Error> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = self
            .folder
            .clone()
            .map_or_else(|| std::env::split_paths(&path).collect(), |folder| vec![folder]);
        let mut programs = folders.iter().map(|folder| folder.join(name));
        programs.find(|program| program.is_file()).ok_or_else(|| Error::Missing {
            what: match &self.folder {
                Some(folder) => format!("{name} in {}", folder.display()),
                None => format!("{name} in PATH"),
            },
            install: INSTALL.into(),
        })
    }

    pub(super) fn find(&self) -> Result<(), Error> {
        self.program(BENCH)?;
        self.program(SERVER).map(drop)
    }

    pub(super) async fn answers(
        &self,
        work: &Workload,
        id: Vocabulary<'_>,
    ) -> Result<PeerAnswers, Error> {
        let (process, server, mut outcome) = self.start(work).await?;
        let answers = server.answers(work, id).await?;
        outcome.facts.file = facts::file(&process.models(), work);
        drop(process);
        Ok(PeerAnswers { answers, outcome })
    }

    pub(super) async fn round(&self, work: &Workload, round: u32) -> Result<Outcome, Error> {
        let speeds = self.bench(work).await?;
        let (process, server, mut outcome) = self.start(work).await?;
        let times = server.times(work, round).await?;
        outcome.memory.seen(process.memory());
        drop(process);
        let built_for = outcome.facts.built_for.take();
        outcome.facts = Facts { built_for, ..speeds.facts };
        outcome.speeds = speeds.speeds;
        outcome.first_token = times.first_token;
        outcome.between = times.between;
        outcome.cached = times.cached;
        Ok(outcome)
    }

    async fn bench(&self, work: &Workload) -> Result<Outcome, Error> {
        let of = |kind| {
            let tests = work.tests.iter().filter(move |test| test.kind == kind && test.batch == 1);
            match list(tests.map(|test| test.tokens)) {
                none if none.is_empty() => "0".to_owned(),
                lengths => lengths,
            }
        };
        let mut command = Command::new(self.program(BENCH)?);
        command
            .args(["-o", "json", "-r", "1", "-fa", "1", "-t", &work.threads.to_string()])
            .args(["-ngl", layers(work), "-m"])
            .arg(&work.model)
            .args(["-p", &of(Kind::Prefill), "-n", &of(Kind::Decode)])
            .args(["-d", &list(work.tests.iter().map(|test| test.depth))]);
        let finished = process::run(command, b"", LIMIT).await?;
        let rows: Vec<Row> = serde_json::from_slice(&finished.printed).map_err(|error| {
            Error::Answer { peer: BENCH, what: format!("unexpected JSON: {error}") }
        })?;
        let first = rows.first();
        let first = first.ok_or_else(|| Error::Answer { peer: BENCH, what: "no rows".into() })?;
        let facts = Facts {
            version: format!("llama.cpp b{} ({})", first.build_number, first.build_commit),
            device: first.device(),
            file: facts::file(&finished.models, work),
            weights: first.weights(),
            kv: Some(if first.type_k == first.type_v {
                first.type_k.clone()
            } else {
                format!("{}/{}", first.type_k, first.type_v)
            }),
            threads: Some(first.n_threads),
            batch: Some(first.n_ubatch),
            flash_attention: Some(first.flash_attn),
            warmup: first.no_warmup.map(|without| u32::from(!without)),
            clock: Some("engine".into()),
            ..Facts::default()
        };
        let mut outcome = Outcome {
            facts,
            speeds: rows.iter().filter_map(speed).collect(),
            ..Outcome::default()
        };
        self.batched(work, &mut outcome).await?;
        Ok(outcome)
    }

    /// Measures several sequences at once. If the program is missing, there is no number, and the
    /// version string reports it.
    async fn batched(&self, work: &Workload, outcome: &mut Outcome) -> Result<(), Error> {
        let tests: Vec<&Test> = work.tests.iter().filter(|test| test.batch > 1).collect();
        if tests.is_empty() {
            return Ok(());
        }
        let Ok(program) = self.program(BATCHED) else {
            outcome.facts.version.push_str(&format!(", without {BATCHED}"));
            return Ok(());
        };
        let of = |value: fn(&Test) -> u32| list(tests.iter().map(|test| value(test)));
        let room = tests.iter().map(|test| test.context()).max().unwrap_or(1)
            * tests.iter().map(|test| u64::from(test.batch)).max().unwrap_or(1);
        let mut command = Command::new(program);
        command
            .args(["--output-format", "jsonl", "-fa", "on", "-ngl", layers(work)])
            .args(["-t", &work.threads.to_string(), "-tb", &work.threads.to_string()])
            .args(["-c", &room.next_multiple_of(256).to_string()])
            .args(["-npp", &of(Test::start), "-ntg", &of(|test| test.tokens)])
            .args(["-npl", &of(|test| test.batch), "-m"])
            .arg(&work.model);
        let printed = process::run(command, b"", LIMIT).await?.printed;
        outcome.speeds.extend(several(&printed, &tests));
        Ok(())
    }

    /// Starts a server with the model.
    async fn start(&self, work: &Workload) -> Result<(Process, Server, Outcome), Error> {
        let port = free_port()?;
        let mut command = Command::new(self.program(SERVER)?);
        command
            .args(["--host", "127.0.0.1", "--port", &port.to_string(), "-np", "1", "-fa", "on"])
            // Log level that prints the sizes of buffers.
            .args(["-lv", "4"])
            .args(["-t", &work.threads.to_string(), "-tb", &work.threads.to_string()])
            .args(["-ngl", layers(work), "-c", &work.context().next_multiple_of(256).to_string()])
            .arg("-m")
            .arg(&work.model)
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null());
        let mut process = Process::start(command)?;
        let client = Client::tcp(format!("127.0.0.1:{port}"), None);
        while client.get::<Value>("/health").await.is_err() {
            if let Some(failure) = process.ended() {
                return Err(failure.into());
            }
            if process.started().elapsed() > LOADING {
                return Err(process.answer("it did not become ready").into());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let load = process.started().elapsed().as_secs_f64();
        let log = process.output_lines();
        let built_for = log.iter().find(|line| line.contains("system_info"));
        let facts = Facts {
            version: "llama.cpp".into(),
            built_for: built_for.map(|line| facts::system_info(line)),
            ..Facts::default()
        };
        let outcome =
            Outcome { facts, load: Some(load), memory: memory(&log), ..Outcome::default() };
        let server = Server { client, model: "m".into(), dialect: Dialect::LlamaCpp };
        Ok((process, server, outcome))
    }
}

const fn layers(work: &Workload) -> &'static str {
    if matches!(work.device.as_bytes(), b"cpu") { "0" } else { "99" }
}

/// Name and speed of a row.
fn speed(row: &Row) -> Option<(String, f64)> {
    let (kind, tokens) = match (row.n_prompt, row.n_gen) {
        (0, tokens) => (Kind::Decode, tokens),
        (tokens, 0) => (Kind::Prefill, tokens),
        _ => return None,
    };
    let test = Test { kind, tokens, depth: row.n_depth, batch: 1 };
    Some((test.to_string(), row.avg_ts))
}

/// Name and speed of each test in the output of `llama-batched-bench`.
fn several(printed: &[u8], tests: &[&Test]) -> BTreeMap<String, f64> {
    let lines = printed.split(|&byte| byte == b'\n');
    let rows: Vec<Batched> = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
    let speed = |test: &&Test| {
        let is =
            |row: &&Batched| (row.pp, row.tg, row.pl) == (test.start(), test.tokens, test.batch);
        Some((test.to_string(), rows.iter().find(is)?.speed_tg))
    };
    tests.iter().filter_map(speed).collect()
}

/// Parses the log lines about memory: `CPU model buffer size = 990.11 MiB`, `KV`, `compute`.
fn memory(log: &[String]) -> Memory {
    let mut sums = BTreeMap::new();
    for line in log {
        let Some((what, size)) = line.split_once("buffer size =") else { continue };
        let size = size.trim().strip_suffix("MiB").and_then(|size| size.trim().parse::<f64>().ok());
        let kind =
            ["model", "KV", "compute"].into_iter().find(|kind| what.trim_end().ends_with(kind));
        if let (Some(size), Some(kind)) = (size, kind) {
            *sums.entry(kind).or_insert(0) += (size * 1_048_576.0) as u64;
        }
    }
    let of = |kind| sums.get(kind).copied();
    Memory { weights: of("model"), kv: of("KV"), activations: of("compute"), ..Memory::default() }
}

/// Returns a port that is free now.
fn free_port() -> Result<u16, Error> {
    let bound = std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|l| l.local_addr());
    bound
        .map(|address| address.port())
        .map_err(|source| process::Failure::Start { program: SERVER.into(), source }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_all_versions_are_parsed() {
        let row = |flash: &str| {
            format!(
                r#"{{"build_commit":"abc","build_number":9,"n_ubatch":512,"n_threads":2,"type_k":"f16","type_v":"f16",
                "flash_attn":{flash},"n_prompt":0,"n_gen":128,"n_depth":64,"avg_ts":12.5}}"#
            )
        };
        for (flash, on) in
            [("true", true), ("1", true), ("\"on\"", true), ("0", false), ("-1", false)]
        {
            let row: Row = serde_json::from_str(&row(flash)).unwrap();
            assert_eq!(row.flash_attn, on, "{flash}");
            assert_eq!(speed(&row), Some(("tg128 @ d64".into(), 12.5)));
        }
    }

    #[test]
    fn facts_come_from_the_row() {
        let row = |more: &str| -> Row {
            let all = r#""build_commit":"abc","build_number":9,"n_ubatch":512,"n_threads":2,"type_k":"f16","type_v":"f16",
                "flash_attn":true,"n_prompt":0,"n_gen":1,"avg_ts":1.0"#;
            serde_json::from_str(&format!("{{{all}{more}}}")).unwrap()
        };
        let silent = row("");
        assert_eq!((silent.device(), silent.weights(), silent.no_warmup), (None, None, None));
        let gpu = row(
            r#","backends":"CUDA","n_gpu_layers":99,"model_type":"qwen3 1.7B Q4_K - Medium","no_warmup":true"#,
        );
        assert_eq!(gpu.device().as_deref(), Some("cuda"));
        assert_eq!((gpu.weights().as_deref(), gpu.no_warmup), (Some("Q4_K_M"), Some(true)));
        let cpu = row(r#","backends":"CUDA","n_gpu_layers":0,"model_type":"llama 1B Q6_K""#);
        assert_eq!(
            (cpu.device().as_deref(), cpu.weights().as_deref()),
            (Some("cpu"), Some("Q6_K"))
        );
    }

    #[tokio::test]
    async fn another_file_in_the_timed_run_is_found() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let [model, other] = ["m.gguf", "other.gguf"].map(|name| folder.path().join(name));
        std::fs::write(&model, "GGUF, the model").unwrap();
        std::fs::write(&other, "GGUF, another one").unwrap();
        let script = folder.path().join(BENCH);
        let row = r#"[{"build_commit":"a","build_number":9,"n_ubatch":512,"n_threads":2,"type_k":"f16","type_v":"f16",
            "flash_attn":true,"n_prompt":0,"n_gen":8,"avg_ts":1.0}]"#;
        let peer = LlamaCpp { folder: Some(folder.path().to_owned()) };
        let work = Workload { model: model.clone(), sha256: "of the model".into(), ..work() };
        let mut files = Vec::new();
        for opened in [&model, &other] {
            let opened = opened.display();
            let text = format!("#!/bin/sh\nexec 9<'{opened}'\nsleep 0.3\necho '{row}'\n");
            std::fs::write(&script, text).unwrap();
            std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
            files.push(peer.bench(&work).await.unwrap().facts.file.unwrap());
        }
        assert_eq!(files[0], "of the model");
        assert!(files[1].len() == 64 && files[1] != files[0], "{files:?}");
    }

    fn work() -> Workload {
        Workload {
            model: "m.gguf".into(),
            sha256: String::new(),
            file_type: "Q8_0".into(),
            vocabulary: 100,
            tests: vec![Test { kind: Kind::Decode, tokens: 8, depth: 0, batch: 1 }],
            device: "cpu".into(),
            threads: 2,
            seed: 1,
            prompt: 8,
            stream: 4,
            judged: Vec::new(),
            steps: 1,
        }
    }

    /// Output of `-npp 1,16 -ntg 8 -npl 1,4`, shortened.
    #[test]
    fn batched_speeds_come_from_the_batched_bench() {
        let printed = r#"
            {"n_kv_max": 1024, "pp": 1, "tg": 8, "pl": 1, "speed_tg": 14.5}
            {"n_kv_max": 1024, "pp": 1, "tg": 8, "pl": 4, "speed_tg": 17.5}
            {"n_kv_max": 1024, "pp": 16, "tg": 8, "pl": 4, "speed_tg": 16.5}
        "#;
        let test = |depth| Test { kind: Kind::Decode, tokens: 8, depth, batch: 4 };
        let found = several(printed.as_bytes(), &[&test(0), &test(16), &test(32)]);
        let found: Vec<(&str, f64)> = found.iter().map(|(name, s)| (name.as_str(), *s)).collect();
        assert_eq!(found, [("tg8 x4", 17.5), ("tg8 x4 @ d16", 16.5)]);
    }

    #[tokio::test]
    async fn a_missing_batched_bench_is_reported_in_the_version() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let peer = LlamaCpp { folder: Some(folder.path().to_owned()) };
        let test = Test { kind: Kind::Decode, tokens: 8, depth: 0, batch: 4 };
        let work = Workload { tests: vec![Test { batch: 1, ..test }, test], ..work() };
        let mut outcome = Outcome::default();
        peer.batched(&work, &mut outcome).await.unwrap();
        assert_eq!(outcome.speeds, BTreeMap::new());
        assert_eq!(outcome.facts.version, ", without llama-batched-bench");

        // An installed one is called with these sequences and enough context.
        let program = folder.path().join(BATCHED);
        let script = r#"#!/bin/sh
case "$*" in *"-t 2 -tb 2 -c 256 -npp 1 -ntg 8 -npl 4 -m m.gguf") ;; *) exit 3 ;; esac
echo '{"pp": 1, "tg": 8, "pl": 4, "speed_tg": 17.5}'
"#;
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut outcome = Outcome::default();
        peer.batched(&work, &mut outcome).await.unwrap();
        assert_eq!(outcome.speeds, [("tg8 x4".to_owned(), 17.5)].into());
        assert_eq!(outcome.facts.version, "");
    }

    #[test]
    fn memory_is_parsed_from_the_log() {
        let log = [
            "load_tensors:   CPU_Mapped model buffer size =   10.50 MiB",
            "load_tensors:   CPU_REPACK model buffer size =    1.50 MiB",
            "llama_kv_cache:        CPU KV buffer size =    4.00 MiB",
            "llama_context:        CPU compute buffer size =   2.00 MiB",
        ];
        let memory = memory(&log.map(String::from));
        assert_eq!(memory.weights, Some(12 << 20));
        assert_eq!((memory.kv, memory.activations), (Some(4 << 20), Some(2 << 20)));
    }
}
