//! What to measure, what is said on the way, and why it may be refused.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A whole benchmark. Every combination of `depths` and `batches` is measured for every prompt
/// length and every length of generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Spec {
    /// Prompt lengths, in tokens; `None` chooses some that fit the budget.
    pub prompts: Option<Vec<u32>>,
    /// Lengths of generation, in tokens; `None` chooses one that fits the budget.
    pub generate: Option<Vec<u32>>,
    /// Tokens already in each sequence when the clock starts.
    pub depths: Vec<u32>,
    /// Sequences generated at once. Prompts are evaluated one sequence after the other.
    pub batches: Vec<u32>,
    /// Timed repetitions of each test; `None` takes as many as fit the budget, 3 to 10.
    pub repetitions: Option<u32>,
    /// Untimed rounds before the first timed one.
    pub warmup: u32,
    /// Seconds that what is chosen automatically may take together.
    pub budget_seconds: f64,
    pub seed: u64,
    /// Whether the memory roof is measured too, which takes a second or two.
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
    /// Prompt lengths that automatic choice draws from.
    pub const PROMPTS: [u32; 4] = [32, 128, 256, 512];
    /// Lengths of generation that automatic choice draws from.
    pub const GENERATE: [u32; 3] = [128, 64, 32];
    /// Fewest and most repetitions chosen automatically.
    pub const REPETITIONS: [u32; 2] = [3, 10];
    pub const MAX_REPETITIONS: u32 = 1000;
    pub const MAX_TESTS: usize = 256;

    /// Sequences the engine must have room for.
    pub fn slots(&self) -> u32 {
        self.batches.iter().copied().max().unwrap_or(1).max(1)
    }

    /// Tokens each sequence must have room for.
    pub fn context(&self) -> u32 {
        let longest = |list: Option<&Vec<u32>>, all: &[u32]| {
            list.map_or(all, Vec::as_slice).iter().copied().max().unwrap_or(0)
        };
        let prompt = longest(self.prompts.as_ref(), &Self::PROMPTS);
        let generate = longest(self.generate.as_ref(), &Self::GENERATE);
        let depth = self.depths.iter().copied().max().unwrap_or(0);
        // A generation needs something to begin with.
        depth.saturating_add(prompt).max(depth.max(1).saturating_add(generate))
    }

    /// Refuses what makes no sense on any engine.
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
    /// Refuses what a model has no room for that was loaded with so many slots of `context` tokens.
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
        // Of what is chosen, the smallest test at the smallest depth has to fit.
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

/// What one test times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Evaluation of a prompt (`pp`).
    Prefill,
    /// Greedy generation (`tg`).
    Decode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Test {
    pub kind: Kind,
    /// Tokens of each sequence under the clock.
    pub tokens: u32,
    /// Tokens already in each sequence.
    pub depth: u32,
    /// Sequences at once; 1 for [`Kind::Prefill`].
    pub batch: u32,
}

impl Test {
    /// Every combination, prompts first; lengths of 0 are left out.
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

    /// Tokens under the clock, of all sequences.
    pub const fn total_tokens(&self) -> u64 {
        self.tokens as u64 * self.batch as u64
    }

    /// Tokens each sequence must have room for.
    pub const fn context(&self) -> u64 {
        self.start() as u64 + self.tokens as u64
    }

    /// Tokens in each sequence when the clock starts: a generation needs at least one.
    pub const fn start(&self) -> u32 {
        match self.kind {
            Kind::Decode if self.depth == 0 => 1,
            Kind::Prefill | Kind::Decode => self.depth,
        }
    }
}

/// As llama-bench writes it: `pp512`, `tg128 @ d1024`; several sequences as `tg128 x4`.
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
    /// An untimed run to see how fast the machine is.
    Probe,
    Chosen {
        tests: Vec<String>,
        repetitions: u32,
        /// How long it will take, by the probe.
        estimated_seconds: f64,
    },
    Roof,
    Test {
        test: String,
        /// From 1; 0 in a warm-up round.
        repetition: u32,
        repetitions: u32,
        /// Tests finished in all rounds, warm-up included.
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
        /// What is wrong with it, and what is allowed.
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
    /// Whoever asked went away.
    #[error("cancelled")]
    Cancelled,
    #[error("measuring the memory bandwidth: {0}")]
    Roof(String),
    /// The engine failed, as a whole chain of messages.
    #[error("{0}")]
    Engine(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_named_as_llama_bench_names_them() {
        let tests = Test::all(&[512, 0], &[128], &[0, 1024], &[1, 4]);
        let names: Vec<String> = tests.iter().map(ToString::to_string).collect();
        assert_eq!(
            names,
            ["pp512", "tg128", "tg128 x4", "pp512 @ d1024", "tg128 @ d1024", "tg128 x4 @ d1024"]
        );
    }

    #[test]
    fn room_for_the_longest_test() {
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
    fn nonsense_is_refused_by_name() {
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
    fn what_the_loaded_model_has_no_room_for_is_refused_by_name() {
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
        // What is chosen is chosen so that it fits, while something does.
        let chosen = |depth| Spec { depths: vec![depth], ..Spec::default() };
        assert_eq!(chosen(224).fits(4, 256), Ok(()));
        assert_eq!(field(&chosen(225)), "depths");
    }

    #[test]
    fn a_spec_is_json_with_defaults_and_without_strangers() {
        let spec: Spec = serde_json::from_str(r#"{"prompts":[8],"repetitions":2}"#).unwrap();
        assert_eq!(spec, Spec { prompts: Some(vec![8]), repetitions: Some(2), ..Spec::default() });
        assert!(serde_json::from_str::<Spec>(r#"{"prompt":[8]}"#).is_err());
    }
}
