//! Atomic operations on global, shared and generic memory.

use std::sync::atomic::{AtomicU32, Ordering};

use super::Outcome;
use super::Raised;
use super::env::Env;
use super::grid::LOST;
use super::lanes::Each;
use super::random::Random;
use super::shared::Kind;
use super::warp::Warp;
use crate::check::Strictness;
use crate::execute::number::{bits, flush};
use crate::execute::{LANES, apply_one};
use crate::fault::FaultKind;
use crate::isa::{PT, RZ};
use crate::memory::Access;
use crate::program::op::{Atomic, AtomicOp, AtomicType, Lane, Packed, Space};

/// Returns the new value in memory.
fn replace(operation: Atomic, kind: AtomicType, old: u64, value: u64, compare: u64) -> u64 {
    match operation {
        Atomic::Exchange => return value,
        // The first operand is compared, the second is stored.
        Atomic::CompareExchange | Atomic::CompareStore => {
            return if old == value { compare } else { old };
        }
        Atomic::AddOne => return u64::from((old as u32).wrapping_add(1)),
        Atomic::And => return old & value,
        Atomic::Or => return old | value,
        Atomic::Xor => return old ^ value,
        Atomic::Increment => return if old >= value { 0 } else { old + 1 },
        Atomic::Decrement => {
            return if old == 0 || old > value { value } else { old - 1 };
        }
        Atomic::Add | Atomic::Minimum | Atomic::Maximum => {}
    }
    let least = operation == Atomic::Minimum;
    match (operation, kind) {
        (Atomic::Add, AtomicType::F32) => {
            let number = |word: u64| f32::from_bits(flush(word as u32));
            u64::from(flush(bits(number(old) + number(value))))
        }
        (Atomic::Add, AtomicType::F64) => (f64::from_bits(old) + f64::from_bits(value)).to_bits(),
        (Atomic::Add, AtomicType::F16x2) => {
            let mode = Packed { brain: false, flush: false, saturate: false, relu: false };
            u64::from(apply_one(&Lane::PackedAdd(mode), old as u32, value as u32, 0, false))
        }
        (Atomic::Add, AtomicType::U64 | AtomicType::S64) => old.wrapping_add(value),
        (Atomic::Add, _) => u64::from((old as u32).wrapping_add(value as u32)),
        (_, AtomicType::S32) => {
            let (a, b) = (old as u32 as i32, value as u32 as i32);
            u64::from(if least { a.min(b) } else { a.max(b) } as u32)
        }
        (_, AtomicType::S64) => {
            let (a, b) = (old as i64, value as i64);
            (if least { a.min(b) } else { a.max(b) }) as u64
        }
        _ => {
            if least {
                old.min(value)
            } else {
                old.max(value)
            }
        }
    }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn update_global(env: &Env<'_>, words: &[AtomicU32], f: impl Fn(u64) -> u64) -> u64 {
    match words {
        [word] => {
            let update = |old: u32| Some(f(u64::from(old)) as u32);
            let result = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, update);
            u64::from(result.unwrap_or_else(|old| old))
        }
        [low, high, ..] => {
            let _held = env.lock.lock();
            let old = pair(low.load(Ordering::Acquire), high.load(Ordering::Acquire));
            let new = f(old);
            low.store(new as u32, Ordering::Release);
            high.store((new >> 32) as u32, Ordering::Release);
            old
        }
        [] => 0,
    }
}

impl Warp {
    /// Executes one atomic operation for each lane, in lane order.
    pub(crate) fn atomic<C: Strictness>(
        &mut self,
        env: &mut Env<'_>,
        mask: u32,
        op: &AtomicOp,
    ) -> Outcome<()> {
        let AtomicOp { operation, kind, out, d, ref pointer, source, source2 } = *op;
        let floating = matches!(kind, AtomicType::F32 | AtomicType::F64 | AtomicType::F16x2);
        let mut undone = 0;
        let addresses: [u64; LANES] = self.addresses(pointer);
        let words = kind.words();
        let bytes = words * 4;
        env.counters.atomics += u64::from(mask.count_ones());
        env.count(pointer.space, &addresses, mask, bytes, true);
        for lane in Each(mask) {
            let operand = |register: u8| {
                let high = usize::from(register.wrapping_add(1));
                let wide = words == 2 && register != RZ;
                let high = if wide { self.registers[high][lane] } else { 0 };
                pair(self.registers[usize::from(register)][lane], high)
            };
            let (value, compare) = (operand(source), operand(source2));
            let new = |old| replace(operation, kind, old, value, compare);
            let (space, address) = env.place(pointer.space, addresses[lane]);
            if floating && out != PT && pointer.space == Space::Generic && space != Space::Global {
                // The predicate makes the following code perform the operation by other means.
                undone |= 1 << lane;
                continue;
            }
            let old = match space {
                Space::Shared => {
                    let word =
                        env.shared.access::<C>(Kind::Atomic, self.index, address, bytes, lane)?;
                    let high = if words == 2 { env.shared.words[word + 1] } else { 0 };
                    let old = pair(env.shared.words[word], high);
                    let result = new(old);
                    let values = [result as u32, (result >> 32) as u32, 0, 0];
                    env.shared.write(word, address, bytes, &values);
                    if C::DEFINEDNESS && operation == Atomic::Exchange {
                        env.shared.set_written(address, bytes, true);
                    }
                    old
                }
                Space::Local => {
                    // Local memory has no atomic operations.
                    let limit = 0;
                    return Err(Raised::new(FaultKind::Local { address, bytes, limit }, 1 << lane));
                }
                Space::Global | Space::Generic => {
                    let found = env.global(address, bytes, Access::Atomic, lane)?;
                    let draw = env.losing.as_mut().map(Random::next);
                    let lost = draw.is_some_and(|draw| draw.is_multiple_of(LOST));
                    update_global(env, found, |old| if lost { old } else { new(old) })
                }
            };
            let result = match operation {
                Atomic::CompareStore => u64::from(old == value),
                _ => old,
            };
            if let Some(d) = d {
                self.write_lane(d, lane, result as u32);
                if words == 2 && d != RZ {
                    self.write_lane(d.wrapping_add(1), lane, (result >> 32) as u32);
                }
            }
        }
        self.write_predicate(out, mask, !undone);
        Ok(())
    }
}
