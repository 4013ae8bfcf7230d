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

// Lists the inputs that are not zero in all rows of a tile. After a ReLU these are few, the more so if the rows are similar.
static inline std::int64_t list_active(const vec* in, std::int64_t count, std::int32_t* active) {
  std::int64_t n = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    ivec bits = (ivec)in[i * tile_vecs];
    for (int v = 1; v < tile_vecs; ++v) bits |= (ivec)in[i * tile_vecs + v];
    active[n] = static_cast<std::int32_t>(i);
    n += any(bits);
  }
  return n;
}

// Row r of vector v of a tile has its number i at values[i * tile_vecs + v][r]. Inputs that are zero are left out, which does not
// change a sum: so the other rows of a tile do not change the result of a row.
template <bool relu>
static inline void apply_linear(const Linear& layer, const vec* in, vec* out, std::int32_t* active) {
  const std::int64_t n_active = layer.prefix ? list_active(in, layer.inputs, active) : 0;
  for (std::int64_t block = 0; block * linear_block < layer.outputs; ++block) {
    vec sums[linear_block][tile_vecs];
    const double* bias = layer.bias + block * linear_block;
#pragma GCC unroll 8
    for (int j = 0; j < linear_block; ++j)
#pragma GCC unroll 2
      for (int v = 0; v < tile_vecs; ++v) sums[j][v] = splat(bias[j]);
    const auto add = [&](const vec* x, const double* weights) {
#pragma GCC unroll 8
      for (int j = 0; j < linear_block; ++j)
#pragma GCC unroll 2
        for (int v = 0; v < tile_vecs; ++v) sums[j][v] += x[v] * weights[j];
    };
    const std::int64_t begin = layer.starts[block], end = layer.starts[block + 1];
    const double* weights = layer.weights + begin * linear_block;
    if (layer.prefix)
      for (std::int64_t n = 0; n < n_active && active[n] < end - begin; ++n)
        add(in + active[n] * tile_vecs, weights + active[n] * linear_block);
    else
      for (std::int64_t s = begin; s < end; ++s, weights += linear_block) add(in + layer.seen[s] * tile_vecs, weights);
    vec* results = out + block * linear_block * tile_vecs;
#pragma GCC unroll 8
    for (int j = 0; j < linear_block; ++j)
#pragma GCC unroll 2
      for (int v = 0; v < tile_vecs; ++v) results[j * tile_vecs + v] = relu ? rectify(sums[j][v]) : sums[j][v];
  }
}

}  // namespace elflow::ELFLOW_ISA
