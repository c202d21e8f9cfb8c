//! Clients of a control loop (config key `lane`): its socket, and a step.

use std::fs::File;
use std::io::{IoSliceMut, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memmap2::MmapMut;
use nix::sys::eventfd::EventFd;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use serde_json::Value;

use crate::daemon::Daemon;
use crate::data;

/// Configuration of a control loop with the test policy, 12-128-128-4.
pub fn lane(name: &str, more: &str) -> String {
    let network = data("lanes/policy.onnx");
    format!(
        "[[lane]]\nname = '{name}'\nnetwork = '{}'\nshapes = {{ observation = [1, 12] }}\n{more}\n",
        network.display()
    )
}

/// Waits until every control loop is available.
pub fn ready(daemon: &Daemon) {
    daemon.until("all lanes are ready", |status| {
        status["lanes"].as_array().unwrap().iter().all(|lane| lane["state"] == "ready")
    });
}

/// Socket of the daemon's control loops.
pub fn door(daemon: &Daemon) -> PathBuf {
    daemon.socket().with_file_name("s.lanes")
}

/// A client of a control loop.
pub struct Client {
    pub connection: UnixStream,
    /// The description that the daemon sent.
    pub about: Value,
    pub file: File,
    pub memory: MmapMut,
    pub start: EventFd,
    pub answer: EventFd,
}

impl Client {
    /// Opens a control loop, or returns the reason for the refusal.
    pub fn open(daemon: &Daemon, name: &str) -> Result<Self, String> {
        Self::open_at(&door(daemon), name)
    }

    /// Opens a control loop of the daemon with this socket of loops.
    pub fn open_at(socket: &Path, name: &str) -> Result<Self, String> {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(format!("{name}\n").as_bytes()).unwrap();
        let mut room = [0; 4096];
        let mut control = nix::cmsg_space!([i32; 3]);
        let (bytes, fds) = {
            let mut parts = [IoSliceMut::new(&mut room)];
            let flags = MsgFlags::MSG_CMSG_CLOEXEC;
            let got =
                recvmsg::<()>(stream.as_raw_fd(), &mut parts, Some(&mut control), flags).unwrap();
            let mut fds = Vec::new();
            for message in got.cmsgs().unwrap() {
                if let ControlMessageOwned::ScmRights(all) = message {
                    fds.extend(all);
                }
            }
            (got.bytes, fds)
        };
        let mut text = room[..bytes].to_vec();
        while text.last() != Some(&b'\n') {
            let n = stream.read(&mut room).unwrap();
            assert!(n > 0, "no whole line: {}", String::from_utf8_lossy(&text));
            text.extend(&room[..n]);
        }
        let about: Value = serde_json::from_slice(&text).unwrap();
        if let Some(why) = about["error"]["message"].as_str() {
            assert!(fds.is_empty());
            return Err(why.to_owned());
        }
        // SAFETY: the kernel has just created them for this process.
        let mut fds = fds.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        let file = File::from(fds.next().unwrap());
        // SAFETY: the daemon writes only between a start and its answer, and the test reads nothing
        // then.
        let memory = unsafe { MmapMut::map_mut(&file) }.unwrap();
        // SAFETY: they are event counters.
        let [start, answer] =
            [(); 2].map(|()| unsafe { EventFd::from_owned_fd(fds.next().unwrap()) });
        assert!(fds.next().is_none());
        Ok(Self { connection: stream, about, file, memory, start, answer })
    }

    fn place(&self, kind: &str) -> (usize, usize) {
        let tensor = &self.about[kind][0];
        let shape = tensor["shape"].as_array().unwrap();
        let count: u64 = shape.iter().map(|n| n.as_u64().unwrap()).product();
        (tensor["offset"].as_u64().unwrap() as usize, count as usize)
    }

    fn write(&mut self, values: &[f32]) {
        let (offset, count) = self.place("inputs");
        assert_eq!(values.len(), count);
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.memory[offset..offset + 4 * count].copy_from_slice(&bytes);
    }

    /// Runs a step on these inputs and returns the outputs.
    pub fn step(&mut self, observation: &[f32]) -> Vec<f32> {
        let (outcome, action) = self.attempt(observation);
        assert_eq!(outcome, 0, "it failed");
        action
    }

    /// The same, of a step that may fail: its outcome, and the outputs.
    pub fn attempt(&mut self, observation: &[f32]) -> (u32, Vec<f32>) {
        self.write(observation);
        self.start.write(1).unwrap();
        // At the socket's end a read succeeds without a byte: the daemon is gone.
        let signal = nix::unistd::read(&self.answer, &mut [0; 8]);
        assert_eq!(signal, Ok(8), "no answer");
        let outcome = u32::from_le_bytes(self.memory[24..28].try_into().unwrap());
        let (offset, count) = self.place("outputs");
        let bytes = &self.memory[offset..offset + 4 * count];
        let values = bytes.chunks_exact(4);
        let values = values.map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
        (outcome, values)
    }
}

/// An observation for the test policy, and the exact action.
pub fn example() -> (Vec<f32>, Vec<f64>) {
    let text = std::fs::read(data("lanes/policy.json")).unwrap();
    let all: Value = serde_json::from_slice(&text).unwrap();
    let numbers = |name: &str| {
        all[name].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect::<Vec<_>>()
    };
    (numbers("observation").iter().map(|v| *v as f32).collect(), numbers("action"))
}
