//! Drafts of a sequence: who guesses what comes next, how much, and what became of it. What was said before is asked
//! first, since that costs nothing; then a draft model, where there is one. The served model evaluates a draft in one step
//! and keeps what it would have said anyway, so a draft changes how fast an answer comes and never what it is. How much is
//! guessed follows from how many guesses came true. Who costs more time than it gains owes it, in steps of the served model,
//! and rests until so many tokens have come that it is a hundredth of theirs.

use std::time::Duration;

use super::lookup;

/// Part of the time of an answer that drafts may cost where they come to nothing.
const SHARE: f64 = 0.01;
/// Steps that who guesses may cost before anything is known of it, and of what it has gained.
const FIRST: f64 = 2.0;
const OF_GAIN: f64 = 8.0;
/// The most steps that are owed: a machine that stood still for a while is not the drafts' fault.
const MOST_OWED: f64 = 500.0;
/// What a draft is taken to cost, in steps, where nobody knows how long it took.
const UNKNOWN: f64 = 0.5;
/// Steps that are owed by who will not guess for long.
const LONG: f64 = 0.3;
/// What a step counts for by the time of the next one of its kind.
const FADES: f64 = 0.8;

/// What is to be evaluated together with the newest token.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Draft {
    Nothing,
    /// Tokens that are likely to follow.
    Said(Vec<u32>),
    /// At most so many that the draft model says.
    Model(usize),
}

/// How fast tokens have come of late.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    seconds: f64,
    tokens: f64,
}

impl Pace {
    /// A step has given so many tokens; how long it took is not known where others were served beside.
    fn add(&mut self, tokens: usize, took: Option<Duration>) {
        if let Some(took) = took {
            self.seconds = FADES * self.seconds + took.as_secs_f64();
            self.tokens = FADES * self.tokens + tokens as f64;
        }
    }

    /// Seconds that a token takes, if any has come.
    fn token(&self) -> Option<f64> {
        (self.tokens > 0.0).then(|| self.seconds / self.tokens)
    }

    /// Whether it is faster than another, where both are known.
    fn outruns(&self, other: &Self) -> bool {
        let pair = self.token().zip(other.token());
        pair.is_some_and(|(own, other)| own < other)
    }
}

/// How much one of those who guess is trusted.
#[derive(Clone, Copy, Debug)]
struct Trust {
    /// The most tokens of a draft; none are made where it is 0.
    most: usize,
    /// The most of the next one.
    depth: usize,
    /// Steps that its drafts have cost and not yet gained.
    owed: f64,
    /// It has cost something to get ready for a draft, which is still to come.
    ready: bool,
    /// Something of the latest draft came true.
    gives: bool,
    /// How fast tokens come by its drafts.
    pace: Pace,
}

impl Trust {
    fn new(most: usize) -> Self {
        let (depth, pace) = (most.min(2), Pace::default());
        Self { most, depth, owed: -FIRST, ready: false, gives: false, pace }
    }

    fn guesses(&self, without: &Pace) -> bool {
        let gains = self.gives && self.pace.outruns(without);
        self.most > 0 && (self.owed <= 0.0 || self.ready || gains)
    }

    /// Of a draft of so many tokens so many came true.
    fn judged(&mut self, drafted: usize, accepted: usize, took: Option<Duration>, without: &Pace) {
        let before = self.owed;
        self.depth = if accepted == drafted { 2 * self.depth } else { accepted + 1 }.min(self.most);
        (self.ready, self.gives) = (false, accepted > 0);
        self.pace.add(accepted + 1, took);
        self.cost(accepted + 1, took, without);
        if accepted == 0 {
            self.owed = self.owed.max(before + UNKNOWN);
        }
    }

    /// A step of it has given so many tokens.
    fn cost(&mut self, tokens: usize, took: Option<Duration>, without: &Pace) {
        let steps = took.zip(without.token()).map(|(took, token)| took.as_secs_f64() / token);
        let lost = steps.unwrap_or(UNKNOWN + 1.0) - tokens as f64;
        // Who gave nothing has gained nothing, whatever the machine did meanwhile.
        let lost = if tokens == 1 { lost.max(0.0) } else { lost };
        self.owed = (self.owed + lost).clamp(-OF_GAIN, MOST_OWED);
    }
}

