//! Worker process of one tokenizer: forks a process for each constraint, and bounds what it takes.
//!
//! The daemon starts its own program again under the name [`NAME`]. The worker has one thread, so it
//! may fork. It ends when the daemon closes its socket; a constraint ends with its own socket.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::{ForkResult, fork};

use serde::Deserialize;

use crate::compiler::{Compiler, State, Tokens};
use crate::frame::{self, Frame, Tag};
use crate::source::Grammar;

/// First argument of a worker, in place of the program's name.
const NAME: &str = "orind-grammar";

/// Limits of one constraint.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Processor time to compile the grammar.
    pub compile: Duration,
    /// Processor time to compute the mask of one token.
    pub step: Duration,
    /// Memory beyond that of the worker, in bytes.
    pub memory: usize,
}

impl Limits {
    pub const DEFAULT: Self = Self {
        compile: Duration::from_secs(1),
        step: Duration::from_millis(500),
        memory: 64 << 20,
    };
}

/// Reasons why a process of a constraint ended itself, as the frames that report them.
static REASONS: [&[u8]; 3] = [
    b"\x07\x28\0\0\0takes more than 1 s of processor time   ",
    b"\x07\x28\0\0\0a token takes 0.5 s of processor time   ",
    b"\x07\x28\0\0\0takes more than 64 MiB of memory        ",
];

/// Index into [`REASONS`] if the timer expires now.
static EXPIRED: AtomicUsize = AtomicUsize::new(0);

/// Socket to which a signal handler reports.
static REPORT: AtomicI32 = AtomicI32::new(-1);

/// Program that calls [`run_if_worker`]; this one, if its `main` does.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Runs the worker and ends the process, if it was started as one. A program must call it first in
/// `main`; without it, constraints run in threads of this process and have no limits.
pub fn run_if_worker(mut arguments: impl Iterator<Item = OsString>) {
    if arguments.next().is_some_and(|name| name == NAME) {
        work();
        std::process::exit(0);
    }
    use_worker("/proc/self/exe".into());
}

/// Sets the program that is started as worker, for programs that have another `main`. Only the first
/// call has an effect.
pub fn use_worker(program: PathBuf) {
    PROGRAM.get_or_init(|| program);
}

/// Program that can be started as worker, if there is one.
pub(crate) fn program() -> Option<&'static Path> {
    PROGRAM.get().map(PathBuf::as_path)
}

/// Starts a program as worker, and returns its process and the socket to it.
pub(crate) fn start(program: &Path) -> io::Result<(Child, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new(program);
    std::os::unix::process::CommandExt::arg0(&mut command, NAME);
    command.env_clear().stdin(Stdio::from(OwnedFd::from(theirs)));
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    Ok((child, ours))
}

fn work() {
    // SAFETY: descriptor 0 is the socket that the daemon passes; nothing else in this process uses it.
    let socket = unsafe { UnixStream::from_raw_fd(0) };
    if isolate().is_err() {
        return;
    }
    let Ok(Some(Frame { tag: Tag::Tokens, contents, .. })) = frame::receive(&socket) else {
        return;
    };
    let tokens = Tokens::read(&contents).ok_or_else(|| "the tokens are cut short".to_owned());
    let compiler = tokens.and_then(|tokens| Compiler::of(&tokens));
    drop(contents);
    let reply = match &compiler {
        Ok(_) => frame::send(&socket, Tag::Done, &[]),
        Err(error) => frame::send(&socket, Tag::Failed, error.as_bytes()),
    };
    let (Ok(compiler), Ok(())) = (compiler.map(Arc::new), reply) else { return };
    report_panics(&compiler);
    while let Ok(Some(Frame { descriptor: Some(descriptor), .. })) = frame::receive(&socket) {
        in_fork(UnixStream::from(descriptor), |constraint| {
            // SAFETY: closes this process's copy of a socket that only the worker uses.
            unsafe { libc::close(socket.as_raw_fd()) };
            begin(&constraint);
            serve(&compiler, &constraint, None, Isolation::Process);
        });
    }
    // The descriptor is closed by the end of the process.
    std::mem::forget(socket);
}

