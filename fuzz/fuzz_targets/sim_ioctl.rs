//! Fuzzes the simulated drivers with arbitrary requests and arguments: any errno, never a crash.
//!
//! Each call is one byte for the file description, two for the request, 264 for its argument. Run
//! with `cargo +nightly fuzz run sim_ioctl`.

#![no_main]

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use libfuzzer_sys::fuzz_target;
use tegra_sim::config::Config;
use tegra_sim::driver::{FdTable, FileId, NewFile, Node, OpenFile, Orin, requests};

/// Bytes of one call: file description, request, argument.
const CALL: usize = 1 + 2 + 264;
/// A request that may wait forever.
const WAIT: u32 = 0xc018_4866;

#[derive(Default)]
struct Fds(Mutex<BTreeMap<i32, OpenFile>>);

impl FdTable for Fds {
    fn install(&self, file: NewFile) -> io::Result<i32> {
        let mut open = self.0.lock().expect("no call panics");
        let fd = 5000 + open.len() as i32;
        open.insert(fd, match file {
            NewFile::Placeholder(id) | NewFile::Event(id, _) => OpenFile::File(id),
            NewFile::DmaBuf(buffer) => OpenFile::DmaBuf(buffer),
        });
        Ok(fd)
    }

    fn lookup(&self, fd: i32) -> Option<OpenFile> {
        self.0.lock().expect("no call panics").get(&fd).cloned()
    }
}

fuzz_target!(|data: &[u8]| {
    let orin = Orin::new(&Config::default(), Arc::new(Fds::default())).expect("a device");
    for node in [Node::Nvmap, Node::Ctrl, Node::Tsg, Node::Channel] {
        orin.open(node).expect("an open node");
    }
    let known: Vec<u32> = requests().map(|(_, request)| request.code).collect();
    for call in data.chunks_exact(CALL) {
        let number = usize::from(u16::from_le_bytes([call[1], call[2]]));
        let request = known.get(number % 256).copied().unwrap_or(number as u32);
        let mut argument = call[3..].to_vec();
        if request != WAIT {
            let file = FileId(u64::from(call[0] % 16));
            let _ = orin.ioctl(file, request, argument.as_mut_ptr() as u64);
        }
    }
});
