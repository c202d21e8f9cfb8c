//! Drafts of a sequence: who guesses what comes next, how much, and what became of it. What was said before is asked
//! first, since that costs nothing; then a draft model, where there is one. The served model evaluates a draft in one step
//! and keeps what it would have said anyway, so a draft changes how fast an answer comes and never what it is. How much is
//! guessed follows from how many guesses came true; where tokens come no faster with them, guessing rests.

use std::time::Duration;

use super::lookup;

/// The longest rest, in tokens, and the longest at the beginning of an answer.
const LONGEST_REST: u32 = 128;
const FIRST_REST: u32 = 32;
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

    /// Whether it is no slower than another, where both are known.
    fn keeps_up(&self, other: &Self) -> Option<bool> {
        let known = self.tokens > 0.0 && other.tokens > 0.0;
        known.then_some(self.seconds * other.tokens <= other.seconds * self.tokens)
    }
}

/// How much one of those who guess is trusted.
#[derive(Clone, Copy, Debug)]
struct Trust {
    /// The most tokens of a draft; none are made where it is 0.
    most: usize,
    /// The most of the next one.
    depth: usize,
    /// How often of late it was of no use.
    failures: u32,
    /// Tokens until the next draft.
    rest: u32,
    /// How fast tokens come by its drafts.
    pace: Pace,
}

impl Trust {
    fn new(most: usize) -> Self {
        Self { most, depth: most.min(2), failures: 0, rest: 0, pace: Pace::default() }
    }

    const fn guesses(&self) -> bool {
        self.most > 0 && self.rest == 0
    }

    /// Of a draft of so many tokens so many came true. It was of use if any did, and if its like gives tokens no slower than
    /// steps without drafts do, as far as that is known: a machine with other work has no steady pace.
    fn judged(&mut self, drafted: usize, accepted: usize, took: Option<Duration>, without: &Pace) {
        self.depth = if accepted == drafted { 2 * self.depth } else { accepted + 1 }.min(self.most);
        self.pace.add(accepted + 1, took);
        if accepted > 0 && self.pace.keeps_up(without) != Some(false) {
            self.failures = 0;
            return;
        }
        // Who begins to be right is asked sooner.
        self.failures = match accepted {
            0 => self.failures + 1,
            _ => self.failures.saturating_sub(1).max(1),
        };
        self.rest = 1u32.checked_shl(self.failures).map_or(LONGEST_REST, |r| r.min(LONGEST_REST));
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
    /// Tokens drafted so far, and those that came true.
    pub(super) drafted: u32,
    pub(super) accepted: u32,
}

impl Drafts {
    /// Of at most `most` tokens, and of a draft model where there is one.
    pub(super) fn new(most: usize, has_model: bool) -> Self {
        let model = Trust::new(if has_model { most } else { 0 });
        let (said, without) = (Trust::new(most), Pace::default());
        Self { said, model, without, by_model: false, drafted: 0, accepted: 0 }
    }

    /// Of the next answer of the same model: what others have said before is another matter, the model is who it was.
    pub(super) fn again(&self) -> Self {
        let rest = self.model.rest.min(FIRST_REST);
        let model = Trust { rest, ..self.model };
        Self { model, without: self.without, ..Self::new(self.said.most, false) }
    }

    /// The most tokens of a draft.
    pub(super) const fn most(&self) -> usize {
        self.said.most
    }

    /// Whether something is guessed to follow these tokens.
    pub(super) fn sees(&self, tokens: &[u32]) -> bool {
        self.model.guesses() || self.said.guesses() && lookup::place(tokens).is_some()
    }

    /// What is evaluated behind these tokens, of at most `room`.
    pub(super) fn next(&mut self, tokens: &[u32], room: usize) -> Draft {
        if self.said.guesses() {
            let said = lookup::follows(tokens, self.said.depth.min(room));
            if !said.is_empty() {
                self.by_model = false;
                return Draft::Said(said);
            }
        }
        if self.model.guesses() && room > 0 {
            self.by_model = true;
            return Draft::Model(self.model.depth.min(room));
        }
        Draft::Nothing
    }

