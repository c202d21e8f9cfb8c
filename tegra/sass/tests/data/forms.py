#!/usr/bin/env python3
"""What the assembler makes of the PTX manual's instructions: sm_87/ptx.txt.

Each row below is an instruction in PTX, with alternatives as <a|b>; $ and a letter stand for a
register that it writes, & for the last one that it wrote, % for one that it reads: h of 16 bits, r of 32, l of 64, p a
predicate. Addresses are %g (global), %s (shared), %c (local), %n (generic), %k (constant). Each is
assembled with its sources loaded, the last in a parameter, all in parameters, the last a number,
and, of floating-point ones, negated and absolute. Combinations that PTX does not have are left out.
The file has one instruction of each shape, below the first PTX instruction that led to it.

Needs ptxas 12.6 (PyPI package nvidia-cuda-nvcc-cu12==12.6.85) besides what build.py needs.
"""
import glob, itertools, os, re, subprocess, sys, tempfile
from build import HERE, SITE, code_sections, disassemble, shape

PTXAS = SITE + "/cuda_nvcc/bin/ptxas"
ARCHITECTURE = "sm_87"

INTEGER = """
<add|sub|min|max><.u16|.s16|.u32|.s32|.u64|.s64> ${w}, %{w}, %{w}
<add|sub>.sat.s32 $r, %r, %r
mul.<lo|hi><.u16|.s16|.u32|.s32|.u64|.s64> ${w}, %{w}, %{w}
mul.wide<.u16|.s16> $r, %h, %h
mul.wide<.u32|.s32> $l, %r, %r
mad.<lo|hi><.u16|.s16|.u32|.s32|.u64|.s64> ${w}, %{w}, %{w}, %{w}
mad.hi.sat.s32 $r, %r, %r, %r
mad.wide<.u16|.s16> $r, %h, %h, %r
mad.wide<.u32|.s32> $l, %r, %r, %l
mul24.<lo|hi><.u32|.s32> $r, %r, %r
mad24.<lo|hi><.u32|.s32> $r, %r, %r, %r
mad24.hi.sat.s32 $r, %r, %r, %r
sad<.u16|.s16|.u32|.s32|.u64|.s64> ${w}, %{w}, %{w}, %{w}
<div|rem><.u16|.s16|.u32|.s32|.u64|.s64> ${w}, %{w}, %{w}
<abs|neg><.s16|.s32|.s64> ${w}, %{w}
<popc|clz><.b32|.b64> $r, %{w}
bfind<|.shiftamt><.u32|.s32|.u64|.s64> $r, %{w}
fns.b32 $r, %r, %r, %r
brev<.b32|.b64> ${w}, %{w}
bfe<.u32|.s32|.u64|.s64> ${w}, %{w}, %r, %r
bfi<.b32|.b64> ${w}, %{w}, %{w}, %r, %r
bmsk.<clamp|wrap>.b32 $r, %r, %r
szext.<clamp|wrap><.u32|.s32> $r, %r, %r
dp4a.<u32|s32>.<u32|s32> $r, %r, %r, %r
dp2a.<lo|hi>.<u32|s32>.<u32|s32> $r, %r, %r, %r
add.cc<.u32|.s32|.u64|.s64> ${w}, %{w}, %{w}; addc.cc{t} ${w}, %{w}, %{w}; addc{t} ${w}, %{w}, %{w}
sub.cc<.u32|.s32|.u64|.s64> ${w}, %{w}, %{w}; subc.cc{t} ${w}, %{w}, %{w}; subc{t} ${w}, %{w}, %{w}
mad.lo.cc<.u32|.s32|.u64|.s64> ${w}, %{w}, %{w}, %{w}; madc.hi.cc{t} ${w}, %{w}, %{w}, %{w}; madc.lo{t} ${w}, %{w}, %{w}, %{w}; addc{t} ${w}, %{w}, %{w}
mad.hi.cc<.u32|.s32|.u64|.s64> ${w}, %{w}, %{w}, %{w}; madc.lo.cc{t} ${w}, %{w}, %{w}, %{w}; madc.hi{t} ${w}, %{w}, %{w}, %{w}
add<.u32|.s32> $r, %r, %r; add{t} $r, &r, %r
shl.b32 $r, %r, 3; add.u32 $r, &r, %r
shl.b64 $l, %l, 3; add.u64 $l, &l, %l
cvt.s64.s32 $l, %r; shl.b64 $l, &l, 2; add.u64 $l, &l, %l
"""

LOGIC = """
<and|or|xor><.b16|.b32|.b64> ${w}, %{w}, %{w}
<and|or|xor>.pred $p, %p, %p
<and|or|xor>.pred $p, %p, %p; <and|or|xor>.pred $p, &p, %p
not<.pred|.b16|.b32|.b64> ${w}, %{w}
cnot<.b16|.b32|.b64> ${w}, %{w}
lop3.b32 $r, %r, %r, %r, <0x1a|0x80|0xfe|0x96|0xe8|0x3c|0xca>
lop3.<and|or>.b32 $r|$p, %r, %r, %r, 0x1a, %p
shf.<l|r>.<clamp|wrap>.b32 $r, %r, %r, %r
shl<.b16|.b32|.b64> ${w}, %{w}, %r
shr<.u16|.s16|.u32|.s32|.u64|.s64|.b32> ${w}, %{w}, %r
prmt.b32<|.f4e|.b4e|.rc8|.ecl|.ecr|.rc16> $r, %r, %r, %r
mov.b32 $r, {%h, %h}
mov.b32 {$h, $h}, %r
mov.b64 $l, {%r, %r}
mov.b64 {$r, $r}, %l
mov<.b16|.b32|.b64|.pred> ${w}, %{w}
"""

