//! Groups of tensor operations, as `plan::schedule` makes them, on blocks of elements.
//!
//! A group becomes a few instructions over registers of [`BLOCK`] values, which stay in the first-level cache: what
//! nobody reads later never leaves them. An operand that lies in memory as the group's space does is read where it is,
//! and a result written where it belongs. Every element is computed by one thread in one order, so results do not
//! depend on how many there are.

use std::collections::HashMap;
use std::ops::Range;

use super::memory::unsupported;
use super::pool::Worker;
use crate::Result;
use plan::{Binary, BufferId, Class, DType, Group, Op, Plan, Reduce, Step, Unary, View};
use simd::Isa;
use simd::dense::{self, Addend, Finish, Function};
use simd::scores;
use simd::tensor::{self, Conversion, First, Narrow, Second};

mod named;
mod softmax;

pub(super) use softmax::Softmax;

/// Values of a register.
pub(super) const BLOCK: usize = 256;

/// Most axes of a view that is not dense.
const RANK: usize = 12;

/// Elements of a last axis whose lines are written several at a time.
const SHORT: usize = 16;

/// Elements that a thread takes at a time.
pub(super) const CLAIM: usize = 32 * BLOCK;

/// Where the values of a block are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Register(usize),
    /// In memory, the first element of the space there.
    At(*mut f32),
}

/// What an instruction does with up to three operands.
#[derive(Clone, Debug)]
enum Action {
    Unary(Unary),
    Binary(Binary),
    Ints(Binary),
    /// Two operations, the second with what the first gives.
    Two(First, Second),
    Select,
    /// `1 / (1 + exp(-x))`
    Sigmoid,
    /// No less than a number, or no more.
    Bounded(bool, f32),
    Convert(Conversion),
    Move,
    /// The number of each element.
    Iota,
    Load(Source),
    /// What lies side by side along an axis, plus 0; nothing is done where a part is in its place.
    Join(Vec<Source>),
    /// Stored in fewer bytes.
    Narrow(*mut u8, Narrow),
}

#[derive(Clone, Debug)]
struct Instruction {
    action: Action,
    reads: Vec<Place>,
    out: Place,
}

/// A group with its addresses. A constant's register is filled before the first block.
#[derive(Clone, Debug)]
pub(super) struct Kernel {
    elements: usize,
    constants: Vec<(usize, u32)>,
    chain: Vec<Instruction>,
    reduction: Option<Reduction>,
    tail: Vec<Instruction>,
    registers: usize,
}

/// `x [outer, length, inner]` to `[outer, inner]`.
#[derive(Clone, Debug)]
struct Reduction {
    op: Reduce,
    of_ints: bool,
    outer: usize,
    length: usize,
    inner: usize,
    x: Place,
    out: Place,
}

/// How elements are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// In 4 bytes.
    Word,
    Less(Narrow),
}

impl Width {
    pub(super) const fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 | DType::I32 => Some(Self::Word),
            DType::F16 => Some(Self::Less(Narrow::Half)),
            DType::BF16 => Some(Self::Less(Narrow::Brain)),
            DType::I8 => Some(Self::Less(Narrow::Signed)),
            DType::U8 | DType::BOOL => Some(Self::Less(Narrow::Unsigned)),
            _ => None,
        }
    }

    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::Word => 4,
            Self::Less(narrow) => narrow.bytes(),
        }
    }
}

/// Elements in the order of a shape, wherever they lie.
#[derive(Clone, Debug)]
pub(super) struct Source {
    base: *const u8,
    width: Width,
    shape: Vec<usize>,
    strides: Vec<isize>,
    /// Elements whose place on this axis is outside of the range are zeroes; inside, the first is at `base`.
    inside: Option<(usize, Range<usize>)>,
    /// Whether they are where they are to go.
    there: bool,
}

impl Source {
    /// Elements that are strides apart, from `base` on; neighbouring axes that lie as one become one.
    ///
    /// # Errors
    /// More axes than [`RANK`] are left.
    pub(super) fn new(
        base: *const u8,
        width: Width,
        shape: &[usize],
        strides: &[isize],
    ) -> Result<Self> {
        let (mut axes, mut steps) = (Vec::new(), Vec::new());
        for (&n, &stride) in shape.iter().zip(strides).filter(|(n, _)| **n != 1) {
            match (axes.last_mut(), steps.last_mut()) {
                (Some(extent), Some(step)) if *step == stride * n.cast_signed() => {
                    *extent *= n;
                    *step = stride;
                }
                _ => {
                    axes.push(n);
                    steps.push(stride);
                }
            }
        }
        if axes.is_empty() {
            (axes, steps) = (vec![1], vec![0]);
        }
        Self { base, width, shape: axes, strides: steps, inside: None, there: false }.checked()
    }

