//! The control plane: HTTP/1.1 with JSON on a unix socket.
//!
//! [`api`] holds what goes over the wire; [`server`] answers, [`client`] asks. `docs/api.md` describes every route
//! for people.

pub mod api;
pub mod client;
pub mod server;
