//! Checks of answers: an answer must equal the one of an undisturbed daemon, or be an error of docs/api.md that the
//! current conditions explain.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use crate::answer::{Answer, End};
use crate::hostile;
use crate::plan::{Device, File};
use crate::reference::Reference;
use crate::request::catalogue;
use crate::subject::{Fate, Subject};

/// Error codes that are allowed at any time, because other clients load models and occupy the daemon.
const BUSY: [&str; 6] =
    ["no_model", "loading", "load_failed", "stopping", "queue_full", "too_many_connections"];

/// Error codes that are allowed after a fault of the device, or without memory or disk space. A selected backend that
/// cannot be used is an invalid setting.
const DISTURBED: [&str; 4] = ["device_error", "out_of_memory", "invalid_model", "tune_failed"];

pub(crate) struct Judge {
    pub(crate) reference: Arc<Reference>,
    pub(crate) device: Device,
    /// Most requests that are served or queued at once.
    pub(crate) places: usize,
    /// True once a fault was injected below the daemon; read when an answer arrives.
    pub(crate) disturbed: Arc<AtomicBool>,
}

/// Status of each error code in docs/api.md.
fn documented() -> &'static BTreeMap<&'static str, u16> {
    static ALL: LazyLock<BTreeMap<&str, u16>> = LazyLock::new(|| {
        let rows = include_str!("../../docs/api.md").lines().filter_map(|line| {
            let mut columns = line.strip_prefix("| `")?.split(" | ");
            let (codes, status) = (columns.next()?, columns.next()?.parse().ok()?);
            Some(codes.split(", ").map(move |code| (code.trim_matches('`'), status)))
        });
        let all: BTreeMap<&str, u16> = rows.flatten().collect();
        assert!(all.len() > 25, "{all:?}");
        all
    });
    &ALL
}

impl Judge {
    /// Checks a generation's answer; `None` if no daemon was running.
    pub(crate) fn answer(&self, subject: &Subject, request: usize, answer: Option<&Answer>) {
        let Some(answer) = answer else { return };
        let excused = self.is_excused(subject, &answer.end) || self.is_too_many(request, answer);
        if excused && answer.choices.is_empty() {
            return;
        }
        match self.reference.expects(self.device, request, answer, excused) {
            Ok(()) => {}
            Err(difference) => panic!("request {request}: {difference}"),
        }
    }

    /// True for a refused request with more choices than slots and queue can hold.
    fn is_too_many(&self, request: usize, answer: &Answer) -> bool {
        answer.end == End::Error(400, "invalid_value".into())
            && catalogue()[request].places() > self.places
    }

    /// Checks the answer to a client that may have been too slow.
    pub(crate) fn slow(&self, subject: &Subject, request: usize, answer: Option<&Answer>) {
        match answer.map(|answer| &answer.end) {
            Some(End::Cut) => {}
            Some(End::Error(status, code)) if code == "request_timeout" => {
                assert_eq!(*status, 408);
            }
            _ => self.answer(subject, request, answer),
        }
    }

    /// Checks the end of a benchmark or a tuning search.
    pub(crate) fn work(&self, subject: &Subject, answer: &Answer) {
        const FAILED: [&str; 4] =
            ["nothing_to_tune", "cancelled", "bench_failed", "too_many_sequences"];
        match &answer.end {
            End::Whole => {}
            End::Error(status, code) if FAILED.contains(&code.as_str()) => {
                Self::document(*status, code);
            }
            end => assert!(self.is_excused(subject, end), "work ended with {end:?}"),
        }
    }

    /// Checks the answer to a request that is built to take time or memory.
    pub(crate) fn hostile(&self, subject: &Subject, answer: &Answer) {
        match &answer.end {
            End::Whole => {}
            End::Error(status, code) if hostile::REFUSED.contains(&code.as_str()) => {
                Self::document(*status, code);
            }
            end => assert!(self.is_excused(subject, end), "it ended with {end:?}"),
        }
    }

    /// Checks the end of a load.
    pub(crate) fn load(&self, subject: &Subject, file: File, answer: &Answer) {
        let wanted = match file {
            File::Llama | File::Qwen => None,
            File::Missing | File::Directory | File::Pipe => Some("model_not_found"),
            File::TooLarge => Some("out_of_memory"),
            File::Truncated | File::Corrupt | File::Empty => Some("invalid_model"),
        };
        let right = match (&answer.end, wanted) {
            (End::Whole, None) => true,
            // Another load replaced this one.
            (End::Error(status, code), _) if code == "load_given_up" => {
                Self::document(*status, code);
                true
            }
            (End::Error(status, code), Some(wanted)) if code == wanted => {
                Self::document(*status, code);
                true
            }
            (end, _) => self.is_excused(subject, end),
        };
        assert!(right, "load of {file:?} ended with {:?}", answer.end);
    }

    /// True if current conditions allow this end, whatever the request.
    fn is_excused(&self, subject: &Subject, end: &End) -> bool {
        match end {
            End::Whole => false,
            End::Error(status, code) => {
                let known = BUSY.contains(&code.as_str());
                let disturbed =
                    self.disturbed.load(Ordering::SeqCst) && DISTURBED.contains(&code.as_str());
                if known || disturbed {
                    Self::document(*status, code);
                }
                known || disturbed
            }
            End::Cut => {
                let disturbed = self.disturbed.load(Ordering::SeqCst);
                subject.fate() != Fate::Serves || (disturbed && subject.ran_out())
            }
        }
    }

    /// Checks that an error is documented. An error within a stream has the stream's status.
    fn document(status: u16, code: &str) {
        let wanted = documented().get(code);
        assert!(wanted.is_some_and(|wanted| status == 200 || status == *wanted), "{status} {code}");
    }
}
