//! Drafts of a sequence: who guesses what comes next, how much, and what became of it. What was said before is asked
//! first, since that costs nothing; then a draft model, where there is one. The served model evaluates a draft in one step
//! and keeps what it would have said anyway, so a draft changes how fast an answer comes and never what it is. How much is
//! guessed follows from how many guesses came true; where none do, guessing rests.

use super::lookup;

/// The longest rest, in tokens.
const LONGEST_REST: u32 = 64;

/// What is to be evaluated together with the newest token.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Draft {
    Nothing,
    /// Tokens that are likely to follow.
    Said(Vec<u32>),
    /// At most so many that the draft model says.
    Model(usize),
}

/// How much one of those who guess is trusted.
#[derive(Clone, Copy, Debug)]
struct Trust {
    /// The most tokens of a draft; none are made where it is 0.
    most: usize,
    /// The most of the next one.
    depth: usize,
    /// Drafts in a row of which nothing came true.
    failures: u32,
    /// Tokens until the next draft.
    rest: u32,
}

impl Trust {
    fn new(most: usize) -> Self {
        Self { most, depth: most.min(2), failures: 0, rest: 0 }
    }

    const fn guesses(&self) -> bool {
        self.most > 0 && self.rest == 0
    }

    fn judged(&mut self, drafted: usize, accepted: usize) {
        self.depth = if accepted == drafted { 2 * self.depth } else { accepted + 1 }.min(self.most);
        if accepted == 0 {
            self.failures += 1;
            self.rest =
                1u32.checked_shl(self.failures).map_or(LONGEST_REST, |r| r.min(LONGEST_REST));
        } else {
            self.failures = 0;
        }
    }
}

#[derive(Debug)]
pub(super) struct Drafts {
    said: Trust,
    model: Trust,
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
        Self { said: Trust::new(most), model, by_model: false, drafted: 0, accepted: 0 }
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

    /// The latest draft was evaluated, and so many of its tokens came true.
    pub(super) fn judged(&mut self, drafted: usize, accepted: usize) {
        self.drafted += drafted as u32;
        self.accepted += accepted as u32;
        if self.by_model { &mut self.model } else { &mut self.said }.judged(drafted, accepted);
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
                drafts.judged(draft, draft);
                draft
            })
            .collect();
        assert_eq!(lengths, [2, 4, 7, 7]);
        assert_eq!(said(&mut drafts, 3), 3);
        drafts.judged(7, 2);
        assert_eq!(said(&mut drafts, 9), 3);
        let mut rests = Vec::new();
        for _ in 0..8 {
            drafts.judged(1, 0);
            let mut rest = 0;
            while !drafts.sees(&SAID) {
                drafts.token();
                rest += 1;
            }
            rests.push(rest);
        }
        assert_eq!(rests, [2, 4, 8, 16, 32, 64, 64, 64]);
        drafts.judged(1, 1);
        assert_eq!((drafts.drafted, drafts.accepted), (36, 23));
        assert_eq!(Drafts::new(0, true).next(&SAID, 9), Draft::Nothing);
    }

    #[test]
    fn a_model_is_asked_where_nothing_was_said_and_each_is_trusted_by_itself() {
        let mut drafts = Drafts::new(7, true);
        assert_eq!(drafts.next(&[1, 2, 3, 4], 9), Draft::Model(2));
        drafts.judged(2, 2);
        assert_eq!(drafts.next(&[1, 2, 3, 4], 3), Draft::Model(3));
        assert_eq!(drafts.next(&[1, 2, 3, 4], 0), Draft::Nothing);
        assert_eq!(drafts.next(&SAID, 9), Draft::Said(vec![4, 5]));
        drafts.judged(2, 0);
        // What was said has failed: the model is not blamed for it.
        assert_eq!(drafts.next(&SAID, 9), Draft::Model(4));
        drafts.judged(4, 0);
        assert!(!drafts.sees(&SAID));
        drafts.token();
        drafts.token();
        assert_eq!(drafts.next(&SAID, 9), Draft::Said(vec![4]));
    }
}
