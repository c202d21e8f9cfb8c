//! Results of `orinctl first-contact` on this machine that affect the mode of its GPU.
//!
//! The results are in the state directory. Results of another machine or another driver release are ignored.

use std::path::Path;

use device::first_light::{Maps, Mode, WakeBy};
use errors::one_line;
use tegra_profile::{FILE_NAME, Machine, Profile, Proven};

/// Limits the wanted mode to what the results allow and have proven. Also returns which results were used, or
/// why none were.
pub(super) fn within(dir: &Path, wanted: Mode, here: &Machine) -> (Mode, Option<String>) {
    let profile = match Profile::read_if_there(&dir.join(FILE_NAME)) {
        Ok(None) => return (wanted, None),
        Ok(Some(profile)) => profile,
        Err(error) => return (wanted, Some(unused(&one_line(&error)))),
    };
    if let Some(difference) = profile.machine.difference(here) {
        return (wanted, Some(unused(&format!("it is of another machine: {difference}"))));
    }
    match profile.proven() {
        Ok(proven) => (apply(proven, wanted), Some(format!("{FILE_NAME}: {proven}"))),
        Err(error) => (wanted, Some(unused(&error.to_string()))),
    }
}

fn unused(why: &str) -> String {
    format!("{FILE_NAME} is not used: {why}")
}

fn apply(proven: Proven, wanted: Mode) -> Mode {
    let maps = if proven.read_only_maps == Some(true) { Maps::ReadOnly } else { wanted.maps };
    let wake = if proven.event == Some(false) { WakeBy::Poll } else { wanted.wake };
    let longest =
        proven.longest_chain.map_or(wanted.longest, |most| wanted.longest.min(most.max(1)));
    Mode { maps, wake, longest, ..wanted }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tegra_profile::facts::{EVENT, READ_ONLY};
    use tegra_profile::{Experiment, Value, Verdict};

    #[test]
    fn results_apply_only_to_the_machine_that_produced_them() {
        let dir = tempfile::tempdir().unwrap();
        let here = Machine { sms: Some(8), kernel: Some("5.15".into()), ..Machine::default() };
        let wanted = Mode::default();
        assert_eq!(within(dir.path(), wanted, &here), (wanted, None));

        let mut profile = Profile::new("orinctl", 0, here.clone());
        let mut record = Experiment::new(READ_ONLY.experiment, "?", "-", Verdict::Expected);
        record.facts.insert(READ_ONLY.name.into(), Value::Flag(true));
        profile.experiments.push(record);
        profile.create(&dir.path().join(FILE_NAME)).unwrap();
        let (mode, told) = within(dir.path(), wanted, &here);
        assert_eq!(mode, Mode { maps: Maps::ReadOnly, ..wanted });
        assert!(told.unwrap().contains("read-only maps work"));

        let mut record = Experiment::new(EVENT.experiment, "?", "-", Verdict::Expected);
        record.facts.insert(EVENT.name.into(), Value::Flag(false));
        profile.experiments.push(record);
        profile.write(&dir.path().join(FILE_NAME)).unwrap();
        let (mode, _) = within(dir.path(), wanted, &here);
        assert_eq!(mode, Mode { maps: Maps::ReadOnly, wake: WakeBy::Poll, ..wanted });

        let other = Machine { sms: Some(16), ..here };
        let (mode, told) = within(dir.path(), wanted, &other);
        assert_eq!(mode, wanted);
        assert!(told.unwrap().contains("number of SMs"));
        std::fs::write(dir.path().join(FILE_NAME), "{").unwrap();
        let (mode, told) = within(dir.path(), wanted, &other);
        assert_eq!(mode, wanted);
        assert!(told.unwrap().contains("is not used"));
    }
}
