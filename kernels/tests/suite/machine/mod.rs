//! Every shipped kernel: its sm_87 machine code is executed instruction by instruction and compared
//! with scalar `f64` references, for odd shapes, extreme values and every batch, with race and
//! uninitialised-value checks.

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