COMPARE = """
setp.<eq|ne|lt|le|gt|ge><.u16|.s16|.u32|.s32|.u64|.s64> $p, %{w}, %{w}
setp.<lt|ge>.<and|or|xor><.u16|.s16|.u32|.s32|.u64|.s64> $p|$p, %{w}, %{w}, %p
setp.<lo|ls|hi|hs|eq|ne><.u32|.b32|.b64|.b16> $p, %{w}, %{w}
setp.<eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan><|.ftz><.f16|.f16x2|.bf16|.bf16x2> $p|$p, %{w}, %{w}
setp.<eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan><|.ftz><.f16|.f32|.f64> $p, %{w}, %{w}
setp.<lt|neu>.<and|or|xor><|.ftz><.f16|.f16x2|.f32|.f64> $p|$p, %{w}, %{w}, !%p
set.<eq|lt|ge><.u32|.s32|.f32><.u16|.s16|.u32|.s32|.u64|.s64|.f32|.f64> $r, %{w}, %{w}
set.<eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan><|.ftz>.<u32|f32>.f32 $r, %r, %r
set.<lt|ge>.<and|or|xor><|.ftz>.<u32|s32|f32><.u32|.s32|.f32|.f64> $r, %{w}, %{w}, %p
set.<eq|lt|ne|geu|nan><|.ftz>.<f16|u16|s16>.f16 $h, %h, %h
set.<eq|lt|ne|geu|nan><|.ftz>.<u32|s32>.<f16x2> $r, %r, %r
set.<eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan><|.ftz>.f16x2.f16x2 $r, %r, %r
set.lt.<and|or|xor><|.ftz>.<f16x2|u32>.f16x2 $r, %r, %r, %p
set.<eq|lt|geu>.<bf16x2|u32>.bf16x2 $r, %r, %r
selp<.b16|.b32|.b64|.f32|.f64> ${w}, %{w}, %{w}, %p
slct<.b16|.b32|.b64|.f32|.f64>.s32 ${v}, %{v}, %{v}, %r
slct<|.ftz><.b32|.b64|.f32>.f32 ${v}, %{v}, %{v}, %r
testp.<finite|infinite|number|notanumber|normal|subnormal><.f32|.f64> $p, %{w}
"""

FLOAT = """
<add|sub|mul><|.rn|.rz|.rm|.rp><|.ftz><|.sat>.f32 $r, %r, %r
<fma><.rn|.rz|.rm|.rp><|.ftz><|.sat>.f32 $r, %r, %r, %r
mad<.rn|.rz><|.ftz><|.sat>.f32 $r, %r, %r, %r
<add|sub|mul><|.rn|.rz|.rm|.rp>.f64 $l, %l, %l
<fma|mad><.rn|.rz|.rm|.rp>.f64 $l, %l, %l, %l
div<.approx|.full|.rn|.rz|.rm|.rp><|.ftz>.f32 $r, %r, %r
div<.rn|.rz|.rm|.rp>.f64 $l, %l, %l
<abs|neg><|.ftz>.f32 $r, %r
<abs|neg>.f64 $l, %l
<min|max><|.ftz><|.NaN><|.xorsign.abs>.f32 $r, %r, %r
<min|max>.f64 $l, %l, %l
<rcp|sqrt><.approx|.rn|.rz|.rm|.rp><|.ftz>.f32 $r, %r
<rcp|sqrt><.rn|.rz|.rm|.rp>.f64 $l, %l
<rcp|rsqrt>.approx.ftz.f64 $l, %l
rsqrt.approx<|.ftz>.f32 $r, %r
rsqrt.approx.f64 $l, %l
<sin|cos|lg2|ex2>.approx<|.ftz>.f32 $r, %r
tanh.approx.f32 $r, %r
copysign<.f32|.f64> ${w}, %{w}, %{w}
mul.f32 $r, %r, <0f3F000000|0f3E800000|0f3E000000|0f40000000|0f40800000|0f41000000>; mul.f32 $r, &r, %r
"""

HALF = """
<add|sub|mul><|.rn><|.ftz><|.sat><.f16|.f16x2> ${w}, %{w}, %{w}
<add|sub|mul><|.rn><.bf16|.bf16x2> ${w}, %{w}, %{w}
fma.rn<|.ftz><|.sat|.relu><.f16|.f16x2> ${w}, %{w}, %{w}, %{w}
fma.rn<|.relu><.bf16|.bf16x2> ${w}, %{w}, %{w}, %{w}
<abs|neg><|.ftz><.f16|.f16x2|.bf16|.bf16x2> ${w}, %{w}
<min|max><|.ftz><|.NaN><|.xorsign.abs><.f16|.f16x2> ${w}, %{w}, %{w}
<min|max><|.NaN><|.xorsign.abs><.bf16|.bf16x2> ${w}, %{w}, %{w}
tanh.approx<.f16|.f16x2|.bf16|.bf16x2> ${w}, %{w}
ex2.approx<|.ftz><.f16|.f16x2|.bf16|.bf16x2> ${w}, %{w}
mov.b32 $r, {%h, %h}; fma.rn.f16x2 $r, %r, &r, %r
mov.b32 {$h, $h}, %r; mov.b32 $r, {&h, &h}; add.f16x2 $r, &r, %r
cvt.f32.f16 $r, %h; add.f32 $r, &r, %r
"""

