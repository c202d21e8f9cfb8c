//! Gain and cost of speculative decoding, by task: decoding with each drafter (prompt lookup, the model's own MTP
//! layer, a draft model) compared with decoding without one, one request at a time, in turn.
//!
//!     cargo bench --bench drafts
//!
//! The model is `ORIND_MODEL` on `ORIND_BACKEND` with `ORIND_THREADS`, the optional draft model `ORIND_DRAFT`. Answers
//! have `ORIND_TOKENS` tokens; `ORIND_ROUNDS` rounds are measured after one warm-up round. Each task is answered
//! greedily and sampled. Prints a table of speed-ups over decoding without drafts in the same round: of the whole
//! answer, the tokens after the first, and the first token, each by the clock and by the processor time of this
//! process, median of all rounds. On a machine with other work, processor time with one thread is the better measure.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a bench may panic and reports")]

use std::time::Instant;

use ::engine::{Event, Finished, Handle, LoadSpec, Request, State, at_most_processors};
use model::gguf::Gguf;
use model::synthetic;
use model::tokenizer::{Specials, Tokenizer, Vocabulary};
use orind_testing::engine;
use orind_testing::measured::{number, processor, variable};
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

struct Answer {
    ids: Vec<u32>,
    /// Seconds up to the first token, after it, and in total: by the clock and by processor time.
    first: [f64; 2],
    rest: [f64; 2],
    whole: [f64; 2],
    finished: Finished,
}

fn generate(handle: &Handle, request: Request) -> Answer {
    let (begun, before) = (Instant::now(), processor());
    let now = || [begun.elapsed().as_secs_f64(), processor() - before];
    let mut events = handle.generate(request).unwrap();
    let (mut ids, mut first) = (Vec::new(), [0.0; 2]);
    loop {
        match events.blocking_recv().unwrap() {
            Event::Token(token) => {
                if ids.is_empty() {
                    first = now();
                }
                ids.push(token.id);
            }
            Event::Finished(finished) => {
                let whole = now();
                let rest = [0, 1].map(|i| whole[i] - first[i]);
                return Answer { ids, first, rest, whole, finished };
            }
            other => panic!("{other:?}"),
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Speed-ups of a drafter in each round, by the clock and by processor time: whole answer, tokens after the first,
/// first token.
#[derive(Clone, Default)]
struct Ratios {
    all: [Vec<f64>; 6],
    drafted: u32,
    accepted: u32,
}

struct Drafter {
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
    let mut drafters = vec![Drafter { name: "lookup", handle: start(7, Some("none")) }];
    let own = start(7, None);
    if matches!(own.snapshot().state, State::Ready(info) if info.draft.is_some()) {
        drafters.push(Drafter { name: "MTP layer", handle: own });
    }
    if let Ok(model) = std::env::var("ORIND_DRAFT") {
        drafters.push(Drafter { name: "draft model", handle: start(7, Some(&model)) });
    }
    println!("{path}, {tokens} tokens, {rounds} rounds");
    println!(
        "| task | | tok/s without | drafter | answer | | tokens | | first token | | drafted | accepted |"
    );
    println!("| --- | --- | ---: | --- |{}", " ---: |".repeat(8));
    for (task, text) in TASKS {
        let prompt = tokenizer.encode(text, Specials::Plain, false).unwrap();
        for (how, temperature) in [("greedy", 0.0), ("sampled", 0.8)] {
            let mut plain = Vec::new();
            let mut ratios = vec![Ratios::default(); drafters.len()];
            for round in 0..=rounds {
                let seed = round as u64;
                let sampling =
                    Sampling { temperature, top_k: 40, top_p: 0.95, seed, ..Sampling::GREEDY };
                // A first token of its own keeps each round's prompt out of the prefix cache.
                let begun = [&[1 + round as u32], &prompt[..]].concat();
                let request = engine::request(begun, tokens as u32);
                let request = Request { sampling, ..request };
                let without = generate(&without, request.clone());
                for (drafter, ratios) in drafters.iter().zip(&mut ratios) {
                    let with = generate(&drafter.handle, request.clone());
                    assert_eq!(with.ids, without.ids, "{task}, {}", drafter.name);
                    let pairs = [
                        (without.whole, with.whole),
                        (without.rest, with.rest),
                        (without.first, with.first),
                    ];
                    let faster = pairs.into_iter().flat_map(|(a, b)| [a[0] / b[0], a[1] / b[1]]);
                    if round > 0 {
                        ratios.all.iter_mut().zip(faster).for_each(|(all, ratio)| all.push(ratio));
                        ratios.drafted += with.finished.drafted_tokens;
                        ratios.accepted += with.finished.accepted_tokens;
                    }
                }
                plain.push((tokens - 1) as f64 / without.rest[0]);
            }
            let plain = median(plain);
            for (drafter, Ratios { all, drafted, accepted }) in drafters.iter().zip(ratios) {
                let ratios = all.map(|all| format!("{:.3}", median(all))).join(" | ");
                let [drafted, accepted] = [drafted, accepted].map(|n| f64::from(n) / rounds as f64);
                println!(
                    "| {task} | {how} | {plain:.1} | {} | {ratios} | {drafted:.1} | {accepted:.1} |",
                    drafter.name
                );
            }
        }
    }
}
