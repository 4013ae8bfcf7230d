// Masked linear layers over a tile of rows, one row of the batch per lane.
//
// A row never meets another one: each lane sums its products in the same order whatever the other lanes hold. So the result of a
// row does not depend on the batch that it is in, unlike that of a general matrix product.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace elflow::ELFLOW_ISA {

// Vectors of rows in a tile. Sixteen accumulators hide the latency of additions; AVX2 only has registers for eight.
constexpr int tile_vecs = lanes >= 8 ? 2 : 1;
constexpr int tile_rows = tile_vecs * lanes;

// Row r of vector v of a tile has its number `i` at values[i * tile_vecs + v][r].
template <bool relu>
static inline void apply_linear(const Linear& layer, const vec* in, vec* out) {
  for (std::int64_t block = 0; block * linear_block < layer.outputs; ++block) {
    vec sums[linear_block][tile_vecs];
    const double* bias = layer.bias + block * linear_block;
#pragma GCC unroll 8
    for (int j = 0; j < linear_block; ++j)
#pragma GCC unroll 2
      for (int v = 0; v < tile_vecs; ++v) sums[j][v] = splat(bias[j]);
    const double* weights = layer.weights + layer.starts[block] * linear_block;
    for (std::int64_t s = layer.starts[block]; s < layer.starts[block + 1]; ++s, weights += linear_block) {
      const vec* x = in + layer.seen[s] * tile_vecs;
#pragma GCC unroll 8
      for (int j = 0; j < linear_block; ++j)
#pragma GCC unroll 2
        for (int v = 0; v < tile_vecs; ++v) sums[j][v] += x[v] * weights[j];
    }
    vec* results = out + block * linear_block * tile_vecs;
#pragma GCC unroll 8
    for (int j = 0; j < linear_block; ++j)
#pragma GCC unroll 2
      for (int v = 0; v < tile_vecs; ++v) results[j * tile_vecs + v] = relu ? keep_nan_max(sums[j][v]) : sums[j][v];
  }
}

}  // namespace elflow::ELFLOW_ISA
