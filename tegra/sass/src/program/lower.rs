//! Lowering of arithmetic, predicates, conversions, matrices and warp exchanges. `lower_flow`
//! lowers memory and control flow.

use super::op::{
    ALWAYS, Carry, Combine, Compared, Comparison, Condition, Element, Format, Function, Integer,
    Lane, LogicTest, MatrixInteger, Op, Origin, Reduction, Relation, Shift, ShiftAddCarry, Shuffle,
    Source, Upper, Vote, Wide, WideOp,
};
use super::operands::{Number, View};
use crate::isa::{Modifier, Opcode, Operand, PT, Part, RZ};

const ZERO: Source = Source::zero();

/// Lowers an instruction; `None` if it is not supported.
pub(super) fn lower(view: &View<'_>) -> Option<Op> {
    use Number::{Float, Integer as Int};
    use Opcode as O;
    let simple = |lane, first, number| alu(view, lane, first, number);
    match view.0.opcode {
        O::Iadd3 | O::Uiadd3 => add3(view),
        O::Imad | O::Uimad if view.has(Modifier::Wide) || view.has(Modifier::Hi) => {
            multiply_wide(view)
        }
        O::Imad | O::Uimad => multiply(view),
        O::Isetp | O::Uisetp => {
            let signed = !view.has(Modifier::U32);
            let compared = match view.has(Modifier::Ex) {
                true => Compared::UpperIntegers { signed },
                false => Compared::Integers { signed },
            };
            compare(view, compared, Int)
        }
        O::Imnmx => with_condition(view, Lane::Minimum { signed: !view.has(Modifier::U32) }, Int),
        O::Iabs => unary(view, Lane::Absolute, Int),
        O::Lea | O::Ulea => shift_add(view),
        O::Lop3 | O::Ulop3 => logic(view),
        O::Shf | O::Ushf => {
            let shift = Shift {
                left: view.has(Modifier::L),
                wrap: view.has(Modifier::W),
                signed: view.has(Modifier::S32) || view.has(Modifier::S64),
                wide: view.has(Modifier::U64) || view.has(Modifier::S64),
                high: view.has(Modifier::Hi),
            };
            simple(Lane::Shift(shift), 1, Int)
        }
        O::Sgxt | O::Usgxt => {
            let signed = !view.has(Modifier::U32);
            simple(Lane::Extend { signed, wrap: view.has(Modifier::W) }, 1, Int)
        }
        O::Bmsk | O::Ubmsk => simple(Lane::Mask { wrap: view.has(Modifier::W) }, 1, Int),
        O::Prmt | O::Uprmt => {
            // Selectors of the modes of `prmt` in the PTX manual, one for each of four values.
            let by = view.one_of(&[
                (Modifier::F4e, [0x3210, 0x4321, 0x5432, 0x6543]),
                (Modifier::B4e, [0x5670, 0x6701, 0x7012, 0x0123]),
                (Modifier::Rc8, [0x0000, 0x1111, 0x2222, 0x3333]),
                (Modifier::Ecl, [0x3210, 0x3211, 0x3222, 0x3333]),
                (Modifier::Ecr, [0x0000, 0x1110, 0x2210, 0x3210]),
                (Modifier::Rc16, [0x1010, 0x3232, 0x1010, 0x3232]),
            ]);
            simple(by.map_or(Lane::Permute, Lane::PermuteBy), 1, Int)
        }
        O::Sel | O::Usel => with_condition(view, Lane::Select, Int),
        O::Fsel => with_condition(view, Lane::Select, Float).filter(|_| !view.has(Modifier::Ftz)),
        O::Mov | O::Umov => unary(view, Lane::Move, Int),
        O::Popc | O::Upopc => unary(view, Lane::CountOnes, Int),
        O::Brev | O::Ubrev => unary(view, Lane::Reverse, Int),
        O::Flo | O::Uflo => leading(view),
        O::Idp => {
            let (a, b) = (view.type_signed(0)?, view.type_signed(1)?);
            let lane = if view.has(Modifier::A4) {
                Lane::Dot4 { a, b }
            } else {
                Lane::Dot2 { a, b, high: view.has(Modifier::Hi) }
            };
            simple(lane, 1, Int)
        }
        O::Vabsdiff => {
            simple(Lane::AbsoluteDifference { signed: !view.has(Modifier::U32) }, 2, Int)
        }
        O::Vabsdiff4 => {
            let (signed, sum) = (!view.has(Modifier::U8), view.has(Modifier::Acc));
            simple(Lane::AbsoluteDifference4 { signed, sum }, 2, Int)
        }
        O::I2i => unary(view, Lane::Saturate(view.integer()), Int),
        O::F2ip => {
            let to = Integer { bits: 8, signed: view.has(Modifier::S8) };
            simple(Lane::PackIntegers { to, rounded: Some(view.round()) }, 1, Int)
        }
        O::I2ip => simple(Lane::PackIntegers { to: view.packed_integer()?, rounded: None }, 1, Int),
        _ => predicates(view),
    }
}

