//! Modifiers of instructions.

use std::fmt;

macro_rules! modifiers {
    ($($name:ident $text:literal,)*) => {
        /// A modifier, named as the disassembler prints it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the names are the disassembler's words")]
        pub enum Modifier {
            $($name,)*
            /// The default, which is not printed.
            Unwritten,
            /// A value without a meaning.
            Invalid,
        }

        impl fmt::Display for Modifier {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$name => $text,)*
                    Self::Unwritten => "",
                    Self::Invalid => "INVALID",
                })
            }
        }
    };
}

modifiers! {
    A2 "2A", A4 "4A", Acc "ACC", Add "ADD", All "ALL", And "AND", Any "ANY", Arv "ARV",
    B1 "B1", B128 "128", B16 "16", B2 "B2", B3 "B3", B32 "32", B4e "B4E", B64 "64", Bf "BF", Bf16 "BF16", Bf16V2 "BF16_V2",
    Bfly "BFLY", Bypass "BYPASS",
    Cas "CAS", Cast "CAST", Ceil "CEIL", Clear "CLEAR", Constant "CONSTANT",
    ConstantPrivate "CONSTANT.PRIVATE", Conv "CONV", Cos "COS", Cta "CTA",
    D2 "D2", D4 "D4", D8 "D8", Dec "DEC", Div "DIV", DeferBlocking "DEFER_BLOCKING", Dml2 "DML2",
    Down "DOWN",
    E "E", Ecl "ECL", Ecr "ECR", Ef "EF", El "EL", Eq "EQ", Equ "EQU", Eu "EU", Ex "EX", Ex2 "EX2", Exch "EXCH",
    F "F", F4e "F4E", F16 "F16", F16x2 "F16x2.RN", F32 "F32", F32FtzRn "F32.FTZ.RN", F64 "F64",
    F64Rn "F64.RN", Floor "FLOOR", Fmz "FMZ", Ftz "FTZ",
    G "G", Ge "GE", Geu "GEU", Gpu "GPU", Gt "GT", Gtu "GTU",
    HAnd "H_AND", Hi "HI", Iadd "IADD", Idx "IDX", Il "IL", Inc "INC", Is "IS", Isl "ISL",
    Iv "IV", Ivall "IVALL",
    L "L", Le "LE", Leu "LEU", Lg2 "LG2", Lo "LO", Lt "LT", Ltc128b "LTC128B",
    Ltc64b "LTC64B", Ltc256b "LTC256B", Ltu "LTU", Lu "LU", Lut "LUT",
    M16816 "16816", M168128 "168128", M168256 "168256", M16832 "16832", M16864 "16864",
    M1684 "1684", M1688 "1688", M8816 "8816", M88128 "88128", M8832 "8832", M884 "884",
    M2 "M2", M4 "M4", M8 "M8", M88 "M88", Mt88 "MT88", Max "MAX", MergeC "MERGE_C", Min "MIN", Mma "MMA", Mov "MOV",
    N2 "2", N4 "4", Na "NA", Nan "NAN", Ne "NE", Neu "NEU", Nodec "NODEC", Noinc "NOINC",
    Ntz "NTZ", Num "NUM",
    Or "OR", PackAb "PACK_AB", Pand "PAND", Pf1 "PF1", Pf2 "PF2", Pml2 "PML2", Popc "POPC",
    R "R", Rc16 "RC16", Rc8 "RC8", Rcp "RCP", Rcp64h "RCP64H", Red "RED", Rel "REL", Relu "RELU", Result "RESULT",
    Rm "RM", Rml2 "RML2", Rp "RP", Rsq "RSQ", Rsq64h "RSQ64H", Rz "RZ",
    S "S", S16 "S16", S2 "S2", S32 "S32", S4 "S4", S64 "S64", S8 "S8", Sat "SAT",
    Sc "SC", Sh "SH", Shl "SHL", Sin "SIN", Sm "SM", Sp "SP", Spin "SPIN", Sqrt "SQRT",
    StrongGpu "STRONG.GPU", StrongSm "STRONG.SM", StrongSys "STRONG.SYS", Sum "SUM",
    Sx32 "SX32", Sync "SYNC", Sys "SYS",
    T "T", Tanh "TANH", Tf32 "TF32", Trap "TRAP", Trunc "TRUNC",
    U "U", U16 "U16", U2 "U2", U32 "U32", U4 "U4", U64 "U64", U8 "U8", Up "UP", W "W", Wide "WIDE",
    X "X", Xor "XOR", Xorsign "XORSIGN", Zfill "ZFILL", Abs "ABS", Sub1 "SB1", Exclusive "EXCLUSIVE",
    Rand "RAND", Warp "WARP", Vc "VC", MmioGpu "MMIO.GPU", MmioSys "MMIO.SYS", Ivallp "IVALLP",
    Rs "RS",
}
