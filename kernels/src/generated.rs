//! A kernel of its own for a group of tensor operations: what `tensor` looks up for each element, its steps, shapes and
//! strides, is code here.
//!
//! Such a kernel takes the parameters that `tensor` takes, of which it reads the addresses alone, and each step is
//! the same function: it gives the same bits, in every variant. Who compiles it is [`crate::jit`], which variant is taken
//! the device's business.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use parking_lot::Mutex;

use crate::catalogue::launch::{Grid, ROW_LANES};
use crate::params::{Action, Reduction, TensorParams, TensorSource, Width};
use crate::source::{self, Target, asserts};

/// What of the work a thread has, and how many share a block. No value changes a bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupVariant {
    /// Warps of a block.
    pub warps: u32,
    /// Elements of a thread that are loaded before the first is computed.
    pub unroll: u32,
    /// Threads that share a row of a reduction, a multiple of 16; of no other group.
    pub threads_per_row: u32,
}

impl GroupVariant {
    /// What is taken where nothing has been measured.
    pub const HEURISTIC: Self = Self { warps: 4, unroll: 1, threads_per_row: ROW_LANES };
    /// Values of `warps`.
    pub const WARPS: &[u32] = &[1, 2, 4, 8];
    /// Values of `unroll`.
    pub const UNROLL: &[u32] = &[1, 2, 4, 8];
    /// Values of `threads_per_row`.
    pub const THREADS_PER_ROW: &[u32] = &[16, 32, 64, 128, 256];

    /// Threads of a block.
    #[must_use]
    pub const fn threads(self) -> u32 {
        32 * self.warps
    }
}

/// What a group goes over: by this it is told what may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Elements, each by itself.
    Elements,
    /// Rows that are reduced.
    Rows,
    /// Columns that are reduced.
    Columns,
}

impl Form {
    /// Of the group that the parameters say.
    #[must_use]
    pub const fn of(params: &TensorParams) -> Self {
        match (params.reduce, params.inner) {
            (0, _) => Self::Elements,
            (_, 1) => Self::Rows,
            _ => Self::Columns,
        }
    }
}

/// The text of a kernel but for its name and variant. Groups that do the same at other addresses have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Generated {
    steps: &'static str,
    variant: GroupVariant,
}

/// Every text of this process, by its name.
static KNOWN: Mutex<BTreeMap<String, &'static str>> = Mutex::new(BTreeMap::new());

impl Generated {
    /// What the parameters say. A text stays as long as the process, as the code does that is made of it.
    #[must_use]
    pub fn of(params: &TensorParams, variant: GroupVariant) -> Self {
        let text = steps(params);
        let mut known = KNOWN.lock();
        let steps = *known.entry(name(&text)).or_insert_with(|| Box::leak(text.into_boxed_str()));
        Self { steps, variant }
    }

    /// The group of that name, where this process has met it.
    #[must_use]
    pub fn named(name: &str, variant: GroupVariant) -> Option<Self> {
        KNOWN.lock().get(name).map(|steps| Self { steps, variant })
    }

    /// What tells it from other groups: 16 hexadecimal digits, whatever the variant.
    #[must_use]
    pub fn name(self) -> String {
        name(self.steps)
    }

    /// Its symbol in the machine code.
    #[must_use]
    pub fn symbol(self) -> String {
        let GroupVariant { warps, unroll, threads_per_row } = self.variant;
        match self.variant {
            GroupVariant::HEURISTIC => format!("group_{}", self.name()),
            _ => format!("group_{}_w{warps}_u{unroll}_r{threads_per_row}", self.name()),
        }
    }

    /// Threads of a block.
    #[must_use]
    pub const fn threads(self) -> u32 {
        self.variant.threads()
    }

    /// Its grid: some elements, a column or a part of a row for each thread.
    #[must_use]
    pub fn grid(self, params: &TensorParams) -> Grid {
        let GroupVariant { unroll, threads_per_row, .. } = self.variant;
        let threads = match Form::of(params) {
            Form::Elements => params.elements.div_ceil(unroll),
            Form::Rows => params.outer.saturating_mul(threads_per_row),
            Form::Columns => params.outer.saturating_mul(params.inner),
        };
        [threads.div_ceil(self.threads()).max(1), 1, 1]
    }

