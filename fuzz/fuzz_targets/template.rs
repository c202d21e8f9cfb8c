//! Fuzzes chat templates: each renders a conversation or fails with an error, within its time and memory.
//!
//! Run with `cargo +nightly fuzz run template -- -rss_limit_mb=512 -timeout=5`. The templates of
//! `tests/data/templates/published.z` are a corpus; `crates/jinja/tests/published.rs` mutates them.

#![no_main]

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use jinja::{Inputs, Limits, Template, Value};
use libfuzzer_sys::fuzz_target;

static NEVER: AtomicBool = AtomicBool::new(false);

fn render(source: &str) {
    let Ok(template) = Template::parse(source) else { return };
    let message = |role: &str, content: &str| {
        Value::dict(vec![("role".into(), role.into()), ("content".into(), content.into())])
    };
    let messages = Value::list(vec![message("user", "a"), message("assistant", "b")]);
    let variables = vec![("messages", messages), ("add_generation_prompt", Value::Bool(true))];
    let limits = Limits { time: Duration::from_secs(1), memory: 32 << 20, output: 1 << 20 };
    let clock = |format: &str| Ok(format.to_owned());
    let inputs = Inputs { variables, clock: &clock, limits, cancelled: &NEVER, reserve: 0 };
    drop(template.render(inputs));
}

fuzz_target!(|data: &[u8]| {
    let source = String::from_utf8_lossy(data).into_owned();
    let thread = std::thread::Builder::new().stack_size(Template::STACK);
    let thread = thread.spawn(move || render(&source)).expect("a thread starts");
    thread.join().expect("the template does not panic");
});
