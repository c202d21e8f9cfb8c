//! Errors of experiments.

use std::io;
use std::path::PathBuf;

use nix::errno::Errno;
use tegra::address::AddressError;
use tegra::pushbuffer::OperationError;
use tegra_first_light::Failure;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A driver or the GPU refused a step.
    #[error(transparent)]
    Gpu(#[from] tegra::Error),
    #[error(transparent)]
    FirstLight(#[from] Failure),
    #[error("{what}: {errno}")]
    Refused { what: &'static str, errno: Errno },
    #[error("kernel {0}")]
    Kernel(String),
    #[error("{0}")]
    Implausible(String),
    /// The process of an experiment cannot be started or read from.
    #[error("{what}: {source}")]
    Process { what: &'static str, source: io::Error },
    #[error(transparent)]
    Profile(#[from] tegra_profile::Error),
    #[error("{} cannot be resumed, {why}: `-o` writes another file", file.display())]
    Resume { file: PathBuf, why: String },
    #[error("unknown experiment {name:?}{}", hint(near))]
    Unknown { name: String, near: Option<&'static str> },
}

fn hint(near: &Option<&'static str>) -> String {
    near.map_or_else(String::new, |near| format!("; did you mean {near:?}?"))
}

impl From<AddressError> for Error {
    fn from(error: AddressError) -> Self {
        Self::Gpu(error.into())
    }
}

impl From<OperationError> for Error {
    fn from(error: OperationError) -> Self {
        Self::Gpu(error.into())
    }
}

impl Error {
    /// Names a refused request.
    pub(super) fn refused(what: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::Refused { what, errno }
    }
}