/// Lowers logic on predicates; passes other instructions on.
fn predicates(view: &View<'_>) -> Option<Op> {
    use Number::Integer as Int;
    use Opcode as O;
    match view.0.opcode {
        O::Plop3 if view.condition(2).is_none() => Some(Op::Signs {
            tables: [view.number(5)? as u8, view.number(6)? as u8],
            out: [view.predicate(0)?, view.predicate(1)?],
            sources: integers(view, 2)?,
        }),
        O::Plop3 | O::Uplop3 => Some(Op::Predicates {
            tables: [view.number(5)? as u8, view.number(6)? as u8],
            out: [view.predicate(0)?, view.predicate(1)?],
            sources: [view.condition(2)?, view.condition(3)?, view.condition(4)?],
            uniform: view.0.opcode == O::Uplop3,
        }),
        O::P2r => Some(Op::FromPredicates {
            d: view.register(0)?,
            byte: view
                .one_of(&[(Modifier::B1, 1), (Modifier::B2, 2), (Modifier::B3, 3)])
                .unwrap_or(0),
            base: view.source(2, Int)?,
            mask: view.source(3, Int)?,
        }),
        O::R2p => {
            Some(Op::ToPredicates { source: view.source(1, Int)?, mask: view.source(2, Int)? })
        }
        _ => floating(view),
    }
}

/// Lowers single and double precision.
fn floating(view: &View<'_>) -> Option<Op> {
    use Number::Float;
    use Opcode as O;
    let simple = |lane, first, number| alu(view, lane, first, number);
    match view.0.opcode {
        O::Fadd => simple(Lane::FloatAdd(view.float()), 1, Float),
        O::Fmul => {
            let scale = view.one_of(&[
                (Modifier::D8, -3),
                (Modifier::D4, -2),
                (Modifier::D2, -1),
                (Modifier::M2, 1),
                (Modifier::M4, 2),
                (Modifier::M8, 3),
            ]);
            let mode = view.float();
            let lane = match scale {
                None => Lane::FloatMultiply(mode),
                Some(exponent) => Lane::FloatScaled { mode, exponent },
            };
            simple(lane, 1, Float)
        }
        O::Ffma => simple(Lane::FloatFused(view.float()), 1, Float),
        O::Fmnmx => {
            let lane = Lane::FloatMinimum {
                flush: view.has(Modifier::Ftz),
                nan: view.has(Modifier::Nan),
                sign: view.has(Modifier::Xorsign),
            };
            minimum(view, lane, Float)
        }
        O::Fset => {
            let (relation, flush) = (view.relation()?, view.has(Modifier::Ftz));
            let lane = Lane::FloatCompare { relation, flush, combine: view.combine() };
            with_condition(view, lane, Float)
        }
        O::Fsetp => compare(view, Compared::Floats { flush: view.has(Modifier::Ftz) }, Float),
        O::Fchk => Some(Op::Compare(Comparison {
            compared: Compared::Division,
            relation: NEVER,
            combine: Combine::And,
            out: [view.predicate(0)?, PT],
            a: [view.source(1, Float)?, ZERO],
            b: [view.source(2, Float)?, ZERO],
            p: ALWAYS,
            extra: ALWAYS,
            uniform: false,
        })),
        O::Mufu => {
            let function = view.one_of(&[
                (Modifier::Cos, Function::Cos),
                (Modifier::Sin, Function::Sin),
                (Modifier::Ex2, Function::Exp2),
                (Modifier::Lg2, Function::Log2),
                (Modifier::Rcp, Function::Reciprocal),
                (Modifier::Rsq, Function::ReciprocalRoot),
                (Modifier::Rcp64h, Function::ReciprocalHigh),
                (Modifier::Rsq64h, Function::ReciprocalRootHigh),
                (Modifier::Sqrt, Function::Root),
                (Modifier::Tanh, Function::Tanh),
            ])?;
            if view.has(Modifier::F16) {
                return alu_with(
                    view,
                    Lane::HalfFunction(function),
                    [single(view, Format::Half)?, ZERO, ZERO],
                    ALWAYS,
                );
            }
            unary(view, Lane::Function(function), Float)
        }
        O::Dadd => double(view, Wide::DoubleAdd(view.round())),
        O::Dmul => double(view, Wide::DoubleMultiply(view.round())),
        O::Dfma => double(view, Wide::DoubleFused(view.round())),
        O::Dsetp => compare_doubles(view),
        _ => packed(view),
    }
}

