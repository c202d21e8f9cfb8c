//! Text of `src/cuda/params.cuh`: constants, enumerations and parameter blocks of every kernel, in
//! CUDA.

use std::fmt::Write as _;

use super::*;
use crate::catalogue::launch::{
    CACHE_BLOCK, CACHE_TILE, CONV_ROWS, DELTA_COLUMNS, MOST_EXPERTS, MOST_KEY, MOST_TAPS,
    ROW_BLOCK, ROW_LANES,
};
use crate::first_light::{
    ATOMICS_THREADS, AtomicsParams, HANDOVER_THREADS, HandoverParams, OrderParams, ProbeParams,
};

/// Limits and tile sizes that the host and the kernels share.
const CONSTANTS: &[(&str, u32)] = &[
    ("SILU", SILU),
    ("GELU", GELU),
    ("CLAMPED", CLAMPED),
    ("CACHE_TILE", CACHE_TILE),
    ("CACHE_BLOCK", CACHE_BLOCK),
    ("MOST_EXPERTS", MOST_EXPERTS),
    ("MOST_TAPS", MOST_TAPS),
    ("CONV_ROWS", CONV_ROWS),
    ("MOST_KEY", MOST_KEY),
    ("DELTA_COLUMNS", DELTA_COLUMNS),
    ("ROW_LANES", ROW_LANES),
    ("ROW_BLOCK", ROW_BLOCK),
    ("TENSOR_AXES", TENSOR_AXES as u32),
    ("TENSOR_STEPS", TENSOR_STEPS as u32),
    ("TENSOR_OPERANDS", TENSOR_OPERANDS as u32),
    ("TENSOR_INDICES", TENSOR_INDICES as u32),
    ("TENSOR_REGISTERS", TENSOR_REGISTERS as u32),
    ("ATOMICS_THREADS", ATOMICS_THREADS),
    ("HANDOVER_THREADS", HANDOVER_THREADS),
];

macro_rules! declarations {
    ($($name:ident),* $(,)?) => { [$($name::declaration()),*] };
}

/// The header, as `orind-kernels header` writes it.
#[must_use]
pub fn header() -> String {
    let mut text = String::from(
        "// Written by `cargo run -p orind-kernels -- header`; do not edit.\n\
         // Fields are documented in `src/params`.\n\
         #pragma once\n\ntypedef unsigned int u32;\ntypedef unsigned long long u64;\n\nenum : u32 {\n",
    );
    for (name, value) in CONSTANTS {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "    {name} = {value},");
    }
    text += "};\n";
    let declarations = declarations![
        Function,
        Width,
        Reduction,
        Action,
        Segment,
        ProjectParams,
        QuantiseParams,
        MatmulParams,
        EmbedParams,
        GatherParams,
        RopeTableParams,
        AttentionParams,
        SampleParams,
        RowsParams,
        ElementwiseParams,
        NormParams,
        RouteParams,
        ExpertsParams,
        GroupParams,
        CombineParams,
        Recurrence,
        ShortConvParams,
        GatedDeltaParams,
        DeltaRuleParams,
        TensorSource,
        TensorParams,
        TensorMatmulParams,
        TensorRowsParams,
        TensorTopKParams,
        ProbeParams,
        OrderParams,
        AtomicsParams,
        HandoverParams,
    ];
    for declaration in declarations {
        text.push('\n');
        text += &declaration;
    }
    text
}
