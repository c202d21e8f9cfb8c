//! Which device a model is loaded on, and why: `auto` goes down its list until one takes the model.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{LoadError, LoadSpec};
use device::{AUTO, Device, NAMES, named};

/// Devices still to be tried, and why others were not taken.
pub(super) struct Choice {
    auto: bool,
    cpu_isa: String,
    threads: usize,
    left: VecDeque<&'static str>,
    withheld: Vec<(&'static str, &'static str)>,
    refusals: Vec<(&'static str, String)>,
}

impl Choice {
    /// `withheld` are devices that must not be used, each with a reason.
    pub(super) fn new(
        spec: &LoadSpec,
        withheld: Vec<(&'static str, &'static str)>,
    ) -> Result<Self, LoadError> {
        let asked = spec.backend.as_str();
        let auto = asked == "auto";
        let left: VecDeque<_> = if auto {
            AUTO.into()
        } else {
            NAMES.into_iter().filter(|name| *name == asked).collect()
        };
        if left.is_empty() {
            return Err(LoadError::Invalid(format!(
                "backend `{asked}` is not known; known: auto, {}",
                NAMES.join(", ")
            )));
        }
        let (cpu_isa, threads) = (spec.cpu_isa.clone(), spec.threads);
        Ok(Self { auto, cpu_isa, threads, left, withheld, refusals: Vec::new() })
    }

    /// The next device that is there, and why it is taken.
    pub(super) fn next(&mut self) -> Result<(Arc<dyn Device>, String), LoadError> {
        while let Some(name) = self.left.pop_front() {
            if let Some((_, reason)) = self.withheld.iter().find(|(device, _)| *device == name) {
                self.refuse(name, reason);
                continue;
            }
            match named(name, &self.cpu_isa, self.threads) {
                Ok(device) => return Ok((device, self.reason(name))),
                Err(reason) => self.refuse(name, &reason),
            }
        }
        Err(LoadError::Invalid(match &self.refusals[..] {
            [(name, reason)] => format!("backend {name} cannot be used: {reason}"),
            all => format!("no backend can be used: {}", listed(all, ", ")),
        }))
    }

    /// Whether another device may be tried after one did not take the model.
    pub(super) fn goes_on(&self) -> bool {
        !self.left.is_empty()
    }

    /// Notes why a device is not taken.
    pub(super) fn refuse(&mut self, name: &'static str, reason: &str) {
        if self.auto {
            tracing::info!(device = name, %reason, "not used");
        }
        self.refusals.push((name, reason.to_owned()));
    }

    fn reason(&self, name: &str) -> String {
        match (self.auto, &self.refusals[..]) {
            (false, _) => "asked for".into(),
            (true, []) => format!("auto: {name} is here"),
            (true, refusals) => format!("auto: not {}", listed(refusals, ", not ")),
        }
    }
}

fn listed(refusals: &[(&str, String)], between: &str) -> String {
    let one = |(name, reason): &(&str, String)| format!("{name} ({reason})");
    refusals.iter().map(one).collect::<Vec<_>>().join(between)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(backend: &str) -> LoadSpec {
        LoadSpec {
            model: String::new(),
            backend: backend.into(),
            slots: 1,
            context: 0,
            prefill_chunk: 2,
            threads: 1,
            cpu_isa: "auto".into(),
            tuning: crate::engine::tuning::Tuning::default(),
        }
    }

    #[test]
    fn auto_ends_at_the_cpu_and_says_what_came_before() {
        let mut choice = Choice::new(&spec("auto"), vec![]).unwrap();
        let (device, reason) = loop {
            let (device, reason) = choice.next().unwrap();
            if device.info().name == "cpu" {
                break (device, reason);
            }
            assert!(choice.goes_on());
            choice.refuse(device.info().name, "too small for the model");
        };
        assert_eq!(device.info().threads, 1);
        let (nv, cuda) = (reason.find("not nv (").unwrap(), reason.find("not cuda (").unwrap());
        assert!(nv < cuda && !choice.goes_on(), "{reason}");
        let end = choice.next().map(|_| ()).unwrap_err().to_string();
        assert!(end.contains("no backend"), "{end}");
    }

    #[test]
    fn a_device_that_is_withheld_is_not_even_looked_at() {
        let withheld = vec![("cpu", "it is needed elsewhere")];
        let refused = Choice::new(&spec("cpu"), withheld).unwrap().next().map(|_| ()).unwrap_err();
        let refused = refused.to_string();
        assert_eq!(refused, "backend cpu cannot be used: it is needed elsewhere");
    }

    #[test]
    fn what_is_asked_for_is_not_replaced() {
        let mut choice = Choice::new(&spec("reference"), vec![]).unwrap();
        let (device, reason) = choice.next().unwrap();
        assert_eq!((device.info().name, reason.as_str()), ("reference", "asked for"));
        assert!(!choice.goes_on());
        let unknown = Choice::new(&spec("tpu"), vec![]).map(|_| ()).unwrap_err().to_string();
        assert!(unknown.contains("`tpu`") && unknown.contains("auto, nv, cuda, cpu"), "{unknown}");
    }
}
