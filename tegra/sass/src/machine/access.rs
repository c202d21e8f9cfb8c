//! Loads and stores of a warp, and what they count.

use std::sync::atomic::Ordering;

use super::Outcome;
use super::env::Env;
use super::lanes::Each;
use super::shared::Kind;
use super::traffic::{ROW, linear, repeated};
use super::warp::Warp;
use super::words::{merge, misaligned, narrow};
use crate::check::Strictness;
use crate::execute::LANES;
use crate::isa::RZ;
use crate::memory::{Access, Region};
use crate::program::op::{Pointer, Size, Space};

/// Stride between loads from which the access is prefetched.
const FAR: u64 = 64;

/// Loads for one lane, if the access is aligned and within the region.
#[inline(always)]
fn read<const WORDS: usize>(
    region: &Region<'_>,
    address: u64,
    ahead: Option<u64>,
    size: Size,
) -> Option<[u32; WORDS]> {
    if misaligned(address, size.bytes) {
        return None;
    }
    let at = (address.wrapping_sub(region.start) / 4) as usize;
    let found = region.words.get(at..)?.first_chunk::<WORDS>()?;
    region.note(at, WORDS, Access::Read);
    if let Some(ahead) = ahead {
        region.expect(at.wrapping_add(ahead as usize));
    }
    let mut values = [0; WORDS];
    for (value, word) in values.iter_mut().zip(found) {
        *value = word.load(Ordering::Relaxed);
    }
    if size.bytes < 4 {
        values[0] = narrow(values[0], address, size);
    }
    Some(values)
}

impl Warp {
    /// Returns the address that each lane accesses.
    #[inline(always)]
    pub(crate) fn addresses(&self, pointer: &Pointer) -> [u64; LANES] {
        let mut addresses = [0; LANES];
        let offset = i64::from(pointer.offset) as u64;
        let low = &self.registers[usize::from(pointer.register)];
        if matches!(pointer.space, Space::Global | Space::Generic) {
            let base = pointer.uniform.map_or(0, |index| {
                let index = usize::from(index);
                u64::from(self.uniform[index & 63])
                    | u64::from(self.uniform[(index + 1) & 63]) << 32
            });
            let base = base.wrapping_add(offset);
            if pointer.wide && pointer.register != RZ {
                let high = &self.registers[usize::from(pointer.register) + 1];
                for lane in 0..LANES {
                    let register = u64::from(low[lane]) | u64::from(high[lane]) << 32;
                    addresses[lane] = register.wrapping_add(base);
                }
            } else {
                for lane in 0..LANES {
                    addresses[lane] = u64::from(low[lane]).wrapping_add(base);
                }
            }
        } else {
            let base = pointer.uniform.map_or(0, |index| self.uniform[usize::from(index & 63)]);
            let base = base.wrapping_add(offset as u32);
            // Local and shared addresses have 24 bits; larger ones are out of bounds.
            let mask = if pointer.space == Space::Local { 0xff_ffff } else { !0 };
            for lane in 0..LANES {
                let address = low[lane].wrapping_mul(u32::from(pointer.scale)).wrapping_add(base);
                addresses[lane] = u64::from(address & mask);
            }
        }
        addresses
    }

