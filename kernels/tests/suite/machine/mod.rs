//! Every kernel as it is shipped, its sm_87 machine code executed instruction by instruction, against
//! scalar `f64` references: odd shapes, extreme values, every batch, with the checks for races and
//! undefined values on.

mod attention;
mod crossing;
mod device;
mod first_light;
mod matmul;
mod mixture;
mod numbers;
mod prefill;
mod project;
mod recurrent;
mod rows;
mod sample;
mod snippets;
mod weights;
