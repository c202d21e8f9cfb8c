//! Downloads from a server that is endless, slow, or lies about lengths, into the daemon's models
//! directory.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use orind_testing::daemon::orinctl;

use crate::census::Census;

/// Number of kinds of servers.
pub(crate) const KINDS: usize = 4;

/// Time until the user interrupts a download.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Memory that a download may take, in bytes; programs and their libraries included.
const MEMORY: u64 = 128 << 20;

/// Pulls a file from a server of a kind. No file may get its name.
pub(crate) fn pull(models: &Path, kind: usize) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}/hostile{kind}.gguf", listener.local_addr().unwrap());
    let over = Arc::new(AtomicBool::new(false));
    let server = std::thread::spawn({
        let over = Arc::clone(&over);
        move || serve(&listener, kind, &over)
    });
    let home = tempfile::tempdir().unwrap();
    let mut command = orinctl(home.path());
    command.args(["pull", &url, "--dir"]).arg(models).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let begin = Instant::now();
    let mut most = 0;
    let ended = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if begin.elapsed() > PATIENCE => break None,
            None => {
                let pid = child.id().try_into().unwrap();
                most = most.max(Census::memory_if_alive(pid, "VmHWM").unwrap_or(0));
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    };
    let _ = child.kill();
    let _ = child.wait();
    over.store(true, Ordering::SeqCst);
    server.join().unwrap();
    assert!(ended.is_none_or(|status| !status.success()), "it pulled from a hostile server");
    assert!(most < MEMORY, "a download takes {most} bytes");
    let name = format!("hostile{kind}.gguf");
    assert!(!models.join(&name).exists(), "an incomplete file has its name");
    // The user gives up.
    for left in [format!(".{name}.part"), format!(".{name}.from"), format!(".{name}.lock")] {
        let _ = std::fs::remove_file(models.join(left));
    }
}

fn serve(listener: &TcpListener, kind: usize, over: &AtomicBool) {
    while !over.load(Ordering::SeqCst) {
        match listener.accept() {
            Ok((stream, _)) => drop(answer(stream, kind, over)),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn answer(mut stream: TcpStream, kind: usize, over: &AtomicBool) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(Duration::from_secs(1)))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let _ = stream.read(&mut [0; 4096])?;
    let head = "HTTP/1.1 200 OK\r\nETag: \"a\"\r\n";
    let runs = || !over.load(Ordering::SeqCst);
    match kind {
        // Endless.
        0 => {
            stream.write_all(format!("{head}\r\nGGUF").as_bytes())?;
            while runs() {
                stream.write_all(&[0; 1 << 14])?;
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        // Slow.
        1 => {
            stream.write_all(format!("{head}Content-Length: 1000000\r\n\r\n").as_bytes())?;
            while runs() {
                stream.write_all(b"G")?;
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        // Shorter than it claims.
        2 => {
            stream.write_all(format!("{head}Content-Length: 1000000\r\n\r\nGGUF").as_bytes())?;
        }
        // A head without an end.
        _ => {
            stream.write_all(head.as_bytes())?;
            while runs() {
                stream.write_all(&[b"x: ", &[b'y'; 1000][..], b"\r\n"].concat())?;
            }
        }
    }
    Ok(())
}
