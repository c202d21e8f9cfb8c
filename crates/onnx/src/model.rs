//! A parsed model file: its graph, and its declared inputs and outputs.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Read as _};
use std::path::Path;

use files::RegularFile;

use prost::Message as _;

use crate::array::Elem;
use crate::error::{Error, Result};
use crate::external::{External, Links, read_external};
use crate::node::node_name;
use crate::ops;
use crate::proto::{GraphProto, ModelProto, ValueInfoProto};

/// Supported opsets.
const OPSETS: std::ops::RangeInclusive<i64> = 7..=28;

/// A model whose operators are all supported.
#[derive(Debug)]
pub struct Model {
    pub(crate) graph: GraphProto,
    pub(crate) opset: i64,
    producer: String,
    external: Vec<External>,
}

/// Declared extent of an axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extent {
    Of(usize),
    /// A size that is the same for every occurrence of the name.
    Named(String),
    Any,
}

/// A declared input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    pub name: String,
    pub elem: Elem,
    /// `None` if the model does not declare the axes.
    pub shape: Option<Vec<Extent>>,
}

impl Model {
    /// Reads the user's own model file with its external data.
    ///
    /// # Errors
    /// A file cannot be read or is shorter than the model requires; or as for [`Model::parse`].
    pub fn read(path: &Path) -> Result<Self> {
        let file = RegularFile::open(path).map_err(|source| Error::io(path, source))?;
        Self::read_from(&file, path, Links::Followed, u64::MAX)
    }

    /// Reads an open model file with its external data, of at most `most` bytes.
    ///
    /// # Errors
    /// As for [`Model::read`]; the external data exceeds `most`, or the file has changed meanwhile.
    pub fn read_from(file: &RegularFile, path: &Path, links: Links, most: u64) -> Result<Self> {
        let failed = |source| Error::io(path, source);
        let mut bytes = Vec::new();
        file.file().take(file.len()).read_to_end(&mut bytes).map_err(failed)?;
        let mut model = Self::parse(&bytes)?;
        drop(bytes);
        let folder = path.parent().unwrap_or(Path::new(""));
        model.external = read_external(&mut model.graph, folder, links, most)?;
        if !file.is_unchanged() {
            return Err(failed(io::Error::other("the file was written while it was read")));
        }
        Ok(model)
    }

    /// Parses the bytes of a model file.
    ///
    /// # Errors
    /// The bytes are not an ONNX model, are damaged, have an unsupported opset, or use unsupported
    /// operators, all of which are named.
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
                missing.entry(name).or_insert_with(|| (set, node_name(node, i)));
            }
        }
        if !missing.is_empty() {
            let named = |(name, (opset, node))| format!("{name} (opset {opset}, node {node})");
            return Err(Error::Operators { operators: missing.into_iter().map(named).collect() });
        }
        let model = Self { graph, opset, producer: producer_name, external: Vec::new() };
        for declared in model.graph.input.iter().chain(&model.graph.output) {
            model.declared(declared)?;
        }
        Ok(model)
    }

    #[must_use]
    pub const fn opset(&self) -> i64 {
        self.opset
    }

    /// Program that wrote the file, if named.
    #[must_use]
    pub fn producer(&self) -> &str {
        &self.producer
    }

    /// External data files of the model.
    #[must_use]
    pub fn external(&self) -> &[External] {
        &self.external
    }

    /// Operators, and the number of nodes of each.
    #[must_use]
    pub fn operators(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for node in &self.graph.node {
            *counts.entry(&*node.op_type).or_default() += 1;
        }
        counts
    }

    /// Inputs that the caller must provide: those without an initializer.
    #[must_use]
    pub fn inputs(&self) -> Vec<Declared> {
        let initializers = self.graph.initializer.iter().map(|tensor| &*tensor.name);
        let own: HashSet<&str> = initializers.collect();
        let given = self.graph.input.iter().filter(|input| !own.contains(&*input.name));
        given.filter_map(|input| self.declared(input).ok()).collect()
    }

    /// Declared outputs.
    #[must_use]
    pub fn outputs(&self) -> Vec<Declared> {
        self.graph.output.iter().filter_map(|output| self.declared(output).ok()).collect()
    }

    fn declared(&self, info: &ValueInfoProto) -> Result<Declared> {
        let refused = |what: String| Error::Model { what: format!("`{}` {what}", info.name) };
        let tensor = info.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
        let Some(tensor) = tensor else {
            return Err(refused(
                "is not a tensor; sequences, maps and optionals are not supported".into(),
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

/// True for ONNX's own operator domain.
fn is_own(domain: &str) -> bool {
    matches!(domain, "" | "ai.onnx")
}
