//! Turns of TSGs on the graphics engine: one TSG at a time has it, with the host unit and the copy
//! engine of its runlist.
//!
//! The runlist contains the TSGs in the order in which they were opened, each followed by all TSGs
//! of the next higher interleave level. It is processed round-robin: a TSG with pending work has
//! the engine for its timeslice, or until it has nothing left to do. When the timeslice is over and
//! another TSG waits, nothing more is sent to the engine, and it is switched at the next point that
//! [`super::switch`] allows. Source: common/fifo/runlist.c:nvgpu_runlist_construct_locked.
//!
//! [`super::schedule`] decides which TSGs have work and when a turn ends.

use std::collections::BTreeMap;

use super::interface::TsgId;

/// Default timeslice in microseconds. Source: NVGPU_TSG_TIMESLICE_DEFAULT_US.
pub const TIMESLICE_US: u32 = 1024;
/// The highest interleave level.
const HIGHEST: u32 = 2;

/// Share of a TSG in the engine.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// Timeslice in nanoseconds.
    timeslice: u64,
    level: u32,
    /// Time of the doorbell that waits for a turn.
    asked: Option<u64>,
}

/// The runlist, and the TSG that has the engine.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    shares: BTreeMap<TsgId, Share>,
    runlist: Vec<TsgId>,
    /// Position in the runlist of the current or last turn.
    place: usize,
    holder: Option<TsgId>,
    /// End of the holder's timeslice.
    until: u64,
    /// The timeslice is over and another TSG waits.
    leaving: bool,
}

impl Turns {
    pub(crate) fn open(&mut self, tsg: TsgId) {
        let timeslice = u64::from(TIMESLICE_US) * 1000;
        self.shares.insert(tsg, Share { timeslice, level: 0, asked: None });
        self.arrange();
    }

    pub(crate) fn close(&mut self, tsg: TsgId) {
        self.shares.remove(&tsg);
        if self.holder == Some(tsg) {
            (self.holder, self.leaving) = (None, false);
        }
        self.arrange();
    }

    /// Sets the timeslice from the next turn on.
    pub(crate) fn set_timeslice(&mut self, tsg: TsgId, us: u32) {
        if let Some(share) = self.shares.get_mut(&tsg) {
            share.timeslice = u64::from(us) * 1000;
        }
    }

    pub(crate) fn set_interleave(&mut self, tsg: TsgId, level: u32) {
        if let Some(share) = self.shares.get_mut(&tsg) {
            share.level = level.min(HIGHEST);
        }
        self.arrange();
    }

    /// Rebuilds the runlist and continues after the first entry of the holder.
    fn arrange(&mut self) {
        self.runlist.clear();
        self.append(0);
        let place = self.runlist.iter().position(|tsg| Some(*tsg) == self.holder);
        self.place = place.unwrap_or(0);
    }

    /// Appends the TSGs of a level, each followed by those of the next level; if the level is
    /// empty, only those.
    fn append(&mut self, level: u32) {
        let of_level = |share: &Share| share.level == level;
        let groups = self.shares.iter().filter(|(_, share)| of_level(share));
        let groups: Vec<TsgId> = groups.map(|(tsg, _)| *tsg).collect();
        for tsg in &groups {
            self.runlist.push(*tsg);
            if level < HIGHEST {
                self.append(level + 1);
            }
        }
        if groups.is_empty() && level < HIGHEST {
            self.append(level + 1);
        }
    }

    /// Returns the TSG that has the engine or had it last.
    pub(crate) fn holder(&self) -> Option<TsgId> {
        self.holder
    }

    /// Returns whether the engine is about to be switched.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Returns whether a timeslice has ended and was not handled yet.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        self.holder.is_some() && !self.leaving && now >= self.until
    }

    /// Requests a turn for a doorbell that was rung at a time.
    pub(crate) fn ask(&mut self, tsg: TsgId, rung: u64) {
        if let Some(share) = self.shares.get_mut(&tsg) {
            share.asked.get_or_insert(rung);
        }
    }

    /// Returns the position of the next TSG with work; the holder comes last.
    pub(crate) fn next(&self, wants: impl Fn(TsgId) -> bool) -> Option<(usize, TsgId)> {
        let places = self.runlist.len();
        let round = (1..=places).map(|step| (self.place + step) % places);
        round.map(|place| (place, self.runlist[place])).find(|(_, tsg)| wants(*tsg))
    }

    /// Continues the round from another position after an idle period.
    pub(crate) fn stand(&mut self, place: usize) {
        self.place = place;
    }

    /// Returns the number of positions in a round.
    pub(crate) fn places(&self) -> usize {
        self.runlist.len()
    }

    /// Ends the holder's timeslice because another TSG waits; returns since when.
    pub(crate) fn leave(&mut self, other: TsgId) -> u64 {
        self.leaving = true;
        let asked = self.shares.get(&other).and_then(|share| share.asked);
        asked.map_or(self.until, |asked| asked.max(self.until))
    }

    /// Assigns the engine to the TSG at a position for its timeslice; returns the time of its
    /// request, if known.
    pub(crate) fn give(&mut self, place: usize, now: u64) -> Option<u64> {
        let tsg = *self.runlist.get(place)?;
        let share = self.shares.get_mut(&tsg)?;
        (self.place, self.holder, self.leaving) = (place, Some(tsg), false);
        self.until = now + share.timeslice;
        share.asked.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runlist(levels: &[u32]) -> Vec<u32> {
        let mut turns = Turns::default();
        for (id, level) in (0..).zip(levels) {
            turns.open(TsgId(id));
            turns.set_interleave(TsgId(id), *level);
        }
        turns.runlist.iter().map(|tsg| tsg.0).collect()
    }

    #[test]
    fn higher_levels_come_again_behind_each_of_the_level_below() {
        assert_eq!(runlist(&[]), [0; 0]);
        assert_eq!(runlist(&[0, 0, 0]), [0, 1, 2]);
        assert_eq!(runlist(&[0, 2, 0]), [0, 1, 2, 1]);
        assert_eq!(runlist(&[2, 0, 2, 0]), [1, 0, 2, 3, 0, 2]);
        assert_eq!(runlist(&[0, 1, 2, 1]), [0, 1, 2, 3, 2]);
        assert_eq!(runlist(&[1, 2]), [0, 1]);
        assert_eq!(runlist(&[2, 2]), [0, 1]);
    }

    #[test]
    fn the_round_skips_idle_tsgs_and_returns_to_them() {
        let mut turns = Turns::default();
        (0..3).for_each(|id| turns.open(TsgId(id)));
        let next = |turns: &Turns, wants: &[u32]| {
            turns.next(|tsg| wants.contains(&tsg.0)).map(|(place, _)| place)
        };
        assert_eq!(turns.give(0, 0), None);
        assert_eq!(next(&turns, &[0, 1, 2]), Some(1));
        assert_eq!(next(&turns, &[0, 2]), Some(2));
        assert_eq!(next(&turns, &[0]), Some(0));
        assert_eq!(next(&turns, &[]), None);
        assert!(!turns.is_due(1_023_999) && turns.is_due(1_024_000));
        turns.close(TsgId(0));
        assert!(!turns.is_due(u64::MAX));
        assert_eq!(next(&turns, &[1, 2]), Some(1), "behind the first place");
    }
}
