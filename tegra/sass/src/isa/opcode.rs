//! Opcodes and their names.

use std::fmt;

use crate::count::Class;

macro_rules! opcodes {
    ($($name:ident $text:literal $class:ident $doc:literal;)*) => {
        /// Opcode of an instruction.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Opcode {
            $(#[doc = $doc] $name,)*
        }

        impl Class {
            /// Returns the class of an opcode.
            pub fn of(opcode: Opcode) -> Self {
                match opcode {
                    $(Opcode::$name => Self::$class,)*
                }
            }
        }

        impl Opcode {
            /// Parses the name of an opcode, ignoring case.
            pub fn named(name: &str) -> Option<Self> {
                let all = [$(($text, Self::$name),)*];
                let found = all.into_iter().find(|(text, _)| text.eq_ignore_ascii_case(name));
                found.map(|(_, opcode)| opcode)
            }
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
    Atom "ATOM" Global "Atomic operation at a generic address.";
    Atomg "ATOMG" Global "Atomic operation on global memory.";
    Atoms "ATOMS" Shared "Atomic operation on shared memory.";
    B2r "B2R" Control "Result of a barrier's reduction.";
    Bar "BAR" Control "Barrier of a block.";
    Bmma "BMMA" Matrix "Matrix multiply-add, bits.";
    Bmov "BMOV" Control "Move from or to a convergence barrier.";
    Bmsk "BMSK" Integer "Mask of consecutive bits.";
    Bpt "BPT" Control "Trap.";
    Bra "BRA" Control "Branch.";
    Break "BREAK" Control "Leave a convergence barrier.";
    Brev "BREV" Integer "Bits in reverse order.";
    Brx "BRX" Control "Branch to an address in a register, relative.";
    Bssy "BSSY" Control "Take part in a convergence barrier.";
    Bsync "BSYNC" Control "Wait at a convergence barrier.";
    Call "CALL" Control "Call: a branch, the caller has put the return address into registers.";
    Cctl "CCTL" Control "Cache control.";
    Cs2r "CS2R" Control "Read a special register, quickly.";
    Dadd "DADD" Double "Double-precision addition.";
    Depbar "DEPBAR" Control "Wait for outstanding operations.";
    Dfma "DFMA" Double "Double-precision fused multiply-add.";
    Dmma "DMMA" Matrix "Matrix multiply-add, double precision.";
    Dmul "DMUL" Double "Double-precision multiplication.";
    Dsetp "DSETP" Double "Double-precision comparison.";
    Errbar "ERRBAR" Control "Wait for errors of earlier accesses.";
    Exit "EXIT" Control "End of the lane.";
    F2f "F2F" Conversion "Between floating-point formats.";
    F2fp "F2FP" Conversion "Two numbers to a packed pair.";
    F2i "F2I" Conversion "Floating point to integer.";
    F2ip "F2IP" Conversion "Two numbers to packed integers.";
    Fadd "FADD" Float "Addition.";
    Fchk "FCHK" Float "Whether a division needs the slow path.";
    Ffma "FFMA" Float "Fused multiply-add.";
    Flo "FLO" Integer "Position of the leading bit.";
    Fmnmx "FMNMX" Float "Minimum or maximum.";
    Fmul "FMUL" Float "Multiplication.";
    Frnd "FRND" Conversion "Round to an integer.";
    Fsel "FSEL" Float "Select, floating point.";
    Fset "FSET" Float "Comparison, into a register.";
    Fsetp "FSETP" Float "Comparison.";
    Hadd2 "HADD2" Packed "Addition of pairs of halves.";
    Hfma2 "HFMA2" Packed "Fused multiply-add of pairs of halves.";
    Hmma "HMMA" Matrix "Matrix multiply-add, floating point.";
    Hmnmx2 "HMNMX2" Packed "Minimum or maximum of pairs of halves.";
    Hmul2 "HMUL2" Packed "Multiplication of pairs of halves.";
    Hset2 "HSET2" Packed "Comparison of pairs of halves, into a register.";
    Hsetp2 "HSETP2" Packed "Comparison of pairs of halves, into predicates.";
    I2f "I2F" Conversion "Integer to floating point.";
    I2fp "I2FP" Conversion "Integer to single precision.";
    I2i "I2I" Conversion "Integer to a narrower one, saturating.";
    I2ip "I2IP" Conversion "Two integers to narrower packed ones, saturating.";
    Iabs "IABS" Integer "Absolute value.";
    Iadd3 "IADD3" Integer "Sum of three.";
    Idp "IDP" Dot "Dot product of packed integers.";
    Imad "IMAD" Integer "Multiply-add.";
    Imma "IMMA" Matrix "Matrix multiply-add, integers.";
    Imnmx "IMNMX" Integer "Minimum or maximum of integers.";
    Isetp "ISETP" Integer "Comparison of integers.";
    Jmp "JMP" Control "Branch, absolute.";
    Jmx "JMX" Control "Branch to an address in a register.";
    Ld "LD" Global "Load from a generic address.";
    Ldc "LDC" Constant "Load from a constant bank.";
    Ldg "LDG" Global "Load from global memory.";
    Ldgdepbar "LDGDEPBAR" Control "Counts the copies before it as one group.";
    Ldgsts "LDGSTS" Global "Copy from global to shared memory.";
    Ldl "LDL" Local "Load from local memory.";
    Lds "LDS" Shared "Load from shared memory.";
    Ldsm "LDSM" Shared "Load matrices from shared memory.";
    Lea "LEA" Integer "Shift and add.";
    Lop3 "LOP3" Integer "Any logical operation of three.";
    Match "MATCH" Exchange "Lanes with the same value.";
    Membar "MEMBAR" Control "Memory fence.";
    Mov "MOV" Integer "Move.";
    Movm "MOVM" Exchange "Transpose a matrix across the lanes.";
    Mufu "MUFU" Function "Special function.";
    Nanosleep "NANOSLEEP" Control "Wait a while.";
    Nop "NOP" Control "Nothing.";
    P2r "P2R" Integer "Predicates into a register.";
    Plop3 "PLOP3" Integer "Any logical operation of three predicates.";
    Pmtrig "PMTRIG" Control "Trigger of a performance counter.";
    Popc "POPC" Integer "Number of ones.";
    Prmt "PRMT" Integer "Permute bytes.";
    Qspc "QSPC" Control "Which memory an address belongs to.";
    R2p "R2P" Integer "A register into predicates.";
    R2ur "R2UR" Uniform "A register into the warp's.";
    Red "RED" Global "Reduction into global memory.";
    Redux "REDUX" Exchange "Reduction over lanes.";
    Ret "RET" Control "Return to an address in registers.";
    S2r "S2R" Control "Read a special register.";
    S2ur "S2UR" Uniform "Read a special register into the warp's.";
    Sel "SEL" Integer "Select.";
    Sgxt "SGXT" Integer "Extend the sign of a narrow number.";
    Shf "SHF" Integer "Funnel shift.";
    Shfl "SHFL" Exchange "Exchange between lanes.";
    St "ST" Global "Store to a generic address.";
    Stg "STG" Global "Store to global memory.";
    Stl "STL" Local "Store to local memory.";
    Sts "STS" Shared "Store to shared memory.";
    Ubmsk "UBMSK" Uniform "Mask of consecutive bits, the warp's.";
    Ubrev "UBREV" Uniform "Bits in reverse order, the warp's.";
    Uflo "UFLO" Uniform "Position of the leading bit, the warp's.";
    Uiadd3 "UIADD3" Uniform "Sum of three, the warp's.";
    Uimad "UIMAD" Uniform "Multiply-add, the warp's.";
    Uisetp "UISETP" Uniform "Comparison of integers, the warp's.";
    Uldc "ULDC" Constant "Load from a constant bank, the warp's.";
    Ulea "ULEA" Uniform "Shift and add, the warp's.";
    Ulop3 "ULOP3" Uniform "Any logical operation of three, the warp's.";
    Umov "UMOV" Uniform "Move, the warp's.";
    Uplop3 "UPLOP3" Uniform "Any logical operation of three predicates, the warp's.";
    Upopc "UPOPC" Uniform "Number of ones, the warp's.";
    Uprmt "UPRMT" Uniform "Permute bytes, the warp's.";
    Usel "USEL" Uniform "Select, the warp's.";
    Usgxt "USGXT" Uniform "Extend the sign of a narrow number, the warp's.";
    Ushf "USHF" Uniform "Funnel shift, the warp's.";
    Vabsdiff "VABSDIFF" Integer "Absolute difference and sum.";
    Vabsdiff4 "VABSDIFF4" Integer "Absolute differences of four bytes.";
    Vote "VOTE" Exchange "Vote of the lanes.";
    Voteu "VOTEU" Uniform "Vote of the lanes, into the warp's registers.";
    Warpsync "WARPSYNC" Control "Wait for lanes.";
    Yield "YIELD" Control "Let others go first.";
}

impl Opcode {
    /// Returns whether it is a branch.
    pub fn is_branch(self) -> bool {
        matches!(self, Self::Bra | Self::Brx | Self::Call | Self::Jmp | Self::Jmx | Self::Ret)
    }
}
