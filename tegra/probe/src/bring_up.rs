//! Creation of channels: cost of each step, and the orders and flags that the driver refuses.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use tegra::abi::channel::{BIND_DETERMINISTIC, BIND_USERMODE};
use tegra::channel::{ChannelBuilder, RingMemory, Tsg};
use tegra::class::ClassId;
use tegra::context::{Context, Options};
use tegra::orin::Orin;
use tegra::pushbuffer::Engine;
use tegra::queue::Wake;
use tegra::space::{AddressSpace, L2};
use tegra_profile::facts;

use super::answer::{Answer, timed};
use super::error::Error;
use super::raw::{self, Nodes, Parts};
use super::rig::TIMEOUT;

/// Range of this project's address spaces.
const START: u64 = 0x20_0000;
const END: u64 = 0xff_0000_0000;
/// End of the range in programs that were seen to work before.
const OLD_END: u64 = 0xff_ffe0_0000;
const ENTRIES: u32 = 1024;

/// The proven order, with the time of each step.
pub(super) fn steps() -> Result<Answer, Error> {
    let mut answer = Answer::new();
    let (orin, ns) = timed(Orin::open)?;
    answer.fact("open_cpu_ns", ns);
    let (space, ns) = timed(|| AddressSpace::new(&orin, L2::Volatile))?;
    answer.fact("address_space_cpu_ns", ns);
    let (tsg, ns) = timed(|| Tsg::open(&orin))?;
    answer.fact("tsg_cpu_ns", ns);
    let (group, ns) = timed(|| tsg.subcontext(&space))?;
    answer.fact("subcontext_cpu_ns", ns).fact("subcontext", group.veid());
    let mut tokens = Vec::new();
    let mut channels = Vec::new();
    let rounds = [
        (Engine::Copy, "first_copy_object_cpu_ns"),
        (Engine::Compute, facts::GOLDEN.name),
        (Engine::Compute, "next_compute_object_cpu_ns"),
    ];
    for (engine, object) in rounds {
        let ring = RingMemory::new(&orin, ENTRIES)?;
        let (builder, ns) = timed(|| ChannelBuilder::open(&orin))?;
        answer.fact("channel_cpu_ns", ns);
        let (builder, ns) = timed(|| builder.bind_space(&group)?.bind_group()?.disable_watchdog())?;
        answer.fact("bind_cpu_ns", ns);
        let (builder, ns) = timed(|| builder.set_up(ring))?;
        answer.fact("set_up_cpu_ns", ns);
        let (channel, ns) = timed(|| builder.allocate_object(engine))?;
        answer.fact(object, ns);
        tokens.push(channel.token());
        channels.push(channel);
    }
    let syncpoint = channels[0].syncpoint()?;
    answer
        .fact("tokens", tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(" "))
        .fact("syncpoint_addr", syncpoint.address.get());
    let plain = channels.iter().all(|channel| channel.token() == channel.id());
    let below = (END..1 << 40).contains(&syncpoint.address.get());
    let text = "the proven order is accepted; a token is the channel id";
    Ok(answer.judged(plain && below, text))
}

/// Result of an attempt; the outer error is one of its preparation.
type Tried = Result<Result<(), Errno>, Errno>;
/// Name, result promised by the driver's sources, and the attempt. Each attempt has its own
/// objects: a subcontext does not outlive its last channel.
type Case = (&'static str, Option<Errno>, fn(&Parts<'_>) -> Tried);

const REFUSED: Option<Errno> = Some(Errno::EINVAL);
const FLAGS: u32 = BIND_DETERMINISTIC | BIND_USERMODE;

/// Sets a channel up `times` times, with memory for [`ENTRIES`].
fn set_up(parts: &Parts<'_>, channel: &OwnedFd, entries: u32, flags: u32, times: u32) -> Tried {
    let ring = parts.nodes.memory(u64::from(ENTRIES) * 8)?;
    let userd = parts.nodes.memory(4096)?;
    for _ in 1..times {
        raw::set_up(channel, &ring, &userd, entries, flags)?;
    }
    Ok(raw::set_up(channel, &ring, &userd, entries, flags))
}