/// Lowers packed halves and conversions.
fn packed(view: &View<'_>) -> Option<Op> {
    use Number::{Float, Halves};
    use Opcode as O;
    let simple = |lane, first, number| alu(view, lane, first, number);
    match view.0.opcode {
        O::Hadd2 if view.has(Modifier::F32) => {
            simple(Lane::PackedAddWide { saturate: view.has(Modifier::Sat) }, 1, Halves)
        }
        O::Hadd2 => simple(Lane::PackedAdd(view.packed()?), 1, Halves),
        O::Hmul2 => simple(Lane::PackedMultiply(view.packed()?), 1, Halves),
        // The effect of a predicate behind `.RELU` is undocumented.
        O::Hfma2 if view.has(Modifier::Relu) && view.condition(4)? != ALWAYS => None,
        O::Hfma2 => simple(Lane::PackedFused(view.packed()?), 1, Halves),
        O::Hmnmx2 => {
            let lane = Lane::PackedMinimum {
                packed: view.packed()?,
                nan: view.has(Modifier::Nan),
                sign: view.has(Modifier::Xorsign),
            };
            minimum(view, lane, Halves)
        }
        O::Hset2 => {
            let lane = Lane::PackedCompare {
                relation: view.relation()?,
                brain: false,
                flush: view.has(Modifier::Ftz),
                combine: view.combine(),
                float: view.has(Modifier::Bf),
            };
            with_condition(view, lane, Halves)
        }
        O::Hsetp2 => {
            let (flush, both) = (view.has(Modifier::Ftz), view.has(Modifier::HAnd));
            compare(view, Compared::Halves { flush, both }, Halves)
        }
        O::F2fp => {
            let lane = Lane::Pack {
                brain: view.has(Modifier::Bf16),
                relu: view.has(Modifier::Relu),
                round: view.round(),
            };
            // The upper half of a merge is only known if its source is `RZ`.
            let merge = view.has(Modifier::MergeC);
            if merge && view.register(3) != Some(RZ) {
                return None;
            }
            let upper = if merge { ZERO } else { view.source(1, Float)? };
            alu_with(view, lane, [upper, view.source(2, Float)?, ZERO], ALWAYS)
        }
        O::F2i | O::I2f | O::I2fp | O::F2f | O::Frnd => convert(view),
        _ => warp(view),
    }
}

