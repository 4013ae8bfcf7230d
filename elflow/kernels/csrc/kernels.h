// The functions that each instruction set provides, over a range of networks.
#pragma once

#include <cstdint>

namespace elflow {

// One row per network. Rows have any stride; the units of a row are next to each other.
struct Rows {
  const void* data;
  std::int64_t stride;
};

struct Parameters {
  std::int64_t units;
  Rows w1, b1, w2, b2;  // b2 may be null
};

enum class Algorithm { sweep, direct };

// The Lipschitz constant of each network, and the place where |g'| has it.
struct Steepness {
  double* lipschitz;
  std::int32_t* where;
};

// The `points` of a network are next to each other: point m of network n is number n * points + m.
struct Forward {
  Parameters parameters;
  Steepness steepness;
  std::int64_t points;
  double bound;
  const void* input;
  void *output, *log_slope;  // log_slope is null for the inverse
};

struct Backward {
  Parameters parameters;
  const double* lipschitz;
  const std::int32_t* where;
  std::int64_t points;
  double bound;
  const void *x, *grad_y, *grad_log_slope;  // grad_log_slope is null for the inverse
  void *grad_x, *grad_w1, *grad_b1, *grad_w2, *grad_b2;
  bool inverse;
};

// Networks in the bump parametrisation, and the weights of their units or, in the backward, the gradients of these.
struct BumpRows {
  std::int64_t units;
  double largest;  // bound of a logarithm
  Rows phi;
  void *w1, *b1, *w2;
  void* grad;  // of phi, with the row stride `grad_row`; null in the forward
  std::int64_t grad_row;
};

struct Span {
  std::int64_t begin, end;
};

// Number of outputs of a linear layer that are computed together.
constexpr int linear_block = 8;

// A masked linear layer. Each block of outputs stores the inputs that any of its outputs sees, and the weights of these.
struct Linear {
  std::int64_t inputs, outputs;
  bool prefix;                 // whether each block sees the first inputs, up to some number
  const std::int64_t* starts;  // of the blocks in `seen`, and the end
  const std::int32_t* seen;
  const double* weights;  // `linear_block` for each seen input
  const double* bias;     // padded to whole blocks
  bool relu;              // of the results
};

// A network that is the same for all rows, normalised.
struct Shared {
  double scale, b2;
  const double *w1, *b1, *w2;
};

// A layer of a flow: y = (x - loc) scale or, with units, one network for each coordinate.
struct Layer {
  const double *loc, *scale;
  std::int64_t units;
  std::int64_t size;     // parameters of a network: its bumps, b2, and the log-scale if there is one
  double bound, largest;  // of the Lipschitz constant, and of a logarithm
  double largest_scale;   // bound of the log-scale; 0 if there is none
  const std::int32_t* network;  // of each coordinate, among those that the linear layers compute; -1 for the shared one
  Shared shared;
  std::int64_t linears;
  const Linear* linear;
};

// Groups of rows, each in a box of its own: x becomes (x - loc) scale, with one row of features for each group. A feature changes
// only if that of its gate is in an interval.
struct Groups {
  std::int64_t count;
  const double *lower, *upper, *loc, *scale, *log_scale;
  const std::int32_t* gate;
  const double *gate_lower, *gate_upper;
};

// A flow, after an optional map of groups and an optional triangular map: y = scale (u + L u), u = x[order] - loc - B c. Its
// density is zero outside a box.
struct Member {
  double constant;  // the logarithm of its weight and of everything that does not depend on the row
  const double *box_lower, *box_upper;  // null without a box
  Groups groups;
  const std::int32_t* order;  // null without the map
  const double *loc, *lower, *scale, *coefficients;
  std::int64_t layers;
  const Layer* layer;
};

struct Mixture {
  std::int64_t features, context, members;
  const Member* member;
  std::int64_t units, hidden, outputs;  // the largest of all layers
};

// Row n has the context n / repeats.
struct RowBatch {
  const double *x, *context;
  std::int64_t repeats;
  double* log_density;
};

// The log-densities of rows under a mixture, in double precision; NaN for rows that need the slower, more careful path.
struct MixtureKernels {
  int tile_rows;
  std::int64_t (*scratch_doubles)(const Mixture&);
  void (*score)(const Mixture&, const RowBatch&, Span rows, double* scratch);
};

// Functions for one dtype on one instruction set.
struct Kernels {
  // Lipschitz constants; NaN for networks with a parameter that is not finite. The scratch memory holds `scratch_doubles`
  // doubles and is aligned to 64 bytes.
  std::int64_t (*scratch_doubles)(std::int64_t units);
  void (*lipschitz)(const Parameters&, Algorithm, Span networks, Steepness, double* scratch);

  // Gradients are summed up in rows of `partial_doubles` doubles.
  std::int64_t (*partial_doubles)(std::int64_t units);
  void (*lipschitz_backward)(const Backward&, const double* grad_lipschitz, Span networks, double* partial);

  // The Lipschitz constants must have been computed before.
  void (*forward)(const Forward&, Span networks, Span points);
  void (*inverse)(const Forward&, Span networks, Span points);

  // The gradients from a range of a network's points, and their sum over such ranges, always in the same order.
  void (*backward_points)(const Backward&, std::int64_t network, Span points, double* partial);
  void (*backward_network)(const Backward&, std::int64_t network, double* partials, std::int64_t count);

  void (*bumps)(const BumpRows&, Span networks);
  void (*bumps_backward)(const BumpRows&, Span networks);
};

}  // namespace elflow
