//! Other processes that have the GPU open.

use std::fs;

use serde::{Deserialize, Serialize};

use super::root::Root;

/// A process that has a GPU device node open.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct User {
    pub pid: u32,
    pub name: String,
}

/// Processes that have the GPU open, as far as this user can see.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Users {
    pub processes: Vec<User>,
    /// Number of processes whose open files this user cannot see.
    pub hidden: usize,
}

impl Users {
    /// Scans the open files of all processes except `except`: nodes of nvgpu on an Orin, of the
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
                // The process may have exited in the meantime.
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

/// `/dev/nvgpu/igpu0/ctrl` and similar, their old names such as `/dev/nvhost-ctrl-gpu`, and
/// `/dev/nvidia0`.
fn is_gpu(file: &str) -> bool {
    let Some(name) = file.strip_prefix("/dev/") else { return false };
    let desktop = name.strip_prefix("nvidia").is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())
    });
    name.starts_with("nvgpu/") || name.starts_with("nvhost-") && name.ends_with("-gpu") || desktop
}
