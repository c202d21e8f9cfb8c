//! Cache of the reference answers, which take minutes on a model with a billion weights. A file
//! contains the answers and everything that they depend on; it is used only if all of that is
//! equal.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::atomic_write::write_atomically;
use super::outcome::Answer;
use super::workload::{TOP, Workload};

/// SHA-256 of the reference's sources, of the sources that build a model's graph, and of the
/// versions of libraries. The build script computes it, because a commit does not cover modified
/// sources.
const REFERENCE: &str = env!("ORIND_REFERENCE");

/// Inputs that determine the answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Question {
    /// SHA-256 of the model's file.
    model: String,
    reference: String,
    prompts: Vec<Vec<u32>>,
    steps: u32,
    top: u32,
}

#[derive(Serialize, Deserialize)]
struct File {
    question: Question,
    answers: Vec<Answer>,
    /// SHA-256 of the answers as JSON.
    check: String,
}

/// A cache file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Damaged {
    #[error("{file} cannot be read: {source}")]
    Read { file: PathBuf, source: io::Error },
    #[error("{file} is damaged: {why}")]
    Content { file: PathBuf, why: String },
}

/// Cache file for the answers to a workload's prompts.
pub struct AnswerCache {
    question: Question,
    file: PathBuf,
}

impl AnswerCache {
    /// Uses a file in `folder`, which need not exist yet.
    pub fn of(work: &Workload, folder: &Path) -> Self {
        let question = Question {
            model: work.sha256.clone(),
            reference: REFERENCE.into(),
            prompts: work.judged.clone(),
            steps: work.steps,
            top: TOP,
        };
        let file = folder.join(format!("{}.json", hash(&question)));
        Self { question, file }
    }

    /// Returns the cached answers; `None` if there are none.
    pub fn read(&self) -> Result<Option<Vec<Answer>>, Damaged> {
        let text = match fs::read(&self.file) {
            Ok(text) => text,
            Err(none) if none.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Damaged::Read { file: self.file.clone(), source }),
        };
        let damaged = |why: String| Damaged::Content { file: self.file.clone(), why };
        let file: File = serde_json::from_slice(&text).map_err(|e| damaged(e.to_string()))?;
        if file.question != self.question {
            return Err(damaged("it contains the answers to another question".into()));
        }
        if hash(&file.answers) != file.check {
            return Err(damaged("the checksum of its answers is wrong".into()));
        }
        Ok(Some(file.answers))
    }

    /// Writes the answers atomically.
    pub fn write(&self, answers: &[Answer]) -> io::Result<()> {
        let folder = self.file.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let check = hash(&answers);
        let file = File { question: self.question.clone(), answers: answers.to_vec(), check };
        write_atomically(&self.file, &serde_json::to_vec(&file)?)
    }
}

fn hash(value: &impl Serialize) -> String {
    // Plain data always serialises to JSON.
    let json = serde_json::to_vec(value).unwrap_or_default();
    Sha256::digest(json).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work() -> Workload {
        Workload {
            model: "m.gguf".into(),
            sha256: "abc".into(),
            file_type: "Q8_0".into(),
            vocabulary: 100,
            tests: Vec::new(),
            device: "cpu".into(),
            threads: 2,
            seed: 1,
            prompt: 8,
            stream: 8,
            judged: vec![vec![1, 2], vec![3]],
            steps: 1,
        }
    }

    #[test]
    fn answers_round_trip_for_the_same_question_only() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("not yet there");
        // Numbers whose last bit an inexact decimal parser gets wrong.
        let logs = [-0.1f64.exp(), (0.3f64).ln(), -1.0 / 3.0, -6.02e-23];
        let top = vec![logs.iter().map(|&log| (7, log)).collect()];
        let answers = vec![Answer { tokens: vec![7], top }; 2];
        let kept = AnswerCache::of(&work(), &inside);
        assert_eq!(kept.read().unwrap(), None);
        kept.write(&answers).unwrap();
        let other_device = Workload { device: "nv".into(), threads: 9, ..work() };
        assert_eq!(AnswerCache::of(&other_device, &inside).read().unwrap(), Some(answers));
        for other in [
            Workload { sha256: "abd".into(), ..work() },
            Workload { judged: vec![vec![1, 2], vec![4]], ..work() },
            Workload { steps: 2, ..work() },
        ] {
            assert_eq!(AnswerCache::of(&other, &inside).read().unwrap(), None);
        }
        assert_eq!(fs::read_dir(&inside).unwrap().count(), 1, "no temporary file remains");
    }

    #[test]
    fn damaged_and_mismatched_files_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let answers = vec![Answer { tokens: vec![7], top: vec![vec![(7, -0.5)]] }];
        let kept = AnswerCache::of(&work(), folder.path());
        kept.write(&answers).unwrap();
        let whole = fs::read_to_string(&kept.file).unwrap();
        for (from, to, why) in [
            ("-0.5", "-0.6", "checksum"),
            ("\"tokens\":[7]", "\"tokens\":[8]", "checksum"),
            ("\"abc\"", "\"abd\"", "another question"),
            (REFERENCE, "an older one", "another question"),
            ("\"check\"", "", "is damaged"),
        ] {
            assert!(whole.contains(from), "{from} in {whole}");
            fs::write(&kept.file, whole.replacen(from, to, 1)).unwrap();
            let told = kept.read().unwrap_err().to_string();
            assert!(told.contains(why) && told.contains(kept.file.to_str().unwrap()), "{told}");
        }
        fs::write(&kept.file, &whole[..whole.len() / 2]).unwrap();
        assert!(kept.read().is_err());
    }
}
