//! GPU addresses: valid ranges of an address space, placement of buffers, the largest reservation,
//! and page sizes.

use tegra::buffer::Scratch;
use tegra::orin::Orin;
use tegra::space::{AddressSpace, L2};

use super::answer::Answer;
use super::bring_up::outcome;
use super::error::Error;
use super::raw::{self, Nodes};

const START: u64 = 0x20_0000;
const END: u64 = 0xff_0000_0000;
const PAGE: u64 = 4096;

pub(super) fn placement() -> Result<Answer, Error> {
    let space = AddressSpace::new(&Orin::open()?, L2::Volatile)?;
    let mut answer = Answer::new();
    let sizes = [
        ("first_4k", PAGE),
        ("next_4k", PAGE),
        ("first_1m", 1 << 20),
        ("first_16m", 16 << 20),
        ("first_64m", 64 << 20),
    ];
    let mut buffers = Vec::new();
    for (name, bytes) in sizes {
        let buffer = Scratch::new(&space, bytes)?;
        answer.fact(format!("{name}_addr"), buffer.address().get());
        buffers.push(buffer);
    }
    let freed = buffers.remove(1).address().get();
    let again = Scratch::new(&space, PAGE)?.address().get();
    answer.fact("freed_address_again", again == freed);
    let top = buffers[0].address().get();
    answer.fact("high_first", top >= END / 2);
    let inside = buffers.iter().all(|buffer| {
        let at = buffer.address().get();
        at >= START && at + buffer.bytes() <= END
    });
    let text = format!("the first page lands at {top:#x} of a range up to {END:#x}");
    Ok(answer.judged(inside, text))
}

/// Address bits of the host unit, semaphores and QMDs.
const ADDRESS_BITS: u32 = 40;

/// The highest accepted end among powers of two and the ends 4 GiB below them.
fn highest_end(nodes: &Nodes, bits: std::ops::RangeInclusive<u32>) -> u64 {
    let ends = bits.flat_map(|bits| [(1u64 << bits) - (4 << 30), 1 << bits]);
    ends.filter(|end| nodes.space(0, START, *end).is_ok()).max().unwrap_or(0)
}

/// Ends beyond the engines' addresses.
pub(super) fn beyond() -> Result<Answer, Error> {
    let highest = highest_end(&Nodes::open()?, ADDRESS_BITS + 1..=49);
    let mut answer = Answer::new();
    answer.fact("highest_end_addr", highest);
    Ok(answer.measured(match highest {
        0 => "no range may end there".to_owned(),
        highest => format!("ranges may end at {highest:#x}"),
    }))
}

/// Valid ranges of an address space, and the largest reservation in one.
pub(super) fn ranges() -> Result<Answer, Error> {
    let nodes = Nodes::open()?;
    let mut answer = Answer::new();
    let highest = highest_end(&nodes, 36..=ADDRESS_BITS);
    answer.fact("highest_end_addr", highest);
    let starts = [PAGE, 1 << 16, 1 << 20, 1 << 21];
    let lowest = starts.into_iter().find(|&start| nodes.space(0, start, END).is_ok());
    answer.fact("lowest_start_addr", lowest.unwrap_or(0));
    let space = nodes.space(0, START, END).map_err(Error::refused("an address space"))?;
    // Powers of two, then down to a page by halves.
    let (mut most, mut step) = (0u64, 1u64 << (40 - 12));
    while step > 0 {
        if raw::reserve(&space, most + step, PAGE as u32).is_ok() {
            most += step;
        }
        step /= 2;
    }
    answer.fact("largest_piece_bytes", most * PAGE);
    let known = highest >= END && lowest == Some(1 << 21);
    let text = format!(
        "ranges start at 2 MiB at least and end at {highest:#x} at most; the largest piece is of \
         {} GiB",
        (most * PAGE) >> 30
    );
    Ok(answer.judged(known, text))
}

pub(super) fn page_sizes() -> Result<Answer, Error> {
    let nodes = Nodes::open()?;
    let space = nodes.space(0, START, END).map_err(Error::refused("an address space"))?;
    let mut answer = Answer::new();
    let mut taken = Vec::new();
    for kib in [4u32, 64, 128, 2048] {
        let result = raw::reserve(&space, 1, kib << 10).map(drop);
        if result.is_ok() {
            taken.push(format!("{kib} KiB"));
        }
        answer.fact(format!("pages_of_{kib}k"), outcome(result));
    }
    Ok(answer.judged(taken == ["4 KiB"], format!("pages of {}", taken.join(", "))))
}