    /// What is compiled.
    #[must_use]
    pub fn text(self) -> String {
        frame(self.steps, &self.symbol(), self.variant)
    }
}

fn name(steps: &str) -> String {
    source::digest([steps].into_iter())[..16].to_owned()
}

/// SHA-256 of what every such kernel is made from but its steps.
#[must_use]
pub fn hash(target: Target) -> String {
    source::hash_of(&frame("", "group", GroupVariant::HEURISTIC), target)
}

fn frame(steps: &str, symbol: &str, variant: GroupVariant) -> String {
    let GroupVariant { unroll, threads_per_row, .. } = variant;
    let threads = variant.threads();
    let mut text = String::from("#include \"group.cuh\"\n");
    asserts::<TensorSource>(&mut text);
    asserts::<TensorParams>(&mut text);
    text + steps
        + &format!(
            "extern \"C\" __global__ __launch_bounds__({threads}) void {symbol}(const __grid_constant__ TensorParams p) {{
    after_previous_launch();
    run_group<Steps, {threads}, {unroll}, {threads_per_row}>(p);
}}
"
        )
}

/// A group as the header takes it: an element's loads apart from what is done with them.
fn steps(params: &TensorParams) -> String {
    let TensorParams { reduce, elements, outer, length, inner, .. } = *params;
    let reduces = reduce != Reduction::None as u32;
    let [space, left] =
        if reduces { [outer * length * inner, outer * inner] } else { [elements, elements] };
    let (chain, tail) = (params.chain as usize, params.tail as usize);
    let mut code = format!(
        "struct Steps {{
    enum : u32 {{ reduce = {reduce}, elements = {elements}, outer = {outer}, length = {length}, inner = {inner} }};
    u32 own, loaded[{}];

    __device__ __forceinline__ void load(const TensorParams& p, bool tail, u32 element) {{
        if (tail) {{
",
        params.sources.len()
    );
    loads(&mut code, params, chain..tail, left);
    code += "            return;\n        }\n";
    loads(&mut code, params, 0..chain, space);
    code += "    }
    __device__ __forceinline__ void steps(const TensorParams& p, bool tail, u32 element) {
        if (tail) {
";
    part(&mut code, params, chain..tail, Some(params.into));
    code += "            return;\n        }\n";
    part(&mut code, params, 0..chain, None);
    if reduces {
        // Writing to a string cannot fail.
        let _ = writeln!(code, "        own = {};", operand(params, params.from as u8));
    }
    code + "    }\n};\n"
}

/// The loads of some of the steps, over a space of elements.
fn loads(code: &mut String, params: &TensorParams, steps: std::ops::Range<usize>, space: u32) {
    for [action, _, number, ..] in
        params.steps.as_flattened()[steps].iter().map(|s| s.to_le_bytes())
    {
        if action == Action::Load as u8 {
            let load = load(&params.sources[usize::from(number)], number, space);
            let _ = writeln!(code, "        {load}");
        }
    }
}

/// Some of the steps, with what was loaded for them; what was reduced is in a register.
fn part(
    code: &mut String,
    params: &TensorParams,
    steps: std::ops::Range<usize>,
    reduced: Option<u32>,
) {
    let all = params.steps.as_flattened();
    let lines = all[steps].iter().map(|step| line(params, step.to_le_bytes()));
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
fn line(params: &TensorParams, step: [u8; 8]) -> (Option<u8>, String) {
    let [action, out, a, b, c, ..] = step;
    if action == Action::Store as u8 {
        let value = operand(params, a);
        return (None, format!("stored(p.stores[{out}], {b}, element, {value});"));
    }
    if action == Action::Load as u8 {
        return (Some(out), format!("r{out} = loaded[{a}];"));
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
fn load(source: &TensorSource, number: u8, space: u32) -> String {
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
    code + &format!("loaded[{number}] = {outside}{value}; }}")
}
