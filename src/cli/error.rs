//! Errors of commands, their hints and exit codes.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use analysis::Difference;
use api::client;
use errors::about;

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Client(#[from] client::Error),
    /// Contradictory arguments.
    #[error("{0}")]
    Usage(String),
    #[error("{loaded} is loaded in the daemon on {daemon}, not {wanted}")]
    OtherModel { loaded: String, wanted: String, daemon: client::Address },
    #[error("no model is loaded in the daemon on {daemon}")]
    NoModel { daemon: client::Address },
    #[error(transparent)]
    Private(client::private::Error),
    #[error(transparent)]
    Compare(#[from] compare::Error),
    #[error("{what}: {source}")]
    Setup { what: &'static str, source: io::Error },
    /// A model file cannot be used by `plan` or `profile`.
    #[error("{}", about(model, error))]
    Model { model: String, error: Box<model::Error> },
    #[error(transparent)]
    Synthetic(model::synthetic::Error),
    #[error("{0}")]
    Graph(#[from] plan::graph::Error),
    /// A case of `parity` cannot be built.
    #[error(transparent)]
    Case(#[from] parity::case::BuildError),
    #[error(transparent)]
    Device(#[from] device::Error),
    #[error("--backend {name}: {why}")]
    Backend { name: String, why: String },
    #[error(transparent)]
    Bandwidth(#[from] bench::Error),
    #[error("{error}; to see it on a simulated Orin: tegra-sim run -- orinctl first-contact")]
    NoOrin { error: Box<tegra_probe::Error> },
    #[error(transparent)]
    Contact(#[from] tegra_probe::Error),
    #[error("{0}")]
    Parity(String),
    #[error("{}", about(model, error))]
    Fingerprint { model: String, error: Box<parity::model::Failure> },
    #[error(
        "fingerprint {found}, expected {expected}: the device computes different bits, or file, version or --longest differ"
    )]
    OtherFingerprint { found: String, expected: String },
    #[error("{}", about(model, error))]
    Quality { model: String, error: Box<compare::quality::run::Error> },
    #[error("{}", about(model, error))]
    Text { model: String, error: compare::quality::text::Error },
    /// The text file cannot be used.
    #[error("{} {why}", file.display())]
    TextFile { file: PathBuf, why: String },
    #[error(
        "{model} has a different vocabulary than {base}: {how}; divergence needs the same tokens"
    )]
    OtherVocabulary { model: String, base: String, how: String },
    #[error("{}", about(model, error))]
    Quantise { model: String, error: Box<model::quantise::Error> },
    #[error(transparent)]
    Fetch(#[from] fetch::Error),
    #[error("{0} is not downloaded")]
    NotPulled(String),
    #[error("there is no model {name}{}", nearest.as_ref().map_or_else(String::new, |name| format!("; did you mean {name}?")))]
    NotFound {
        name: String,
        /// The most similar name of a model on this machine.
        nearest: Option<String>,
    },
    #[error("{0} is loaded in the daemon")]
    InUse(String),
    #[error("{} was not downloaded by `orinctl pull`; delete it with `rm`", .0.display())]
    NotOurs(PathBuf),
    #[error("{} cannot be deleted: {source}", file.display())]
    Delete { file: PathBuf, source: io::Error },
    /// The program of `launch` cannot be started.
    #[error("{program} cannot be started: {source}")]
    Program { program: String, source: io::Error },
    /// An ONNX file or its input cannot be used.
    #[error("{}", about(&model.display().to_string(), &io::Error::other(why.as_str())))]
    Network { model: PathBuf, why: String },
    #[error("{}: {why}", file.display())]
    Output { file: PathBuf, why: String },
    #[error(transparent)]
    Install(#[from] super::install::error::Error),
    #[error(transparent)]
    Store(#[from] device::tune::store::StoreError),
    #[error(transparent)]
    Stages(#[from] device::bring_up::Error),
    #[error("{} was measured on a device that this machine does not have: {device}", file.display())]
    OtherDevice { file: PathBuf, device: String },
    #[error("{} cannot be written: {source}", file.display())]
    Write { file: PathBuf, source: io::Error },
    /// A result of a tuning search could not be stored.
    #[error("cannot store the tuning results: {0}")]
    NotRemembered(String),
    #[error("the run is INVALID: {0}")]
    InvalidRun(String),
    /// Error that prevents a verdict of the speed gate.
    #[error(transparent)]
    Gate(Box<Self>),
    #[error("{0}")]
    NoRecord(String),
    #[error("the record and this run cannot be compared: {}", differing(.0))]
    Unlike(Vec<Difference>),
    #[error(transparent)]
    Record(#[from] analysis::RecordError),
    #[error(transparent)]
    Sweep(#[from] analysis::sweep::Error),
    /// The measurements before the error have been printed.
    #[error("{0}")]
    Serving(String),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("interrupted")]
    Interrupted,
}

impl From<client::private::Error> for Error {
    fn from(error: client::private::Error) -> Self {
        match error {
            client::private::Error::Client(error) => Self::Client(error),
            error => Self::Private(error),
        }
    }
}

fn differing(all: &[Difference]) -> String {
    let one = |d: &Difference| {
        format!("{} is {} there and {} here ({})", d.what, d.before, d.now, d.remedy)
    };
    all.iter().map(one).collect::<Vec<_>>().join("; ")
}

impl From<model::synthetic::Error> for Error {
    /// Leaves out the list of all synthetic models, which `orinctl models` prints.
    fn from(error: model::synthetic::Error) -> Self {
        match error {
            model::synthetic::Error::Unknown { name, nearest } => {
                Self::NotFound { name, nearest: Some(nearest) }
            }
            other => Self::Synthetic(other),
        }
    }
}

impl Error {
    /// A device failed during `parity`.
    pub(super) fn parity(failure: &parity::model::Failure) -> Self {
        Self::Parity(errors::one_line(failure))
    }

    pub(super) fn hint(&self) -> Option<String> {
        match self {
            Self::Install(error) => error.hint(),
            Self::Gate(error) => error.hint(),
            Self::NoRecord(_) => Some("`orinctl bench --save` saves a record".into()),
            Self::Client(error) => error.hint().map(str::to_owned),
            Self::OtherModel { wanted, .. } => Some(format!(
                "`orinctl load {wanted}` replaces it; `--private` starts a private daemon"
            )),
            Self::NoModel { .. } => {
                Some("`orinctl load MODEL` loads one; `orinctl models` lists them".into())
            }
            Self::NotPulled(name) => Some(format!("`orinctl pull {name}` downloads it")),
            Self::Quantise { error, .. }
                if matches!(**error, model::quantise::Error::Quantised { .. }) =>
            {
                Some("--requantize allows it".into())
            }
            Self::InUse(_) => Some("`orinctl unload` unloads it".into()),
            Self::Program { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("docs/clients.md says how to install each client".into())
            }
            Self::NotFound { .. } => Some(
                "`orinctl models` lists the models here, `orinctl pull NAME` downloads one".into(),
            ),
            Self::Model { .. } => Some(
                "expected a GGUF file or synthetic:NAME; `orinctl plan --help` has examples".into(),
            ),
            _ => None,
        }
    }

    /// Returns whether the reader has closed standard output, which is not reported as an error.
    pub(super) fn is_broken_pipe(&self) -> bool {
        match self {
            Self::Gate(error) => error.is_broken_pipe(),
            Self::Io(error) => error.kind() == io::ErrorKind::BrokenPipe,
            _ => false,
        }
    }

    /// Exit code: 0 for a broken pipe, 2 for usage errors, 3 for an invalid benchmark or a gate
    /// without a verdict, 130 for Ctrl-C, else 1.
    pub(super) fn exit_code(&self) -> ExitCode {
        match self {
            _ if self.is_broken_pipe() => ExitCode::SUCCESS,
            Self::Gate(error) if !matches!(**error, Self::Interrupted) => ExitCode::from(3),
            Self::Gate(error) => error.exit_code(),
            Self::Usage(_) => ExitCode::from(2),
            Self::InvalidRun(_) => ExitCode::from(3),
            Self::Interrupted => ExitCode::from(130),
            _ => ExitCode::FAILURE,
        }
    }
}