    /// The latest draft was evaluated, and so many of its tokens came true; making and evaluating it took so long, where
    /// that is known.
    pub(super) fn judged(&mut self, drafted: usize, accepted: usize, took: Option<Duration>) {
        self.drafted += drafted as u32;
        self.accepted += accepted as u32;
        let without = self.without;
        self.guesser().judged(drafted, accepted, took, &without);
    }

    /// A step without a draft has given a token: in passing, or because the latest draft left some to be evaluated again.
    pub(super) fn stepped(&mut self, again: bool, took: Option<Duration>) {
        if again { &mut self.guesser().pace } else { &mut self.without }.add(1, took);
    }

    /// Whose the latest draft is.
    const fn guesser(&mut self) -> &mut Trust {
        if self.by_model { &mut self.model } else { &mut self.said }
    }

    /// Another token has come, drafted or not.
    pub(super) const fn token(&mut self) {
        self.said.rest = self.said.rest.saturating_sub(1);
        self.model.rest = self.model.rest.saturating_sub(1);
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
        let mut rests = Vec::new();
        for _ in 0..8 {
            drafts.judged(1, 0, None);
            let mut rest = 0;
            while !drafts.sees(&SAID) {
                drafts.token();
                rest += 1;
            }
            rests.push(rest);
        }
        assert_eq!(rests, [2, 4, 8, 16, 32, 64, 128, 128]);
        drafts.judged(1, 1, None);
        assert_eq!((drafts.drafted, drafts.accepted), (36, 23));
        assert_eq!(Drafts::new(0, true).next(&SAID, 9), Draft::Nothing);
    }

    #[test]
    fn a_model_is_asked_where_nothing_was_said_and_each_is_trusted_by_itself() {
        let mut drafts = Drafts::new(7, true);
        assert_eq!(drafts.next(&[1, 2, 3, 4], 9), Draft::Model(2));
        drafts.judged(2, 2, None);
        assert_eq!(drafts.next(&[1, 2, 3, 4], 3), Draft::Model(3));
        assert_eq!(drafts.next(&[1, 2, 3, 4], 0), Draft::Nothing);
        assert_eq!(drafts.next(&SAID, 9), Draft::Said(vec![4, 5]));
        drafts.judged(2, 0, None);
        // What was said has failed: the model is not blamed for it.
        assert_eq!(drafts.next(&SAID, 9), Draft::Model(4));
        drafts.judged(4, 0, None);
        assert!(!drafts.sees(&SAID));
        drafts.token();
        drafts.token();
        assert_eq!(drafts.next(&SAID, 9), Draft::Said(vec![4]));
    }

    /// Steps without drafts take 10 ms. A model whose drafts take 25 and give two tokens at most is soon asked once in 129
    /// tokens, also by the next answer; where four come true it is worth its time.
    #[test]
    fn who_costs_more_than_it_gives_rests_whatever_came_true() {
        let ms = |ms| Some(Duration::from_millis(ms));
        let mut drafts = Drafts::new(7, true);
        let mut asked = 0;
        for token in 0..1000 {
            match drafts.next(&[token], 9) {
                Draft::Model(_) => {
                    drafts.judged(1, asked % 4 / 3, ms(25));
                    asked += 1;
                }
                _ => drafts.stepped(false, ms(10)),
            }
            drafts.token();
        }
        assert!((10..20).contains(&asked), "{asked}");
        let mut drafts = drafts.again();
        assert_eq!((drafts.drafted, drafts.accepted), (0, 0));
        let wait = (0..).take_while(|token| {
            drafts.token();
            drafts.next(&[*token], 9) == Draft::Nothing
        });
        assert!((wait.count() as u32) < FIRST_REST);
        let mut asked = 0;
        for token in 0..1000 {
            match drafts.next(&[token], 9) {
                Draft::Model(_) => {
                    drafts.judged(4, 4, ms(25));
                    asked += 1;
                }
                _ => drafts.stepped(false, ms(10)),
            }
            drafts.token();
        }
        assert!(asked > 800, "{asked}");
    }
}
