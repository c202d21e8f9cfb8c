//! Kernels compiled at run time by NVRTC: variants without checked-in machine code, and generated
//! kernels. Each is compiled once per process; [`crate::cubin_cache`] stores the result for other
//! processes.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::catalogue::Kernel;
use crate::cubin_cache;
use crate::nvrtc::{self, Compiler};
use crate::source::{self, HEADERS, OPTIONS, Target};

/// Time limit for one kernel, many times what a slow core needs.
const LIMIT: Duration = Duration::from_secs(60);

/// Interval at which `wanted` is called during a compilation.
const TICK: Duration = Duration::from_millis(250);

/// Reason why a kernel is not available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// NVRTC is missing, or rejects the kernel.
    #[error(transparent)]
    Nvrtc(#[from] nvrtc::Error),
    /// Compilation exceeded the time limit.
    #[error("{kernel} was not compiled within {seconds} s")]
    Slow {
        /// The kernel's symbol.
        kernel: String,
        /// The limit.
        seconds: u64,
    },
    /// The caller cancelled the compilation.
    #[error("compilation of {kernel} was cancelled")]
    Unwanted {
        /// The kernel's symbol.
        kernel: String,
    },
    /// No thread could be started.
    #[error("cannot start a thread for NVRTC: {0}")]
    Thread(String),
}

/// NVRTC, loaded on the first call.
///
/// # Errors
///
/// NVRTC could not be loaded.
pub fn compiler() -> Result<&'static Compiler, Error> {
    static COMPILER: OnceLock<Result<Compiler, nvrtc::Error>> = OnceLock::new();
    COMPILER.get_or_init(Compiler::load).as_ref().map_err(|error| error.clone().into())
}

/// Result of each compilation.
type Made = HashMap<(Kernel, Target), Result<&'static [u8], Error>>;

static MADE: Mutex<Option<Made>> = Mutex::new(None);

/// Machine code of a kernel, as a cubin of its own (or PTX for a virtual architecture). The first
/// call compiles it, which takes seconds, and calls `wanted` repeatedly: `false` cancels.
///
/// # Errors
///
/// [`Error`]; the same on every call, except for a cancelled compilation.
pub fn code(
    kernel: Kernel,
    target: Target,
    wanted: &dyn Fn() -> bool,
) -> Result<&'static [u8], Error> {
    // The lock is held during compilation, so a kernel is compiled once.
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
        // The receiver is gone if the caller cancelled.
        let _ = sender.send(compile(compiler, kernel, target));
    };
    let thread = std::thread::Builder::new().name("nvrtc".into()).spawn(work);
    thread.map_err(|error| Error::Thread(error.to_string()))?;
    let started = Instant::now();
    loop {
        match receiver.recv_timeout(TICK) {
            // Leaked: recorded launches may use the code at any time.
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
    let name = cubin_cache::name(&source::hash_of(&text, target), compiler.version());
    if let Some(code) = cubin_cache::read(&name) {
        return Ok(code);
    }
    let mut options: Vec<String> = OPTIONS.iter().map(|&option| option.to_owned()).collect();
    options.push(format!("--gpu-architecture={}", target.architecture()));
    let ptx = target == Target::Compute80;
    let code = compiler.compile(&kernel.symbol(), &text, HEADERS, &options, ptx)?.code;
    cubin_cache::write(&name, &code);
    Ok(code)
}
