//! Speculative decoding of a sequence: selects the source and length of each draft, from the success of earlier ones.
//!
//! Prompt lookup is tried first, since it costs nothing; then a draft model or nextn layer. The served model verifies a
//! draft in one step and samples the same tokens as without it: a draft changes the speed of an answer, never its text.
//! A source that costs more time than it gains accumulates a debt, in steps of the served model. It is paused until its
//! debt is below 1 % of the tokens decoded since.

use std::time::Duration;

use super::prompt_lookup;

/// Share of decode time that unsuccessful drafts may cost.
const SHARE: f64 = 0.01;
/// Initial credit of a source, in steps.
const FIRST: f64 = 2.0;
/// Largest credit that gains can accumulate, in steps.
const MAX_CREDIT: f64 = 8.0;
/// Largest debt in steps: drafts are not responsible for a machine that was suspended.
const MAX_DEBT: f64 = 500.0;
/// Assumed cost of a draft of unknown duration, in steps.
const UNKNOWN: f64 = 0.5;
/// Debt in steps of a source that stays paused for long.
const LONG: f64 = 0.3;
/// Weight of a step relative to the next one of its kind.
const DECAY: f64 = 0.8;

/// Draft to verify with the newest token.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Draft {
    Nothing,
    /// Tokens from prompt lookup.
    Lookup(Vec<u32>),
    /// Up to this many tokens of the draft model or nextn layer.
    Model(usize),
}

/// Recent speed of decoding.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    seconds: f64,
    tokens: f64,
}

impl Pace {
    /// Adds a step that yielded tokens. Its duration is unknown if other sequences were active.
    fn add(&mut self, tokens: usize, took: Option<Duration>) {
        if let Some(took) = took {
            self.seconds = DECAY * self.seconds + took.as_secs_f64();
            self.tokens = DECAY * self.tokens + tokens as f64;
        }
    }

    /// Seconds per token, if known.
    fn token(&self) -> Option<f64> {
        (self.tokens > 0.0).then(|| self.seconds / self.tokens)
    }

    /// True if it is known to be faster than another.
    fn outruns(&self, other: &Self) -> bool {
        let pair = self.token().zip(other.token());
        pair.is_some_and(|(own, other)| own < other)
    }
}

/// State of one source of drafts.
#[derive(Clone, Copy, Debug)]
struct Source {
    /// Longest draft; 0 disables the source.
    most: usize,
    /// Longest next draft.
    depth: usize,
    /// Debt: steps that its drafts cost beyond what they gained. Negative for a credit.
    debt: f64,
    /// True if a draft has been prepared at its cost but not made yet.
    ready: bool,
    /// True if a token of the latest draft was accepted.
    gains: bool,
    /// Speed of decoding with its drafts.
    pace: Pace,
}

impl Source {
    fn new(most: usize) -> Self {
        let (depth, pace) = (most.min(2), Pace::default());
        Self { most, depth, debt: -FIRST, ready: false, gains: false, pace }
    }

    fn is_active(&self, without: &Pace) -> bool {
        let faster = self.gains && self.pace.outruns(without);
        self.most > 0 && (self.debt <= 0.0 || self.ready || faster)
    }

    /// Accounts for a verified draft.
    fn verified(
        &mut self,
        drafted: usize,
        accepted: usize,
        took: Option<Duration>,
        without: &Pace,
    ) {
        let before = self.debt;
        self.depth = if accepted == drafted { 2 * self.depth } else { accepted + 1 }.min(self.most);
        (self.ready, self.gains) = (false, accepted > 0);
        self.pace.add(accepted + 1, took);
        self.cost(accepted + 1, took, without);
        if accepted == 0 {
            self.debt = self.debt.max(before + UNKNOWN);
        }
    }

    /// Adds the cost of a step that yielded tokens to the debt.
    fn cost(&mut self, tokens: usize, took: Option<Duration>, without: &Pace) {
        let steps = took.zip(without.token()).map(|(took, token)| took.as_secs_f64() / token);
        let lost = steps.unwrap_or(UNKNOWN + 1.0) - tokens as f64;
        // A draft without accepted tokens gains nothing; ignore timing noise.
        let lost = if tokens == 1 { lost.max(0.0) } else { lost };
        self.debt = (self.debt + lost).clamp(-MAX_CREDIT, MAX_DEBT);
    }
}

