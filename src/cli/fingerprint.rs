//! `orinctl fingerprint`: one hash of what a model answers on a device; no daemon.

use serde::Serialize;

use super::args;
use super::device::chosen;
use super::error::Error;
use super::plan::open;
use super::terminal::Terminal;
use super::text;
use crate::parity::fingerprint::Fingerprint;

pub(super) fn run(args: &args::Fingerprint, terminal: &Terminal) -> Result<(), Error> {
    let device = chosen(&args.backend, args.threads, args.cpu_isa.as_deref())?;
    let model = open(&args.model, terminal)?;
    let live = terminal.spinner();
    let told = |what: &str| live.message(format!("{} on {}: {what}", args.model, args.backend));
    let fingerprint =
        Fingerprint::of(&*device, &model, args.longest as usize, &told).map_err(|error| {
            Error::Fingerprint { model: args.model.clone(), error: Box::new(error) }
        })?;
    drop(live);
    let found = fingerprint.hash.clone();
    let as_expected = args.expect.as_ref().map(|hash| found.eq_ignore_ascii_case(hash.trim()));
    let document = Document {
        model: &args.model,
        device: device.info().description,
        fingerprint,
        as_expected,
    };
    text::show(&document, args.json, Document::table)?;
    match &args.expect {
        Some(expected) if as_expected == Some(false) => {
            Err(Error::OtherFingerprint { found, expected: expected.clone() })
        }
        _ => Ok(()),
    }
}

/// `--json`.
#[derive(Serialize)]
struct Document<'a> {
    model: &'a str,
    device: String,
    #[serde(flatten)]
    fingerprint: Fingerprint,
    #[serde(skip_serializing_if = "Option::is_none")]
    as_expected: Option<bool>,
}

impl Document<'_> {
    fn table(&self) -> String {
        let Fingerprint { numerics, longest, hash, parts } = &self.fingerprint;
        let mut rows = vec![["part", "rows", "hash"].map(str::to_owned).to_vec()];
        for part in parts {
            rows.push(vec![part.name.clone(), part.rows.to_string(), part.hash.clone()]);
        }
        let verdict = if self.as_expected == Some(true) { ", as expected" } else { "" };
        format!(
            "{} on {}\n{}\n{hash}{verdict} (numerics {numerics}, prompts of up to {longest} tokens)\n",
            self.model,
            self.device,
            text::table(&rows, &[1]),
        )
    }
}
