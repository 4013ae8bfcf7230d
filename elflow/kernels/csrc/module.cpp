// The Python module: cuts the work on a batch of networks into tasks for threads.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>

#include "isa.h"
#include "parallel.h"

namespace nb = nanobind;

namespace elflow {
namespace {

using Doubles = std::unique_ptr<double, decltype(&std::free)>;

Doubles allocate(std::int64_t count) {
  const std::size_t bytes = (static_cast<std::size_t>(count) * sizeof(double) / 64 + 1) * 64;
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

// Tensors are passed as addresses: importing a dozen tensors would take longer than computing a small batch.
using Address = std::uintptr_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

struct Networks {
  std::int64_t count;
  Parameters parameters;
  const Kernels& kernels;

  Networks(bool is_double, std::int64_t count, std::int64_t units, Address w1, std::int64_t w1_row, Address b1,
           std::int64_t b1_row, Address w2, std::int64_t w2_row, Address b2, std::int64_t b2_row)
      : count(count),
        parameters{units,
                   {at<void>(w1), w1_row},
                   {at<void>(b1), b1_row},
                   {at<void>(w2), w2_row},
                   {at<void>(b2), b2_row}},
        kernels(is_double ? chosen->float64 : chosen->float32) {}
};

// Approximate number of units per task, which is about ten microseconds of work.
constexpr std::int64_t work_units = 2048;

std::int64_t networks_per_task(std::int64_t units, std::int64_t points) {
  return std::max<std::int64_t>(8, work_units / (units * std::max<std::int64_t>(1, points)) / 8 * 8);
}

// The division of one network's points into tasks, for batches of few networks. It depends on the shape only, so that sums
// are the same for any number of threads.
struct Cuts {
  std::int64_t points, size, count;

  Cuts(std::int64_t networks, std::int64_t points)
      : points(points),
        size(networks < 64 ? std::max<std::int64_t>(256, (points + 63) / 64) : std::max<std::int64_t>(1, points)),
        count(std::max<std::int64_t>(1, (points + size - 1) / size)) {}

  Span operator[](std::int64_t i) const { return {i * size, std::min(points, (i + 1) * size)}; }
};

template <class Body>
void for_tasks(std::int64_t count, std::int64_t size, std::int64_t scratch, int threads, const Body& body) {
  const std::int64_t tasks = (count + size - 1) / size;
  // Waking a thread costs as much as several tasks.
  threads = static_cast<int>(std::min<std::int64_t>(threads, std::max<std::int64_t>(1, tasks / 4)));
  parallel_for(tasks, threads, [&](std::int64_t begin, std::int64_t end) {
    const Doubles memory = allocate(scratch);
    for (std::int64_t t = begin; t < end; ++t) body(Span{t * size, std::min(count, (t + 1) * size)}, memory.get());
  });
}

bool all_finite(const double* constants, std::int64_t count) {
  return std::all_of(constants, constants + count, [](double c) { return std::isfinite(c); });
}

// This and `transform` return whether all parameters are finite.
bool lipschitz(const Networks& nets, Address constants, Address places, int algorithm, int threads) {
  const Kernels& k = nets.kernels;
  const std::int64_t units = nets.parameters.units;
  const Steepness steepness{at<double>(constants), at<std::int32_t>(places)};
  for_tasks(nets.count, networks_per_task(units, 1), k.scratch_doubles(units), threads, [&](Span networks, double* scratch) {
    k.lipschitz(nets.parameters, static_cast<Algorithm>(algorithm), networks, steepness, scratch);
  });
  return all_finite(steepness.lipschitz, nets.count);
}

void lipschitz_backward(const Networks& nets, Address places, Address grad, Address grad_w1, Address grad_b1,
                        Address grad_w2, int threads) {
  const Kernels& k = nets.kernels;
  const std::int64_t units = nets.parameters.units;
  Backward b{};
  b.parameters = nets.parameters;
  b.where = at<std::int32_t>(places);
  b.grad_w1 = at<void>(grad_w1), b.grad_b1 = at<void>(grad_b1), b.grad_w2 = at<void>(grad_w2);
  for_tasks(nets.count, networks_per_task(units, 1), k.partial_doubles(units), threads,
            [&](Span networks, double* memory) { k.lipschitz_backward(b, at<double>(grad), networks, memory); });
}

// The forward transformation or, if `log_slope` is null, the inverse.
bool transform(const Networks& nets, std::int64_t points, double bound, Address given, Address result, Address log_slope,
               Address constants, Address places, int threads) {
  const Kernels& k = nets.kernels;
  const std::int64_t units = nets.parameters.units;
  const auto step = log_slope ? k.forward : k.inverse;
  const Forward f{nets.parameters, {at<double>(constants), at<std::int32_t>(places)}, points, bound, at<void>(given),
                  at<void>(result), at<void>(log_slope)};
  const Cuts cuts(nets.count, points);
  for_tasks(nets.count, networks_per_task(units, cuts.count > 1 ? 1 : points), k.scratch_doubles(units), threads,
            [&](Span networks, double* memory) {
              k.lipschitz(f.parameters, Algorithm::sweep, networks, f.steepness, memory);
              if (cuts.count == 1) step(f, networks, cuts[0]);
            });
  if (cuts.count > 1)
    for_tasks(nets.count * cuts.count, 1, 0, threads, [&](Span task, double*) {
      const std::int64_t n = task.begin / cuts.count;
      step(f, {n, n + 1}, cuts[task.begin % cuts.count]);
    });
  return all_finite(f.steepness.lipschitz, nets.count);
}

// The gradient of the forward or, if `grad_log_slope` is null, of the inverse.
void transform_backward(const Networks& nets, std::int64_t points, double bound, Address constants, Address places,
                        Address x, Address grad, Address grad_log_slope, Address grad_x, Address grad_w1,
                        Address grad_b1, Address grad_w2, Address grad_b2, int threads) {
  const Kernels& k = nets.kernels;
  const std::int64_t units = nets.parameters.units, row = k.partial_doubles(units);
  const Backward b{nets.parameters,   at<double>(constants), at<std::int32_t>(places), points,
                   bound,             at<void>(x),           at<void>(grad),           at<void>(grad_log_slope),
                   at<void>(grad_x),  at<void>(grad_w1),     at<void>(grad_b1),        at<void>(grad_w2),
                   at<void>(grad_b2), !grad_log_slope};
  const Cuts cuts(nets.count, points);
  if (cuts.count == 1) {
    for_tasks(nets.count, networks_per_task(units, points), row, threads, [&](Span networks, double* memory) {
      for (std::int64_t n = networks.begin; n < networks.end; ++n) {
        k.backward_points(b, n, cuts[0], memory);
        k.backward_network(b, n, memory, 1);
      }
    });
    return;
  }
  const Doubles partials = allocate(nets.count * cuts.count * row);
  for_tasks(nets.count * cuts.count, 1, 0, threads, [&](Span task, double*) {
    k.backward_points(b, task.begin / cuts.count, cuts[task.begin % cuts.count], partials.get() + task.begin * row);
  });
  for_tasks(nets.count, 1, 0, threads, [&](Span task, double*) {
    k.backward_network(b, task.begin, partials.get() + task.begin * cuts.count * row, cuts.count);
  });
}

// The weights from phi or, if `grad` is not null, the gradient of phi from those of the weights.
void bumps(bool is_double, std::int64_t count, std::int64_t units, double largest, Address phi, std::int64_t phi_row,
           Address w1, Address b1, Address w2, Address grad, std::int64_t grad_row, int threads) {
  const Kernels& k = is_double ? chosen->float64 : chosen->float32;
  const BumpRows b{units,        largest,      {at<void>(phi), phi_row}, at<void>(w1),
                   at<void>(b1), at<void>(w2), at<void>(grad),           grad_row};
  for_tasks(count, 4 * networks_per_task(units, 1), 0, threads,
            [&](Span networks, double*) { (grad ? k.bumps_backward : k.bumps)(b, networks); });
}

}  // namespace

// A mixture of flows that owns copies of its parameters. It is built in the order of its parts: a member, its layers, and the
// linear layers of each.
class MixtureProgram {
  template <class T>
  using Array = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;