    /// The elements of a view that lie `before` places into an axis of `shape`, and zeroes around them.
    fn padded(
        base: *const u8,
        width: Width,
        x: &View,
        shape: &[usize],
        axis: usize,
        before: usize,
    ) -> Result<Self> {
        // Axes before and after it that lie as one are one.
        let part = |range: Range<usize>| {
            let (shape, strides) = (&shape[range.clone()], &x.strides[range]);
            Self::new(base, width, shape, strides)
        };
        let (heads, mut tail) = (part(0..axis)?, part(axis + 1..shape.len())?);
        if tail.shape == [1] {
            (tail.shape, tail.strides) = (vec![], vec![]);
        }
        let inside = Some((heads.shape.len(), before..before + x.shape[axis]));
        let shape = [&heads.shape[..], &[shape[axis]], &tail.shape].concat();
        let strides = [&heads.strides[..], &[x.strides[axis]], &tail.strides].concat();
        Self { base, width, shape, strides, inside, there: false }.checked()
    }

    fn checked(self) -> Result<Self> {
        if self.shape.len() <= RANK {
            return Ok(self);
        }
        Err(unsupported(format!("a view of {} axes, {RANK} are the most", self.shape.len())))
    }

    /// Elements from one of the axis with zeroes to the next, elements of that, and those that are none of them.
    fn part(&self) -> Option<(usize, usize, Range<usize>)> {
        let (axis, inside) = self.inside.clone()?;
        Some((self.shape[axis + 1..].iter().product(), self.shape[axis], inside))
    }

    /// Whether its zeroes are where another has elements of the same axis, and the other way round.
    fn beside(&self, other: &Self) -> bool {
        let (Some((inner, extent, own)), Some((i, e, theirs))) = (self.part(), other.part()) else {
            return false;
        };
        let plain = |source: &Self| {
            matches!(source.width, Width::Word | Width::Less(Narrow::Half | Narrow::Brain))
        };
        let apart = own.end <= theirs.start || theirs.end <= own.start;
        (inner, extent) == (i, e) && apart && plain(self) && plain(other)
    }

    /// Whether its elements lie one after the other as they are to go, where that begins at `out`.
    fn is_there(&self, out: *mut f32) -> bool {
        let (Some((axis, _)), Some((inner, _, own))) = (&self.inside, self.part()) else {
            return false;
        };
        let mut next = 1;
        let dense = (*axis..self.shape.len()).rev().all(|axis| {
            let step = next;
            next *= self.shape[axis].cast_signed();
            self.shape[axis] == 1 || self.strides[axis] == step
        });
        let one = self.shape[..*axis].iter().all(|extent| *extent == 1);
        let place = out.wrapping_add(own.start * inner).cast_const().cast();
        one && dense && self.width == Width::Word && self.base == place
    }

    /// The first element of a row of so many that is the same for all.
    fn row(&self, columns: usize) -> Option<*const f32> {
        let row = self.inside.is_none() && self.width == Width::Word;
        let repeats = matches!(self.strides[..], [0, 1]) && self.shape[1] == columns;
        (row && repeats).then_some(self.base.cast())
    }

    /// Whether a number of elements lie one after the other.
    pub(super) fn is_dense(&self) -> bool {
        self.inside.is_none() && self.strides == [1]
    }

    /// Writes `n` values from the `start`th on to `out`, widened to 4 bytes; all of them `shift` elements further on.
    ///
    /// # Safety
    ///
    /// The elements are there, one at least; `out` is valid for `n` values.
    pub(super) unsafe fn fill(
        &self,
        isa: Isa,
        shift: usize,
        start: usize,
        n: usize,
        out: *mut f32,
    ) {
        let last = self.shape.len() - 1;
        let mut index = [0; RANK];
        let mut left = start;
        for axis in (0..=last).rev() {
            index[axis] = left % self.shape[axis];
            left /= self.shape[axis];
        }
        let mut done = 0;
        while done < n {
            if let Some(lines) = self.short_lines(&index[..=last], n - done) {
                // SAFETY: the caller's contract; the lines stay in the last two axes.
                unsafe { self.lines(shift, &index[..=last], lines, out.add(done)) };
                done += lines * self.shape[last];
                index[last - 1] += lines - 1;
                index[last] = self.shape[last];
            }
            let run = (self.shape[last] - index[last]).min(n - done);
            if run > 0 {
                // SAFETY: the caller's contract; the run stays in the last axis.
                unsafe { self.run(isa, shift, &index[..=last], run, out.add(done)) };
            }
            done += run;
            index[last] += run;
            let mut axis = last;
            while axis > 0 && index[axis] == self.shape[axis] {
                index[axis] = 0;
                axis -= 1;
                index[axis] += 1;
            }
        }
    }

    /// How many whole lines of the last axis come next among `n` elements, where these are short.
    fn short_lines(&self, index: &[usize], n: usize) -> Option<usize> {
        let [.., line, 0] = index else { return None };
        let [.., lines, length] = self.shape[..] else { return None };
        let plain = self.inside.is_none() && self.width == Width::Word && length <= SHORT;
        Some((lines - line).min(n / length)).filter(|lines| plain && *lines > 1)
    }

