//! Values of names while a graph is built: a tensor, a sequence of tensors, or an optional that may
//! be empty.

use crate::error::{NodeResult, invalid};
use crate::import::Value;
use crate::proto::TensorProto;

/// Value of a name.
#[derive(Clone, Debug)]
pub(crate) enum Item<'m> {
    Value(Value),
    /// A tensor of the file that no node has read yet.
    Initializer(&'m TensorProto),
    Sequence(Vec<Value>),
    /// An optional without a value.
    Nothing,
    /// Output of a node that could not be built.
    Failed,
}

impl Item<'_> {
    /// The tensor; `None` for an empty optional.
    ///
    /// # Errors
    /// It is a sequence.
    pub(crate) fn value(self) -> NodeResult<Option<Value>> {
        match self {
            Self::Value(value) => Ok(Some(value)),
            Self::Nothing => Ok(None),
            Self::Sequence(_) => Err(invalid("an input is a sequence, not a tensor".into())),
            Self::Initializer(_) | Self::Failed => Err(invalid("an input has no value".into())),
        }
    }
}
