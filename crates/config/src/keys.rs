//! All keys of the configuration, and what a reload changes.

use super::Config;

/// All keys in the order of the documentation, and when a change takes effect.
pub(super) const KEYS: [(&str, Effect); 41] = [
    ("socket", Effect::Restart),
    ("socket_mode", Effect::Restart),
    ("listen", Effect::Restart),
    ("token_file", Effect::Restart),
    ("allowed_origins", Effect::Now),
    ("model", Effect::Restart),
    ("models_dir", Effect::Now),
    ("network_root", Effect::Now),
    ("network_seconds", Effect::Now),
    ("network_memory_mib", Effect::Now),
    ("backend", Effect::NextLoad),
    ("gpu_mode", Effect::NextLoad),
    ("memory_reserve_mib", Effect::NextLoad),
    ("threads", Effect::NextLoad),
    ("cpu_isa", Effect::NextLoad),
    ("slots", Effect::NextLoad),
    ("context", Effect::NextLoad),
    ("prefill_chunk", Effect::NextLoad),
    ("draft_tokens", Effect::NextLoad),
    ("draft_model", Effect::NextLoad),
    ("lora", Effect::NextLoad),
    ("stall_ms", Effect::NextLoad),
    ("kv_type", Effect::NextLoad),
    ("prompt_precision", Effect::NextLoad),
    ("prefix_cache_mib", Effect::NextLoad),
    ("prefix_cache_dir", Effect::NextLoad),
    ("tune", Effect::NextLoad),
    ("tune_dir", Effect::NextLoad),
    ("state_dir", Effect::NextLoad),
    ("generic_tools", Effect::Now),
    ("queue_limit", Effect::Now),
    ("max_connections", Effect::Now),
    ("max_body_bytes", Effect::Now),
    ("request_timeout_s", Effect::Now),
    ("shutdown_deadline_s", Effect::Now),
    ("billing_header", Effect::Now),
    ("ioctl_filter", Effect::Restart),
    ("log", Effect::Now),
    ("log_format", Effect::Restart),
    ("resident", Effect::Restart),
    ("lane", Effect::Restart),
];

pub fn keys() -> impl Iterator<Item = &'static str> {
    KEYS.into_iter().map(|(key, _)| key)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Now,
    /// With the next load that does not set the value itself.
    NextLoad,
    Restart,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: &'static str,
    /// Old value, as TOML.
    pub from: String,
    pub to: String,
    pub effect: Effect,
}

impl Config {
    /// Returns the keys that differ in `new`, and when each change takes effect.
    #[must_use]
    pub fn changes(&self, new: &Self) -> Vec<Change> {
        let (old, new) = (self.table(), new.table());
        let value_of =
            |value: Option<&toml::Value>| value.map(ToString::to_string).unwrap_or_default();
        KEYS.into_iter()
            .map(|(key, effect)| (key, effect, old.get(key), new.get(key)))
            .filter(|(_, _, from, to)| from != to)
            .map(|(key, effect, from, to)| Change {
                key,
                from: value_of(from),
                to: value_of(to),
                effect,
            })
            .collect()
    }

    /// Returns `new` with the old values of keys that only a restart can change.
    #[must_use]
    pub fn reloaded(&self, new: Self) -> Self {
        let (old, mut table) = (self.table(), new.table());
        for (key, effect) in KEYS {
            if let (Effect::Restart, Some(value)) = (effect, old.get(key)) {
                table.insert(key.to_owned(), value.clone());
            }
        }
        // Both configurations were valid, so the merged one is.
        table.try_into().unwrap_or(new)
    }

    pub(super) fn table(&self) -> toml::Table {
        toml::Table::try_from(self).unwrap_or_default()
    }
}
