//! `orinctl compare` with engines that cheat, fail or hang. Such an engine is this build behind a script that changes
//! its output, or a server of the test.
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use model::synthetic::Spec;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use orind_testing::daemon::{eventually, orinctl};
use orind_testing::program::{outcome, said};
use orind_testing::tiny;
use serde_json::Value;
use tempfile::TempDir;

struct Bench(TempDir);

impl Bench {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A small comparison with these engines.
    fn compare(&self, with: &str, more: &[&str]) -> Command {
        let mut command = orinctl(self.0.path());
        let model = tiny("tiny-llama-Q8_0");
        command.args(["compare", "-m", &model, "--with", with, "-p", "8", "-n", "3", "-t", "2"]);
        command.args(["--first-prompt", "8", "--stream", "3"]).args(more);
        if !more.contains(&"--rounds") {
            command.args(["--rounds", "1"]);
        }
        command
    }

    /// This build's `orinctl`, with benches logged in `runs` and their output filtered.
    fn peer(&self, filter: &str) -> String {
        let command = orinctl(self.0.path());
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<String> = words.map(|w| format!("'{}'", w.display())).collect();
        let (words, runs) = (words.join(" "), self.runs());
        let script = format!(
            "#!/bin/sh\ncase \"$1\" in\nbench) echo run >> '{}'; {words} \"$@\" | {filter};;\n*) exec {words} \"$@\";;\nesac\n",
            runs.display()
        );
        let file = self.0.path().join("orinctl-before");
        fs::write(&file, script).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        format!("orind:{}", file.display())
    }

    fn runs(&self) -> PathBuf {
        self.0.path().join("runs")
    }
}

fn json(command: &mut Command) -> Value {
    serde_json::from_str(&said(command)).unwrap()
}

