// Sorts one array per lane by a network of compare-exchanges: no branch depends on the data.
#pragma once

#include "simd.h"

namespace elflow::ELFLOW_ISA {

static inline void compare_exchange(vec& a, vec& b) {
  const vec low = min(a, b);
  b = max(a, b);
  a = low;
}

constexpr std::int64_t sort_block = 8;

// Sorts eight rows in registers, by the network of 19 comparators.
static inline void sort_eight(vec* rows) {
  vec r[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = rows[i];
  constexpr int pairs[19][2] = {{0, 2}, {1, 3}, {4, 6}, {5, 7}, {0, 4}, {1, 5}, {2, 6}, {3, 7}, {0, 1}, {2, 3},
                                {4, 5}, {6, 7}, {2, 4}, {3, 5}, {1, 4}, {3, 6}, {1, 2}, {3, 4}, {5, 6}};
#pragma GCC unroll 19
  for (int c = 0; c < 19; ++c) compare_exchange(r[pairs[c][0]], r[pairs[c][1]]);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) rows[i] = r[i];
}

// A merge is a sequence of stages, each with half the distance of the one before. Two or three stages run together, so that
// rows stay in registers in between.
static inline void two_stages(vec& a, vec& b, vec& c, vec& d) {
  vec p = a, q = b, r = c, s = d;
  compare_exchange(p, r);
  compare_exchange(q, s);
  compare_exchange(p, q);
  compare_exchange(r, s);
  a = p, b = q, c = r, d = s;
}

static inline void three_stages(vec* rows) {
  vec r[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = rows[i];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) compare_exchange(r[i], r[i + 4]);
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) compare_exchange(r[i], r[i + 2]), compare_exchange(r[i + 4], r[i + 6]);
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) compare_exchange(r[i], r[i + 1]);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) rows[i] = r[i];
}

constexpr std::int64_t cached_rows = 512;  // about the size of the L1 cache

// The stages with distances from `far` down to 1, on all sequences of 2 far rows. If these exceed the cache, each sequence
// runs through all stages before the next.
static void settle(vec* rows, std::int64_t count, std::int64_t far) {
  for (; far > 4; far /= 4) {
    if (count > cached_rows && count > 2 * far) {
      for (std::int64_t start = 0; start < count; start += 2 * far) settle(rows + start, 2 * far, far);
      return;
    }
    for (std::int64_t start = 0; start < count; start += 2 * far)
      for (vec* r = rows + start; r < rows + start + far / 2; ++r) two_stages(r[0], r[far / 2], r[far], r[far + far / 2]);
  }
  if (far == 4)
    for (std::int64_t i = 0; i < count; i += 8) three_stages(rows + i);
  else
    for (std::int64_t i = 0; i < count; i += 4) two_stages(rows[i], rows[i + 1], rows[i + 2], rows[i + 3]);
}

// Merges rows [0, run) and [run, 2 run). The first stage compares with the right half in reverse order.
static inline void merge(vec* rows, std::int64_t run) {
  const std::int64_t half = run / 2, last = 2 * run - 1;
  for (std::int64_t i = 0; i < half; ++i) {
    vec &a = rows[i], &b = rows[i + half], &c = rows[last - i - half], &d = rows[last - i];
    vec p = a, q = b, r = c, s = d;
    compare_exchange(p, s);
    compare_exchange(q, r);
    compare_exchange(p, q);
    compare_exchange(r, s);
    a = p, b = q, c = r, d = s;
  }
  settle(rows, 2 * run, run / 4);
}

// The same if the last rows are missing. If they were present and infinite, no comparator would move them, since smaller
// values only move left. So comparators that reach beyond `count` are left out.
static void settle_short(vec* rows, std::int64_t count, std::int64_t far) {
  while (count <= far) far /= 2;
  if (count == 2 * far) return settle(rows, count, far);
  for (std::int64_t i = 0; i + far < count; ++i) compare_exchange(rows[i], rows[i + far]);
  settle(rows, far, far / 2);
  settle_short(rows + far, count - far, far / 2);
}

static inline void merge_short(vec* rows, std::int64_t run, std::int64_t count) {
  const std::int64_t last = 2 * run - 1;
  for (std::int64_t i = last - (count - 1); i < run; ++i) compare_exchange(rows[i], rows[last - i]);
  settle(rows, run, run / 2);
  settle_short(rows + run, count - run, run / 2);
}

// Merges sorted runs of `run` rows, then of twice as many and so on, until all rows are sorted.
static inline void merge_runs(vec* rows, std::int64_t run, std::int64_t count) {
  for (; run < count; run *= 2)
    for (std::int64_t start = 0; start + run < count; start += 2 * run) {
      if (start + 2 * run <= count)
        merge(rows + start, run);
      else
        merge_short(rows + start, run, count - start);
    }
}

// Sorts each lane in ascending order; `count` is a multiple of `sort_block`.
static inline void sort_lanes(vec* rows, std::int64_t count) {
  for (std::int64_t start = 0; start < count; start += cached_rows) {
    const std::int64_t part = count - start < cached_rows ? count - start : cached_rows;
    for (std::int64_t i = start; i < start + part; i += sort_block) sort_eight(rows + i);
    merge_runs(rows + start, sort_block, part);
  }
  merge_runs(rows, cached_rows, count);
}

}  // namespace elflow::ELFLOW_ISA
