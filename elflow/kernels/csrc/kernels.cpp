// Loops over networks, compiled once per instruction set; tensors of either dtype are read and written as doubles.
#include "kernels.h"

#include "bumps.h"
#include "elf.h"
#include "lipschitz.h"
#include "mixture.h"

namespace elflow::ELFLOW_ISA {
namespace {

template <class T>
const T* row(const Rows& rows, std::int64_t n) {
  return static_cast<const T*>(rows.data) + n * rows.stride;
}

template <class T>
T* written(void* data, std::int64_t offset) {
  return static_cast<T*>(data) + offset;
}

template <class T>
Network<T> network(const Parameters& p, std::int64_t n) {
  return {p.units, row<T>(p.w1, n), row<T>(p.b1, n), row<T>(p.w2, n)};
}

template <class T>
bool all_finite(const Network<T>& net) {
  vec nothing{};
  for (std::int64_t i = 0; i < net.units; i += lanes) nothing += net.w1(i) * 0.0 + net.b1(i) * 0.0 + net.w2(i) * 0.0;
  return sum(nothing) == 0;
}

// --- Lipschitz constants -----------------------------------------------------------------------------------------------

template <class T>
void put(const Steepness& out, const Parameters& p, std::int64_t n, bool sound, Steepest steepest) {
  const bool usable = sound && (!p.b2.data || finite(*row<T>(p.b2, n)));
  out.lipschitz[n] = usable ? steepest.lipschitz : __builtin_nan("");
  out.where[n] = steepest.where;
}

template <class T>
void sweep_all(const Parameters& p, Span networks, const Steepness& out, double* scratch) {
  Sweep sweep(p.units, scratch);
  for (std::int64_t n = networks.begin; n < networks.end; n += lanes) {
    const int filled = static_cast<int>(networks.end - n < lanes ? networks.end - n : lanes);
    Network<T> nets[lanes];
    for (int l = 0; l < lanes; ++l) nets[l] = network<T>(p, l < filled ? n + l : n);  // unused lanes repeat the first network
    Proposal proposals[lanes];
    sweep.set(nets);
    sweep.propose(proposals);
    for (int l = 0; l < filled; ++l)
      put<T>(out, p, n + l, sweep.sound(l) || all_finite(nets[l]), decide<T>(nets[l], sweep, l, proposals[l]));
  }
}

template <class T>
void direct_all(const Parameters& p, Span networks, const Steepness& out) {
  for (std::int64_t n = networks.begin; n < networks.end; ++n) {
    const Network<T> net = network<T>(p, n);
    put<T>(out, p, n, all_finite(net), direct<T>(net));
  }
}

template <class T>
void lipschitz(const Parameters& p, Algorithm algorithm, Span networks, Steepness out, double* scratch) {
  if (algorithm == Algorithm::direct)
    direct_all<T>(p, networks, out);
  else
    sweep_all<T>(p, networks, out, scratch);
}

// A gradient, followed by those of b2 and log s.
std::int64_t partial_doubles(std::int64_t units) { return Gradient::doubles(units) + 2; }

template <class T>
void lipschitz_backward(const Backward& b, const double* grad_lipschitz, Span networks, double* scratch) {
  const std::int64_t units = b.parameters.units;
  for (std::int64_t n = networks.begin; n < networks.end; ++n) {
    const Network<T> net = network<T>(b.parameters, n);
    Gradient grad(units, scratch);
    grad.clear();
    backward_lipschitz(net, b.where[n], grad_lipschitz[n], grad);
    grad.write(units, written<T>(b.grad_w1, n * units), written<T>(b.grad_b1, n * units),
               written<T>(b.grad_w2, n * units));
  }
}

// --- the transformation ------------------------------------------------------------------------------------------------

template <class T>
void forward(const Forward& f, Span networks, Span points) {
  for (std::int64_t n = networks.begin; n < networks.end; ++n) {
    const Network<T> net = network<T>(f.parameters, n);
    const double s = normaliser(f.steepness.lipschitz[n], f.bound), b2 = *row<T>(f.parameters.b2, n);
    for (std::int64_t k = n * f.points + points.begin; k < n * f.points + points.end; ++k) {
      const double x = static_cast<const T*>(f.input)[k];
      const Value at = evaluate(net, s, x);
      *written<T>(f.output, k) = static_cast<T>(x + at.g + b2);
      *written<T>(f.log_slope, k) = static_cast<T>(__builtin_log1p(at.slope));
    }
  }
}

template <class T>
void inverse(const Forward& f, Span networks, Span points) {
  for (std::int64_t n = networks.begin; n < networks.end; ++n) {
    const Network<T> net = network<T>(f.parameters, n);
    const double s = normaliser(f.steepness.lipschitz[n], f.bound), b2 = *row<T>(f.parameters.b2, n);
    for (std::int64_t k = n * f.points + points.begin; k < n * f.points + points.end; ++k)
      *written<T>(f.output, k) = static_cast<T>(invert(net, s, f.bound, static_cast<const T*>(f.input)[k] - b2));
  }
}

template <class T>
void backward_points(const Backward& b, std::int64_t n, Span points, double* partial) {
  const Network<T> net = network<T>(b.parameters, n);
  const double s = normaliser(b.lipschitz[n], b.bound);
  Gradient grad(net.units, partial);
  grad.clear();
  for (std::int64_t k = n * b.points + points.begin; k < n * b.points + points.end; ++k) {
    const double x = static_cast<const T*>(b.x)[k], given = static_cast<const T*>(b.grad_y)[k];
    const Value at = evaluate(net, s, x);
    if (b.inverse) {
      // Implicit differentiation of f(x) = y: dx = (dy - df) / f'(x).
      const double grad_y = given / (1 + at.slope);
      *written<T>(b.grad_x, k) = static_cast<T>(grad_y);
      backward_point(net, s, x, at, -grad_y, 0, grad);
    } else {
      const double grad_log_slope = static_cast<const T*>(b.grad_log_slope)[k];
      *written<T>(b.grad_x, k) = static_cast<T>(backward_point(net, s, x, at, given, grad_log_slope, grad));
    }
  }
  partial[partial_doubles(net.units) - 2] = grad.b2;
  partial[partial_doubles(net.units) - 1] = grad.log_s;
}

template <class T>
void backward_network(const Backward& b, std::int64_t n, double* partials, std::int64_t count) {
  const std::int64_t units = b.parameters.units, size = partial_doubles(units);
  for (std::int64_t c = 1; c < count; ++c)
    for (std::int64_t i = 0; i < size; ++i) partials[i] += partials[c * size + i];
  Gradient grad(units, partials);
  grad.b2 = partials[size - 2], grad.log_s = partials[size - 1];
  const double lipschitz = b.lipschitz[n];
  if (lipschitz > b.bound) {  // s = bound / lipschitz
    const Network<T> net = network<T>(b.parameters, n);
    backward_lipschitz(net, b.where[n], -grad.log_s / lipschitz, grad);
  }
  grad.write(units, written<T>(b.grad_w1, n * units), written<T>(b.grad_b1, n * units),
             written<T>(b.grad_w2, n * units));
  *written<T>(b.grad_b2, n) = static_cast<T>(grad.b2);
}

// --- units from a hypernetwork -----------------------------------------------------------------------------------------

template <class T>
void bumps(const BumpRows& b, Span networks) {
  for (std::int64_t n = networks.begin; n < networks.end; ++n)
    write_units({b.units}, b.largest, row<T>(b.phi, n), written<T>(b.w1, n * b.units), written<T>(b.b1, n * b.units),
                written<T>(b.w2, n * b.units));
}

template <class T>
void bumps_backward(const BumpRows& b, Span networks) {
  const Bumps at{b.units};
  for (std::int64_t n = networks.begin; n < networks.end; ++n)
    backward_units(at, b.largest, row<T>(b.phi, n), written<T>(b.w1, n * b.units), written<T>(b.b1, n * b.units),
                   written<T>(b.w2, n * b.units), written<T>(b.grad, n * b.grad_row));
}

template <class T>
constexpr Kernels table() {
  return {Sweep::doubles, lipschitz<T>,       partial_doubles,     lipschitz_backward<T>, forward<T>,
          inverse<T>,     backward_points<T>, backward_network<T>, bumps<T>,              bumps_backward<T>};
}

}  // namespace

extern const Kernels float32_kernels, float64_kernels;
extern const MixtureKernels mixture_kernels;
const MixtureKernels mixture_kernels = {tile_rows, Tile::doubles, score_tiles};
const Kernels float32_kernels = table<float>();
const Kernels float64_kernels = table<double>();

}  // namespace elflow::ELFLOW_ISA
