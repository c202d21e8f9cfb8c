//! Constant banks in flight: compares their contents at the doorbell with those at completion. A
//! changed word that the code reads is a mistake. Other changed words mean that the bank is
//! declared too large; no result was at risk.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::access::Core;
use super::interface::ConstantReads;
use super::qmd::{Bank, Qmd};
use super::shadow::{Shadow, WATCHED, each_page};
use crate::finding::Rule;
use crate::mmu::{Access, Mmu};

const WORD: usize = 4;

/// Earlier contents of a constant bank.
#[derive(Debug)]
pub(crate) struct BankCopy {
    index: u8,
    bank: Bank,
    /// Time of the copy, in GPU writes.
    taken: u64,
    /// Address, inode of the buffer, and contents.
    pages: Vec<(u64, u64, Vec<u8>)>,
}

/// A word that changed.
struct Changed {
    offset: u32,
    then: u32,
    now: u32,
}

/// Copies the constant banks of a QMD.
pub(crate) fn copy_banks(mmu: &Mmu, shadow: &Shadow, qmd: &Qmd) -> Vec<BankCopy> {
    let banks = (0..).zip(qmd.constants());
    banks.filter_map(|(index, bank)| Some(BankCopy::take(mmu, shadow, index, bank?))).collect()
}

/// Constant banks of launches in flight, by QMD, in the order of submission.
#[derive(Debug, Default)]
pub(crate) struct InFlight(BTreeMap<u64, VecDeque<Vec<BankCopy>>>);

impl InFlight {
    pub(crate) fn send(&mut self, qmd: u64, banks: Vec<BankCopy>) {
        self.0.entry(qmd).or_default().push_back(banks);
    }

    /// Returns the banks of a launch that begins.
    pub(crate) fn begin(&mut self, qmd: u64) -> Option<Vec<BankCopy>> {
        let sent = self.0.get_mut(&qmd)?;
        let first = sent.pop_front();
        if sent.is_empty() {
            self.0.remove(&qmd);
        }
        first
    }

    /// Forgets all launches in flight.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

impl BankCopy {
    fn take(mmu: &Mmu, shadow: &Shadow, index: u8, bank: Bank) -> Self {
        let mut pages = Vec::new();
        each_page(bank.address, u64::from(bank.bytes).min(WATCHED), |va, bytes| {
            if let Some((inode, data)) = contents(mmu, va, bytes) {
                pages.push((va, inode, data));
            }
        });
        Self { index, bank, taken: shadow.now(), pages }
    }

    /// Returns the words that the CPU has changed since.
    fn changed<'a>(
        &'a self,
        mmu: &'a Mmu,
        shadow: &'a Shadow,
    ) -> impl Iterator<Item = Changed> + 'a {
        self.pages.iter().flat_map(move |(va, inode, then)| {
            let now = contents(mmu, *va, then.len() as u64)
                .filter(|(now_inode, now)| now_inode == inode && now != then)
                .filter(|_| !shadow.has_written(mmu, *va, then.len() as u64, self.taken))
                .map(|(_, now)| now)
                .unwrap_or_default();
            let first = (va - self.bank.address) as u32;
            let pairs = then.chunks(WORD).zip(now.chunks(WORD).map(word).collect::<Vec<_>>());
            let offsets = (first..).step_by(WORD);
            offsets
                .zip(pairs)
                .map(|(offset, (then, now))| Changed { offset, then: word(then), now })
                .filter(|changed| changed.then != changed.now)
                .collect::<Vec<_>>()
        })
    }

    /// Reports changes until the completion of a QMD's launch; without `reads`, all of a bank
    /// counts as read.
    pub(crate) fn check(
        &self,
        core: &mut Core,
        mmu: &Mmu,
        channel: u16,
        qmd: u64,
        reads: Option<&ConstantReads>,
    ) {
        let (index, Bank { address, bytes, .. }) = (self.index, self.bank);
        let mine = |reads: &'_ ConstantReads| -> Vec<Range<u32>> {
            let of = reads.iter().filter(|(bank, _)| *bank == index);
            of.map(|(_, range)| range.clone()).collect()
        };
        let reads = reads.map(mine);
        let is_read = |changed: &Changed| {
            let word = changed.offset..changed.offset + WORD as u32;
            reads.as_ref().is_none_or(|reads| {
                reads.iter().any(|range| range.start < word.end && word.start < range.end)
            })
        };
        let (read, unread): (Vec<_>, Vec<_>) = self.changed(mmu, &core.shadow).partition(is_read);
        if let Some(Changed { offset, then, now }) = read.first() {
            let message = format!(
                "QMD {qmd:#x}, constant bank {index}: the word at +{offset:#x}, GPU address {:#x}, was {then:#010x} when \
                 the launch was handed over and is {now:#010x} at its end, and the code reads it; give each launch \
                 constants of its own until it has completed",
                address + u64::from(*offset)
            );
            core.find(Rule::ConstantsRewritten, Some(channel), message);
        } else if let Some(Changed { offset, .. }) = unread.first() {
            let end = reads.iter().flatten().map(|range| range.end.min(bytes)).max().unwrap_or(0);
            let message = format!(
                "QMD {qmd:#x}, constant bank {index} at {address:#x}: {bytes:#x} bytes are declared, the code reads none \
                 from +{end:#x} on, and the word at +{offset:#x} changed before the launch completed; declare what is \
                 read (CONSTANT_BUFFER_SIZE_SHIFTED4 counts units of 16 bytes)"
            );
            core.find(Rule::ConstantsOversized, Some(channel), message);
        }
    }
}

fn word(bytes: &[u8]) -> u32 {
    let mut word = [0; WORD];
    word[..bytes.len()].copy_from_slice(bytes);
    u32::from_le_bytes(word)
}

/// Returns the inode of the buffer and the contents of a part of a page.
fn contents(mmu: &Mmu, va: u64, bytes: u64) -> Option<(u64, Vec<u8>)> {
    let piece = mmu.resolve(va, bytes, Access::Read).ok()?.pop()?;
    let mut data = vec![0; bytes as usize];
    piece.buffer.read(piece.offset, &mut data).ok()?;
    Some((piece.buffer.inode(), data))
}
