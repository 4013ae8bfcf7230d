// The vectors of the instruction set that this file is compiled for.
//
// Everything under `ELFLOW_ISA` is compiled once per instruction set, each time into a namespace of its own:
// the same source, other flags. These headers therefore use no inline function of the standard library, since the
// linker would keep one copy of it for all of them, perhaps one that the machine cannot run.
#pragma once

#include <cstdint>

namespace elflow::ELFLOW_ISA {

constexpr int lanes = ELFLOW_LANES;

typedef double vec __attribute__((vector_size(8 * ELFLOW_LANES)));
typedef std::int64_t ivec __attribute__((vector_size(8 * ELFLOW_LANES)));

static inline vec load(const double* p) {
  vec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

static inline void store(double* p, vec v) { __builtin_memcpy(p, &v, sizeof v); }

static inline vec splat(double x) {
  vec v;
  for (int l = 0; l < lanes; ++l) v[l] = x;
  return v;
}

static inline double sum(vec v) {
  double total = v[0];
  for (int l = 1; l < lanes; ++l) total += v[l];
  return total;
}

static inline vec min(vec a, vec b) { return a < b ? a : b; }
static inline vec max(vec a, vec b) { return a > b ? a : b; }
static inline vec abs(vec a) { return (vec)((ivec)a & INT64_MAX); }

static inline double abs(double a) { return __builtin_fabs(a); }
static inline bool finite(double x) { return __builtin_isfinite(x); }

constexpr std::int64_t round_up(std::int64_t n, std::int64_t step) { return (n + step - 1) / step * step; }

}  // namespace elflow::ELFLOW_ISA
