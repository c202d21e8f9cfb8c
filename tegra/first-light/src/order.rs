//! Bring-up step 5: chains of launches that start each other.

use orind_kernels::first_light::{Kernel, OrderParams, next};
use orind_kernels::params::IntoBytes;
use tegra::buffer::Mailbox;

use super::launch::{Link, Recording};
use super::{Failure, Trial};

/// Default chain lengths.
pub const LENGTHS: [u32; 3] = [32, 256, 2048];
/// Initial word of a chain.
const FIRST: u32 = 0x5eed_0001;
/// Executions of one chain: the recording is submitted repeatedly.
const ROUNDS: usize = 2;

impl Trial {
    /// Step 5, order: chains of launches, each started by its predecessor and computing its word
    /// from the word that the predecessor wrote on another SM. Every word of a chain must be right.
    /// Tries `lengths` in ascending order and returns the longest one before the first failure; 0
    /// for none. [`Trial::stopped`] has the failure.
    pub fn order(&mut self, lengths: &[u32]) -> Result<u32, Failure> {
        let mut lengths = lengths.to_vec();
        lengths.sort_unstable();
        self.stopped = None;
        let mut longest = 0;
        for length in lengths {
            match self.chain(length) {
                Ok(()) => longest = length,
                Err(failure) => {
                    self.stopped = Some(failure);
                    // Checks that a channel is still available for the next step.
                    self.release()?;
                    break;
                }
            }
        }
        Ok(longest)
    }

    /// The failure that ended the last [`Trial::order`].
    #[must_use]
    pub const fn stopped(&self) -> Option<&Failure> {
        self.stopped.as_ref()
    }

    /// Runs one chain, recorded like the launches of a model.
    fn chain(&mut self, launches: u32) -> Result<(), Failure> {
        let mut expected = vec![FIRST];
        for index in 1..=launches {
            expected.push(next(expected[index as usize - 1], index));
        }
        let out = Mailbox::new(&self.space, 4 * expected.len() as u64)?;
        let grid = self.one_each();
        let described: Vec<_> = (1..=launches)
            .map(|index| {
                let params = OrderParams { out: out.address().get(), index, reserved: 0 };
                self.describe(Kernel::Order, grid, params.as_bytes())
            })
            .collect();
        let chain = Recording::new(&self.space, &described, Link::Dependence)?;
        for _ in 0..ROUNDS {
            // No word starts with its expected value, or is right by accident.
            let before: Vec<u32> = expected.iter().map(|word| !word).collect();
            out.write_words(0, &before)?;
            out.store_u32(0, FIRST)?;
            let ended = self.run(chain.body()).err();
            let mut found = vec![0; expected.len()];
            for (at, word) in found.iter_mut().enumerate() {
                *word = out.load_u32(4 * at as u64)?;
            }
            check(&found, &expected, ended)?;
        }
        Ok(())
    }
}

/// Judges a chain by its words and by the result of its wait.
fn check(found: &[u32], expected: &[u32], ended: Option<tegra::Error>) -> Result<(), Failure> {
    let launches = expected.len() as u32 - 1;
    let right =
        found.iter().zip(expected).take_while(|(found, expected)| found == expected).count();
    let untouched = found.iter().zip(expected).skip(right).all(|(found, right)| *found == !right);
    match (found.get(right), ended) {
        (None, None) => Ok(()),
        (None, Some(error)) => Err(error.into()),
        (Some(_), cause) if untouched => {
            Err(Failure::Stopped { done: right as u32 - 1, launches, cause })
        }
        // Reports a wrong result rather than a later error.
        (Some(&found), _) => {
            let expected = expected[right];
            Err(Failure::Order { launch: right as u32, launches, found, expected })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_judged_by_its_words() {
        let expected = [7, 1, 2, 3, 4];
        let said = |found: [u32; 5]| check(&found, &expected, None).unwrap_err().to_string();
        assert!(check(&expected, &expected, None).is_ok());
        assert!(said([7, 1, 2, !3, !4]).contains("stopped after 2 of 4 launches"));
        assert!(said([7, !1, !2, !3, !4]).contains("stopped after 0 of 4 launches"));
        // A launch that ran although its predecessor had not.
        assert!(said([7, 1, !2, 3, 4]).starts_with("launch 2 of 4 wrote 0xfffffffd"));
        assert!(said([7, 1, 2, 3, 9]).starts_with("launch 4 of 4 wrote 0x00000009"));
        let hung = tegra::Error::Lost { queue: 0, value: 5 };
        let failure = check(&[7, 1, !2, !3, !4], &expected, Some(hung.clone())).unwrap_err();
        let text = failure.to_string();
        assert!(text.contains("after 1 of 4 launches: point 5"), "{text}");
        assert!(check(&expected, &expected, Some(hung)).is_err());
    }
}
