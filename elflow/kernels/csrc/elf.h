// The transformation y = x + s g(x) + b2 of one network, its inverse, and the gradients of both.
#pragma once

#include "network.h"

namespace elflow::ELFLOW_ISA {

static inline double normaliser(double lipschitz, double bound) { return lipschitz > bound ? bound / lipschitz : 1; }

// The midpoint of two numbers in the order of all doubles, so that 64 bisections reduce any bracket to a point.
static inline double halfway(double a, double b) {
  const auto rank = [](double x) {
    std::int64_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits < 0 ? INT64_MIN - bits : bits;
  };
  const std::int64_t ra = rank(a), rb = rank(b), middle = (ra & rb) + ((ra ^ rb) >> 1);
  const std::int64_t bits = middle < 0 ? INT64_MIN - middle : middle;
  double x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

// Solves x + s g(x) = y, where |s g'| <= `bound`. On each piece the solution is the root of a quadratic, so that only the
// piece has to be found: solve on the current piece, and stop if the root lies on the same piece. The bound gives a bracket
// from the first evaluation on, and occasional bisection limits the number of steps. Since the network is evaluated near
// the solution, instead of summing up pieces from a distant breakpoint, distant breakpoints cause no rounding error.
template <class T>
static inline double invert(const Network<T>& net, double s, double bound, double y) {
  constexpr int patience = 8, cap = 160;
  if (!finite(y)) return y;
  double low = -__DBL_MAX__, high = __DBL_MAX__, x = y;
  std::int64_t piece = 0;
  bool solved = false;  // x is the root of the quadratic on `piece`
  for (int step = 0; step < cap; ++step) {
    const Value at = evaluate(net, s, x);
    const double residual = y - (x + at.g), slope = 1 + at.slope;
    if (!finite(residual)) return y;
    const double discriminant = slope * slope + 2 * at.curvature * residual;
    double next = x + 2 * residual / (slope + __builtin_sqrt(discriminant > 0 ? discriminant : 0));
    const double reach = x + residual / (1 - bound) * 1.000001;
    if (residual > 0)
      low = x, high = reach < high ? reach : high;
    else
      high = x, low = reach > low ? reach : low;
    // x is the root on its own piece, or within rounding of a root on the neighbouring piece. The last step, to `next`,
    // removes the rounding error of the step before.
    if ((solved && at.piece == piece) || abs(residual) <= 0x1p-51 * (1 + abs(x) + abs(y)))
      return next < low ? low : next > high ? high : next;
    solved = discriminant > 0 && next > low && next < high && (step < patience || step % 2);
    piece = at.piece;
    x = solved ? next : halfway(low, high);
  }
  return x;
}

// Gradients with respect to the parameters of one network and the logarithm of s, summed over its points.
struct Gradient {
  std::int64_t padded;  // to whole vectors
  double *w1, *b1, *w2;
  double b2 = 0, log_s = 0;

  static constexpr std::int64_t doubles(std::int64_t units) { return 3 * round_up(units, lanes); }

  Gradient(std::int64_t units, double* memory)
      : padded(round_up(units, lanes)), w1(memory), b1(memory + padded), w2(memory + 2 * padded) {}

  void clear() {
    for (std::int64_t i = 0; i < 3 * padded; i += lanes) store(w1 + i, vec{});
  }

  template <class T>
  void write(std::int64_t units, T* w1_row, T* b1_row, T* w2_row) const {
    for (std::int64_t i = 0; i < units; ++i) w1_row[i] = static_cast<T>(w1[i]);
    for (std::int64_t i = 0; i < units; ++i) b1_row[i] = static_cast<T>(b1[i]);
    for (std::int64_t i = 0; i < units; ++i) w2_row[i] = static_cast<T>(w2[i]);
  }
};

// Adds the contribution of one point to `grad`, given the gradients of its y and log-slope; returns the gradient of x.
template <class T>
static inline double backward_point(const Network<T>& net, double s, double x, const Value& at, double grad_y,
                                    double grad_log_slope, Gradient& grad) {
  const double derivative = 1 + at.slope;
  const double grad_g = grad_y * s, grad_slope = grad_log_slope * s / derivative;
  const double missing = x != x ? x : 0;  // preserves NaN, which minimum and maximum would lose
  for (std::int64_t i = 0; i < net.units; i += lanes) {
    const vec w1 = net.w1(i), w2 = net.w2(i);
    const vec u = w1 * x + net.b1(i), n = on_ramp(u) + missing, q = 1.0 + n;
    const vec rising = ((u > -1.0) & (u < 0.0)) ? w1 * w2 : vec{};
    const vec into_u = grad_g * w2 * q + grad_slope * rising;
    store(grad.b1 + i, load(grad.b1 + i) + into_u);
    store(grad.w1 + i, load(grad.w1 + i) + into_u * x + grad_slope * w2 * q);
    store(grad.w2 + i, load(grad.w2 + i) + grad_g * felu(u, n) + grad_slope * w1 * q);
  }
  grad.b2 += grad_y;
  grad.log_s += grad_y * at.g + grad_log_slope * at.slope / derivative;
  return grad_y * derivative + grad_log_slope * at.curvature / derivative;
}

// Adds the contribution of the Lipschitz constant to `grad`: of |g'| at its maximum, directly and through the place.
template <class T>
static inline void backward_lipschitz(const Network<T>& net, std::int64_t where, double grad_lipschitz, Gradient& grad) {
  if (where >= 2 * net.units) {
    const double side = where == at_plus_infinity(net.units) ? 1 : -1;
    const double into_slope = slope_at(net, where) < 0 ? -grad_lipschitz : grad_lipschitz;
    for (std::int64_t i = 0; i < net.units; ++i)
      if (net.w1_row[i] * side > 0)
        grad.w1[i] += into_slope * net.w2_row[i], grad.w2[i] += into_slope * net.w1_row[i];
    return;
  }
  const std::int64_t j = net.owner(where);
  const double x = net.breakpoint(where), own = 1 - net.off(where);
  const double into_slope = slope_at(net, where) < 0 ? -grad_lipschitz : grad_lipschitz;
  const double w1_j = grad.w1[j], b1_j = grad.b1[j], w2_j = grad.w2[j];
  const ivec lane = [] {
    ivec l{};
    for (int i = 0; i < lanes; ++i) l[i] = i;
    return l;
  }();
  vec curvature{};
  for (std::int64_t i = 0; i < net.units; i += lanes) {
    const vec w1 = net.w1(i), w2 = net.w2(i);
    const vec u = w1 * x + net.b1(i), q = ramp(u);
    const ivec others = lane + i != j;
    const vec rising = ((u > -1.0) & (u < 0.0) & others) ? w1 * w2 : vec{};
    curvature += rising * w1;
    store(grad.b1 + i, load(grad.b1 + i) + into_slope * rising);
    store(grad.w1 + i, load(grad.w1 + i) + into_slope * (w2 * q + rising * x));
    store(grad.w2 + i, load(grad.w2 + i) + into_slope * w1 * q);
  }
  // At its own breakpoint the owner's q is constant, but its parameters move the place, which changes q of all others.
  const double into_place = -into_slope * sum(curvature) / net.w1_row[j];
  grad.b1[j] = b1_j + into_place;
  grad.w1[j] = w1_j + into_slope * net.w2_row[j] * own + into_place * x;
  grad.w2[j] = w2_j + into_slope * net.w1_row[j] * own;
}

}  // namespace elflow::ELFLOW_ISA