    /// Writes whole lines of the last axis.
    ///
    /// # Safety
    ///
    /// As for [`Source::fill`].
    unsafe fn lines(&self, shift: usize, index: &[usize], lines: usize, out: *mut f32) {
        let places = index.iter().zip(&self.strides).map(|(i, stride)| i.cast_signed() * stride);
        let at = shift.cast_signed() + places.sum::<isize>();
        let last = self.strides.len() - 1;
        let (line, step, length) = (self.strides[last - 1], self.strides[last], self.shape[last]);
        // SAFETY: the caller's contract.
        unsafe {
            let base = self.base.cast::<f32>().offset(at);
            if let (2, 0, 1) = (length, step, line) {
                for i in 0..lines {
                    let value = *base.add(i);
                    out.add(2 * i).cast::<[f32; 2]>().write_unaligned([value, value]);
                }
                return;
            }
            for i in 0..lines {
                let base = base.offset(i.cast_signed() * line);
                for j in 0..length {
                    *out.add(i * length + j) = *base.offset(j.cast_signed() * step);
                }
            }
        }
    }

    /// Writes `n` values along the last axis.
    ///
    /// # Safety
    ///
    /// As for [`Source::fill`].
    unsafe fn run(&self, isa: Isa, shift: usize, index: &[usize], n: usize, out: *mut f32) {
        let last = self.shape.len() - 1;
        let mut at = shift.cast_signed();
        let mut from = 0..n;
        for (axis, (&i, &stride)) in index.iter().zip(&self.strides).enumerate() {
            let mut place = i;
            if let Some((_, inside)) = self.inside.as_ref().filter(|(of, _)| *of == axis) {
                if axis == last {
                    let start = inside.start.clamp(i, i + n);
                    from = start - i..inside.end.clamp(start, i + n) - i;
                    place = start.wrapping_sub(inside.start);
                } else if inside.contains(&i) {
                    place = i - inside.start;
                } else {
                    from = 0..0;
                }
            }
            if !from.is_empty() {
                at += place.cast_signed() * stride;
            }
        }
        let (step, count) = (self.strides[last], from.len());
        // SAFETY: the caller's contract: the elements of the range are there.
        unsafe {
            out.write_bytes(0, from.start);
            out.add(from.end).write_bytes(0, n - from.end);
            let out = out.add(from.start);
            let bytes = self.width.bytes().cast_signed();
            let base = self.base.offset(if count == 0 { 0 } else { at * bytes });
            match (self.width, step) {
                (Width::Word, 1) => out.copy_from_nonoverlapping(base.cast(), count),
                (Width::Word, 0) if count > 0 => {
                    let value = *base.cast::<f32>();
                    std::slice::from_raw_parts_mut(out, count).fill(value);
                }
                (Width::Word, step) if step > 0 => {
                    dense::every(isa, base.cast(), step.unsigned_abs(), out, count);
                }
                (Width::Word, step) => {
                    for i in 0..count {
                        *out.add(i) = *base.cast::<f32>().offset(i.cast_signed() * step);
                    }
                }
                (Width::Less(from), 1) => tensor::widen(isa, from, base, out, count),
                (Width::Less(from), step) => {
                    for i in 0..count {
                        let at = base.offset(i.cast_signed() * step * bytes);
                        *out.add(i) = tensor::widened(from, at);
                    }
                }
            }
        }
    }
}

/// Registers that a group takes at most.
pub(super) fn registers(plan: &Plan, group: &Group) -> usize {
    // Two hold the sums of a reduction, in `f64`.
    let of = |step: &Step| step.op.reads().len() + step.op.writes().len();
    plan.steps[group.steps.clone()].iter().map(of).sum::<usize>() + 2
}

/// Makes instructions of steps.
struct Compiler<'a> {
    plan: &'a Plan,
    group: &'a Group,
    /// Address and width of a view's first element.
    locate: &'a dyn Fn(&View) -> Result<(*mut u8, Width)>,
    constants: Vec<(usize, u32)>,
    /// Of what the steps have written.
    places: HashMap<BufferId, Place>,
    /// Of what they have loaded.
    loaded: Vec<(View, Place)>,
    registers: usize,
}

impl Kernel {
    /// The kernel of a group whose views lie where `locate` says.
    ///
    /// # Errors
    /// Those of `locate`.
    pub(super) fn new(
        plan: &Plan,
        group: &Group,
        locate: &dyn Fn(&View) -> Result<(*mut u8, Width)>,
    ) -> Result<Self> {
        Ok(Self::steps(plan, group, locate)?.ready())
    }

