//! `orinctl health`: exits with 0 if the daemon can serve requests. For probes.

use super::args::Connection;
use super::error::Error;
use super::text;
use api::{Health, route};

pub(super) async fn run(connection: &Connection) -> Result<(), Error> {
    let health: Health = connection.client()?.get(route::HEALTH).await?;
    text::print(&format!("{}\n", health.status))
}
