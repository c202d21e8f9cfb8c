//! Escape sequences and line feeds in names, files and answers: none reaches a terminal or the log, and
//! errors show no bytes of files that are not models.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use orind_testing::daemon::{Daemon, orinctl};
use orind_testing::loopback::{Reply, Server};
use orind_testing::nodes::cases;
use orind_testing::tiny;
use serde_json::json;
use tempfile::TempDir;

const MODELS: &str = "/orin/v1/models";

/// Sets a terminal's title, moves its cursor by a C1 code, and begins a line.
const HOSTILE: &str = "\u{1b}]0;x\u{7}\u{9b}2J\n2026 ERROR forged";

/// Everything that a command prints.
fn printed(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap();
    [output.stdout, output.stderr].concat()
}

/// Fails if there is a control character other than line feeds and tabs.
fn assert_harmless(printed: &[u8], what: &str) {
    let text = String::from_utf8_lossy(printed);
    let found = text.chars().find(|c| c.is_control() && *c != '\n' && *c != '\t');
    assert_eq!(found, None, "{what}: {text:?}");
    assert!(!text.lines().any(|line| line.starts_with("2026 ERROR forged")), "{what}: {text}");
}

/// The tiny model with other bytes in place of equally many of the value of a metadata key.
fn with_value(dir: &Path, key: &str, old: &str) -> PathBuf {
    let mut bytes = std::fs::read(tiny("tiny-llama-Q8_0")).unwrap();
    // Length of the key, the key, type, length of the value, the value.
    let find = |bytes: &[u8], what: &[u8], from: usize| {
        from + bytes[from..].windows(what.len()).position(|part| part == what).unwrap()
    };
    let at = find(&bytes, old.as_bytes(), find(&bytes, key.as_bytes(), 0));
    let new: Vec<u8> = HOSTILE.bytes().cycle().take(old.len()).collect();
    // No character is cut in two.
    let new = String::from_utf8_lossy(&new).replace('\u{fffd}', "\u{7}").into_bytes();
    bytes[at..at + old.len()].copy_from_slice(&new[..old.len()]);
    let path = dir.join(format!("{key}.gguf"));
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn strings_of_files_are_printed_escaped() {
    let dir = TempDir::new().unwrap();
    let settings = format!("models_dir = '{}'", dir.path().display());
    let daemon = Daemon::launch(&settings);
    let run = |args: &[&str]| {
        let socket = daemon.socket();
        let mut command = orinctl(dir.path());
        printed(command.args(args).arg("--socket").arg(socket))
    };
    for (key, old) in [
        ("general.architecture", "llama"),
        ("general.name", "tiny llama (random)"),
        ("tokenizer.ggml.model", "gpt2"),
        ("tokenizer.ggml.pre", "llama-bpe"),
        ("llama.block_count", "llama.block_count"),
        ("blk.0.attn_k.weight", "attn_k.weight"),
    ] {
        let path = with_value(dir.path(), key, old);
        let path = path.to_str().unwrap();
        for args in [&["plan", path][..], &["load", path], &["show", path], &["models"]] {
            assert_harmless(&run(args), &format!("{args:?} with {key}"));
        }
        daemon.post(MODELS, &json!({"model": path}));
    }
    assert_harmless(daemon.log().as_bytes(), "the log");

    let case = cases().into_iter().find(|case| case.name == "test_softmax_axis_1").unwrap();
    let network = dir.path().join("n.onnx");
    for old in ["Softmax", "backend-test", "axis"] {
        let at = case.model.windows(old.len()).position(|part| part == old.as_bytes()).unwrap();
        let mut bytes = case.model.clone();
        bytes[at..at + 4].copy_from_slice(b"\x1b]0\x07");
        std::fs::write(&network, bytes).unwrap();
        let network = network.to_str().unwrap();
        for args in [&["run", network][..], &["run", network, "--shape", "x=3,4,5"]] {
            assert_harmless(&run(args), &format!("{args:?} with {old}"));
        }
    }
}

#[test]
fn names_that_clients_choose_are_checked_and_logged_on_one_line() {
    let dir = TempDir::new().unwrap();
    for format in ["text", "json"] {
        let daemon = Daemon::launch(&format!("log_format = '{format}'\nlog = 'debug'"));
        for body in [
            json!({"model": format!("/tmp/{HOSTILE}")}),
            json!({"model": "a", "draft": HOSTILE}),
            json!({"model": "a", "lora": ["b", HOSTILE]}),
            json!({"model": "a", "beside": true, "name": HOSTILE}),
            json!({"model": "a", "beside": true, "name": "a b"}),
            json!({"model": "a", "beside": true, "name": "x".repeat(65)}),
            json!({"model": "a".repeat(4097)}),
        ] {
            let (status, code) = daemon.post(MODELS, &body).error();
            assert_eq!((status, code.as_str()), (400, "invalid_value"), "{body}");
        }
        // Names that are only looked up.
        let body = json!({"model": HOSTILE, "prompt": "a"});
        assert!(daemon.post("/v1/completions", &body).status >= 400);
        assert!(
            daemon.post("/orin/v1/run", &json!({"model": HOSTILE, "inputs": {}})).status >= 400
        );
        assert_harmless(daemon.log().as_bytes(), format);
        for args in [["status", "--json"], ["models", "--json"], ["load", HOSTILE]] {
            let mut command = orinctl(dir.path());
            let shown = printed(command.args(args).arg("--socket").arg(daemon.socket()));
            assert_harmless(&shown, &format!("{args:?}"));
        }
    }
    let mut unknown = orinctl(dir.path());
    assert_harmless(&printed(unknown.arg(HOSTILE)), "an unknown command");
}

/// A daemon that belongs to a stranger: its answers are text from outside as well.
#[test]
fn answers_of_a_daemon_are_printed_escaped_and_bounded() {
    let dir = TempDir::new().unwrap();
    let socket = dir.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let message = serde_json::to_string(HOSTILE).unwrap();
    let error = format!("{{\"error\":{{\"code\":\"x\",\"type\":\"x\",\"message\":{message}}}}}");
    let answers = [
        ("500 Error", error),
        ("500 Error", HOSTILE.to_owned()),
        ("200 OK", "{\"unknown\":".repeat(1 << 20)),
        ("200 OK", "x".repeat(100 << 20)),
    ];
    let served = std::thread::spawn(move || {
        for (status, body) in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
            // The client stops reading at its limit.
            let _ = stream.write_all((head + &body).as_bytes());
        }
    });
    let expected = ["x", "unexpected answer", "unexpected answer", "more than 64 MiB"];
    for expected in expected {
        let mut command = orinctl(dir.path());
        let shown = printed(command.args(["status", "--socket"]).arg(&socket));
        assert_harmless(&shown, expected);
        let shown = String::from_utf8_lossy(&shown);
        assert!(shown.contains(expected) && shown.len() < 2000, "{expected}: {shown}");
    }
    served.join().unwrap();
}

