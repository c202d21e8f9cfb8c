//! Lowering of memory, control flow, barriers and special registers.

use super::op::{ALWAYS, Arrival, Atomic, AtomicOp, AtomicType, Op, Origin, Source, Space};
use super::operands::{Number, View};
use crate::isa::{Modifier, Opcode, Operand, PT, Part, RZ, URZ};

/// Lowers an instruction; `None` if it is not supported.
pub(super) fn lower(view: &View<'_>) -> Option<Op> {
    use Opcode as O;
    let load = |space| -> Option<Op> {
        // The result of a load whose predicate is false is undocumented.
        if view.condition(2).is_some_and(|given| given != ALWAYS) {
            return None;
        }
        Some(Op::Load { d: view.register(0)?, pointer: view.pointer(1, space)?, size: view.size() })
    };
    let store = |space| -> Option<Op> {
        Some(Op::Store {
            pointer: view.pointer(0, space)?,
            source: view.register(1)?,
            size: view.size(),
        })
    };
    match view.0.opcode {
        // Caches and fences have no effect: every access takes place immediately and in order.
        O::Nop | O::Membar | O::Errbar | O::Pmtrig => Some(Op::Nothing),
        O::Cctl if view.has(Modifier::Ivall) => Some(Op::Nothing),
        // An operation on one line transfers nothing, but its address must be mapped.
        O::Cctl => Some(Op::CacheLine { pointer: view.pointer(0, Space::Global)? }),
        O::Ldg => load(Space::Global),
        O::Ld => load(Space::Generic),
        O::Lds => load(Space::Shared),
        O::Ldl => load(Space::Local),
        O::Stg => store(Space::Global),
        O::St => store(Space::Generic),
        O::Sts => store(Space::Shared),
        O::Stl => store(Space::Local),
        O::Ldc => {
            if view.has(Modifier::Il) || view.has(Modifier::Is) || view.has(Modifier::Isl) {
                return None;
            }
            let Operand::Constant { bank, offset, register, .. } = *view.operand(1)? else {
                return None;
            };
            let (d, size) = (view.register(0)?, view.size());
            Some(Op::LoadConstant { d, bank, register, offset, size })
        }
        O::Uldc => {
            let (bank, offset, index) = match *view.operand(1)? {
                Operand::Constant { bank, offset, .. } => (bank, offset, None),
                Operand::UniformConstant { bank, offset, uniform } => {
                    (bank, offset, Some(uniform).filter(|&index| index != URZ))
                }
                _ => return None,
            };
            let (d, size) = (view.register(0)?, view.size());
            Some(Op::LoadUniform { d, bank, index, offset, size })
        }
        O::Atomg => atomic(view, Space::Global, 1, 2),
        O::Atom => atomic(view, Space::Generic, 1, 2),
        O::Atoms if view.has(Modifier::Popc) => Some(Op::Atomic(AtomicOp {
            operation: Atomic::AddOne,
            kind: AtomicType::U32,
            out: PT,
            d: Some(view.register(0)?),
            pointer: view.pointer(1, Space::Shared)?,
            source: RZ,
            source2: RZ,
        })),
        O::Atoms => atomic(view, Space::Shared, 0, 1),
        O::Red => {
            let pointer = view.pointer(0, Space::Global)?;
            let (operation, kind) = (operation(view)?, kind(view)?);
            let source = view.register(1)?;
            let (out, d, source2) = (PT, None, RZ);
            Some(Op::Atomic(AtomicOp { operation, kind, out, d, pointer, source, source2 }))
        }
        O::Ldgsts => Some(Op::CopyAsync {
            to: view.pointer(0, Space::Shared)?,
            from: view.pointer(1, Space::Global)?,
            bytes: view.size().bytes,
            p: view.condition(2)?,
        }),
        O::Ldgdepbar => Some(Op::CommitCopies),
        O::Depbar => Some(Op::WaitCopies { left: view.number(1)? as u8 }),
        O::Ldsm => Some(Op::LoadMatrix {
            d: view.register(0)?,
            pointer: view.pointer(1, Space::Shared)?,
            count: view.one_of(&[(Modifier::N2, 2), (Modifier::N4, 4)]).unwrap_or(1),
            transpose: view.has(Modifier::Mt88),
        }),
        _ => special(view),
    }
}

/// Lowers reads of special registers and moves to uniform ones; passes other instructions on.
fn special(view: &View<'_>) -> Option<Op> {
    use Opcode as O;
    match view.0.opcode {
        O::Qspc => {
            let Operand::Address(address) = *view.operand(2)? else { return None };
            let space = view.one_of(&[
                (Modifier::G, Space::Global),
                (Modifier::L, Space::Local),
                (Modifier::S, Space::Shared),
            ])?;
            let (register, offset) = (address.register, address.offset);
            Some(Op::SpaceTest { out: view.predicate(0)?, space, register, offset })
        }
        O::S2r | O::Cs2r => {
            let Operand::Special(special) = *view.operand(1)? else { return None };
            let wide = view.0.opcode == O::Cs2r && !view.has(Modifier::B32);
            Some(Op::ReadSpecial { d: view.register(0)?, special, wide })
        }
        O::S2ur => {
            let Operand::Special(special) = *view.operand(1)? else { return None };
            Some(Op::ReadSpecialUniform { d: view.register(0)?, special })
        }
        O::R2ur => {
            let (d, out) = (view.register(1)?, view.predicate(0)?);
            Some(Op::ToUniform { d, out, a: view.source(2, Number::Integer)? })
        }
        _ => control(view),
    }
}

