//! Compute engine switches between TSGs: waiting times of other clients, and the driver's timeouts.
//!
//! A *unit* is work of a TSG that cannot be preempted. Under [`Preemption::Wfi`] it is everything
//! from the first launch until the TSG has waited for idle or has no work left; under
//! [`Preemption::Cta`] a launch; under [`Preemption::Cilp`] nothing. An interrupt is raised for
//! every 100 ms for which another client waits. The driver adds these times up for every channel of
//! the TSG. It sees no progress of channels that submit in user mode, so their sum grows until the
//! channel is closed. If the sum exceeds the channel's limit, the driver tears the TSG down. Source:
//! common/fifo/channel.c:nvgpu_channel_update_and_check_ctxsw_timeout.
//!
//! The other client is a desktop, if enabled, which renders a frame every 16 ms and needs a short
//! timeslice, or another TSG of the program after the end of a timeslice ([`super::turns`]).

use std::collections::{BTreeMap, BTreeSet};

use super::clock::TICK;
use super::interface::TsgId;

/// Milliseconds of waiting per interrupt. Source: CTXSW_TIMEOUT_PERIOD_MS.
const PERIOD_MS: u32 = 100;
const PERIOD: u64 = PERIOD_MS as u64 * 1_000_000;
/// Default limit of a channel's total waiting time in milliseconds. Source:
/// NVGPU_DEFAULT_POLL_TIMEOUT_MS.
pub const SWITCH_LIMIT_MS: u32 = 3000;
/// Nanoseconds between two frames of the desktop.
const FRAME: u64 = 16_000_000;
/// Ticks of a frame.
pub(crate) const PICTURE: u64 = 500_000 / TICK;

/// Points at which a TSG can be switched out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preemption {
    /// When the engine is idle.
    #[default]
    Wfi,
    /// After a launch (hardware: after a block).
    Cta,
    /// Anywhere.
    Cilp,
}

/// The driver's account of a channel.
#[derive(Debug)]
struct Account {
    usermode: bool,
    limit_ms: u32,
    waited_ms: u32,
    /// A ring entry was fetched since the last interrupt.
    moved: bool,
}

/// Work that cannot be interrupted.
#[derive(Debug)]
struct Unit {
    /// Time of the desktop's next request; never without a desktop.
    frame: u64,
    /// Time since which another TSG waits.
    other: Option<u64>,
    /// Number of interrupts since then.
    raised: u64,
}

#[derive(Debug, Default)]
struct Group {
    preemption: Preemption,
    accounts: BTreeMap<u16, Account>,
    /// Channels with work that nothing has waited for.
    busy: BTreeSet<u16>,
    unit: Option<Unit>,
}

/// An interrupt in the account of one channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeout {
    pub(crate) channel: u16,
    pub(crate) waited_ms: u32,
    pub(crate) limit_ms: u32,
}

impl Timeout {
    /// Returns whether the driver tears down the TSG.
    pub(crate) fn is_fatal(&self) -> bool {
        self.waited_ms > self.limit_ms
    }
}

/// TSGs and their units.
#[derive(Debug, Default)]
pub(crate) struct Switches {
    desktop: bool,
    groups: BTreeMap<TsgId, Group>,
}

impl Switches {
    /// Creates the state without TSGs; `desktop` adds the desktop.
    pub(crate) fn new(desktop: bool) -> Self {
        Self { desktop, ..Self::default() }
    }

    pub(crate) fn open(&mut self, tsg: TsgId, channel: u16, usermode: bool, limit_ms: u32) {
        let account = Account { usermode, limit_ms, waited_ms: 0, moved: false };
        self.groups.entry(tsg).or_default().accounts.insert(channel, account);
    }

    pub(crate) fn close(&mut self, tsg: TsgId, channel: u16) {
        if let Some(group) = self.groups.get_mut(&tsg) {
            group.accounts.remove(&channel);
            group.leave(channel);
        }
    }

    pub(crate) fn close_group(&mut self, tsg: TsgId) {
        self.groups.remove(&tsg);
    }