    /// The same step by step, before it is [`ready`](Self::ready).
    ///
    /// # Errors
    /// Those of `locate`.
    pub(super) fn steps(
        plan: &Plan,
        group: &Group,
        locate: &dyn Fn(&View) -> Result<(*mut u8, Width)>,
    ) -> Result<Self> {
        let mut compiler = Compiler {
            plan,
            group,
            locate,
            constants: Vec::new(),
            places: HashMap::new(),
            loaded: Vec::new(),
            registers: 0,
        };
        let [before, after] = group.chains(plan);
        let mut chain = compiler.chain(before)?;
        let mut reduction = None;
        let mut elements = before.last().map_or(0, |step| step.op.writes()[0].elements());
        let mut tail = Vec::new();
        if let Some(Op::Reduce { op, axis, x, out }) = group.reduce.map(|at| &plan.steps[at].op) {
            elements = x.elements();
            let x_place = compiler.operand(x, false, &mut chain)?;
            compiler.loaded.clear();
            reduction = Some(Reduction {
                op: *op,
                of_ints: plan.buffer(out.buffer).dtype == DType::I32,
                outer: x.shape[..*axis].iter().product(),
                length: x.shape[*axis],
                inner: x.shape[axis + 1..].iter().product(),
                x: x_place,
                out: compiler.result(out)?.0,
            });
            tail = compiler.chain(after)?;
        }
        let mut kernel = Self {
            elements,
            constants: compiler.constants,
            chain,
            reduction,
            tail,
            registers: compiler.registers,
        };
        kernel.name();
        Ok(kernel)
    }

    /// The kernel, ready to be run: no more is asked about its steps.
    pub(super) fn ready(mut self) -> Self {
        self.pair();
        self.share_registers();
        self
    }

    /// Elements put one after the other.
    pub(super) fn copy(source: Source, elements: usize, to: *mut f32) -> Self {
        let action = Action::Load(source);
        let load = Instruction { action, reads: Vec::new(), out: Place::At(to) };
        let (chain, tail, constants) = (vec![load], Vec::new(), Vec::new());
        Self { elements, constants, chain, reduction: None, tail, registers: 0 }
    }

    /// Whether there is nothing to be done: all is where it belongs.
    pub(super) fn is_done(&self) -> bool {
        let [Instruction { action: Action::Join(parts), .. }] = &self.chain[..] else {
            return false;
        };
        let elements = |part: &Source| part.part().map_or(0, |(inner, _, own)| inner * own.len());
        let there = parts.iter().filter(|part| part.there).map(elements).sum::<usize>();
        self.reduction.is_none() && there == self.elements
    }

    /// The same as what a product does with its results before it writes them, where it is that: these are at `place`, in
    /// rows of so many `columns`, and what becomes of them goes there too. A row
    /// may be added to each, where rows may repeat.
    pub(super) fn finish(
        &self,
        place: *mut f32,
        columns: usize,
        rows_repeat: bool,
    ) -> Option<Finish> {
        let mut finish = Finish::default();
        let (mut x, mut rows) = (Place::At(place), HashMap::new());
        // A sigmoid of it that waits to be multiplied with.
        let mut open = None;
        for (i, Instruction { action, reads, out }) in self.chain.iter().enumerate() {
            if matches!(out, Place::At(_)) != (i + 1 == self.chain.len()) {
                return None;
            }
            let other = match reads[..] {
                [a, b] if a == x && b != x => Some(b),
                [a, b] if b == x && a != x => Some(a),
                _ => None,
            };
            let bare = finish.function == Function::Same && finish.last.is_none();
            match (action, other) {
                (Action::Load(source), _) if rows_repeat => {
                    rows.insert(*out, source.row(columns)?);
                    continue;
                }
                (Action::Sigmoid, _) if bare && reads[..] == [x] && open.is_none() => {
                    open = Some(*out);
                    continue;
                }
                (Action::Binary(Binary::Mul), Some(other)) if open == Some(other) => {
                    (finish.function, open) = (Function::Silu, None);
                }
                (Action::Binary(Binary::Add), Some(other)) if open.is_none() => {
                    let addend = match (other, rows.get(&other)) {
                        (_, Some(at)) => Addend { at: *at, stride: 0 },
                        (Place::At(at), _) if at != place => Addend { at, stride: columns },
                        _ => return None,
                    };
                    let [first, second] = &mut finish.plus;
                    let to = match bare {
                        true if first.is_none() => first,
                        true if second.is_none() => second,
                        false if finish.last.is_none() => &mut finish.last,
                        _ => return None,
                    };
                    *to = Some(addend);
                }
                (Action::Bounded(true, least), _) if bare && reads[..] == [x] => {
                    finish.function = Function::Between(*least, f32::INFINITY);
                }
                (Action::Bounded(false, most), _) if reads[..] == [x] => match finish.function {
                    Function::Between(least, f32::INFINITY) if finish.last.is_none() => {
                        finish.function = Function::Between(least, *most);
                    }
                    _ => return None,
                },
                _ => return None,
            }
            x = *out;
        }
        (x == Place::At(place) && open.is_none()).then_some(finish)
    }

