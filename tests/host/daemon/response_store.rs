//! Prefixes on disk, through a daemon that is restarted between requests.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use orind_testing::daemon::{Daemon, eventually};
use serde_json::{Value, json};

fn settings(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "slots = 1\ncontext = 1024\nprefill_chunk = 64\nprefix_cache_mib = 64\nprefix_cache_dir = '{dir}'"
    )
}

/// Tokens and log-probabilities of an answer, and the number of cached prompt tokens.
fn ask(daemon: &Daemon) -> (Value, u64) {
    let prompt: Vec<u32> = (0..600).map(|i| 2 + i * i % 211).collect();
    let body =
        json!({"prompt": prompt, "max_tokens": 12, "temperature": 0.8, "seed": 5, "logprobs": 2});
    let answer = daemon.post("/v1/completions", &body).json();
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    let choice = answer["choices"][0].clone();
    (choice, cached.as_u64().unwrap_or_else(|| panic!("{answer}")))
}

fn metric(daemon: &Daemon, name: &str) -> u64 {
    let text = daemon.get("/metrics").body;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name}: {text}")).parse().unwrap()
}

fn restart(daemon: &mut Daemon) {
    daemon.signal(Signal::SIGTERM);
    daemon.restart();
    daemon.until("the model is loaded", |status| status["state"]["name"] == "ready");
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn a_restarted_daemon_reads_its_prefixes_and_recomputes_damaged_ones() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("kept");
    let mut daemon = Daemon::start(&settings(&dir));
    let (expected, cached) = ask(&daemon);
    assert_eq!(cached, 0);
    // Blocks are written in idle time, not only when the daemon stops.
    eventually("blocks are written", || metric(&daemon, "orind_prefix_blocks_written_total") == 4);
    assert_eq!(files(&dir).len(), 4);
    restart(&mut daemon);
    assert_eq!(ask(&daemon), (expected.clone(), 512));
    assert_eq!(metric(&daemon, "orind_prefix_blocks_read_total"), 4);
    assert_eq!(metric(&daemon, "orind_prefix_files_refused_total"), 0);
    // A killed daemon loses none of them.
    daemon.signal(Signal::SIGKILL);
    daemon.restart();
    daemon.until("the model is loaded", |status| status["state"]["name"] == "ready");
    assert_eq!(ask(&daemon), (expected.clone(), 512));
    // One bit of each file, then half of one, then a foreign file.
    let kept = files(&dir);
    let whole: Vec<Vec<u8>> = kept.iter().map(|file| fs::read(file).unwrap()).collect();
    let damages: [fn(&mut Vec<u8>); 3] = [
        |bytes| bytes[4321] ^= 4,
        |bytes| bytes.truncate(bytes.len() / 2),
        |bytes| *bytes = b"another program's".to_vec(),
    ];
    for damage in damages {
        restart(&mut daemon);
        for (file, whole) in kept.iter().zip(&whole) {
            let mut bytes = whole.clone();
            damage(&mut bytes);
            fs::write(file, bytes).unwrap();
        }
        assert_eq!(ask(&daemon), (expected.clone(), 0));
        assert_eq!(metric(&daemon, "orind_prefix_files_refused_total"), 1);
        assert!(daemon.log().contains("a kept prefix is not used"), "{}", daemon.log());
        // Only the first block was read. It is written again; the other files stay damaged.
        eventually("a block is written", || {
            metric(&daemon, "orind_prefix_blocks_written_total") == 1
        });
        assert_eq!(files(&dir), kept);
        assert_eq!(
            kept.iter().zip(&whole).filter(|(f, whole)| fs::read(f).unwrap() == **whole).count(),
            1
        );
    }
}