    pub(crate) fn set_preemption(&mut self, tsg: TsgId, preemption: Preemption) {
        self.groups.entry(tsg).or_default().preemption = preemption;
    }

    pub(crate) fn set_limit(&mut self, channel: u16, limit_ms: u32) {
        let accounts =
            self.groups.values_mut().filter_map(|group| group.accounts.get_mut(&channel));
        accounts.for_each(|account| account.limit_ms = limit_ms);
    }

    /// Records that a channel fetched a ring entry.
    pub(crate) fn moved(&mut self, tsg: TsgId, channel: u16) {
        let account = self.groups.get_mut(&tsg).and_then(|group| group.accounts.get_mut(&channel));
        if let Some(account) = account {
            account.moved = true;
        }
    }

    /// Records the start of a launch.
    pub(crate) fn begin(&mut self, tsg: TsgId, channel: u16, now: u64) {
        let group = self.groups.entry(tsg).or_default();
        if group.preemption != Preemption::Cilp {
            group.busy.insert(channel);
            let frame = if self.desktop { (now / FRAME + 1) * FRAME } else { u64::MAX };
            group.unit.get_or_insert(Unit { frame, other: None, raised: 0 });
        }
    }

    /// Records that another TSG waits for the engine.
    pub(crate) fn wait(&mut self, tsg: TsgId, since: u64) {
        if let Some(unit) = self.groups.get_mut(&tsg).and_then(|group| group.unit.as_mut()) {
            unit.other = Some(since);
        }
    }

    /// Returns whether the engine completes all sent work before it is switched out.
    pub(crate) fn drains(&self, tsg: TsgId) -> bool {
        self.groups.get(&tsg).is_none_or(|group| group.preemption == Preemption::Wfi)
    }

    /// Returns the interrupts due at a time, in order, up to one that ends the TSG.
    pub(crate) fn timeouts(&mut self, tsg: TsgId, now: u64) -> Vec<Timeout> {
        let mut timeouts = Vec::new();
        let group = self.groups.get_mut(&tsg);
        let Some(Group { accounts, unit: Some(unit), .. }) = group else { return timeouts };
        let since = unit.other.map_or(unit.frame, |other| other.min(unit.frame));
        while now.saturating_sub(since) >= (unit.raised + 1) * PERIOD {
            unit.raised += 1;
            for (channel, account) in &mut *accounts {
                if account.moved && !account.usermode {
                    account.waited_ms = 0;
                }
                account.moved = false;
                account.waited_ms = account.waited_ms.saturating_add(PERIOD_MS);
                let Account { waited_ms, limit_ms, .. } = *account;
                let timeout = Timeout { channel: *channel, waited_ms, limit_ms };
                timeouts.push(timeout);
                if timeout.is_fatal() {
                    return timeouts;
                }
            }
        }
        timeouts
    }

    /// Records the end of a launch; returns whether the desktop runs now.
    pub(crate) fn launched(&mut self, tsg: TsgId, channel: u16, now: u64) -> bool {
        let between = |group: &Group| group.preemption == Preemption::Cta;
        self.groups.get(&tsg).is_some_and(between) && self.idle(tsg, channel, now)
    }

    /// Records that a channel is idle; returns whether the desktop runs now.
    pub(crate) fn idle(&mut self, tsg: TsgId, channel: u16, now: u64) -> bool {
        let left = self.groups.get_mut(&tsg).and_then(|group| group.leave(channel));
        self.desktop && left.is_some_and(|unit| unit.frame <= now)
    }

    /// Returns whether a channel has work that nothing has waited for.
    pub(crate) fn is_busy(&self, tsg: TsgId, channel: u16) -> bool {
        self.groups.get(&tsg).is_some_and(|group| group.busy.contains(&channel))
    }
}

impl Group {
    /// Removes an idle channel; returns the unit if it was the last one.
    fn leave(&mut self, channel: u16) -> Option<Unit> {
        self.busy.remove(&channel);
        self.unit.take_if(|_| self.busy.is_empty())
    }
}
