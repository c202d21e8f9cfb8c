//! A kernel of its own for a group of tensor operations: what `tensor` looks up for each element, its steps, shapes and
//! strides, is code here.
//!
//! Such a kernel takes the parameters that `tensor` takes, of which it reads the addresses alone, and each step is
//! the same function: it gives the same bits, in every variant. Who compiles it is [`crate::jit`], which variant is taken
//! the device's business.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use parking_lot::Mutex;

use crate::catalogue::launch::{Grid, ROW_BLOCK, ROW_LANES};
use crate::params::{Action, Reduction, TensorParams, TensorSource, Width};
use crate::source::{self, Target, asserts};

/// Threads that share a row at most: a block of the most warps.
const MOST_PER_ROW: u32 = 256;

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

/// Multiprocessors of an Orin.
const SMS: u32 = 16;
/// Threads that have a reduction's loads under way on all of them: four for each of an SM's 128 lanes, of which one
/// adds while the others wait for memory.
const BUSY: u32 = SMS * 128 * 4;

impl GroupVariant {
    /// What is taken where nothing has been measured, for a group with so many results, each of so many elements.
    #[must_use]
    pub fn heuristic(form: Form, rows: u32, length: u32) -> Self {
        let plain = Self { warps: 4, unroll: 1, threads_per_row: ROW_LANES };
        if form != Form::Rows {
            return plain;
        }
        // Lanes read neighbours: 16 whole sectors, and as many columns of 256 at a time as have threads. What these come
        // to every thread of a row adds up, so there are no more than keep the GPU busy.
        let spans = length.div_ceil(ROW_BLOCK).max(1);
        let enough = BUSY.div_ceil(rows.max(1)).min(spans.saturating_mul(ROW_LANES));
        let threads_per_row = Self::THREADS_PER_ROW.iter().copied().find(|n| *n >= enough);
        let threads_per_row = threads_per_row.unwrap_or(MOST_PER_ROW);
        // Few rows are apart, so that each SM has some.
        let each = rows.saturating_mul(threads_per_row).div_ceil(32 * SMS);
        let warps = Self::WARPS.iter().copied().rev().find(|n| *n <= each.min(plain.warps));
        let warps = warps.unwrap_or(1).max(threads_per_row / 32);
        Self { warps, unroll: plain.unroll, threads_per_row }
    }

    /// What is taken for a group where nothing has been measured.
    #[must_use]
    pub fn of(params: &TensorParams) -> Self {
        let rows = params.outer.saturating_mul(params.inner);
        Self::heuristic(Form::of(params), rows, params.length)
    }

    /// Values of `warps`.
    pub const WARPS: &[u32] = &[1, 2, 4, 8];
    /// Values of `unroll`.
    pub const UNROLL: &[u32] = &[1, 2, 4, 8];
    /// Values of `threads_per_row`.
    pub const THREADS_PER_ROW: &[u32] = &[16, 32, 64, 128, MOST_PER_ROW];

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
    group: &'static Group,
    variant: GroupVariant,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Group {
    steps: String,
    heuristic: GroupVariant,
}

/// Every group of this process, by its name.
static KNOWN: Mutex<BTreeMap<String, &'static Group>> = Mutex::new(BTreeMap::new());

impl Generated {
    /// What the parameters say. A text stays as long as the process, as the code does that is made of it.
    #[must_use]
    pub fn of(params: &TensorParams, variant: GroupVariant) -> Self {
        let group = Group { steps: steps(params), heuristic: GroupVariant::of(params) };
        let mut known = KNOWN.lock();
        let name = name(&group.steps);
        let group = *known.entry(name).or_insert_with(|| Box::leak(Box::new(group)));
        Self { group, variant }
    }

    /// The group of that name, where this process has met it.
    #[must_use]
    pub fn named(name: &str, variant: GroupVariant) -> Option<Self> {
        KNOWN.lock().get(name).map(|group| Self { group, variant })
    }

    /// What tells it from other groups: 16 hexadecimal digits, whatever the variant.
    #[must_use]
    pub fn name(self) -> String {
        name(&self.group.steps)
    }

    /// Its symbol in the machine code, with what is not as where nothing has been measured.
    #[must_use]
    pub fn symbol(self) -> String {
        let GroupVariant { warps, unroll, threads_per_row } = self.variant;
        let name = self.name();
        if self.variant == self.group.heuristic {
            return format!("group_{name}");
        }
        format!("group_{name}_w{warps}_u{unroll}_r{threads_per_row}")
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
        frame(&self.group.steps, &self.symbol(), self.variant)
    }
}

fn name(steps: &str) -> String {
    source::digest([steps].into_iter())[..16].to_owned()
}

/// SHA-256 of what every such kernel is made from but its steps.
#[must_use]
pub fn hash(target: Target) -> String {
    let variant = GroupVariant::heuristic(Form::Elements, 1, 1);
    source::hash_of(&frame("", "group", variant), target)
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
