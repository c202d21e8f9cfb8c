//! Cost of grammar-constrained decoding: tokens per second with a grammar divided by tokens per second without one, for
//! answers of the same length, one request at a time, in turn.
//!
//!     cargo bench --bench constrained
//!
//! The model is `ORIND_MODEL` on `ORIND_BACKEND` with `ORIND_THREADS`. Every answer has `ORIND_TOKENS` tokens; drafting
//! is off. `ORIND_ROUNDS` rounds are measured after one warm-up round. Prints a table: tokens per second after the
//! first token, by the clock and by the processor time of this process, median of all rounds; and for each grammar the
//! ratio to the unconstrained answer of the same round, as median and middle half. On a machine with other work,
//! processor time with one thread is the better measure.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a bench may panic and reports")]

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use ::engine::{Event, Grammar, Grammars, Handle, LoadSpec, Request, at_most_processors};
use model::gguf::Gguf;
use model::synthetic;
use model::tokenizer::{Tokenizer, Vocabulary};
use orind_testing::engine;
use orind_testing::measured::{number, processor, variable};
use plan::sample::Sampling;
use serde_json::json;

/// Tokens per second after the first token: by the clock and by processor time.
fn tokens_per_second(handle: &Handle, request: Request) -> [f64; 2] {
    let expected = request.max_tokens;
    let mut events = handle.generate(request).unwrap();
    let (mut tokens, mut first) = (0, None);
    loop {
        match events.blocking_recv().unwrap() {
            Event::Token(_) => {
                tokens += 1;
                first.get_or_insert_with(|| (Instant::now(), processor()));
            }
            Event::Finished(finished) => {
                assert_eq!(tokens, expected, "{:?}", finished.reason);
                let (begun, before) = first.unwrap();
                let took = [begun.elapsed().as_secs_f64(), processor() - before];
                return took.map(|took| f64::from(tokens - 1) / took);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The value below which the fraction `part` of all values lies.
fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * part).round() as usize]
}

/// Grammars that do not end within the tokens of an answer.
fn grammars() -> [(&'static str, Grammar); 2] {
    let item = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 24},
            "kind": {"enum": ["sensor", "motor", "camera", "battery"]},
            "count": {"type": "integer", "minimum": 0, "maximum": 1000},
            "ready": {"type": "boolean"},
        },
        "required": ["name", "kind", "count", "ready"],
        "additionalProperties": false,
    });
    let list = json!({"type": "array", "items": item, "minItems": 10_000});
    let call = json!({
        "type": "object",
        "properties": {"name": {"const": "report"}, "arguments": {"type": "object",
            "properties": {"devices": list.clone()}, "required": ["devices"],
            "additionalProperties": false}},
        "required": ["name", "arguments"],
        "additionalProperties": false,
    });
    let lark = "start: \"<tool_call>\\n\" @call \"\\n</tool_call>\"\n".to_owned();
    let parts = vec![("call".to_owned(), Grammar::JsonSchema(call))];
    [("JSON schema", Grammar::JsonSchema(list)), ("tool call", Grammar::Within { lark, parts })]
}

fn main() {
    let path = variable("ORIND_MODEL", "synthetic:llama-3.2-1b:q6_k");
    let file = synthetic::locate(&path, &mut |_, _| {}).unwrap();
    let vocabulary = Vocabulary::from_metadata(Gguf::open(&file).unwrap().metadata()).unwrap();
    let compiler = Grammars::new(Arc::new(Tokenizer::new(vocabulary).unwrap()));
    let constraints = grammars().map(|(name, grammar)| {
        (name, compiler.compile(&grammar, &AtomicBool::new(false)).unwrap())
    });
    let (tokens, rounds) = (number("ORIND_TOKENS", 64), number("ORIND_ROUNDS", 9));
    let handle = engine::start(LoadSpec {
        context: 1024,
        prefill_chunk: 64,
        threads: number("ORIND_THREADS", at_most_processors(0)),
        ..engine::spec(file.to_str().unwrap(), &variable("ORIND_BACKEND", "cpu"))
    });
    println!("{path}, {tokens} tokens, {rounds} rounds");
    println!("| sampling | grammar | by | tok/s free | tok/s constrained | ratio | middle half |");
    println!("| --- | --- | --- | ---: | ---: | ---: | ---: |");
    for (how, temperature) in [("greedy", 0.0), ("sampled", 0.8)] {
        for (name, constraint) in &constraints {
            let mut speeds = Vec::new();
            for round in 0..=rounds {
                let seed = round as u64;
                let sampling =
                    Sampling { temperature, top_k: 40, top_p: 0.95, seed, ..Sampling::GREEDY };
                let request = engine::request((0..16).map(|i| 2 + i + seed as u32), tokens as u32);
                let request = Request { sampling, ..request };
                let bound = Request { constraint: Some(constraint.clone()), ..request.clone() };
                // The order changes from round to round.
                let mut pair = [[0.0; 2]; 2];
                for which in [round % 2, 1 - round % 2] {
                    let request = if which == 0 { request.clone() } else { bound.clone() };
                    pair[which] = tokens_per_second(&handle, request);
                }
                if round > 0 {
                    speeds.push(pair);
                }
            }
            for (at, by) in ["clock", "processor"].into_iter().enumerate() {
                let all = |of: fn([f64; 2]) -> f64| -> Vec<f64> {
                    speeds.iter().map(|[free, bound]| of([free[at], bound[at]])).collect()
                };
                let free = quantile(&mut all(|[free, _]| free), 0.5);
                let bound = quantile(&mut all(|[_, bound]| bound), 0.5);
                let mut ratios = all(|[free, bound]| bound / free);
                let [low, middle, high] = [0.25, 0.5, 0.75].map(|part| quantile(&mut ratios, part));
                println!(
                    "| {how} | {name} | {by} | {free:.1} | {bound:.1} | {middle:.3} | {low:.3} to {high:.3} |"
                );
            }
        }
    }
}
