//! `sass`: sm_8x machine code, decoded and executed. Pure: no I/O, no threads of its own.

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