#[test]
fn answers_of_a_hub_are_printed_escaped() {
    let dir = TempDir::new().unwrap();
    let name = serde_json::to_string(&format!("{HOSTILE}.gguf")).unwrap();
    let answers = [
        format!("{{\"siblings\":[{{\"rfilename\":{name}}}]}}"),
        format!("{{\"siblings\":[{{\"rfilename\":\"m.gguf\",\"lfs\":{{\"sha256\":{name}}}}}]}}"),
        format!("{{\"siblings\":{name}}}"),
        format!("{{\"sha\":{name},\"siblings\":[{{\"rfilename\":\"m.gguf\"}}]}}"),
        HOSTILE.to_owned(),
    ];
    for answer in answers {
        let hub = Server::start(move |request| match request.path.starts_with("/api/") {
            true => Reply::new(200).body(answer.as_bytes()),
            false => Reply::new(200).body(HOSTILE.as_bytes()),
        });
        let mut command = orinctl(dir.path());
        command.args(["pull", "o/r", "--dir"]).arg(dir.path()).env("HF_ENDPOINT", hub.url(""));
        let shown = printed(&mut command);
        assert_harmless(&shown, "pull");
        assert!(String::from_utf8_lossy(&shown).contains("error:"));
    }
}

#[test]
fn errors_show_no_bytes_of_other_files() {
    let dir = TempDir::new().unwrap();
    let settings = format!("network_root = '{}'", dir.path().display());
    let daemon = Daemon::launch(&settings);
    let base = "synthetic:tiny-llama:q8_0";
    for secret in
        ["S3cr3t-token", "S3cr", "S3c", "\x53\x7f\x33", "ssh-rsa AAAAB3NzaC1", "{\"key\": 1}"]
    {
        let file = dir.path().join("secret");
        std::fs::write(&file, secret).unwrap();
        let answers = [
            (MODELS, json!({"model": file})),
            (MODELS, json!({"model": base, "lora": [file]})),
            (MODELS, json!({"model": base, "draft": file})),
            ("/orin/v1/run", json!({"model": file, "inputs": {}})),
        ];
        let mut said = String::new();
        for (path, body) in answers {
            let message = daemon.post(path, &body).message();
            said += &message.replace(file.to_str().unwrap(), "");
        }
        said += &daemon.log();
        let first = secret.as_bytes();
        let kinds = [
            secret[..3].to_owned(),
            format!("{}, {}, {}", first[0], first[1], first[2]),
            format!("{:02x}, {:02x}, {:02x}", first[0], first[1], first[2]),
            format!("{:02x}{:02x}{:02x}", first[0], first[1], first[2]),
            "wire type".into(),
            "tag value".into(),
        ];
        for kind in kinds {
            assert!(!said.contains(&kind), "{kind}: {said}");
        }
    }
}