/// Lowers exchanges between lanes and matrix products.
fn warp(view: &View<'_>) -> Option<Op> {
    use Number::Integer as Int;
    use Opcode as O;
    match view.0.opcode {
        O::Shfl => Some(Op::Shuffle {
            mode: view.one_of(&[
                (Modifier::Idx, Shuffle::Index),
                (Modifier::Up, Shuffle::Up),
                (Modifier::Down, Shuffle::Down),
                (Modifier::Bfly, Shuffle::Butterfly),
            ])?,
            out: view.predicate(0)?,
            d: view.register(1)?,
            a: view.source(2, Int)?,
            lane: view.source(3, Int)?,
            limit: view.source(4, Int)?,
        }),
        O::Match => Some(Op::Match {
            all: view.has(Modifier::All),
            wide: view.has(Modifier::U64),
            out: if view.has(Modifier::All) { view.predicate(0)? } else { PT },
            d: view.register(1)?,
            a: view.register(2)?,
        }),
        O::Redux => Some(Op::Reduce {
            reduction: view
                .one_of(&[
                    (Modifier::Or, Reduction::Or),
                    (Modifier::Xor, Reduction::Xor),
                    (Modifier::Sum, Reduction::Sum),
                    (Modifier::Min, Reduction::Minimum),
                    (Modifier::Max, Reduction::Maximum),
                ])
                .unwrap_or(Reduction::And),
            signed: view.has(Modifier::S32),
            d: view.register(0)?,
            a: view.source(1, Int)?,
        }),
        O::Vote | O::Voteu => Some(Op::Vote {
            vote: view.one_of(&[
                (Modifier::All, Vote::All),
                (Modifier::Any, Vote::Any),
                (Modifier::Eq, Vote::Equal),
            ])?,
            d: view.register(0)?,
            out: view.predicate(1)?,
            p: view.condition(2)?,
            uniform: view.0.opcode == O::Voteu,
        }),
        O::Hmma => matrix_float(view),
        O::Imma | O::Bmma => matrix_integer(view),
        O::Dmma => Some(Op::MatrixDouble {
            d: view.register(0)?,
            sources: [view.register(1)?, view.register(2)?, view.register(3)?],
            modify: [view.modify(1), view.modify(2), view.modify(3)],
            round: view.round(),
        }),
        O::Movm => Some(Op::Transpose { d: view.register(0)?, a: view.source(1, Int)? }),
        _ => super::lower_flow::lower(view),
    }
}

const NEVER: Relation = Relation { less: false, equal: false, greater: false, unordered: false };

/// Builds an operation; the destination decides whether it is uniform.
fn alu_with(view: &View<'_>, lane: Lane, sources: [Source; 3], p: Condition) -> Option<Op> {
    let [a, b, c] = sources;
    Some(match view.operand(0)? {
        Operand::Uniform { index, .. } => Op::UniformAlu { lane, d: *index, a, b, c, p },
        Operand::Register { index, .. } => Op::Alu { lane, d: *index, a, b, c, p },
        _ => return None,
    })
}

/// Builds an operation from all sources starting at a position.
fn alu(view: &View<'_>, lane: Lane, first: usize, number: Number) -> Option<Op> {
    let mut sources = [ZERO; 3];
    for (position, source) in sources.iter_mut().enumerate() {
        let operand = view.operand(first + position);
        if operand.is_some_and(|operand| {
            !matches!(operand, Operand::Predicate { .. } | Operand::UniformPredicate { .. })
        }) {
            *source = view.source(first + position, number)?;
        }
    }
    if let Operand::Register { .. } | Operand::Uniform { .. } = view.operand(0)? {
        alu_with(view, lane, sources, ALWAYS)
    } else {
        None
    }
}

/// Builds an operation with one source.
fn unary(view: &View<'_>, lane: Lane, number: Number) -> Option<Op> {
    alu_with(view, lane, [view.source(1, number)?, ZERO, ZERO], ALWAYS)
}

/// Builds an operation with two sources and a condition.
fn with_condition(view: &View<'_>, lane: Lane, number: Number) -> Option<Op> {
    let sources = [view.source(1, number)?, view.source(2, number)?, ZERO];
    alu_with(view, lane, sources, view.condition(3)?)
}

/// Builds a minimum or maximum. `.XORSIGN` compares magnitudes but needs the signs too.
fn minimum(view: &View<'_>, lane: Lane, number: Number) -> Option<Op> {
    if !view.has(Modifier::Xorsign) {
        return with_condition(view, lane, number);
    }
    let source = |position| {
        let (modify, source) = (view.modify(position), view.source(position, number)?);
        let number = matches!(source.origin, Origin::Immediate(_));
        (number || modify.absolute && !modify.negate).then_some(Source { keep: !0, ..source })
    };
    alu_with(view, lane, [source(1)?, source(2)?, ZERO], view.condition(3)?)
}

