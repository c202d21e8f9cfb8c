//! Compilation of a group of tensor operations to a kernel, and its execution on blocks of elements.

use std::collections::HashMap;
use std::ops::Range;

use super::compile::Compiler;
use super::instruction::{Action, BLOCK, Instruction, Kernel, Location, Reduction};
use super::source::{Source, concat};
use super::sums::{ColumnSums, Sums};
use crate::Result;
use crate::cpu::pool::Worker;
use crate::cpu::width::Width;
use plan::{Binary, DType, Group, Op, Plan, View};
use simd::dense::{Addend, Function, TileEpilogue};
use simd::{Isa, scores, tensor};

/// Elements that a thread claims at a time.
pub(in crate::cpu) const CLAIM: usize = 32 * BLOCK;

impl Kernel {
    /// Compiles a group; `locate` returns the address of a view.
    ///
    /// # Errors
    /// Those of `locate`.
    pub(in crate::cpu) fn new(
        plan: &Plan,
        group: &Group,
        locate: &dyn Fn(&View) -> Result<(*mut u8, Width)>,
    ) -> Result<Self> {
        Ok(Self::steps(plan, group, locate)?.ready())
    }

    /// The same, before the optimisations of [`ready`](Self::ready), with one instruction per step.
    ///
    /// # Errors
    /// Those of `locate`.
    pub(in crate::cpu) fn steps(
        plan: &Plan,
        group: &Group,
        locate: &dyn Fn(&View) -> Result<(*mut u8, Width)>,
    ) -> Result<Self> {
        let mut compiler = Compiler {
            plan,
            group,
            locate,
            constants: Vec::new(),
            locations: HashMap::new(),
            loaded: Vec::new(),
            registers: 0,
        };
        let [before, after] = group.chains(plan);
        let mut body = compiler.compile_steps(before)?;
        let mut reduction = None;
        let mut elements = before.last().map_or(0, |step| step.op.writes()[0].elements());
        let mut tail = Vec::new();
        if let Some(Op::Reduce { op, axis, x, out }) = group.reduce.map(|at| &plan.steps[at].op) {
            elements = x.elements();
            let x_place = compiler.operand(x, false, &mut body)?;
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
            tail = compiler.compile_steps(after)?;
        }
        let mut kernel = Self {
            elements,
            constants: compiler.constants,
            body,
            reduction,
            tail,
            registers: compiler.registers,
        };
        kernel.apply_patterns();
        Ok(kernel)
    }

    /// The optimised kernel.
    pub(in crate::cpu) fn ready(mut self) -> Self {
        self.pair();
        self.share_registers();
        self
    }

    /// A kernel that copies elements to contiguous memory.
    pub(in crate::cpu) fn copy(source: Source, elements: usize, to: *mut f32) -> Self {
        let action = Action::Load(source);
        let load = Instruction { action, reads: Vec::new(), out: Location::At(to) };
        let (body, tail, constants) = (vec![load], Vec::new(), Vec::new());
        Self { elements, constants, body, reduction: None, tail, registers: 0 }
    }

    /// True if the kernel only joins parts that are already in place.
    pub(in crate::cpu) fn is_noop(&self) -> bool {
        let [Instruction { action: Action::Concat(parts), .. }] = &self.body[..] else {
            return false;
        };
        let there = parts.iter().map(Source::elements_in_place).sum::<usize>();
        self.reduction.is_none() && there == self.elements
    }

