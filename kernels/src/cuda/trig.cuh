// Sines and cosines.
#pragma once
#include "base.cuh"

// Cosine and sine of p * f below 2^20, to 2e-7. The exact product, in two parts, is reduced to
// +-pi/4 by pi/2 in two parts; then minimax polynomials. No slow path.
DEVICE void sin_cos(float p, float f, float& sine, float& cosine) {
    float high = __fmul_rn(p, f);
    float low = __fmaf_rn(p, f, -high);
    i32 quarter = __float2int_rn(__fmul_rn(high, 0.636619772f));
    float turns = static_cast<float>(quarter);
    float r = __fmaf_rn(turns, -1.57079637f, high);
    r = __fadd_rn(__fmaf_rn(turns, 4.37113883e-8f, r), low);
    float r2 = __fmul_rn(r, r);
    float s = __fmaf_rn(r2, -1.95152960e-4f, 8.33216087e-3f);
    s = __fmaf_rn(r2, s, -1.66666546e-1f);
    s = __fmaf_rn(__fmul_rn(r2, r), s, r);
    float c = __fmaf_rn(r2, 2.44331571e-5f, -1.38873162e-3f);
    c = __fmaf_rn(r2, c, 4.16666456e-2f);
    c = __fmaf_rn(__fmul_rn(r2, r2), c, __fmaf_rn(r2, -0.5f, 1.0f));
    bool swap = quarter & 1;
    sine = swap ? c : s;
    cosine = swap ? s : c;
    if (quarter & 2) sine = -sine;
    if ((quarter + 1) & 2) cosine = -cosine;
}