/// Reads three integer sources from a position on.
fn integers(view: &View<'_>, first: usize) -> Option<[Source; 3]> {
    let source = |position| view.source(first + position, Number::Integer);
    Some([source(0)?, source(1)?, source(2)?])
}

fn uniform(view: &View<'_>) -> bool {
    matches!(view.operand(0), Some(Operand::Uniform { .. }))
}

fn add3(view: &View<'_>) -> Option<Op> {
    let mut sources = integers(view, 3)?;
    let out = [view.predicate(1)?, view.predicate(2)?];
    let extended = view.has(Modifier::X);
    if out == [PT; 2] && !extended {
        return alu_with(view, Lane::Add3, sources, ALWAYS);
    }
    let extra = View::take_ones(&mut sources);
    let carry = if extended { Some([view.condition(6)?, view.condition(7)?]) } else { None };
    let (d, [a, b, c], uniform) = (view.register(0)?, sources, uniform(view));
    Some(Op::Carry(Carry { d, a, b, c, extra, out, carry, uniform }))
}

/// Builds a 64-bit operation without carries.
fn wide(view: &View<'_>, wide: Wide, sources: [[Source; 2]; 3]) -> Option<WideOp> {
    let (d, [a, b, c], uniform) = (view.register(0)?, sources, uniform(view));
    Some(WideOp { wide, d, a, b, c, out: PT, carry: None, uniform })
}

fn multiply(view: &View<'_>) -> Option<Op> {
    let sources = integers(view, 1)?;
    if !view.has(Modifier::X) {
        return alu_with(view, Lane::MultiplyAdd, sources, ALWAYS);
    }
    // With a carry, the lower word of the product is the result.
    let product = Wide::MultiplyAdd { signed: false, high: false, narrow: true, negate: false };
    let operation = wide(view, product, sources.map(|source| [source, ZERO]))?;
    Some(Op::Wide(WideOp { carry: Some(view.condition(4)?), ..operation }))
}

fn multiply_wide(view: &View<'_>) -> Option<Op> {
    let (c, negate) = view.integer_pair(4)?;
    let (signed, high) = (!view.has(Modifier::U32), view.has(Modifier::Hi));
    let product = Wide::MultiplyAdd { signed, high, narrow: false, negate };
    let [a, b] = [view.source(2, Number::Integer)?, view.source(3, Number::Integer)?];
    let carry = if view.has(Modifier::X) { Some(view.condition(5)?) } else { None };
    let operation = wide(view, product, [[a, ZERO], [b, ZERO], c])?;
    Some(Op::Wide(WideOp { out: view.predicate(1)?, carry, ..operation }))
}

fn shift_add(view: &View<'_>) -> Option<Op> {
    let a = view.source(2, Number::Integer)?;
    let b = view.source(3, Number::Integer)?;
    let out = view.predicate(1)?;
    let shift = view.number(5)? as u8;
    let (carry, signed) = (view.has(Modifier::X), view.has(Modifier::Sx32));
    let high = view.has(Modifier::Hi);
    // The upper word of a negated source and the sign of a lower word are unknown.
    if high && a.plus != 0 || signed && !high {
        return None;
    }
    let carry_in = if carry { Some(view.condition(6)?) } else { None };
    if out != PT || carry && !high {
        let mut sources = [b];
        let extra = View::take_ones(&mut sources);
        let upper = match (high, signed) {
            (false, _) => Upper::None,
            (true, true) => Upper::Sign,
            (true, false) => Upper::Word(view.source(4, Number::Integer)?),
        };
        let (d, [b], uniform) = (view.register(0)?, sources, uniform(view));
        let sum = ShiftAddCarry { d, a, b, upper, shift, extra, carry: carry_in, out, uniform };
        return Some(Op::ShiftAddCarry(sum));
    }
    if !high {
        return alu_with(view, Lane::ShiftAdd { shift }, [a, b, ZERO], ALWAYS);
    }
    let c = view.source(4, Number::Integer)?;
    let p = carry_in.unwrap_or(ALWAYS);
    alu_with(view, Lane::ShiftAddHigh { shift, signed, carry }, [a, b, c], p)
}