#[derive(Debug)]
pub(super) struct Drafts {
    said: Trust,
    model: Trust,
    /// How fast tokens come without drafts.
    without: Pace,
    /// Whether the latest draft is the model's.
    by_model: bool,
    /// Whether the model was asked for the step under way.
    asked: bool,
    /// The part of a prompt's time that the model takes to see it: 0 unless it is a layer of the served one.
    share: f64,
    /// It has not seen this answer's prompt, and is not asked.
    overlooked: bool,
    /// Tokens drafted so far, and those that came true.
    pub(super) drafted: u32,
    pub(super) accepted: u32,
}

impl Drafts {
    /// Of at most `most` tokens, and of a draft model where there is one.
    pub(super) fn new(most: usize, has_model: bool) -> Self {
        let model = Trust::new(if has_model { most } else { 0 });
        let (said, without) = (Trust::new(most), Pace::default());
        let (by_model, asked, overlooked) = (false, false, false);
        let (share, drafted, accepted) = (0.0, 0, 0);
        Self { said, model, without, by_model, asked, share, overlooked, drafted, accepted }
    }

    /// The model is a layer of the served one, which takes so much of a prompt's time; 0 where it is none.
    pub(super) const fn of_layer(self, share: f64) -> Self {
        Self { share, ..self }
    }

    /// Of the next answer of the same model. How what others have said came true is another matter than what it cost.
    pub(super) fn again(&self) -> Self {
        let said = Trust { owed: self.said.owed, ..Trust::new(self.said.most) };
        let (model, without) = (Trust { ready: false, ..self.model }, self.without);
        Self { said, model, without, share: self.share, ..Self::new(0, false) }
    }

    /// There is no draft model any more.
    pub(super) const fn without_model(&mut self) {
        self.model.most = 0;
    }

    /// The most tokens of a draft.
    pub(super) const fn most(&self) -> usize {
        self.said.most
    }

    /// Whether something is guessed to follow these tokens.
    pub(super) fn sees(&self, tokens: &[u32]) -> bool {
        let said = self.said.guesses(&self.without);
        self.asks() || said && lookup::place(tokens).is_some()
    }

    /// Whether the model is asked: what that costs can be told.
    fn asks(&self) -> bool {
        !self.overlooked && self.without.token().is_some() && self.model.guesses(&self.without)
    }

    /// Whether the prompt is evaluated without the model that guesses, as it rests.
    pub(super) fn overlooked(&mut self) -> bool {
        self.overlooked = self.share > 0.0 && self.rests();
        self.overlooked
    }

    /// A part of the prompt was evaluated. Who has seen it is asked, whatever it owes for that.
    pub(super) fn prompted(&mut self, took: Option<Duration>) {
        let steps = took.zip(self.without.token()).map(|(took, token)| took.as_secs_f64() / token);
        if let Some(steps) = steps.filter(|_| self.share > 0.0 && !self.overlooked) {
            self.model.owed = (self.model.owed + self.share * steps).min(MOST_OWED);
            self.model.ready = true;
        }
    }

    /// Whether the model will not be asked for long: what it would go on from is not worth a part of each step.
    pub(super) fn rests(&self) -> bool {
        self.overlooked || self.model.owed > LONG && !self.asks()
    }

    /// What is evaluated behind these tokens, of at most `room`.
    pub(super) fn next(&mut self, tokens: &[u32], room: usize) -> Draft {
        self.asked = false;
        if self.said.guesses(&self.without) {
            let said = lookup::follows(tokens, self.said.depth.min(room));
            if !said.is_empty() {
                self.by_model = false;
                return Draft::Said(said);
            }
        }
        if self.asks() && room > 0 {
            (self.by_model, self.asked) = (true, true);
            return Draft::Model(self.model.depth.min(room));
        }
        Draft::Nothing
    }

    /// The latest draft was evaluated, and so many of its tokens came true; making and evaluating it took so long, where
    /// that is known.
    pub(super) fn judged(&mut self, drafted: usize, accepted: usize, took: Option<Duration>) {
        self.drafted += drafted as u32;
        self.accepted += accepted as u32;
        self.asked = false;
        let without = self.without;
        self.guesser().judged(drafted, accepted, took, &without);
    }

