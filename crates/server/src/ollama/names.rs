//! Names that clients of ollama's API create for models, with a system prompt and options. They live
//! as long as the daemon.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::error::Error;
use errors::invalid::excerpt;

/// Maximum number of names.
const NAMES: usize = 256;
/// Maximum size of all system prompts and options together, in bytes.
const SIZE: usize = 4 << 20;
/// Maximum length of a name in bytes.
const NAME: usize = 128;

/// A model under another name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Named {
    /// Name of the model.
    pub(crate) from: String,
    pub(crate) system: Option<String>,
    /// Options that requests need not send.
    pub(crate) options: api::OllamaOptions,
}

#[derive(Debug, Default)]
pub(crate) struct Names(Mutex<BTreeMap<String, Named>>);

impl Names {
    pub(crate) fn get(&self, name: &str) -> Option<Named> {
        self.0.lock().get(name).cloned()
    }

    pub(crate) fn all(&self) -> Vec<(String, Named)> {
        self.0.lock().iter().map(|(name, named)| (name.clone(), named.clone())).collect()
    }

    /// Adds a name or replaces it. `field` is its place in the request.
    pub(crate) fn put(&self, field: &str, name: &str, named: Named) -> Result<(), Error> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/".contains(c);
        if name.is_empty() || name.len() > NAME || !name.chars().all(plain) {
            let allowed = format!("1 to {NAME} letters, digits and `-_.:/` are allowed");
            return Err(Error::value(field, format!("{field}: is `{}`; {allowed}", excerpt(name))));
        }
        let mut names = self.0.lock();
        let others = names.iter().filter(|(other, _)| *other != name);
        let size = |named: &Named| {
            let options = serde_json::to_string(&named.options.logits_options);
            let stops = match &named.options.stop {
                None => 0,
                Some(api::Stop::One(stop)) => stop.len(),
                Some(api::Stop::Many(stops)) => stops.iter().map(|stop| stop.len() + 24).sum(),
            };
            stops
                + options.map_or(0, |options| options.len())
                + named.system.as_ref().map_or(0, String::len)
        };
        let (count, bytes) =
            others.fold((0, 0), |(count, bytes), (_, other)| (count + 1, bytes + size(other)));
        if count >= NAMES || bytes + size(&named) > SIZE {
            let message = format!(
                "{field}: {NAMES} names with {SIZE} bytes of system prompts and options are the limit; delete some"
            );
            return Err(Error::value(field, message));
        }
        names.insert(name.to_owned(), named);
        Ok(())
    }

    /// Returns true if there was such a name.
    pub(crate) fn remove(&self, name: &str) -> bool {
        self.0.lock().remove(name).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_limited() {
        let names = Names::default();
        let put = |name: &str, system: &str| {
            let named = Named { system: Some(system.into()), ..Named::default() };
            names.put("model", name, named).is_ok()
        };
        assert!(put("a", "x") && !put("", "x") && !put("a b", "x") && !put(&"a".repeat(129), "x"));
        assert!(put("b", &"x".repeat(SIZE - 2000)) && !put("c", &"x".repeat(2000)));
        assert!(put("b", "") && put("c", "x"));
        assert!(names.remove("c") && !names.remove("c"));
        assert!(
            (0..NAMES).map(|at| put(&at.to_string(), "")).filter(|put| *put).count() == NAMES - 2
        );
    }
}
