// Weight formats IQ2_S, IQ2_XS and IQ2_XXS: levels of plus or minus 8, 25 or 43.
#pragma once
#include "byte_scales.cuh"

struct IQ2 : Threes<0x08f8e7d5u, 0x00002b19u, 16, 0> {};

template <>
struct Tile<IQ2> : TileOfThrees<IQ2> {};
