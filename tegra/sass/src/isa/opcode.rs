//! The operations' names.

use std::fmt;

macro_rules! opcodes {
    ($($name:ident $text:literal $doc:literal;)*) => {
        /// What an instruction is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Opcode {
            $(#[doc = $doc] $name,)*
        }

        impl fmt::Display for Opcode {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$name => $text,)*
                })
            }
        }
    };
}

opcodes! {
    Atom "ATOM" "Atomic operation at a generic address.";
    Atomg "ATOMG" "Atomic operation on global memory.";
    Atoms "ATOMS" "Atomic operation on shared memory.";
    B2r "B2R" "Result of a barrier's reduction.";
    Bar "BAR" "Barrier of a block.";
    Bmov "BMOV" "Move from or to a convergence barrier.";
    Bmsk "BMSK" "Mask of consecutive bits.";
    Bpt "BPT" "Trap.";
    Bra "BRA" "Branch.";
    Break "BREAK" "Leave a convergence barrier.";
    Brev "BREV" "Bits in reverse order.";
    Brx "BRX" "Branch to an address in a register, relative.";
    Bssy "BSSY" "Take part in a convergence barrier.";
    Bsync "BSYNC" "Wait at a convergence barrier.";
    Call "CALL" "Call: a branch, the caller has put the return address into registers.";
    Cctl "CCTL" "Cache control.";
    Cs2r "CS2R" "Read a special register, quickly.";
    Dadd "DADD" "Double-precision addition.";
    Depbar "DEPBAR" "Wait for outstanding operations.";
    Dfma "DFMA" "Double-precision fused multiply-add.";
    Dmul "DMUL" "Double-precision multiplication.";
    Dsetp "DSETP" "Double-precision comparison.";
    Errbar "ERRBAR" "Wait for errors of earlier accesses.";
    Exit "EXIT" "End of the lane.";
    F2f "F2F" "Between floating-point formats.";
    F2fp "F2FP" "Two numbers to a packed pair.";
    F2i "F2I" "Floating point to integer.";
    Fadd "FADD" "Addition.";
    Fchk "FCHK" "Whether a division needs the slow path.";
    Ffma "FFMA" "Fused multiply-add.";
    Flo "FLO" "Position of the leading bit.";
    Fmnmx "FMNMX" "Minimum or maximum.";
    Fmul "FMUL" "Multiplication.";
    Frnd "FRND" "Round to an integer.";
    Fsel "FSEL" "Select, floating point.";
    Fsetp "FSETP" "Comparison.";
    Hadd2 "HADD2" "Addition of pairs of halves.";
    Hfma2 "HFMA2" "Fused multiply-add of pairs of halves.";
    Hmma "HMMA" "Matrix multiply-add, floating point.";
    Hmnmx2 "HMNMX2" "Minimum or maximum of pairs of halves.";
    Hmul2 "HMUL2" "Multiplication of pairs of halves.";
    Hset2 "HSET2" "Comparison of pairs of halves, into a register.";
    Hsetp2 "HSETP2" "Comparison of pairs of halves, into predicates.";
    I2f "I2F" "Integer to floating point.";
    I2fp "I2FP" "Integer to single precision.";
    I2i "I2I" "Integer to a narrower one, saturating.";
    Iabs "IABS" "Absolute value.";
    Iadd3 "IADD3" "Sum of three.";
    Idp "IDP" "Dot product of packed integers.";
    Imad "IMAD" "Multiply-add.";
    Imma "IMMA" "Matrix multiply-add, integers.";
    Imnmx "IMNMX" "Minimum or maximum of integers.";
    Isetp "ISETP" "Comparison of integers.";
    Jmp "JMP" "Branch, absolute.";
    Jmx "JMX" "Branch to an address in a register.";
    Ld "LD" "Load from a generic address.";
    Ldc "LDC" "Load from a constant bank.";
    Ldg "LDG" "Load from global memory.";
    Ldgdepbar "LDGDEPBAR" "Counts the copies before it as one group.";
    Ldgsts "LDGSTS" "Copy from global to shared memory.";
    Ldl "LDL" "Load from local memory.";
    Lds "LDS" "Load from shared memory.";
    Ldsm "LDSM" "Load matrices from shared memory.";
    Lea "LEA" "Shift and add.";
    Lop3 "LOP3" "Any logical operation of three.";
    Match "MATCH" "Lanes with the same value.";
    Membar "MEMBAR" "Memory fence.";
    Mov "MOV" "Move.";
    Mufu "MUFU" "Special function.";
    Nanosleep "NANOSLEEP" "Wait a while.";
    Nop "NOP" "Nothing.";
    P2r "P2R" "Predicates into a register.";
    Plop3 "PLOP3" "Any logical operation of three predicates.";
    Popc "POPC" "Number of ones.";
    Prmt "PRMT" "Permute bytes.";
    Qspc "QSPC" "Which memory an address belongs to.";
    R2p "R2P" "A register into predicates.";
    R2ur "R2UR" "A register into the warp's.";
    Red "RED" "Reduction into global memory.";
    Redux "REDUX" "Reduction over lanes.";
    Ret "RET" "Return to an address in registers.";
    S2r "S2R" "Read a special register.";
    S2ur "S2UR" "Read a special register into the warp's.";
    Sel "SEL" "Select.";
    Sgxt "SGXT" "Extend the sign of a narrow number.";
    Shf "SHF" "Funnel shift.";
    Shfl "SHFL" "Exchange between lanes.";
    St "ST" "Store to a generic address.";
    Stg "STG" "Store to global memory.";
    Stl "STL" "Store to local memory.";
    Sts "STS" "Store to shared memory.";
    Ubmsk "UBMSK" "Mask of consecutive bits, the warp's.";
    Ubrev "UBREV" "Bits in reverse order, the warp's.";
    Uflo "UFLO" "Position of the leading bit, the warp's.";
    Uiadd3 "UIADD3" "Sum of three, the warp's.";
    Uimad "UIMAD" "Multiply-add, the warp's.";
    Uisetp "UISETP" "Comparison of integers, the warp's.";
    Uldc "ULDC" "Load from a constant bank, the warp's.";
    Ulea "ULEA" "Shift and add, the warp's.";
    Ulop3 "ULOP3" "Any logical operation of three, the warp's.";
    Umov "UMOV" "Move, the warp's.";
    Uplop3 "UPLOP3" "Any logical operation of three predicates, the warp's.";
    Upopc "UPOPC" "Number of ones, the warp's.";
    Uprmt "UPRMT" "Permute bytes, the warp's.";
    Usel "USEL" "Select, the warp's.";
    Usgxt "USGXT" "Extend the sign of a narrow number, the warp's.";
    Ushf "USHF" "Funnel shift, the warp's.";
    Vabsdiff "VABSDIFF" "Absolute difference and sum.";
    Vabsdiff4 "VABSDIFF4" "Absolute differences of four bytes.";
    Vote "VOTE" "Vote of the lanes.";
    Voteu "VOTEU" "Vote of the lanes, into the warp's registers.";
    Warpsync "WARPSYNC" "Wait for lanes.";
    Yield "YIELD" "Let others go first.";
}

impl Opcode {
    /// Whether it takes the lanes elsewhere.
    #[must_use]
    pub fn is_branch(self) -> bool {
        matches!(self, Self::Bra | Self::Brx | Self::Call | Self::Jmp | Self::Jmx | Self::Ret)
    }
}
