//! Published chat templates with conversations, compared with transformers (`tests/data/templates/published.py`).

#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use jinja::{Inputs, Limits, Template, Value};
use orind_testing::random::Random;
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

static NEVER: AtomicBool = AtomicBool::new(false);

/// Time that no published template needs.
const PATIENCE: Duration = Duration::from_secs(60);

fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::None,
        Json::Bool(on) => Value::Bool(*on),
        Json::Number(number) => match number.as_i64() {
            Some(number) => Value::Int(number.into()),
            None => Value::Float(number.as_f64().unwrap()),
        },
        Json::String(text) => Value::from(&**text),
        Json::Array(items) => Value::list(items.iter().map(value).collect()),
        Json::Object(map) => {
            Value::dict(map.iter().map(|(key, item)| (Value::from(&**key), value(item))).collect())
        }
    }
}

fn render(template: &Template, variables: &Json, time: Duration) -> Result<String, jinja::Error> {
    let pairs = variables.as_object().into_iter().flatten();
    let variables = pairs.map(|(name, item)| (&**name, value(item))).collect();
    let limits = Limits { time, memory: 64 << 20, output: 1 << 20 };
    let clock = |format: &str| Ok(format.to_owned());
    template.render(Inputs { variables, clock: &clock, limits, cancelled: &NEVER, reserve: 0 })
}

/// Templates with tools whose output differs, with the reason.
const DIFFERENT: [(&str, &str); 2] = [
    ("llama-cpp-deepseek-r1", "transformers fails: json.dumps of the generator that `map` returns"),
    (
        "meetkai-functionary-medium-v3.1",
        "transformers escapes texts that are added to a `safe` one",
    ),
];

/// Sources of the templates by name, and conversations with the hashes of their prompts.
fn published() -> (Json, Json) {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/templates");
    let packed = std::fs::read(format!("{data}/published.z")).unwrap();
    let sources = miniz_oxide::inflate::decompress_to_vec_zlib(&packed).unwrap();
    let expected = std::fs::read(format!("{data}/published.json")).unwrap();
    (serde_json::from_slice(&sources).unwrap(), serde_json::from_slice(&expected).unwrap())
}

fn compare() {
    let (sources, expected) = published();
    let conversations = expected["conversations"].as_array().unwrap();
    let (mut wrong, mut rendered) = (Vec::new(), 0);
    for (name, source) in sources.as_object().unwrap() {
        let template = Template::parse(source.as_str().unwrap());
        for (at, conversation) in conversations.iter().enumerate() {
            let text = template.as_ref().map_err(ToString::to_string).and_then(|t| {
                render(t, &conversation["variables"], PATIENCE).map_err(|e| e.to_string())
            });
            let digest = text.as_ref().ok().map(|text| {
                let hash = Sha256::digest(text.as_bytes());
                hash.iter().take(6).map(|byte| format!("{byte:02x}")).collect::<String>()
            });
            rendered += usize::from(digest.is_some());
            let title = conversation["name"].as_str().unwrap();
            let has_tools = conversation["variables"]["tools"].is_array();
            let listed = has_tools && DIFFERENT.iter().any(|(known, _)| *known == name);
            let equal = digest.as_deref() == expected["outputs"][name][at].as_str();
            if equal == listed {
                wrong.push(format!("{name}, {title}: {text:?}"));
            }
        }
    }
    assert!(rendered > 1000, "{rendered}");
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Parts of a template between which it can be cut: delimiters, words, single characters.
fn parts(source: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let delimiter =
            ["{{", "}}", "{%", "%}", "{#", "#}"].into_iter().find(|d| rest.starts_with(d));
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let length = match delimiter {
            Some(delimiter) => delimiter.len(),
            None if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            None => first.len_utf8(),
        };
        let (part, after) = rest.split_at(length);
        parts.push(part);
        rest = after;
    }
    parts
}

/// Applies a few changes to a template: removes, repeats, moves and replaces some of its parts.
fn mutated(source: &str, random: &mut Random) -> String {
    const OTHERS: [&str; 16] = [
        "{%",
        "%}",
        "{{",
        "}}",
        "(",
        ")",
        "[",
        "99999999999",
        "-1",
        "0",
        "'",
        "loop",
        "messages",
        "range",
        "* 10 **",
        "namespace",
    ];
    let mut parts = parts(source);
    for _ in 0..1 + random.below(4) {
        let begin = random.below(parts.len().max(1));
        let end = (begin + 1 + random.below(40)).min(parts.len());
        if begin >= end {
            break;
        }
        let range = parts[begin..end].to_vec();
        match random.below(5) {
            0 => drop(parts.drain(begin..end)),
            1 => drop(parts.splice(begin..begin, range)),
            2 => {
                parts.drain(begin..end);
                let to = random.below(parts.len() + 1);
                parts.splice(to..to, range);
            }
            3 => parts[begin] = random.pick(&OTHERS),
            _ => {
                let other = parts[random.below(parts.len())];
                parts[begin] = other;
            }
        }
    }
    parts.concat()
}

/// Mutated templates render, or fail with an error, within their time.
fn mutate(count: usize) {
    const TIME: Duration = Duration::from_millis(300);
    let (sources, expected) = published();
    let sources: Vec<&str> =
        sources.as_object().unwrap().values().map(|source| source.as_str().unwrap()).collect();
    let conversations = expected["conversations"].as_array().unwrap();
    let mut random = Random(48);
    let (mut parsed, mut rendered) = (0, 0);
    for _ in 0..count {
        let source = random.pick(&sources);
        let source = mutated(source, &mut random);
        let Ok(template) = Template::parse(&source) else { continue };
        parsed += 1;
        let conversation = &conversations[random.below(conversations.len())];
        let begin = Instant::now();
        rendered += usize::from(render(&template, &conversation["variables"], TIME).is_ok());
        // The time is the processor's; this machine may be busy.
        assert!(begin.elapsed() < 20 * TIME, "{:?}: {source}", begin.elapsed());
    }
    assert!(parsed > count / 10 && rendered > count / 40, "{parsed}, {rendered} of {count}");
}

fn with_stack(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(Template::STACK);
    thread.spawn(test).unwrap().join().unwrap();
}

#[test]
fn published_templates_render_as_in_transformers() {
    with_stack(compare);
}

#[test]
fn mutated_templates_end_in_time() {
    with_stack(|| mutate(400));
}

#[test]
#[ignore = "nightly"]
fn nightly_mutated_templates_end_in_time() {
    with_stack(|| mutate(10_000));
}
