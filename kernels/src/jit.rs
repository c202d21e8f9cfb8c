//! Kernels that are compiled on the machine, by NVRTC where it is there: variants of which no machine
//! code is checked in, and kernels of groups. Each is compiled once, from the sources that the library contains; what
//! another process compiled is [`kept`].

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::catalogue::Kernel;
use crate::kept;
use crate::nvrtc::{self, Compiler};
use crate::source::{self, HEADERS, OPTIONS, Target};

/// How long one kernel may take: many times what a slow core needs.
const LIMIT: Duration = Duration::from_secs(60);

/// How often whoever waits is told that it goes on.
const TICK: Duration = Duration::from_millis(250);

/// Why a kernel is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The compiler is not here, or does not take the kernel.
    #[error(transparent)]
    Nvrtc(#[from] nvrtc::Error),
    /// It took too long.
    #[error("{kernel} was not compiled within {seconds} s")]
    Slow {
        /// The kernel's symbol.
        kernel: String,
        /// The limit.
        seconds: u64,
    },
    /// Nobody waited for it.
    #[error("{kernel} was no longer wanted")]
    Unwanted {
        /// The kernel's symbol.
        kernel: String,
    },
    /// No thread to compile in.
    #[error("no thread for NVRTC: {0}")]
    Thread(String),
}

/// The compiler, if there is one; looked for once.
///
/// # Errors
/// Why there is none.
pub fn compiler() -> Result<&'static Compiler, Error> {
    static COMPILER: OnceLock<Result<Compiler, nvrtc::Error>> = OnceLock::new();
    COMPILER.get_or_init(Compiler::load).as_ref().map_err(|error| error.clone().into())
}

/// What each kernel became.
type Made = HashMap<(Kernel, Target), Result<&'static [u8], Error>>;

static MADE: Mutex<Option<Made>> = Mutex::new(None);

/// The machine code of a kernel (PTX for a virtual architecture): a cubin with it alone. The first
/// time this takes seconds, in a thread of its own; `wanted` is asked while it goes on whether anybody
/// still waits.
///
/// # Errors
/// [`Error`]; the same every time, unless nobody waited.
pub fn code(
    kernel: Kernel,
    target: Target,
    wanted: &dyn Fn() -> bool,
) -> Result<&'static [u8], Error> {
    // One at a time: whoever wants the same kernel finds it made.
    let mut made = MADE.lock();
    let made = made.get_or_insert_with(HashMap::new);
    if let Some(known) = made.get(&(kernel, target)) {
        return known.clone();
    }
    let result = make(kernel, target, wanted);
    if !matches!(result, Err(Error::Unwanted { .. })) {
        made.insert((kernel, target), result.clone());
    }
    result
}

fn make(kernel: Kernel, target: Target, wanted: &dyn Fn() -> bool) -> Result<&'static [u8], Error> {
    let compiler = compiler()?;
    let (sender, receiver) = channel();
    let work = move || {
        // Who waits no more needs nothing.
        let _ = sender.send(compile(compiler, kernel, target));
    };
    let thread = std::thread::Builder::new().name("nvrtc".into()).spawn(work);
    thread.map_err(|error| Error::Thread(error.to_string()))?;
    let started = Instant::now();
    loop {
        match receiver.recv_timeout(TICK) {
            // It stays as long as the process: launches may be recorded with it at any time.
            Ok(code) => return Ok(Box::leak(code?.into_boxed_slice())),
            Err(RecvTimeoutError::Timeout) if started.elapsed() < LIMIT => {
                if !wanted() {
                    return Err(Error::Unwanted { kernel: kernel.symbol() });
                }
            }
            Err(_) => {
                let (kernel, seconds) = (kernel.symbol(), LIMIT.as_secs());
                return Err(Error::Slow { kernel, seconds });
            }
        }
    }
}

fn compile(compiler: &Compiler, kernel: Kernel, target: Target) -> Result<Vec<u8>, nvrtc::Error> {
    let text = match kernel {
        Kernel::Generated(group) => group.text(),
        _ => source::text_of(kernel.unit(), [kernel]),
    };
    let name = kept::name(&source::hash_of(&text, target), compiler.version());
    if let Some(code) = kept::read(&name) {
        return Ok(code);
    }
    let mut options: Vec<String> = OPTIONS.iter().map(|&option| option.to_owned()).collect();
    options.push(format!("--gpu-architecture={}", target.architecture()));
    let ptx = target == Target::Compute80;
    let code = compiler.compile(&kernel.symbol(), &text, HEADERS, &options, ptx)?.code;
    kept::write(&name, &code);
    Ok(code)
}
