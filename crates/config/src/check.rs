//! Validation of the configuration: allowed values and ranges.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use errors::invalid;
use model::synthetic;

use strum::VariantNames;

use super::{Backend, Config, ControlLoop, Error, IoctlFilter, Resident, Tune};

/// Allowed range of each integer key.
pub(super) const NUMBERS: [(&str, RangeInclusive<u64>); 15] = [
    ("network_seconds", 1..=3600),
    ("network_memory_mib", 1..=65_536),
    // An Orin has at most 64 GiB.
    ("memory_reserve_mib", 0..=65_536),
    ("threads", 0..=1024),
    ("slots", 1..=256),
    ("context", 0..=16 << 20),
    ("prefill_chunk", 1..=8192),
    ("draft_tokens", 0..=7),
    ("stall_ms", 0..=60_000),
    ("prefix_cache_mib", 0..=1 << 20),
    ("queue_limit", 0..=65_536),
    ("max_connections", 1..=65_536),
    ("max_body_bytes", 1024..=1 << 30),
    ("request_timeout_s", 1..=86_400),
    ("shutdown_deadline_s", 0..=3600),
];

pub(super) fn allowed(key: &str) -> Option<&'static RangeInclusive<u64>> {
    NUMBERS.iter().find(|(name, _)| *name == key).map(|(_, allowed)| allowed)
}

impl Config {
    /// Checks all values.
    pub fn check(&self) -> Result<(), Error> {
        let number = |key, value: u64| match allowed(key) {
            Some(allowed) if !allowed.contains(&value) => {
                let allowed = format!("{} to {} are allowed", allowed.start(), allowed.end());
                Err(Error::range(key, value.to_string(), allowed))
            }
            _ => Ok(()),
        };
        let count = |key, value: usize| number(key, value.try_into().unwrap_or(u64::MAX));
        if self.socket.as_os_str().is_empty() {
            let allowed = "a path is needed";
            return Err(Error::range("socket", "empty", allowed));
        }
        self.port()?;
        if let Some(odd) = self.allowed_origins.iter().find(|origin| !is_origin(origin)) {
            let allowed = "a scheme and a host are needed, such as https://chat.example, or `*`";
            return Err(Error::range(
                "allowed_origins",
                format!("`{}`", invalid::excerpt(odd)),
                allowed,
            ));
        }
        if self.tune != Tune::Off && !self.tune_dir.is_absolute() {
            let value = format!("`{}`", self.tune_dir.display());
            let allowed = "an absolute path is needed, or tune = \"off\"";
            return Err(Error::range("tune_dir", value, allowed));
        }
        if self.prefix_cache_mib > 0 && !self.prefix_cache_dir.is_absolute() {
            let value = format!("`{}`", self.prefix_cache_dir.display());
            let allowed = "an absolute path is needed, or prefix_cache_mib = 0";
            return Err(Error::range("prefix_cache_dir", value, allowed));
        }
        if !self.network_root.is_absolute() {
            let value = format!("`{}`", self.network_root.display());
            return Err(Error::range("network_root", value, "an absolute path is needed"));
        }
        if !self.state_dir.is_absolute() {
            let value = format!("`{}`", self.state_dir.display());
            return Err(Error::range("state_dir", value, "an absolute path is needed"));
        }
        number("memory_reserve_mib", self.memory_reserve_mib)?;
        count("threads", self.threads)?;
        count("slots", self.slots)?;
        count("context", self.context)?;
        count("prefill_chunk", self.prefill_chunk)?;
        count("draft_tokens", self.draft_tokens)?;
        number("stall_ms", self.stall_ms)?;
        number("prefix_cache_mib", self.prefix_cache_mib)?;
        number("network_seconds", self.network_seconds)?;
        number("network_memory_mib", self.network_memory_mib)?;
        count("queue_limit", self.queue_limit)?;
        count("max_connections", self.max_connections)?;
        count("max_body_bytes", self.max_body_bytes)?;
        number("request_timeout_s", self.request_timeout_s)?;
        number("shutdown_deadline_s", self.shutdown_deadline_s)?;
        if self.ioctl_filter == IoctlFilter::On && self.backend == Backend::Cuda {
            let allowed = "the filter does not know the CUDA driver's requests; use `off` or `auto` with backend `cuda`";
            return Err(Error::range("ioctl_filter", "`on`", allowed));
        }
        let mut ids = BTreeSet::new();
        if !self.model.is_empty() {
            ids.insert(synthetic::default_id(&self.model, &self.models_dir));
        }
        for resident in &self.resident {
            resident.check()?;
            let id = resident.id(&self.models_dir);
            let value = format!("`{}`", invalid::excerpt(&id));
            if !ids.insert(id) {
                let allowed = "another model has this name; choose another `name`";
                return Err(Error::range("resident.name", value, allowed));
            }
        }
        let mut names = BTreeSet::new();
        for lane in &self.lane {
            lane.check()?;
            if !names.insert(&lane.name) {
                let value = format!("`{}`", lane.name);
                return Err(Error::range("lane.name", value, "another control loop has this name"));
            }
        }
        tracing_subscriber::EnvFilter::builder().parse(&self.log).map_err(|error| {
            let allowed = format!("{error}; a level is error, warn, info, debug or trace");
            Error::range("log", format!("`{}`", self.log), allowed)
        })?;
        Ok(())
    }

