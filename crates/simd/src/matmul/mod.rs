//! Matrix products of packed weights and activation rows.
//!
//! One weight block (16 rows by 32 columns) is unpacked into registers and multiplied with every activation row of
//! a tile (L2, up to `TILE` rows). With one row (decode) the kernel is a stream over the packed bytes. With many
//! rows (prefill) the sums are in the first-level cache and the tile's activations in the second-level cache;
//! integer dot products are the limit.
//!
//! An output is the sum, in order, over spans of columns whose activations share a scale: that scale times the
//! span's exact integer dot products, each times its own scale, added by fused multiply-add. For short spans, every
//! `LEAF` columns are first added up by themselves. The result does not depend on the rows or row groups of the
//! call. `docs/numerics.md` describes every step.

mod block;
mod dispatch;
mod gemm;
mod gemv;
mod plain;
mod product;
mod tiled;

pub use dispatch::matmul;
pub use product::{Activations, Loops, Product, Q8Activations};
