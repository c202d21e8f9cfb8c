//! `orinctl pull` with a hub on the loopback interface, and models named after pulled repositories. `crates/fetch/tests`
//! covers the transfers.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use orind_testing::daemon::{eventually, orinctl};
use orind_testing::loopback::{Reply, Server};
use orind_testing::program::{built, outcome, said, stderr};
use orind_testing::tiny;
use regex::bytes::Regex;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

const NAME: &str = "hf.co/owner/repo:Q8_0";

fn model() -> Vec<u8> {
    fs::read(tiny("tiny-llama-Q8_0")).unwrap()
}

fn sum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A hub with one repository, which contains the model.
fn hub() -> Server {
    let bytes = model();
    Server::start(move |request| match request.path.strip_prefix("/api/models/owner/repo/") {
        Some(_) => {
            let (size, sum) = (bytes.len(), sum(&bytes));
            let files = format!(
                "{{\"siblings\":[{{\"rfilename\":\"tiny-Q8_0.gguf\",\"size\":{size},\"lfs\":{{\"sha256\":\"{sum}\"}}}}]}}"
            );
            Reply::new(200).body(files.as_bytes())
        }
        None if request.path == "/owner/repo/resolve/main/tiny-Q8_0.gguf" => {
            Reply::file(request, &bytes, "\"tag\"")
        }
        None => Reply::new(404).body(b""),
    })
}

struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn orinctl(&self, hub: &Server, args: &[&str]) -> Command {
        let mut command = orinctl(self.0.path());
        command.args(args).env("XDG_CACHE_HOME", self.0.path()).env("HF_ENDPOINT", hub.url(""));
        command.env_remove("HF_TOKEN");
        command
    }

    fn place(&self) -> PathBuf {
        self.0.path().join("orind/models/hf.co/owner/repo/tiny-Q8_0.gguf")
    }
}

#[test]
fn a_pulled_model_runs_by_its_name() {
    let (home, hub) = (Home::new(), hub());
    let (code, _, err) = outcome(&mut home.orinctl(&hub, &["plan", NAME]));
    assert_eq!(code, Some(1));
    assert!(err.contains("is not downloaded") && err.contains("orinctl pull hf.co/owner"), "{err}");

    let (code, out, err) = outcome(&mut home.orinctl(&hub, &["pull", "owner/repo:q8_0"]));
    assert_eq!((code, out), (Some(0), format!("{}\n", home.place().display())), "{err}");
    assert!(err.contains("SHA-256 verified"), "{err}");
    assert!(err.contains("run it: orinctl chat -m hf.co/owner/repo:q8_0"), "{err}");
    assert_eq!(fs::read(home.place()).unwrap(), model());

    // A second pull lists the repository and downloads nothing.
    let asked = hub.requests().len();
    let json: Value =
        serde_json::from_str(&said(&mut home.orinctl(&hub, &["pull", NAME, "--json"]))).unwrap();
    assert_eq!(hub.requests().len(), asked + 1);
    assert_eq!(json["path"], home.place().to_str().unwrap());
    assert_eq!(json["run"], format!("orinctl chat -m {NAME}"));
    assert_eq!(json["files"][0]["received"], 0);
    assert_eq!(json["files"][0]["bytes"], model().len());
    assert_eq!(json["files"][0]["sha256"], sum(&model()));

    // The list has its name, with which every command finds it.
    let listed = said(&mut home.orinctl(&hub, &["models"]));
    let name = "hf.co/owner/repo/tiny-Q8_0.gguf";
    assert!(listed.lines().any(|line| line.trim_start().starts_with(name)), "{listed}");
    for name in [name, "hf.co/owner/repo", NAME] {
        assert!(said(&mut home.orinctl(&hub, &["show", name])).contains("llama"), "{name}");
    }
    let plan = said(&mut home.orinctl(&hub, &["plan", "hf.co/owner/repo"]));
    assert!(plan.contains("decode of one token"), "{plan}");
    let generate = ["generate", "-m", NAME, "--backend", "cpu", "-n", "4", "hello"];
    let named = said(&mut home.orinctl(&hub, &generate));
    let path = home.place();
    let generate = generate.map(|word| if word == NAME { path.to_str().unwrap() } else { word });
    assert_eq!(named, said(&mut home.orinctl(&hub, &generate)));
    assert_eq!(hub.requests().len(), asked + 1, "only `pull` asks the network");
}

