//! `sass`: decoder and interpreter for sm_8x machine code. It performs no I/O; only
//! [`machine::run`] starts threads, and joins them before it returns.
//!
//! ```text
//! decode    bits -> isa::Instruction        one table, compared with the vendor's disassembler
//! isa       instructions as data, and their text
//! program   instructions -> operations with all modifiers resolved, and the registers they access
//! execute   arithmetic of operations on the values of lanes
//! machine   warps, blocks, memories, barriers, the grid; counters and checks
//! launch, memory, check, count, fault       inputs and results of a run
//! ```
//!
//! A simulator decodes a kernel once ([`program::Program::new`]), describes a launch
//! ([`launch::Launch`]), implements global memory ([`memory::Memory`]) and calls [`machine::run`],
//! which returns [`count::Counters`] or the [`fault::Fault`] that ended it.
//!
//! Differences from hardware: time (the clock counts instructions), the order of independent warps
//! (it depends on a seed), caches (counted, never stale), the last bits of special functions
//! (correctly rounded here), and 64-bit atomics (atomic among themselves, but not against 32-bit
//! stores to their halves).

#![warn(missing_docs)]

pub mod check;
pub mod count;
pub mod decode;
mod execute;
pub mod fault;
pub mod isa;
pub mod launch;
pub mod machine;
pub mod memory;
pub mod program;
