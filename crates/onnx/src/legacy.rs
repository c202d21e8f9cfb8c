//! Opsets before 7: their nodes are raised to opset 7 while they are built.

use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value};
use crate::node::Node;
use crate::proto::NodeProto;

/// Oldest opset that operators are defined for.
pub(crate) const OLDEST: i64 = 7;

/// Operators that aligned their second operand by an attribute, instead of with the last axes.
const ALIGNED: [&str; 12] =
    ["Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor", "PRelu"];

/// Appends axes of extent 1 to a second operand that starts at an earlier axis of the first.
pub(crate) fn align(
    im: &mut Import,
    proto: &NodeProto,
    inputs: &mut [Option<Value>],
) -> NodeResult<()> {
    let of = |name: &str| proto.attribute.iter().find(|a| a.name == name).map(|a| a.i);
    let [Some(a), Some(b)] = &*inputs else { return Ok(()) };
    if !ALIGNED.contains(&&*proto.op_type) || of("broadcast").unwrap_or(0) == 0 {
        return Ok(());
    }
    let (rank, have) = (im.shape(a).len() as i64, im.shape(b));
    let Some(at) = of("axis") else { return Ok(()) };
    let at = if at < 0 { at + rank } else { at };
    let Some(behind) = usize::try_from(rank - at - have.len() as i64).ok().filter(|_| at >= 0)
    else {
        return Err(invalid(format!("{have:?} cannot start at axis {at} of {rank}")));
    };
    let shape = [&have[..], &vec![1; behind]].concat();
    let moved = match b {
        Value::Known(known) => Value::Known(known.reshaped(&shape)?),
        Value::Device { elem, tensor } => {
            Value::Device { elem: *elem, tensor: im.g.reshape(*tensor, &shape)? }
        }
    };
    inputs[1] = Some(moved);
    Ok(())
}

/// Marks attributes as read that have no effect any more.
pub(crate) fn ignore(node: &Node<'_>) {
    node.ignore(&["consumed_inputs", "is_test"]);
    if ALIGNED.contains(&node.op()) {
        node.ignore(&["broadcast", "axis"]);
    }
}
