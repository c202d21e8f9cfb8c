//! The control plane: HTTP/1.1 with JSON. [`api`] holds what goes over the wire; [`server`] answers, [`client`]
//! asks. `docs/api.md` describes every route for people.

pub mod api;
pub mod client;
mod folder;
pub mod server;

impl From<crate::config::Tune> for device::tune::report::Mode {
    fn from(tune: crate::config::Tune) -> Self {
        match tune {
            crate::config::Tune::Off => Self::Off,
            crate::config::Tune::Load => Self::Load,
            crate::config::Tune::Auto => Self::Auto,
        }
    }
}
