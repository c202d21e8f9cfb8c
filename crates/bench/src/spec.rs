//! Specification of a benchmark, its progress events and errors.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A benchmark. Every combination of `depths` and `batches` is measured for every prompt length and
/// every generation length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Spec {
    /// Prompt lengths in tokens; `None` chooses some that fit the budget.
    pub prompts: Option<Vec<u32>>,
    /// Generation lengths in tokens; `None` chooses one that fits the budget.
    pub generate: Option<Vec<u32>>,
    /// Tokens already in each sequence when timing starts.
    pub depths: Vec<u32>,
    /// Numbers of sequences generated at once. Prompts are evaluated one sequence at a time.
    pub batches: Vec<u32>,
    /// Timed repetitions of each test; `None` chooses 3 to 10 by the budget.
    pub repetitions: Option<u32>,
    /// Untimed rounds before the first timed one.
    pub warmup: u32,
    /// Time limit in seconds of all automatic choices.
    pub budget_seconds: f64,
    pub seed: u64,
    /// Measure the memory bandwidth too, which takes a second or two.
    #[serde(skip_serializing_if = "Clone::clone")]
    pub roof: bool,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            prompts: None,
            generate: None,
            depths: vec![0],
            batches: vec![1],
            repetitions: None,
            warmup: 1,
            budget_seconds: 90.0,
            seed: 1,
            roof: true,
        }
    }
}

impl Spec {
    /// Candidate prompt lengths of the automatic choice.
    pub const PROMPTS: [u32; 4] = [32, 128, 256, 512];
    /// Candidate generation lengths of the automatic choice.
    pub const GENERATE: [u32; 3] = [128, 64, 32];
    /// Minimum and maximum of automatic repetitions.
    pub const REPETITIONS: [u32; 2] = [3, 10];
    pub const MAX_REPETITIONS: u32 = 1000;
    pub const MAX_TESTS: usize = 256;

    /// Number of slots that the engine needs.
    pub fn slots(&self) -> u32 {
        self.batches.iter().copied().max().unwrap_or(1).max(1)
    }

    /// Context length that each slot needs.
    pub fn context(&self) -> u32 {
        let longest = |list: Option<&Vec<u32>>, all: &[u32]| {
            list.map_or(all, Vec::as_slice).iter().copied().max().unwrap_or(0)
        };
        let prompt = longest(self.prompts.as_ref(), &Self::PROMPTS);
        let generate = longest(self.generate.as_ref(), &Self::GENERATE);
        let depth = self.depths.iter().copied().max().unwrap_or(0);
        // Generation needs at least one token in the context.
        depth.saturating_add(prompt).max(depth.max(1).saturating_add(generate))
    }

    /// Rejects values that are invalid on any engine.
    pub fn check(&self) -> Result<(), Error> {
        let invalid = |field, reason: String| Err(Error::Invalid { field, reason });
        let zero = |list: &[u32]| list.contains(&0);
        if self.depths.is_empty() || self.batches.is_empty() {
            return invalid("depths, batches", "each needs at least one value".into());
        }
        if zero(&self.batches) {
            return invalid("batches", "a batch has at least 1 sequence".into());
        }
        let most = Self::MAX_REPETITIONS;
        if let Some(asked) = self.repetitions.filter(|r| !(1..=most).contains(r)) {
            return invalid("repetitions", format!("is {asked}, 1 to {most} are allowed"));
        }
        if self.warmup > most {
            return invalid("warmup", format!("is {}, 0 to {most} are allowed", self.warmup));
        }
        if !self.budget_seconds.is_finite() || self.budget_seconds < 0.0 {
            let budget = self.budget_seconds;
            return invalid("budget_seconds", format!("is {budget}, a number from 0 is needed"));
        }
        if let (Some(prompts), Some(generate)) = (&self.prompts, &self.generate) {
            let tests = Test::all(prompts, generate, &self.depths, &self.batches).len();
            if tests == 0 {
                return invalid(
                    "prompts, generate",
                    "nothing to measure: give one length above 0".into(),
                );
            }
        }
        let count = |list: Option<&Vec<u32>>, all: usize| list.map_or(all, Vec::len);
        let tests = (count(self.prompts.as_ref(), Self::PROMPTS.len())
            + count(self.generate.as_ref(), 1))
        .saturating_mul(self.depths.len())
        .saturating_mul(self.batches.len());
        if tests > Self::MAX_TESTS {
            return invalid(
                "prompts, generate, depths, batches",
                format!("{tests} tests, at most {} are allowed", Self::MAX_TESTS),
            );
        }
        Ok(())
    }
}

