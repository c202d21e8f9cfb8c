//! Names of synthetic models: parses `synthetic:NAME:TYPE@LAYERS` into a shape and a quantisation
//! ([`Spec`]), and lists the valid names.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::random::SEED;
use super::shape::{SHAPES, Shape, Type};
use crate::gguf;
use plan::quant;

/// Prefix of the names of synthetic models.
pub const PREFIX: &str = "synthetic:";

/// Version of the generator; changes whenever the file of any name changes.
pub const VERSION: u32 = 2;

/// Metadata key of [`VERSION`], which only synthetic models have.
pub const VERSION_KEY: &str = "orind.synthetic.version";

/// Reason why a synthetic model cannot be generated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no synthetic model `{name}`; did you mean `{nearest}`? There are: {}", names().join(", "))]
    Unknown {
        name: String,
        /// The most similar existing name.
        nearest: String,
    },
    #[error("cannot use the cache {}: {cause}", .path.display())]
    Cache { path: PathBuf, cause: io::Error },
    #[error(
        "the model has {} MiB, but {} MiB are free in {}; choose fewer layers (`@LAYERS`) or another XDG_CACHE_HOME",
        need >> 20, free >> 20, .path.display()
    )]
    Room { path: PathBuf, need: u64, free: u64 },
    /// `progress` returned false.
    #[error("cancelled")]
    Cancelled,
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
    #[error(transparent)]
    Quant(#[from] quant::Error),
}

/// A synthetic model: shape and quantisation.
#[derive(Clone, Copy, PartialEq)]
pub struct Spec {
    pub(super) shape: Shape,
    pub(super) kind: Type,
    /// True if the model has fewer layers than the named shape.
    cut: bool,
}

/// All names that [`Spec::parse`] accepts.
#[must_use]
pub fn names() -> Vec<String> {
    SHAPES
        .iter()
        .flat_map(|shape| {
            Type::of(shape).map(move |kind| Spec { shape: *shape, kind: *kind, cut: false })
        })
        .map(|spec| spec.to_string())
        .collect()
}

/// True for the name of a synthetic model, false for that of a file.
#[must_use]
pub fn is_synthetic(name: &str) -> bool {
    name.starts_with(PREFIX)
}

impl Spec {
    /// The model of this name: `synthetic:NAME:TYPE` in any case, or `synthetic:NAME:TYPE@N` with only the first N
    /// layers.
    ///
    /// # Errors
    /// [`Error::Unknown`] lists all names and suggests the nearest.
    pub fn parse(name: &str) -> Result<Self, Error> {
        let wanted = name.to_lowercase();
        let found = wanted.strip_prefix(PREFIX).and_then(|rest| rest.split_once(':')).and_then(
            |(model, kind)| {
                let mut shape = *SHAPES.iter().find(|shape| shape.name == model)?;
                let (kind, layers) = match kind.split_once('@') {
                    Some((kind, layers)) => (kind, Some(layers)),
                    None => (kind, None),
                };
                let kind = *Type::of(&shape).find(|t| t.name == kind)?;
                let cut = layers.is_some();
                if let Some(layers) = layers {
                    let layers = layers.parse().ok()?;
                    // A planted rule needs all layers.
                    if shape.planted || !(1..shape.layers).contains(&layers) {
                        return None;
                    }
                    shape.layers = layers;
                }
                Some(Self { shape, kind, cut })
            },
        );
        found.ok_or_else(|| {
            let distance = |known: &String| strsim::damerau_levenshtein(&wanted, known);
            let nearest = names().into_iter().min_by_key(distance).unwrap_or_default();
            Error::Unknown { name: name.to_owned(), nearest }
        })
    }

    #[must_use]
    pub fn file_name(&self) -> String {
        let layers = if self.cut { format!("@{}", self.shape.layers) } else { String::new() };
        format!("{}-{}{layers}-v{VERSION}-{SEED:016x}.gguf", self.shape.name, self.kind.name)
    }

    /// Display name, which mentions missing layers.
    pub(super) fn title(&self) -> String {
        let Shape { title, layers, .. } = self.shape;
        if self.cut { format!("{title} cut to {layers} layers") } else { title.to_owned() }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}:{}", self.shape.name, self.kind.name)?;
        if self.cut { write!(f, "@{}", self.shape.layers) } else { Ok(()) }
    }
}

impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Spec({self})")
    }
}
