//! Grammar-constrained decoding: the tokens that a grammar allows next, computed with llguidance.
//!
//! A grammar comes from a stranger, and llguidance's work on it cannot be interrupted: a schema of 71
//! bytes can take all memory, and one of 1 KB all time. Each [`Constraint`] is therefore a process of
//! its own with limited processor time and memory ([`Limits`]), forked from one warm worker per
//! tokenizer. It ends with the answer, or when the client disconnects.
//!
//! | file | contents |
//! |---|---|
//! | `source.rs` | [`Grammar`]: the notations of requests |
//! | `schema.rs`, `gbnf.rs` | JSON schemas and llama.cpp's notation, translated |
//! | `compiler.rs` | parser states in this process |
//! | `constraint.rs` | the daemon's side: [`Grammars`], [`Constraint`] |
//! | `worker.rs` | the worker's side |
//! | `frame.rs` | messages between them |

mod compiler;
mod constraint;
mod frame;
mod gbnf;
mod schema;
mod source;
mod worker;

pub use compiler::Compiler;
pub use constraint::{Constraint, Grammars};
pub use schema::unenforced;
pub use source::Grammar;
pub use worker::{Limits, run_if_worker, use_worker};
