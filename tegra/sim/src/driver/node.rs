//! Device nodes: paths, modes and access checks.

use super::errno::{Refused, refusals};

refusals! { "open";
    ROOT_ONLY = "open", EACCES, "a node of root's, opened by another user",
        "udev rules of L4T: mode 600";
    NO_BIG_PAGES = "open as", EINVAL, "the default address space wants big pages, the system has none",
        "os/linux/ioctl_as.c:gk20a_as_dev_open";
    NO_CHANNEL = "open channel", ENOMEM, "all channels are in use",
        "os/linux/ioctl_channel.c:__gk20a_channel_open";
    NO_TSG = "open tsg", ENOMEM, "all TSGs are in use", "os/linux/ioctl_tsg.c:nvgpu_ioctl_tsg_open";
}

/// A device node of an Orin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    Nvmap,
    Power,
    Ctrl,
    As,
    Channel,
    Tsg,
    Nvsched,
    Sched,
    Dbg,
    Prof,
    ProfCtx,
    ProfDev,
    Ctxsw,
    NvschedCtrlFifo,
    Host1xFence,
}

/// Every node of the GPU: name below `/dev/nvgpu/igpu0`, mode, group.
const GPU_NODES: [(&str, Node, u32, &str); 13] = [
    ("power", Node::Power, 0o660, "video"),
    ("ctrl", Node::Ctrl, 0o660, "video"),
    ("as", Node::As, 0o660, "video"),
    ("channel", Node::Channel, 0o660, "video"),
    ("tsg", Node::Tsg, 0o660, "video"),
    ("nvsched", Node::Nvsched, 0o640, "video"),
    ("sched", Node::Sched, 0o660, "root"),
    ("dbg", Node::Dbg, 0o600, "root"),
    ("prof", Node::Prof, 0o600, "root"),
    ("prof-ctx", Node::ProfCtx, 0o600, "root"),
    ("prof-dev", Node::ProfDev, 0o600, "root"),
    ("ctxsw", Node::Ctxsw, 0o600, "root"),
    ("nvsched_ctrl_fifo", Node::NvschedCtrlFifo, 0o600, "root"),
];

impl Node {
    /// Returns the node at a path, if an Orin has one there.
    pub fn at(path: &str) -> Option<Self> {
        match path {
            "/dev/nvmap" => return Some(Self::Nvmap),
            "/dev/host1x-fence" => return Some(Self::Host1xFence),
            "/dev/nvhost-gpu" => return Some(Self::Channel),
            _ => {}
        }
        let name = path.strip_prefix("/dev/nvgpu/igpu0/").or_else(|| {
            let legacy = path.strip_prefix("/dev/nvhost-")?.strip_suffix("-gpu")?;
            (legacy != "channel").then_some(legacy)
        })?;
        GPU_NODES.iter().find(|(own, ..)| *own == name).map(|(_, node, ..)| *node)
    }

    /// Returns the permission bits.
    pub fn mode(self) -> u32 {
        GPU_NODES.iter().find(|(_, node, ..)| *node == self).map_or(0o660, |(.., mode, _)| *mode)
    }

    /// Checks that a member of group `video` may open the node; `EACCES` if it belongs to root.
    pub fn check_access(self) -> Result<(), Refused> {
        match GPU_NODES.iter().find(|(_, node, ..)| *node == self) {
            Some((.., "root")) => Err(&ROOT_ONLY),
            _ => Ok(()),
        }
    }
}
