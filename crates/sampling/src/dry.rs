//! DRY (Don't Repeat Yourself): finds the tokens that would extend a repetition.

use std::collections::HashMap;

use crate::Dry;

/// Longest repetition that is measured: beyond it the penalty is huge anyway.
const LONGEST: usize = 256;

impl Dry {
    /// Calls `subtract` with each penalised token and its penalty.
    pub(crate) fn penalties(&self, tokens: &[u32], mut subtract: impl FnMut(u32, f32)) {
        for (id, length) in repetitions(tokens, &self.breakers) {
            if let Some(beyond) = length.checked_sub(self.allowed as usize) {
                subtract(id, self.multiplier * self.base.powi(beyond as i32).min(f32::MAX));
            }
        }
    }
}

/// Length of the longest repetition that each token would extend.
fn repetitions(tokens: &[u32], breakers: &[u32]) -> HashMap<u32, usize> {
    let mut longest = HashMap::new();
    let breaks = |id: &u32| breakers.binary_search(id).is_ok();
    let Some((last, before)) = tokens.split_last() else { return longest };
    if breaks(last) {
        return longest;
    }
    for (at, id) in before.iter().enumerate() {
        if id != last {
            continue;
        }
        // Length of the common suffix of `tokens[..at]` and all tokens but the last.
        let pairs = before[..at].iter().rev().zip(before.iter().rev());
        let same = pairs.take(LONGEST - 1).take_while(|(a, b)| a == b && !breaks(a)).count();
        let entry = longest.entry(tokens[at + 1]).or_insert(0);
        *entry = (*entry).max(same + 1);
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_report_the_token_that_would_extend_them() {
        let found = |tokens: &[u32], breakers: &[u32]| {
            let mut found: Vec<_> = repetitions(tokens, breakers).into_iter().collect();
            found.sort_unstable();
            found
        };
        // "1 2 3 ... 1 2": 3 would make three tokens; 5 followed "4 2".
        assert_eq!(found(&[1, 2, 3, 4, 2, 5, 1, 2], &[]), [(3, 2), (5, 1)]);
        assert_eq!(found(&[1, 2, 3, 1, 2], &[1]), [(3, 1)]);
        assert_eq!(found(&[1, 2, 3, 1, 2], &[2]), []);
        assert_eq!(found(&[], &[]), []);
    }
}