    /// A step without a draft has given a token: in passing, because the latest draft left some to be evaluated `again`, or
    /// since who was asked got ready for the next one.
    pub(super) fn stepped(&mut self, again: bool, took: Option<Duration>) {
        let without = self.without;
        if std::mem::take(&mut self.asked) {
            self.model.ready = true;
            if took.is_some() {
                self.model.cost(1, took, &without);
            }
        } else if again {
            self.guesser().pace.add(1, took);
            self.guesser().cost(1, took, &without);
        } else {
            self.without.add(1, took);
        }
    }

    /// Whose the latest draft is.
    const fn guesser(&mut self) -> &mut Trust {
        if self.by_model { &mut self.model } else { &mut self.said }
    }

    /// Another token has come, drafted or not.
    pub(super) fn token(&mut self) {
        for trust in [&mut self.said, &mut self.model] {
            if trust.owed > 0.0 {
                trust.owed -= SHARE;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: [u32; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3];

    fn said(drafts: &mut Drafts, room: usize) -> usize {
        match drafts.next(&SAID, room) {
            Draft::Said(said) => said.len(),
            Draft::Nothing => 0,
            Draft::Model(_) => panic!("there is none"),
        }
    }

    const fn ms(ms: u64) -> Option<Duration> {
        Some(Duration::from_millis(ms))
    }

    /// Tokens that come until it guesses again.
    fn rest(drafts: &mut Drafts, tokens: &[u32]) -> u32 {
        let mut rest = 0;
        while !drafts.sees(tokens) {
            drafts.token();
            rest += 1;
        }
        rest
    }

    #[test]
    fn depth_follows_what_comes_true_and_failure_rests() {
        let mut drafts = Drafts::new(7, false);
        let lengths: Vec<usize> = (0..4)
            .map(|_| {
                let draft = said(&mut drafts, 9);
                drafts.judged(draft, draft, None);
                draft
            })
            .collect();
        assert_eq!(lengths, [2, 4, 7, 7]);
        assert_eq!(said(&mut drafts, 3), 3);
        drafts.judged(7, 2, None);
        assert_eq!(said(&mut drafts, 9), 3);
        // Half a step each, where nobody knows: first what was gained, then a hundredth of the tokens.
        let rests: Vec<u32> = (0..20)
            .map(|_| {
                drafts.judged(1, 0, None);
                rest(&mut drafts, &SAID)
            })
            .collect();
        assert_eq!(rests[..16], [0; 16]);
        assert!(rests[16..].iter().all(|rest| (50..52).contains(rest)), "{rests:?}");
        drafts.judged(1, 1, None);
        assert_eq!((drafts.drafted, drafts.accepted), (48, 23));
        assert_eq!(Drafts::new(0, true).next(&SAID, 9), Draft::Nothing);
    }

    #[test]
    fn a_model_is_asked_where_nothing_was_said_and_each_is_trusted_by_itself() {
        let mut drafts = Drafts::new(7, true);
        assert_eq!(
            drafts.next(&[1, 2, 3, 4], 9),
            Draft::Nothing,
            "what it costs could not be told"
        );
        drafts.stepped(false, ms(10));
        assert_eq!(drafts.next(&[1, 2, 3, 4], 9), Draft::Model(2));
        drafts.judged(2, 2, ms(15));
        assert_eq!(drafts.next(&[1, 2, 3, 4], 3), Draft::Model(3));
        assert_eq!(drafts.next(&[1, 2, 3, 4], 0), Draft::Nothing);
        assert_eq!(drafts.next(&SAID, 9), Draft::Said(vec![4, 5]));
        drafts.judged(2, 0, ms(40));
        // What was said has failed: the model is not blamed for it.
        assert_eq!(drafts.next(&SAID, 9), Draft::Model(4));
        drafts.judged(4, 0, ms(60));
        drafts.judged(4, 0, ms(60));
        assert!(!drafts.sees(&SAID));
        let waited = rest(&mut drafts, &SAID);
        assert!((99..102).contains(&waited), "{waited}");
        assert_eq!(drafts.next(&SAID, 9), Draft::Said(vec![4]));
        // The next answer owes what this one does.
        drafts.judged(1, 0, ms(40));
        let again = rest(&mut drafts.again(), &SAID);
        assert_eq!(again, rest(&mut drafts, &SAID));
        drafts.without_model();
        assert!(!drafts.sees(&[1, 2, 3, 4]));
    }

    /// That a machine has become faster makes no draft worth its time of which nothing came true.
    #[test]
    fn a_faster_machine_is_not_the_drafts_doing() {
        let mut drafts = Drafts::new(7, true);
        drafts.stepped(false, ms(100));
        let (mut asked, mut rested) = (0, 0);
        for token in 0..100 {
            rested += u32::from(drafts.rests());
            match drafts.next(&[token], 9) {
                Draft::Model(_) => {
                    drafts.judged(2, 0, ms(20));
                    asked += 1;
                }
                _ => drafts.stepped(false, ms(10)),
            }
            drafts.token();
        }
        assert!((2..8).contains(&asked), "{asked}");
        assert!((10..100).contains(&rested), "{rested} steps that leave nothing for drafts");
    }

    /// Steps without drafts take 10 ms, drafts 25 and getting ready for them 200. Whatever comes true, tokens take no longer
    /// than a hundredth and a few steps more; where four come true a draft is worth its time.
    #[test]
    fn who_costs_more_than_it_gives_rests_whatever_came_true() {
        for (accepted, gains) in [(0..1, false), (0..2, false), (1..2, false), (4..5, true)] {
            let mut drafts = Drafts::new(7, true);
            let (mut tokens, mut took, mut asked) = (0, 0, 0);
            for answer in 0..40 {
                drafts = drafts.again();
                let mut behind = 0;
                let until = tokens + 100;
                while tokens < until {
                    let (mut came, mut step) = (1, 10);
                    match drafts.next(&[answer], 9) {
                        Draft::Model(_) if behind == 0 => {
                            (behind, step) = (1, 210);
                            drafts.stepped(false, ms(step));
                        }
                        Draft::Model(most) => {
                            let true_ones = accepted.clone().nth(asked % accepted.len()).unwrap();
                            (came, step) = (true_ones + 1, 25);
                            drafts.judged(most.max(true_ones), true_ones, ms(step));
                            asked += 1;
                        }
                        _ => drafts.stepped(false, ms(step)),
                    }
                    (tokens, took) = (tokens + came, took + step);
                    (0..came).for_each(|_| drafts.token());
                }
            }
            let slower = took as f64 / (10 * tokens) as f64;
            assert!(slower < 1.01 + 30.0 / tokens as f64, "{accepted:?}: {slower}");
            assert!(asked > 0 && (slower < 0.8) == gains, "{accepted:?}: {slower}, {asked}");
        }
    }

    /// A layer that takes a tenth of a prompt's time and is never right, before answers of 20 tokens to prompts of 40 steps:
    /// it costs a hundredth of the tokens and a few steps more, and goes on being asked by who has shown it the prompt.
    #[test]
    fn a_layer_that_rests_is_shown_no_prompt_and_is_tried_again() {
        let mut drafts = Drafts::new(7, true).of_layer(0.1);
        let (answers, mut cost, mut asked_late) = (4000, 0.0, 0);
        for answer in 0..answers {
            drafts = drafts.again();
            let overlooked = drafts.overlooked();
            if !overlooked {
                cost += 4.0;
            }
            drafts.prompted(ms(if overlooked { 400 } else { 440 }));
            for _ in 0..20 {
                match drafts.next(&[answer], 9) {
                    Draft::Model(most) => {
                        assert!(!overlooked);
                        drafts.judged(most, 0, ms(15));
                        (cost, asked_late) = (cost + 0.5, asked_late + u32::from(answer > 2000));
                    }
                    _ => drafts.stepped(false, ms(10)),
                }
                drafts.token();
            }
        }
        let share = cost / f64::from(20 * answers);
        assert!(share < 0.0115, "{share}");
        assert!(asked_late > 50, "{asked_late}");
    }
}
