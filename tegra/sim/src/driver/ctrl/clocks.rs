//! GPU clocks, and the sensors that an Orin does not have.

use super::{Args, BAD_NESTED, Done, Handled};
use crate::driver::errno::{Refused, refusals};
use crate::driver::user;

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

/// The GPU's clock, the only domain.
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
/// The frequency that the 30 W mode runs at, in Hz.
const NOW: u64 = 612_000_000;

const SPECIFIC_DOMAINS: u32 = 1;

/// How many entries to fill: all domains, or those that the entries name.
fn entries(args: &mut Args) -> Result<Option<u16>, Refused> {
    let (flags, count) = (args.u32(0), u16::from_le_bytes([args.u8(6), args.u8(7)]));
    match (flags, count) {
        (0, 0) => {
            args.set(6, 1u16.to_le_bytes());
            Ok(None)
        }
        (0, _) => Ok(Some(1)),
        // One domain, and three kinds of frequency.
        (SPECIFIC_DOMAINS, 0..=3) => Ok(Some(count)),
        _ => Err(&COUNT),
    }
}

/// Lowest and highest frequency of each domain, in entries of 24 bytes.
pub(super) fn range(args: &mut Args) -> Handled {
    let specific = args.u32(0) == SPECIFIC_DOMAINS;
    let Some(count) = entries(args)? else { return Ok(Done::Ok) };
    for i in 0..u64::from(count) {
        let at = args.u64(8).wrapping_add(24 * i);
        let mut entry = user::read_array::<24>(at).map_err(|_| &BAD_NESTED)?;
        let domain = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        if specific && domain != GPC_CLOCK {
            return Err(&COUNT);
        }
        entry[..4].fill(0);
        entry[4..8].copy_from_slice(&GPC_CLOCK.to_le_bytes());
        entry[8..16].copy_from_slice(&FREQUENCIES[0].to_le_bytes());
        entry[16..].copy_from_slice(&super::facts::MAX_HZ.to_le_bytes());
        user::write(at, &entry).map_err(|_| &BAD_NESTED)?;
    }
    args.set(6, count.to_le_bytes());
    Ok(Done::Ok)
}

/// The frequencies of a domain.
pub(super) fn points(args: &mut Args) -> Handled {
    let (flags, domain) = (args.u32(0), args.u32(4));
    let room = usize::from(u16::from_le_bytes([args.u8(8), args.u8(9)]));
    let count = FREQUENCIES.len() as u16;
    if flags != 0 || domain != GPC_CLOCK || (room != 0 && room < FREQUENCIES.len()) {
        return Err(&POINTS);
    }
    if room == 0 {
        args.set(8, count.to_le_bytes());
        args.set(10, 0u16.to_le_bytes());
        return Ok(Done::Ok);
    }
    let list: Vec<u8> = FREQUENCIES.iter().flat_map(|hz| hz.to_le_bytes()).collect();
    user::write(args.u64(16), &list).map_err(|_| &BAD_NESTED)?;
    args.set(10, count.to_le_bytes());
    Ok(Done::Ok)
}

/// The present frequency of each domain, in entries of 16 bytes.
pub(super) fn info(args: &mut Args) -> Handled {
    const KINDS: std::ops::RangeInclusive<u16> = 1..=3;
    let specific = args.u32(0) == SPECIFIC_DOMAINS;
    let wanted = u16::from_le_bytes([args.u8(4), args.u8(5)]);
    let Some(count) = entries(args)? else { return Ok(Done::Ok) };
    for i in 0..u64::from(count) {
        let at = args.u64(8).wrapping_add(16 * i);
        let mut entry = user::read_array::<16>(at).map_err(|_| &BAD_NESTED)?;
        let (kind, domain) = if specific {
            let domain = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            (u16::from_le_bytes([entry[2], entry[3]]), domain)
        } else {
            (wanted, GPC_CLOCK)
        };
        if !KINDS.contains(&kind) || domain != GPC_CLOCK {
            return Err(&COUNT);
        }
        entry[..2].fill(0);
        entry[2..4].copy_from_slice(&kind.to_le_bytes());
        entry[4..8].copy_from_slice(&domain.to_le_bytes());
        entry[8..].copy_from_slice(&NOW.to_le_bytes());
        user::write(at, &entry).map_err(|_| &BAD_NESTED)?;
    }
    args.set(6, count.to_le_bytes());
    Ok(Done::Ok)
}

/// Requests that always fail.
pub(super) fn unsupported(set: bool) -> Refused {
    if set { &SET } else { &SENSOR }
}
