// Weight format IQ3_XXS: levels up to 62.
#pragma once
#include "byte_scales.cuh"

struct IQ3_XXS : Fours<Levels<0xdcd4ccc2u, 0xfcf4ece4u, 0x1c140c04u, 0x3e342c24u>> {};

template <>
struct Tile<IQ3_XXS> : TileOfFours<IQ3_XXS> {};