    /// Gives registers that are no longer read to later results.
    fn share_registers(&mut self) {
        let mut taken: HashMap<usize, usize> = HashMap::new();
        let mut count = 0;
        let mut pinned = |register: &mut usize, taken: &mut HashMap<usize, usize>| {
            *register = *taken.entry(*register).or_insert_with(|| {
                count += 1;
                count - 1
            });
        };
        for (register, _) in &mut self.constants {
            pinned(register, &mut taken);
        }
        if let Some(reduction) = &mut self.reduction {
            for place in [&mut reduction.x, &mut reduction.out] {
                if let Place::Register(register) = place {
                    pinned(register, &mut taken);
                }
            }
        }
        let fixed = taken;
        let first = count;
        for instructions in [&mut self.chain, &mut self.tail] {
            let mut last = HashMap::new();
            for (at, instruction) in instructions.iter().enumerate() {
                for place in instruction.reads.iter().chain([&instruction.out]) {
                    if let Place::Register(register) = place {
                        last.insert(*register, at);
                    }
                }
            }
            let (mut now, mut free, mut next) = (HashMap::new(), Vec::new(), first);
            for (at, instruction) in instructions.iter_mut().enumerate() {
                let Instruction { reads, out, .. } = instruction;
                let mut ended = Vec::new();
                for place in reads.iter_mut().chain([out]) {
                    let Place::Register(register) = place else { continue };
                    let virtual_one = *register;
                    if let Some(fixed) = fixed.get(&virtual_one) {
                        *register = *fixed;
                        continue;
                    }
                    *register = *now.entry(virtual_one).or_insert_with(|| {
                        free.pop().unwrap_or_else(|| {
                            next += 1;
                            next - 1
                        })
                    });
                    if last.get(&virtual_one) == Some(&at) && !ended.contains(register) {
                        ended.push(*register);
                    }
                }
                free.extend(ended);
            }
            count = count.max(next);
        }
        self.registers = count;
    }

    /// This thread's share, with `4 * BLOCK` bytes of scratch for each register and two more.
    ///
    /// # Safety
    ///
    /// The addresses are valid, all threads are in this kernel, and nobody else touches what it writes.
    pub(super) unsafe fn run(&self, isa: Isa, w: &Worker<'_>, scratch: *mut f32) {
        // SAFETY: the caller's contract; blocks stay inside the space, and no two threads have the same.
        unsafe {
            self.begin(scratch);
            match &self.reduction {
                None => {
                    while let Some(part) = w.claim(self.elements, CLAIM) {
                        for start in part.clone().step_by(BLOCK) {
                            let n = BLOCK.min(part.end - start);
                            execute(&self.chain, isa, scratch, start, n);
                        }
                    }
                }
                Some(reduction) if reduction.inner == 1 => {
                    let claim = (CLAIM / reduction.length.max(1)).clamp(1, BLOCK);
                    while let Some(rows) = w.claim(reduction.outer, claim) {
                        self.reduced(reduction, isa, rows, scratch);
                    }
                }
                Some(reduction) => self.columns(reduction, isa, w, scratch),
            }
        }
    }

    /// Fills the constants' registers.
    ///
    /// # Safety
    ///
    /// The scratch is as [`Kernel::run`] wants it.
    pub(super) unsafe fn begin(&self, scratch: *mut f32) {
        for (register, bits) in &self.constants {
            // SAFETY: the caller's contract.
            let values =
                unsafe { std::slice::from_raw_parts_mut(scratch.add(register * BLOCK), BLOCK) };
            values.fill(f32::from_bits(*bits));
        }
    }

    /// A piece of the space of a group that does not reduce, of at most [`BLOCK`] elements, after [`Kernel::begin`].
    ///
    /// # Safety
    ///
    /// As for [`Kernel::run`], and nobody else does this piece.
    pub(super) unsafe fn piece(&self, isa: Isa, scratch: *mut f32, start: usize, n: usize) {
        // SAFETY: the caller's contract.
        unsafe { execute(&self.chain, isa, scratch, start, n) }
    }

