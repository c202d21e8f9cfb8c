//! Opsets before 7: their nodes are raised to opset 7 while they are built.

use crate::array::Elem;
use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value};
use crate::proto::{AttributeProto, NodeProto};

/// Oldest opset that operators are defined for.
pub(crate) const OLDEST: i64 = 7;

/// Operators that aligned their second operand by an attribute, instead of with the last axes.
const ALIGNED: [&str; 12] =
    ["Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor", "PRelu"];

/// Operators that broadcast their second operand by an attribute.
fn is_aligned(op: &str) -> bool {
    ALIGNED.contains(&op)
}

/// The node with the attributes that it has in opset 7.
pub(crate) fn raised(proto: &NodeProto) -> NodeProto {
    let mut made = proto.clone();
    let aligned = is_aligned(&proto.op_type);
    made.attribute.retain(|a| match &*a.name {
        "consumed_inputs" | "is_test" | "broadcast" => false,
        "axis" => !aligned,
        _ => true,
    });
    let of = |name: &str| proto.attribute.iter().find(|a| a.name == name).map(|a| a.f);
    for attribute in &mut made.attribute {
        match (&*proto.op_type, &*attribute.name) {
            ("Pad", "paddings") => attribute.name = "pads".into(),
            ("Cast", "to") if !attribute.s.is_empty() => {
                let name = String::from_utf8_lossy(&attribute.s).to_lowercase();
                attribute.i = Elem::by_name(&name).map_or(0, i64::from);
            }
            _ => {}
        }
    }
    if let (Some(height), Some(width)) = (of("height_scale"), of("width_scale")) {
        made.attribute.retain(|a| !matches!(&*a.name, "height_scale" | "width_scale"));
        let scales = vec![1.0, 1.0, height, width];
        made.attribute.push(AttributeProto {
            name: "scales".into(),
            floats: scales,
            ..AttributeProto::default()
        });
    }
    made
}

/// Appends axes of extent 1 to a second operand that starts at an earlier axis of the first.
pub(crate) fn align(
    im: &mut Import,
    proto: &NodeProto,
    inputs: &mut [Option<Value>],
) -> NodeResult<()> {
    let of = |name: &str| proto.attribute.iter().find(|a| a.name == name).map(|a| a.i);
    let [Some(a), Some(b)] = &*inputs else { return Ok(()) };
    let (rank, have) = (im.shape(a).len() as i64, im.shape(b));
    // A slope for each channel.
    let slopes = proto.op_type == "PRelu" && have.len() == 1 && have[0] != 1 && rank > 1;
    let at = match of("axis") {
        _ if slopes => 1,
        Some(at) if is_aligned(&proto.op_type) && of("broadcast").unwrap_or(0) != 0 => at,
        _ => return Ok(()),
    };
    let at = if at < 0 { at + rank } else { at };
    let Some(behind) = usize::try_from(rank - at - have.len() as i64).ok().filter(|_| at >= 0)
    else {
        return Err(invalid(format!("{have:?} cannot start at axis {at} of {rank}")));
    };
    let shape = [&have[..], &vec![1; behind]].concat();
    inputs[1] = Some(im.reshaped(&b.clone(), &shape)?);
    Ok(())
}
