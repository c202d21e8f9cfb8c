//! The power mode set by `nvpmodel`.
//!
//! `/var/lib/nvpmodel/status` contains `pmode:0002`, the current mode. `/etc/nvpmodel.conf` names
//! the modes (`< POWER_MODEL ID=2 NAME=MODE_30W >`) and the default mode
//! (`< PM_CONFIG DEFAULT=2 >`). Source: NVIDIA's `nvpmodel_p3701_0000.conf`, whose header describes
//! the format, in LineageOS/android_device_nvidia_concord.

use super::root::Root;
use super::state::{PowerMode, Unread};

const STATUS: &str = "/var/lib/nvpmodel/status";
const MODES: &str = "/etc/nvpmodel.conf";

pub(super) fn power_mode(root: &Root, notes: &mut Vec<Unread>) -> Option<PowerMode> {
    let what = "power mode";
    let status = root.wanted(what, STATUS, notes)?;
    let id = status.lines().find_map(|line| line.trim().strip_prefix("pmode:")?.parse().ok());
    let Some(id) = id else {
        let reason = "it has no line `pmode:NUMBER`".into();
        notes.push(Unread { what: what.into(), path: STATUS.into(), reason });
        return None;
    };
    let modes = root.wanted("names of the power modes", MODES, notes).unwrap_or_default();
    let modes = Modes::parse(&modes);
    let name = modes.names.iter().find(|(mode, _)| *mode == id).map(|(_, name)| name.clone());
    // MAXN on AGX Orin, MAXN_SUPER on Orin NX and Nano with newer configurations; not always mode
    // 0.
    let unlimited = modes.names.iter().find(|(_, name)| name.starts_with("MAXN"));
    Some(PowerMode { id, name, unlimited: unlimited.map(|(id, _)| *id), default: modes.default })
}

#[derive(Debug, Default, PartialEq)]
struct Modes {
    names: Vec<(u32, String)>,
    default: Option<u32>,
}

impl Modes {
    fn parse(text: &str) -> Self {
        let mut modes = Self::default();
        for line in text.lines().map(str::trim) {
            let Some(inner) = line.strip_prefix('<').and_then(|line| line.strip_suffix('>')) else {
                continue;
            };
            let mut words = inner.split_whitespace();
            let kind = words.next();
            let value = |words: &mut std::str::SplitWhitespace<'_>, key: &str| {
                words.find_map(|word| word.strip_prefix(key).map(str::to_owned))
            };
            match kind {
                Some("POWER_MODEL") => {
                    let id = value(&mut words, "ID=").and_then(|id| id.parse().ok());
                    let name = value(&mut words, "NAME=");
                    modes.names.extend(id.zip(name));
                }
                Some("PM_CONFIG") => {
                    modes.default = value(&mut words, "DEFAULT=").and_then(|id| id.parse().ok());
                }
                _ => {}
            }
        }
        modes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn modes_and_default_are_parsed() {
        let text = "# < POWER_MODEL ID=id_num NAME=mode_name >\n< PARAM TYPE=CLOCK NAME=GPU >\n\
                    MAX_FREQ /sys/x\n< POWER_MODEL ID=0 NAME=15W >\nGPU MAX_FREQ 1\n\
                    < POWER_MODEL ID=2 NAME=MAXN_SUPER >\n< PM_CONFIG DEFAULT=1 >\n";
        let names = vec![(0, "15W".to_owned()), (2, "MAXN_SUPER".to_owned())];
        assert_eq!(Modes::parse(text), Modes { names, default: Some(1) });
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in "(<? ?(POWER_MODEL|PM_CONFIG)? ?(ID=|NAME=|DEFAULT=)?\\PC{0,8} ?>?\n){0,9}") {
            let _ = Modes::parse(&text);
        }
    }
}
