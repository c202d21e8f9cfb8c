//! `sass`: sm_8x machine code, decoded and executed. Pure: no I/O, no threads of its own.

pub mod decode;
pub mod isa;
