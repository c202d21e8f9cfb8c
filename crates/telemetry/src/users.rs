//! Who else has the GPU open.

use std::fs;

use serde::{Deserialize, Serialize};

use super::root::Root;

/// A process that has a node of the GPU open.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct User {
    pub pid: u32,
    pub name: String,
}

/// Who has the GPU open, as far as this user may see.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Users {
    pub processes: Vec<User>,
    /// Processes whose open files this user may not see.
    pub hidden: usize,
}

impl Users {
    /// Looks at the open files of all processes but `except`: nodes of nvgpu on an Orin, of the
    /// desktop driver elsewhere. Source: proc(5), `/proc/pid/fd`.
    #[must_use]
    pub fn look(root: &Root, except: &[u32]) -> Self {
        let mut users = Self::default();
        for entry in root.entries("/proc") {
            let Some(pid) = entry.rsplit('/').next().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if except.contains(&pid) {
                continue;
            }
            let Ok(files) = fs::read_dir(root.path(&format!("{entry}/fd"))) else {
                // A process may also just have ended.
                users.hidden += usize::from(root.exists(&entry));
                continue;
            };
            let open = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
            let gpu = open.into_iter().any(|file| file.to_str().is_some_and(is_gpu));
            if gpu {
                let name = root.text(&format!("{entry}/comm")).unwrap_or_default();
                users.processes.push(User { pid, name });
            }
        }
        users
    }
}

/// `/dev/nvgpu/igpu0/ctrl` and its fellows, their old names `/dev/nvhost-ctrl-gpu`, `/dev/nvidia0`.
fn is_gpu(file: &str) -> bool {
    let Some(name) = file.strip_prefix("/dev/") else { return false };
    let desktop = name.strip_prefix("nvidia").is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())
    });
    name.starts_with("nvgpu/") || name.starts_with("nvhost-") && name.ends_with("-gpu") || desktop
}
