//! A file that was read: its graph, and what it declares to take and to give.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use prost::Message as _;

use super::array::Elem;
use super::error::{Error, Result};
use super::external;
use super::import::called;
use super::ops;
use super::proto::{GraphProto, ModelProto, ValueInfoProto};

/// Opsets whose operators mean what is drawn for them.
const OPSETS: std::ops::RangeInclusive<i64> = 7..=28;

/// A model whose operators are all known.
#[derive(Debug)]
pub struct Model {
    pub(crate) graph: GraphProto,
    pub(crate) opset: i64,
    producer: String,
    beside: Vec<PathBuf>,
}

/// The extent of an axis, as a model declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extent {
    Of(usize),
    /// The same number wherever the name stands.
    Named(String),
    Any,
}

/// An input or output, as a model declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    pub name: String,
    pub elem: Elem,
    /// None where nothing is said of the axes.
    pub shape: Option<Vec<Extent>>,
}

impl Model {
    /// The model of a file, with what lies in others beside it.
    ///
    /// # Errors
    /// A file cannot be read or has not what the model says, or as for [`Model::parse`].
    pub fn read(path: &Path) -> Result<Self> {
        Self::read_within(path, u64::MAX)
    }

    /// The same, if the weights in files beside it have so many bytes at most.
    ///
    /// # Errors
    /// As for [`Model::read`], or they have more.
    pub fn read_within(path: &Path, most: u64) -> Result<Self> {
        let bytes = fs::read(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
        let mut model = Self::parse(&bytes)?;
        drop(bytes);
        let folder = path.parent().unwrap_or(Path::new(""));
        model.beside = external::bring(&mut model.graph, folder, most)?;
        Ok(model)
    }

    /// The model of a file's bytes.
    ///
    /// # Errors
    /// They are no ONNX model or damaged, of an opset that is not supported, or have operators that are not; all of
    /// those are named.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let ModelProto { graph, opset_import, producer_name, functions, .. } =
            ModelProto::decode(bytes)?;
        let refused = |what: String| Error::Model { what };
        let graph = graph.ok_or_else(|| refused("the model has no graph".into()))?;
        if let Some(function) = functions.first() {
            let name = &function.name;
            return Err(refused(format!(
                "functions of the model's own are not supported (`{name}`); export it with them inlined"
            )));
        }
        let own = opset_import.iter().find(|set| is_own(&set.domain));
        let opset = own.map_or(1, |set| set.version);
        if !OPSETS.contains(&opset) {
            let (from, to) = (OPSETS.start(), OPSETS.end());
            return Err(refused(format!("opset {opset} is not supported; {from} to {to} are")));
        }
        let mut missing = BTreeMap::new();
        for (i, node) in graph.node.iter().enumerate() {
            if !is_own(&node.domain) || ops::find(&node.op_type).is_none() {
                let version =
                    opset_import.iter().find(|set| set.domain == node.domain).map(|s| s.version);
                let domain = if is_own(&node.domain) { "" } else { &node.domain };
                let dot = if domain.is_empty() { "" } else { "." };
                let name = format!("{domain}{dot}{}", node.op_type);
                let set = version.unwrap_or(opset);
                missing.entry(name).or_insert_with(|| (set, called(node, i)));
            }
        }
        if !missing.is_empty() {
            let told = |(name, (opset, node))| format!("{name} (opset {opset}, node {node})");
            return Err(Error::Operators { operators: missing.into_iter().map(told).collect() });
        }
        let model = Self { graph, opset, producer: producer_name, beside: Vec::new() };
        for declared in model.graph.input.iter().chain(&model.graph.output) {
            model.declared(declared)?;
        }
        Ok(model)
    }

    #[must_use]
    pub const fn opset(&self) -> i64 {
        self.opset
    }

    /// What wrote the file, where it says so.
    #[must_use]
    pub fn producer(&self) -> &str {
        &self.producer
    }

    /// The files beside its own that it has weights from.
    #[must_use]
    pub fn beside(&self) -> &[PathBuf] {
        &self.beside
    }

    /// Operators, and how often each is there.
    #[must_use]
    pub fn operators(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for node in &self.graph.node {
            *counts.entry(&*node.op_type).or_default() += 1;
        }
        counts
    }

    /// What has to be given: inputs that the file has no values for.
    #[must_use]
    pub fn inputs(&self) -> Vec<Declared> {
        let own = |name: &str| self.graph.initializer.iter().any(|tensor| tensor.name == name);
        let given = self.graph.input.iter().filter(|input| !own(&input.name));
        given.filter_map(|input| self.declared(input).ok()).collect()
    }

    /// What comes of it.
    #[must_use]
    pub fn outputs(&self) -> Vec<Declared> {
        self.graph.output.iter().filter_map(|output| self.declared(output).ok()).collect()
    }

    fn declared(&self, info: &ValueInfoProto) -> Result<Declared> {
        let refused = |what: String| Error::Model { what: format!("`{}` {what}", info.name) };
        let tensor = info.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
        let Some(tensor) = tensor else {
            return Err(refused(
                "is no tensor; sequences, maps and optionals are not supported".into(),
            ));
        };
        let Some(elem) = Elem::of(tensor.elem_type) else {
            return Err(refused(format!(
                "has elements of type {}, which is not supported",
                tensor.elem_type
            )));
        };
        let shape = tensor.shape.as_ref().map(|shape| {
            let extent = |dim: &super::proto::Dimension| match (dim.dim_value, &dim.dim_param) {
                (Some(n), _) => usize::try_from(n).map_or(Extent::Any, Extent::Of),
                (None, Some(name)) if !name.is_empty() => Extent::Named(name.clone()),
                (None, _) => Extent::Any,
            };
            shape.dim.iter().map(extent).collect()
        });
        Ok(Declared { name: info.name.clone(), elem, shape })
    }
}

/// Whether a domain is ONNX's own.
fn is_own(domain: &str) -> bool {
    matches!(domain, "" | "ai.onnx")
}
