//! NVRTC, NVIDIA's run-time compiler, loaded with `dlopen`.
//!
//! Loaded from the path in `ORIND_NVRTC`, or else by its usual names. Kernels include no header of
//! the CUDA toolkit, so the library and its `libnvrtc-builtins` are enough. All functions are
//! resolved at load time.

use std::ffi::{CString, NulError, c_char, c_int, c_void};
use std::ptr;

use libloading::Library;

/// Names to try. CUDA 12 comes first: JetPack 6 has it, and it compiled the prebuilt kernels. The
/// name without a version belongs to the development package. Some systems do not search
/// `/usr/local/cuda`.
const NAMES: [&str; 5] = [
    "libnvrtc.so.12",
    "libnvrtc.so.13",
    "libnvrtc.so",
    "/usr/local/cuda/lib64/libnvrtc.so.12",
    "/usr/local/cuda/lib64/libnvrtc.so.13",
];

/// Environment variable with the library's path.
const PATH: &str = "ORIND_NVRTC";

type Program = *mut c_void;
type Text = *const c_char;

/// Reason why nothing was compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// NVRTC is not installed.
    #[error("no NVRTC: {tried} cannot be loaded; {PATH} takes the path of libnvrtc.so.12 or .13")]
    Missing {
        /// Names tried.
        tried: String,
    },
    /// The library lacks a function: not NVRTC, or too old.
    #[error("{library} has no {function}: it is not NVRTC 12 or 13")]
    Foreign {
        /// Name of the library.
        library: String,
        /// Missing function.
        function: &'static str,
    },
    /// A call failed.
    #[error("{call} failed with code {code}{log}")]
    Call {
        /// Name of the call.
        call: &'static str,
        /// NVRTC's result code.
        code: c_int,
        /// The compiler's log, on separate lines.
        log: String,
    },
    /// Source or option with a NUL byte.
    #[error("a source or an option contains a NUL byte")]
    Zero(#[from] NulError),
}

macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        /// NVRTC's functions.
        #[expect(non_snake_case, reason = "the names of `nvrtc.h`")]
        #[derive(Debug)]
        pub struct Compiler {
            $($name: unsafe extern "C" fn($($argument),*) -> c_int,)*
            version: (c_int, c_int),
            /// Keeps the functions valid.
            _library: Library,
        }

        impl Compiler {
            #[expect(non_snake_case, reason = "the names of `nvrtc.h`")]
            fn with(name: &str, library: Library) -> Result<Self, Error> {
                $(
                    // SAFETY: the signature is that of `nvrtc.h`; `_library` outlives the function.
                    let $name = *unsafe { library.get(stringify!($name).as_bytes()) }.map_err(|_| {
                        Error::Foreign { library: name.to_owned(), function: stringify!($name) }
                    })?;
                )*
                Ok(Self { $($name,)* version: (0, 0), _library: library })
            }
        }
    };
}

functions! {
    nvrtcVersion(*mut c_int, *mut c_int);
    nvrtcCreateProgram(*mut Program, Text, Text, c_int, *const Text, *const Text);
    nvrtcDestroyProgram(*mut Program);
    nvrtcCompileProgram(Program, c_int, *const Text);
    nvrtcGetProgramLogSize(Program, *mut usize);
    nvrtcGetProgramLog(Program, *mut c_char);
    nvrtcGetPTXSize(Program, *mut usize);
    nvrtcGetPTX(Program, *mut c_char);
    nvrtcGetCUBINSize(Program, *mut usize);
    nvrtcGetCUBIN(Program, *mut c_char);
}

/// Calls a function; the error contains its name.
macro_rules! call {
    ($compiler:expr, $name:ident($($argument:expr),*)) => {{
        // SAFETY: the signature is that of `nvrtc.h`. Strings, lists and result pointers outlive
        // the call; programs were created by NVRTC and are alive.
        let code = unsafe { ($compiler.$name)($($argument),*) };
        let log = String::new();
        if code == 0 { Ok(()) } else { Err(Error::Call { call: stringify!($name), code, log }) }
    }};
}