fn logic(view: &View<'_>) -> Option<Op> {
    let table = view.number(5)? as u8;
    let [a, b, c] = integers(view, 2)?;
    let uniform = matches!(view.operand(1)?, Operand::Uniform { .. });
    let (d, out) = (view.register(1)?, view.predicate(0)?);
    if out == PT {
        let lane = Lane::Logic { table };
        return Some(if uniform {
            Op::UniformAlu { lane, d, a, b, c, p: ALWAYS }
        } else {
            Op::Alu { lane, d, a, b, c, p: ALWAYS }
        });
    }
    let (p, and) = (view.condition(6)?, view.has(Modifier::Pand));
    Some(Op::LogicTest(LogicTest { table, d, a, b, c, out, p, and, uniform }))
}

fn leading(view: &View<'_>) -> Option<Op> {
    let (signed, distance) = (!view.has(Modifier::U32), view.has(Modifier::Sh));
    let (a, out) = (view.source(2, Number::Integer)?, view.predicate(1)?);
    if out == PT {
        return alu_with(view, Lane::LeadingOne { signed, distance }, [a, ZERO, ZERO], ALWAYS);
    }
    if uniform(view) {
        return None;
    }
    Some(Op::LeadingTest { d: view.register(0)?, a, signed, distance, out })
}

fn compare(view: &View<'_>, compared: Compared, number: Number) -> Option<Op> {
    let (a, b) = (view.source(2, number)?, view.source(3, number)?);
    comparison(view, compared, view.relation()?, [a, ZERO], [b, ZERO])
}

fn compare_doubles(view: &View<'_>) -> Option<Op> {
    let (compared, relation) = match view.one_of(&[(Modifier::Min, false), (Modifier::Max, true)]) {
        Some(maximum) => (Compared::DoubleExtreme { maximum }, NEVER),
        None => (Compared::Doubles, view.relation()?),
    };
    comparison(view, compared, relation, view.pair(2)?, view.pair(3)?)
}

fn comparison(
    view: &View<'_>,
    compared: Compared,
    relation: Relation,
    a: [Source; 2],
    b: [Source; 2],
) -> Option<Op> {
    let extra = match compared {
        Compared::UpperIntegers { .. } => view.condition(5)?,
        _ => ALWAYS,
    };
    let (out, p) = ([view.predicate(0)?, view.predicate(1)?], view.condition(4)?);
    let (combine, uniform) = (view.combine(), view.0.opcode == Opcode::Uisetp);
    Some(Op::Compare(Comparison { compared, relation, combine, out, a, b, p, extra, uniform }))
}

fn double(view: &View<'_>, operation: Wide) -> Option<Op> {
    let c = if view.operand(3).is_some() { view.pair(3)? } else { [ZERO; 2] };
    Some(Op::Wide(wide(view, operation, [view.pair(1)?, view.pair(2)?, c])?))
}