CONVERT = """
cvt<.u8|.s8|.u16|.s16|.u32|.s32|.u64|.s64><.u8|.s8|.u16|.s16|.u32|.s32|.u64|.s64> ${v}, %{w}
cvt.sat<.u8|.s8|.u16|.s16|.u32|.s32|.u64|.s64><.u8|.s8|.u16|.s16|.u32|.s32|.u64|.s64> ${v}, %{w}
cvt<.rn|.rz|.rm|.rp><.f16|.bf16|.f32|.f64><.u8|.s8|.u16|.s16|.u32|.s32|.u64|.s64> ${v}, %{w}
cvt.rn.sat<.f16|.f32|.f64><.u8|.s32|.u64> ${v}, %{w}
cvt<.rni|.rzi|.rmi|.rpi><|.ftz><.u8|.s8|.u16|.s16|.u32|.s32|.u64|.s64><.f16|.bf16|.f32|.f64> ${v}, %{w}
cvt.rni.sat<.u8|.s32|.u64><.f16|.f32|.f64> ${v}, %{w}
cvt<.rni|.rzi|.rmi|.rpi><|.ftz><|.sat><.f16.f16|.f32.f32|.f64.f64> ${w}, %{w}
cvt<|.rn|.rz|.rm|.rp><|.ftz><|.sat><.f16|.bf16|.f32|.f64><.f16|.bf16|.f32|.f64> ${v}, %{w}
cvt<.rn|.rz><|.relu><.f16x2|.bf16x2>.f32 $r, %r, %r
cvt<.rn|.rz><|.relu><.f16|.bf16>.f32 $h, %r
cvt.rna.tf32.f32 $r, %r
cvt.pack.sat<.u16|.s16>.s32 $r, %r, %r
cvt.pack.sat<.u8|.s8|.u4|.s4|.u2|.s2>.s32.b32 $r, %r, %r, %r
cvt<.f16.u8|.f32.u8|.f32.s8> ${v}, %h
and.b32 $r, %r, 255; cvt.rn.f32.u32 $r, &r
shr.u32 $r, %r, <8|16|24>; cvt.rn.f32.u8 $r, &r
"""

VIDEO = """
<vadd|vsub|vabsdiff|vmin|vmax><.u32|.s32><.u32|.s32><.u32|.s32><|.sat> $r, %r, %r
<vadd|vsub|vabsdiff|vmin|vmax>.s32<.u32|.s32><.u32|.s32> $r, %r<.b0|.h1>, %r<.b3|.h0>
<vadd|vsub|vabsdiff|vmin|vmax>.s32.u32.s32<|.sat>.<add|min|max> $r, %r.b2, %r.h1, %r
<vadd|vsub|vabsdiff|vmin|vmax>.u32.s32.u32<|.sat> $r<.b0|.h1>, %r.b2, %r.h1, %r
vshl<.u32|.s32>.u32.u32<|.sat>.<clamp|wrap> $r, %r<|.b1|.h1>, %r
vshr<.u32|.s32><.u32|.s32>.u32<|.sat>.<clamp|wrap> $r, %r<|.b1|.h1>, %r
vmad<.u32|.s32><.u32|.s32><.u32|.s32><|.sat><|.shr7|.shr15> $r, %r.b0, %r.h1, %r
vmad.s32.s32.s32 $r, %r.b0, %r.h1, -%r
vmad.u32.u32.u32.po $r, %r.b0, %r.h1, %r
vset<.u32|.s32><.u32|.s32>.<eq|lt|ge> $r, %r.b1, %r.h1
vset.u32.u32.lt.<add|min|max> $r, %r.b1, %r.h1, %r
<vadd2|vsub2|vavrg2|vabsdiff2|vmin2|vmax2|vadd4|vsub4|vavrg4|vabsdiff4|vmin4|vmax4><.u32.u32.u32|.s32.s32.s32|.s32.u32.s32><|.sat|.add> $r, %r, %r, %r
<vset2|vset4><.u32.u32|.s32.s32>.<eq|lt|ge><|.add> $r, %r, %r, %r
"""

LANES = """
shfl.sync.<up|down|bfly|idx>.b32 $r|$p, %r, <%r|3>, <%r|0x1f|0x181f>, 0xffffffff
shfl.sync.<up|down|bfly|idx>.b32 $r, %r, <%r|3>, <%r|0x1f>, %r
vote.sync.<all|any|uni>.pred $p, %p, <%r|0xffffffff>
vote.sync.ballot.b32 $r, <|!>%p, <%r|0xffffffff>
match.any.sync<.b32|.b64> $r, %{w}, <%r|0xffffffff>
match.all.sync<.b32|.b64> $r|$p, %{w}, <%r|0xffffffff>
redux.sync.<and|or|xor>.b32 $r, %r, <%r|0xffffffff>
redux.sync.<add|min|max>.<u32|s32> $r, %r, <%r|0xffffffff>
activemask.b32 $r
bar.warp.sync <%r|0xffffffff>
movmatrix.sync.aligned.m8n8.trans.b16 $r, %r
mov.u32 $r, %<tid.x|tid.y|tid.z|ntid.x|ctaid.x|ctaid.y|ctaid.z|nctaid.x|laneid|warpid|nwarpid|smid|nsmid|lanemask_eq|lanemask_le|lanemask_lt|lanemask_ge|lanemask_gt|clock|clock_hi|globaltimer_lo|globaltimer_hi|total_smem_size|dynamic_smem_size|pm0|pm7|envreg3|reserved_smem_offset_begin>
mov.u64 $l, %<clock64|globaltimer|gridid|pm0_64|current_graph_exec>
"""

