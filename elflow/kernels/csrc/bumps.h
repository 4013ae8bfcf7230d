// The bump parametrisation: pairs of units whose slope is a bump of height a and width w around t.
//
// A row holds log k of every unit, then t, log w and a of every pair. Unit i rises at t - w/2; unit i + pairs falls at t + w/2.
#pragma once

#include "simd.h"

namespace elflow::ELFLOW_ISA {

// Offsets of the parts of a row.
struct Bumps {
  std::int64_t units, pairs = (units + 1) / 2, t = units, log_w = t + pairs, a = log_w + pairs;
};

// Comparisons preserve NaN, which minimum and maximum would lose.
static inline vec clamped(vec x, double largest) {
  x = x < -largest ? splat(-largest) : x;
  return x > largest ? splat(largest) : x;
}
static inline vec exp_clamped(vec x, double largest) { return exp(clamped(x, largest)); }
static inline vec within(vec x, double largest, vec grad) { return abs(x) <= largest ? grad : vec{}; }

template <class T>
static inline void write_units(const Bumps& at, double largest, const T* row, T* w1, T* b1, T* w2) {
  for (int falls = 0; falls < 2; ++falls) {
    const std::int64_t first = falls * at.pairs, count = falls ? at.units - at.pairs : at.pairs;
    const double side = falls ? 0.5 : -0.5, sign = falls ? -1 : 1;
    for (std::int64_t i = 0; i < count; i += lanes) {
      const std::int64_t left = count - i;
      const vec k = exp_clamped(load(row + first + i, left), largest);
      const vec edge = load(row + at.t + i, left) + side * exp_clamped(load(row + at.log_w + i, left), largest);
      store(w1 + first + i, k, left);
      store(b1 + first + i, -0.5 - k * edge, left);
      store(w2 + first + i, sign * load(row + at.a + i, left) / k, left);
    }
  }
}

template <class T>
static inline void backward_units(const Bumps& at, double largest, const T* row, const T* grad_w1, const T* grad_b1,
                                  const T* grad_w2, T* grad) {
  for (std::int64_t i = 0; i < at.pairs; i += lanes) {
    const std::int64_t left = at.pairs - i;
    const vec log_w = load(row + at.log_w + i, left), w = exp_clamped(log_w, largest);
    const vec t = load(row + at.t + i, left), a = load(row + at.a + i, left);
    vec grad_t{}, grad_w{}, grad_a{};
    for (int falls = 0; falls < 2; ++falls) {
      const std::int64_t first = falls * at.pairs + i, count = (falls ? at.units : at.pairs) - first;
      if (count <= 0) break;
      const double side = falls ? 0.5 : -0.5, sign = falls ? -1 : 1;
      const vec log_k = load(row + first, count), k = exp_clamped(log_k, largest), edge = t + side * w;
      const vec into_b1 = load(grad_b1 + first, count), into_w2 = load(grad_w2 + first, count);
      const vec into_k = load(grad_w1 + first, count) - into_b1 * edge - into_w2 * (sign * a) / (k * k);
      store(grad + first, within(log_k, largest, into_k * k), count);
      grad_t -= into_b1 * k;
      grad_w -= into_b1 * k * side;
      grad_a += sign * into_w2 / k;
    }
    store(grad + at.t + i, grad_t, left);
    store(grad + at.log_w + i, within(log_w, largest, grad_w * w), left);
    store(grad + at.a + i, grad_a, left);
  }
}

}  // namespace elflow::ELFLOW_ISA
