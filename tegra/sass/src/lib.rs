//! `sass`: sm_8x machine code, decoded and executed. Pure: no I/O; threads are started only by
//! [`machine::run`], as many as its caller says, and have ended when it returns.
//!
//! ```text
//! decode    bits -> isa::Instruction        one table, held to the vendor's disassembler
//! isa       instructions as data, and their text
//! program   instructions -> operations with every choice made, and what they read and write
//! execute   what operations do to the values of lanes
//! machine   warps, blocks, memories, barriers, the grid; counters and checks
//! launch, memory, check, count, fault       what goes in and what comes out
//! ```
//!
//! A simulator decodes a kernel once ([`program::Program::new`]), describes a launch
//! ([`launch::Launch`]), answers for global memory ([`memory::Memory`]) and calls
//! [`machine::run`], which gives [`count::Counters`] or the [`fault::Fault`] that ended it.
//!
//! What is not as on hardware: time (a clock counts instructions), the order of independent warps
//! (it is seeded), caches (counted, never stale), the values of special functions in their last bits
//! (they are rounded correctly here), and 64-bit atomic operations, which are atomic among themselves
//! but not against 32-bit stores to their halves.

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
