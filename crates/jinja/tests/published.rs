//! Published chat templates with conversations, compared with transformers (`tests/data/templates/published.py`).

#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use jinja::{Inputs, Limits, Template, Value};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

static NEVER: AtomicBool = AtomicBool::new(false);

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

fn render(template: &Template, variables: &Json) -> Result<String, jinja::Error> {
    let pairs = variables.as_object().into_iter().flatten();
    let variables = pairs.map(|(name, item)| (&**name, value(item))).collect();
    let limits = Limits { time: Duration::from_secs(60), memory: 64 << 20, output: 1 << 20 };
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

fn compare() {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/templates");
    let packed = std::fs::read(format!("{data}/published.z")).unwrap();
    let sources = miniz_oxide::inflate::decompress_to_vec_zlib(&packed).unwrap();
    let sources: Json = serde_json::from_slice(&sources).unwrap();
    let expected: Json =
        serde_json::from_slice(&std::fs::read(format!("{data}/published.json")).unwrap()).unwrap();
    let conversations = expected["conversations"].as_array().unwrap();
    let (mut wrong, mut rendered) = (Vec::new(), 0);
    for (name, source) in sources.as_object().unwrap() {
        let template = Template::parse(source.as_str().unwrap());
        for (at, conversation) in conversations.iter().enumerate() {
            let text = template
                .as_ref()
                .map_err(ToString::to_string)
                .and_then(|t| render(t, &conversation["variables"]).map_err(|e| e.to_string()));
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

#[test]
fn published_templates_render_as_in_transformers() {
    let thread = std::thread::Builder::new().stack_size(Template::STACK);
    thread.spawn(compare).unwrap().join().unwrap();
}