#[derive(Debug)]
pub(super) struct Drafts {
    lookup: Source,
    model: Source,
    /// Speed of decoding without drafts.
    without: Pace,
    /// True if the latest draft is the model's and not prompt lookup's.
    by_model: bool,
    /// True if the model was run for the step in flight.
    model_ran: bool,
    /// Share of a prompt's time that the nextn layer takes; 0 without one.
    nextn_share: f64,
    /// True if the nextn layer skipped the prompt, so that it cannot draft.
    prompt_skipped: bool,
    /// Number of draft tokens so far.
    pub(super) drafted: u32,
    /// Number of accepted draft tokens so far.
    pub(super) accepted: u32,
}

impl Drafts {
    /// Drafts of at most `most` tokens, from prompt lookup and, if there is one, a draft model.
    pub(super) fn new(most: usize, has_model: bool) -> Self {
        let model = Source::new(if has_model { most } else { 0 });
        let (lookup, without) = (Source::new(most), Pace::default());
        let (by_model, model_ran, prompt_skipped) = (false, false, false);
        let (nextn_share, drafted, accepted) = (0.0, 0, 0);
        Self {
            lookup,
            model,
            without,
            by_model,
            model_ran,
            nextn_share,
            prompt_skipped,
            drafted,
            accepted,
        }
    }

    /// Declares that the draft model is a nextn layer that takes a share of a prompt's time; 0 if it is not.
    pub(super) const fn with_nextn(self, nextn_share: f64) -> Self {
        Self { nextn_share, ..self }
    }

    /// State for the next answer of the same model. Costs are preserved; the success of prompt lookup is not.
    pub(super) fn next_answer(&self) -> Self {
        let lookup = Source { debt: self.lookup.debt, ..Source::new(self.lookup.most) };
        let (model, without) = (Source { ready: false, ..self.model }, self.without);
        Self { lookup, model, without, nextn_share: self.nextn_share, ..Self::new(0, false) }
    }

    /// Disables the draft model.
    pub(super) const fn disable_model(&mut self) {
        self.model.most = 0;
    }

    /// Longest draft.
    pub(super) const fn most(&self) -> usize {
        self.lookup.most
    }

    /// True if there is a draft behind these tokens.
    pub(super) fn can_draft(&self, tokens: &[u32]) -> bool {
        let lookup = self.lookup.is_active(&self.without);
        self.model_drafts() || lookup && prompt_lookup::find(tokens).is_some()
    }

    /// True if the model drafts. Its cost is comparable only once the speed without drafts is known.
    fn model_drafts(&self) -> bool {
        !self.prompt_skipped
            && self.without.token().is_some()
            && self.model.is_active(&self.without)
    }

    /// Decides whether the prompt is evaluated without the nextn layer, because it is paused.
    pub(super) fn prompt_skips_nextn(&mut self) -> bool {
        self.prompt_skipped = self.nextn_share > 0.0 && self.is_paused();
        self.prompt_skipped
    }

    /// Accounts for a chunk of the prompt. A nextn layer that has evaluated it then drafts, regardless of its debt.
    pub(super) fn prompt_evaluated(&mut self, took: Option<Duration>) {
        let steps = took.zip(self.without.token()).map(|(took, token)| took.as_secs_f64() / token);
        if let Some(steps) = steps.filter(|_| self.nextn_share > 0.0 && !self.prompt_skipped) {
            self.model.debt = (self.model.debt + self.nextn_share * steps).min(MAX_DEBT);
            self.model.ready = true;
        }
    }

    /// True if the model is paused for so long that steps need not compute what its drafts start from.
    pub(super) fn is_paused(&self) -> bool {
        self.prompt_skipped || self.model.debt > LONG && !self.model_drafts()
    }

    /// Selects a draft of at most `room` tokens that follow `tokens`.
    pub(super) fn next(&mut self, tokens: &[u32], room: usize) -> Draft {
        self.model_ran = false;
        if self.lookup.is_active(&self.without) {
            let draft = prompt_lookup::draft(tokens, self.lookup.depth.min(room));
            if !draft.is_empty() {
                self.by_model = false;
                return Draft::Lookup(draft);
            }
        }
        if self.model_drafts() && room > 0 {
            (self.by_model, self.model_ran) = (true, true);
            return Draft::Model(self.model.depth.min(room));
        }
        Draft::Nothing
    }

