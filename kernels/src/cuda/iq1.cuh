// Weight formats IQ1_M and IQ1_S: levels of eight times -1, 0 or 1, plus or minus one.
#pragma once
#include "byte_scales.cuh"

struct IQ1 : Threes<0x01fff9f7u, 0x00000907u, 0, 1> {};

template <>
struct Tile<IQ1> : TileOfThrees<IQ1> {};
