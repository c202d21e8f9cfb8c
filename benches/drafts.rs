//! What drafts gain and cost, by task: decoding with each who guesses (prompt and answer, the model's own nextn layer, a
//! draft model), against decoding without, one request at a time, in turn.
//!
//!     cargo bench --bench drafts
//!
//! The model is `ORIND_MODEL` on `ORIND_BACKEND` with `ORIND_THREADS`, the draft model `ORIND_DRAFT` if any; answers
//! have `ORIND_TOKENS` tokens, `ORIND_ROUNDS` rounds are measured after one that is not. Each task is answered greedily and
//! sampled. Prints a table: the ratios are of tokens a second behind the first to those without drafts in the same
//! round, their median and quartiles, and of the time to the first token.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a bench may panic and reports")]

use std::env;

use model::gguf::Gguf;
use model::synthetic;
use model::tokenizer::{Specials, Tokenizer, Vocabulary};
use orind::engine::{Finished, Handle, LoadSpec, Request, at_most_processors};
use orind_testing::engine;
use plan::sample::Sampling;

const CODE: &str = "Rename `total` to `sum` in this function and give back all of it.\n\n```rust\nfn mean(values: &[f64]) \
-> Option<f64> {\n    let mut total = 0.0;\n    let mut count = 0usize;\n    for value in values {\n        if \
value.is_finite() {\n            total += value;\n            count += 1;\n        }\n    }\n    if count == 0 {\n        \
return None;\n    }\n    Some(total / count as f64)\n}\n\n#[test]\nfn mean_of_three() {\n    assert_eq!(mean(&[1.0, \
2.0, 3.0]), Some(2.0));\n}\n```\n\n```rust\nfn mean(values: &[f64]) -> Option<f64> {\n";
const PROSE: &str = "Tell, in three paragraphs and in plain words, how a lighthouse keeper on a small island spends the \
first day of winter: what the sea looks like, what has to be mended, who comes to visit, and what there is to eat in \
the evening.\n\n";
const JSON: &str = "Give these people as a JSON list with the keys name, town, born and languages.\n\nAnna Berg, Bergen, \
1981, Norwegian and English. Paulo Reis, Porto, 1975, Portuguese and French. Mei Tanaka, Osaka, 1990, Japanese and \
English. Ivan Horvat, Split, 1968, Croatian and Italian.\n\n[{\"name\": \"Anna Berg\", \"town\": \"Bergen\", \"born\": \
1981, \"languages\": [\"Norwegian\", \"English\"]}, {\"name\": ";

const TASKS: [(&str, &str); 3] = [("code edit", CODE), ("prose", PROSE), ("JSON", JSON)];

fn variable(name: &str, default: &str) -> String {
    env::var(name).unwrap_or_else(|_| default.into())
}

fn number(name: &str, default: usize) -> usize {
    variable(name, &default.to_string()).parse().unwrap()
}

/// Tokens a second behind the first, and seconds to that.
fn speeds(finished: &Finished) -> [f64; 2] {
    let decoding = (finished.total - finished.first_token).as_secs_f64();
    let tokens = f64::from(finished.completion_tokens - 1);
    [tokens / decoding, finished.first_token.as_secs_f64()]
}

/// The median and both quartiles.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [2, 1, 3].map(|part| values[part * (values.len() - 1) / 4])
}

struct Guesser {
    name: &'static str,
    handle: Handle,
}

fn main() {
    let path = variable("ORIND_MODEL", "synthetic:qwen35-0.8b:q4_k_m");
    let file = synthetic::locate(&path, &mut |_, _| {}).unwrap();
    let gguf = Gguf::open(&file).unwrap();
    let vocabulary = Vocabulary::from_metadata(gguf.metadata()).unwrap();
    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    let (tokens, rounds) = (number("ORIND_TOKENS", 128), number("ORIND_ROUNDS", 9));
    let start = |draft, draft_model: Option<&str>| {
        let model = file.to_str().unwrap();
        engine::start(LoadSpec {
            draft,
            draft_model: draft_model.map(str::to_owned),
            context: 1024,
            prefill_chunk: 256,
            threads: number("ORIND_THREADS", at_most_processors(0)),
            ..engine::spec(model, &variable("ORIND_BACKEND", "cpu"))
        })
    };
    let without = start(0, None);
    let mut guessers = vec![Guesser { name: "lookup", handle: start(7, Some("none")) }];
    let own = start(7, None);
    if matches!(own.snapshot().state, orind::engine::State::Ready(info) if info.draft.is_some()) {
        guessers.push(Guesser { name: "nextn", handle: own });
    }
    if let Ok(model) = env::var("ORIND_DRAFT") {
        guessers.push(Guesser { name: "draft model", handle: start(7, Some(&model)) });
    }
    println!("{path}, {tokens} tokens, {rounds} rounds");
    println!(
        "| task | | without, tok/s | by | ratio | quartiles | first token | drafted | came true |"
    );
    println!("| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |");
    for (task, text) in TASKS {
        let prompt = tokenizer.encode(text, Specials::Plain, false).unwrap();
        for (how, temperature) in [("greedy", 0.0), ("sampled", 0.8)] {
            let mut plain = Vec::new();
            let mut ratios = vec![(Vec::new(), Vec::new(), 0, 0); guessers.len()];
            for round in 0..=rounds {
                let sampling = Sampling { temperature, top_k: 40, top_p: 0.95, seed: round as u64 };
                // No slot has the beginning of another round's.
                let begun = [&[1 + round as u32], &prompt[..]].concat();
                let request = engine::request(begun, tokens as u32);
                let request = Request { sampling, ..request };
                let ask = |handle: &Handle| {
                    let answer = engine::ask(handle, request.clone());
                    (answer.ids, answer.finished.unwrap())
                };
                let (ids, finished) = ask(&without);
                let [speed, first] = speeds(&finished);
                for (guesser, ratios) in guessers.iter().zip(&mut ratios) {
                    let (same, finished) = ask(&guesser.handle);
                    assert_eq!(same, ids, "{task}, {}", guesser.name);
                    let [with, after] = speeds(&finished);
                    if round > 0 {
                        ratios.0.push(with / speed);
                        ratios.1.push(after / first);
                        ratios.2 += finished.drafted_tokens;
                        ratios.3 += finished.accepted_tokens;
                    }
                }
                if round > 0 {
                    plain.push(speed);
                }
            }
            let [plain, ..] = quartiles(plain);
            for (guesser, (speeds, firsts, drafted, accepted)) in guessers.iter().zip(ratios) {
                let [ratio, low, high] = quartiles(speeds);
                let [first, ..] = quartiles(firsts);
                let (name, drafted, accepted) =
                    (guesser.name, drafted as usize / rounds, accepted as usize / rounds);
                println!(
                    "| {task} | {how} | {plain:.1} | {name} | {ratio:.3} | {low:.3} to {high:.3} | {first:.3} | {drafted} | {accepted} |"
                );
            }
        }
    }
}
