//! A kernel of its own for a group of tensor operations: what `tensor` looks up for each element, its steps, shapes and
//! strides, is code here.
//!
//! Such a kernel takes the parameters that `tensor` takes, of which it reads the addresses alone, and each step is
//! the same function: it gives the same bits. Who compiles it is [`crate::jit`].

use std::collections::BTreeSet;
use std::fmt::Write as _;

use parking_lot::Mutex;

use crate::params::{Action, Reduction, TensorParams, TensorSource, Width};
use crate::source::{self, asserts};

/// The text of a kernel but for its name. Groups that do the same at other addresses have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Generated(&'static str);

impl Generated {
    /// What the parameters say. A text stays as long as the process, as the code does that is made of it.
    #[must_use]
    pub fn of(params: &TensorParams) -> Self {
        static KNOWN: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
        let text = steps(params);
        let mut known = KNOWN.lock();
        if let Some(text) = known.get(text.as_str()) {
            return Self(text);
        }
        let text = Box::leak(text.into_boxed_str());
        known.insert(text);
        Self(text)
    }

    /// Its symbol in the machine code.
    #[must_use]
    pub fn symbol(self) -> String {
        format!("group_{}", &source::digest([self.0].into_iter())[..16])
    }

    /// What is compiled.
    #[must_use]
    pub fn text(self) -> String {
        let mut text = String::from("#include \"tensor_group.cuh\"\n");
        asserts::<TensorSource>(&mut text);
        asserts::<TensorParams>(&mut text);
        let (steps, symbol) = (self.0, self.symbol());
        text + steps
            + "extern \"C\" __global__ __launch_bounds__(128) void "
            + &symbol
            + "(const __grid_constant__ TensorParams p) {\n    after_previous_launch();\n    run(p, Steps{0});\n}\n"
    }
}

/// A group as the header's `run` takes it.
fn steps(params: &TensorParams) -> String {
    let TensorParams { reduce, elements, outer, length, inner, .. } = *params;
    let reduces = reduce != Reduction::None as u32;
    let [space, left] =
        if reduces { [outer * length * inner, outer * inner] } else { [elements, elements] };
    let (chain, tail) = (params.chain as usize, params.tail as usize);
    let mut code = format!(
        "struct Steps {{
    enum : u32 {{ reduce = {reduce}, elements = {elements}, outer = {outer}, length = {length}, inner = {inner} }};
    u32 own;

    __device__ __forceinline__ void reduced(const TensorParams&, u32 value) {{ own = value; }}
    __device__ __forceinline__ u32 value(const TensorParams&) const {{ return own; }}
    __device__ __forceinline__ void steps(const TensorParams& p, bool tail, u32 element) {{
        if (tail) {{
"
    );
    part(&mut code, params, chain..tail, left, Some(params.into));
    code += "            return;\n        }\n";
    part(&mut code, params, 0..chain, space, None);
    if reduces {
        // Writing to a string cannot fail.
        let _ = writeln!(code, "        own = {};", operand(params, params.from as u8));
    }
    code + "    }\n};\n"
}

/// Some of the steps, over a space of elements; what was reduced is in a register.
fn part(
    code: &mut String,
    params: &TensorParams,
    steps: std::ops::Range<usize>,
    space: u32,
    reduced: Option<u32>,
) {
    let all = params.steps.as_flattened();
    let lines = all[steps].iter().map(|step| line(params, step.to_le_bytes(), space));
    let lines: Vec<(Option<u8>, String)> = lines.collect();
    let written = lines.iter().filter_map(|(out, _)| *out).map(u32::from);
    for register in written.chain(reduced).collect::<BTreeSet<u32>>() {
        let value = if reduced == Some(register) { "own" } else { "0" };
        let _ = writeln!(code, "        u32 r{register} = {value};");
    }
    code.extend(lines.into_iter().map(|(_, line)| format!("        {line}\n")));
}

/// A register, or the constant that it holds.
fn operand(params: &TensorParams, register: u8) -> String {
    match params.constants.get(usize::from(register)) {
        Some(bits) => format!("{bits:#x}u"),
        None => format!("r{register}"),
    }
}

/// A step, and which register it writes.
fn line(params: &TensorParams, step: [u8; 8], space: u32) -> (Option<u8>, String) {
    let [action, out, a, b, c, ..] = step;
    if action == Action::Store as u8 {
        let value = operand(params, a);
        return (None, format!("stored(p.stores[{out}], {b}, element, {value});"));
    }
    if action == Action::Load as u8 {
        return (Some(out), load(&params.sources[usize::from(a)], out, a, space));
    }
    let [x, y, z] = [a, b, c].map(|register| operand(params, register));
    let value = if action == Action::Number as u8 {
        "bits(__uint2float_rn(element))".into()
    } else if action < Action::Add as u8 {
        format!("of_one({action}, {x})")
    } else if action < Action::IntAdd as u8 {
        format!("of_two({action}, {x}, {y})")
    } else if action < Action::Select as u8 {
        format!("of_ints({action}, {x}, {y})")
    } else if action > Action::Select as u8 {
        format!("converted({action}, {x})")
    } else {
        format!("number({x}) == 0.0f ? {z} : {y}")
    };
    (Some(out), format!("r{out} = {value};"))
}

/// The element of a source.
fn load(source: &TensorSource, out: u8, number: u8, space: u32) -> String {
    let axes = source.axes as usize;
    let shape = &source.shape[..axes];
    let whole = shape.iter().product::<u32>() == space;
    let (mut code, mut left) = (String::from("{ u32 place = 0; "), String::from("element"));
    let mut outside = String::new();
    for (axis, (extent, stride)) in shape.iter().zip(source.strides).enumerate().rev() {
        // Nothing is left beyond the outermost.
        let index = if axis == 0 && whole { left.clone() } else { format!("{left} % {extent}u") };
        let _ = write!(code, "u32 i{axis} = {index}; ");
        if axis == source.padded as usize {
            let (before, inside) = (source.before, source.inside);
            let _ = write!(code, "i{axis} -= {before}u; ");
            outside = format!("i{axis} >= {inside}u ? 0 : ");
        }
        let _ = write!(code, "place += i{axis} * {stride}u; ");
        left = format!("({left} / {extent}u)");
    }
    let value = if source.width == Width::Fixed as u32 {
        format!("{:#x}u", source.base as u32)
    } else {
        format!("element_at(p.sources[{number}].base, {}, place)", source.width)
    };
    code + &format!("r{out} = {outside}{value}; }}")
}
