//! How a command fails, and what the user can do about it.

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
    /// The arguments do not go together.
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
    /// A model file, for `plan` and `profile`.
    #[error("{}", about(model, error))]
    Model { model: String, error: Box<model::Error> },
    #[error(transparent)]
    Synthetic(#[from] model::synthetic::Error),
    #[error("{0}")]
    Graph(#[from] plan::graph::Error),
    /// A case of `parity` cannot be made.
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
        "{found} is not the {expected} that was expected: this device computes otherwise, or the file, the version or --longest are others"
    )]
    OtherFingerprint { found: String, expected: String },
    #[error("{}", about(model, error))]
    Quality { model: String, error: Box<compare::quality::run::Error> },
    #[error("{}", about(model, error))]
    Text { model: String, error: compare::quality::text::Error },
    /// A text that is none.
    #[error("{} {why}", file.display())]
    TextFile { file: PathBuf, why: String },
    #[error(
        "{model} has another vocabulary than {base}: {how}; a divergence is between probabilities of the same tokens"
    )]
    OtherVocabulary { model: String, base: String, how: String },
    #[error("{}", about(model, error))]
    Quantise { model: String, error: Box<model::quantise::Error> },
    #[error(transparent)]
    Fetch(#[from] fetch::Error),
    #[error("{0} is not on this machine")]
    NotPulled(String),
    /// An ONNX file, or what it is given.
    #[error("{}: {why}", model.display())]
    Network { model: PathBuf, why: String },
    #[error("{}: {why}", file.display())]
    Output { file: PathBuf, why: String },
    #[error(transparent)]
    Install(#[from] super::install::Error),
    #[error(transparent)]
    Store(#[from] device::tune::store::StoreError),
    #[error(transparent)]
    Stages(#[from] device::bring_up::Error),
    #[error("{} was measured on another device than this machine has: {device}", file.display())]
    OtherDevice { file: PathBuf, device: String },
    #[error("{} cannot be written: {source}", file.display())]
    Write { file: PathBuf, source: io::Error },
    /// A search found or tried something that could not be written down.
    #[error("what was found is not remembered: {0}")]
    NotRemembered(String),
    #[error("the run is INVALID: {0}")]
    InvalidRun(String),
    /// What keeps a gate from its verdict.
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
    /// What was measured until then has been printed.
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

impl Error {
    pub(super) fn hint(&self) -> Option<String> {
        match self {
            Self::Install(error) => error.hint(),
            Self::Gate(error) => error.hint(),
            Self::NoRecord(_) => Some("`orinctl bench --save` makes a record".into()),
            Self::Client(error) => error.hint().map(str::to_owned),
            Self::OtherModel { wanted, .. } => Some(format!(
                "`orinctl load {wanted}` replaces it; `--private` starts a daemon of its own"
            )),
            Self::NoModel { .. } => {
                Some("`orinctl load MODEL` loads one; `orinctl models` lists them".into())
            }
            Self::NotPulled(name) => Some(format!("`orinctl pull {name}` fetches it")),
            Self::Quantise { error, .. }
                if matches!(**error, model::quantise::Error::Quantised { .. }) =>
            {
                Some("--requantize does it all the same".into())
            }
            Self::Model { .. } => Some(
                "a GGUF file is needed, or synthetic:NAME; `orinctl plan --help` has examples"
                    .into(),
            ),
            _ => None,
        }
    }

    /// True when the reader of our output went away: nothing to say, nobody to say it to.
    pub(super) fn is_broken_pipe(&self) -> bool {
        match self {
            Self::Gate(error) => error.is_broken_pipe(),
            Self::Io(error) => error.kind() == io::ErrorKind::BrokenPipe,
            _ => false,
        }
    }

    /// 0 for a broken pipe, 2 for usage, 3 for a benchmark that says nothing and a gate without a verdict, 130 for
    /// Ctrl-C, else 1.
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