/// Reads a text of a program: first its size, then its bytes.
macro_rules! read {
    ($program:expr, $size:ident, $text:ident) => {{
        let (compiler, program) = ($program.compiler, $program.program);
        let mut bytes = 0;
        call!(compiler, $size(program, &raw mut bytes)).and_then(|()| {
            let mut buffer = vec![0u8; bytes];
            call!(compiler, $text(program, buffer.as_mut_ptr().cast())).map(|()| buffer)
        })
    }};
}

/// Result of a compilation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// A cubin, or PTX without its terminating zero.
    pub code: Vec<u8>,
    /// The compiler's log.
    pub log: String,
}

impl Compiler {
    /// Loads the library.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`], [`Error::Foreign`].
    pub fn load() -> Result<Self, Error> {
        let names: Vec<String> = match std::env::var(PATH) {
            Ok(path) => vec![path],
            Err(_) => NAMES.map(String::from).to_vec(),
        };
        for name in &names {
            // SAFETY: loading runs the library's initialisers; it has NVRTC's name, or the user
            // chose it.
            if let Ok(library) = unsafe { Library::new(name) } {
                let mut compiler = Self::with(name, library)?;
                let (mut major, mut minor) = (0, 0);
                call!(compiler, nvrtcVersion(&raw mut major, &raw mut minor))?;
                compiler.version = (major, minor);
                return Ok(compiler);
            }
        }
        Err(Error::Missing { tried: names.join(", ") })
    }

    /// Major and minor version.
    #[must_use]
    pub const fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Compiles `source` to machine code, or to PTX if `options` specify a virtual architecture.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] with the compiler's log.
    pub fn compile(
        &self,
        name: &str,
        source: &str,
        headers: &[(&str, &str)],
        options: &[String],
        ptx: bool,
    ) -> Result<Output, Error> {
        let strings = |texts: &mut dyn Iterator<Item = &str>| {
            texts.map(CString::new).collect::<Result<Vec<_>, _>>()
        };
        let bodies = strings(&mut headers.iter().map(|h| h.1))?;
        let names = strings(&mut headers.iter().map(|h| h.0))?;
        let options = strings(&mut options.iter().map(String::as_str))?;
        let (source, title) = (CString::new(source)?, CString::new(name)?);
        let pointers = |list: &[CString]| list.iter().map(|s| s.as_ptr()).collect::<Vec<Text>>();
        let (bodies_at, names_at, options_at) =
            (pointers(&bodies), pointers(&names), pointers(&options));
        let mut program = ptr::null_mut();
        call!(
            self,
            nvrtcCreateProgram(
                &raw mut program,
                source.as_ptr(),
                title.as_ptr(),
                count(&bodies),
                bodies_at.as_ptr(),
                names_at.as_ptr()
            )
        )?;
        let program = Live { compiler: self, program };
        let done =
            call!(self, nvrtcCompileProgram(program.program, count(&options), options_at.as_ptr()));
        let mut log = read!(program, nvrtcGetProgramLogSize, nvrtcGetProgramLog)?;
        log.pop();
        let log = String::from_utf8_lossy(&log).into_owned();
        done.map_err(|error| match error {
            Error::Call { call, code, .. } => {
                Error::Call { call, code, log: format!("; {name}:\n{log}") }
            }
            error => error,
        })?;
        let code = if ptx {
            let mut text = read!(program, nvrtcGetPTXSize, nvrtcGetPTX)?;
            text.pop();
            text
        } else {
            read!(program, nvrtcGetCUBINSize, nvrtcGetCUBIN)?
        };
        Ok(Output { code, log })
    }
}

/// Length of a short list.
fn count(list: &[CString]) -> c_int {
    c_int::try_from(list.len()).unwrap_or(c_int::MAX)
}

/// A program, destroyed on drop.
struct Live<'a> {
    compiler: &'a Compiler,
    program: Program,
}

impl Drop for Live<'_> {
    fn drop(&mut self) {
        // A failure leaves only memory behind, so it is ignored.
        let _ = call!(self.compiler, nvrtcDestroyProgram(&raw mut self.program));
    }
}
