//! GPU clocks, and requests for sensors that an Orin lacks.

use crate::driver::abi::ctrl::{CLK_GET_INFO, CLK_GET_RANGE, CLK_GET_VF_POINTS};
use crate::driver::dispatch::{Args, BAD_NESTED, Done, Handled, Member, layout};
use crate::driver::errno::{Refused, refusals};
use crate::user;

refusals! { "ctrl";
    COUNT = "CLK_GET_RANGE, CLK_GET_INFO", EINVAL,
        "unknown flags, too many or too few entries, an unknown domain or type",
        "os/linux/ioctl_ctrl.c:nvgpu_gpu_clk_get_range";
    POINTS = "CLK_GET_VF_POINTS", EINVAL, "flags, an unknown domain, or too few entries",
        "os/linux/ioctl_ctrl.c:nvgpu_gpu_clk_get_vf_points";
    SET = "CLK_SET_INFO", EINVAL, "always: setting clocks is not simulated",
        "not the driver's answer";
    SENSOR =
        "GET_EVENT_FD, GET_VOLTAGE, GET_CURRENT, GET_POWER, GET_TEMPERATURE, SET_THERM_ALERT_LIMIT",
        EINVAL, "not supported on this chip", "os/linux/ioctl_ctrl.c:nvgpu_gpu_get_voltage";
}

/// The GPU clock, the only domain.
const GPC_CLOCK: u32 = 1;
/// Frequencies of the domain in Hz, as devfreq lists them.
const FREQUENCIES: [u64; 11] = [
    306_000_000,
    408_000_000,
    510_000_000,
    612_000_000,
    714_000_000,
    816_000_000,
    918_000_000,
    1_020_000_000,
    1_122_000_000,
    1_224_000_000,
    super::facts::MAX_HZ,
];
/// Frequency of the 30 W mode in Hz.
const NOW: u64 = 612_000_000;

const SPECIFIC_DOMAINS: u32 = 1;

layout! { CLK_RANGE, 24 {
    0 => FLAGS: u32, 4 => CLK_DOMAIN: u32, 8 => MIN_HZ: u64, 16 => MAX_HZ: u64,
} }

layout! { CLK_INFO, 16 {
    0 => FLAGS: u16, 2 => CLK_TYPE: u16, 4 => CLK_DOMAIN: u32, 8 => FREQ_HZ: u64,
} }

/// Returns the number of entries to fill: all domains, or those that the entries name.
fn entries(
    args: &mut Args,
    flags: Member<u32>,
    num_entries: Member<u16>,
) -> Result<Option<u16>, Refused> {
    match (args.get(flags), args.get(num_entries)) {
        (0, 0) => {
            args.set(num_entries, 1);
            Ok(None)
        }
        (0, _) => Ok(Some(1)),
        // There is one domain with three kinds of frequency.
        (SPECIFIC_DOMAINS, count @ 0..=3) => Ok(Some(count)),
        _ => Err(&COUNT),
    }
}

/// Reports the lowest and highest frequency of each domain.
pub(super) fn range(args: &mut Args) -> Handled {
    use CLK_GET_RANGE::{CLK_RANGE_ENTRIES, FLAGS, NUM_ENTRIES};
    let specific = args.get(FLAGS) == SPECIFIC_DOMAINS;
    let Some(count) = entries(args, FLAGS, NUM_ENTRIES)? else { return Ok(Done::Ok) };
    for i in 0..u64::from(count) {
        let at = args.get(CLK_RANGE_ENTRIES).wrapping_add(CLK_RANGE::BYTES as u64 * i);
        let mut entry = Args::read(at, CLK_RANGE::BYTES).map_err(|_| &BAD_NESTED)?;
        if specific && entry.get(CLK_RANGE::CLK_DOMAIN) != GPC_CLOCK {
            return Err(&COUNT);
        }
        entry.set(CLK_RANGE::FLAGS, 0);
        entry.set(CLK_RANGE::CLK_DOMAIN, GPC_CLOCK);
        entry.set(CLK_RANGE::MIN_HZ, FREQUENCIES[0]);
        entry.set(CLK_RANGE::MAX_HZ, super::facts::MAX_HZ);
        user::write(at, entry.bytes()).map_err(|_| &BAD_NESTED)?;
    }
    args.set(NUM_ENTRIES, count);
    Ok(Done::Ok)
}

/// Reports the frequencies of a domain.
pub(super) fn points(args: &mut Args) -> Handled {
    use CLK_GET_VF_POINTS::{CLK_DOMAIN, CLK_VF_POINT_ENTRIES, FLAGS, MAX_ENTRIES, NUM_ENTRIES};
    let room = usize::from(args.get(MAX_ENTRIES));
    let count = FREQUENCIES.len() as u16;
    let fits = room == 0 || room >= FREQUENCIES.len();
    if args.get(FLAGS) != 0 || args.get(CLK_DOMAIN) != GPC_CLOCK || !fits {
        return Err(&POINTS);
    }
    if room == 0 {
        args.set(MAX_ENTRIES, count);
        args.set(NUM_ENTRIES, 0);
        return Ok(Done::Ok);
    }
    let list: Vec<u8> = FREQUENCIES.iter().flat_map(|hz| hz.to_le_bytes()).collect();
    user::write(args.get(CLK_VF_POINT_ENTRIES), &list).map_err(|_| &BAD_NESTED)?;
    args.set(NUM_ENTRIES, count);
    Ok(Done::Ok)
}

/// Reports the current frequency of each domain.
pub(super) fn info(args: &mut Args) -> Handled {
    use CLK_GET_INFO::{CLK_INFO_ENTRIES, CLK_TYPE, FLAGS, NUM_ENTRIES};
    const KINDS: std::ops::RangeInclusive<u16> = 1..=3;
    let specific = args.get(FLAGS) == SPECIFIC_DOMAINS;
    let wanted = args.get(CLK_TYPE);
    let Some(count) = entries(args, FLAGS, NUM_ENTRIES)? else { return Ok(Done::Ok) };
    for i in 0..u64::from(count) {
        let at = args.get(CLK_INFO_ENTRIES).wrapping_add(CLK_INFO::BYTES as u64 * i);
        let mut entry = Args::read(at, CLK_INFO::BYTES).map_err(|_| &BAD_NESTED)?;
        let (kind, domain) = if specific {
            (entry.get(CLK_INFO::CLK_TYPE), entry.get(CLK_INFO::CLK_DOMAIN))
        } else {
            (wanted, GPC_CLOCK)
        };
        if !KINDS.contains(&kind) || domain != GPC_CLOCK {
            return Err(&COUNT);
        }
        entry.set(CLK_INFO::FLAGS, 0);
        entry.set(CLK_INFO::CLK_TYPE, kind);
        entry.set(CLK_INFO::CLK_DOMAIN, domain);
        entry.set(CLK_INFO::FREQ_HZ, NOW);
        user::write(at, entry.bytes()).map_err(|_| &BAD_NESTED)?;
    }
    args.set(NUM_ENTRIES, count);
    Ok(Done::Ok)
}

/// Requests that always fail.
pub(super) fn unsupported(set: bool) -> Refused {
    if set { &SET } else { &SENSOR }
}
