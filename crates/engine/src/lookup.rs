//! What was said before (prompt lookup): what followed the last tokens where they stood before is guessed to follow
//! them again.

/// Tokens that have to have stood there before: fewer are chance.
const ALIKE: usize = 3;
/// Tokens alike, beyond which a place is not better.
const ENOUGH: usize = 16;
/// Tokens that are looked through.
const WINDOW: usize = 1 << 14;

/// What is likely to follow these tokens, `count` of them or nothing; where they begin to repeat themselves, as often as it
/// takes.
pub(super) fn follows(tokens: &[u32], count: usize) -> Vec<u32> {
    let from = place(tokens).map_or(&[][..], |place| &tokens[place..]);
    from.iter().copied().cycle().take(count).collect()
}

/// Behind the tokens that are most like the last ones; the latest of such places.
pub(super) fn place(tokens: &[u32]) -> Option<usize> {
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
        let said = [9, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3];
        assert_eq!(follows(&said, 4), [4, 5, 6, 7]);
        assert_eq!(follows(&said, 2), [4, 5]);
        // Two tokens alike are chance.
        for said in [&[][..], &[1], &[1, 1], &[1, 1, 1], &[9, 2, 3, 4, 8, 2, 3]] {
            assert!(follows(said, 9).is_empty(), "{said:?}");
        }
    }

    #[test]
    fn the_place_most_alike_is_taken_and_the_latest_of_equals() {
        assert_eq!(follows(&[0, 1, 2, 3, 70, 1, 2, 3, 71, 0, 1, 2, 3], 1), [70]);
        assert_eq!(follows(&[1, 2, 3, 70, 1, 2, 3, 71, 1, 2, 3], 1), [71]);
    }

    #[test]
    fn a_loop_goes_on() {
        assert_eq!(follows(&[5, 6, 5, 6, 5, 6], 5), [5, 6, 5, 6, 5]);
    }
}
