//! AMX: detection, permission, and tile products.
//!
//! The compiler has no stable intrinsics for these instructions and never uses their registers, so inline assembly
//! uses them without declaring them.

use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, _xgetbv};
use std::sync::LazyLock;

use super::tiles::Tiles;

/// CPUID 7.0, EDX: AMX tiles, and products of bytes.
const AMX_TILE: u32 = 1 << 24;
const AMX_INT8: u32 = 1 << 25;

/// XCR0 bits of the state components that the system saves: tile configuration and tile data.
const STATES: u64 = 3 << 17;

/// `ARCH_REQ_XCOMP_PERM` of `asm/prctl.h`: requests permission for a large state component.
const REQUEST_PERMISSION: libc::c_int = 0x1023;

/// Number of the tile data component.
const TILE_DATA: libc::c_ulong = 18;

/// True if processor and system have AMX and let this process use it. Threads inherit the permission; `exec` drops
/// it.
pub(crate) fn usable() -> bool {
    static USABLE: LazyLock<bool> = LazyLock::new(|| {
        let int8 = AMX_TILE | AMX_INT8;
        // XSAVE guarantees that XCR0 can be read.
        is_x86_feature_detected!("xsave")
            && std::arch::x86_64::__cpuid(0).eax >= 7
            && __cpuid_count(7, 0).edx & int8 == int8
            // SAFETY: as checked.
            && unsafe { states() } & STATES == STATES
            // SAFETY: passes two numbers, and accesses no memory of this process.
            && unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) } == 0
    });
    *USABLE
}

/// XCR0.
///
/// # Safety
///
/// The processor has XSAVE, and the system uses it.
#[target_feature(enable = "xsave")]
unsafe fn states() -> u64 {
    // SAFETY: register 0 exists with XSAVE.
    unsafe { _xgetbv(0) }
}

/// Advanced Matrix Extensions; kernels use the products of signed bytes.
pub(crate) struct Amx;

/// The operand of `ldtilecfg`, palette 1.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes per row of each of 8 tiles, and 8 unused entries.
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Tiles for Amx {
    #[inline(always)]
    unsafe fn open<const ROWS: usize, const COLUMNS: usize>() {
        const { assert!(ROWS <= 16 && COLUMNS <= 64 && COLUMNS.is_multiple_of(4)) };
        let (x, w, out) = ((ROWS, COLUMNS), (COLUMNS / 4, 64), (ROWS, 64));
        let (mut rows, mut row_bytes) = ([0; 16], [0; 16]);
        for (i, tile) in [out, x, w, out, x, w].into_iter().enumerate() {
            (rows[i], row_bytes[i]) = (tile.0 as u8, tile.1 as u16);
        }
        let configuration =
            Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows };
        // SAFETY: reads the 64 bytes, and changes the unit's registers only.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const configuration,
                 options(nostack, readonly, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn products<const ROWS: usize, const COLUMNS: usize>(
        [x0, x1]: [*const i8; 2],
        [w0, w1]: [*const u8; 2],
        [out0, out1]: [*mut i32; 2],
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tileloadd tmm1, [{x0} + {line}*1]",
                "tileloadd tmm2, [{w0} + {line}*1]",
                "tdpbssd tmm0, tmm1, tmm2",
                "tilezero tmm3",
                "tileloadd tmm4, [{x1} + {line}*1]",
                "tileloadd tmm5, [{w1} + {line}*1]",
                "tdpbssd tmm3, tmm4, tmm5",
                "tilestored [{out0} + {line}*1], tmm0",
                "tilestored [{out1} + {line}*1], tmm3",
                line = in(reg) 64usize,
                x0 = in(reg) x0, x1 = in(reg) x1,
                w0 = in(reg) w0, w1 = in(reg) w1,
                out0 = in(reg) out0, out1 = in(reg) out1,
                options(nostack, preserves_flags),
            );
        }
    }

    #[inline(always)]
    unsafe fn close() {
        // SAFETY: changes the unit's registers only.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}
