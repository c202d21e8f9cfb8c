//! Which answers are right: what the same request was answered alone, or an error that docs/api.md has and that
//! fits what goes on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use crate::answer::{Answer, End};
use crate::lone::Lone;
use crate::plan::{Device, File};
use crate::request::catalogue;
use crate::subject::{Fate, Subject};

/// What anybody may be told while models come and go and clients crowd the daemon.
const BUSY: [&str; 6] =
    ["no_model", "loading", "load_failed", "stopping", "queue_full", "too_many_connections"];

/// What clients may be told whose daemon's device fails, or who lacks memory or disk; a backend that was asked for and
/// cannot be used is a wrong setting.
const DISTURBED: [&str; 4] = ["device_error", "out_of_memory", "invalid_model", "tune_failed"];

pub(crate) struct Judge {
    pub(crate) lone: Arc<Lone>,
    pub(crate) device: Device,
    /// Requests that are served or wait at most.
    pub(crate) places: usize,
    /// Whether something was made to fail below the daemon, by the time that an answer is there.
    pub(crate) disturbed: Arc<AtomicBool>,
}

/// Codes of errors with their status, as docs/api.md has them.
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
    /// A generation's answer; none where there was nobody to ask.
    pub(crate) fn answer(&self, subject: &Subject, request: usize, answer: Option<&Answer>) {
        let Some(answer) = answer else { return };
        let excused = self.is_excused(subject, &answer.end) || self.is_too_many(request, answer);
        if excused && answer.choices.is_empty() {
            return;
        }
        match self.lone.expects(self.device, request, answer, excused) {
            Ok(()) => {}
            Err(difference) => panic!("request {request}: {difference}"),
        }
    }

    /// Whether a request asks for more answers than there can ever be places for.
    fn is_too_many(&self, request: usize, answer: &Answer) -> bool {
        answer.end == End::Error(400, "invalid_value".into())
            && catalogue()[request].places() > self.places
    }

    /// The same for a client that may have been too slow.
    pub(crate) fn slow(&self, subject: &Subject, request: usize, answer: Option<&Answer>) {
        match answer.map(|answer| &answer.end) {
            Some(End::Cut) => {}
            Some(End::Error(status, code)) if code == "request_timeout" => {
                assert_eq!(*status, 408);
            }
            _ => self.answer(subject, request, answer),
        }
    }

    /// What a bench or a search ended with.
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

    /// What a load ended with.
    pub(crate) fn load(&self, subject: &Subject, file: File, answer: &Answer) {
        let wanted = match file {
            File::Llama | File::Qwen => None,
            File::Missing | File::Directory | File::Pipe => Some("model_not_found"),
            File::TooLarge => Some("out_of_memory"),
            File::Truncated | File::Corrupt | File::Empty => Some("invalid_model"),
        };
        let right = match (&answer.end, wanted) {
            (End::Whole, None) => true,
            // Somebody asked for another one meanwhile.
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

    /// Whether anything may end so at this time.
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

    /// An error is as documented: in a stream that has begun, its status is the stream's.
    fn document(status: u16, code: &str) {
        let wanted = documented().get(code);
        assert!(wanted.is_some_and(|wanted| status == 200 || status == *wanted), "{status} {code}");
    }
}
