// The log-density of rows under a mixture of flows, from the rows to the result without leaving the cache.
//
// One row of the batch per lane, as in dense.h. The networks are those of bumps.h and network.h, in a form that needs no weights:
// unit i has the slope a_i q(k_i (x - edge_i)) with its ramp between edge_i - 1/(2 k_i) and edge_i + 1/(2 k_i).
#pragma once

#include "bumps.h"
#include "dense.h"
#include "lipschitz.h"

namespace elflow::ELFLOW_ISA {

// Maximum relative error of a Lipschitz constant. Rows with a network that may exceed it are left to the caller.
constexpr double max_lipschitz_error = 1e-10;

// Slopes are multiplied up before their logarithm is taken. They are above 1 - bound, so that so many cannot underflow.
constexpr int max_factors = 16;

// One network per lane, and scratch memory for its sorted breakpoints.
class LaneNetwork {
  std::int64_t units_, rows_, tag_mask_ = 15;
  vec *k_, *edge_, *a_, *inverse_, *keys_, *jumps_;

  static constexpr std::int64_t rows(std::int64_t units) { return round_up(2 * units, sort_block); }

 public:
  static constexpr std::int64_t doubles(std::int64_t units) { return lanes * (5 * units + rows(units)); }

  LaneNetwork(std::int64_t units, double* memory) : units_(units), rows_(rows(units)) {
    while (tag_mask_ < 2 * units - 1) tag_mask_ = 2 * tag_mask_ + 1;
    k_ = reinterpret_cast<vec*>(memory);
    edge_ = k_ + units, a_ = edge_ + units, inverse_ = a_ + units, jumps_ = inverse_ + units, keys_ = jumps_ + units;
  }

  // Reads the parameters of a network, which are `tile_vecs` vectors apart.
  void set(const vec* phi, double largest) {
    const Bumps at{units_};
    for (std::int64_t p = 0; p < at.pairs; ++p) {
      const vec t = phi[(at.t + p) * tile_vecs], a = phi[(at.a + p) * tile_vecs];
      const vec half = 0.5 * exp_clamped(phi[(at.log_w + p) * tile_vecs], largest);
      for (std::int64_t i = p; i < units_; i += at.pairs) {
        const bool falls = i >= at.pairs;
        k_[i] = exp_clamped(phi[i * tile_vecs], largest);
        inverse_[i] = 1.0 / k_[i];
        edge_[i] = falls ? t + half : t - half;
        a_[i] = falls ? -a : a;
      }
    }
  }

  // The factor s that keeps the network within the bound, and whether it is accurate. If the sum of the largest slopes of all
  // bumps is within the bound there is nothing to search. Each lane takes its own result: another one's search does not change it.
  vec normalise(double bound, ivec& accurate) {
    const ivec steep = bound_slope() > bound * (1 - 1e-12);
    if (!any(steep)) return splat(1.0);
    const vec lipschitz = search(bound, accurate, steep);
    return (steep & (lipschitz > bound)) ? bound / lipschitz : splat(1.0);
  }

  // s g(x) and 1 + s g'(x).
  void evaluate(vec s, vec x, vec& g, vec& slope) const {
    vec value{}, rise{};
    for (std::int64_t i = 0; i < units_; ++i) {
      const vec u = k_[i] * (x - edge_[i]) - 0.5, n = on_ramp(u);
      value += a_[i] * inverse_[i] * felu(u, n);
      rise += a_[i] * (1.0 + n);
    }
    g = s * value, slope = 1.0 + s * rise;
  }

 private:
  vec key(vec x, std::int64_t tag) const { return (vec)(((ivec)x & ~tag_mask_) | tag); }