SCOPES = "<.cta|.gpu|.sys>"
MEMORY = f"""
ld.global<.b8|.u8|.s8|.b16|.u16|.s16|.b32|.b64> ${{w}}, [%g+16]
ld.global<.ca|.cg|.cs|.lu|.cv>.b32 $r, [%g]
ld.<shared|local|const|param><.u8|.s8|.u16|.s16|.b32|.b64> ${{w}}, [%{{m}}+16]
ld<.u8|.s8|.u16|.s16|.b32|.b64> ${{w}}, [%n+16]
ld.<global|shared|local|const>.v2<.b8|.b16|.b32|.b64> {{${{w}}, ${{w}}}}, [%{{m}}+16]
ld.<global|shared|local|const>.v4<.b8|.b16|.b32> {{${{w}}, ${{w}}, ${{w}}, ${{w}}}}, [%{{m}}+16]
ld<.v2.b32 {{$r, $r}}|.v4.b32 {{$r, $r, $r, $r}}>, [%n]
ld.global.nc<.u8|.s16|.b32|.b64> ${{w}}, [%g]
ld.global<|.L1::evict_normal|.L1::evict_unchanged|.L1::evict_first|.L1::evict_last|.L1::no_allocate><|.L2::64B|.L2::128B|.L2::256B>.b32 $r, [%g]
ld.global.nc<|.L1::evict_first|.L1::no_allocate>.L2::cache_hint.b32 $r, [%g], %l
ld.global.L2::cache_hint.v4.b32 {{$r, $r, $r, $r}}, [%g], %l
st.global<|.L1::evict_last>.L2::cache_hint.b32 [%g], %r, %l
ld.volatile<.global|.shared|.local|>.b32 $r, [%{{m}}]
ld.<relaxed|acquire>{SCOPES}<.global|.shared|><.b32|.b64|.u8> ${{w}}, [%{{m}}]
ld.mmio.relaxed.sys.global<.b32|.u8> ${{w}}, [%g]
st.mmio.relaxed.sys.global<.b32|.u8> [%g], %{{w}}
ldu.global<.b32|.b64> ${{w}}, [%g]
ldu.global.v4.b32 {{$r, $r, $r, $r}}, [%g]
st.<global|shared|local><.u8|.b16|.b32|.b64> [%{{m}}+16], %{{w}}
st<.u8|.b16|.b32|.b64> [%n+16], %{{w}}
st.<global|shared|local>.v2<.b8|.b16|.b32|.b64> [%{{m}}+16], {{%{{w}}, %{{w}}}}
st.<global|shared|local>.v4<.b8|.b16|.b32> [%{{m}}+16], {{%{{w}}, %{{w}}, %{{w}}, %{{w}}}}
st.global<.wb|.cg|.cs|.wt>.b32 [%g], %r
st.global<.L1::evict_normal|.L1::evict_unchanged|.L1::evict_first|.L1::evict_last|.L1::no_allocate>.b32 [%g], %r
st.volatile<.global|.shared|>.b32 [%{{m}}], %r
st.<relaxed|release>{SCOPES}<.global|.shared|><.b32|.b64|.u8> [%{{m}}], %{{w}}
prefetch.global.<L1|L2> [%g]
prefetch.global.L2::<evict_last|evict_normal> [%g]
prefetch.<L1|L2> [%n]
prefetchu.L1 [%n]
applypriority.global.L2::evict_normal [%g], 128
discard.global.L2 [%g], 128
createpolicy.fractional.L2::<evict_last|evict_normal|evict_first|evict_unchanged>.b64 $l, 0.5
createpolicy.range.global.L2::evict_last.L2::evict_first.b64 $l, [%g], %r, %r
createpolicy.cvt.L2.b64 $l, %l
cp.async.ca.shared.global [%s], [%g+16], <4|8|16>
cp.async.cg.shared.global<|.L2::64B|.L2::128B|.L2::256B> [%s], [%g], 16
cp.async.<ca|cg>.shared.global [%s], [%g], 16, %r
cp.async.<ca|cg>.shared.global [%s], [%g], 16, %p
cp.async.cg.shared.global.L2::cache_hint [%s], [%g], 16, %l
cp.async.commit_group
cp.async.wait_group <0|3>
cp.async.wait_all
ldmatrix.sync.aligned.m8n8.x1<|.trans>.shared.b16 {{$r}}, [%s]
ldmatrix.sync.aligned.m8n8.x2<|.trans>.shared.b16 {{$r, $r}}, [%s+32]
ldmatrix.sync.aligned.m8n8.x4<|.trans>.shared.b16 {{$r, $r, $r, $r}}, [%s]
isspacep.<global|shared|local|const|param> $p, %n
cvta.<global|shared|local|const>.u64 $l, %l
cvta.to.<global|shared|local|const>.u64 $l, %l
"""

