//! History of statuses: speeds and the plotted series.

use std::collections::VecDeque;
use std::time::Instant;

use api::{State, Status};

/// Length of a series: a minute at two values a second.
const LENGTH: usize = 120;

#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) daemon: String,
    /// Last status, and when it arrived.
    pub(super) last: Option<(Instant, Status)>,
    /// Reason why the daemon does not answer.
    pub(super) silence: Option<String>,
    /// Generated tokens per second.
    pub(super) tokens: Series,
    /// Prompt tokens per second.
    pub(super) prompt: Series,
    /// Bytes of weights read per second.
    pub(super) bytes: Series,
    /// Power, in watts.
    pub(super) watts: Series,
    /// Highest temperature in degrees Celsius.
    pub(super) celsius: Series,
}

/// Values, newest last.
#[derive(Debug, Default)]
pub(super) struct Series(VecDeque<f64>);

impl Series {
    fn push(&mut self, value: f64) {
        if self.0.len() == LENGTH {
            self.0.pop_front();
        }
        self.0.push_back(value);
    }

    pub(super) fn now(&self) -> f64 {
        self.0.back().copied().unwrap_or(0.0)
    }

    pub(super) fn highest(&self) -> f64 {
        self.0.iter().copied().fold(0.0, f64::max)
    }

    /// Returns the newest `width` values in thousandths of the largest.
    pub(super) fn bars(&self, width: usize) -> Vec<u64> {
        let highest = self.highest().max(1e-9);
        let skip = self.0.len().saturating_sub(width);
        self.0.iter().skip(skip).map(|value| (value / highest * 1000.0).max(0.0) as u64).collect()
    }
}

impl History {
    pub(super) fn new(daemon: String) -> Self {
        Self { daemon, ..Self::default() }
    }

    /// Adds a status. If the daemon was restarted, the speeds start a new history.
    pub(super) fn answered(&mut self, at: Instant, status: Status) {
        self.silence = None;
        let now = &status.machine.now;
        if let Some(watts) = now.watts() {
            self.watts.push(watts);
        }
        if let Some(zone) = now.hottest() {
            self.celsius.push(zone.celsius);
        }
        let before = self.last.as_ref().filter(|(_, before)| before.pid == status.pid);
        if let Some((then, before)) = before {
            let seconds = (at - *then).as_secs_f64().max(1e-3);
            let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
            let (now, then) = (&status.requests, &before.requests);
            let step = status.model.as_ref().map_or(0, |model| model.step_bytes) as f64;
            self.tokens.push(rate(now.completion_tokens, then.completion_tokens));
            self.prompt.push(rate(now.prompt_tokens, then.prompt_tokens));
            self.bytes.push(rate(now.steps, then.steps) * step);
        }
        self.last = Some((at, status));
    }

    pub(super) fn silent(&mut self, why: String) {
        self.silence = Some(why);
        for series in [&mut self.tokens, &mut self.prompt, &mut self.bytes] {
            series.push(0.0);
        }
    }

    /// Returns the bytes of weights read per second as a fraction of the bandwidth, with the source
    /// of that bandwidth.
    pub(super) fn roof_fraction(&self) -> Option<(f64, &str)> {
        let (_, status) = self.last.as_ref()?;
        let roof = status.roof.as_ref().filter(|roof| roof.bytes_per_second > 0.0)?;
        Some((self.bytes.now() / roof.bytes_per_second, &roof.source))
    }

    /// Fraction of the KV cache that is filled.
    pub(super) fn kv_fill(&self) -> Option<f64> {
        let (_, status) = self.last.as_ref()?;
        let model = status.model.as_ref()?;
        let room = model.slots.checked_mul(model.context).filter(|room| *room > 0)?;
        Some(status.requests.kv_tokens as f64 / room as f64)
    }

    pub(super) fn state(&self) -> String {
        if let Some(why) = &self.silence {
            return format!("waiting: {why}");
        }
        match self.last.as_ref().map(|(_, status)| &status.state) {
            None => "asking".into(),
            Some(State::Empty { .. }) => "no model is loaded".into(),
            Some(State::Loading { model, progress }) => {
                format!("loading {model}, {:.0} %", progress * 100.0)
            }
            Some(State::Ready) => "ready".into(),
            Some(State::Exclusive { what }) => format!("{what} has the device"),
            Some(State::Stopping) => "stopping".into(),
        }
    }
}
