//! NVRTC, NVIDIA's compiler as a library, loaded at run time.
//!
//! Found by `ORIND_NVRTC` (a path), else under its usual names. Kernels include no header of the
//! CUDA toolkit, so the library and its `libnvrtc-builtins` beside it are all that is needed. All functions
//! are looked up before the first call.

use std::ffi::{CString, NulError, c_char, c_int, c_void};
use std::ptr;

use libloading::Library;

/// Names to try. CUDA 12 first: JetPack 6 has it, and it is what the prebuilt kernels come from; 13 has another
/// name, and the one without a number is the development package's. Not every system searches the directory.
const NAMES: [&str; 5] = [
    "libnvrtc.so.12",
    "libnvrtc.so.13",
    "libnvrtc.so",
    "/usr/local/cuda/lib64/libnvrtc.so.12",
    "/usr/local/cuda/lib64/libnvrtc.so.13",
];

/// Where the library is, if not under its usual names.
const PATH: &str = "ORIND_NVRTC";

type Program = *mut c_void;
type Text = *const c_char;

/// Why nothing was compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is not here.
    #[error("no NVRTC: {tried} cannot be loaded; {PATH} takes the path of libnvrtc.so.12 or .13")]
    Missing {
        /// What was tried.
        tried: String,
    },
    /// It is another library, or a very old one.
    #[error("{library} has no {function}: it is not NVRTC 12 or 13")]
    Foreign {
        /// What was loaded.
        library: String,
        /// What it lacks.
        function: &'static str,
    },
    /// A call failed.
    #[error("{call} failed with code {code}{log}")]
    Call {
        /// Which.
        call: &'static str,
        /// As NVRTC numbers its results.
        code: c_int,
        /// What the compiler had to say, on lines of its own.
        log: String,
    },
    /// Text that C cannot take.
    #[error("a source or an option with a zero in it")]
    Zero(#[from] NulError),
}

macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        /// The loaded library.
        #[expect(non_snake_case, reason = "the names of `nvrtc.h`")]
        #[derive(Debug)]
        pub struct Compiler {
            $($name: unsafe extern "C" fn($($argument),*) -> c_int,)*
            version: (c_int, c_int),
            /// Keeps the functions.
            _library: Library,
        }

        impl Compiler {
            #[expect(non_snake_case, reason = "the names of `nvrtc.h`")]
            fn with(name: &str, library: Library) -> Result<Self, Error> {
                $(
                    // SAFETY: the signature is that of `nvrtc.h`; the library is kept beside it.
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

/// Calls a function and names it where it fails.
macro_rules! call {
    ($compiler:expr, $name:ident($($argument:expr),*)) => {{
        // SAFETY: the signature is that of `nvrtc.h`. Strings, lists and the places of results outlive
        // the call; programs are NVRTC's own and live.
        let code = unsafe { ($compiler.$name)($($argument),*) };
        let log = String::new();
        if code == 0 { Ok(()) } else { Err(Error::Call { call: stringify!($name), code, log }) }
    }};
}

/// Reads a text of a program: its size, then as many bytes.
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

/// What a compilation gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// A cubin, or PTX without its terminating zero.
    pub code: Vec<u8>,
    /// What the compiler had to say.
    pub log: String,
}

impl Compiler {
    /// Loads the library.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Foreign`].
    pub fn load() -> Result<Self, Error> {
        let names: Vec<String> = match std::env::var(PATH) {
            Ok(path) => vec![path],
            Err(_) => NAMES.map(String::from).to_vec(),
        };
        for name in &names {
            // SAFETY: loading runs the library's initialisers; it is NVIDIA's compiler by its name,
            // or what the user named.
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

    /// Compiles `source` to machine code, or to PTX when `options` name a virtual architecture.
    ///
    /// # Errors
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

/// There are a dozen headers and fewer options.
fn count(list: &[CString]) -> c_int {
    c_int::try_from(list.len()).unwrap_or(c_int::MAX)
}

/// A program that is destroyed when it goes.
struct Live<'a> {
    compiler: &'a Compiler,
    program: Program,
}

impl Drop for Live<'_> {
    fn drop(&mut self) {
        // Nothing is left to be done where it fails.
        let _ = call!(self.compiler, nvrtcDestroyProgram(&raw mut self.program));
    }
}