#[test]
fn the_daemon_s_program_has_no_network_client() {
    let hub = Regex::new("https://huggingface\\.co").unwrap();
    let has = |program: &str| hub.is_match(&fs::read(built().join(program)).unwrap());
    assert!(has("orinctl") && !has("orind"));
}

#[test]
fn a_url_is_pulled_into_a_folder_and_verified() {
    let (home, hub) = (Home::new(), hub());
    let url = hub.url("/owner/repo/resolve/main/tiny-Q8_0.gguf");
    let folder = home.0.path().join("models");
    let pull = ["pull", &url, "--dir", folder.to_str().unwrap(), "--sha256"];
    let wrong = sum(b"");
    let (code, out, err) = outcome(home.orinctl(&hub, &pull).arg(&wrong));
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(err.contains(&wrong) && err.contains("discarded"), "{err}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    let out = said(home.orinctl(&hub, &pull).arg(sum(&model()).to_uppercase()));
    assert_eq!(out, format!("{}\n", folder.join("tiny-Q8_0.gguf").display()));
    let (code, _, err) = outcome(home.orinctl(&hub, &pull).arg("12"));
    assert_eq!(code, Some(2));
    assert!(err.contains("64 hexadecimal digits"), "{err}");
}

#[test]
fn failed_pulls_are_reported_by_name() {
    let (home, hub) = (Home::new(), hub());
    for (name, expected) in [
        ("owner/other", "does not exist (404)"),
        ("owner/repo:Q2_K", "has no Q2_K; it has tiny-Q8_0"),
        ("model.gguf", "is neither a URL nor OWNER/REPO"),
        ("owner/repo/../../x.gguf", "starts with a dot"),
        ("synthetic:tiny-llama:q8_0", "is neither a URL nor OWNER/REPO"),
    ] {
        let (code, out, err) = outcome(&mut home.orinctl(&hub, &["pull", name]));
        assert_eq!((code, out.as_str()), (Some(1), ""), "{name}");
        assert!(err.contains(expected), "{name}: {err}");
    }
    assert!(!home.0.path().join("orind").exists());
}

#[test]
fn the_next_pull_resumes_an_interrupted_one() {
    let bytes = model();
    let half = bytes.len() / 2;
    let served = bytes.clone();
    let (release, wait) = channel::<()>();
    let mut turn = 0;
    let server = Server::start(move |request| {
        turn += 1;
        // In the second turn it is silent until the client disconnects.
        if turn == 2 {
            let _ = wait.recv();
        }
        let missing = if turn == 1 { served.len() - half } else { 0 };
        Reply::file(request, &served, "\"tag\"").cut(missing)
    });
    let home = Home::new();
    let url = server.url("/m.gguf");
    let mut pull = home.orinctl(&server, &["pull", &url]);
    let pull = pull.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("it asks for the rest", || server.requests().len() == 2);
    kill(Pid::from_raw(pull.id() as i32), Signal::SIGINT).unwrap();
    let output = pull.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    release.send(()).unwrap();
    let json: Value =
        serde_json::from_str(&said(&mut home.orinctl(&server, &["pull", &url, "--json"]))).unwrap();
    assert_eq!(json["files"][0]["received"], bytes.len() - half);
    let range = format!("bytes={half}-");
    assert_eq!(server.requests()[2].header("Range"), Some(range.as_str()));
    assert_eq!(fs::read(json["path"].as_str().unwrap()).unwrap(), bytes);
}

#[test]
fn a_pulled_model_is_deleted_by_its_name_and_nothing_else_is() {
    let (hub, home) = (hub(), Home::new());
    let path = said(&mut home.orinctl(&hub, &["pull", NAME]));
    let path = PathBuf::from(path.trim_end());
    let other = home.0.path().join("other.gguf");
    fs::copy(&path, &other).unwrap();
    let (code, _, error) = outcome(&mut home.orinctl(&hub, &["rm", other.to_str().unwrap()]));
    assert_eq!(code, Some(1));
    assert!(error.contains("was not downloaded by `orinctl pull`") && other.exists(), "{error}");
    let out = said(&mut home.orinctl(&hub, &["rm", NAME]));
    assert!(out.starts_with(&format!("{NAME} deleted, 1.9 MiB")), "{out}");
    assert!(!path.exists());
    let (_, _, error) = outcome(&mut home.orinctl(&hub, &["rm", NAME]));
    assert!(error.contains("is not downloaded"), "{error}");
}
