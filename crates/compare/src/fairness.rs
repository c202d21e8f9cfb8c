//! Differences between engines, and whether they change the verdict. Every line is based on facts
//! that the engines reported; an unreported fact is a line too.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::facts::Facts;
use super::workload::Workload;

/// A difference between engines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// Name for `--allow`: `weights`, `threads`.
    pub name: String,
    pub peer: String,
    /// Value of the peer, and the value that it is compared with.
    pub found: String,
    pub wanted: String,
    /// True if the difference changes the meaning of a verdict.
    pub decides: bool,
}

/// Returns the differences of a peer from the workload, and from the first engine where the
/// workload does not decide.
pub(super) fn differences(
    work: &Workload,
    processor: &BTreeSet<String>,
    first: &Facts,
    peer: &str,
    facts: &Facts,
) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut add = |name: &str, decides, is: String, wanted: String| {
        let (name, peer) = (name.to_owned(), peer.to_owned());
        found.push(Difference { name, peer, found: is, wanted, decides });
    };
    let mut differs = |name: &str, decides, is: Option<String>, wanted: Option<String>| {
        let unreported = || "not reported".to_owned();
        match (is, wanted) {
            (Some(is), Some(wanted)) if is.eq_ignore_ascii_case(&wanted) => {}
            (None, None) => {}
            (Some(is), wanted) => {
                add(name, decides && wanted.is_some(), is, wanted.unwrap_or_else(unreported));
            }
            // An unreported fact may still be as expected.
            (None, Some(wanted)) => add(name, false, unreported(), wanted),
        }
    };
    let short = |hash: &str| hash.chars().take(12).collect::<String>();
    differs("file", true, facts.file.as_deref().map(short), Some(short(&work.sha256)));
    differs("device", true, facts.device.clone(), Some(work.device.clone()));
    differs("weights", true, facts.weights.clone(), Some(work.file_type.clone()));
    differs("activations", true, facts.activations.clone(), first.activations.clone());
    differs("kv", true, facts.kv.clone(), first.kv.clone());
    let text = |value: &dyn ToString| value.to_string();
    if work.device == "cpu" {
        let threads = facts.threads.as_ref().map(|t| text(t));
        differs("threads", true, threads, Some(work.threads.to_string()));
    }
    let warmup = |facts: &Facts| facts.warmup.as_ref().map(|w| text(w));
    differs("warmup", true, warmup(facts), warmup(first));
    differs("clock", true, facts.clock.clone(), first.clock.clone());
    let flash =
        |facts: &Facts| facts.flash_attention.map(|on| if on { "on" } else { "off" }.to_owned());
    differs("flash-attention", true, flash(facts), flash(first));
    let batch = |facts: &Facts| facts.batch.as_ref().map(|b| text(b));
    if batch(first).is_some() {
        differs("batch", false, batch(facts), batch(first));
    }
    if let Some(built) = facts.built_for.as_ref().filter(|_| work.device == "cpu") {
        let lacks: Vec<&str> = processor.difference(built).map(String::as_str).collect();
        if !lacks.is_empty() {
            let names = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(" ");
            let is = format!("{} (without {})", names(built), lacks.join(", "));
            add("built-for", true, is, format!("the processor's {}", names(processor)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn work() -> Workload {
        Workload {
            model: PathBuf::from("m.gguf"),
            sha256: "0123456789abcdef".into(),
            file_type: "Q6_K".into(),
            vocabulary: 1000,
            tests: Vec::new(),
            device: "cpu".into(),
            threads: 2,
            seed: 1,
            prompt: 8,
            stream: 4,
            judged: Vec::new(),
            steps: 1,
        }
    }

    fn fair() -> Facts {
        Facts {
            version: "peer 1".into(),
            device: Some("cpu".into()),
            file: Some("0123456789abcdef".into()),
            weights: Some("q6_k".into()),
            activations: Some("int8 blocks".into()),
            kv: Some("f16".into()),
            threads: Some(2),
            flash_attention: Some(true),
            warmup: Some(1),
            built_for: Some(["AVX2", "AVX512", "AMX_INT8"].map(String::from).into()),
            clock: Some("engine".into()),
            ..Facts::default()
        }
    }

    fn found(facts: &Facts) -> Vec<(String, bool)> {
        let processor = ["AVX2", "AVX512", "AMX_INT8"].map(String::from).into();
        let all = differences(&work(), &processor, &fair(), "peer", facts);
        all.into_iter().map(|d| (d.name, d.decides)).collect()
    }

    #[test]
    fn every_unfairness_is_a_deciding_difference() {
        assert_eq!(found(&fair()), []);
        let decides = |name: &str| vec![(name.to_owned(), true)];
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(found(&Facts { file: text("ffff"), ..fair() }), decides("file"));
        assert_eq!(found(&Facts { weights: text("bfloat16"), ..fair() }), decides("weights"));
        assert_eq!(found(&Facts { activations: text("f32"), ..fair() }), decides("activations"));
        assert_eq!(found(&Facts { kv: text("q8_0"), ..fair() }), decides("kv"));
        assert_eq!(found(&Facts { threads: Some(1), ..fair() }), decides("threads"));
        assert_eq!(found(&Facts { warmup: Some(0), ..fair() }), decides("warmup"));
        assert_eq!(
            found(&Facts { flash_attention: Some(false), ..fair() }),
            decides("flash-attention")
        );
        assert_eq!(found(&Facts { clock: text("http"), ..fair() }), decides("clock"));
        let plain = Some(["AVX2", "AVX512"].map(String::from).into());
        assert_eq!(found(&Facts { built_for: plain, ..fair() }), decides("built-for"));
    }

    #[test]
    fn unreported_facts_do_not_decide() {
        let silent = Facts { version: "server".into(), ..Facts::default() };
        let lines = found(&silent);
        assert!(lines.len() >= 6 && lines.iter().all(|line| !line.1), "{lines:?}");
    }
}