  struct LinearPart {
    std::int64_t inputs;
    bool prefix;
    std::vector<std::int64_t> starts;
    std::vector<std::int32_t> seen;
    std::vector<double> weights, bias;
    bool relu;
  };
  struct LayerPart {
    Layer layer{};
    std::vector<double> loc, scale, w1, b1, w2;
    std::vector<std::int32_t> network;
    std::vector<LinearPart> linears;
    std::vector<Linear> views;
  };
  struct MemberPart {
    double constant;
    std::vector<double> box_lower, box_upper;
    std::vector<double> group_lower, group_upper, group_loc, group_scale, group_log_scale, gate_lower, gate_upper;
    std::vector<std::int32_t> gate;
    std::vector<std::int32_t> order;
    std::vector<double> loc, lower, scale, coefficients;
    std::vector<LayerPart> layers;
    std::vector<Layer> views;
  };

  std::vector<MemberPart> members_;
  std::vector<Member> views_;
  Mixture mixture_{};

  template <class T>
  static std::vector<T> copy(const Array<T>& array) {
    return {array.data(), array.data() + array.size()};
  }

 public:
  MixtureProgram(std::int64_t features, std::int64_t context) { mixture_.features = features, mixture_.context = context; }

  void add_member(double constant) { members_.push_back({constant}); }

