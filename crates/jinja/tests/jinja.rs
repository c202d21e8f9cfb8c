//! Templates compared with transformers' environment (`tests/data/templates/expressions.py`), and the limits of a run.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use jinja::{Error, Inputs, Limits, Template, Value};
use serde_json::Value as Json;

static NEVER: AtomicBool = AtomicBool::new(false);
const LIMITS: Limits = Limits { time: Duration::from_secs(60), memory: 64 << 20, output: 1 << 20 };

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

fn render(source: &str, variables: &Json, limits: Limits) -> Result<String, Error> {
    let (source, variables) = (source.to_owned(), variables.clone());
    let run = move || {
        let template = Template::parse(&source)?;
        let pairs = variables.as_object().into_iter().flatten();
        let variables = pairs.map(|(name, item)| (&**name, value(item))).collect();
        let clock = |format: &str| Ok(format.to_owned());
        template.render(Inputs { variables, clock: &clock, limits, cancelled: &NEVER, reserve: 0 })
    };
    let thread = std::thread::Builder::new().stack_size(Template::STACK);
    thread.spawn(run).unwrap().join().unwrap()
}

#[test]
fn templates_render_as_in_transformers() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/templates/expressions.json");
    let data: Json = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut wrong = Vec::new();
    for case in data["cases"].as_array().unwrap() {
        let source = case[0].as_str().unwrap();
        let rendered = render(source, &data["variables"], LIMITS);
        if rendered.as_deref().ok() != case[1].as_str() {
            wrong.push(format!("{source:?}\n  {rendered:?}\n  {}", case[1]));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Values that contain themselves, or that are shared so often that writing them takes for ever.
#[test]
fn hostile_templates_end_with_an_error() {
    let limits = Limits { time: Duration::from_millis(300), ..LIMITS };
    let nested = "{% set ns = namespace(x=[1]) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
    let deep = "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}";
    let forever = "{% for a in range(99999) %}{% for b in range(99999) %}{% set x = b %}{% endfor %}{% endfor %}";
    for source in [
        &format!("{nested}{{{{ ns.x == ns.x + [] }}}}"),
        &format!("{nested}{{{{ ns.x | length }}}}{{{{ ns.x | tojson }}}}"),
        &format!("{nested}{{{{ ns.x ~ '' }}}}"),
        &format!("{nested}{{{{ ns.x | join | length }}}}"),
        &format!("{nested}{{{{ [ns.x, [ns.x, 1]] | min }}}}"),
        &format!("{nested}{{{{ 5 in [ns.x, ns.x] }}}}{{{{ ns.x | string }}}}"),
        deep,
        forever,
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns|string|length }}",
        "{% set a = namespace() %}{% set b = namespace() %}{% set a.x = b %}{% set b.x = a %}{{ a == b }}",
        "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x|join('')|length }}",
        "{% set ns = namespace() %}{% set ns.x = {'a': ns} %}",
        "{% set a = namespace() %}{% set b = namespace(x=a) %}",
        "{% set c = cycler(1) %}{% set ns = namespace() %}{% set ns.x = (c,) %}",
        "{{ 'x' * 10**12 }}",
        "{{ [1] * 10**12 }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{{ 'a'.center(10**15) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
        "{{ ('a' * 1000000).replace('', 'b' * 1000000) }}",
        "{{ ('b' * 1000000).join('a' * 1000000) }}",
        "{{ ('a,' * 10000000).split(',') | length }}",
        "{{ ('a\n' * 1000000) | indent(10000) }}",
        "{{ [1] | batch(10**9, 0) | list | length }}{{ 1 / 0 }}",
        "{% for i in range(100000) %}{{ 'abcdefgh' * 1000 }}{% endfor %}",
        "{% for i in range(100000) %}{{ [i] | tojson(indent=1000) }}{% endfor %}",
        "{{ 10 ** 10 ** 10 }}",
        "{% macro f(n) %}{{ 'x' * 9000000 }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% macro f(n) %}{% for i in 'x' * 90000 %}{{ f(n + 1) }}{% endfor %}{% endmacro %}{{ f(0) }}",
    ] {
        let start = Instant::now();
        let rendered = render(source, &Json::Null, limits);
        assert!(rendered.is_err(), "{source} {rendered:?}");
        assert!(start.elapsed() < Duration::from_secs(20), "{source} {:?}", start.elapsed());
    }
}

#[test]
fn nested_code_returns() {
    for (open, nest, close) in [
        ("", "{% if true %}", ""),
        ("", "{% for i in [1] %}", ""),
        ("{% if a %}", "{%elif b%}", "{% endif %}"),
        ("{{ 1", "+1", " }}"),
        ("{{ 1", "**1", " }}"),
        ("{{ 1", "~1", " }}"),
        ("{{ 1", " or 1", " }}"),
        ("{{ 1", " == 1", " }}"),
        ("{{ 1", "if 1 else 1", " }}"),
        ("{{ ", "not ", "1 }}"),
        ("{{ ", "-", "1 }}"),
        ("{{ ", "(", "1 }}"),
        ("{{ ", "[", "1 }}"),
        ("{{ ", "a.b[", "1 }}"),
        ("{{ a", ".b", " }}"),
        ("{{ a", "|upper", " }}"),
        ("{{ a", " is defined", " }}"),
        ("{% set ", "(", "x = 1 %}"),
        ("{% for ", "(", "x in y %}"),
        ("", "{# #}", ""),
        ("", "{% raw %}", ""),
        ("", "{% macro f() %}", ""),
    ] {
        let source = format!("{open}{}{close}", nest.repeat((256 << 10) / nest.len()));
        let start = Instant::now();
        let _ = render(&source, &Json::Null, LIMITS);
        assert!(start.elapsed() < Duration::from_secs(20), "{nest}");
    }
}

#[test]
fn errors_have_lines() {
    let message = |source| render(source, &Json::Null, LIMITS).unwrap_err().to_string();
    assert_eq!(message("a\n{{ x.y }}"), "line 2: 'x' is undefined");
    assert_eq!(
        message("a\n\n{{ 'a'.swizzle() }}"),
        "line 3: 'str object' has no attribute 'swizzle'"
    );
    assert_eq!(message("{% if %}"), "line 1: expected an expression, got end of statement block");
    let raised = render("a\n{{ raise_exception('no') }}", &Json::Null, LIMITS).unwrap_err();
    assert!(matches!(raised, Error::Raised { line: 2, message } if message == "no"));
}
