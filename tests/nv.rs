//! The NV driver on the simulated Orin: the same engine as on the CPU, its tokens, its recovery. The
//! simulator answers this process's system calls and executes the kernels' machine code.

#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![cfg(target_os = "linux")]

use std::path::PathBuf;

use orind::engine::{Event, Handle, LoadEvent, LoadSpec, Request, Settings};
use orind::plan::sample::Sampling;
use tegra_sim_preload as _;

fn data(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}

fn start(model: &str, backend: &str) -> Handle {
    let handle = Handle::start(Settings { queue_limit: 64 }).unwrap();
    let mut events = handle.load(LoadSpec {
        model: data(&format!("models/{model}.gguf")).to_string_lossy().into_owned(),
        backend: backend.into(),
        slots: 8,
        context: 128,
        prefill_chunk: 8,
        threads: 1,
    });
    loop {
        match events.blocking_recv().unwrap() {
            LoadEvent::Progress { .. } => {}
            LoadEvent::Loaded(info) => {
                assert_eq!(info.device, backend);
                return handle;
            }
            LoadEvent::Failed(error) => panic!("{model} on {backend}: {error}"),
        }
    }
}

/// Greedy tokens, and by how much each was ahead of the next best.
fn ask(handle: &Handle, prompt: &[u32], max_tokens: u32) -> Vec<(u32, f32)> {
    let mut events = handle
        .generate(Request {
            prompt: prompt.to_vec(),
            max_tokens,
            sampling: Sampling::GREEDY,
            stop: vec![],
            ignore_end: true,
            logprobs: Some(2),
            prompt_logprobs: false,
        })
        .unwrap();
    let mut answer = Vec::new();
    while let Some(event) = events.blocking_recv() {
        match event {
            Event::Token(token) => answer.extend(
                token.logprobs.iter().map(|t| (t.token.id, t.top[0].logprob - t.top[1].logprob)),
            ),
            Event::Failed(error) => panic!("{error}"),
            Event::Prompt(_) | Event::Finished(_) => {}
        }
    }
    answer
}

#[test]
fn tokens_are_the_cpus() {
    for model in ["tiny-llama-Q8_0", "tiny-llama-Q6_K", "tiny-qwen3-Q4_K_M"] {
        let (nv, cpu) = (start(model, "nv"), start(model, "cpu"));
        for prompt in [&[1][..], &[5, 9, 2], &[7; 13]] {
            let (ours, theirs) = (ask(&nv, prompt, 8), ask(&cpu, prompt, 8));
            for (i, (a, b)) in ours.iter().zip(&theirs).enumerate() {
                assert!(a.0 == b.0 || b.1 < 0.1, "{model} {prompt:?} token {i}: {a:?}, {b:?}");
                if a.0 != b.0 {
                    break;
                }
            }
        }
    }
}
