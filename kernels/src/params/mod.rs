//! Launch ABI: one plain struct per kernel family. It is the kernel's only parameter and is copied
//! into constant bank 0.
//!
//! Fields named after memory are GPU virtual addresses; 0 means "none" where the field's
//! documentation allows it. Tensors are contiguous and row-major. [`header`] writes the same
//! structs for CUDA, as `src/cuda/params.cuh`.

mod define;
mod header;
mod model;
mod tensor;

pub use define::{Field, Parameters};
pub(crate) use define::{field, parameters, structure};
pub use header::header;
pub use model::*;
pub use tensor::*;
pub use zerocopy::IntoBytes;