  // An upper bound of |g'|. The slope of a bump is the difference of two ramps q, which are a width w apart and have the half widths
  // h = 1 / (2 k). It is between -least and most times its height; it is negative somewhere only if a ramp starts before the
  // other and ends after it.
  vec bound_slope() const {
    const std::int64_t pairs = (units_ + 1) / 2;
    vec up{}, down{};
    for (std::int64_t p = 0; p < pairs; ++p) {
      const vec a = a_[p], positive = max(a, vec{}), negative = positive - a;
      vec most = splat(1.0), least{};
      if (const std::int64_t f = p + pairs; f < units_) {
        const vec w = edge_[f] - edge_[p], hr = 0.5 * inverse_[p], hf = 0.5 * inverse_[f];
        const vec at_top = 0.5 + (w - hr) * k_[f], at_foot = 0.5 + (w - hf) * k_[p];
        most = min(max(at_top, at_foot), splat(1.0));
        least = max(max((hf - hr - w) * k_[f], (hr - hf - w) * k_[p]), vec{});
      }
      up += positive * most + negative * least;
      down += negative * most + positive * least;
    }
    return max(up, down);
  }

  // The largest |g'|, by a walk over the sorted breakpoints: see lipschitz.h.
  vec search(double bound, ivec& accurate, ivec steep) {
    vec right{}, reach{}, bend{};
    for (std::int64_t i = 0; i < units_; ++i) {
      const vec half = 0.5 * inverse_[i], size = abs(a_[i]);
      keys_[2 * i] = key(edge_[i] + half, 2 * i);
      keys_[2 * i + 1] = key(edge_[i] - half, 2 * i + 1);
      jumps_[i] = a_[i] * k_[i];
      right += a_[i];
      reach += size * (abs(edge_[i]) * k_[i] + 1.5);
      bend += size * k_[i];
    }
    for (std::int64_t r = 2 * units_; r < rows_; ++r) keys_[r] = key(splat(nowhere), 0);
    sort_lanes(keys_, rows_);
    Walk<vec> walk{keys_[0], vec{}};
    vec best = abs(right);
    for (std::int64_t r = 0; r < 2 * units_; ++r) {
      const vec x = keys_[r], jump = gather(reinterpret_cast<const double*>(jumps_), ((ivec)x & tag_mask_) >> 1);
      walk.pass(x, (vec)((ivec)jump ^ (~(ivec)x << 63)));  // down at the top of a ramp, up at its foot
      best = max(best, abs(walk.slope));
    }
    const double steps = 2 * static_cast<double>(units_) + 2, moved = 0x1p-52 * static_cast<double>(tag_mask_ + 1);
    const vec error = (bend * (walk.x - keys_[0]) + reach) * (steps * epsilon) + reach * (2 * moved + placement);
    accurate &= ~steep | (best + error <= bound) | (error <= max_lipschitz_error * best);
    return best;
  }
};

// Scratch memory for one tile.
struct Tile {
  vec *x, *standard, *latent, *layers[2], *phi;
  double* network;
  std::int32_t* active;

  static std::int64_t doubles(const Mixture& m) {
    return lanes * tile_vecs * (3 * (m.features + m.context) + 2 * m.hidden + m.outputs) + LaneNetwork::doubles(m.units) +
           m.hidden + m.features + m.context;  // the last ones for `active`
  }

