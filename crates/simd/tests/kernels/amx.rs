//! The kernels' AMX code on a processor without AMX: a `SIGILL` handler emulates its instructions.
//!
//! It supports the six instructions that kernels use, as the manual defines them (Intel 64 and IA-32 Architectures
//! Software Developer's Manual, volume 2): tiles have the configured rows and bytes, loads fill the rest with
//! zeros, and an invalid shape ends the program. On a processor with AMX it is not called.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{mem, ptr, slice};

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, Register};
use orind_testing::random::Random;
use plan::DType;
use simd::Isa;

use super::{Matrix, product};

/// Number of emulated instructions.
static EXECUTED: AtomicUsize = AtomicUsize::new(0);

/// The machine's vector sets, with AMX or its emulation.
pub(crate) fn sets() -> impl Iterator<Item = Isa> {
    static READY: LazyLock<()> = LazyLock::new(install);
    LazyLock::force(&READY);
    let vectors = ["avx512", "avx2"].into_iter().filter_map(|name| Isa::named(name).ok());
    // SAFETY: the handler emulates every AMX instruction that the processor or the system rejects.
    vectors.map(|vectors| unsafe { vectors.with_tiles() })
}

fn install() {
    // The decoder builds its tables with the first instruction, which is not allowed in a signal handler.
    assert_eq!(decode(&[0x90; LONGEST]).mnemonic(), Mnemonic::Nop);
    // SAFETY: the handler has the type that the flag requires; all other fields may be zero.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_illegal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGILL, &raw const action, ptr::null_mut()), 0);
    }
}

/// Bytes of the longest instruction.
const LONGEST: usize = 15;

fn decode(code: &[u8]) -> Instruction {
    Decoder::new(64, code, DecoderOptions::NONE).decode()
}

/// Tile registers of a thread.
struct Unit {
    /// Configured rows and bytes of each tile.
    shapes: [(usize, usize); 8],
    tiles: [[[u8; 64]; 16]; 8],
}

const EMPTY: Unit = Unit { shapes: [(0, 0); 8], tiles: [[[0; 64]; 16]; 8] };

thread_local! {
    static UNIT: UnsafeCell<Unit> = const { UnsafeCell::new(EMPTY) };
}

/// Ends the program like an invalid instruction, and prints the reason.
fn refuse(why: &str) -> ! {
    // SAFETY: writes the text's bytes; both calls are async-signal-safe.
    unsafe {
        libc::write(libc::STDERR_FILENO, why.as_ptr().cast(), why.len());
        libc::abort()
    }
}

unsafe extern "C" fn on_illegal(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's context of this thread; code at the instruction is mapped, and no function ends within
    // 15 bytes of the last mapped one. The unit is thread-local, and no other reference to it exists.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let rip = &mut registers[libc::REG_RIP as usize];
        let instruction = decode(slice::from_raw_parts(*rip as *const u8, LONGEST));
        *rip += instruction.len() as i64;
        UNIT.with(|unit| (*unit.get()).execute(&instruction, registers));
    }
    EXECUTED.fetch_add(1, Ordering::Relaxed);
}

/// Value of a general register; zero for none.
fn value(register: Register, registers: &[i64; 23]) -> usize {
    let index = match register {
        Register::None => return 0,
        Register::RAX => libc::REG_RAX,
        Register::RBX => libc::REG_RBX,
        Register::RCX => libc::REG_RCX,
        Register::RDX => libc::REG_RDX,
        Register::RSI => libc::REG_RSI,
        Register::RDI => libc::REG_RDI,
        Register::RBP => libc::REG_RBP,
        Register::RSP => libc::REG_RSP,
        Register::R8 => libc::REG_R8,
        Register::R9 => libc::REG_R9,
        Register::R10 => libc::REG_R10,
        Register::R11 => libc::REG_R11,
        Register::R12 => libc::REG_R12,
        Register::R13 => libc::REG_R13,
        Register::R14 => libc::REG_R14,
        Register::R15 => libc::REG_R15,
        _ => refuse("amx: an address of another register\n"),
    };
    registers[index as usize] as usize
}