/// Makes a panic end the process with an error. The hook of llguidance would read the program's debug
/// information first; it is installed once, by the first grammar.
fn report_panics(compiler: &Compiler) {
    _ = compiler.compile(&Grammar::Regex("a".into()));
    std::panic::set_hook(Box::new(|panic| {
        let text = panic.payload_as_str().unwrap_or("a panic without a message");
        let text: String = text.chars().take(300).collect();
        let frame = [&frame::header(Tag::Failed, text.len()), text.as_bytes()].concat();
        report(&frame);
    }));
}

/// Gives up what the worker does not need: descriptors of the daemon, and its place among processes
/// that the kernel should spare when memory ends.
fn isolate() -> io::Result<()> {
    // SAFETY: no descriptor above 2 is used by this process; the constants are valid for these calls.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
        // Orphaned copies of constraints become children of the worker, which never waits for them.
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    }
    _ = std::fs::write("/proc/self/oom_score_adj", "800");
    // SAFETY: these dispositions run no code of this process.
    unsafe {
        signal(Signal::SIGCHLD, SigHandler::SigIgn)?;
        signal(Signal::SIGPIPE, SigHandler::SigIgn)?;
        // The terminal's interrupt is the daemon's.
        signal(Signal::SIGINT, SigHandler::SigIgn)?;
    }
    Ok(())
}

/// Runs `child` in a forked process that then ends.
fn in_fork(socket: UnixStream, child: impl FnOnce(UnixStream)) {
    // SAFETY: this process has one thread, so its copy holds no lock of another.
    match unsafe { fork() } {
        Ok(ForkResult::Child) => {
            child(socket);
            // SAFETY: ends the process without destructors of state that belongs to its parent.
            unsafe { libc::_exit(0) }
        }
        // The other side sees that the socket is closed.
        Ok(ForkResult::Parent { .. }) | Err(_) => drop(socket),
    }
}

/// Limits this process, and reports a descriptor of it with which the daemon can end it.
fn begin(socket: &UnixStream) {
    REPORT.store(socket.as_raw_fd(), Ordering::Relaxed);
    // SAFETY: the handlers only write to a descriptor, and end the process.
    let handlers = unsafe {
        signal(Signal::SIGPROF, SigHandler::Handler(on_time))
            .and(signal(Signal::SIGABRT, SigHandler::Handler(on_abort)))
    };
    if handlers.is_err() || limit_memory().is_none() {
        // SAFETY: ends a process that cannot be limited.
        unsafe { libc::_exit(1) }
    }
    identify(socket);
}

fn identify(socket: &UnixStream) {
    // SAFETY: the call has no memory arguments; its result is checked.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, std::process::id(), 0) };
    let descriptor = RawFd::try_from(descriptor).ok().filter(|fd| *fd >= 0);
    // SAFETY: the kernel has just created this descriptor; nothing else owns it.
    let descriptor = descriptor.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    _ = match descriptor {
        Some(descriptor) => frame::send_descriptor(socket, Tag::Process, &descriptor),
        None => frame::send(socket, Tag::Process, &[]),
    };
}

/// Limits the address space, to less if the daemon has a limit already.
fn limit_memory() -> Option<()> {
    let limit = address_space()? + Limits::DEFAULT.memory as u64;
    let (_, most) = getrlimit(Resource::RLIMIT_AS).ok()?;
    let limit = limit.min(most);
    setrlimit(Resource::RLIMIT_AS, limit, limit).ok()
}

/// Size of this process's address space in bytes.
fn address_space() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().next()?.parse().ok()?;
    // SAFETY: the call has no memory arguments.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Some(pages * u64::try_from(page).ok()?)
}

extern "C" fn on_time(_: libc::c_int) {
    report(REASONS[EXPIRED.load(Ordering::Relaxed)]);
}

/// The allocator aborts when it gets no memory, and so does an overflow of the stack.
extern "C" fn on_abort(_: libc::c_int) {
    report(REASONS[2]);
}

fn report(frame: &[u8]) {
    // SAFETY: `write` and `_exit` may be called in a signal handler; the frame is static.
    unsafe {
        libc::write(REPORT.load(Ordering::Relaxed), frame.as_ptr().cast(), frame.len());
        libc::_exit(1);
    }
}