  void add_box(Array<double> lower, Array<double> upper) {
    MemberPart& member = members_.at(members_.size() - 1);
    member.box_lower = copy(lower), member.box_upper = copy(upper);
  }

  void add_groups(Array<double> lower, Array<double> upper, Array<double> loc, Array<double> scale, Array<double> log_scale,
                  Array<std::int32_t> gate, Array<double> gate_lower, Array<double> gate_upper) {
    MemberPart& member = members_.at(members_.size() - 1);
    member.group_lower = copy(lower), member.group_upper = copy(upper), member.group_loc = copy(loc);
    member.group_scale = copy(scale), member.group_log_scale = copy(log_scale);
    member.gate = copy(gate), member.gate_lower = copy(gate_lower), member.gate_upper = copy(gate_upper);
  }

  void add_triangular(Array<std::int32_t> order, Array<double> loc, Array<double> lower, Array<double> scale,
                      Array<double> coefficients) {
    MemberPart& member = members_.at(members_.size() - 1);
    member.order = copy(order), member.loc = copy(loc), member.lower = copy(lower), member.scale = copy(scale);
    member.coefficients = copy(coefficients);
  }

  void add_affine(Array<double> loc, Array<double> scale) {
    LayerPart part;
    part.loc = copy(loc), part.scale = copy(scale);
    members_.at(members_.size() - 1).layers.push_back(std::move(part));
  }

  void add_networks(std::int64_t units, std::int64_t size, double bound, double largest, double largest_scale,
                    Array<std::int32_t> network) {
    LayerPart part;
    part.layer.units = units, part.layer.size = size, part.layer.bound = bound, part.layer.largest = largest;
    part.layer.largest_scale = largest_scale;
    part.network = copy(network);
    mixture_.units = std::max(mixture_.units, units);
    members_.at(members_.size() - 1).layers.push_back(std::move(part));
  }

  void add_shared(double scale, Array<double> w1, Array<double> b1, Array<double> w2, double b2) {
    LayerPart& part = members_.at(members_.size() - 1).layers.back();
    part.layer.shared.scale = scale, part.layer.shared.b2 = b2;
    part.w1 = copy(w1), part.b1 = copy(b1), part.w2 = copy(w2);
  }

  void add_linear(std::int64_t inputs, bool prefix, Array<std::int64_t> starts, Array<std::int32_t> seen, Array<double> weights, Array<double> bias,
                  bool relu) {
    const auto outputs = static_cast<std::int64_t>(bias.size());
    members_.at(members_.size() - 1).layers.back().linears.push_back({inputs, prefix, copy(starts), copy(seen), copy(weights), copy(bias), relu});
    // The last linear layer of a network is not hidden, but this only costs memory.
    mixture_.hidden = std::max(mixture_.hidden, outputs), mixture_.outputs = std::max(mixture_.outputs, outputs);
  }

