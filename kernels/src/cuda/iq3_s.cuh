// Weight format IQ3_S: odd levels up to 15.
#pragma once
#include "byte_scales.cuh"

struct IQ3_S : Fours<Levels<0xf7f5f3f1u, 0xfffdfbf9u, 0x07050301u, 0x0f0d0b09u>> {};

template <>
struct Tile<IQ3_S> : TileOfFours<IQ3_S> {};