impl Spec {
    /// Rejects tests that exceed the number of slots or their context length.
    pub fn fits(&self, slots: usize, context: usize) -> Result<(), Error> {
        if self.slots() as usize > slots {
            let (batch, field) = (self.slots(), "batches");
            return Err(Error::TooManySequences { field, batch, slots });
        }
        let too_long = |field, test: &Test| Error::TooLong {
            field,
            test: *test,
            need: test.context(),
            context,
        };
        let does_not = |test: &Test| test.context() > context as u64;
        let prompts = self.prompts.as_deref().unwrap_or_default();
        let generate = self.generate.as_deref().unwrap_or_default();
        if let Some(test) =
            Test::all(prompts, generate, &self.depths, &[1]).iter().find(|t| does_not(t))
        {
            let field = match test.kind {
                _ if test.start() as usize >= context => "depths",
                Kind::Prefill => "prompts",
                Kind::Decode => "generate",
            };
            return Err(too_long(field, test));
        }
        // For automatic lengths, the smallest test at the smallest depth must fit.
        let shortest = |asked: &Option<Vec<u32>>, all: &[u32]| match asked {
            None => all.iter().copied().min().into_iter().collect(),
            Some(asked) => asked.clone(),
        };
        let prompts: Vec<u32> = shortest(&self.prompts, &Self::PROMPTS);
        let generate: Vec<u32> = shortest(&self.generate, &Self::GENERATE);
        let tests = Test::all(&prompts, &generate, &self.depths, &[1]);
        match tests.iter().min_by_key(|test| test.context()) {
            Some(test) if does_not(test) => {
                Err(too_long(if test.depth > 0 { "depths" } else { "prompts" }, test))
            }
            _ => Ok(()),
        }
    }
}

/// Timed phase of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Prompt evaluation (`pp`).
    Prefill,
    /// Greedy generation (`tg`).
    Decode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Test {
    pub kind: Kind,
    /// Timed tokens of each sequence.
    pub tokens: u32,
    /// Tokens already in each sequence.
    pub depth: u32,
    /// Sequences at once; 1 for [`Kind::Prefill`].
    pub batch: u32,
}

impl Test {
    /// Returns every combination, prompts first; lengths of 0 are skipped.
    pub fn all(prompts: &[u32], generate: &[u32], depths: &[u32], batches: &[u32]) -> Vec<Self> {
        let mut tests = Vec::new();
        let mut add = |test: Self| {
            if test.tokens > 0 && !tests.contains(&test) {
                tests.push(test);
            }
        };
        for &depth in depths {
            for &tokens in prompts {
                add(Self { kind: Kind::Prefill, tokens, depth, batch: 1 });
            }
            for &batch in batches {
                for &tokens in generate {
                    add(Self { kind: Kind::Decode, tokens, depth, batch });
                }
            }
        }
        tests
    }

    /// Timed tokens of all sequences.
    pub const fn total_tokens(&self) -> u64 {
        self.tokens as u64 * self.batch as u64
    }

    /// Context length that each sequence needs.
    pub const fn context(&self) -> u64 {
        self.start() as u64 + self.tokens as u64
    }

    /// Tokens in each sequence when timing starts: generation needs at least one.
    pub const fn start(&self) -> u32 {
        match self.kind {
            Kind::Decode if self.depth == 0 => 1,
            Kind::Prefill | Kind::Decode => self.depth,
        }
    }
}

