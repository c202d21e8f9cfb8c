//! `tegra-sim errnos`: prints the table of refusals.

use std::error::Error;
use std::process::ExitCode;

use serde_json::json;
use tegra_sim::driver::{ERRNOS, Refusal};

/// Arguments of `errnos`.
#[derive(Debug, clap::Args)]
pub(super) struct Errnos {
    /// Print only this node (nvmap, ctrl, as, tsg, channel, ...)
    #[arg(long)]
    node: Option<String>,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

impl Errnos {
    /// Prints the table.
    pub(super) fn print(&self) -> Result<ExitCode, Box<dyn Error>> {
        let wanted = |node: &str| self.node.as_deref().is_none_or(|wanted| wanted == node);
        let rows: Vec<_> = ERRNOS.iter().filter(|row| wanted(row.node)).collect();
        let text = if self.json {
            let rows: Vec<_> = rows
                .iter()
                .map(|row| {
                    json!({
                        "node": row.node,
                        "call": row.call,
                        "condition": row.condition,
                        "errno": row.errno.to_string(),
                        "number": row.errno.code(),
                        "source": row.source,
                    })
                })
                .collect();
            serde_json::to_string_pretty(&rows)? + "\n"
        } else {
            let width = |length: fn(&Refusal) -> usize| {
                rows.iter().map(|row| length(row)).max().unwrap_or(0)
            };
            let node = width(|row| row.node.len());
            let call = width(|row| row.call.len());
            let errno = width(|row| row.errno.to_string().len());
            rows.iter()
                .map(|row| {
                    let name = row.errno.to_string();
                    format!(
                        "{:node$}  {:call$}  {name:errno$}  {}  [{}]\n",
                        row.node, row.call, row.condition, row.source
                    )
                })
                .collect()
        };
        super::output::write(&text, &mut std::io::stdout());
        Ok(ExitCode::SUCCESS)
    }
}
