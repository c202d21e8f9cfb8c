//! Time to the first token of a long prompt: evaluated, cached in a slot, and read from disk after a restart of the
//! engine.
//!
//!     cargo bench --bench prefixes
//!
//! The model is `ORIND_MODEL` on `ORIND_BACKEND`, the prompt has `ORIND_TOKENS` tokens (14,000). The prefix store is in
//! `ORIND_DIR`, by default the system's folder for temporary files; its files are in the page cache, unlike after a
//! reboot. Prints one JSON object.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a bench may panic and reports")]

use std::env;
use std::path::Path;
use std::time::{Duration, Instant};

use ::engine::{Handle, LoadSpec, PrefixStore, at_most_processors};
use orind_testing::engine;
use orind_testing::measured::{number, variable};
use serde_json::json;

fn start(context: usize, dir: &Path) -> Handle {
    let model = variable("ORIND_MODEL", "synthetic:llama-3.2-1b:q6_k");
    engine::start(LoadSpec {
        context,
        prefill_chunk: 256,
        threads: at_most_processors(0),
        prefixes: Some(PrefixStore { dir: dir.into(), limit: 1 << 40 }),
        ..engine::spec(model, &variable("ORIND_BACKEND", "cpu"))
    })
}

/// Seconds to the first token, and how many tokens of the prompt were cached.
fn first_token(handle: &Handle, prompt: &[u32]) -> (f64, u32) {
    let request = engine::request(prompt.iter().copied(), 1);
    let finished = engine::ask(handle, request).finished.unwrap();
    (finished.first_token.as_secs_f64(), finished.cached_tokens)
}

fn main() {
    let tokens = number("ORIND_TOKENS", 14_000);
    let base = variable("ORIND_DIR", &env::temp_dir().display().to_string());
    let dir = tempfile::tempdir_in(base).unwrap();
    let prompt: Vec<u32> = (0..tokens as u32).map(|i| 1 + i * i % 997).collect();
    let first = start(tokens + 8, dir.path());
    let (cold, _) = first_token(&first, &prompt);
    let (in_slot, _) = first_token(&first, &prompt);
    let begun = Instant::now();
    first.stop(Duration::from_secs(600));
    let stopping = begun.elapsed();
    let bytes = first.snapshot().prefixes.bytes;
    let again = start(tokens + 8, dir.path());
    let (read, cached) = first_token(&again, &prompt);
    println!(
        "{}",
        json!({
            "tokens": tokens,
            "cold_s": cold,
            "cached_in_slot_s": in_slot,
            "from_disk_s": read,
            "cached_from_disk": cached,
            "bytes_on_disk": bytes,
            "left_to_write_at_stop_s": stopping.as_secs_f64(),
        })
    );
}
