//! NVRTC, NVIDIA's compiler as a library, loaded at run time.
//!
//! Found by `ORIND_NVRTC` (a path), else under its usual names. Kernels include no header of the
//! CUDA toolkit, so the library and its `libnvrtc-builtins` beside it are all that is needed.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;

use anyhow::{Context as _, bail};
use libloading::{Library, Symbol};

/// Names to try: JetPack 6 has CUDA 12.
const NAMES: [&str; 2] = ["libnvrtc.so.12", "libnvrtc.so"];

type Program = *mut c_void;
type Text = *const c_char;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Read = unsafe extern "C" fn(Program, *mut c_char) -> c_int;

/// The loaded library.
pub(crate) struct Compiler {
    nvrtc: Library,
}

/// What a compilation gave.
pub(crate) struct Output {
    /// A cubin, or PTX without its terminating zero.
    pub(crate) code: Vec<u8>,
    /// What the compiler had to say.
    pub(crate) log: String,
}

impl Compiler {
    /// Loads the library.
    pub(crate) fn load() -> anyhow::Result<Self> {
        let names: Vec<String> = match std::env::var("ORIND_NVRTC") {
            Ok(path) => vec![path],
            Err(_) => NAMES.map(String::from).to_vec(),
        };
        for name in &names {
            // SAFETY: loading runs the library's initialisers; it is NVIDIA's compiler by its name,
            // or what the user named.
            if let Ok(library) = unsafe { Library::new(name) } {
                return Ok(Self { nvrtc: library });
            }
        }
        bail!(
            "no NVRTC found ({}); set ORIND_NVRTC to the path of libnvrtc.so.12",
            names.join(", ")
        )
    }

    /// Major and minor version.
    pub(crate) fn version(&self) -> anyhow::Result<(c_int, c_int)> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the signature is NVRTC's; both pointers are valid.
        let code = unsafe {
            let version: Symbol<'_, unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int> =
                self.nvrtc.get(b"nvrtcVersion\0")?;
            version(&raw mut major, &raw mut minor)
        };
        check("nvrtcVersion", code)?;
        Ok((major, minor))
    }

    /// Compiles `source` to machine code, or to PTX when `options` name a virtual architecture.
    pub(crate) fn compile(
        &self,
        name: &str,
        source: &str,
        headers: &[(&str, &str)],
        options: &[String],
        ptx: bool,
    ) -> anyhow::Result<Output> {
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
        // SAFETY: the signature is NVRTC's; all strings and lists outlive the call.
        let code = unsafe {
            type Create = unsafe extern "C" fn(
                *mut Program,
                Text,
                Text,
                c_int,
                *const Text,
                *const Text,
            ) -> c_int;
            let create: Symbol<'_, Create> = self.nvrtc.get(b"nvrtcCreateProgram\0")?;
            let count = c_int::try_from(bodies.len())?;
            let (bodies, names) = (bodies_at.as_ptr(), names_at.as_ptr());
            create(&raw mut program, source.as_ptr(), title.as_ptr(), count, bodies, names)
        };
        check("nvrtcCreateProgram", code)?;
        let program = Live { compiler: self, program };
        // SAFETY: as above.
        let code = unsafe {
            type Compile = unsafe extern "C" fn(Program, c_int, *const Text) -> c_int;
            let compile: Symbol<'_, Compile> = self.nvrtc.get(b"nvrtcCompileProgram\0")?;
            compile(program.program, c_int::try_from(options_at.len())?, options_at.as_ptr())
        };
        let mut log = program.read(b"nvrtcGetProgramLogSize\0", b"nvrtcGetProgramLog\0")?;
        log.pop();
        let log = String::from_utf8_lossy(&log).into_owned();
        check("nvrtcCompileProgram", code).with_context(|| format!("{name}:\n{log}"))?;
        let code = if ptx {
            let mut text = program.read(b"nvrtcGetPTXSize\0", b"nvrtcGetPTX\0")?;
            text.pop();
            text
        } else {
            program.read(b"nvrtcGetCUBINSize\0", b"nvrtcGetCUBIN\0")?
        };
        Ok(Output { code, log })
    }
}

/// A program that is destroyed when it goes.
struct Live<'a> {
    compiler: &'a Compiler,
    program: Program,
}

impl Live<'_> {
    fn read(&self, size: &[u8], read: &[u8]) -> anyhow::Result<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: the signatures are NVRTC's; the second call writes as many bytes as the first
        // one said, which is what the buffer holds.
        unsafe {
            let size: Symbol<'_, Size> = self.compiler.nvrtc.get(size)?;
            check("nvrtcGet...Size", size(self.program, &raw mut bytes))?;
            let mut buffer = vec![0u8; bytes];
            let read: Symbol<'_, Read> = self.compiler.nvrtc.get(read)?;
            check("nvrtcGet...", read(self.program, buffer.as_mut_ptr().cast()))?;
            Ok(buffer)
        }
    }
}

impl Drop for Live<'_> {
    fn drop(&mut self) {
        // SAFETY: the signature is NVRTC's; the program was created by it and is used no more.
        unsafe {
            if let Ok(destroy) = self
                .compiler
                .nvrtc
                .get::<unsafe extern "C" fn(*mut Program) -> c_int>(b"nvrtcDestroyProgram\0")
            {
                destroy(&raw mut self.program);
            }
        }
    }
}

fn check(call: &str, code: c_int) -> anyhow::Result<()> {
    if code == 0 {
        return Ok(());
    }
    bail!("{call} failed with code {code}")
}