/// Ends the process if it uses more than `limit` of processor time from now; zero for no limit.
fn arm(limit: Duration, reason: usize) {
    EXPIRED.store(reason, Ordering::Relaxed);
    let value = libc::timeval {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_usec: libc::suseconds_t::from(limit.subsec_micros().cast_signed()),
    };
    let interval = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let timer = libc::itimerval { it_interval: interval, it_value: value };
    // SAFETY: the timer is a valid structure, and no old value is asked for.
    unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) };
}

/// Kind of task that a constraint is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Isolation {
    /// A process with limits.
    Process,
    /// A thread of a program without a worker.
    Thread,
}

/// Serves one constraint until its socket is closed.
pub(crate) fn serve(
    compiler: &Arc<Compiler>,
    socket: &UnixStream,
    mut state: Option<State>,
    isolation: Isolation,
) {
    while let Ok(Some(frame)) = frame::receive(socket) {
        let within = |limit: Duration, reason: usize| match isolation {
            Isolation::Process => arm(limit, reason),
            Isolation::Thread => {}
        };
        let done = match (frame.tag, &mut state) {
            (Tag::Compile, _) => {
                within(Limits::DEFAULT.compile, 0);
                match compile(compiler, &frame.contents) {
                    Ok(compiled) => state = Some(compiled),
                    Err(error) => {
                        within(Duration::ZERO, 0);
                        _ = frame::send(socket, Tag::Failed, error.as_bytes());
                        return;
                    }
                }
                next(socket, state.as_mut())
            }
            (Tag::Accept, Some(state)) => {
                within(Limits::DEFAULT.step, 1);
                accept(socket, state, &frame.contents).and_then(|()| next(socket, Some(state)))
            }
            (Tag::Duplicate, Some(state)) => {
                let Some(copy) = frame.descriptor.map(UnixStream::from) else { return };
                duplicate(compiler, copy, state, isolation);
                frame::send(socket, Tag::Done, &[])
            }
            _ => return,
        };
        within(Duration::ZERO, 0);
        if done.is_err() {
            return;
        }
    }
}

fn compile(compiler: &Compiler, source: &[u8]) -> Result<State, String> {
    // A schema that is nested too deeply gets an error of its own.
    let mut source = serde_json::Deserializer::from_slice(source);
    source.disable_recursion_limit();
    let grammar = Grammar::deserialize(&mut source).map_err(|error| error.to_string())?;
    compiler.compile(&grammar)
}

fn accept(socket: &UnixStream, state: &mut State, token: &[u8]) -> io::Result<()> {
    let token = token.try_into().map(u32::from_le_bytes);
    let token = token.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    match state.accept(token) {
        Ok(stopped) => frame::send(socket, Tag::Done, &[u8::from(stopped)]),
        Err(error) => frame::send(socket, Tag::Failed, error.as_bytes()),
    }
}

/// Sends the mask of the next token before it is asked for: the device computes its logits meanwhile.
fn next(socket: &UnixStream, state: Option<&mut State>) -> io::Result<()> {
    let mask = state.map_or_else(|| Ok(Vec::new()), State::mask);
    // The limit does not cover the time that the other side needs to read.
    match mask {
        Ok(words) => {
            let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
            frame::send(socket, Tag::Mask, &bytes)
        }
        Err(error) => frame::send(socket, Tag::Failed, error.as_bytes()),
    }
}

fn duplicate(compiler: &Arc<Compiler>, socket: UnixStream, state: &State, isolation: Isolation) {
    match isolation {
        // The copy of this process has the state, and the same limit of its address space.
        Isolation::Process => in_fork(socket, |socket| {
            // SAFETY: closes this process's copy of the original's socket, which nothing uses here.
            unsafe { libc::close(REPORT.swap(socket.as_raw_fd(), Ordering::Relaxed)) };
            identify(&socket);
            serve(compiler, &socket, Some(state.duplicate()), Isolation::Process);
        }),
        Isolation::Thread => {
            let (compiler, state) = (Arc::clone(compiler), state.duplicate());
            std::thread::spawn(move || {
                // A thread has no process of its own that may be ended.
                _ = frame::send(&socket, Tag::Process, &[]);
                serve(&compiler, &socket, Some(state), Isolation::Thread);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_frames_of_errors() {
        for reason in REASONS {
            let text = &reason[5..];
            assert_eq!(reason[..5], frame::header(Tag::Failed, text.len()));
            assert!(text.is_ascii());
        }
    }
}