    /// Loads into one or several registers.
    pub(crate) fn load<C: Strictness>(
        &mut self,
        env: &mut Env<'_>,
        mask: u32,
        d: u8,
        pointer: &Pointer,
        size: Size,
    ) -> Outcome<()> {
        let addresses = self.addresses(pointer);
        let words = size.bytes.div_ceil(4);
        if pointer.space == Space::Global {
            if self.load_quickly(env, mask, d, &addresses, size) {
                return Ok(());
            }
        } else {
            env.count(pointer.space, &addresses, mask, size.bytes, false);
        }
        if pointer.space == Space::Shared && usize::from(d) + usize::from(words) <= usize::from(RZ)
        {
            return match words {
                1 => self.load_shared::<C, 1>(env, mask, d, &addresses, size),
                2 => self.load_shared::<C, 2>(env, mask, d, &addresses, size),
                4 => self.load_shared::<C, 4>(env, mask, d, &addresses, size),
                words => unreachable!("no access is of {words} words"),
            };
        }
        for lane in Each(mask) {
            let mut unset = [0; 4];
            let (space, address) = env.place(pointer.space, addresses[lane]);
            let values = match space {
                Space::Shared => {
                    let word = env.shared.access::<C>(
                        Kind::Read,
                        self.index,
                        address,
                        size.bytes,
                        lane,
                    )?;
                    if C::DEFINEDNESS && !env.shared.is_written(address, size.bytes) {
                        unset = env.shared.unset(word, address, size);
                    }
                    env.shared.read(word, address, size)
                }
                Space::Local => {
                    let word = env.local(address, size.bytes, lane)?;
                    let values = self.local_read(env, word, address, size, lane);
                    if C::DEFINEDNESS {
                        for (step, unset) in unset[..usize::from(words)].iter_mut().enumerate() {
                            *unset = self.local_known.unset(word + step, lane);
                        }
                        if size.bytes < 4 {
                            unset[0] = narrow(unset[0], address, size);
                        }
                    }
                    values
                }
                Space::Global | Space::Generic => {
                    let found = env.global(address, size.bytes, Access::Read, lane)?;
                    if pointer.space == Space::Generic {
                        env.counters.bytes_loaded += u64::from(size.bytes);
                    }
                    let mut values = [0; 4];
                    for (value, word) in values.iter_mut().zip(found) {
                        *value = word.load(Ordering::Relaxed);
                    }
                    if size.bytes < 4 {
                        values[0] = narrow(values[0], address, size);
                    }
                    values
                }
            };
            if d != RZ {
                for word in 0..words {
                    self.registers[usize::from(d.wrapping_add(word))][lane] =
                        values[usize::from(word)];
                }
                self.registers[usize::from(RZ)][lane] = 0;
            }
            if C::DEFINEDNESS && unset != [0; 4] && d != RZ {
                for word in 0..words {
                    let register = usize::from(d.wrapping_add(word));
                    self.known.write(register, lane, unset[usize::from(word)]);
                }
            }
        }
        Ok(())
    }

    /// Loads `WORDS` words for each lane from shared memory.
    #[inline(always)]
    fn load_shared<C: Strictness, const WORDS: usize>(
        &mut self,
        env: &mut Env<'_>,
        mask: u32,
        d: u8,
        addresses: &[u64; LANES],
        size: Size,
    ) -> Outcome<()> {
        let targets = usize::from(d)..usize::from(d) + WORDS;
        let mut noted = None;
        for lane in Each(mask) {
            let address = addresses[lane];
            let word = env.shared.locate(address, size.bytes, lane)?;
            if C::RACES && noted != Some(address) {
                env.shared.note(Kind::Read, self.index, address, size.bytes, lane);
                noted = Some(address);
            }
            let mut values: [u32; WORDS] = env.shared.words_at(word);
            if size.bytes < 4 {
                values[0] = narrow(values[0], address, size);
            }
            for (target, value) in self.registers[targets.clone()].iter_mut().zip(values) {
                target[lane] = value;
            }
            if C::DEFINEDNESS && !env.shared.is_written(address, size.bytes) {
                let unset = env.shared.unset(word, address, size);
                for (register, unset) in targets.clone().zip(unset) {
                    self.known.write(register, lane, unset);
                }
            }
        }
        Ok(())
    }