    /// The kernel as a product's epilogue, if it is one: it reads the results at `place`, in rows of `columns`, and
    /// writes its own there. Adding a row to each result needs `rows_repeat`.
    pub(in crate::cpu) fn as_epilogue(
        &self,
        place: *mut f32,
        columns: usize,
        rows_repeat: bool,
    ) -> Option<TileEpilogue> {
        let mut finish = TileEpilogue::default();
        let (mut x, mut rows) = (Location::At(place), HashMap::new());
        // A sigmoid of the value, before its multiplication with the value.
        let mut open = None;
        for (i, Instruction { action, reads, out }) in self.body.iter().enumerate() {
            if matches!(out, Location::At(_)) != (i + 1 == self.body.len()) {
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
                        (Location::At(at), _) if at != place => Addend { at, stride: columns },
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
        (x == Location::At(place) && open.is_none()).then_some(finish)
    }

    /// Register allocation: reuses registers that are not read any more.
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
                if let Location::Register(register) = place {
                    pinned(register, &mut taken);
                }
            }
        }
        let fixed = taken;
        let first = count;
        for instructions in [&mut self.body, &mut self.tail] {
            let mut last = HashMap::new();
            for (at, instruction) in instructions.iter().enumerate() {
                for place in instruction.reads.iter().chain([&instruction.out]) {
                    if let Location::Register(register) = place {
                        last.insert(*register, at);
                    }
                }
            }
            let (mut now, mut free, mut next) = (HashMap::new(), Vec::new(), first);
            for (at, instruction) in instructions.iter_mut().enumerate() {
                let Instruction { reads, out, .. } = instruction;
                let mut ended = Vec::new();
                for place in reads.iter_mut().chain([out]) {
                    let Location::Register(register) = place else { continue };
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
    /// The addresses are valid, all threads are in this kernel, and no other code accesses what it writes.
    pub(in crate::cpu) unsafe fn run(&self, isa: Isa, w: &Worker<'_>, scratch: *mut f32) {
        // SAFETY: the caller's contract; blocks stay inside the space, and no two threads have the same.
        unsafe {
            self.begin(scratch);
            match &self.reduction {
                None => {
                    while let Some(part) = w.claim(self.elements, CLAIM) {
                        for start in part.clone().step_by(BLOCK) {
                            let n = BLOCK.min(part.end - start);
                            execute(&self.body, isa, scratch, start, n);
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
    /// The scratch has the size that [`Kernel::run`] requires.
    pub(in crate::cpu) unsafe fn begin(&self, scratch: *mut f32) {
        for (register, bits) in &self.constants {
            // SAFETY: the caller's contract.
            let values =
                unsafe { std::slice::from_raw_parts_mut(scratch.add(register * BLOCK), BLOCK) };
            values.fill(f32::from_bits(*bits));
        }
    }

    /// Computes at most [`BLOCK`] elements of a group without reduction, after [`Kernel::begin`].
    ///
    /// # Safety
    ///
    /// As for [`Kernel::run`], and no other thread computes these elements.
    pub(in crate::cpu) unsafe fn piece(&self, isa: Isa, scratch: *mut f32, start: usize, n: usize) {
        // SAFETY: the caller's contract.
        unsafe { execute(&self.body, isa, scratch, start, n) }
    }

    /// Computes some rows of `length` elements, after [`Kernel::begin`]; at most a block of rows if they are
    /// reduced.
    ///
    /// # Safety
    ///
    /// As for [`Kernel::run`], and no other thread computes these rows.
    pub(in crate::cpu) unsafe fn rows(
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
                execute(&self.body, isa, scratch, start, BLOCK.min(end - start));
            }
        }
    }

    /// Reduces at most a block of rows to one value each.
    ///
    /// # Safety
    ///
    /// As for [`Kernel::rows`].
    unsafe fn reduced(&self, r: &Reduction, isa: Isa, outputs: Range<usize>, scratch: *mut f32) {
        // Short rows pass through the instructions together.
        let together = (BLOCK / r.length.max(1)).max(1);
        for first in outputs.clone().step_by(together) {
            let count = together.min(outputs.end - first);
            let mut sums = Sums::new(r);
            let span = count * r.length;
            // SAFETY: the caller's contract.
            unsafe {
                if count > 1 {
                    execute(&self.body, isa, scratch, first * r.length, span);
                }
                for row in first..first + count {
                    for at in (0..r.length).step_by(BLOCK) {
                        let (start, n) = (row * r.length + at, BLOCK.min(r.length - at));
                        let mut x = pointer(r.x, scratch, start);
                        if count == 1 {
                            execute(&self.body, isa, scratch, start, n);
                        } else if let Location::Register(_) = r.x {
                            x = x.add((row - first) * r.length);
                        }
                        sums.take(r, isa, x, n);
                    }
                    let out = match r.out {
                        Location::Register(at) => scratch.add(at * BLOCK + row - outputs.start),
                        Location::At(base) => base.add(row),
                    };
                    *out = sums.end(r);
                }
            }
        }
        // SAFETY: the caller's contract.
        unsafe { execute(&self.tail, isa, scratch, outputs.start, outputs.len()) };
    }

    /// Reduces rows column by column.
    ///
    /// # Safety
    ///
    /// As for [`Kernel::run`].
    unsafe fn columns(&self, r: &Reduction, isa: Isa, w: &Worker<'_>, scratch: *mut f32) {
        let strips = r.inner.div_ceil(BLOCK);
        // Narrow rows pass through the instructions together.
        let together = (BLOCK / r.inner.max(1)).max(1);
        // SAFETY: the scratch has space for a block of `f64` behind the registers.
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
                        execute(&self.body, isa, scratch, start, (rows - 1) * r.inner + columns);
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

/// Address of element `start` of a place, or of a register's first element.
///
/// # Safety
///
/// The place has this element.
const unsafe fn pointer(place: Location, scratch: *mut f32, start: usize) -> *mut f32 {
    // SAFETY: the caller's contract.
    unsafe {
        match place {
            Location::Register(register) => scratch.add(register * BLOCK),
            Location::At(base) => base.add(start),
        }
    }
}

/// Executes instructions for `n` elements, at most [`BLOCK`], from `start` on.
///
/// # Safety
///
/// As for [`Kernel::run`].
unsafe fn execute(body: &[Instruction], isa: Isa, scratch: *mut f32, start: usize, n: usize) {
    if n == 0 {
        return;
    }
    for Instruction { action, reads, out } in body {
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
                // Source and destination may be the same.
                Action::Move => out.copy_from(read(0), n),
                Action::Iota => {
                    for i in 0..n {
                        *out.add(i) = (start + i) as f32;
                    }
                }
                Action::Load(source) => source.fill(isa, 0, start, n, out),
                Action::Concat(parts) => concat(parts, isa, start, n, out),
                Action::Narrow(base, narrow) => {
                    tensor::narrow(isa, *narrow, read(0), base.add(narrow.bytes() * start), n);
                }
            }
        }
    }
}