    /// Some rows, of so many elements, of a space; at most a block of them where they are added up, after [`Kernel::begin`].
    ///
    /// # Safety
    ///
    /// As for [`Kernel::run`], and nobody else does these rows.
    pub(super) unsafe fn rows(
        &self,
        isa: Isa,
        rows: Range<usize>,
        length: usize,
        scratch: *mut f32,
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            if let Some(reduction) = &self.reduction {
                return self.reduced(reduction, isa, rows, scratch);
            }
            let (first, end) = (rows.start * length, rows.end * length);
            for start in (first..end).step_by(BLOCK) {
                execute(&self.chain, isa, scratch, start, BLOCK.min(end - start));
            }
        }
    }

    /// Rows that become a value each, at most a block of them.
    ///
    /// # Safety
    ///
    /// As for [`Kernel::rows`].
    unsafe fn reduced(&self, r: &Reduction, isa: Isa, outputs: Range<usize>, scratch: *mut f32) {
        // Short rows go through the chain together.
        let together = (BLOCK / r.length.max(1)).max(1);
        for first in outputs.clone().step_by(together) {
            let count = together.min(outputs.end - first);
            let mut sums = Sums::new(r);
            let span = count * r.length;
            // SAFETY: the caller's contract.
            unsafe {
                if count > 1 {
                    execute(&self.chain, isa, scratch, first * r.length, span);
                }
                for row in first..first + count {
                    for at in (0..r.length).step_by(BLOCK) {
                        let (start, n) = (row * r.length + at, BLOCK.min(r.length - at));
                        let mut x = pointer(r.x, scratch, start);
                        if count == 1 {
                            execute(&self.chain, isa, scratch, start, n);
                        } else if let Place::Register(_) = r.x {
                            x = x.add((row - first) * r.length);
                        }
                        sums.take(r, isa, x, n);
                    }
                    let out = match r.out {
                        Place::Register(at) => scratch.add(at * BLOCK + row - outputs.start),
                        Place::At(base) => base.add(row),
                    };
                    *out = sums.end(r);
                }
            }
        }
        // SAFETY: the caller's contract.
        unsafe { execute(&self.tail, isa, scratch, outputs.start, outputs.len()) };
    }

    /// Rows that are added up column by column.
    ///
    /// # Safety
    ///
    /// As for [`Kernel::run`].
    unsafe fn columns(&self, r: &Reduction, isa: Isa, w: &Worker<'_>, scratch: *mut f32) {
        let strips = r.inner.div_ceil(BLOCK);
        // Narrow rows go through the chain together.
        let together = (BLOCK / r.inner.max(1)).max(1);
        // SAFETY: behind the registers there is room for a block of `f64`.
        let sums = unsafe { scratch.add(self.registers * BLOCK) };
        while let Some(units) = w.claim(r.outer * strips, 1) {
            for unit in units {
                let (outer, first) = (unit / strips, unit % strips * BLOCK);
                let columns = BLOCK.min(r.inner - first);
                let mut block = ColumnSums::new(r, sums, columns);
                for row in (0..r.length).step_by(together) {
                    let rows = together.min(r.length - row);
                    let start = (outer * r.length + row) * r.inner + first;
                    // SAFETY: the caller's contract.
                    unsafe {
                        execute(&self.chain, isa, scratch, start, (rows - 1) * r.inner + columns);
                        let x = pointer(r.x, scratch, start);
                        for row in 0..rows {
                            block.take(r, isa, x.add(row * r.inner));
                        }
                    }
                }
                let start = outer * r.inner + first;
                // SAFETY: the caller's contract.
                unsafe {
                    block.end(r, pointer(r.out, scratch, start));
                    execute(&self.tail, isa, scratch, start, columns);
                }
            }
        }
    }
}

/// What a row has come to so far.
struct Sums {
    sum: f64,
    largest: f32,
    ints: i32,
}

impl Sums {
    const fn new(r: &Reduction) -> Self {
        Self { sum: 0.0, largest: f32::NEG_INFINITY, ints: no_ints(r.op) }
    }

    /// # Safety
    ///
    /// `x` is valid for `n` values.
    unsafe fn take(&mut self, r: &Reduction, isa: Isa, x: *const f32, n: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            match (r.of_ints, r.op) {
                (true, op) => {
                    for i in 0..n {
                        self.ints = of_ints(op, self.ints, (*x.add(i)).to_bits() as i32);
                    }
                }
                (_, Reduce::Sum) => self.sum += tensor::sum(isa, x, n),
                (_, Reduce::Max) => self.largest = self.largest.max(tensor::largest(isa, x, n)),
            }
        }
    }

    /// The row's value; the next begins anew.
    fn end(&mut self, r: &Reduction) -> f32 {
        let value = match (r.of_ints, r.op) {
            (true, _) => f32::from_bits(self.ints as u32),
            (_, Reduce::Sum) => self.sum as f32,
            (_, Reduce::Max) => self.largest,
        };
        *self = Self::new(r);
        value
    }
}

/// What columns have come to so far: in `f64`, or in 4 bytes.
struct ColumnSums {
    at: *mut f32,
    columns: usize,
}

impl ColumnSums {
    fn new(r: &Reduction, at: *mut f32, columns: usize) -> Self {
        let sums = Self { at, columns };
        for i in 0..columns {
            // SAFETY: there is room for a block of either.
            unsafe {
                match (r.of_ints, r.op) {
                    (true, op) => *at.add(i) = f32::from_bits(no_ints(op) as u32),
                    (_, Reduce::Sum) => *at.cast::<f64>().add(i) = 0.0,
                    (_, Reduce::Max) => *at.add(i) = f32::NEG_INFINITY,
                }
            }
        }
        sums
    }

    /// # Safety
    ///
    /// `x` is valid for a value of each column.
    unsafe fn take(&mut self, r: &Reduction, isa: Isa, x: *const f32) {
        let (at, n) = (self.at, self.columns);
        // SAFETY: the caller's contract.
        unsafe {
            match (r.of_ints, r.op) {
                (true, op) => {
                    for i in 0..n {
                        let [sum, value] =
                            [*at.add(i), *x.add(i)].map(|value| value.to_bits() as i32);
                        *at.add(i) = f32::from_bits(of_ints(op, sum, value) as u32);
                    }
                }
                (_, Reduce::Sum) => tensor::add_to(isa, x, at.cast(), n),
                (_, Reduce::Max) => tensor::binary(isa, Binary::Max, at, x, at, n),
            }
        }
    }

