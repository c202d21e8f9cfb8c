//! Switches of the compute engine between groups of channels: how long others wait for it, and what the driver
//! makes of that.
//!
//! A group's unit is what cannot be switched out of: under [`Preemption::Wfi`] everything from its first launch
//! until it has waited for idle, or has nothing left to do; under [`Preemption::Cta`] a launch; under
//! [`Preemption::Cilp`] nothing. Another client that wants the engine meanwhile waits, and each 100 ms of that raise an
//! interrupt. The driver adds them up for every channel of the group. For channels that submit in user mode
//! it sees no progress, so that the sum only grows until the channel is closed; beyond the channel's limit the
//! group is torn down. Source: common/fifo/channel.c:nvgpu_channel_update_and_check_ctxsw_timeout.
//!
//! The other client is a desktop, if there is one: a picture every 16 ms, and a timeslice is taken for short. Or it is another
//! group of the program, when a timeslice is over ([`super::turns`]).

use std::collections::{BTreeMap, BTreeSet};

use super::clock::TICK;
use super::interface::TsgId;

/// Milliseconds of waiting for which an interrupt is raised. Source: CTXSW_TIMEOUT_PERIOD_MS.
const PERIOD_MS: u32 = 100;
const PERIOD: u64 = PERIOD_MS as u64 * 1_000_000;
/// Milliseconds that a channel's switches may wait in all, unless the program sets another limit. Source:
/// NVGPU_DEFAULT_POLL_TIMEOUT_MS.
pub const SWITCH_LIMIT_MS: u32 = 3000;
/// Nanoseconds from one picture of the desktop to the next.
const FRAME: u64 = 16_000_000;
/// Ticks that a picture takes.
pub(crate) const PICTURE: u64 = 500_000 / TICK;

/// Where a group can be switched out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preemption {
    /// When the engine is idle.
    #[default]
    Wfi,
    /// Behind a launch (hardware: behind a block).
    Cta,
    /// Anywhere.
    Cilp,
}

/// What the driver knows of a channel.
#[derive(Debug)]
struct Account {
    usermode: bool,
    limit_ms: u32,
    waited_ms: u32,
    /// A ring entry was taken since the last interrupt.
    moved: bool,
}

/// What cannot be switched out of.
#[derive(Debug)]
struct Unit {
    /// When the desktop asks for the engine; never, without one.
    frame: u64,
    /// Since when another group waits.
    other: Option<u64>,
    /// Interrupts since then.
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

/// An interrupt, as it counts for one channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeout {
    pub(crate) channel: u16,
    pub(crate) waited_ms: u32,
    pub(crate) limit_ms: u32,
}

impl Timeout {
    /// Whether the driver tears the group down.
    pub(crate) fn is_fatal(&self) -> bool {
        self.waited_ms > self.limit_ms
    }
}

/// The groups and their units.
#[derive(Debug, Default)]
pub(crate) struct Switches {
    desktop: bool,
    groups: BTreeMap<TsgId, Group>,
}

impl Switches {
    /// Without groups, and with a desktop or without.
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

    /// A channel took a ring entry.
    pub(crate) fn moved(&mut self, tsg: TsgId, channel: u16) {
        let account = self.groups.get_mut(&tsg).and_then(|group| group.accounts.get_mut(&channel));
        if let Some(account) = account {
            account.moved = true;
        }
    }

    /// A launch begins.
    pub(crate) fn begin(&mut self, tsg: TsgId, channel: u16, now: u64) {
        let group = self.groups.entry(tsg).or_default();
        if group.preemption != Preemption::Cilp {
            group.busy.insert(channel);
            let frame = if self.desktop { (now / FRAME + 1) * FRAME } else { u64::MAX };
            group.unit.get_or_insert(Unit { frame, other: None, raised: 0 });
        }
    }

    /// Another group waits for the engine.
    pub(crate) fn wait(&mut self, tsg: TsgId, since: u64) {
        if let Some(unit) = self.groups.get_mut(&tsg).and_then(|group| group.unit.as_mut()) {
            unit.other = Some(since);
        }
    }

    /// Whether the engine goes on with what it has been sent before it is switched out.
    pub(crate) fn drains(&self, tsg: TsgId) -> bool {
        self.groups.get(&tsg).is_none_or(|group| group.preemption == Preemption::Wfi)
    }

    /// The interrupts due at a time, in their order, up to one that ends the group.
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

    /// A launch has ended; whether the desktop takes its turn.
    pub(crate) fn launched(&mut self, tsg: TsgId, channel: u16, now: u64) -> bool {
        let between = |group: &Group| group.preemption == Preemption::Cta;
        self.groups.get(&tsg).is_some_and(between) && self.idle(tsg, channel, now)
    }

    /// A channel's work is done; whether the desktop takes its turn.
    pub(crate) fn idle(&mut self, tsg: TsgId, channel: u16, now: u64) -> bool {
        let left = self.groups.get_mut(&tsg).and_then(|group| group.leave(channel));
        self.desktop && left.is_some_and(|unit| unit.frame <= now)
    }

    /// Whether a channel has work that nothing has waited for.
    pub(crate) fn is_busy(&self, tsg: TsgId, channel: u16) -> bool {
        self.groups.get(&tsg).is_some_and(|group| group.busy.contains(&channel))
    }
}

impl Group {
    /// A channel's work is done; the unit, if it was the last.
    fn leave(&mut self, channel: u16) -> Option<Unit> {
        self.busy.remove(&channel);
        self.unit.take_if(|_| self.busy.is_empty())
    }
}
