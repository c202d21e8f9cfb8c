//! Operations between lanes: shuffles, votes, matches, reductions, matrices; asynchronous copies.

use std::sync::atomic::Ordering;

use super::Outcome;
use super::env::Env;
use super::lanes::Each;
use super::operands::bits;
use super::shared::Kind;
use super::warp::{Copy, Warp};
use crate::check::Strictness;
use crate::execute::{LANES, Lanes, matrix};
use crate::isa::{Modify, RZ};
use crate::memory::Access;
use crate::program::op::{Element, Op, Pointer, Reduction, Shuffle, Size, Vote};

impl Warp {
    /// Executes an operation between lanes; returns false for others.
    pub(super) fn exchange(&mut self, env: &mut Env<'_>, op: &Op, mask: u32) -> Outcome<bool> {
        match *op {
            Op::Shuffle { mode, out, d, ref a, ref lane, ref limit } => {
                let mut spaces = [[0; LANES]; 3];
                let [x, y, z] = &mut spaces;
                let values = self.fetch_in(env, a, x)?;
                let (lane, limit) = (self.fetch_in(env, lane, y)?, self.fetch_in(env, limit, z)?);
                let (values, inside, absent) = Self::shuffle(mode, mask, values, lane, limit);
                self.write(d, mask, &values);
                self.write_predicate(out, mask, inside);
                // The value of an inactive lane is undefined.
                if d != RZ {
                    self.known.clear(usize::from(d), absent);
                }
            }
            Op::Match { all, wide, out, d, a } => {
                let low = self.registers[usize::from(a)];
                let high =
                    if wide { self.registers[usize::from(a.wrapping_add(1))] } else { [0; LANES] };
                let same = Self::matches(mask, &low, &high);
                let together = Each(mask).all(|lane| same[lane] == mask);
                if all {
                    self.write(d, mask, &[if together { mask } else { 0 }; LANES]);
                    self.write_predicate(out, mask, if together { !0 } else { 0 });
                } else {
                    self.write(d, mask, &same);
                }
            }
            Op::Reduce { reduction, signed, d, ref a } => {
                let values = self.fetch(env, a)?;
                self.write_uniform(d, Self::reduce(reduction, signed, mask, &values));
            }
            Op::Vote { vote, d, out, p, uniform } => {
                let ballot = self.holds(p) & mask;
                let truth = match vote {
                    Vote::All => ballot == mask,
                    Vote::Any => ballot != 0,
                    Vote::Equal => ballot == mask || ballot == 0,
                };
                let truth = if truth { !0 } else { 0 };
                if uniform {
                    self.write_uniform(d, ballot);
                } else {
                    self.write(d, mask, &[ballot; LANES]);
                }
                self.write_out(out, mask, truth, uniform);
            }
            Op::MatrixFloat { d, a, b, c, depth, element, half } => {
                let words = depth * if element == Element::Tensor { 2 } else { 1 } / 4;
                let count = if half { 2 } else { 4 };
                let (left, right) = (self.registers_at(a, words), self.registers_at(b, words / 2));
                let sum = self.registers_at(c, count);
                let result = matrix::float(element, usize::from(depth), half, &left, &right, &sum);
                for (step, values) in result.iter().take(usize::from(count)).enumerate() {
                    self.write(d.wrapping_add(step as u8), mask, values);
                }
            }
            Op::MatrixInteger(ref product) => {
                let [left, right, sum] = product.words();
                let (a, b) =
                    (self.registers_at(product.a, left), self.registers_at(product.b, right));
                let c = self.registers_at(product.c, sum);
                let result = matrix::integer(product, &a, &b, &c);
                for (step, values) in result.iter().take(usize::from(sum)).enumerate() {
                    self.write(product.d.wrapping_add(step as u8), mask, values);
                }
            }
            Op::MatrixDouble { d, sources: [a, b, c], modify, round } => {
                let pair = |first: u8, modify: Modify| {
                    let words = self.registers_at(first, 2);
                    let keep = if modify.absolute { u64::MAX >> 1 } else { u64::MAX };
                    let flip = u64::from(modify.negate) << 63;
                    std::array::from_fn(|lane| {
                        let word = u64::from(words[0][lane]) | u64::from(words[1][lane]) << 32;
                        word & keep ^ flip
                    })
                };
                let behind = if c == RZ { RZ } else { c.wrapping_add(2) };
                let [low, high] = [pair(c, modify[2]), pair(behind, modify[2])];
                let (left, right) = (pair(a, modify[0]), pair(b, modify[1]));
                let result = matrix::double(&left, &right, [&low, &high], round);
                for (step, values) in result.iter().enumerate() {
                    self.write_wide(d.wrapping_add(2 * step as u8), mask, 2, false, values);
                }
            }
            Op::Transpose { d, ref a } => {
                let values = matrix::transpose(&self.fetch(env, a)?);
                self.write(d, mask, &values);
            }
            Op::ToUniform { d, out, ref a } => {
                let values = self.fetch(env, a)?;
                let first = values[Self::first_lane(mask) as usize];
                self.write_uniform(d, first);
                // The compiler's loops over distinct values continue with these lanes.
                self.write_predicate(out, mask, bits(|lane| values[lane] != first));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads values of other lanes. `limit` contains the last lane of a segment in bits 4:0 and the
    /// segment mask in bits 12:8. Returns the values, the lanes whose source is in their segment,
    /// and the lanes whose source is inactive.
    pub(crate) fn shuffle(
        mode: Shuffle,
        mask: u32,
        a: &Lanes,
        which: &Lanes,
        limit: &Lanes,
    ) -> (Lanes, u32, u32) {
        let (mut values, mut inside, mut absent) = (*a, 0, 0);
        // Fast path of butterfly reductions over the whole warp.
        if mode == Shuffle::Butterfly && mask == !0 && limit.iter().all(|&limit| limit == 0x1f) {
            for (lane, value) in values.iter_mut().enumerate() {
                *value = a[lane ^ (which[lane] & 0x1f) as usize];
            }
            return (values, !0, 0);
        }
        for lane in Each(mask) {
            let here = lane as i32;
            let (which, limit) = ((which[lane] & 0x1f) as i32, limit[lane] as i32);
            let segment = limit >> 8 & 0x1f;
            let (least, most) = (here & segment, (here & segment) | (limit & 0x1f & !segment));
            let (from, valid) = match mode {
                Shuffle::Up => (here - which, here - which >= most),
                Shuffle::Down => (here + which, here + which <= most),
                Shuffle::Butterfly => (here ^ which, here ^ which <= most),
                Shuffle::Index => {
                    let from = least | (which & !segment);
                    (from, from <= most)
                }
            };
            let from = if valid { from } else { here };
            inside |= u32::from(valid) << lane;
            if mask >> (from & 31) & 1 == 0 {
                absent |= 1 << lane;
            }
            values[lane] = a[(from & 31) as usize];
        }
        (values, inside, absent)
    }

    /// Returns, for each lane, the lanes with the same value.
    pub(crate) fn matches(mask: u32, low: &Lanes, high: &Lanes) -> Lanes {
        let mut result = [0; LANES];
        for lane in Each(mask) {
            let same = |other: &usize| low[*other] == low[lane] && high[*other] == high[lane];
            result[lane] = Each(mask).filter(same).fold(0, |found, other| found | 1 << other);
        }
        result
    }

    /// Reduces the active lanes to one value.
    pub(crate) fn reduce(reduction: Reduction, signed: bool, mask: u32, a: &Lanes) -> u32 {
        let values = Each(mask).map(|lane| a[lane]);
        let flip = if signed { 0x8000_0000 } else { 0 };
        let ordered = values.clone().map(|value| value ^ flip);
        match reduction {
            Reduction::And => values.fold(!0, |a, b| a & b),
            Reduction::Or => values.fold(0, |a, b| a | b),
            Reduction::Xor => values.fold(0, |a, b| a ^ b),
            Reduction::Sum => values.fold(0, u32::wrapping_add),
            Reduction::Minimum => ordered.min().unwrap_or(0) ^ flip,
            Reduction::Maximum => ordered.max().unwrap_or(0) ^ flip,
        }
    }

    /// Loads 8x8 matrices of 16-bit elements. Eight lanes have the row addresses of each matrix;
    /// every lane receives two adjacent elements of a row or of a column.
    pub(crate) fn load_matrix<C: Strictness>(
        &mut self,
        env: &mut Env<'_>,
        d: u8,
        pointer: &Pointer,
        count: u8,
        transpose: bool,
    ) -> Outcome<()> {
        let addresses = self.addresses(pointer);
        let mask = ((1u64 << (8 * count)) - 1) as u32;
        env.count_shared(&addresses, mask, 16);
        let size = Size { bytes: 16, signed: false };
        let (mut rows, mut written) = ([[0; 4]; LANES], [true; LANES]);
        for lane in Each(mask) {
            let address = addresses[lane];
            let word = env.shared.access::<C>(Kind::Read, self.index, address, 16, lane)?;
            if C::DEFINEDNESS {
                written[lane] = env.shared.is_written(address, 16);
            }
            rows[lane] = env.shared.read(word, address, size);
        }
        let element = |row: usize, column: usize| -> u32 {
            rows[row][column / 2] >> (16 * (column % 2)) & 0xffff
        };
        for matrix in 0..usize::from(count) {
            let mut values = [0; LANES];
            for (lane, value) in values.iter_mut().enumerate() {
                let (major, minor) = (lane / 4, lane % 4 * 2);
                let first = 8 * matrix;
                *value = if transpose {
                    element(first + minor, major) | element(first + minor + 1, major) << 16
                } else {
                    element(first + major, minor) | element(first + major, minor + 1) << 16
                };
            }
            let register = d.wrapping_add(matrix as u8);
            self.write(register, !0, &values);
            if C::DEFINEDNESS && !written[8 * matrix..8 * matrix + 8].iter().all(|&w| w) {
                self.known.clear(usize::from(register), !0);
            }
        }
        Ok(())
    }

    /// Starts copies from global to shared memory; lanes without the condition copy zeros.
    pub(crate) fn copy_async<C: Strictness>(
        &mut self,
        env: &mut Env<'_>,
        mask: u32,
        full: u32,
        to: &Pointer,
        from: &Pointer,
        bytes: u8,
    ) -> Outcome<()> {
        let (targets, sources) = (self.addresses(to), self.addresses(from));
        env.count_global(&sources, mask & full, bytes, false);
        env.count_shared(&targets, mask, bytes);
        for lane in Each(mask) {
            let mut words = [0; 4];
            if full >> lane & 1 == 1 {
                let found = env.global(sources[lane], bytes, Access::Read, lane)?;
                for (word, value) in words.iter_mut().zip(found) {
                    *word = value.load(Ordering::Relaxed);
                }
            }
            env.shared.access::<C>(Kind::Write, self.index, targets[lane], bytes, lane)?;
            if C::DEFINEDNESS {
                // The target is undefined until the copy has been waited for.
                env.shared.set_written(targets[lane], bytes, false);
            }
            self.open.push(Copy { address: targets[lane] as u32, words, bytes });
        }
        Ok(())
    }

    /// Completes all but the newest `left` groups of copies.
    pub(crate) fn land<C: Strictness>(&mut self, env: &mut Env<'_>, left: usize) {
        while self.committed.len() > left {
            for copy in self.committed.pop_front().unwrap_or_default() {
                let address = u64::from(copy.address);
                env.shared.write((address / 4) as usize, address, copy.bytes, &copy.words);
                if C::DEFINEDNESS {
                    env.shared.set_written(address, copy.bytes, true);
                }
            }
        }
    }
}