fn control(view: &View<'_>) -> Option<Op> {
    use Opcode as O;
    let step = |target: i64| -> Option<u32> {
        let aligned = target >= 0 && target % 16 == 0;
        if aligned { u32::try_from(target / 16).ok() } else { None }
    };
    let barrier = |position| view.barrier(position);
    let p = || view.condition(0);
    match view.0.opcode {
        O::Bra if view.has(Modifier::Div) || view.has(Modifier::Conv) => Some(Op::BranchIf {
            p: p()?,
            mask: view.source(1, Number::Integer)?,
            converged: view.has(Modifier::Conv),
            target: step(view.target(2)?)?,
        }),
        O::Bra if view.has(Modifier::U) => {
            Some(Op::BranchTogether { p: p()?, target: step(view.target(1)?)? })
        }
        O::Bra => Some(Op::Branch { p: p()?, target: step(view.target(1)?)? }),
        O::Call if view.0.operands.len() == 2 => {
            Some(Op::Branch { p: p()?, target: step(view.target(1)?)? })
        }
        O::Call => indirect(view, view.target(2)?),
        O::Ret if view.has(Modifier::Rel) => indirect(view, view.target(2)?),
        O::Brx => indirect(view, view.target(2)? + view.next()),
        O::Exit => Some(Op::Exit { p: p()? }),
        O::Bssy => Some(Op::Join { p: p()?, barrier: barrier(1)? }),
        O::Bsync => Some(Op::Synchronise { p: p()?, barrier: barrier(1)? }),
        O::Break => Some(Op::Leave { p: p()?, barrier: barrier(1)? }),
        O::Bmov => bmov(view),
        O::Warpsync => Some(Op::WarpSync { p: p()?, mask: view.source(1, Number::Integer)? }),
        O::Yield | O::Nanosleep => Some(Op::Yield),
        O::Bar => barrier_of_block(view),
        O::B2r => Some(Op::BarrierResult { d: view.register(0)?, out: view.predicate(1)? }),
        O::Bpt => Some(Op::Trap),
        _ => None,
    }
}

/// One register contains the number in its low bits and the count above them if it is named twice;
/// otherwise the count has its own register.
fn barrier_of_block(view: &View<'_>) -> Option<Op> {
    let id = Source { keep: 0xf, ..view.source(0, Number::Integer)? };
    let threads = Source { keep: 0xfff, ..view.source(1, Number::Integer)? };
    let both = matches!(id.origin, Origin::Register(_)) && threads.origin == id.origin;
    Some(Op::Barrier {
        id,
        threads: if both { Source { part: Part::Half(1), ..threads } } else { threads },
        arrival: view
            .one_of(&[
                (Modifier::Arv, Arrival::Arrive),
                (Modifier::Popc, Arrival::Count),
                (Modifier::And, Arrival::All),
                (Modifier::Or, Arrival::Any),
            ])
            .unwrap_or(Arrival::Wait),
        p: view.condition(2).unwrap_or(ALWAYS),
    })
}

fn indirect(view: &View<'_>, offset: i64) -> Option<Op> {
    let register = view.register(1)?;
    Some(Op::BranchIndirect { p: view.condition(0)?, register, offset })
}

fn bmov(view: &View<'_>) -> Option<Op> {
    let clear = view.has(Modifier::Clear);
    Some(match (*view.operand(0)?, *view.operand(1)?) {
        (Operand::Register { index, .. }, Operand::Barrier(barrier)) => {
            Op::SaveBarrier { d: index, barrier, clear }
        }
        (Operand::Barrier(d), Operand::Barrier(barrier)) => Op::CopyBarrier { d, barrier, clear },
        (Operand::Barrier(barrier), _) => {
            Op::RestoreBarrier { barrier, source: view.source(1, Number::Integer)? }
        }
        _ => return None,
    })
}

fn operation(view: &View<'_>) -> Option<Atomic> {
    view.one_of(&[
        (Modifier::Add, Atomic::Add),
        (Modifier::Min, Atomic::Minimum),
        (Modifier::Max, Atomic::Maximum),
        (Modifier::Inc, Atomic::Increment),
        (Modifier::Dec, Atomic::Decrement),
        (Modifier::And, Atomic::And),
        (Modifier::Or, Atomic::Or),
        (Modifier::Xor, Atomic::Xor),
        (Modifier::Exch, Atomic::Exchange),
        (Modifier::Cas, Atomic::CompareExchange),
        (Modifier::Cast, Atomic::CompareStore),
    ])
}

fn kind(view: &View<'_>) -> Option<AtomicType> {
    Some(
        view.one_of(&[
            (Modifier::S32, AtomicType::S32),
            (Modifier::B64, AtomicType::U64),
            (Modifier::S64, AtomicType::S64),
            (Modifier::F32FtzRn, AtomicType::F32),
            (Modifier::F64Rn, AtomicType::F64),
            (Modifier::F16x2, AtomicType::F16x2),
        ])
        .unwrap_or(AtomicType::U32),
    )
}

fn atomic(view: &View<'_>, space: Space, d: usize, address: usize) -> Option<Op> {
    let (operation, kind) = (operation(view)?, kind(view)?);
    let floating = matches!(kind, AtomicType::F32 | AtomicType::F64 | AtomicType::F16x2);
    if floating && operation != Atomic::Add {
        return None;
    }
    let compares = matches!(operation, Atomic::CompareExchange | Atomic::CompareStore);
    let source2 = if compares { view.register(address + 2)? } else { RZ };
    let (d, pointer) = (view.register(d)?, view.pointer(address, space)?);
    let source = view.register(address + 1)?;
    // Atomics on shared memory have no predicate; for others it reports success.
    let out = if space == Space::Shared { PT } else { view.predicate(0)? };
    Some(Op::Atomic(AtomicOp { operation, kind, out, d: Some(d), pointer, source, source2 }))
}