    /// Accounts for a verified draft. `took` is the duration of drafting and verification, if known.
    pub(super) fn verified(&mut self, drafted: usize, accepted: usize, took: Option<Duration>) {
        self.drafted += drafted as u32;
        self.accepted += accepted as u32;
        self.model_ran = false;
        let without = self.without;
        self.latest_source().verified(drafted, accepted, took, &without);
    }

    /// Accounts for a step without a draft. It may have been a `replay` after a rejected draft, or the model may have
    /// prepared its next draft.
    pub(super) fn step_done(&mut self, replay: bool, took: Option<Duration>) {
        let without = self.without;
        if std::mem::take(&mut self.model_ran) {
            self.model.ready = true;
            if took.is_some() {
                self.model.cost(1, took, &without);
            }
        } else if replay {
            self.latest_source().pace.add(1, took);
            self.latest_source().cost(1, took, &without);
        } else {
            self.without.add(1, took);
        }
    }

    /// Source of the latest draft.
    const fn latest_source(&mut self) -> &mut Source {
        if self.by_model { &mut self.model } else { &mut self.lookup }
    }

    /// Accounts for a token of the answer, drafted or not.
    pub(super) fn token(&mut self) {
        for source in [&mut self.lookup, &mut self.model] {
            if source.debt > 0.0 {
                source.debt -= SHARE;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPEATING: [u32; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3];

    fn lookup(drafts: &mut Drafts, room: usize) -> usize {
        match drafts.next(&REPEATING, room) {
            Draft::Lookup(draft) => draft.len(),
            Draft::Nothing => 0,
            Draft::Model(_) => panic!("there is no draft model"),
        }
    }

    const fn ms(ms: u64) -> Option<Duration> {
        Some(Duration::from_millis(ms))
    }

    /// Number of tokens until it drafts again.
    fn pause(drafts: &mut Drafts, tokens: &[u32]) -> u32 {
        let mut tokens_until = 0;
        while !drafts.can_draft(tokens) {
            drafts.token();
            tokens_until += 1;
        }
        tokens_until
    }

    #[test]
    fn draft_length_follows_acceptance_and_failures_pause_drafting() {
        let mut drafts = Drafts::new(7, false);
        let lengths: Vec<usize> = (0..4)
            .map(|_| {
                let draft = lookup(&mut drafts, 9);
                drafts.verified(draft, draft, None);
                draft
            })
            .collect();
        assert_eq!(lengths, [2, 4, 7, 7]);
        assert_eq!(lookup(&mut drafts, 3), 3);
        drafts.verified(7, 2, None);
        assert_eq!(lookup(&mut drafts, 9), 3);
        // Unknown durations cost half a step each: first the credit is used up, then 1 % of the tokens.
        let pauses: Vec<u32> = (0..20)
            .map(|_| {
                drafts.verified(1, 0, None);
                pause(&mut drafts, &REPEATING)
            })
            .collect();
        assert_eq!(pauses[..16], [0; 16]);
        assert!(pauses[16..].iter().all(|pause| (50..52).contains(pause)), "{pauses:?}");
        drafts.verified(1, 1, None);
        assert_eq!((drafts.drafted, drafts.accepted), (48, 23));
        assert_eq!(Drafts::new(0, true).next(&REPEATING, 9), Draft::Nothing);
    }

    #[test]
    fn the_model_drafts_if_lookup_finds_nothing_and_sources_are_independent() {
        let mut drafts = Drafts::new(7, true);
        assert_eq!(drafts.next(&[1, 2, 3, 4], 9), Draft::Nothing, "its cost is not comparable yet");
        drafts.step_done(false, ms(10));
        assert_eq!(drafts.next(&[1, 2, 3, 4], 9), Draft::Model(2));
        drafts.verified(2, 2, ms(15));
        assert_eq!(drafts.next(&[1, 2, 3, 4], 3), Draft::Model(3));
        assert_eq!(drafts.next(&[1, 2, 3, 4], 0), Draft::Nothing);
        assert_eq!(drafts.next(&REPEATING, 9), Draft::Lookup(vec![4, 5]));
        drafts.verified(2, 0, ms(40));
        // The failure of prompt lookup does not affect the model.
        assert_eq!(drafts.next(&REPEATING, 9), Draft::Model(4));
        drafts.verified(4, 0, ms(60));
        drafts.verified(4, 0, ms(60));
        assert!(!drafts.can_draft(&REPEATING));
        let waited = pause(&mut drafts, &REPEATING);
        assert!((99..102).contains(&waited), "{waited}");
        assert_eq!(drafts.next(&REPEATING, 9), Draft::Lookup(vec![4]));
        // The debt carries over to the next answer.
        drafts.verified(1, 0, ms(40));
        let again = pause(&mut drafts.next_answer(), &REPEATING);
        assert_eq!(again, pause(&mut drafts, &REPEATING));
        drafts.disable_model();
        assert!(!drafts.can_draft(&[1, 2, 3, 4]));
    }

    #[test]
    fn a_faster_machine_does_not_make_rejected_drafts_worthwhile() {
        let mut drafts = Drafts::new(7, true);
        drafts.step_done(false, ms(100));
        let (mut drafted, mut paused) = (0, 0);
        for token in 0..100 {
            paused += u32::from(drafts.is_paused());
            match drafts.next(&[token], 9) {
                Draft::Model(_) => {
                    drafts.verified(2, 0, ms(20));
                    drafted += 1;
                }
                _ => drafts.step_done(false, ms(10)),
            }
            drafts.token();
        }
        assert!((2..8).contains(&drafted), "{drafted}");
        assert!((10..100).contains(&paused), "{paused} steps without the nextn layer");
    }

    /// Steps without drafts take 10 ms, drafts 25 ms and their preparation 200 ms. Drafting slows tokens by at most 1 % and
    /// a few steps, whatever is accepted; four accepted tokens make it worthwhile.
    #[test]
    fn a_model_that_costs_more_than_it_gains_is_paused() {
        for (accepted, gains) in [(0..1, false), (0..2, false), (1..2, false), (4..5, true)] {
            let mut drafts = Drafts::new(7, true);
            let (mut tokens, mut took, mut drafted) = (0, 0, 0);
            for answer in 0..40 {
                drafts = drafts.next_answer();
                let mut ready = 0;
                let until = tokens + 100;
                while tokens < until {
                    let (mut came, mut step) = (1, 10);
                    match drafts.next(&[answer], 9) {
                        Draft::Model(_) if ready == 0 => {
                            (ready, step) = (1, 210);
                            drafts.step_done(false, ms(step));
                        }
                        Draft::Model(most) => {
                            let true_ones = accepted.clone().nth(drafted % accepted.len()).unwrap();
                            (came, step) = (true_ones + 1, 25);
                            drafts.verified(most.max(true_ones), true_ones, ms(step));
                            drafted += 1;
                        }
                        _ => drafts.step_done(false, ms(step)),
                    }
                    (tokens, took) = (tokens + came, took + step);
                    (0..came).for_each(|_| drafts.token());
                }
            }
            let slower = took as f64 / (10 * tokens) as f64;
            assert!(slower < 1.01 + 30.0 / tokens as f64, "{accepted:?}: {slower}");
            assert!(drafted > 0 && (slower < 0.8) == gains, "{accepted:?}: {slower}, {drafted}");
        }
    }

    /// A nextn layer takes a tenth of a prompt's time and is never right; answers have 20 tokens, prompts take 40 steps. It
    /// costs 1 % of the tokens and a few steps, and is tried again now and then.
    #[test]
    fn a_paused_nextn_layer_skips_prompts_and_is_tried_again() {
        let mut drafts = Drafts::new(7, true).with_nextn(0.1);
        let (answers, mut cost, mut drafted_late) = (4000, 0.0, 0);
        for answer in 0..answers {
            drafts = drafts.next_answer();
            let skipped = drafts.prompt_skips_nextn();
            if !skipped {
                cost += 4.0;
            }
            drafts.prompt_evaluated(ms(if skipped { 400 } else { 440 }));
            for _ in 0..20 {
                match drafts.next(&[answer], 9) {
                    Draft::Model(most) => {
                        assert!(!skipped);
                        drafts.verified(most, 0, ms(15));
                        (cost, drafted_late) =
                            (cost + 0.5, drafted_late + u32::from(answer > 2000));
                    }
                    _ => drafts.step_done(false, ms(10)),
                }
                drafts.token();
            }
        }
        let share = cost / f64::from(20 * answers);
        assert!(share < 0.0115, "{share}");
        assert!(drafted_late > 50, "{drafted_late}");
    }
}
