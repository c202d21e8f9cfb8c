// Weight format Q3_K: levels from -4 to 3, so small that the rounding of a bias would matter.
#pragma once
#include "byte_scales.cuh"

struct Q3_K : Threes<0xfffefdfcu, 0x03020100u, 0, 1> {};

template <>
struct Tile<Q3_K> : TileOfThrees<Q3_K> {};
