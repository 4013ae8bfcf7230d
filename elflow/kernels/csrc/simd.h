// Vectors of the instruction set that this file is compiled for.
//
// Everything under `ELFLOW_ISA` is compiled once per instruction set, with different flags and into different namespaces.
// So these headers must not use inline functions of the standard library: the linker keeps one copy of such a function for
// all instruction sets, which may be one that the machine cannot run.
#pragma once

#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

// Compilers contract products and sums to one rounding. Functions that account for each rounding forbid it.
#if defined(__clang__)
#define ELFLOW_EACH_ROUNDING
#define ELFLOW_EACH_ROUNDING_HERE _Pragma("clang fp contract(off)")
#else
#define ELFLOW_EACH_ROUNDING __attribute__((optimize("fp-contract=off")))
#define ELFLOW_EACH_ROUNDING_HERE
#endif

namespace elflow::ELFLOW_ISA {

constexpr int lanes = ELFLOW_LANES;

typedef double vec __attribute__((vector_size(8 * ELFLOW_LANES)));
typedef std::int64_t ivec __attribute__((vector_size(8 * ELFLOW_LANES)));
typedef std::uint64_t uvec __attribute__((vector_size(8 * ELFLOW_LANES)));

static inline vec load(const double* p) {
  vec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

// GCC goes through memory for what is one instruction.
static inline vec load(const float* p) {
#if defined(__AVX512F__)
  return _mm512_cvtps_pd(_mm256_loadu_ps(p));
#elif defined(__AVX2__)
  return _mm256_cvtps_pd(_mm_loadu_ps(p));
#else
  typedef float narrow __attribute__((vector_size(4 * ELFLOW_LANES)));
  narrow v;
  __builtin_memcpy(&v, p, sizeof v);
  return __builtin_convertvector(v, vec);
#endif
}

// The first `count` elements, padded with zeros.
template <class T>
static inline vec load(const T* p, std::int64_t count) {
  if (count >= lanes) return load(p);
  vec v{};
  for (std::int64_t l = 0; l < count; ++l) v[l] = p[l];
  return v;
}

static inline void store(double* p, vec v) { __builtin_memcpy(p, &v, sizeof v); }

// The first `count` elements, in the dtype of the tensor.
template <class T>
static inline void store(T* p, vec v, std::int64_t count) {
  for (std::int64_t l = 0; l < lanes && l < count; ++l) p[l] = static_cast<T>(v[l]);
}

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

// Zero for negative numbers; NaN stays.
static inline vec rectify(vec a) { return a < 0.0 ? vec{} : a; }

static inline bool any(ivec bits) {
#if defined(__AVX512F__)
  return _mm512_test_epi64_mask((__m512i)bits, (__m512i)bits) != 0;
#else
  std::int64_t some = bits[0];
  for (int l = 1; l < lanes; ++l) some |= bits[l];
  return some != 0;
#endif
}

// Element `index` of each lane of an array of vectors.
static inline vec gather(const double* elements, ivec index) {
#if defined(__AVX512F__)
  const ivec lane = {0, 1, 2, 3, 4, 5, 6, 7};
  return (vec)_mm512_i64gather_pd((__m512i)(index * lanes + lane), elements, 8);
#else
  vec v;
  for (int l = 0; l < lanes; ++l) v[l] = elements[index[l] * lanes + l];
  return v;
#endif
}

static inline double abs(double a) { return __builtin_fabs(a); }
static inline bool finite(double x) { return __builtin_isfinite(x); }

// The exponential of numbers within +-700, to two units in the last place: 2^n times a polynomial in the remainder.
static inline vec exp(vec x) {
  constexpr double magic = 0x1.8p52;  // after adding it, the lowest bits are the nearest integer
  const vec shifted = x * 0x1.71547652b82fep0 + magic, n = shifted - magic;
  const vec r = (x - n * 0x1.62e42fefa39efp-1) - n * 0x1.abc9e3b39803fp-56;
  vec p = splat(1.0 / 6227020800);
  constexpr double factorials[] = {479001600, 39916800, 3628800, 362880, 40320, 5040, 720, 120, 24, 6, 2, 1, 1};
#pragma GCC unroll 13
  for (const double factorial : factorials) p = p * r + 1 / factorial;
  return p * (vec)(((uvec)shifted << 52) + (uvec)splat(1.0));
}

// The logarithm of positive normal numbers, with an absolute error of a few units of 1e-16 for results near 0:
// that of the power of two, and 2 artanh((m - 1) / (m + 1)) of the rest m, which is within a factor of sqrt(2) of 1.
static inline vec log(vec x) {
  constexpr std::uint64_t root_half = 0x3fe6a09e667f3bcd;
  const uvec bits = (uvec)x;  // without a sign, because numbers that are not positive must not overflow
  const ivec power = (ivec)(bits - root_half) >> 52;
  const vec m = (vec)(bits - ((uvec)power << 52)), r = (m - 1.0) / (m + 1.0), square = r * r;
  vec p = splat(1.0 / 23);
#pragma GCC unroll 11
  for (int n = 21; n > 0; n -= 2) p = p * square + 1.0 / n;
  return __builtin_convertvector(power, vec) * 0x1.62e42fefa39efp-1 + 2.0 * r * p;
}

// Of each pair of blocks of `distance` lanes, the first of a and the first of b, or the second of a and the second of b.
template <int distance, int second>
static inline vec blocks(vec a, vec b) {
  ivec from;
  for (int l = 0; l < lanes; ++l) from[l] = (l & distance ? lanes + l - distance : l) + second * distance;
#if defined(__clang__)
  vec v;
  for (int l = 0; l < lanes; ++l) v[l] = from[l] < lanes ? a[from[l]] : b[from[l] - lanes];
  return v;
#else
  return __builtin_shuffle(a, b, from);
#endif
}

template <int distance>
static inline void exchange_blocks(vec* rows) {
#pragma GCC unroll 8
  for (int i = 0; i < lanes; ++i)
    if (!(i & distance)) {
      const vec a = rows[i], b = rows[i + distance];
      rows[i] = blocks<distance, 0>(a, b);
      rows[i + distance] = blocks<distance, 1>(a, b);
    }
}

// The first `count` elements of one array per lane, element by element.
template <class T>
static inline void load_across(const T* const* arrays, std::int64_t count, vec* elements) {
  vec rows[lanes];
  if (count >= lanes) {
#pragma GCC unroll 8
    for (int l = 0; l < lanes; ++l) rows[l] = load(arrays[l]);
  } else {
    for (int l = 0; l < lanes; ++l) rows[l] = load(arrays[l], count);
  }
  exchange_blocks<1>(rows);
  if constexpr (lanes > 2) exchange_blocks<2>(rows);
  if constexpr (lanes > 4) exchange_blocks<4>(rows);
#pragma GCC unroll 8
  for (int l = 0; l < lanes; ++l) elements[l] = rows[l];
}

constexpr std::int64_t round_up(std::int64_t n, std::int64_t step) { return (n + step - 1) / step * step; }

}  // namespace elflow::ELFLOW_ISA
