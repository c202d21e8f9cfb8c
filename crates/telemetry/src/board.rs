//! Board, Jetson Linux release and drivers.

use super::root::Root;
use super::state::{Drivers, Release, Unread};

/// Name of the board in the device tree. Source: Documentation/ABI/testing/sysfs-firmware-ofw;
/// jetson_stats reads the same (`jetson_variables.py`).
pub(super) fn name(root: &Root) -> Option<String> {
    root.text("/proc/device-tree/model").filter(|name| !name.is_empty())
}

/// True for a T234: its compatible string contains `nvidia,tegra234`, after the board's own.
pub(super) fn is_orin(root: &Root) -> bool {
    root.text("/proc/device-tree/compatible")
        .is_some_and(|names| names.split('\0').any(|name| name == "nvidia,tegra234"))
}

/// Release from the first line of `/etc/nv_tegra_release`: `# R36 (release), REVISION: 4.3, GCID:
/// .., BOARD: ..`. Source: jetson_stats, `jetson_variables.py`. jetpack-nixos has no such file;
/// there only the loaded kernel module identifies the GPU.
pub(super) fn release(root: &Root, notes: &mut Vec<Unread>) -> Option<Release> {
    const PATH: &str = "/etc/nv_tegra_release";
    let what = "release of Jetson Linux";
    let text = root.wanted(what, PATH, notes)?;
    let release = parse_release(&text);
    if release.is_none() {
        let reason = "its first line is not `# R36 (release), REVISION: 4.3, ..`".into();
        notes.push(Unread { what: what.into(), path: PATH.into(), reason });
    }
    release
}

fn parse_release(text: &str) -> Option<Release> {
    let mut fields = text.lines().next()?.split(',').map(str::trim);
    let major = fields.next()?.strip_prefix("# R")?.split_whitespace().next()?.parse().ok()?;
    let revision = fields.next()?.strip_prefix("REVISION:")?.trim();
    let mut parts = revision.split('.').map(str::parse);
    let minor = parts.next()?.ok()?;
    let patch = parts.next().unwrap_or(Ok(0)).ok()?;
    Some(Release { major, minor, patch })
}

pub(super) fn drivers(root: &Root) -> Drivers {
    Drivers {
        kernel: root.text("/proc/sys/kernel/osrelease"),
        nvgpu: root.exists("/sys/module/nvgpu"),
        // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14 ..", or "Open Kernel Module".
        nvidia: root.text("/proc/driver/nvidia/version").and_then(|text| {
            let number = |word: &&str| word.contains('.') && word.starts_with(char::is_numeric);
            text.lines().next()?.split_whitespace().find(number).map(str::to_owned)
        }),
        cuda_toolkit: root.text("/usr/local/cuda/version.json").and_then(|text| {
            let versions: serde_json::Value = serde_json::from_str(&text).ok()?;
            Some(versions.get("cuda")?.get("version")?.as_str()?.to_owned())
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn releases_are_parsed() {
        let parse = |text| parse_release(text).map(|release| release.to_string());
        let r36 = "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64";
        assert_eq!(parse(r36).as_deref(), Some("R36.4.3"));
        assert_eq!(parse("# R35 (release), REVISION: 5.0, GCID: 1").as_deref(), Some("R35.5.0"));
        assert_eq!(parse("# R34 (release), REVISION: 1").as_deref(), Some("R34.1.0"));
        assert_eq!(parse("R36.4.3"), None);
        assert_eq!(parse(""), None);
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in "\\PC*|# R[0-9]{1,12} .release., REVISION: [0-9.]*") {
            let _ = parse_release(&text);
        }
    }
}
