//! Health of devices in this process: which ones are disabled and why, and how often each was lost.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use device::Error;
use device::first_light::Mode;
use errors::one_line;

/// Number of losses after which a device is disabled.
const LOSSES: u64 = 2;

/// A device that is disabled, for one model or for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Disabled {
    pub(super) device: &'static str,
    pub(super) model: Option<String>,
    pub(super) reason: String,
}

/// State of a device that has modes, losses or is disabled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceHealth {
    /// Name, one of the backends that `docs/configuration.md` lists.
    pub name: String,
    /// Mode of submitting launches, if the device has modes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Reasons for not using a higher mode.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Number of times that it lowered its mode by itself.
    #[serde(default)]
    pub mode_changes: u64,
    /// Number of times that it was lost while it had a model.
    pub losses: u64,
    /// Reason for not using it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled: Option<String>,
}

/// Consequence of a failed step for the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The instance is intact.
    Stays,
    /// The model must be reloaded on a device that is still usable.
    LoadAgain,
}

#[derive(Debug, Default)]
pub(super) struct Devices(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    disabled: Vec<Disabled>,
    health: Vec<DeviceHealth>,
    /// Devices that have passed first light in this process.
    passed: Vec<String>,
}

impl Known {
    fn of(&mut self, device: &'static str) -> &mut DeviceHealth {
        let at = self.health.iter().position(|health| health.name == device);
        let at = at.unwrap_or_else(|| {
            self.health.push(DeviceHealth { name: device.into(), ..DeviceHealth::default() });
            self.health.len() - 1
        });
        &mut self.health[at]
    }
}

impl Devices {
    pub(super) fn has_passed(&self, what: &str) -> bool {
        self.0.lock().passed.iter().any(|passed| passed == what)
    }

    pub(super) fn passed(&self, what: String) {
        self.0.lock().passed.push(what);
    }

    /// Records that a device has passed first light.
    pub(super) fn admitted(&self, device: &'static str, mode: Option<Mode>, notes: Vec<String>) {
        let mut known = self.0.lock();
        if mode.is_none() && known.health.iter().all(|health| health.name != device) {
            return;
        }
        let health = known.of(device);
        *health = DeviceHealth { mode, notes, disabled: None, ..health.clone() };
    }

    /// Records why a device failed first light.
    pub(super) fn refused(&self, device: &'static str, reason: &str) {
        self.0.lock().of(device).disabled = Some(reason.to_owned());
    }

    /// Records the mode of a device. Returns a note if it has changed.
    pub(super) fn lowered(&self, device: &'static str, mode: Mode) -> Option<String> {
        let mut known = self.0.lock();
        let health = known.of(device);
        let before = health.mode.replace(mode).filter(|before| *before != mode)?;
        health.mode_changes += 1;
        let note = format!("faults: went down from {before}");
        health.notes.push(note.clone());
        Some(note)
    }

    /// Excludes a device from the next load on.
    pub(super) fn disable(&self, device: &'static str, reason: String) {
        self.0.lock().disabled.push(Disabled { device, model: None, reason });
    }

    /// Devices that are disabled for a model.
    pub(super) fn disabled_for(&self, model: &str) -> Vec<Disabled> {
        let concerns = |d: &&Disabled| d.model.as_deref().is_none_or(|only| only == model);
        self.0.lock().disabled.iter().filter(concerns).cloned().collect()
    }

    pub(super) fn health(&self) -> Vec<DeviceHealth> {
        self.0.lock().health.clone()
    }

    /// Records a failed step of a device that has a model.
    pub(super) fn failed(&self, device: &'static str, model: &str, error: &Error) -> Verdict {
        let mut known = self.0.lock();
        match error {
            Error::Lost { rebuildable, .. } => {
                let health = known.of(device);
                health.losses += 1;
                let losses = health.losses;
                if losses >= LOSSES || !rebuildable {
                    let reason = one_line(error);
                    let reason = match losses {
                        1 => format!("lost for good: {reason}"),
                        n => format!("lost {n} times, at last: {reason}"),
                    };
                    tracing::error!(
                        device,
                        reason,
                        "not used any more, until the daemon is restarted"
                    );
                    health.disabled = Some(reason.clone());
                    known.disabled.push(Disabled { device, model: None, reason });
                }
                Verdict::LoadAgain
            }
            Error::Unsupported { .. } => {
                let (model, reason) = (Some(model.to_owned()), one_line(error));
                known.disabled.push(Disabled { device, model, reason });
                Verdict::LoadAgain
            }
            Error::OutOfMemory { .. } | Error::Invalid(_) | Error::Weight { .. } => Verdict::Stays,
        }
    }
}