    /// Stores `WORDS` words of each lane to shared memory.
    #[inline(always)]
    fn store_shared<C: Strictness, const WORDS: usize>(
        &self,
        env: &mut Env<'_>,
        mask: u32,
        source: u8,
        addresses: &[u64; LANES],
        bytes: u8,
    ) -> Outcome<()> {
        let sources = &self.registers[usize::from(source)..usize::from(source) + WORDS];
        for lane in Each(mask) {
            let address = addresses[lane];
            let word = env.shared.access::<C>(Kind::Write, self.index, address, bytes, lane)?;
            if C::DEFINEDNESS {
                env.shared.set_written(address, bytes, true);
            }
            let target = env.shared.words_at_mut::<WORDS>(word);
            if bytes < 4 {
                target[0] = merge(target[0], address, bytes, sources[0][lane]);
            } else {
                for (target, source) in target.iter_mut().zip(sources) {
                    *target = source[lane];
                }
            }
        }
        Ok(())
    }

    /// Counts a load of global memory. Performs it if all addresses are in one recently used
    /// region, and returns whether it did.
    fn load_quickly(
        &mut self,
        env: &mut Env<'_>,
        mask: u32,
        d: u8,
        addresses: &[u64; LANES],
        size: Size,
    ) -> bool {
        let repeated = if mask == !0 && linear(addresses, size.bytes.into()) {
            env.count_global(addresses, mask, size.bytes, false);
            match size.bytes {
                4 => return self.load_row::<1>(env, d, addresses[0]),
                8 => return self.load_row::<2>(env, d, addresses[0]),
                16 => return self.load_row::<4>(env, d, addresses[0]),
                _ => [0; 2],
            }
        } else {
            let [near, far] = repeated(addresses, mask);
            env.count_bytes(mask, size.bytes, false);
            env.count_sectors(addresses, mask & !near & !far);
            [near, far]
        };
        match size.bytes {
            8 => self.load_scattered::<2>(env, mask, d, addresses, repeated, size),
            16 => self.load_scattered::<4>(env, mask, d, addresses, repeated, size),
            _ => self.load_scattered::<1>(env, mask, d, addresses, repeated, size),
        }
    }

    /// Loads consecutive addresses, `WORDS` words for each lane.
    fn load_row<const WORDS: usize>(&mut self, env: &Env<'_>, d: u8, first: u64) -> bool {
        let Some(region) = env.recent(first) else { return false };
        let at = ((first - region.start) / 4) as usize;
        let Some(found) = region.words.get(at..at + LANES * WORDS) else { return false };
        if !first.is_multiple_of(4 * WORDS as u64) || usize::from(d) + WORDS > usize::from(RZ) {
            return false;
        }
        region.note(at, LANES * WORDS, Access::Read);
        let (lanes, _) = found.as_chunks::<WORDS>();
        for word in 0..WORDS {
            let target = &mut self.registers[usize::from(d) + word];
            for (value, lane) in target.iter_mut().zip(lanes) {
                *value = lane[word].load(Ordering::Relaxed);
            }
        }
        true
    }

    /// Loads `WORDS` words for each lane of a mask. Rows of eight lanes that [`repeated`] reports
    /// as one address, or as equal to the previous row, are copied at once. A loop over the rows of
    /// a matrix jumps from page to page, where the CPU does not prefetch by itself, so this
    /// function issues prefetches.
    fn load_scattered<const WORDS: usize>(
        &mut self,
        env: &Env<'_>,
        mask: u32,
        d: u8,
        addresses: &[u64; LANES],
        [near, far]: [u32; 2],
        size: Size,
    ) -> bool {
        let Some(region) = env.recent(addresses[Self::first_lane(mask) as usize]) else {
            return false;
        };
        if usize::from(d) + WORDS > usize::from(RZ) {
            return false;
        }
        let began = &mut self.began[self.active.pc as usize % 32];
        let step = addresses[0].wrapping_sub(*began).cast_signed();
        *began = addresses[0];
        let ahead = (step.unsigned_abs() >= FAR).then_some((step / 4).cast_unsigned());
        let targets = &mut self.registers[usize::from(d)..usize::from(d) + WORDS];
        for row in (0..LANES).step_by(ROW) {
            let of = |lanes: u32| (lanes >> row) as u8;
            if of(far) == !0 {
                for target in &mut *targets {
                    target.copy_within(row - ROW..row, row);
                }
            } else if of(near) | 1 == !0 {
                let Some(values) = read::<WORDS>(region, addresses[row], ahead, size) else {
                    return false;
                };
                for (target, value) in targets.iter_mut().zip(values) {
                    target[row..row + ROW].fill(value);
                }
            } else {
                for lane in Each(of(mask).into()) {
                    let lane = row + lane;
                    let Some(values) = read::<WORDS>(region, addresses[lane], ahead, size) else {
                        return false;
                    };
                    for (target, value) in targets.iter_mut().zip(values) {
                        target[lane] = value;
                    }
                }
            }
        }
        true
    }