/// Formats a test in llama-bench's notation: `pp512`, `tg128 @ d1024`; several sequences as `tg128
/// x4`.
impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Prefill => "pp",
            Kind::Decode => "tg",
        };
        let mut name = format!("{kind}{}", self.tokens);
        if self.batch > 1 {
            name.push_str(&format!(" x{}", self.batch));
        }
        if self.depth > 0 {
            name.push_str(&format!(" @ d{}", self.depth));
        }
        f.pad(&name)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub enum Progress {
    /// Untimed run that measures the machine's speed.
    Probe,
    Chosen {
        tests: Vec<String>,
        repetitions: u32,
        /// Estimated duration according to the probe.
        estimated_seconds: f64,
    },
    Roof,
    Test {
        test: String,
        /// Number of the repetition, from 1; 0 in a warm-up round.
        repetition: u32,
        repetitions: u32,
        /// Finished tests of all rounds, warm-up included.
        done: u32,
        total: u32,
        /// Median of this test so far, in tokens per second.
        tokens_per_second: Option<f64>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{field}: {reason}")]
    Invalid {
        field: &'static str,
        /// Reason and allowed values.
        reason: String,
    },
    #[error(
        "{field}: {test} needs {need} tokens of context, a slot holds {context}; load the model with a larger context"
    )]
    TooLong { field: &'static str, test: Test, need: u64, context: usize },
    #[error(
        "{field}: {batch} sequences need as many slots, {slots} are loaded; load the model with more slots"
    )]
    TooManySequences { field: &'static str, batch: u32, slots: usize },
    /// The client disconnected or cancelled.
    #[error("cancelled")]
    Cancelled,
    #[error("measuring the memory bandwidth: {0}")]
    Roof(String),
    /// Engine error with all its causes.
    #[error("{0}")]
    Engine(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_have_llama_bench_names() {
        let tests = Test::all(&[512, 0], &[128], &[0, 1024], &[1, 4]);
        let names: Vec<String> = tests.iter().map(ToString::to_string).collect();
        assert_eq!(
            names,
            ["pp512", "tg128", "tg128 x4", "pp512 @ d1024", "tg128 @ d1024", "tg128 x4 @ d1024"]
        );
    }

    #[test]
    fn slots_and_context_fit_the_longest_test() {
        let spec = Spec {
            prompts: Some(vec![16]),
            generate: Some(vec![128]),
            depths: vec![0, 100],
            batches: vec![2, 8],
            ..Spec::default()
        };
        assert_eq!((spec.slots(), spec.context()), (8, 228));
        let longest =
            Test::all(&[16], &[128], &spec.depths, &spec.batches).iter().map(Test::context).max();
        assert_eq!(longest, Some(228));
    }

    #[test]
    fn invalid_fields_are_rejected_by_name() {
        let field = |spec: Spec| match spec.check() {
            Err(Error::Invalid { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        let ok = Spec::default();
        assert_eq!(ok.check(), Ok(()));
        assert_eq!(field(Spec { batches: vec![0], ..ok.clone() }), "batches");
        assert_eq!(field(Spec { repetitions: Some(0), ..ok.clone() }), "repetitions");
        assert_eq!(field(Spec { budget_seconds: f64::NAN, ..ok.clone() }), "budget_seconds");
        assert_eq!(
            field(Spec { prompts: Some(vec![0]), generate: Some(vec![]), ..ok.clone() }),
            "prompts, generate"
        );
        assert_eq!(
            field(Spec { depths: vec![1; 300], ..ok }),
            "prompts, generate, depths, batches"
        );
    }

    #[test]
    fn tests_beyond_the_loaded_model_are_rejected_by_name() {
        let spec = |prompts: &[u32], generate: &[u32], depth| Spec {
            prompts: Some(prompts.to_vec()),
            generate: Some(generate.to_vec()),
            depths: vec![depth],
            ..Spec::default()
        };
        let field = |spec: &Spec| match spec.fits(4, 256) {
            Err(Error::TooLong { field, .. } | Error::TooManySequences { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        assert_eq!(spec(&[256], &[255], 0).fits(4, 256), Ok(()));
        assert_eq!(field(&spec(&[8, 257], &[1], 0)), "prompts");
        assert_eq!(field(&spec(&[8], &[256], 0)), "generate");
        assert_eq!(field(&spec(&[8], &[1], u32::MAX)), "depths");
        assert_eq!(field(&Spec { batches: vec![1, 5], ..spec(&[8], &[1], 0) }), "batches");
        // Automatic tests are chosen to fit, if any can.
        let chosen = |depth| Spec { depths: vec![depth], ..Spec::default() };
        assert_eq!(chosen(224).fits(4, 256), Ok(()));
        assert_eq!(field(&chosen(225)), "depths");
    }

    #[test]
    fn specs_have_json_defaults_and_reject_unknown_fields() {
        let spec: Spec = serde_json::from_str(r#"{"prompts":[8],"repetitions":2}"#).unwrap();
        assert_eq!(spec, Spec { prompts: Some(vec![8]), repetitions: Some(2), ..Spec::default() });
        assert!(serde_json::from_str::<Spec>(r#"{"prompt":[8]}"#).is_err());
    }
}
