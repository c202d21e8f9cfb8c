//! Drafts from what was said before (prompt lookup): what followed the last tokens where they stood before is
//! guessed to follow them again. The model evaluates a draft in one step and keeps what it would have said anyway,
//! so a draft changes how fast an answer comes and never what it is. How much is guessed follows from how many
//! guesses came true; where none do, guessing rests.

/// Tokens that have to have stood there before: fewer are chance.
const ALIKE: usize = 3;
/// Tokens alike, beyond which a place is not better.
const ENOUGH: usize = 16;
/// Tokens that are looked through.
const WINDOW: usize = 1 << 14;
/// The longest rest, in tokens.
const LONGEST_REST: u32 = 64;

#[derive(Debug)]
pub(super) struct Lookup {
    /// The most tokens of a draft; none are made where it is 0.
    pub(super) most: usize,
    /// The most of the next one.
    depth: usize,
    /// Drafts in a row of which nothing came true.
    failures: u32,
    /// Tokens until the next draft.
    rest: u32,
    /// Tokens drafted so far, and those that came true.
    pub(super) drafted: u32,
    pub(super) accepted: u32,
}

impl Lookup {
    pub(super) fn new(most: usize) -> Self {
        let depth = most.min(2);
        Self { most, depth, failures: 0, rest: 0, drafted: 0, accepted: 0 }
    }

    /// Whether something is likely to follow these tokens or those to come next.
    pub(super) fn sees(&self, tokens: &[u32]) -> bool {
        self.most > 0 && self.rest == 0 && place(tokens).is_some()
    }

    /// What is likely to follow these tokens, of at most `room`; where they begin to repeat themselves, as often
    /// as it takes.
    pub(super) fn draft(&self, tokens: &[u32], room: usize) -> Vec<u32> {
        if self.most == 0 || self.rest > 0 {
            return Vec::new();
        }
        let from = place(tokens).map_or(&[][..], |place| &tokens[place..]);
        from.iter().copied().cycle().take(self.depth.min(room)).collect()
    }

    /// A draft of so many tokens was evaluated, and so many came true.
    pub(super) fn judged(&mut self, drafted: usize, accepted: usize) {
        self.drafted += drafted as u32;
        self.accepted += accepted as u32;
        if accepted == drafted {
            self.depth = (2 * self.depth).min(self.most);
        } else {
            self.depth = (accepted + 1).min(self.most);
        }
        if accepted == 0 {
            self.failures += 1;
            self.rest =
                1u32.checked_shl(self.failures).map_or(LONGEST_REST, |r| r.min(LONGEST_REST));
        } else {
            self.failures = 0;
        }
    }

    /// Another token has come, drafted or not.
    pub(super) fn token(&mut self) {
        self.rest = self.rest.saturating_sub(1);
    }
}

/// Behind the tokens that are most like the last ones; the latest of such places.
fn place(tokens: &[u32]) -> Option<usize> {
    let tokens_from = tokens.len().saturating_sub(WINDOW);
    let (&last, before) = tokens.split_last()?;
    let alike = |place: usize| {
        let pairs = tokens[..place].iter().rev().zip(tokens.iter().rev());
        pairs.take(ENOUGH).take_while(|(a, b)| a == b).count()
    };
    let mut best = (ALIKE - 1, None);
    for place in (tokens_from + 1..=before.len()).rev() {
        if before[place - 1] != last {
            continue;
        }
        let alike = alike(place);
        if alike > best.0 {
            best = (alike, Some(place));
            if alike == ENOUGH {
                break;
            }
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_followed_before_is_guessed_again() {
        let lookup = Lookup { depth: 4, ..Lookup::new(7) };
        let said = [9, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3];
        assert!(lookup.sees(&said));
        assert_eq!(lookup.draft(&said, 9), [4, 5, 6, 7]);
        assert_eq!(lookup.draft(&said, 2), [4, 5]);
        // Two tokens alike are chance.
        assert!(!lookup.sees(&[9, 2, 3, 4, 8, 2, 3]));
        for said in [&[][..], &[1], &[1, 1], &[1, 1, 1]] {
            assert!(lookup.draft(said, 9).is_empty(), "{said:?}");
        }
    }

    #[test]
    fn the_place_most_alike_is_taken_and_the_latest_of_equals() {
        let lookup = Lookup { depth: 1, ..Lookup::new(7) };
        assert_eq!(lookup.draft(&[0, 1, 2, 3, 70, 1, 2, 3, 71, 0, 1, 2, 3], 9), [70]);
        assert_eq!(lookup.draft(&[1, 2, 3, 70, 1, 2, 3, 71, 1, 2, 3], 9), [71]);
    }

    #[test]
    fn a_loop_goes_on() {
        let lookup = Lookup { depth: 5, ..Lookup::new(7) };
        assert_eq!(lookup.draft(&[5, 6, 5, 6, 5, 6], 9), [5, 6, 5, 6, 5]);
    }

    #[test]
    fn depth_follows_what_comes_true_and_failure_rests() {
        let mut lookup = Lookup::new(7);
        let said = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3];
        let lengths: Vec<usize> = (0..4)
            .map(|_| {
                let draft = lookup.draft(&said, 9).len();
                lookup.judged(draft, draft);
                draft
            })
            .collect();
        assert_eq!(lengths, [2, 4, 7, 7]);
        lookup.judged(7, 2);
        assert_eq!(lookup.draft(&said, 9).len(), 3);
        let mut rests = Vec::new();
        for _ in 0..8 {
            lookup.judged(1, 0);
            let mut rest = 0;
            while !lookup.sees(&said) {
                lookup.token();
                rest += 1;
            }
            rests.push(rest);
        }
        assert_eq!(rests, [2, 4, 8, 16, 32, 64, 64, 64]);
        lookup.judged(1, 1);
        assert_eq!((lookup.drafted, lookup.accepted), (36, 23));
        assert!(Lookup::new(0).draft(&said, 9).is_empty());
    }
}