    /// Returns the address of [`Self::listen`]. Fails if it is invalid, or reachable from other
    /// machines without a token.
    pub fn port(&self) -> Result<Option<SocketAddr>, Error> {
        if self.listen.is_empty() {
            return Ok(None);
        }
        let refuse = |allowed: &str| Error::range("listen", format!("`{}`", self.listen), allowed);
        let address: SocketAddr = self
            .listen
            .parse()
            .map_err(|_| refuse("an address and a port are needed, such as 127.0.0.1:8080"))?;
        if !address.ip().is_loopback() && self.token_file.as_os_str().is_empty() {
            return Err(refuse("other machines can reach it, so a token_file is needed"));
        }
        Ok(Some(address))
    }
}

impl Resident {
    /// Checks its values.
    fn check(&self) -> Result<(), Error> {
        if self.model.is_empty() {
            return Err(Error::range("resident.model", "empty", "a model is needed"));
        }
        let model = invalid::excerpt(&self.model);
        let place = |value: String| format!("{value} in resident `{model}`");
        if let Some(name) = &self.name {
            check_name(name).map_err(|allowed| {
                let value = place(format!("`{}`", invalid::excerpt(name)));
                Error::range("resident.name", value, allowed)
            })?;
        }
        let count = |own: &'static str, value: Option<usize>| {
            let key = own.split_once('.').map_or(own, |(_, key)| key);
            match (value.map(|value| value as u64), allowed(key)) {
                (Some(value), Some(allowed)) if !allowed.contains(&value) => {
                    let allowed = format!("{} to {} are allowed", allowed.start(), allowed.end());
                    Err(Error::range(own, place(value.to_string()), allowed))
                }
                _ => Ok(()),
            }
        };
        count("resident.threads", self.threads)?;
        count("resident.slots", self.slots)?;
        count("resident.context", self.context)?;
        count("resident.prefill_chunk", self.prefill_chunk)
    }
}

impl ControlLoop {
    /// Checks its values.
    fn check(&self) -> Result<(), Error> {
        check_name(&self.name).map_err(|allowed| {
            Error::range("lane.name", format!("`{}`", invalid::excerpt(&self.name)), allowed)
        })?;
        let refuse = |key, value: String, allowed: &str| {
            Err(Error::range(key, format!("{value} in lane `{}`", self.name), allowed))
        };
        if self.network.is_empty() {
            return refuse("lane.network", "empty".into(), "an ONNX file is needed");
        }
        if !(1..=100_000).contains(&self.rate_hz) {
            return refuse("lane.rate_hz", self.rate_hz.to_string(), "1 to 100000 are allowed");
        }
        if self.deadline_us > 60_000_000 {
            let allowed = "0 to 60000000 are allowed";
            return refuse("lane.deadline_us", self.deadline_us.to_string(), allowed);
        }
        if self.backend == Backend::Auto {
            let allowed = format!("allowed are {}", Backend::VARIANTS[1..].join(", "));
            return refuse("lane.backend", "`auto`".into(), &allowed);
        }
        if self.spin_us > 1_000_000 {
            let allowed = "0 to 1000000 are allowed";
            return refuse("lane.spin_us", self.spin_us.to_string(), allowed);
        }
        if self.priority > 99 {
            return refuse("lane.priority", self.priority.to_string(), "0 to 99 are allowed");
        }
        for (key, values) in [("lane.fixed", &self.fixed), ("lane.safe", &self.safe)] {
            if let Some((name, value)) = values.iter().find(|(_, value)| !value.is_finite()) {
                return refuse(key, format!("{value} for `{name}`"), "a finite number is needed");
            }
        }
        Ok(())
    }
}

/// Returns true for the origin of a web page, `SCHEME://HOST[:PORT]`, and for `*`.
fn is_origin(origin: &str) -> bool {
    let Some((scheme, host)) = origin.split_once("://") else { return origin == "*" };
    let of_a_host = |c: char| c.is_ascii_graphic() && !"/?#@*".contains(c);
    !scheme.is_empty()
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        && !host.is_empty()
        && host.chars().all(of_a_host)
}

/// Checks a name of a model or control loop.
///
/// # Errors
/// The rule that it breaks.
pub fn check_name(name: &str) -> Result<(), &'static str> {
    let named = !name.is_empty() && name.len() <= 64;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match named && name.chars().all(plain) {
        true => Ok(()),
        false => Err("1 to 64 letters, digits, `-`, `_` and `.` are allowed"),
    }
}