    /// # Safety
    ///
    /// `out` is valid for a value of each column.
    unsafe fn end(&self, r: &Reduction, out: *mut f32) {
        let sums = !r.of_ints && r.op == Reduce::Sum;
        for i in 0..self.columns {
            // SAFETY: the caller's contract.
            unsafe {
                *out.add(i) =
                    if sums { *self.at.cast::<f64>().add(i) as f32 } else { *self.at.add(i) };
            }
        }
    }
}

const fn no_ints(op: Reduce) -> i32 {
    match op {
        Reduce::Sum => 0,
        Reduce::Max => i32::MIN,
    }
}

const fn of_ints(op: Reduce, a: i32, b: i32) -> i32 {
    match op {
        Reduce::Sum => Binary::Add.of_ints(a, b),
        Reduce::Max => Binary::Max.of_ints(a, b),
    }
}

impl Compiler<'_> {
    fn chain(&mut self, steps: &[Step]) -> Result<Vec<Instruction>> {
        let mut instructions = Vec::new();
        for step in steps {
            self.step(&step.op, &mut instructions)?;
        }
        Ok(instructions)
    }

    fn step(&mut self, op: &Op, to: &mut Vec<Instruction>) -> Result<()> {
        let Some(out) = plan::elementwise(op) else { unreachable!("the schedule has seen to it") };
        if let Op::Pad { axis, before, x, .. } = op {
            let (base, width) = (self.locate)(x)?;
            let action = Action::Load(Source::padded(base, width, x, &out.shape, *axis, *before)?);
            return self.push(action, vec![], out, to);
        }
        let action = self.action(op);
        let ints = matches!(action, Action::Ints(_));
        let mut reads = Vec::new();
        for view in op.reads() {
            reads.push(self.operand(view, ints, to)?);
        }
        // What is known already is not computed again.
        let same = |known: &&Instruction| {
            let one = match (&known.action, &action) {
                (Action::Unary(a), Action::Unary(b)) => a == b,
                (Action::Binary(a), Action::Binary(b)) => a == b,
                _ => false,
            };
            one && known.reads == reads && matches!(known.out, Place::Register(_))
        };
        let registers = reads.iter().all(|place| matches!(place, Place::Register(_)));
        if self.group.inner.contains(&out.buffer)
            && registers
            && let Some(known) = to.iter().find(same)
        {
            self.places.insert(out.buffer, known.out);
            return Ok(());
        }
        self.push(action, reads, out, to)
    }

    fn action(&self, op: &Op) -> Action {
        match op {
            Op::Unary { op, .. } => Action::Unary(*op),
            Op::Binary { op, a, .. } if self.is_of_ints(a) => Action::Ints(*op),
            Op::Binary { op, .. } => Action::Binary(*op),
            Op::Where { .. } => Action::Select,
            Op::Cast { x, out } => match (self.is_of_ints(x), self.plan.buffer(out.buffer).dtype) {
                (true, DType::F32) => Action::Convert(Conversion::ToFloat),
                (false, DType::I32) => Action::Convert(Conversion::ToInt),
                (_, DType::F16) => Action::Convert(Conversion::ToHalf),
                (_, DType::BF16) => Action::Convert(Conversion::ToBrain),
                (_, DType::I8) => Action::Convert(Conversion::ToSigned),
                (_, DType::U8) => Action::Convert(Conversion::ToUnsigned),
                (_, DType::BOOL) => Action::Convert(Conversion::ToTruth),
                _ => Action::Move,
            },
            Op::Iota { .. } => Action::Iota,
            _ => Action::Move,
        }
    }

    fn is_of_ints(&self, view: &View) -> bool {
        self.plan.buffer(view.buffer).dtype.is_integer()
    }

    fn register(&mut self) -> Place {
        self.registers += 1;
        Place::Register(self.registers - 1)
    }

    /// Where an operand's values are; of a constant its whole part, where it is one of integers.
    fn operand(&mut self, view: &View, ints: bool, to: &mut Vec<Instruction>) -> Result<Place> {
        if let Some(place) = self.places.get(&view.buffer) {
            return Ok(*place);
        }
        if let Class::Constant(value) = self.plan.buffer(view.buffer).class {
            let value = value.get();
            let bits = if ints { value as i32 as u32 } else { value.to_bits() };
            if let Some((register, _)) = self.constants.iter().find(|(_, known)| *known == bits) {
                return Ok(Place::Register(*register));
            }
            self.constants.push((self.registers, bits));
            return Ok(self.register());
        }
        if let Some((_, place)) = self.loaded.iter().find(|(known, _)| known == view) {
            return Ok(*place);
        }
        let (base, width) = (self.locate)(view)?;
        let source = Source::new(base, width, &view.shape, &view.strides)?;
        let place = if width == Width::Word && source.is_dense() {
            Place::At(base.cast())
        } else {
            let out = self.register();
            to.push(Instruction { action: Action::Load(source), reads: vec![], out });
            out
        };
        self.loaded.push((view.clone(), place));
        Ok(place)
    }

    /// Where a result goes first, and what it is stored as from there.
    fn result(&mut self, out: &View) -> Result<(Place, Option<(*mut u8, Narrow)>)> {
        let (mut place, mut stored) = (self.register(), None);
        if !self.group.inner.contains(&out.buffer) {
            match (self.locate)(out)? {
                (base, Width::Word) => place = Place::At(base.cast()),
                (base, Width::Less(narrow)) => stored = Some((base, narrow)),
            }
        }
        self.places.insert(out.buffer, place);
        Ok((place, stored))
    }

    fn push(
        &mut self,
        action: Action,
        reads: Vec<Place>,
        out: &View,
        to: &mut Vec<Instruction>,
    ) -> Result<()> {
        let (out, stored) = self.result(out)?;
        to.push(Instruction { action, reads, out });
        if let Some((base, narrow)) = stored {
            to.push(Instruction { action: Action::Narrow(base, narrow), reads: vec![out], out });
        }
        Ok(())
    }
}