  Tile(const Mixture& m, double* memory) {
    const std::int64_t inputs = (m.features + m.context) * tile_vecs;
    x = reinterpret_cast<vec*>(memory);
    standard = x + inputs, latent = standard + inputs;
    layers[0] = latent + inputs, layers[1] = layers[0] + m.hidden * tile_vecs;
    phi = layers[1] + m.hidden * tile_vecs;
    network = reinterpret_cast<double*>(phi + m.outputs * tile_vecs);
    active = reinterpret_cast<std::int32_t*>(network + LaneNetwork::doubles(m.units));
  }
};

// Sums over a tile: the log-determinants so far, and whether the numbers of each row are usable.
struct Sums {
  vec log_slopes[tile_vecs];
  ivec usable[tile_vecs];
};

// Standardises rows within their groups; rows in none of them do not change.
static inline void apply_groups(const Mixture& m, const Groups& groups, const Tile& tile, Sums& sums) {
  for (std::int64_t g = 0; g < groups.count; ++g) {
    const std::int64_t row = g * m.features;
    for (int v = 0; v < tile_vecs; ++v) {
      ivec inside = ~ivec{};
      for (std::int64_t i = 0; i < m.features; ++i) {
        const vec x = tile.x[i * tile_vecs + v];
        inside &= (x >= groups.lower[row + i]) & (x < groups.upper[row + i]);
      }
      if (!any(inside)) continue;
      for (std::int64_t i = 0; i < m.features; ++i) {
        const std::int64_t at = i * tile_vecs + v;
        const vec gate = tile.x[groups.gate[i] * tile_vecs + v];
        const ivec changes = inside & (gate >= groups.gate_lower[i]) & (gate < groups.gate_upper[i]);
        sums.log_slopes[v] += changes ? splat(groups.log_scale[row + i]) : vec{};
        tile.standard[at] = changes ? (tile.x[at] - groups.loc[row + i]) * groups.scale[row + i] : tile.standard[at];
      }
    }
  }
}

// y = scale (u + L u), u = x[order] - loc - B c.
static inline void apply_triangular(const Mixture& m, const Member& member, const Tile& tile) {
  for (int v = 0; v < tile_vecs; ++v) {
    const auto at = [&](std::int64_t i) { return i * tile_vecs + v; };
    for (std::int64_t i = 0; i < m.features; ++i) {
      vec shift = splat(member.loc[i]);
      for (std::int64_t c = 0; c < m.context; ++c)
        shift += member.coefficients[i * m.context + c] * tile.x[at(m.features + c)];
      tile.latent[at(i)] = tile.standard[at(member.order[i])] - shift;
    }
    for (std::int64_t i = m.features; i-- > 0;) {
      vec u = tile.latent[at(i)];
      for (std::int64_t j = 0; j < i; ++j) u += member.lower[i * m.features + j] * tile.latent[at(j)];
      tile.latent[at(i)] = u * member.scale[i];
    }
  }
}

static inline void compute_networks(const Layer& layer, const Tile& tile) {
  const vec* in = tile.latent;
  for (std::int64_t l = 0; l < layer.linears; ++l) {
    const bool last = l + 1 == layer.linears;
    vec* out = last ? tile.phi : tile.layers[l % 2];
    last || !layer.linear[l].relu ? apply_linear<false>(layer.linear[l], in, out, tile.active)
                                  : apply_linear<true>(layer.linear[l], in, out, tile.active);
    in = out;
  }
}

// Applies the networks of one layer to the coordinates of one vector of rows.
static inline void apply_networks(const Mixture& m, const Layer& layer, const Tile& tile, int v, Sums& sums) {
  LaneNetwork network(layer.units, tile.network);
  vec product = splat(1.0);
  int factors = 0;
  for (std::int64_t i = 0; i < m.features; ++i) {
    vec& x = tile.latent[i * tile_vecs + v];
    vec g, slope;
    if (layer.network[i] < 0) {
      const Shared& shared = layer.shared;
      vec value{}, rise{};
      x *= shared.scale;
      for (std::int64_t u = 0; u < layer.units; ++u) {
        const vec at = shared.w1[u] * x + shared.b1[u], n = on_ramp(at);
        value += shared.w2[u] * felu(at, n);
        rise += shared.w1[u] * shared.w2[u] * (1.0 + n);
      }
      g = value + shared.b2, slope = 1.0 + rise;
    } else {
      const vec* phi = tile.phi + layer.network[i] * layer.size * tile_vecs + v;
      vec nothing{};
      for (std::int64_t p = 0; p < layer.size; ++p) nothing += phi[p * tile_vecs] * 0.0;
      sums.usable[v] &= nothing == 0.0;
      if (layer.largest_scale > 0) {
        const vec raw = phi[(layer.size - 1) * tile_vecs], log_scale = raw / (1.0 + abs(raw) / layer.largest_scale);
        sums.log_slopes[v] += log_scale;
        x *= exp(log_scale);
      }
      network.set(phi, layer.largest);
      const vec s = network.normalise(layer.bound, sums.usable[v]);
      network.evaluate(s, x, g, slope);
      g += phi[(layer.size - (layer.largest_scale > 0 ? 2 : 1)) * tile_vecs];
    }
    x += g;
    product *= slope;
    if (++factors == max_factors || i + 1 == m.features) {
      sums.log_slopes[v] += log(product);
      product = splat(1.0), factors = 0;
    }
  }
}

static inline void apply_layer(const Mixture& m, const Layer& layer, const Tile& tile, Sums& sums) {
  if (!layer.units) {
    for (std::int64_t i = 0; i < m.features; ++i)
      for (int v = 0; v < tile_vecs; ++v) {
        vec& x = tile.latent[i * tile_vecs + v];
        x = (x - layer.loc[i]) * layer.scale[i];
      }
    return;
  }
  compute_networks(layer, tile);
  for (int v = 0; v < tile_vecs; ++v) apply_networks(m, layer, tile, v, sums);
}

// Adds the weighted density of one member to `total`, the density so far divided by exp(`largest`).
static inline void add_member(const Mixture& m, const Member& member, const Tile& tile, Sums& sums, vec* largest,
                              vec* total) {
  for (std::int64_t i = 0; i < (m.features + m.context) * tile_vecs; ++i) tile.standard[i] = tile.x[i];
  for (int v = 0; v < tile_vecs; ++v) sums.log_slopes[v] = splat(member.constant);
  apply_groups(m, member.groups, tile, sums);
  for (std::int64_t i = 0; i < (m.features + m.context) * tile_vecs; ++i) tile.latent[i] = tile.standard[i];
  if (member.order) apply_triangular(m, member, tile);
  for (std::int64_t l = 0; l < member.layers; ++l) apply_layer(m, member.layer[l], tile, sums);
  for (int v = 0; v < tile_vecs; ++v) {
    vec squares{};
    for (std::int64_t i = 0; i < m.features; ++i) {
      const vec z = tile.latent[i * tile_vecs + v];
      squares += z * z;
    }
    vec log_density = sums.log_slopes[v] - 0.5 * squares;
    if (member.box_lower)
      for (std::int64_t i = 0; i < m.features; ++i) {
        const vec x = tile.x[i * tile_vecs + v];
        // Not minus infinity: rows outside are as usable as any.
        log_density = (x < member.box_lower[i]) | (x >= member.box_upper[i]) ? splat(-__DBL_MAX__) : log_density;
      }
    sums.usable[v] &= abs(log_density) <= __DBL_MAX__;
    const vec top = max(log_density, largest[v]);
    total[v] = total[v] * exp(max(largest[v] - top, splat(-700.0))) + exp(max(log_density - top, splat(-700.0)));
    largest[v] = top;
  }
}

// The log-densities of a range of rows; NaN for rows that need the slower but more careful path.
static inline void score_tiles(const Mixture& m, const RowBatch& rows, Span range, double* memory) {
  const Tile tile(m, memory);
  for (std::int64_t begin = range.begin; begin < range.end; begin += tile_rows) {
    for (int r = 0; r < tile_rows; ++r) {
      const std::int64_t n = begin + r < range.end ? begin + r : begin;  // unused lanes repeat the first row
      for (std::int64_t i = 0; i < m.features; ++i)
        tile.x[i * tile_vecs + r / lanes][r % lanes] = rows.x[n * m.features + i];
      for (std::int64_t c = 0; c < m.context; ++c)
        tile.x[(m.features + c) * tile_vecs + r / lanes][r % lanes] = rows.context[n / rows.repeats * m.context + c];
    }
    Sums sums;
    vec largest[tile_vecs], total[tile_vecs];
    for (int v = 0; v < tile_vecs; ++v) sums.usable[v] = ~ivec{}, largest[v] = splat(-__DBL_MAX__), total[v] = vec{};
    for (std::int64_t k = 0; k < m.members; ++k) add_member(m, m.member[k], tile, sums, largest, total);
    for (int r = 0; r < tile_rows && begin + r < range.end; ++r) {
      const int v = r / lanes;
      const vec log_density = largest[v] + log(total[v]);
      // A row outside the boxes of all members has the lowest finite number so far.
      const double value = largest[v][r % lanes] > -__DBL_MAX__ ? log_density[r % lanes] : -__builtin_inf();
      rows.log_density[begin + r] = sums.usable[v][r % lanes] ? value : __builtin_nan("");
    }
  }
}

}  // namespace elflow::ELFLOW_ISA