fn convert(view: &View<'_>) -> Option<Op> {
    let (round, flush) = (view.round(), view.has(Modifier::Ftz));
    let wide = |operation, a| Some(Op::Wide(wide(view, operation, [a, [ZERO; 2], [ZERO; 2]])?));
    let narrow = |lane, a| alu_with(view, lane, [a, ZERO, ZERO], ALWAYS);
    match view.0.opcode {
        Opcode::F2i => {
            let (from, to) = (view.format(), view.integer());
            if from == Format::Double {
                return wide(Wide::ToInteger { from, to, round, flush }, view.pair(1)?);
            }
            let source = single(view, from)?;
            if to.bits == 64 {
                return wide(Wide::ToInteger { from, to, round, flush }, [source, ZERO]);
            }
            narrow(Lane::ToInteger { from, to, round, flush }, source)
        }
        Opcode::I2f | Opcode::I2fp => {
            let (from, to) = (view.integer(), view.format());
            if from.bits == 64 {
                return wide(Wide::FromInteger { from, to, round }, view.integer_pair(1)?.0);
            }
            let source = view.source(1, Number::Integer)?;
            if to == Format::Double {
                return wide(Wide::FromInteger { from, to, round }, [source, ZERO]);
            }
            narrow(Lane::FromInteger { from, to, round }, source)
        }
        Opcode::F2f => {
            // The destination format is the first modifier.
            let mut formats = view.0.modifiers.iter().filter_map(|modifier| match modifier {
                Modifier::F16 => Some(Format::Half),
                Modifier::Bf16 => Some(Format::Brain),
                Modifier::F32 => Some(Format::Single),
                Modifier::F64 => Some(Format::Double),
                _ => None,
            });
            let (to, from) = (formats.next()?, formats.next()?);
            let source = match from {
                Format::Double => view.pair(1)?,
                Format::Half => [single(view, Format::Half)?, ZERO],
                Format::Single | Format::Brain => [view.source(1, Number::Float)?, ZERO],
            };
            wide(Wide::Convert { from, to, round, flush }, source)
        }
        _ => match view.format() {
            Format::Double => wide(Wide::RoundToInteger { round }, view.pair(1)?),
            format => narrow(Lane::RoundToInteger { format, round, flush }, single(view, format)?),
        },
    }
}

/// Reads a source of at most 32 bits; its sign position follows from the format.
fn single(view: &View<'_>, format: Format) -> Option<Source> {
    match format {
        Format::Half => view.source(1, Number::Halves).filter(|s| !matches!(s.part, Part::Byte(_))),
        _ => view.source(1, Number::Float),
    }
}

fn matrix_float(view: &View<'_>) -> Option<Op> {
    if view.has(Modifier::Sp) {
        return None;
    }
    let depth =
        view.one_of(&[(Modifier::M1684, 4), (Modifier::M1688, 8), (Modifier::M16816, 16)])?;
    let element = view
        .one_of(&[(Modifier::Bf16, Element::Brain), (Modifier::Tf32, Element::Tensor)])
        .unwrap_or(Element::Half);
    let tensor = element == Element::Tensor;
    if tensor && depth == 16 || !tensor && depth == 4 {
        return None;
    }
    let half = view.has(Modifier::F16);
    Some(Op::MatrixFloat {
        d: view.register(0)?,
        a: view.register(1)?,
        b: view.register(2)?,
        c: view.register(3)?,
        depth,
        element,
        half,
    })
}

fn matrix_integer(view: &View<'_>) -> Option<Op> {
    if view.has(Modifier::Sp) {
        return None;
    }
    let (rows, depth) = view.one_of(&[
        (Modifier::M8816, (8, 16)),
        (Modifier::M8832, (8, 32)),
        (Modifier::M88128, (8, 128)),
        (Modifier::M16816, (16, 16)),
        (Modifier::M16832, (16, 32)),
        (Modifier::M16864, (16, 64)),
        (Modifier::M168128, (16, 128)),
        (Modifier::M168256, (16, 256)),
    ])?;
    let mut types = view.0.modifiers.iter().filter_map(|modifier| match modifier {
        Modifier::U8 => Some(Integer { bits: 8, signed: false }),
        Modifier::S8 => Some(Integer { bits: 8, signed: true }),
        Modifier::U4 => Some(Integer { bits: 4, signed: false }),
        Modifier::S4 => Some(Integer { bits: 4, signed: true }),
        _ => None,
    });
    let bit = Integer { bits: 1, signed: false };
    let kinds =
        if view.0.opcode == Opcode::Bmma { [bit; 2] } else { [types.next()?, types.next()?] };
    // Each lane has at least one register of a row.
    if kinds[0].bits != kinds[1].bits || depth * u16::from(kinds[0].bits) < 128 {
        return None;
    }
    Some(Op::MatrixInteger(MatrixInteger {
        d: view.register(0)?,
        a: view.register(1)?,
        b: view.register(2)?,
        c: view.register(3)?,
        rows,
        depth,
        kinds,
        saturate: view.has(Modifier::Sat),
        differ: view.has(Modifier::Xor),
    }))
}