  // Sets all pointers; the parts must not move afterwards.
  void finish() {
    views_.clear();
    for (MemberPart& member : members_) {
      member.views.clear();
      for (LayerPart& part : member.layers) {
        part.views.clear();
        for (const LinearPart& l : part.linears)
          part.views.push_back({l.inputs, static_cast<std::int64_t>(l.bias.size()), l.prefix, l.starts.data(), l.seen.data(), l.weights.data(),
                                l.bias.data(), l.relu});
        Layer& layer = part.layer;
        layer.loc = part.loc.data(), layer.scale = part.scale.data(), layer.network = part.network.data();
        layer.shared.w1 = part.w1.data(), layer.shared.b1 = part.b1.data(), layer.shared.w2 = part.w2.data();
        layer.linears = static_cast<std::int64_t>(part.views.size()), layer.linear = part.views.data();
        member.views.push_back(layer);
      }
      const bool has_box = !member.box_lower.empty();
      const Groups groups{static_cast<std::int64_t>(member.group_loc.size()) / mixture_.features, member.group_lower.data(),
                          member.group_upper.data(), member.group_loc.data(), member.group_scale.data(), member.group_log_scale.data(),
                          member.gate.data(), member.gate_lower.data(), member.gate_upper.data()};
      views_.push_back({member.constant, has_box ? member.box_lower.data() : nullptr,
                        has_box ? member.box_upper.data() : nullptr, groups,
                        member.order.empty() ? nullptr : member.order.data(), member.loc.data(), member.lower.data(),
                        member.scale.data(), member.coefficients.data(),
                        static_cast<std::int64_t>(member.views.size()), member.views.data()});
    }
    mixture_.members = static_cast<std::int64_t>(views_.size()), mixture_.member = views_.data();
  }

  void score(std::int64_t count, Address x, Address context, std::int64_t repeats, Address log_density, int threads) const {
    const MixtureKernels& k = chosen->mixture;
    const RowBatch rows{at<double>(x), at<double>(context), repeats, at<double>(log_density)};
    for_tasks(count, k.tile_rows, k.scratch_doubles(mixture_), threads,
              [&](Span span, double* memory) { k.score(mixture_, rows, span, memory); });
  }
};

}  // namespace elflow

NB_MODULE(_native, m) {
  using namespace elflow;
  choose(available().front());
  const auto unlocked = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<Networks>(m, "Networks")
      .def(nb::init<bool, std::int64_t, std::int64_t, Address, std::int64_t, Address, std::int64_t, Address,
                    std::int64_t, Address, std::int64_t>(),
           nb::arg("is_double"), nb::arg("count"), nb::arg("units"), nb::arg("w1"), nb::arg("w1_row"), nb::arg("b1"),
           nb::arg("b1_row"), nb::arg("w2"), nb::arg("w2_row"), nb::arg("b2") = 0, nb::arg("b2_row") = 0);
  nb::class_<MixtureProgram>(m, "Mixture")
      .def(nb::init<std::int64_t, std::int64_t>())
      .def("add_member", &MixtureProgram::add_member)
      .def("add_box", &MixtureProgram::add_box)
      .def("add_groups", &MixtureProgram::add_groups)
      .def("add_triangular", &MixtureProgram::add_triangular)
      .def("add_affine", &MixtureProgram::add_affine)
      .def("add_networks", &MixtureProgram::add_networks)
      .def("add_shared", &MixtureProgram::add_shared)
      .def("add_linear", &MixtureProgram::add_linear)
      .def("finish", &MixtureProgram::finish)
      .def("score", &MixtureProgram::score, unlocked);
  m.def("instruction_sets", &available);
  m.def("instruction_set", [] { return chosen->name; });
  m.def("choose_instruction_set", &choose);
  m.def("thread_pool", &thread_pool);
  m.def("lipschitz", &lipschitz, unlocked);
  m.def("lipschitz_backward", &lipschitz_backward, unlocked);
  m.def("transform", &transform, unlocked);
  m.def("transform_backward", &transform_backward, unlocked);
  m.def("bumps", &bumps, unlocked);
}