ATOMIC = f"""
atom<|.relaxed|.acquire|.release|.acq_rel>{SCOPES}.<global|shared>.add.u32 $r, [%{{m}}], %r
atom<|.global|.shared>.<add|min|max><.u32|.s32|.u64|.s64> ${{w}}, [%{{m}}], %{{w}}
atom<|.global|.shared>.<inc|dec>.u32 $r, [%{{m}}], %r
atom<|.global|.shared>.<and|or|xor|exch><.b32|.b64> ${{w}}, [%{{m}}], %{{w}}
atom<|.global|.shared>.cas<.b16|.b32|.b64> ${{w}}, [%{{m}}], %{{w}}, %{{w}}
atom<|.global|.shared>.add<.f32|.f64> ${{w}}, [%{{m}}], %{{w}}
atom<|.global|.shared>.add.noftz<.f16|.f16x2|.bf16|.bf16x2> ${{w}}, [%{{m}}], %{{w}}
red<|.relaxed|.release>{SCOPES}.<global|shared>.add.u32 [%{{m}}], %r
red<|.global|.shared>.<add|min|max><.u32|.s32|.u64|.s64> [%{{m}}], %{{w}}
red<|.global|.shared>.<inc|dec>.u32 [%{{m}}], %r
red<|.global|.shared>.<and|or|xor><.b32|.b64> [%{{m}}], %{{w}}
red<|.global|.shared>.add<.f32|.f64> [%{{m}}], %{{w}}
red<|.global|.shared>.add.noftz<.f16|.f16x2|.bf16|.bf16x2> [%{{m}}], %{{w}}
atom.global.L2::cache_hint.add.u32 $r, [%g], %r, %l
red.global.L2::cache_hint.add.f32 [%g], %r, %l
atom.shared.<exch|cas>.b32 $r, [%s], <%r|%r, %r>
atom.shared.inc.u32 $r, [%s], -1
"""

BARRIER = f"""
<bar|barrier>.sync <0|5|%r>
<bar|barrier>.sync <5|%r>, <64|%r>
<bar|barrier>.arrive <5|%r>, <64|%r>
<bar|barrier>.red.popc.u32 $r, <5|%r>, <|!>%p
<bar|barrier>.red.popc.u32 $r, <5|%r>, <64|%r>, %p
<bar|barrier>.red.<and|or>.pred $p, <5|%r>, %p
<bar|barrier>.red.<and|or>.pred $p, <5|%r>, <64|%r>, %p
membar.<cta|gl|sys>
fence.<sc|acq_rel>{SCOPES}
fence.proxy.<alias|async>
mbarrier.init.shared.b64 [%s], %r
mbarrier.inval.shared.b64 [%s]
mbarrier.arrive.shared.b64 $l, [%s]
mbarrier.arrive.noComplete.shared.b64 $l, [%s], %r
mbarrier.arrive_drop.shared.b64 $l, [%s]
mbarrier.arrive_drop.noComplete.shared.b64 $l, [%s], %r
mbarrier.test_wait.shared.b64 $p, [%s], %l
mbarrier.pending_count.b64 $r, %l
cp.async.mbarrier.arrive<|.noinc>.shared.b64 [%s]
nanosleep.u32 <%r|100>
trap
brkpt
exit
pmevent 3
"""


def fragment(sigil, count, letter="r"):
    return "{" + ", ".join([sigil + letter] * count) + "}"


def mma(shape, types, a, b, c, d, extra="", middle=".row.col", kind=""):
    """A product of matrices: how many registers each of its fragments takes."""
    letter = "l" if types.startswith(".f64") else "r"
    f = lambda sigil, count: fragment(sigil, count, letter)
    return f"mma{kind}.sync.aligned.{shape}{middle}{types} {f('$', d)}, {f('%', a)}, {f('%', b)}, {f('%', c)}{extra}"