impl Unit {
    /// # Safety
    ///
    /// The memory that the instruction reads and writes is valid.
    unsafe fn execute(&mut self, instruction: &Instruction, registers: &[i64; 23]) {
        let tile = |operand| instruction.op_register(operand) as usize - Register::TMM0 as usize;
        let base = value(instruction.memory_base(), registers)
            .wrapping_add(instruction.memory_displacement64() as usize);
        let stride = value(instruction.memory_index(), registers)
            * instruction.memory_index_scale() as usize;
        match instruction.mnemonic() {
            // SAFETY: the caller's contract: 64 bytes.
            Mnemonic::Ldtilecfg => self.configure(unsafe { &*(base as *const [u8; 64]) }),
            Mnemonic::Tilerelease => *self = EMPTY,
            Mnemonic::Tilezero => {
                let (i, _) = self.shape(tile(0));
                self.tiles[i] = [[0; 64]; 16];
            }
            Mnemonic::Tileloadd => {
                let (i, (rows, bytes)) = self.shape(tile(0));
                self.tiles[i] = [[0; 64]; 16];
                for (r, row) in self.tiles[i][..rows].iter_mut().enumerate() {
                    // SAFETY: the caller's contract: so many bytes of each row.
                    let from =
                        unsafe { slice::from_raw_parts((base + r * stride) as *const u8, bytes) };
                    row[..bytes].copy_from_slice(from);
                }
            }
            Mnemonic::Tilestored => {
                let (i, (rows, bytes)) = self.shape(tile(1));
                for (r, row) in self.tiles[i][..rows].iter().enumerate() {
                    // SAFETY: as above.
                    unsafe {
                        ((base + r * stride) as *mut u8)
                            .copy_from_nonoverlapping(row.as_ptr(), bytes);
                    }
                }
            }
            Mnemonic::Tdpbssd => self.multiply(tile(0), tile(1), tile(2)),
            _ => refuse("an illegal instruction, and none of AMX\n"),
        }
    }

    fn configure(&mut self, from: &[u8; 64]) {
        if from[0] != 1 || from[1..16].iter().chain(&from[32..48]).any(|&b| b != 0) {
            refuse("ldtilecfg: palette, start or reserved bytes\n");
        }
        *self = EMPTY;
        for (i, shape) in self.shapes.iter_mut().enumerate() {
            let bytes = u16::from_le_bytes([from[16 + 2 * i], from[17 + 2 * i]]);
            *shape = (from[48 + i].into(), bytes.into());
            if shape.0 > 16 || shape.1 > 64 || (shape.0 == 0) != (shape.1 == 0) {
                refuse("ldtilecfg: a tile larger than there are, or of no rows\n");
            }
        }
    }

    /// Shape of a configured tile.
    fn shape(&self, i: usize) -> (usize, (usize, usize)) {
        match self.shapes.get(i) {
            Some(&shape) if shape.0 > 0 => (i, shape),
            _ => refuse("a tile that is not configured\n"),
        }
    }

    /// Emulates `tdpbssd`.
    fn multiply(&mut self, out: usize, x: usize, w: usize) {
        let [(out, o), (x, a), (w, b)] = [out, x, w].map(|i| self.shape(i));
        let distinct = out != x && x != w && out != w;
        if !distinct || o.0 != a.0 || o.1 != b.1 || a.1 != 4 * b.0 || o.1 % 4 != 0 {
            refuse("tdpbssd: shapes that do not fit\n");
        }
        for m in 0..o.0 {
            for n in 0..o.1 / 4 {
                let product = |k: usize| {
                    let byte = |tile: usize, row: usize, at: usize| {
                        i32::from(self.tiles[tile][row][at].cast_signed())
                    };
                    byte(x, m, k) * byte(w, k / 4, 4 * n + k % 4)
                };
                let sum: i32 = (0..a.1).map(product).sum();
                let to = &mut self.tiles[out][m][4 * n..4 * n + 4];
                let before = i32::from_le_bytes([to[0], to[1], to[2], to[3]]);
                to.copy_from_slice(&before.wrapping_add(sum).to_le_bytes());
            }
        }
    }
}

#[test]
fn amx_instructions_are_executed_or_emulated() {
    let mut random = Random(1);
    let w = Matrix::random(&mut random, DType::Q8_0, 16, 64);
    let x = random.reals(8 * 64, 1.0);
    for isa in sets() {
        let before = EXECUTED.load(Ordering::Relaxed);
        product(isa, &w, &x, None);
        // Two products, and the instructions that configure and release the unit; other tests add to the count.
        let here = EXECUTED.load(Ordering::Relaxed) - before;
        assert!(Isa::named("amx").is_ok() || here >= 12, "{isa}: {here}");
    }
}
