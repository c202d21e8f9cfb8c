//! Peephole patterns: instructions that replace several steps, such as concatenations, bounds, sigmoids, and two
//! operations in one pass. Results have the same bits.

use std::collections::HashMap;

use super::instruction::{Action, Instruction, Kernel, Location};
use plan::{Binary, Unary};
use simd::tensor::{First, Second};

impl Kernel {
    /// Applies all patterns, in an order in which no pattern hides another.
    pub(super) fn apply_patterns(&mut self) {
        self.find_concats();
        self.find_bounds();
        self.find_sigmoids();
    }

    /// Combines two sums or products into one pass, if only the second one reads the first one's result.
    pub(super) fn pair(&mut self) {
        let readers = self.readers();
        for instructions in [&mut self.body, &mut self.tail] {
            let mut at = 0;
            while at < instructions.len() {
                match paired(&instructions[at..], &readers) {
                    Some((reader, both)) => {
                        instructions[at + reader] = both;
                        instructions.remove(at);
                    }
                    None => at += 1,
                }
            }
        }
    }

    /// Number of reads of each register.
    fn readers(&self) -> HashMap<usize, usize> {
        let mut readers: HashMap<usize, usize> = HashMap::new();
        let reads = self.body.iter().chain(&self.tail).flat_map(|i| &i.reads);
        let reduced = self.reduction.iter().map(|reduction| &reduction.x);
        for place in reads.chain(reduced) {
            if let Location::Register(register) = place {
                *readers.entry(*register).or_default() += 1;
            }
        }
        readers
    }

    /// Replaces joined zero-padded parts along an axis by one concatenation.
    fn find_concats(&mut self) {
        let readers = self.readers();
        let inner =
            |place: &Location| matches!(place, Location::Register(r) if readers.get(r) == Some(&1));
        for instructions in [&mut self.body, &mut self.tail] {
            let mut at = 0;
            while let Some([before, load, add]) = instructions.get(at..at + 3) {
                let parts = match &before.action {
                    Action::Load(source) => std::slice::from_ref(source),
                    Action::Concat(parts) => parts,
                    _ => &[],
                };
                if let Action::Load(source) = &load.action
                    && !parts.is_empty()
                    && parts.iter().all(|part| part.is_disjoint(source))
                    && matches!(add.action, Action::Binary(Binary::Or) | Action::Ints(Binary::Or))
                    && (add.reads == [before.out, load.out] || add.reads == [load.out, before.out])
                    && inner(&before.out)
                    && inner(&load.out)
                {
                    let mut parts = [parts, std::slice::from_ref(source)].concat();
                    let out = add.out;
                    if let Location::At(base) = out {
                        parts.iter_mut().for_each(|part| part.check_in_place(base));
                    }
                    let action = Action::Concat(parts);
                    instructions.splice(at..at + 3, [Instruction { action, reads: vec![], out }]);
                } else {
                    at += 1;
                }
            }
        }
    }

    /// Replaces the maximum of a value and a constant by a bound, and one between two negations by an upper bound.
    fn find_bounds(&mut self) {
        let readers = self.readers();
        let constant = |place: &Location| {
            let found = self.constants.iter().find(|(at, _)| *place == Location::Register(*at));
            found.map(|(_, bits)| f32::from_bits(*bits)).filter(|value| !value.is_nan())
        };
        let once =
            |place: &Location| matches!(place, Location::Register(r) if readers.get(r) == Some(&1));
        for instructions in [&mut self.body, &mut self.tail] {
            for instruction in &mut *instructions {
                if let (Action::Binary(Binary::Max), [x, bound]) =
                    (&instruction.action, &instruction.reads[..])
                    && let Some(bound) = constant(bound)
                {
                    instruction.action = Action::Bounded(true, bound);
                    instruction.reads = vec![*x];
                }
            }
            let mut at = 0;
            while let Some([before, bound, after]) = instructions.get(at..at + 3) {
                let negated = |i: &Instruction| matches!(i.action, Action::Unary(Unary::Neg));
                if let Action::Bounded(true, least) = bound.action
                    && least.to_bits() != 0
                    && negated(before)
                    && negated(after)
                    && bound.reads == [before.out]
                    && after.reads == [bound.out]
                    && once(&before.out)
                    && once(&bound.out)
                {
                    let action = Action::Bounded(false, -least);
                    let (reads, out) = (before.reads.clone(), after.out);
                    instructions.splice(at..at + 3, [Instruction { action, reads, out }]);
                }
                at += 1;
            }
        }
    }

    /// Replaces the four instructions of a sigmoid by one, if no other instruction reads the values in between.
    fn find_sigmoids(&mut self) {
        let one = self.constants.iter().find(|(_, bits)| *bits == 1.0f32.to_bits());
        let Some(one) = one.map(|(register, _)| Location::Register(*register)) else { return };
        let readers = self.readers();
        let inner =
            |place: &Location| matches!(place, Location::Register(r) if readers.get(r) == Some(&1));
        for instructions in [&mut self.body, &mut self.tail] {
            let mut at = 0;
            while let Some([neg, exp, add, recip]) = instructions.get(at..at + 4) {
                let actions = matches!(
                    (&neg.action, &exp.action, &add.action, &recip.action),
                    (
                        Action::Unary(Unary::Neg),
                        Action::Unary(Unary::Exp),
                        Action::Binary(Binary::Add),
                        Action::Unary(Unary::Recip)
                    )
                );
                let follow = actions
                    && exp.reads == [neg.out]
                    && (add.reads == [exp.out, one] || add.reads == [one, exp.out])
                    && recip.reads == [add.out]
                    && [neg, exp, add].iter().all(|i| inner(&i.out));
                if follow {
                    let (reads, out) = (neg.reads.clone(), recip.out);
                    let sigmoid = Instruction { action: Action::Sigmoid, reads, out };
                    instructions.splice(at..at + 4, [sigmoid]);
                }
                at += 1;
            }
        }
    }
}

/// Combines the first instruction with the one that reads its result: the latter's index, and the combination.
fn paired(
    instructions: &[Instruction],
    readers: &HashMap<usize, usize>,
) -> Option<(usize, Instruction)> {
    let (before, others) = instructions.split_first()?;
    let Location::Register(register) = before.out else { return None };
    let first = match before.action {
        Action::Binary(Binary::Add) => First::Add,
        Action::Binary(Binary::Sub) => First::Sub,
        Action::Binary(Binary::Mul) => First::Mul,
        _ => return None,
    };
    if readers.get(&register) != Some(&1) {
        return None;
    }
    // An instruction that writes to memory may change an operand.
    let within =
        others.iter().take_while(|other| matches!(other.out, Location::Register(_))).count();
    let reader = others.iter().take(within + 1).position(|i| i.reads.contains(&before.out))?;
    let after = &others[reader];
    let &[a, b] = &after.reads[..] else { return None };
    let (second, other) = match (&after.action, a == before.out) {
        (Action::Binary(Binary::Add), true) => (Second::Plus, b),
        (Action::Binary(Binary::Add), false) => (Second::Plus, a),
        (Action::Binary(Binary::Sub), true) => (Second::Minus, b),
        (Action::Binary(Binary::Sub), false) => (Second::From, a),
        (Action::Binary(Binary::Mul), true) => (Second::Times, b),
        (Action::Binary(Binary::Mul), false) => (Second::Times, a),
        _ => return None,
    };
    let reads = [&before.reads[..], &[other]].concat();
    Some((reader + 1, Instruction { action: Action::Two(first, second), reads, out: after.out }))
}