/// `n` elements of what lies side by side, from the `start`th on. Zero is added, as when parts are added up.
///
/// # Safety
///
/// The elements are there, and room for them.
unsafe fn join(parts: &[Source], isa: Isa, start: usize, n: usize, out: *mut f32) {
    let mut done = 0;
    while done < n {
        let at = start + done;
        let mut next = usize::MAX;
        let mut here = None;
        for part in parts {
            let Some((inner, extent, inside)) = part.part() else { continue };
            let (place, within) = (at / inner % extent, at % inner);
            if inside.contains(&place) {
                here = Some(part);
                next = (inside.end - place) * inner - within;
                break;
            }
            let end = if place < inside.start { inside.start } else { extent };
            next = next.min((end - place) * inner - within);
        }
        let count = next.min(n - done);
        // SAFETY: the caller's contract.
        unsafe {
            let out = out.add(done);
            match here {
                Some(part) if part.there => {}
                Some(part) => {
                    part.fill(isa, 0, at, count, out);
                    for value in std::slice::from_raw_parts_mut(out, count) {
                        *value += 0.0;
                    }
                }
                None => out.write_bytes(0, count),
            }
        }
        done += count;
    }
}

/// The `start`th value of a place, or the first of a register.
///
/// # Safety
///
/// The place has it.
const unsafe fn pointer(place: Place, scratch: *mut f32, start: usize) -> *mut f32 {
    // SAFETY: the caller's contract.
    unsafe {
        match place {
            Place::Register(register) => scratch.add(register * BLOCK),
            Place::At(base) => base.add(start),
        }
    }
}

/// Instructions for `n` elements, at most [`BLOCK`], from the `start`th on.
///
/// # Safety
///
/// As for [`Kernel::run`].
unsafe fn execute(chain: &[Instruction], isa: Isa, scratch: *mut f32, start: usize, n: usize) {
    if n == 0 {
        return;
    }
    for Instruction { action, reads, out } in chain {
        // SAFETY: the caller's contract; operands were resolved for the space that `start` is in.
        unsafe {
            let read = |at: usize| pointer(reads[at], scratch, start).cast_const();
            let out = pointer(*out, scratch, start);
            match action {
                Action::Unary(op) => tensor::unary(isa, *op, read(0), out, n),
                Action::Binary(op) => tensor::binary(isa, *op, read(0), read(1), out, n),
                Action::Ints(op) => {
                    let (a, b) = (read(0).cast(), read(1).cast());
                    tensor::binary_of_ints(isa, *op, a, b, out.cast(), n);
                }
                Action::Two(first, second) => {
                    tensor::two(isa, *first, *second, [read(0), read(1), read(2)], out, n);
                }
                Action::Sigmoid => scores::sigmoid(isa, read(0), out, n),
                Action::Bounded(least, bound) => {
                    tensor::bounded(isa, *least, *bound, read(0), out, n);
                }
                Action::Select => tensor::select(isa, read(0), read(1), read(2), out, n),
                Action::Convert(to) => tensor::convert(isa, *to, read(0), out, n),
                // A value may go where it is.
                Action::Move => out.copy_from(read(0), n),
                Action::Iota => {
                    for i in 0..n {
                        *out.add(i) = (start + i) as f32;
                    }
                }
                Action::Load(source) => source.fill(isa, 0, start, n, out),
                Action::Join(parts) => join(parts, isa, start, n, out),
                Action::Narrow(base, narrow) => {
                    tensor::narrow(isa, *narrow, read(0), base.add(narrow.bytes() * start), n);
                }
            }
        }
    }
}
