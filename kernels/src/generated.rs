//! Generated kernels: one kernel for each fused group of tensor operations, with steps, shapes and
//! strides as code.
//!
//! A generated kernel takes the parameters of `tensor` but reads only the addresses. Each step
//! calls the same function as `tensor`, so every variant gives the same bits. [`crate::jit`]
//! compiles it; the device chooses the variant.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use parking_lot::Mutex;

use crate::catalogue::launch::{Grid, ROW_BLOCK, ROW_LANES};
use crate::params::{Action, Reduction, TensorParams, TensorSource, Width};
use crate::source::{self, Target};

/// Most threads that share a row: the largest block.
const MOST_PER_ROW: u32 = 256;

/// Distribution of a group's work over threads. No value changes a bit of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupVariant {
    /// Warps of a block.
    pub warps: u32,
    /// Elements that a thread loads before it computes the first.
    pub unroll: u32,
    /// Threads that share a row of a reduction, a multiple of 16. Unused by other groups.
    pub threads_per_row: u32,
}

/// SMs of an Orin.
const SMS: u32 = 16;
/// Threads that fill an Orin with a reduction's loads: four for each of an SM's 128 lanes, of which
/// one adds while three wait for memory.
const BUSY: u32 = SMS * 128 * 4;

impl GroupVariant {
    /// Default variant for a group with `rows` results of `length` elements each.
    #[must_use]
    pub fn heuristic(form: GroupForm, rows: u32, length: u32) -> Self {
        let plain = Self { warps: 4, unroll: 1, threads_per_row: ROW_LANES };
        if form != GroupForm::Rows {
            return plain;
        }
        // 16 neighbouring lanes read whole sectors. A row gets 16 threads per 256 columns, but no
        // more than keep the GPU busy: each thread adds the partial sums of all others.
        let spans = length.div_ceil(ROW_BLOCK).max(1);
        let enough = BUSY.div_ceil(rows.max(1)).min(spans.saturating_mul(ROW_LANES));
        let threads_per_row = Self::THREADS_PER_ROW.iter().copied().find(|n| *n >= enough);
        let threads_per_row = threads_per_row.unwrap_or(MOST_PER_ROW);
        // Distribute few rows over all SMs.
        let each = rows.saturating_mul(threads_per_row).div_ceil(32 * SMS);
        let warps = Self::WARPS.iter().copied().rev().find(|n| *n <= each.min(plain.warps));
        let warps = warps.unwrap_or(1).max(threads_per_row / 32);
        Self { warps, unroll: plain.unroll, threads_per_row }
    }

    /// Default variant for a group.
    #[must_use]
    pub fn of(params: &TensorParams) -> Self {
        let rows = params.outer.saturating_mul(params.inner);
        Self::heuristic(GroupForm::of(params), rows, params.length)
    }

    /// Allowed values of `warps`.
    pub const WARPS: &[u32] = &[1, 2, 4, 8];
    /// Allowed values of `unroll`.
    pub const UNROLL: &[u32] = &[1, 2, 4, 8];
    /// Allowed values of `threads_per_row`.
    pub const THREADS_PER_ROW: &[u32] = &[16, 32, 64, 128, MOST_PER_ROW];

    /// Threads of a block.
    #[must_use]
    pub const fn threads(self) -> u32 {
        32 * self.warps
    }
}

/// Iteration space of a group; determines which variants apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupForm {
    /// Elements, without a reduction.
    Elements,
    /// Rows, each reduced to one value.
    Rows,
    /// Columns, each reduced to one value.
    Columns,
}

impl GroupForm {
    /// Form of the group that the parameters describe.
    #[must_use]
    pub const fn of(params: &TensorParams) -> Self {
        match (params.reduce, params.inner) {
            (0, _) => Self::Elements,
            (_, 1) => Self::Rows,
            _ => Self::Columns,
        }
    }
}

/// Source of a generated kernel. Groups that differ only in addresses share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Generated {
    group: &'static GroupSource,
    variant: GroupVariant,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct GroupSource {
    steps: String,
    heuristic: GroupVariant,
}

/// Every group that this process has used, by name.
static KNOWN: Mutex<BTreeMap<String, &'static GroupSource>> = Mutex::new(BTreeMap::new());

impl Generated {
    /// Kernel for the group that the parameters describe. Its source is leaked, as its machine code
    /// is.
    #[must_use]
    pub fn of(params: &TensorParams, variant: GroupVariant) -> Self {
        let group = GroupSource { steps: steps(params), heuristic: GroupVariant::of(params) };
        let mut known = KNOWN.lock();
        let name = name(&group.steps);
        let group = *known.entry(name).or_insert_with(|| Box::leak(Box::new(group)));
        Self { group, variant }
    }