/// Wrong orders and values, and some that are valid although they look wrong.
const CASES: &[Case] = &[
    ("big_pages", REFUSED, |p| Ok(p.nodes.space(0x1_0000, START, END).map(drop))),
    ("range_from_0", REFUSED, |p| Ok(p.nodes.space(0, 0, END).map(drop))),
    ("range_unaligned", REFUSED, |p| Ok(p.nodes.space(0, START, END - 4096).map(drop))),
    ("range_reversed", REFUSED, |p| Ok(p.nodes.space(0, END, START).map(drop))),
    ("range_to_old_end", None, |p| Ok(p.nodes.space(0, START, OLD_END).map(drop))),
    ("group_before_space", REFUSED, |p| Ok(p.bind_group(&p.nodes.channel()?))),
    ("space_twice", REFUSED, |p| {
        let channel = p.nodes.channel()?;
        p.bind_space(&channel)?;
        Ok(p.bind_space(&channel))
    }),
    ("group_twice", REFUSED, |p| Ok(p.bind_group(&p.bound(false)?))),
    ("set_up_unbound", REFUSED, |p| set_up(p, &p.nodes.channel()?, ENTRIES, FLAGS, 1)),
    ("set_up_watched", REFUSED, |p| set_up(p, &p.bound(true)?, ENTRIES, FLAGS, 1)),
    ("set_up_not_deterministic", REFUSED, |p| {
        set_up(p, &p.bound(false)?, ENTRIES, BIND_USERMODE, 1)
    }),
    ("ring_not_power_of_two", REFUSED, |p| set_up(p, &p.bound(false)?, 1000, FLAGS, 1)),
    ("ring_beyond_memory", REFUSED, |p| set_up(p, &p.bound(false)?, ENTRIES * 2, FLAGS, 1)),
    ("set_up", None, |p| set_up(p, &p.bound(false)?, ENTRIES, FLAGS, 1)),
    ("set_up_twice", Some(Errno::EEXIST), |p| set_up(p, &p.bound(false)?, ENTRIES, FLAGS, 2)),
    ("object_before_set_up", None, |p| Ok(raw::object(&p.bound(false)?, ClassId::Copy as u32))),
    ("object_unbound", REFUSED, |p| Ok(raw::object(&p.nodes.channel()?, ClassId::Copy as u32))),
    ("object_unknown", REFUSED, |p| Ok(raw::object(&p.bound(false)?, 0x1234))),
];

pub(super) fn orders() -> Result<Answer, Error> {
    let nodes = Nodes::open()?;
    let mut answer = Answer::new();
    let mut other = Vec::new();
    for (name, expected, attempt) in CASES {
        let parts = Parts::new(&nodes, START, END).map_err(Error::refused("a subcontext"))?;
        match attempt(&parts) {
            Ok(result) => {
                answer.fact(*name, outcome(result));
                if result.err() != *expected {
                    other.push(*name);
                }
            }
            Err(errno) => {
                answer.fact(*name, format!("not reached: {errno:?}"));
                other.push(*name);
            }
        }
    }
    let text = if other.is_empty() {
        format!("{} orders and values, all answered like the driver's sources", CASES.len())
    } else {
        format!("answered differently from the driver's sources: {}", other.join(", "))
    };
    Ok(answer.judged(other.is_empty(), text))
}

/// A driver's result as a word.
pub(super) fn outcome(result: Result<(), Errno>) -> String {
    result.map_or_else(|errno| format!("{errno:?}"), |()| "accepted".into())
}

/// A ring of 4 MiB: if the driver's area is too high, the GPU never fetches from it.
pub(super) fn large_ring() -> Result<Answer, Error> {
    const LARGE: u32 = 1 << 19;
    let space = AddressSpace::new(&Orin::open()?, L2::Volatile)?;
    let mut context = Context::new(&space, Options::default())?;
    let queue = context.add_queue(Engine::Copy, LARGE)?;
    let mut answer = Answer::new();
    answer.fact("ring_bytes", u64::from(LARGE) * 8).fact("range_end_addr", END);
    let ticket = context.submit(queue, &[], Wake::Quiet)?;
    let fetched = match context.wait(ticket, TIMEOUT / 4) {
        Ok(()) => true,
        Err(tegra::Error::Stalled { .. }) => false,
        Err(error) => return Err(error.into()),
    };
    answer.fact("fetched", fetched);
    let how = if fetched { "is" } else { "is never" };
    Ok(answer.judged(fetched, format!("a ring of 4 MiB {how} fetched from")))
}

/// Opens channels on the runlists of asynchronous copy engines, up to their token.
pub(super) fn copy_runlist() -> Result<Answer, Error> {
    let orin = Orin::open()?;
    let space = AddressSpace::new(&orin, L2::Volatile)?;
    let mut answer = Answer::new();
    let mut runlists: Vec<u32> = orin
        .engines()?
        .iter()
        .filter(|engine| engine.engine_id == 2)
        .filter_map(|engine| u32::try_from(engine.runlist_id).ok())
        .collect();
    runlists.sort_unstable();
    runlists.dedup();
    let mut opened = 0;
    for &runlist in &runlists {
        // A separate group: all channels of a group share a runlist.
        let group = Tsg::open(&orin)?.subcontext(&space)?;
        let channel = ChannelBuilder::open_on(&orin, runlist)
            .and_then(|builder| builder.bind_space(&group))
            .and_then(ChannelBuilder::bind_group)
            .and_then(ChannelBuilder::disable_watchdog)
            .and_then(|builder| builder.set_up(RingMemory::new(&orin, ENTRIES)?))
            .and_then(|builder| builder.allocate_object(Engine::Copy));
        let name = format!("runlist_{runlist}");
        match channel {
            Ok(channel) => {
                opened += 1;
                answer.fact(name, format!("token {:#x}", channel.token()));
            }
            Err(error) => {
                answer.fact(name, error.to_string());
            }
        }
    }
    answer.fact("runlists", runlists.len()).fact("opened", opened as u64);
    Ok(answer.measured(format!("{opened} of {} copy runlists take a channel", runlists.len())))
}
