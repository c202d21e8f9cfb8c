//! A program on a terminal of its own: its screen, and key presses. Ctrl-C goes through the kernel.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::libc;
use nix::pty::{Winsize, openpty};

use crate::daemon::eventually;

/// Long enough for a loaded machine; only a failing test reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Terminal {
    child: Child,
    keys: File,
    shown: Receiver<String>,
    seen: String,
}

impl Terminal {
    /// Starts a program on a terminal of 24 rows and 80 columns.
    pub fn start(mut command: Command) -> Self {
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        let slave = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
        command.stdin(slave(&pty.slave)).stdout(slave(&pty.slave)).stderr(slave(&pty.slave));
        // SAFETY: between fork and exec only two system calls are made, which allocate nothing.
        unsafe { command.pre_exec(own_terminal) };
        let child = command.spawn().unwrap();
        drop(pty.slave);
        let keys = File::from(pty.master.try_clone().unwrap());
        let mut screen = File::from(pty.master);
        let (heard, shown) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // Fails when the program has closed the terminal.
            while let Ok(read @ 1..) = screen.read(&mut buffer) {
                let _ = heard.send(String::from_utf8_lossy(&buffer[..read]).into_owned());
            }
        });
        Self { child, keys, shown, seen: String::new() }
    }

    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for a text; returns the output since the last wait, up to the end of the text.
    pub fn wait_for(&mut self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.seen.find(text) {
                let rest = self.seen.split_off(at + text.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let more = self.shown.recv_timeout(left);
            self.seen.push_str(&more.unwrap_or_else(|_| panic!("no {text:?} in {:?}", self.seen)));
        }
    }

    /// Waits for any output after the last awaited text.
    pub fn wait_for_more(&mut self) {
        if self.seen.is_empty() {
            let more = self.shown.recv_timeout(PATIENCE);
            self.seen.push_str(&more.expect("something is shown"));
        }
    }

    /// Waits until the program ends.
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the program ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes standard input the controlling terminal of this process.
fn own_terminal() -> io::Result<()> {
    nix::unistd::setsid()?;
    // SAFETY: takes no pointer; standard input is open.
    let set = unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