    /// Group of this name, if this process has used it.
    #[must_use]
    pub fn named(name: &str, variant: GroupVariant) -> Option<Self> {
        KNOWN.lock().get(name).map(|group| Self { group, variant })
    }

    /// Name of the group: 16 hexadecimal digits, the same for every variant.
    #[must_use]
    pub fn name(self) -> String {
        name(&self.group.steps)
    }

    /// Symbol in the machine code; contains the variant unless it is the default one.
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

    /// Grid of the launch.
    #[must_use]
    pub fn grid(self, params: &TensorParams) -> Grid {
        let GroupVariant { unroll, threads_per_row, .. } = self.variant;
        let threads = match GroupForm::of(params) {
            GroupForm::Elements => params.elements.div_ceil(unroll),
            GroupForm::Rows => params.outer.saturating_mul(threads_per_row),
            GroupForm::Columns => params.outer.saturating_mul(params.inner),
        };
        [threads.div_ceil(self.threads()).max(1), 1, 1]
    }

    /// CUDA source of the kernel.
    #[must_use]
    pub fn text(self) -> String {
        frame(&self.group.steps, &self.symbol(), self.variant)
    }
}

fn name(steps: &str) -> String {
    source::digest([steps].into_iter())[..16].to_owned()
}

/// SHA-256 of everything that generated kernels share: headers, options and target, without their
/// steps.
#[must_use]
pub fn hash(target: Target) -> String {
    let variant = GroupVariant::heuristic(GroupForm::Elements, 1, 1);
    source::hash_of(&frame("", "group", variant), target)
}

fn frame(steps: &str, symbol: &str, variant: GroupVariant) -> String {
    let GroupVariant { unroll, threads_per_row, .. } = variant;
    let threads = variant.threads();
    String::from("#include \"group.cuh\"\n") + steps
        + &format!(
            "extern \"C\" __global__ __launch_bounds__({threads}) void {symbol}(const __grid_constant__ TensorParams p) {{
    after_previous_launch();
    run_group<Steps, {threads}, {unroll}, {threads_per_row}>(p);
}}
"
        )
}

/// `Steps`, as `group.cuh` requires it: the loads of an element separate from its computation.
fn steps(params: &TensorParams) -> String {
    let TensorParams { reduce, elements, outer, length, inner, .. } = *params;
    let reduces = reduce != Reduction::None as u32;
    let [space, left] =
        if reduces { [outer * length * inner, outer * inner] } else { [elements, elements] };
    let (body, tail) = (params.body as usize, params.tail as usize);
    let mut code = format!(
        "struct Steps {{
    enum : u32 {{ reduce = {reduce}, elements = {elements}, outer = {outer}, length = {length}, inner = {inner} }};
    u32 own, loaded[{}];

    __device__ __forceinline__ void load(const TensorParams& p, bool tail, u32 element) {{
        if (tail) {{
",
        params.sources.len()
    );
    loads(&mut code, params, body..tail, left);
    code += "            return;\n        }\n";
    loads(&mut code, params, 0..body, space);
    code += "    }
    __device__ __forceinline__ void steps(const TensorParams& p, bool tail, u32 element) {
        if (tail) {
";
    part(&mut code, params, body..tail, Some(params.into));
    code += "            return;\n        }\n";
    part(&mut code, params, 0..body, None);
    if reduces {
        // Writing to a string cannot fail.
        let _ = writeln!(code, "        own = {};", operand(params, params.from as u8));
    }
    code + "    }\n};\n"
}

/// Loads among some of the steps, over a space of elements.
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

/// Computation of some of the steps. `reduced` is the register that receives the reduction's
/// result.
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

/// Name of a register, or the constant it contains.
fn operand(params: &TensorParams, register: u8) -> String {
    match params.constants.get(usize::from(register)) {
        Some(bits) => format!("{bits:#x}u"),
        None => format!("r{register}"),
    }
}

/// Code of a step, and the register that it writes.
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
    let value = if action == Action::Iota as u8 {
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

/// Code that loads an element of a source.
fn load(source: &TensorSource, number: u8, space: u32) -> String {
    let axes = source.axes as usize;
    let shape = &source.shape[..axes];
    let whole = shape.iter().product::<u32>() == space;
    let (mut code, mut left) = (String::from("{ u32 place = 0; "), String::from("element"));
    let mut outside = String::new();
    for (axis, (extent, stride)) in shape.iter().zip(source.strides).enumerate().rev() {
        // The outermost index needs no remainder.
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
