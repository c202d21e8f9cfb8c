//! Read-only mappings: whether the GPU reads and executes through them, and the effect of a write.

use tegra::abi::address_space::MAP_ACCESS_READ_ONLY;
use tegra::abi::nvmap::Caching;
use tegra::buffer::{Attributes, Mailbox, ProbeBuffer};
use tegra_profile::facts;

use super::answer::Answer;
use super::error::Error;
use super::results::{Fixture, product_q8_0};
use super::rig::{Rig, TIMEOUT};

const BYTES: u64 = 64 << 10;
const WORDS: u64 = BYTES / 8;
const READ_ONLY: Attributes =
    Attributes { caching: Caching::InnerCacheable, map_flags: MAP_ACCESS_READ_ONLY };

fn pattern(word: u64) -> u64 {
    (word + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The copy engine reads, and a kernel reads its matrix, its literals and its code, through
/// read-only mappings.
pub(super) fn reads() -> Result<Answer, Error> {
    let mut rig = Rig::new()?;
    let from = ProbeBuffer::new(&rig.space, BYTES, READ_ONLY)?;
    from.fill(WORDS, pattern)?;
    let to = Mailbox::new(&rig.space, BYTES)?;
    rig.copy(from.address(), to.address(), BYTES)?;
    let mut copied = 0;
    for word in 0..WORDS {
        copied += u64::from(to.load_u64(word * 8)? != pattern(word));
    }
    let product = product_q8_0(&mut Fixture::new(&mut rig, MAP_ACCESS_READ_ONLY)?)?;
    let works = copied == 0 && product.wrong == 0;
    let mut answer = Answer::new();
    answer
        .fact(facts::READ_ONLY.name, works)
        .fact("copied_wrong", copied)
        .fact("product_wrong", product.wrong);
    let text = match works {
        true => "copy engine and kernels read and run through them",
        false => "words read through them are wrong",
    };
    Ok(answer.judged(works, text))
}

/// A copy to memory that is mapped read-only.
pub(super) fn write() -> Result<Answer, Error> {
    let mut rig = Rig::new()?;
    let from = Mailbox::new(&rig.space, BYTES)?;
    from.write(0, &[0xa5; BYTES as usize])?;
    let to = ProbeBuffer::new(&rig.space, BYTES, READ_ONLY)?;
    to.fill(WORDS, pattern)?;
    let mut answer = Answer::new();
    let copy = rig.copier.copy(&mut rig.context, from.address(), to.address(), BYTES)?;
    let notice = match rig.context.wait(copy, TIMEOUT) {
        Ok(()) => "nothing".to_owned(),
        Err(tegra::Error::Fault(fault)) => {
            rig.context.rebuild()?;
            fault.code.map_or("a fault without a code".into(), |code| code.to_string())
        }
        Err(error) => return Err(error.into()),
    };
    let written = to.mismatches(WORDS, |word, found| found == pattern(word))?;
    let faulted = notice != "nothing";
    let text = match (faulted, written) {
        (true, 0) => "it faults, and nothing is written".to_owned(),
        (true, written) => format!("it faults, and {written} double words are written"),
        (false, 0) => "no error is reported and nothing is written".to_owned(),
        (false, written) => format!("no error is reported, and {written} double words are written"),
    };
    answer.fact("notice", notice).fact("written", written);
    Ok(answer.judged(faulted && written == 0, text))
}
