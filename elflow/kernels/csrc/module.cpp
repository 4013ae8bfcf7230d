// The Python module: tensors in, loops over networks out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "kernels.h"
#include "parallel.h"

namespace nb = nanobind;

namespace elflow {
namespace {

using Tensor = nb::ndarray<nb::device::cpu>;
using Doubles = std::unique_ptr<double, decltype(&std::free)>;

Doubles allocate(std::int64_t count) {
  const std::size_t bytes = (static_cast<std::size_t>(count) * sizeof(double) + 63) / 64 * 64;
  auto* memory = static_cast<double*>(std::aligned_alloc(64, bytes));
  if (!memory) throw std::bad_alloc();
  return {memory, &std::free};
}

const InstructionSet* chosen = nullptr;

std::vector<std::string> available() {
  std::vector<std::string> names;
  for (const InstructionSet& set : instruction_sets())
    if (set.supported()) names.push_back(set.name);
  return names;
}

void choose(const std::string& name) {
  for (const InstructionSet& set : instruction_sets())
    if (set.name == name && set.supported()) {
      chosen = &set;
      return;
    }
  throw nb::value_error(("instruction set '" + name + "' is not one that this build and this machine have").c_str());
}

bool is_double(const Tensor& t) { return t.dtype() == nb::dtype<double>(); }
const Kernels& kernels_for(const Tensor& t) { return is_double(t) ? chosen->float64 : chosen->float32; }

Rows rows(const Tensor& t) { return {t.data(), t.shape(0) == 1 ? 0 : t.stride(0)}; }

Parameters parameters(const Tensor& w1, const Tensor& b1, const Tensor& w2) {
  return {static_cast<std::int64_t>(w1.shape(1)), rows(w1), rows(b1), rows(w2), {}};
}

// A piece of work has about this many units, which is some ten microseconds.
constexpr std::int64_t work_units = 2048;

std::int64_t networks_per_task(std::int64_t units, std::int64_t points) {
  return std::max<std::int64_t>(8, (work_units / (units * points) + 7) / 8 * 8);
}

// How the points of one network are cut. It depends on their number alone, so that sums come out the same on any number of threads.
std::int64_t points_per_task(std::int64_t points) { return std::max<std::int64_t>(256, (points + 63) / 64); }

template <class Body>
void for_tasks(std::int64_t count, std::int64_t size, std::int64_t scratch, int threads, const Body& body) {
  parallel_for((count + size - 1) / size, threads, [&](std::int64_t begin, std::int64_t end) {
    const Doubles memory = allocate(scratch);
    for (std::int64_t t = begin; t < end; ++t) body(Span{t * size, std::min(count, (t + 1) * size)}, memory.get());
  });
}

void lipschitz(Tensor w1, Tensor b1, Tensor w2, Tensor out, Tensor where, int algorithm, int threads) {
  const Kernels& k = kernels_for(w1);
  const Parameters p = parameters(w1, b1, w2);
  const Steepness steepness{static_cast<double*>(out.data()), static_cast<std::int32_t*>(where.data())};
  nb::gil_scoped_release release;
  for_tasks(w1.shape(0), networks_per_task(p.units, 1), k.scratch_doubles(p.units), threads,
            [&](Span networks, double* scratch) {
              k.lipschitz(p, static_cast<Algorithm>(algorithm), networks, steepness, scratch);
            });
}

void lipschitz_backward(Tensor grad, Tensor w1, Tensor b1, Tensor w2, Tensor where, Tensor grad_w1, Tensor grad_b1,
                        Tensor grad_w2, int threads) {
  const Kernels& k = kernels_for(w1);
  Backward b{};
  b.parameters = parameters(w1, b1, w2);
  b.where = static_cast<const std::int32_t*>(where.data());
  b.grad_w1 = grad_w1.data(), b.grad_b1 = grad_b1.data(), b.grad_w2 = grad_w2.data();
  nb::gil_scoped_release release;
  for_tasks(w1.shape(0), networks_per_task(b.parameters.units, 1), k.scratch_doubles(b.parameters.units), threads,
            [&](Span networks, double* scratch) {
              k.lipschitz_backward(b, static_cast<const double*>(grad.data()), networks, scratch);
            });
}

// Forward, or the inverse where there is no tensor for the log-slope.
void transform(Tensor x, Tensor w1, Tensor b1, Tensor w2, Tensor b2, double bound, Tensor out, std::optional<Tensor> log_slope,
               Tensor lipschitz, Tensor where, int threads) {
  const Kernels& k = kernels_for(x);
  const auto step = log_slope ? k.forward : k.inverse;
  Forward f{parameters(w1, b1, w2),
            {static_cast<double*>(lipschitz.data()), static_cast<std::int32_t*>(where.data())},
            static_cast<std::int64_t>(x.shape(1)),
            bound,
            x.data(),
            out.data(),
            log_slope ? log_slope->data() : nullptr};
  f.parameters.b2 = rows(b2);
  const std::int64_t count = x.shape(0), units = f.parameters.units, scratch = k.scratch_doubles(units);
  const std::int64_t size = points_per_task(f.points), cuts = (f.points + size - 1) / size;
  nb::gil_scoped_release release;
  for_tasks(count, networks_per_task(units, cuts > 1 ? 1 : f.points), scratch, threads, [&](Span networks, double* memory) {
    k.lipschitz(f.parameters, Algorithm::automatic, networks, f.steepness, memory);
    if (cuts <= 1) step(f, networks, {0, f.points}, memory);
  });
  if (cuts > 1)
    for_tasks(count * cuts, 1, scratch, threads, [&](Span task, double* memory) {
      const std::int64_t n = task.begin / cuts, first = task.begin % cuts * size;
      step(f, {n, n + 1}, {first, std::min(first + size, f.points)}, memory);
    });
}

void transform_backward(Tensor grad_y, std::optional<Tensor> grad_log_slope, Tensor x, Tensor w1, Tensor b1, Tensor w2,
                        double bound, Tensor lipschitz, Tensor where, Tensor grad_x, Tensor grad_w1, Tensor grad_b1,
                        Tensor grad_w2, Tensor grad_b2, int threads) {
  const Kernels& k = kernels_for(x);
  const Backward b{parameters(w1, b1, w2),
                   static_cast<const double*>(lipschitz.data()),
                   static_cast<const std::int32_t*>(where.data()),
                   static_cast<std::int64_t>(x.shape(1)),
                   bound,
                   x.data(),
                   grad_y.data(),
                   grad_log_slope ? grad_log_slope->data() : nullptr,
                   grad_x.data(),
                   grad_w1.data(),
                   grad_b1.data(),
                   grad_w2.data(),
                   grad_b2.data(),
                   !grad_log_slope};
  const std::int64_t count = x.shape(0), units = b.parameters.units, row = k.partial_doubles(units);
  const std::int64_t scratch = k.scratch_doubles(units), size = points_per_task(b.points);
  const std::int64_t cuts = std::max<std::int64_t>(1, (b.points + size - 1) / size);
  nb::gil_scoped_release release;
  if (cuts == 1) {
    for_tasks(count, networks_per_task(units, b.points), scratch + row, threads, [&](Span networks, double* memory) {
      for (std::int64_t n = networks.begin; n < networks.end; ++n) {
        k.backward_points(b, n, {0, b.points}, memory + scratch, memory);
        k.backward_network(b, n, memory + scratch, 1, memory);
      }
    });
    return;
  }
  const Doubles partials = allocate(count * cuts * row);
  for_tasks(count * cuts, 1, scratch, threads, [&](Span task, double* memory) {
    const std::int64_t first = task.begin % cuts * size;
    k.backward_points(b, task.begin / cuts, {first, std::min(first + size, b.points)}, partials.get() + task.begin * row, memory);
  });
  for_tasks(count, 1, scratch, threads, [&](Span task, double* memory) {
    k.backward_network(b, task.begin, partials.get() + task.begin * cuts * row, cuts, memory);
  });
}

}  // namespace
}  // namespace elflow

NB_MODULE(_native, m) {
  using namespace elflow;
  choose(available().front());
  m.def("instruction_sets", &available);
  m.def("instruction_set", [] { return chosen->name; });
  m.def("choose_instruction_set", &choose);
  m.def("thread_pool", &thread_pool);
  m.def("lipschitz", &lipschitz);
  m.def("lipschitz_backward", &lipschitz_backward);
  m.def("transform", &transform);
  m.def("transform_backward", &transform_backward);
}
