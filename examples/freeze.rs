//! Stops one thread of a process; `systemd/try.sh` uses it to simulate a hung engine. `freeze PID
//! THREAD` seizes the thread of that name with ptrace, prints `frozen TID` and waits until the
//! process is gone.

use std::path::Path;
use std::{env, fs, io, thread, time::Duration};

use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [pid, name] = &arguments[..] else {
        return Err(io::Error::other("usage: freeze PID THREAD"));
    };
    let tasks = format!("/proc/{pid}/task");
    for task in fs::read_dir(&tasks)? {
        let task = task?;
        if fs::read_to_string(task.path().join("comm"))?.trim() != name {
            continue;
        }
        let tid = task.file_name().to_string_lossy().parse().map_err(io::Error::other)?;
        let tid = Pid::from_raw(tid);
        ptrace::seize(tid, ptrace::Options::empty())?;
        ptrace::interrupt(tid)?;
        waitpid(tid, Some(WaitPidFlag::__WALL))?;
        io::Write::write_all(&mut io::stdout(), format!("frozen {tid}\n").as_bytes())?;
        while Path::new(&tasks).exists() {
            // The thread's exit is also a stop; let it continue.
            let _ = waitpid(tid, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG));
            thread::sleep(Duration::from_millis(50));
        }
        return Ok(());
    }
    Err(io::Error::other(format!("process {pid} has no thread `{name}`")))
}
