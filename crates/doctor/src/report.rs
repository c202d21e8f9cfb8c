//! Shareable report: findings, state of the machine, and relevant settings. Only the fields named
//! here are written, and names of this user, host and home directory are removed from their texts.

use regex::{NoExpand, Regex};
use serde::Serialize;
use serde_json::{Value, json};

use super::facts::Facts;
use super::{Finding, Verdict, worst};
use telemetry::State;

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub version: &'static str,
    pub worst: Verdict,
    pub findings: Vec<Finding>,
    pub machine: State,
    /// Settings that change how a model runs, without paths, names and secrets.
    pub settings: Option<Value>,
}

impl Report {
    pub fn new(facts: &Facts, findings: Vec<Finding>) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            worst: worst(&findings),
            findings,
            machine: facts.state.clone(),
            settings: facts.config.as_ref().ok().map(|config| {
                json!({
                    "backend": config.backend,
                    "gpu_mode": config.gpu_mode,
                    "memory_reserve_mib": config.memory_reserve_mib,
                    "threads": config.threads,
                    "slots": config.slots,
                    "context": config.context,
                    "prefill_chunk": config.prefill_chunk,
                    "kv_type": config.kv_type,
                    "prompt_precision": config.prompt_precision,
                    "socket_mode": config.socket_mode.to_string(),
                })
            }),
        }
    }

    /// Returns the report as JSON that can be shared.
    pub fn shareable(&self) -> serde_json::Result<String> {
        let mut value = serde_json::to_value(self)?;
        scrub_all(&mut value, &Private::of_this_process());
        Ok(serde_json::to_string_pretty(&value)? + "\n")
    }
}

/// Scrubs every text in a value; field names are constants and stay.
fn scrub_all(value: &mut Value, private: &Private) {
    match value {
        Value::String(text) => *text = scrub(text, private),
        Value::Array(values) => values.iter_mut().for_each(|value| scrub_all(value, private)),
        Value::Object(fields) => fields.values_mut().for_each(|value| scrub_all(value, private)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

struct Private {
    home: Option<String>,
    user: Option<String>,
    host: Option<String>,
}

impl Private {
    fn of_this_process() -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
        let host = host.map(|name| name.trim().to_owned());
        let variable = |name: &str| std::env::var(name).ok();
        Self { home: variable("HOME"), user: variable("USER"), host }
    }
}

fn scrub(text: &str, private: &Private) -> String {
    let mut text = text.to_owned();
    let mut replace = |pattern: &str, with: &str| {
        if let Ok(pattern) = Regex::new(pattern) {
            text = pattern.replace_all(&text, NoExpand(with)).into_owned();
        }
    };
    // A single letter identifies no person, and neither does root.
    let telling = |word: &&String| word.len() > 1 && *word != "root";
    if let Some(home) = private.home.as_ref().filter(|home| home.len() > 2) {
        replace(&format!("{}[^\\s\",:;)]*", regex::escape(home)), "[home]");
    }
    replace("/(home|Users)/[^\\s\",:;)]+", "[home]");
    if let Some(host) = private.host.as_ref().filter(telling) {
        replace(&format!("(?i)\\b{}\\b", regex::escape(host)), "[host]");
    }
    if let Some(user) = private.user.as_ref().filter(telling) {
        replace(&format!("\\b{}\\b", regex::escape(user)), "[user]");
    }
    replace("(?i)\\b[0-9a-f]{2}(:[0-9a-f]{2}){5}\\b", "[address]");
    // Serial numbers of modules, and labelled secrets.
    replace("\\b[0-9]{13}\\b", "[serial]");
    replace(
        "(?i)(token|password|secret|bearer|api[_-]?key)(\\\\?[\"'`]?\\s*[=: ]\\s*)[^\\s,;]+",
        "[secret]",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_words_are_removed_and_others_stay() {
        let private = Private {
            home: Some("/data/ada".into()),
            user: Some("ada".into()),
            host: Some("orin-lab-7".into()),
        };
        let bob = ["/home", "bob", "y"].join("/");
        let text = format!(
            "model /data/ada/secret plans/x.gguf of ada on orin-lab-7, {bob}, \
             48:b0:2d:aa:bb:cc, 1421722012345, token = \"abc123\", Bearer xyz, \
             3199000000 Hz, tokens of adamant"
        );
        let clean = scrub(&text, &private);
        for word in ["ada/", " ada ", "orin-lab", "bob", "48:b0", "1421722012345", "abc123", "xyz"]
        {
            assert!(!clean.contains(word), "{word} in {clean}");
        }
        for word in ["3199000000 Hz", "tokens of adamant"] {
            assert!(clean.contains(word), "{word} not in {clean}");
        }
    }
}
