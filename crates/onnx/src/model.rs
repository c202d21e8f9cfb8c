//! A parsed model file: its graph, and its declared inputs and outputs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Read as _};
use std::path::Path;

use files::RegularFile;

use prost::Message as _;

use crate::array::{Elem, Known};
use crate::error::{Error, NodeResult, Result, invalid};
use crate::external::{External, Links, read_external};
use crate::limits::{Limits, Meter};
use crate::node::node_name;
use crate::proto::{
    FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto,
};
use crate::{control, ops, order, sequence};

/// Supported opsets. Those before 7 are raised to it.
const OPSETS: std::ops::RangeInclusive<i64> = 1..=28;

/// A model whose operators are all supported.
#[derive(Debug)]
pub struct Model {
    pub(crate) graph: GraphProto,
    pub(crate) opset: i64,
    /// Functions of the model, by domain and name.
    pub(crate) functions: HashMap<(String, String), FunctionProto>,
    producer: String,
    external: Vec<External>,
    /// Number of bytes of its files.
    bytes: u64,
    pub(crate) meter: Meter,
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
        let mut graph = graph.ok_or_else(|| refused("the model has no graph".into()))?;
        order::sort(&mut graph)?;
        let mut named = HashMap::new();
        for mut function in functions {
            order::sort_nodes(&mut function.node)?;
            let domain = if is_own(&function.domain) { "" } else { &*function.domain };
            named.insert((domain.to_owned(), function.name.clone()), function);
        }
        let opset = own_opset(&opset_import);
        let mut model = Self {
            graph,
            opset: opset.unwrap_or(*OPSETS.end()),
            functions: named,
            producer: producer_name,
            external: Vec::new(),
            bytes: bytes.len() as u64,
            meter: Meter::default(),
        };
        let mut errors = Vec::new();
        let mut missing = Missing {
            model: &model,
            opsets: &opset_import,
            found: BTreeMap::new(),
            seen: HashSet::new(),
            called: Vec::new(),
        };
        let own = missing.graph(&model.graph);
        let found = missing.found;
        if opset.is_none() && own {
            model.opset = 1;
        }
        if !OPSETS.contains(&model.opset) && own {
            let (from, to, opset) = (OPSETS.start(), OPSETS.end(), model.opset);
            errors.push(refused(format!("opset {opset} is not supported; {from} to {to} are")));
        }
        if !found.is_empty() {
            let named = |(name, (opset, node))| format!("{name} (opset {opset}, node {node})");
            errors.push(Error::Operators { operators: found.into_iter().map(named).collect() });
        }
        let own: HashSet<&str> = model.graph.initializer.iter().map(|t| &*t.name).collect();
        let inputs = model.graph.input.iter().filter(|input| !own.contains(&*input.name));
        errors.extend(inputs.filter_map(|declared| model.declared(declared).err()));
        if !model.graph.sparse_initializer.is_empty() {
            errors.push(refused("sparse initializers are not supported".into()));
        }
        Error::all(errors).map_or(Ok(model), Err)
    }

    /// Limits what preparing networks of this model may take from now on, on this thread.
    #[must_use]
    pub fn limited(mut self, limits: Limits) -> Self {
        let external = self.external.iter().map(|file| file.bytes);
        self.meter = Meter::start(limits, self.bytes + external.sum::<u64>());
        self
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

    /// Inputs with an initializer, which the caller may replace.
    #[must_use]
    pub fn replaceable(&self) -> Vec<Declared> {
        let initializers = self.graph.initializer.iter().map(|tensor| &*tensor.name);
        let own: HashSet<&str> = initializers.collect();
        let given = self.graph.input.iter().filter(|input| own.contains(&*input.name));
        given.filter_map(|input| self.declared(input).ok()).collect()
    }

    /// An empty tensor of a declared type, with no entries on the first axis.
    pub(crate) fn empty(&self, info: &ValueInfoProto) -> NodeResult<Known> {
        let declared = self.declared(info).map_err(|error| invalid(error.to_string()))?;
        let extents = declared.shape.unwrap_or_default().into_iter();
        let extents = extents.map(|extent| match extent {
            Extent::Of(n) => n,
            _ => 1,
        });
        let shape: Vec<usize> = std::iter::once(0).chain(extents).collect();
        Known::new(declared.elem, &shape, Vec::new())
            .ok_or_else(|| invalid(format!("invalid shape {shape:?}")))
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
        let elem = Elem::named(tensor.elem_type);
        let elem = elem.map_err(|why| Error::Model { what: format!("`{}`: {why}", info.name) })?;
        let shape = tensor.shape.as_ref().map(|shape| {
            let extent = |dim: &super::proto::Dimension| match (dim.dim_value, &dim.dim_param) {
                // Some exporters write 0 or -1 for an open extent.
                (Some(n), _) if n <= 0 => Extent::Any,
                (Some(n), _) => Extent::Of(n as usize),
                (None, Some(name)) if !matches!(&**name, "" | "?" | "-1" | "None") => {
                    Extent::Named(name.clone())
                }
                (None, _) => Extent::Any,
            };
            shape.dim.iter().map(extent).collect()
        });
        Ok(Declared { name: info.name.clone(), elem, shape })
    }
}

/// True for ONNX's own operator domain.
pub(crate) fn is_own(domain: &str) -> bool {
    matches!(domain, "" | "ai.onnx")
}

/// Version of ONNX's own operators.
pub(crate) fn own_opset(opsets: &[OperatorSetIdProto]) -> Option<i64> {
    opsets.iter().find(|set| is_own(&set.domain)).map(|set| set.version)
}

/// Search for unsupported operators, in a graph, the graphs inside it, and the functions that are called.
struct Missing<'a> {
    model: &'a Model,
    opsets: &'a [OperatorSetIdProto],
    /// Names, each with its opset and its first node.
    found: BTreeMap<String, (i64, String)>,
    /// Functions that are called, and those of them whose nodes are still to be searched.
    seen: HashSet<(String, String)>,
    called: Vec<&'a FunctionProto>,
}

impl<'a> Missing<'a> {
    /// Returns true if there is a node of ONNX's own domain.
    fn graph(&mut self, graph: &'a GraphProto) -> bool {
        let mut own = self.nodes(&graph.node);
        while let Some(function) = self.called.pop() {
            own |= self.nodes(&function.node);
        }
        own
    }

    fn nodes(&mut self, nodes: &'a [NodeProto]) -> bool {
        let mut own = false;
        for (i, node) in nodes.iter().enumerate() {
            let domain = if is_own(&node.domain) { "" } else { &*node.domain };
            for graph in node.attribute.iter().filter_map(|a| a.g.as_ref()) {
                own |= self.nodes(&graph.node);
            }
            let key = (domain.to_owned(), node.op_type.clone());
            if let Some(function) = self.model.functions.get(&key) {
                if self.seen.insert(key) {
                    self.called.push(function);
                }
                continue;
            }
            own |= domain.is_empty();
            let op = &*node.op_type;
            let built = domain.is_empty()
                && (control::NAMES.contains(&op) || sequence::NAMES.contains(&op));
            if built || ops::find(domain, op).is_some() {
                continue;
            }
            let set = self.opsets.iter().find(|set| set.domain == node.domain);
            let set = set.map_or(self.model.opset, |set| set.version);
            let dot = if domain.is_empty() { "" } else { "." };
            let name = format!("{domain}{dot}{op}");
            self.found.entry(name).or_insert_with(|| (set, node_name(node, i)));
        }
        own
    }
}