    /// Records the undefined bits that a store to local memory leaves there.
    fn note_local(&mut self, word: usize, address: u64, bytes: u8, source: u8, lane: usize) {
        for step in 0..bytes.div_ceil(4) {
            let from = if source == RZ { RZ } else { source.wrapping_add(step) };
            let (to, mut unset) = (word + usize::from(step), self.known.unset(from.into(), lane));
            if bytes < 4 {
                unset = merge(self.local_known.unset(to, lane), address, bytes, unset);
            }
            self.local_known.write(to, lane, unset);
        }
    }

    /// Stores one or several registers.
    pub(crate) fn store<C: Strictness>(
        &mut self,
        env: &mut Env<'_>,
        mask: u32,
        pointer: &Pointer,
        source: u8,
        size: Size,
    ) -> Outcome<()> {
        let addresses = self.addresses(pointer);
        env.count(pointer.space, &addresses, mask, size.bytes, true);
        let words = size.bytes.div_ceil(4);
        if pointer.space == Space::Shared
            && usize::from(source) + usize::from(words) <= usize::from(RZ)
        {
            return match words {
                1 => self.store_shared::<C, 1>(env, mask, source, &addresses, size.bytes),
                2 => self.store_shared::<C, 2>(env, mask, source, &addresses, size.bytes),
                4 => self.store_shared::<C, 4>(env, mask, source, &addresses, size.bytes),
                words => unreachable!("no access is of {words} words"),
            };
        }
        for lane in Each(mask) {
            let (space, address) = env.place(pointer.space, addresses[lane]);
            let mut values = [0; 4];
            if source != RZ {
                for word in 0..words {
                    let register = usize::from(source.wrapping_add(word));
                    values[usize::from(word)] = self.registers[register][lane];
                }
            }
            match space {
                Space::Shared => {
                    let word = env.shared.access::<C>(
                        Kind::Write,
                        self.index,
                        address,
                        size.bytes,
                        lane,
                    )?;
                    if C::DEFINEDNESS {
                        env.shared.set_written(address, size.bytes, true);
                    }
                    env.shared.write(word, address, size.bytes, &values);
                }
                Space::Local => {
                    let word = env.local(address, size.bytes, lane)?;
                    self.local_write(env, word, address, size.bytes, &values, lane);
                    if C::DEFINEDNESS {
                        self.note_local(word, address, size.bytes, source, lane);
                    }
                }
                Space::Global | Space::Generic => {
                    let found = env.global(address, size.bytes, Access::Write, lane)?;
                    if pointer.space == Space::Generic {
                        env.counters.bytes_stored += u64::from(size.bytes);
                    }
                    if size.bytes >= 4 {
                        for (word, value) in found.iter().zip(values) {
                            word.store(value, Ordering::Relaxed);
                        }
                    } else {
                        // Replaces part of a word atomically, keeping concurrent writes to the
                        // rest. The closure always returns a value, so this cannot fail.
                        let new = |old| Some(merge(old, address, size.bytes, values[0]));
                        let _ = found[0].fetch_update(Ordering::Relaxed, Ordering::Relaxed, new);
                    }
                }
            }
        }
        Ok(())
    }
}