#[test]
fn an_honest_engine_agrees_and_every_row_is_reported() {
    let bench = Bench::new();
    let found = json(&mut bench.compare(&bench.peer("cat"), &["--json"]));
    for entrant in found["entrants"].as_array().unwrap() {
        assert_eq!(entrant["agreement"]["agrees"], true, "{entrant}");
        assert_eq!(entrant["rounds"].as_array().unwrap().len(), 1);
    }
    assert_eq!(found["differences"], Value::Array(vec![]));
    let rows: Vec<&str> =
        found["rows"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    for name in [
        "pp8",
        "tg3",
        "tg3, for the memory",
        "first token after 8",
        "first iteration, prompt",
        "first iteration, step",
        "between tokens",
        "load",
        "cold start",
        "peak memory",
    ] {
        assert!(rows.contains(&name), "{name} in {rows:?}");
    }
    let explained = said(&mut bench.compare("llama.cpp", &["--explain"]));
    for row in rows {
        for part in row.split(", ") {
            let word: String = part.chars().take_while(|c| !c.is_ascii_digit()).collect();
            assert!(explained.contains(&word), "{part} in {explained}");
        }
    }
    // Three tokens are too few for a sustained speed. Memory is reported by part.
    assert!(!found.to_string().contains("sustained"));
    let memory = &found["entrants"][1]["rounds"][0]["memory"];
    for part in ["weights", "kv", "activations", "code"] {
        assert!(memory[part].as_u64().unwrap() > 0, "{part} in {memory}");
    }
    // One round gives no verdict.
    assert_eq!(found["rows"][0]["cells"][1]["against"]["verdict"], "cannot_tell");
}

#[test]
#[ignore = "nightly"]
fn nightly_reference_answers_are_cached_and_a_damaged_file_is_recomputed() {
    use std::os::unix::fs::MetadataExt;
    let bench = Bench::new();
    let peer = bench.peer("cat");
    let cache = bench.0.path().join("cache");
    let compare = || {
        let mut command = bench.compare(&peer, &["--json"]);
        let (code, text, errors) = outcome(command.env("XDG_CACHE_HOME", &cache));
        assert_eq!(code, Some(0), "{errors}");
        let found: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(found["entrants"][1]["agreement"]["agrees"], true, "{found}");
        (found["entrants"][1]["agreement"].clone(), errors)
    };
    let (computed, errors) = compare();
    assert!(!errors.contains("reference"), "{errors}");
    let mut files = fs::read_dir(cache.join("orind/reference")).unwrap();
    let file = files.next().unwrap().unwrap().path();
    assert!(files.next().is_none());
    let (written, text) = (fs::metadata(&file).unwrap().ino(), fs::read_to_string(&file).unwrap());
    assert_eq!(compare().0, computed);
    assert_eq!(fs::metadata(&file).unwrap().ino(), written, "it was read, not written again");
    // With another token in the file, every engine would disagree.
    let at = text.find("\"tokens\":[").unwrap() + "\"tokens\":[".len();
    fs::write(&file, format!("{}1{}", &text[..at], &text[at..])).unwrap();
    let (again, errors) = compare();
    assert_eq!(again, computed);
    for part in [file.to_str().unwrap(), "is damaged", "computing the reference answers again"] {
        assert!(errors.contains(part), "{part} in {errors}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
}

#[test]
fn differing_settings_are_refused_by_name_unless_allowed() {
    let bench = Bench::new();
    let peer = bench.peer(
        r#"sed -e 's/"threads": 2/"threads": 1/' -e 's/"file_type": "Q8_0"/"file_type": "F16"/' -e 's/"warmup": 1/"warmup": 0/'"#,
    );
    let allowing = |names: &str| {
        let allow = ["--no-reference", "--allow", names];
        bench.compare(&peer, if names.is_empty() { &allow[..1] } else { &allow })
    };
    for (allowed, refused) in [("", "threads,warmup,weights"), ("threads,warmup", "weights")] {
        let (code, _, errors) = outcome(&mut allowing(allowed));
        assert_eq!(code, Some(1), "{errors}");
        assert!(errors.contains("not fair"), "{errors}");
        assert!(errors.trim_end().ends_with(&format!("--allow {refused}")), "{errors}");
    }
    let table = said(&mut allowing("threads,warmup,weights"));
    for name in ["threads", "warmup", "weights"] {
        assert!(table.contains(&format!("| {name} ")), "{table}");
    }
}

#[test]
fn a_throttled_round_makes_the_comparison_invalid() {
    let bench = Bench::new();
    let peer = bench.peer(r#"sed 's/"invalid": \[\]/"invalid": ["throttled: gpu-alert"]/'"#);
    let (code, table, errors) = outcome(&mut bench.compare(&peer, &["--no-reference"]));
    assert_eq!(code, Some(3), "{errors}");
    assert!(table.starts_with("INVALID: ") && table.contains("throttled: gpu-alert"), "{table}");
    assert!(table.contains("none: INVALID"), "{table}");
}

#[test]
fn a_missing_or_failing_engine_is_reported_and_the_others_run() {
    let bench = Bench::new();
    let broken = bench.peer("sh -c 'echo no memory here >&2; exit 7'");
    let with = format!("llama.cpp,pytorch,{broken}");
    let folder = bench.0.path().to_str().unwrap().to_owned();
    let more = ["--no-reference", "--llama-cpp", &folder, "--python", "/bin/false"];
    let table = said(&mut bench.compare(&with, &more));
    for part in ["cmake --build", "pip install torch", "no memory here", "status 7", "| orind "] {
        assert!(table.contains(part), "{part} in {table}");
    }
    let (code, _, errors) = outcome(&mut bench.compare("vllm", &[]));
    assert!(code == Some(1) && errors.contains("openai:HOST:PORT"), "{errors}");
}

#[test]
#[ignore = "nightly"]
fn nightly_ctrl_c_keeps_measured_rounds_and_leaves_no_process() {
    let bench = Bench::new();
    let peer = bench.peer("cat");
    let mut command = bench.compare(&peer, &["--no-reference", "--rounds", "1000"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The second bench begins after the first round, which measures bandwidth six times.
    let deadline = Instant::now() + Duration::from_secs(300);
    while fs::read_to_string(bench.runs()).unwrap_or_default().lines().count() < 2 {
        assert!(Instant::now() < deadline, "no round in five minutes");
        thread::sleep(Duration::from_millis(100));
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(130), "{table}");
    assert!(table.starts_with("Interrupted") && table.contains("| pp8, tok/s "), "{table}");
    let home = bench.0.path().to_str().unwrap().to_owned();
    eventually("all processes have ended", || {
        let all = fs::read_dir("/proc").unwrap().flatten();
        let mut ours = all.filter(|process| {
            let environment = fs::read(process.path().join("environ")).unwrap_or_default();
            String::from_utf8_lossy(&environment).contains(&home)
        });
        ours.next().is_none()
    });
}

/// It waits for another process that creates the model. The reference runs at the same point.
#[test]
fn ctrl_c_ends_the_comparison_before_any_engine_runs() {
    let bench = Bench::new();
    let name = "synthetic:tiny-llama:q8_0";
    let cache = bench.0.path().join("cache");
    let folder = cache.join("orind/synthetic");
    fs::create_dir_all(&folder).unwrap();
    let file = Spec::parse(name).unwrap().file_name();
    let lock = fs::File::create(folder.join(format!(".{file}.lock"))).unwrap();
    lock.lock().unwrap();
    let mut command = orinctl(bench.0.path());
    command.env("XDG_CACHE_HOME", &cache).args(["compare", "-m", name, "--with", "llama.cpp"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let status = PathBuf::from(format!("/proc/{}/status", child.id()));
    eventually("it handles SIGINT", || {
        let status = fs::read_to_string(&status).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << (Signal::SIGINT as u32 - 1)) != 0
    });
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn an_html_page_is_written_or_refused_before_anything_runs() {
    let bench = Bench::new();
    let peer = bench.peer("cat");
    let folder = bench.0.path().join("reports");
    let file = folder.join("a page.html");
    let html = ["--no-reference", "--html", file.to_str().unwrap()];
    let (code, _, errors) = outcome(&mut bench.compare(&peer, &html));
    assert_eq!(code, Some(2), "{errors}");
    let named = format!("the folder {} does not exist", folder.display());
    assert!(errors.contains(&named) && !bench.runs().exists(), "{errors}");
    fs::create_dir(&folder).unwrap();
    fs::write(&file, "before").unwrap();
    let table = said(&mut bench.compare(&peer, &html));
    assert!(table.contains("| pp8, tok/s "), "{table}");
    let page = fs::read_to_string(&file).unwrap();
    for part in
        ["<!doctype html>", "tiny-llama-Q8_0", "<th scope=\"row\">pp8, tok/s</th>", "</html>"]
    {
        assert!(page.contains(part), "{part} in {page}");
    }
    for plot in ["every pair", "Tokens per second, tg3", "Between tokens", "Warm-up", "Memory"] {
        assert!(
            page.contains(&format!("{plot}</h3>")) || page.contains(&format!("<h3>{plot}")),
            "{plot}"
        );
    }
    assert!(page.contains("<h3>Roofline</h3>") && !page.contains("<h3>History"), "{page}");
    // No temporary file is left.
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
}

#[test]
fn a_saved_comparison_is_printed_without_measuring() {
    let bench = Bench::new();
    let peer = bench.peer("cat");
    let (records, saved, page) =
        (bench.0.path().join("r.jsonl"), bench.0.path().join("saved"), bench.0.path().join("page"));
    let (model, records_file) = (tiny("tiny-llama-Q8_0"), records.to_str().unwrap());
    let mut save = orinctl(bench.0.path());
    save.args(["bench", "--private", "-m", &model, "--backend", "cpu", "-t", "2", "-p", "0"]);
    said(save.args(["-n", "3", "-r", "1", "--save", "--records", records_file]));
    let more = ["--no-reference", "--json", "--records", records_file];
    let json = said(&mut bench.compare(&peer, &more));
    fs::write(&saved, &json).unwrap();
    let runs = fs::read_to_string(bench.runs()).unwrap();
    let again = |more: &[&str]| {
        let mut command = orinctl(bench.0.path());
        command.args(["compare", "--from", saved.to_str().unwrap()]).args(more);
        command
    };
    assert_eq!(said(&mut again(&["--json"])), json);
    let table = said(&mut again(&["--html", page.to_str().unwrap()]));
    assert!(table.contains("| pp8, tok/s ") && table.contains("| cold start, ms "), "{table}");
    assert!(said(&mut again(&["--markdown"])).contains("#### Measured"));
    assert!(said(&mut again(&["--csv"])).contains("cold start,seconds,orind,"));
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("<h3>History, tg3</h3>"), "{page}");
    assert_eq!(fs::read_to_string(bench.runs()).unwrap(), runs, "nothing was measured");
    fs::write(&saved, &json[..json.len() / 2]).unwrap();
    let (code, _, errors) = outcome(&mut again(&[]));
    assert!(
        code == Some(2) && errors.contains("not the output of `orinctl compare --json`"),
        "{errors}"
    );
}

/// A server that answers every prompt with the same tokens, and claims that the prompt was cached.
fn parrot() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            thread::spawn(move || answer(stream));
        }
    });
    address
}

fn answer(mut stream: TcpStream) {
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    let (mut first, mut length) = (String::new(), 0);
    lines.read_line(&mut first).unwrap();
    loop {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    lines.read_exact(&mut body).unwrap();
    let text = if first.contains("/v1/models") {
        r#"{"data":[{"id":"parrot"}]}"#.to_owned()
    } else {
        let asked: Value = serde_json::from_slice(&body).unwrap();
        let token = r#"data: {"choices":[{"text":"x","finish_reason":null,"logprobs":{"token_ids":[5],"top":[[{"id":5,"logprob":-0.01},{"id":6,"logprob":-5.0}]]}}]}"#;
        let usage = r#"data: {"choices":[],"usage":{"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}}"#;
        let tokens = asked["max_tokens"].as_u64().unwrap() as usize;
        format!("{}\n\n{usage}\n\ndata: [DONE]\n\n", vec![token; tokens].join("\n\n"))
    };
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", text.len());
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(text.as_bytes()));
}

#[test]
fn wrong_answers_never_win_and_a_prompt_cache_is_detected() {
    let bench = Bench::new();
    let peer = format!("openai:{}", parrot());
    let (code, _, errors) = outcome(&mut bench.compare(&peer, &[]));
    assert_eq!(code, Some(1));
    for part in ["cache is", "came from a cache", "clock is http", "--allow cache,clock"] {
        assert!(errors.contains(part), "{part} in {errors}");
    }
    let found = json(&mut bench.compare(&peer, &["--no-fair", "--json"]));
    assert_eq!(found["entrants"][1]["agreement"]["agrees"], false, "{found}");
    let verdicts: Vec<&Value> = found["rows"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|row| row["cells"][1]["against"].get("verdict"))
        .collect();
    assert!(!verdicts.is_empty() && verdicts.iter().all(|v| *v == "disagrees"), "{verdicts:?}");
}
