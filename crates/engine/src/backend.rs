//! Backend selection: the configured device, or with `auto` the first one that can run the model, and the
//! reason.

use std::collections::VecDeque;
use std::sync::Arc;

use super::devices::Disabled;
use super::{LoadError, LoadSpec};
use config::{Backend, CpuIsa};
use device::{AUTO, Device, named};

struct Refusal {
    device: &'static str,
    reason: String,
}

/// An available device, and the reason for selecting it.
pub(super) struct Found {
    pub(super) device: Arc<dyn Device>,
    pub(super) reason: String,
}

/// Admission of a device: returns the device to use, or why it is rejected.
pub(super) type Pass<'a> = &'a dyn Fn(&Arc<dyn Device>) -> Result<Arc<dyn Device>, String>;

/// Devices left to try, and why others were rejected.
pub(super) struct Candidates {
    auto: bool,
    cpu_isa: CpuIsa,
    threads: usize,
    left: VecDeque<&'static str>,
    disabled: Vec<Disabled>,
    refusals: Vec<Refusal>,
}

impl Candidates {
    pub(super) fn new(spec: &LoadSpec, disabled: Vec<Disabled>) -> Self {
        let auto = spec.backend == Backend::Auto;
        let left = if auto { AUTO.into() } else { [spec.backend.into()].into() };
        let (cpu_isa, threads) = (spec.cpu_isa, spec.threads);
        Self { auto, cpu_isa, threads, left, disabled, refusals: Vec::new() }
    }

    /// Returns the next available device that `pass` admits.
    pub(super) fn next(&mut self, pass: Pass<'_>) -> Result<Found, LoadError> {
        while let Some(name) = self.left.pop_front() {
            // The latest reason.
            if let Some(disabled) = self.disabled.iter().rfind(|d| d.device == name) {
                let reason = disabled.reason.clone();
                self.refuse(name, &reason);
                continue;
            }
            let found = named(name, self.cpu_isa.into(), self.threads);
            match found.and_then(|device| pass(&device)) {
                Ok(device) => return Ok(Found { device, reason: self.reason(name) }),
                Err(reason) => self.refuse(name, &reason),
            }
        }
        Err(LoadError::Invalid(match &self.refusals[..] {
            [Refusal { device, reason }] => format!("backend {device} cannot be used: {reason}"),
            all => format!("no backend can be used: {}", listed(all, ", ")),
        }))
    }

    /// True if another device is left to try.
    pub(super) fn has_more(&self) -> bool {
        !self.left.is_empty()
    }

    pub(super) fn refuse(&mut self, device: &'static str, reason: &str) {
        if self.auto {
            tracing::info!(device, %reason, "not used");
        }
        self.refusals.push(Refusal { device, reason: reason.to_owned() });
    }

    fn reason(&self, name: &str) -> String {
        match (self.auto, &self.refusals[..]) {
            (false, _) => "asked for".into(),
            (true, []) => format!("auto: {name} is here"),
            (true, refusals) => format!("auto: not {}", listed(refusals, ", not ")),
        }
    }
}

fn listed(refusals: &[Refusal], between: &str) -> String {
    let one = |Refusal { device, reason }: &Refusal| format!("{device} ({reason})");
    refusals.iter().map(one).collect::<Vec<_>>().join(between)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(backend: Backend) -> LoadSpec {
        LoadSpec { backend, prefill_chunk: 2, ..LoadSpec::default() }
    }

    fn all(device: &Arc<dyn Device>) -> Result<Arc<dyn Device>, String> {
        Ok(Arc::clone(device))
    }

    #[test]
    fn auto_falls_back_to_the_cpu_and_reports_why() {
        let mut candidates = Candidates::new(&spec(Backend::Auto), vec![]);
        let (device, reason) = loop {
            let Found { device, reason } = candidates.next(&all).unwrap();
            if device.info().name == "cpu" {
                break (device, reason);
            }
            assert!(candidates.has_more());
            candidates.refuse(device.info().name, "too small for the model");
        };
        assert_eq!(device.info().threads, 1);
        let (nv, cuda) = (reason.find("not nv (").unwrap(), reason.find("not cuda (").unwrap());
        assert!(nv < cuda && !candidates.has_more(), "{reason}");
        let end = candidates.next(&all).map(|_| ()).unwrap_err().to_string();
        assert!(end.contains("no backend"), "{end}");
    }

    #[test]
    fn a_disabled_device_is_not_opened() {
        let reason = "it is needed elsewhere".into();
        let disabled = vec![Disabled { device: "cpu", model: None, reason }];
        let mut candidates = Candidates::new(&spec(Backend::Cpu), disabled);
        let refused = candidates.next(&all).map(|_| ()).unwrap_err();
        let refused = refused.to_string();
        assert_eq!(refused, "backend cpu cannot be used: it is needed elsewhere");
    }

    #[test]
    fn a_device_that_is_not_admitted_is_skipped() {
        let mut candidates = Candidates::new(&spec(Backend::Cpu), vec![]);
        let refused = candidates.next(&|_| Err("it is dark".into())).map(|_| ()).unwrap_err();
        assert_eq!(refused.to_string(), "backend cpu cannot be used: it is dark");
    }

    #[test]
    fn a_configured_backend_has_no_fallback() {
        let mut candidates = Candidates::new(&spec(Backend::Reference), vec![]);
        let Found { device, reason } = candidates.next(&all).unwrap();
        assert_eq!((device.info().name, reason.as_str()), ("reference", "asked for"));
        assert!(!candidates.has_more());
    }
}
