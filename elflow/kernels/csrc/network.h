// One network g(x) = sum_i w2_i FELU(w1_i x + b1_i), computed in double precision whatever the dtype of the tensors.
#pragma once

#include "simd.h"

namespace elflow::ELFLOW_ISA {

// Places on the line are numbered: j + off * units is the breakpoint -(off + b1_j)/w1_j, at the top (off = 0) or the foot
// (off = 1) of the ramp of unit j. The two ends of the line follow.
static inline std::int32_t at_minus_infinity(std::int64_t units) { return static_cast<std::int32_t>(2 * units); }
static inline std::int32_t at_plus_infinity(std::int64_t units) { return static_cast<std::int32_t>(2 * units + 1); }

// A view of one row of each tensor. Units are read one vector at a time, as doubles. The last vector is padded with zeros,
// which do not contribute to any sum.
template <class T>
struct Network {
  std::int64_t units;
  const T *w1_row, *b1_row, *w2_row;

  vec w1(std::int64_t i) const { return load(w1_row + i, units - i); }
  vec b1(std::int64_t i) const { return load(b1_row + i, units - i); }
  vec w2(std::int64_t i) const { return load(w2_row + i, units - i); }

  std::int64_t owner(std::int64_t where) const { return where < units ? where : where - units; }
  int off(std::int64_t where) const { return where >= units; }

  // Units with w1 = 0 have no breakpoints, and those of denormal w1 can exceed the largest double.
  bool exists(std::int64_t where) const { return where >= 2 * units || w1_row[owner(where)] != 0; }
  double breakpoint(std::int64_t where) const {
    constexpr double largest = __DBL_MAX__;
    const double w1 = w1_row[owner(where)], b1 = b1_row[owner(where)], x = -(off(where) + b1) / w1;
    return x > largest ? largest : x < -largest ? -largest : x;
  }
};

// s g, s g' and s g'' at a point, and the number of breakpoints to its left, which identifies its quadratic piece.
struct Value {
  double g, slope, curvature;
  std::int64_t piece;
};

// n = clamp(u, -1, 0), with which
//   FELU'(u) = q = 1 + n   and   FELU(u) = n + n^2 / 2 + max(u, 0),
// which is q^2 / 2 - 1/2 + max(u, 0) without the cancellation near zero.
static inline vec on_ramp(vec u) { return min(max(u, splat(-1.0)), vec{}); }
static inline vec ramp(vec u) { return 1.0 + on_ramp(u); }
static inline vec felu(vec u, vec n) { return n + n * n * 0.5 + max(u, vec{}); }

// Minimum and maximum lose NaN, so that the rare infinite or NaN x takes this slower path.
template <class T>
static inline Value evaluate_anywhere(const Network<T>& net, double s, double x) {
  Value at{0, 0, 0, 0};
  for (std::int64_t i = 0; i < net.units; ++i) {
    const double w1 = net.w1_row[i], w2 = s * net.w2_row[i], u = w1 * x + net.b1_row[i];
    const double n = u <= -1 ? -1 : u >= 0 ? 0 : u;
    at.g += w2 * (n + n * n / 2 + (u > 0 ? u : 0));
    at.slope += w1 * w2 * (1 + n);
  }
  return at;
}

template <class T>
static inline Value evaluate(const Network<T>& net, double s, double x) {
  if (!finite(x)) return evaluate_anywhere(net, s, x);
  vec g{}, slope{}, curvature{};
  ivec piece{};
  for (std::int64_t i = 0; i < net.units; i += lanes) {
    const vec w1 = net.w1(i), w2 = net.w2(i) * s, a = w1 * w2;
    const vec u = w1 * x + net.b1(i), n = on_ramp(u);
    const ivec above_foot = u > -1.0, above_top = u > 0.0;  // each 0 or -1
    g += w2 * felu(u, n);
    slope += a * (1.0 + n);
    curvature += (above_foot & ~above_top) ? a * w1 : vec{};
    const ivec passed = above_foot + above_top;
    piece += w1 > 0.0 ? -passed : passed;
  }
  std::int64_t count = 0;
  for (int l = 0; l < lanes; ++l) count += piece[l];
  return {sum(g), sum(slope), sum(curvature), count};
}

// The rounding error of a + b.
template <class Real>
static inline Real lost(Real a, Real b, Real total) {
  const Real kept = total - a;
  return (a - (total - kept)) + (b - kept);
}

// The argument w1 x + b1 of a unit at the breakpoint x = -(off + b1_j)/w1_j of unit j, as ((b1 w1_j - w1 b1_j) - off w1) / w1_j.
// This is exact for units that share the breakpoint, however steep they are: rounding x would move steep units by far more
// than the width of their ramps. Products of float32 weights are exact in double; `low` is the rounding error for float64.
template <class Real>
static inline Real argument(Real product, Real owners_product, Real low, Real shift, Real owner_w1) {
  const Real difference = product - owners_product, total = difference - shift;
  const Real rest = lost(product, -owners_product, difference) + lost(difference, -shift, total) + low;
  return (total + rest) / owner_w1;
}

// g' at a breakpoint, where its owner is exactly at the foot or the top of its ramp, or at an end of the line.
static inline double slope_at(const Network<float>& net, std::int64_t where) {
  vec slope{};
  if (where >= 2 * net.units) {
    const double side = where == at_plus_infinity(net.units) ? 1 : -1;
    for (std::int64_t i = 0; i < net.units; i += lanes) {
      const vec w1 = net.w1(i);
      slope += w1 * side > 0.0 ? w1 * net.w2(i) : vec{};
    }
    return sum(slope);
  }
  const std::int64_t j = net.owner(where);
  const double owner_w1 = net.w1_row[j], owner_b1 = net.b1_row[j], off = net.off(where);
  for (std::int64_t i = 0; i < net.units; i += lanes) {
    const vec w1 = net.w1(i);
    const vec u = argument<vec>(net.b1(i) * owner_w1, w1 * owner_b1, vec{}, w1 * off, splat(owner_w1));
    slope += w1 * net.w2(i) * ramp(u);
  }
  return sum(slope);
}

// The same for float64 weights: products with their rounding errors, and sums in long double.
ELFLOW_EACH_ROUNDING static inline double slope_at(const Network<double>& net, std::int64_t where) {
  ELFLOW_EACH_ROUNDING_HERE
  const bool end = where >= 2 * net.units;
  const int side = where == at_plus_infinity(net.units) ? 1 : -1;
  const std::int64_t j = end ? 0 : net.owner(where);
  const double owner_w1 = net.w1_row[j], owner_b1 = net.b1_row[j], off = net.off(where);
  long double slope = 0;
  for (std::int64_t i = 0; i < net.units; ++i) {
    const double w1 = net.w1_row[i], b1 = net.b1_row[i], product = b1 * owner_w1, owners_product = w1 * owner_b1;
    const double low = __builtin_fma(b1, owner_w1, -product) - __builtin_fma(w1, owner_b1, -owners_product);
    double u = argument(product, owners_product, low, off * w1, owner_w1);
    if (!finite(u)) u = w1 * net.breakpoint(where) + b1;  // a product overflowed
    if (end) u = w1 * side > 0 ? 0 : -1;
    const double n = u <= -1 ? -1 : u >= 0 ? 0 : u;
    slope += static_cast<long double>(w1) * net.w2_row[i] * (1 + static_cast<long double>(n));
  }
  return static_cast<double>(slope);
}

}  // namespace elflow::ELFLOW_ISA
