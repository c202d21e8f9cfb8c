//! The GPU drivers' lines of the kernel log during an experiment, if the user may read the log.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

use nix::errno::Errno;
use nix::libc;
use tegra_profile::MAX_LINES;

const KMSG: &str = "/dev/kmsg";
/// Larger than any record of the kernel.
const RECORD: usize = 8192;
/// Maximum number of characters stored of a line.
const MAX_CHARACTERS: usize = 300;
/// Sources of stored lines: the two drivers, the GPU's device, and the IOMMU.
const NAMES: [&str; 4] = ["nvgpu", "nvmap", "17000000.gpu", "smmu"];

/// The log, starting at its end when this was opened.
pub(super) struct Log(Result<File, io::Error>);

impl Log {
    pub(super) fn open() -> Self {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_NONBLOCK);
        let at_end = |mut file: File| file.seek(SeekFrom::End(0)).map(|_| file);
        Self(options.open(KMSG).and_then(at_end))
    }

    /// State of the log for the head of a profile.
    pub(super) fn state(&self) -> String {
        match &self.0 {
            Ok(_) => "read".into(),
            Err(error) => format!("{KMSG} cannot be read: {error}"),
        }
    }

    /// The drivers' lines since the last call, the oldest first.
    pub(super) fn lines(&mut self) -> Vec<String> {
        let Ok(file) = &mut self.0 else { return Vec::new() };
        let mut lines = Vec::new();
        let mut record = vec![0; RECORD];
        loop {
            match file.read(&mut record) {
                Ok(bytes @ 1..) if lines.len() < MAX_LINES => {
                    lines.extend(line(&String::from_utf8_lossy(&record[..bytes])));
                }
                Ok(1..) => {}
                // The kernel overwrote unread lines; the following ones can be read.
                Err(error) if error.raw_os_error() == Some(Errno::EPIPE as i32) => {}
                Ok(0) | Err(_) => return lines,
            }
        }
    }
}

/// The text of a record, `PRIORITY,NUMBER,MICROSECONDS,FLAGS;TEXT` followed by more lines, if it is
/// a driver's.
fn line(record: &str) -> Option<String> {
    let (head, text) = record.split_once(';')?;
    let text = text.lines().next()?;
    if !NAMES.iter().any(|name| text.contains(name)) {
        return None;
    }
    let time = head.split(',').nth(2)?.parse::<u64>().ok()?;
    let text = text.chars().filter(|c| !c.is_control()).take(MAX_CHARACTERS);
    Some(format!("[{}.{:06}] {}", time / 1_000_000, time % 1_000_000, text.collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_drivers_lines_are_stored() {
        let record = "4,1201,5140900123,-;nvgpu: 17000000.gpu gv11b_fb_handle_mmu_fault:1\x1b[2J\n DEVICE=+a:b\n";
        let kept = "[5140.900123] nvgpu: 17000000.gpu gv11b_fb_handle_mmu_fault:1[2J";
        assert_eq!(line(record).as_deref(), Some(kept));
        assert_eq!(
            line("6,1,42,-;nvmap_alloc: failed").as_deref(),
            Some("[0.000042] nvmap_alloc: failed")
        );
        assert_eq!(line("6,1,42,-;usb 1-1: a new device\n DRIVER=nvgpu\n"), None);
        assert_eq!(line("no record of nvgpu"), None);
        assert_eq!(line("6,1,late,-;nvgpu"), None);
        let long = format!("6,1,42,-;nvgpu {}", "x".repeat(1000));
        assert_eq!(line(&long).unwrap().len(), "[0.000042] ".len() + MAX_CHARACTERS);
    }
}
