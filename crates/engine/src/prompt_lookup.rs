//! Prompt lookup: drafts the tokens that followed an earlier occurrence of the last tokens.

/// Shortest match: shorter ones are chance.
const MIN_MATCH: usize = 3;
/// Longest match that is compared.
const MAX_MATCH: usize = 16;
/// Number of last tokens that are searched.
const WINDOW: usize = 1 << 14;

/// Drafts `count` tokens, or none. A short repetition is continued as a cycle.
pub(super) fn draft(tokens: &[u32], count: usize) -> Vec<u32> {
    let from = find(tokens).map_or(&[][..], |place| &tokens[place..]);
    from.iter().copied().cycle().take(count).collect()
}

/// Index behind the longest match of the last tokens; the latest of equal matches.
pub(super) fn find(tokens: &[u32]) -> Option<usize> {
    let tokens_from = tokens.len().saturating_sub(WINDOW);
    let (&last, before) = tokens.split_last()?;
    let alike = |place: usize| {
        let pairs = tokens[..place].iter().rev().zip(tokens.iter().rev());
        pairs.take(MAX_MATCH).take_while(|(a, b)| a == b).count()
    };
    let mut best = (MIN_MATCH - 1, None);
    for place in (tokens_from + 1..=before.len()).rev() {
        if before[place - 1] != last {
            continue;
        }
        let alike = alike(place);
        if alike > best.0 {
            best = (alike, Some(place));
            if alike == MAX_MATCH {
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
    fn tokens_that_followed_a_match_are_drafted() {
        let tokens = [9, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3];
        assert_eq!(draft(&tokens, 4), [4, 5, 6, 7]);
        assert_eq!(draft(&tokens, 2), [4, 5]);
        // Two equal tokens are chance.
        for tokens in [&[][..], &[1], &[1, 1], &[1, 1, 1], &[9, 2, 3, 4, 8, 2, 3]] {
            assert!(draft(tokens, 9).is_empty(), "{tokens:?}");
        }
    }

    #[test]
    fn the_longest_match_wins_then_the_latest() {
        assert_eq!(draft(&[0, 1, 2, 3, 70, 1, 2, 3, 71, 0, 1, 2, 3], 1), [70]);
        assert_eq!(draft(&[1, 2, 3, 70, 1, 2, 3, 71, 1, 2, 3], 1), [71]);
    }

    #[test]
    fn a_cycle_is_continued() {
        assert_eq!(draft(&[5, 6, 5, 6, 5, 6], 5), [5, 6, 5, 6, 5]);
    }
}