TENSOR = "\n".join(
    [mma("m8n8k4", f".{d}.f16.f16.{c}", 2, 2, 8 if c == "f32" else 4, 8 if d == "f32" else 4, middle=f".{x}.{y}")
     for c in ["f16", "f32"] for d in ["f16", "f32"] for x in ["row", "col"] for y in ["row", "col"]]
    + [mma(s, f".{d}.f16.f16.{d}", a, a // 2, n, n) for s, a in [("m16n8k8", 2), ("m16n8k16", 4)] for d, n in [("f16", 2), ("f32", 4)]]
    + [mma(s, ".f32.bf16.bf16.f32", a, a // 2, 4, 4) for s, a in [("m16n8k8", 2), ("m16n8k16", 4)]]
    + [mma(s, ".f32.tf32.tf32.f32", a, a // 2, 4, 4) for s, a in [("m16n8k4", 2), ("m16n8k8", 4)]]
    + [mma("m8n8k4", ".f64.f64.f64.f64", 1, 1, 2, 2)]
    + [mma("m8n8k16", f"{sat}.s32.{x}.{y}.s32", 1, 1, 2, 2) for sat in ["", ".satfinite"] for x in ["u8", "s8"] for y in ["u8", "s8"]]
    + [mma("m8n8k32", f"{sat}.s32.{x}.{y}.s32", 1, 1, 2, 2) for sat in ["", ".satfinite"] for x in ["u4", "s4"] for y in ["u4", "s4"]]
    + [mma(s, f"{sat}.s32.{x}.{y}.s32", a, a // 2, 4, 4) for s, a in [("m16n8k16", 2), ("m16n8k32", 4)] for sat in ["", ".satfinite"] for x in ["u8", "s8"] for y in ["u8", "s8"]]
    + [mma(s, f"{sat}.s32.{x}.{y}.s32", a, a // 2, 4, 4) for s, a in [("m16n8k32", 2), ("m16n8k64", 4)] for sat in ["", ".satfinite"] for x in ["u4", "s4"] for y in ["u4", "s4"]]
    + [mma(s, f".s32.b1.b1.s32.{o}.popc", a, b, n, n) for s, a, b, n in [("m8n8k128", 1, 1, 2), ("m16n8k128", 2, 1, 4), ("m16n8k256", 4, 2, 4)] for o in ["xor", "and"]]
    + [mma(s, f".{d}.f16.f16.{d}", a, a, n, n, f", %r, <{select}>", kind=".sp") for s, a, select in [("m16n8k16", 2, "0|1|2|3"), ("m16n8k32", 4, "0|1")] for d, n in [("f16", 2), ("f32", 4)]]
    + [mma(s, ".f32.bf16.bf16.f32", a, a, 4, 4, f", %r, <{select}>", kind=".sp") for s, a, select in [("m16n8k16", 2, "0|3"), ("m16n8k32", 4, "0|1")]]
    + [mma(s, ".f32.tf32.tf32.f32", a, a, 4, 4, f", %r, <{select}>", kind=".sp") for s, a, select in [("m16n8k8", 2, "0|3"), ("m16n8k16", 4, "0|1")]]
    + [mma(s, f"{sat}.s32.{x}.{y}.s32", a, a, 4, 4, f", %r, <{select}>", kind=".sp") for s, a, select in [("m16n8k32", 2, "0|1"), ("m16n8k64", 4, "0")] for sat in ["", ".satfinite"] for x in ["u8", "s8"] for y in ["u8", "s8"]]
    + [mma(s, f"{sat}.s32.{x}.{y}.s32", a, a, 4, 4, f", %r, <{select}>", kind=".sp") for s, a, select in [("m16n8k64", 2, "0|1"), ("m16n8k128", 4, "0")] for sat in ["", ".satfinite"] for x in ["u4", "s4"] for y in ["u4", "s4"]]
    + [f"wmma.load.{m}.sync.aligned.{layout}.m16n16k16.{space}.f16 {fragment('$', n)}, [%{letter}], %r"
       for m, n in [("a", 8), ("b", 8), ("c", 4)] for layout in ["row", "col"] for space, letter in [("global", "g"), ("shared", "s")]]
    + [f"wmma.load.{m}.sync.aligned.{layout}.{s}.global.{t} {fragment('$', n)}, [%g], %r"
       for s, t, a, b in [("m16n16k16", "u8", 2, 2), ("m32n8k16", "s8", 4, 1), ("m8n32k16", "u8", 1, 4), ("m16n16k16", "bf16", 4, 4), ("m16n16k8", "tf32", 4, 4)]
       for m, n in [("a", a), ("b", b)] for layout in ["row", "col"]]
    + [f"wmma.load.c.sync.aligned.{layout}.{s}.global.{t} {fragment('$', 8)}, [%g], %r"
       for s in ["m16n16k16", "m32n8k16", "m8n32k16"] for t in ["f32", "s32"] for layout in ["row", "col"]]
    + [f"wmma.store.d.sync.aligned.{layout}.m16n16k16.{space}.{t} [%{letter}], {fragment('%', n)}, %r"
       for t, n in [("f32", 8), ("f16", 4), ("s32", 8)] for layout in ["row", "col"] for space, letter in [("global", "g"), ("shared", "s")]]
    + [f"wmma.mma.sync.aligned.{x}.{y}.{s}.{d}.{c} {fragment('$', 8 if d == 'f32' else 4)}, {fragment('%', 8)}, {fragment('%', 8)}, {fragment('%', 8 if c == 'f32' else 4)}"
       for s in ["m16n16k16", "m32n8k16", "m8n32k16"] for x in ["row", "col"] for y in ["row", "col"] for d in ["f16", "f32"] for c in ["f16", "f32"]]
    + [f"wmma.mma.sync.aligned.{x}.{y}.{s}.s32.{t}.{t}.s32{sat} {fragment('$', 8)}, {fragment('%', a)}, {fragment('%', b)}, {fragment('%', 8)}"
       for s, a, b in [("m16n16k16", 2, 2), ("m32n8k16", 4, 1), ("m8n32k16", 1, 4)] for t in ["u8", "s8"] for x in ["row", "col"] for y in ["row", "col"] for sat in ["", ".satfinite"]]
    + [f"wmma.mma.sync.aligned.{x}.{y}.{s}.f32.{t}.{t}.f32 {fragment('$', 8)}, {fragment('%', a)}, {fragment('%', b)}, {fragment('%', 8)}"
       for s, t, a, b in [("m16n16k16", "bf16", 4, 4), ("m32n8k16", "bf16", 8, 2), ("m8n32k16", "bf16", 2, 8), ("m16n16k8", "tf32", 4, 4)] for x in ["row", "col"] for y in ["row", "col"]]
    + [f"wmma.mma.sync.aligned.row.col.m8n8k32.s32.{t}.{t}.s32 {fragment('$', 2)}, {{%r}}, {{%r}}, {fragment('%', 2)}" for t in ["u4", "s4"]]
    + [f"wmma.mma.{o}.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32 {fragment('$', 2)}, {{%r}}, {{%r}}, {fragment('%', 2)}" for o in ["xor", "and"]]
    + [f"wmma.mma.sync.aligned.{x}.{y}{r}.m8n8k4.f64.f64.f64.f64 {fragment('$', 2, 'l')}, {{%l}}, {{%l}}, {fragment('%', 2, 'l')}" for x in ["row", "col"] for y in ["row", "col"] for r in [".rn"]]
)

FAMILIES = {
    "integer": INTEGER, "logic and moves": LOGIC, "comparison": COMPARE, "float": FLOAT,
    "half and bfloat16": HALF, "conversion": CONVERT, "video": VIDEO, "between lanes": LANES,
    "memory": MEMORY, "atomic": ATOMIC, "barriers and control": BARRIER, "tensor": TENSOR,
}
WIDTHS = {"8": "h", "16": "h", "32": "r", "64": "l", "x2": "r", "pred": "p"}
SPACES = {"global": "g", "shared": "s", "local": "c", "const": "k", "param": "k"}


def width(text):
    """The register of a type's name."""
    return "p" if text == "pred" else "r" if text.endswith("x2") else WIDTHS[re.search(r"(8|16|32|64)$", text)[0]]


def expand(row):
    """All instructions of a row: alternatives taken, {w} the width of the last type, {v} of the one
    before it, {t} the last type, {m} the memory."""
    parts = re.split(r"<([^<>]*)>", row)
    for choice in itertools.product(*[[p] if i % 2 == 0 else p.split("|") for i, p in enumerate(parts)]):
        text = "".join(choice)
        name = text.split(" ")[0].split(";")[0]
        types = re.findall(r"\.((?:[usbf]|bf)\d+(?:x2)?|pred)(?![\w:])", name)
        space = next((SPACES[s] for s in re.findall(r"\.(\w+)", name) if s in SPACES), "n")
        if "{w}" in text or "{t}" in text or "{v}" in text:
            if not types:
                continue
            text = text.replace("{w}", width(types[-1])).replace("{t}", "." + types[-1])
            text = text.replace("{v}", width(types[-2] if len(types) > 1 else types[-1]))
        yield text.replace("{m}", space)


BITS = {"h": 16, "r": 32, "l": 64}
NUMBERS = {"h": ["0x3e00", "7"], "r": ["0x40200000", "11"], "l": ["0x4004000000000000", "13"]}


def kernel(name, text, mode):
    """A kernel with the instruction; None where the mode makes no difference."""
    values = re.findall(r"%([hrl])(?![a-z_0-9])", text)
    floating = re.search(r"\.(f16x2|bf16x2|f16|bf16|f32|f64)\b", text)
    if mode != "loaded" and (not values or re.match(r"v(?!ote)|w?mma", text)):
        return None
    if mode in ("negated", "absolute") and (not floating or not re.match("add|sub|mul|fma|min|max|setp|set|cvt.rni|ex2|sqrt|cvt.rn.sat", text)):
        return None
    head, tail, declared, counter, last = [], [], [], itertools.count(), {}
    total, seen = len(values), 0

    def fresh(letter):
        register = f"%{letter}{next(counter)}"
        declared.append(f".reg .{'pred' if letter == 'p' else 'b%d' % BITS[letter]} {register};")
        return register

    def parameter(letter):
        offset = 64 + 16 * next(counter)
        register = fresh(letter)
        head.append(f"ld.param.b{BITS[letter]} {register}, [p+{offset}];")
        return register

    def loaded(letter):
        register = fresh(letter)
        head.append(f"ld.global.b{BITS[letter]} {register}, [%base+{16 * next(counter)}];")
        return register

    def source(match):
        nonlocal seen
        letter = match[1]
        if letter == "p":
            register = fresh("p")
            head.append(f"setp.ne.b32 {register}, {loaded('r')}, {16 * next(counter)};")
            return register
        if letter in "gn":
            return {"g": "%base", "n": "%generic"}[letter]
        if letter in "sck":
            return {"s": "%near", "c": "%stack", "k": "%table"}[letter]
        seen += 1
        if mode == "uniform" or mode == "parameter" and seen == total:
            return parameter(letter)
        if mode.startswith("number") and seen == total:
            register = fresh(letter)
            head.append(f"mov.b{BITS[letter]} {register}, {NUMBERS[letter][mode == 'number, whole']};")
            return register
        register = loaded(letter)
        if mode in ("negated", "absolute"):
            kind = floating[1]
            if BITS[letter] != (32 if kind.endswith("x2") or kind == "f32" else 64 if kind == "f64" else 16):
                return register
            other = fresh(letter)
            head.append(f"{'neg' if mode == 'negated' else 'abs'}.{kind} {other}, {register};")
            return other
        return register

    def destination(letter):
        register = fresh(letter)
        last[letter] = register
        if letter == "p":
            tail.append(f"selp.b32 %out, 5, 9, {register}; st.global.b32 [%base+{2048 + 16 * next(counter)}], %out;")
        else:
            tail.append(f"st.global.b{BITS[letter]} [%base+{2048 + 16 * next(counter)}], {register};")
        return register

    line = re.sub(r"%([hrlpgscnk])(?![a-z_0-9])", source, text)
    line = re.sub(r"[$&][hrlp]", lambda m: destination(m[0][1]) if m[0][0] == "$" else last[m[0][1]], line)
    newline = "\n\t"
    return f""".visible .entry {name}(.param .align 16 .b8 p[1024]) {{
\t.reg .b64 %base, %generic, %wide, %tablebase, %table; .reg .b32 %near, %stack, %lane, %out;
\t.local .align 16 .b8 frame[256];
\t{newline.join(declared)}
\tld.param.b64 %base, [p]; mov.u32 %lane, %tid.x; mul.wide.u32 %wide, %lane, 4096; add.u64 %base, %base, %wide;
\tld.param.b64 %generic, [p+8]; add.u64 %generic, %generic, %wide;
\tmov.u32 %near, pool; mad.lo.u32 %near, %lane, 64, %near;
\tmov.u32 %stack, frame; mad.lo.u32 %stack, %lane, 4, %stack;
\tmov.u64 %tablebase, table; add.u64 %table, %tablebase, %wide;
\t{newline.join(head)}
\t{line};
\t{newline.join(tail)}
\tret;
}}
"""


HEADER = f""".version 8.5
.target {ARCHITECTURE}
.address_size 64
.extern .shared .align 16 .b8 pool[];
.const .align 16 .b8 table[4096];
"""
MODES = ["loaded", "parameter", "uniform", "number", "number, whole", "negated", "absolute"]


def assemble(kernels, refused):
    """The functions of kernels; those that the assembler refuses go to `refused`, with its words."""
    while kernels := {name: source for name, source in kernels.items() if name not in refused}:
        lines, owner = HEADER.split("\n"), {}
        for name, source in kernels.items():
            for line in source.split("\n"):
                lines.append(line)
                owner[len(lines)] = name
        with tempfile.TemporaryDirectory() as directory:
            path = directory + "/forms"
            open(path + ".ptx", "w").write("\n".join(lines))
            done = subprocess.run([PTXAS, "-arch", ARCHITECTURE, path + ".ptx", "-o", path + ".cubin"],
                                  capture_output=True, text=True)
            if done.returncode == 0:
                return dict(code_sections(open(path + ".cubin", "rb").read()))
        found = {owner[int(line)]: words for line, words in
                 re.findall(r"line (\d+); (?:error|fatal)\s*: (.*)", done.stderr) if int(line) in owner}
        if not found and len(kernels) == 1:
            found = {name: f"the assembler ends with {done.returncode}: {done.stderr}" for name in kernels}
        if not found:
            # It does not say which one it was.
            names = list(kernels)
            halves = [names[:len(names) // 2], names[len(names) // 2:]]
            return {k: v for half in halves for k, v in assemble({name: kernels[name] for name in half}, refused).items()}
        refused.update(found)
    return {}


BRANCHES = re.compile(r"^(@!?U?P\w+ )?(BRA|BSSY|CALL|RET|BRX|JMP|JMX)")


def main():
    seen, out, dropped = set(), [], []
    for family, rows in FAMILIES.items():
        forms = list(dict.fromkeys(text for row in rows.strip().split("\n") for text in expand(row)))
        kernels, texts = {}, {}
        for number, text in enumerate(forms):
            for mode in MODES:
                name = f"k{number}_{MODES.index(mode)}"
                source = kernel(name, text, mode)
                if source:
                    kernels[name], texts[name] = source, text
        names = list(kernels)
        functions, refused = {}, {}
        for start in range(0, len(names), 500):
            functions |= assemble({name: kernels[name] for name in names[start:start + 500]}, refused)
        out.append(f"# {family}")
        # All in one, because starting the disassembler takes longer than its work.
        order = [name for name in names if name in functions]
        rows = iter(disassemble(b"".join(functions[name] for name in order), ARCHITECTURE))
        code = {name: list(itertools.islice(rows, len(functions[name]) // 16)) for name in order}
        for text in forms:
            mine = [name for name in order if texts[name] == text]
            if not mine:
                why = next(refused[name] for name in names if texts[name] == text)
                dropped.append(f"{family}: {text}: {why}")
                continue
            out.append(f": {text}")
            for name in mine:
                for index, (low, high, asm) in enumerate(code[name]):
                    if shape(asm) in seen:
                        continue
                    seen.add(shape(asm))
                    if BRANCHES.match(asm):
                        asm = disassemble(functions[name], ARCHITECTURE)[index][2]
                        out.append(f"@{index * 16:x}")
                    out.append(f"{low:016x} {high:016x} {asm}")
        print(family, len(forms), "forms,", len(names), "kernels,", len(out), "lines", file=sys.stderr, flush=True)
    open(f"{HERE}/{ARCHITECTURE}/ptx.txt", "w").write("\n".join(out) + "\n")
    if "--refused" in sys.argv:
        print("\n".join(dropped))


if __name__ == "__main__":
    main()
