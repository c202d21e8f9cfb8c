//! First light on the Orin: runs the bring-up steps of `tegra-first-light` and derives the mode.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use tegra_first_light::{Failure, LENGTHS, Trial};

use super::{Nv, range};
use crate::FirstLight;
use crate::modes::{Chains, Mode, Note, Range, Stage, WakeBy};
use crate::{Device, Error, Result, Scope};

type Tell<'a> = &'a mut dyn FnMut(Note<'_>) -> Result<()>;

/// Runs a bring-up step and notifies before and after.
fn stage<T>(
    stage: Stage,
    note: Tell<'_>,
    work: impl FnOnce() -> Result<T, Failure>,
    lacks: impl FnOnce(&T) -> Option<String>,
) -> Result<T> {
    note(Note::Begins(stage))?;
    let shown = work().map_err(|failure| Error::Lost {
        scope: Scope::Device,
        rebuildable: false,
        reason: format!("first light, stage {stage}: {failure}"),
        source: Some(Box::new(failure)),
    })?;
    match lacks(&shown) {
        None => note(Note::Passed(stage))?,
        Some(what) => note(Note::Degraded(stage, &what))?,
    }
    Ok(shown)
}

const fn none<T>(_: &T) -> Option<String> {
    None
}

impl Nv {
    /// The first two steps: a channel, and its first answer.
    fn first_sign(&self, mode: Mode, note: Tell<'_>) -> Result<Trial> {
        let open = || Trial::open(&self.orin, range(mode));
        let mut trial = stage(Stage::Channel, note, open, none)?;
        stage(Stage::Release, note, || trial.release(), none)?;
        Ok(trial)
    }
}

impl FirstLight for Nv {
    fn key(&self) -> String {
        let digest = Sha256::digest(format!("{:?}", self.orin.characteristics()));
        let record = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("nv {record} {} SMs", self.orin.sms())
    }

    fn prove(&self, wanted: Mode, note: Tell<'_>) -> Result<Option<Mode>> {
        let mut mode = wanted;
        let mut trial = match self.first_sign(mode, note) {
            // The driver may have placed its own memory where nothing fetches from.
            Err(Error::Lost { reason, .. }) if mode.range == Range::Short => {
                mode.range = Range::Proven;
                note(Note::Degraded(Stage::Channel, &format!("{reason}; with the proven range")))?;
                self.first_sign(mode, note)?
            }
            trial => trial?,
        };
        let is_woken = stage(
            Stage::Event,
            note,
            || trial.event(),
            |is_woken| {
                (!is_woken)
                    .then(|| "no event within 20 ms: memory is looked at each millisecond".into())
            },
        )?;
        stage(Stage::Launch, note, || trial.launch(), none)?;
        let order = || {
            let longest = trial.order(&LENGTHS)?;
            Ok((longest, trial.stopped().map(ToString::to_string)))
        };
        let (longest, _) = stage(Stage::Order, note, order, |(_, stopped)| stopped.clone())?;
        stage(Stage::Atomics, note, || trial.atomics(), none)?;
        let handover = || match trial.handover() {
            Err(Failure::StreamAlone(_)) => Ok(false),
            seen => seen.map(|()| true),
        };
        let is_lean = stage(Stage::Handover, note, handover, |is_lean| {
            (!is_lean)
                .then(|| "what the CPU wrote is seen only if each launch drops its caches".into())
        })?;
        let chains = match (longest, is_lean) {
            (0, _) => Chains::Serial,
            (_, true) => mode.chains,
            (_, false) => mode.chains.max(Chains::Split),
        };
        let wake = if is_woken { mode.wake } else { WakeBy::Poll };
        Ok(Some(Mode { chains, longest, wake, ..mode }))
    }

    fn in_mode(&self, mode: Mode) -> Arc<dyn Device> {
        Arc::new(Self { mode, ..self.clone() })
    }
}
