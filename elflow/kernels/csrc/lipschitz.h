// The exact Lipschitz constant of a network: the maximum of |g'| over its breakpoints and the two ends of the line.
//
// A sweep sorts the breakpoints and walks g' across them, O(H log^2 H); direct evaluation takes O(H^2). Either one only
// proposes the place of the maximum, with a bound of the rounding error of the slopes that it compared. The slope is then
// evaluated again at that place, and at every other place that could be the maximum within this error.
#pragma once

#include "network.h"
#include "sort.h"

namespace elflow::ELFLOW_ISA {

struct Steepest {
  double lipschitz;
  std::int32_t where;
};

constexpr double epsilon = 0x1p-53;

// Maximum relative amount by which the result may fall below the maximum slope.
template <class T>
constexpr double slack = sizeof(T) == 4 ? 1e-6 : 1e-14;

// Moving x or an argument by a few units in the last place affects the ramps at x, for which |w1 x| <= |b1| + 1: the slope
// changes by at most this times sum |a_i| (|b1_i| + 1).
constexpr double placement = 8 * epsilon;

// Breakpoints beyond `farthest`, and slopes below its inverse, are left to direct evaluation, so that the sweep never
// underflows. Units without breakpoints get one at `nowhere`, which is farther still.
constexpr double farthest = 1e140, nowhere = 1e145;
static inline bool is_place(double x) { return x < 2 * farthest; }
static inline ivec is_place(vec x) { return x < 2 * farthest; }

struct Proposal {
  double slope, second;  // the largest slope found, and the largest one elsewhere, up to `error` both
  double error;
  std::int32_t where;

  template <class T>
  bool certain() const {
    const bool sizeable = slope > 1 / farthest && finite(slope) && finite(error);
    const bool clear = slope - second > 2 * error || 2 * error <= slack<T> * slope;
    return (sizeable && clear) || (slope == 0 && error == 0);
  }
};

// g' along a walk from left to right: g'' jumps at each breakpoint.
template <class Vec>
struct Walk {
  Vec x, slope, curvature{};

  void pass(Vec breakpoint, Vec jump) {
    slope += curvature * (breakpoint - x);
    curvature += jump;
    x = breakpoint;
  }
};

// The same, with a bound of the rounding error so far: a distant breakpoint does not enlarge it for those before.
struct CarefulWalk : Walk<double> {
  double error, curvature_error = 0;

  void pass(double breakpoint, double jump) {
    const double step = breakpoint - x, rise = curvature * step;
    Walk<double>::pass(breakpoint, jump);
    error += curvature_error * step + 4 * epsilon * (abs(slope) + abs(rise));
    curvature_error += 2 * epsilon * (abs(curvature) + abs(jump));
  }
};

// The sorted breakpoints of one network per lane. The lowest bits of a breakpoint are its tag during the sort: twice the
// number of its unit, plus one at the foot of the ramp.
class Sweep {
  std::int64_t units_, rows_, tag_mask_ = 15;
  vec *keys_, *jumps_;
  vec left_, right_;  // g' at the two ends
  vec reach_, bend_;  // sum |a_i| (|b1_i| + 1), sum |a_i w1_i|
  ivec usual_;        // whether no breakpoint is too far for a sweep

  static constexpr std::int64_t rows(std::int64_t units) { return round_up(2 * units, sort_block); }
  double moved() const { return 0x1p-52 * static_cast<double>(tag_mask_ + 1); }
  vec key(vec x, std::int64_t tag) const { return (vec)(((ivec)x & ~tag_mask_) | tag); }
  std::int64_t tag(std::int64_t k, int lane) const {
    std::int64_t bits;
    __builtin_memcpy(&bits, reinterpret_cast<const char*>(keys_ + k) + sizeof bits * lane, sizeof bits);
    return bits & tag_mask_;
  }

 public:
  static constexpr std::int64_t doubles(std::int64_t units) { return lanes * (rows(units) + units); }

  Sweep(std::int64_t units, double* memory) : units_(units), rows_(rows(units)) {
    while (tag_mask_ < at_plus_infinity(units)) tag_mask_ = 2 * tag_mask_ + 1;
    keys_ = reinterpret_cast<vec*>(memory);
    jumps_ = keys_ + rows_;
  }

  template <class T>
  void set(const Network<T>* nets) {
    vec left{}, right{}, reach{}, bend{};
    ivec near = ~ivec{};
    for (std::int64_t block = 0; block < units_; block += lanes) {
      const T *w1_rows[lanes], *b1_rows[lanes], *w2_rows[lanes];
      for (int l = 0; l < lanes; ++l) {
        w1_rows[l] = nets[l].w1_row + block, b1_rows[l] = nets[l].b1_row + block, w2_rows[l] = nets[l].w2_row + block;
      }
      vec w1s[lanes], b1s[lanes], w2s[lanes];
      load_across(w1_rows, units_ - block, w1s);
      load_across(b1_rows, units_ - block, b1s);
      load_across(w2_rows, units_ - block, w2s);
      for (std::int64_t i = block; i < units_ && i < block + lanes; ++i) {
        const vec w1 = w1s[i - block], b1 = b1s[i - block], w2 = w2s[i - block];
        const vec a = w1 * w2, jump = a * abs(w1), inverse = -1.0 / w1, top = b1 * inverse, foot = top + inverse;
        left += min(w1, vec{}) * w2;
        right += max(w1, vec{}) * w2;
        reach += abs(a) * (abs(b1) + 1.0);
        bend += abs(jump);
        near &= max(abs(top), abs(foot)) < farthest;
        keys_[2 * i] = key(top, 2 * i);
        keys_[2 * i + 1] = key(foot, 2 * i + 1);
        jumps_[i] = jump;
      }
    }
    for (std::int64_t k = 2 * units_; k < rows_; ++k) keys_[k] = key(splat(nowhere), 0);
    left_ = left, right_ = right, reach_ = reach, bend_ = bend, usual_ = near;
    for (int l = 0; l < lanes; ++l)
      if (!near[l]) {
        set_aside(nets);
        break;
      }
    sort_lanes(keys_, rows_);
  }

  // Units without breakpoints, or with breakpoints that are too far, are sorted last and have no jump.
  template <class T>
  void set_aside(const Network<T>* nets) {
    usual_ = ~ivec{};
    for (std::int64_t i = 0; i < units_; ++i) {
      const ivec near = (abs(keys_[2 * i]) < farthest) & (abs(keys_[2 * i + 1]) < farthest);
      for (int l = 0; l < lanes; ++l)
        if (nets[l].w1_row[i] != 0) usual_[l] &= near[l];
      jumps_[i] = near ? jumps_[i] : vec{};
      for (std::int64_t k = 2 * i; k < 2 * i + 2; ++k) keys_[k] = near ? keys_[k] : key(splat(nowhere), k);
    }
  }

  // Whether all parameters of the network are known to be finite.
  bool sound(int lane) const { return finite(reach_[lane]); }
  std::int64_t count() const { return 2 * units_; }
  double breakpoint(std::int64_t k, int lane) const { return keys_[k][lane]; }
  std::int64_t place(std::int64_t tag) const { return tag < 2 * units_ ? tag / 2 + tag % 2 * units_ : tag; }
  std::int64_t where(std::int64_t k, int lane) const { return place(tag(k, lane)); }
  double jump(std::int64_t k, int lane) const {
    const std::int64_t t = tag(k, lane);
    return t % 2 ? jumps_[t / 2][lane] : -jumps_[t / 2][lane];
  }
  double left(int lane) const { return left_[lane]; }
  bool usual(int lane) const { return usual_[lane] != 0; }
  // The error of a slope from rounding and tags before the first step of a walk.
  double least_error(int lane) const { return reach_[lane] * (2 * moved() + placement); }

  void propose(Proposal* proposals) const {
    Walk<vec> walk{keys_[0], left_};
    vec best = abs(left_), second{}, where = key(vec{}, at_minus_infinity(units_));
    for (std::int64_t k = 0; k < 2 * units_; ++k) {
      const vec x = keys_[k];
      vec jump;
      for (int l = 0; l < lanes; ++l) jump[l] = jumps_[tag(k, l) / 2][l];
      jump = (vec)((ivec)jump ^ (~(ivec)x << 63));  // down at the top of a ramp, up at its foot
      walk.pass(is_place(x) ? x : walk.x, jump);
      const vec size = abs(walk.slope);
      where = size > best ? x : where;
      second = max(second, min(size, best));
      best = max(size, best);
    }
    const vec end = abs(right_);
    where = end > best ? key(vec{}, at_plus_infinity(units_)) : where;
    second = max(second, min(end, best));
    best = max(best, end);
    // Each step rounds the sums of jumps and of slopes once; tags move breakpoints.
    const double steps = 2 * static_cast<double>(units_) + 2;
    const vec span = walk.x - keys_[0];
    const vec error = (bend_ * span + reach_) * (steps * epsilon) + reach_ * (2 * moved() + placement);
    for (int l = 0; l < lanes; ++l) {
      const std::int64_t winner = place(((ivec)where)[l] & tag_mask_);
      proposals[l] = {best[l], second[l], usual_[l] ? error[l] : __builtin_inf(), static_cast<std::int32_t>(winner)};
    }
  }
};

template <class T>
static inline void challenge(const Network<T>& net, std::int64_t where, Steepest& champion) {
  if (!net.exists(where)) return;
  const double slope = abs(slope_at(net, where));
  if (slope > champion.lipschitz) champion = {slope, static_cast<std::int32_t>(where)};
}

// Calls visit(k, slope, error) for each breakpoint that is not too far for the sweep.
template <class Visit>
static inline void walk_carefully(const Sweep& sweep, int lane, const Visit& visit) {
  CarefulWalk walk{{sweep.breakpoint(0, lane), sweep.left(lane)}, sweep.least_error(lane)};
  for (std::int64_t k = 0; k < sweep.count() && is_place(sweep.breakpoint(k, lane)); ++k) {
    walk.pass(sweep.breakpoint(k, lane), sweep.jump(k, lane));
    visit(k, abs(walk.slope), walk.error);
  }
}

// The proposal of the sweep if it is certain; otherwise the maximum over all candidates, evaluated directly.
template <class T>
static inline Steepest decide(const Network<T>& net, const Sweep& sweep, int lane, const Proposal& proposal) {
  Steepest champion{abs(slope_at(net, proposal.where)), proposal.where};
  if (proposal.certain<T>()) return champion;
  challenge<T>(net, at_minus_infinity(net.units), champion);
  challenge<T>(net, at_plus_infinity(net.units), champion);
  if (!sweep.usual(lane) || !(champion.lipschitz > 1 / farthest) || !finite(proposal.slope)) {
    for (std::int64_t where = 0; where < 2 * net.units; ++where) challenge<T>(net, where, champion);
    return champion;
  }
  double least = champion.lipschitz;
  walk_carefully(sweep, lane, [&](std::int64_t, double slope, double error) {
    if (slope - error > least) least = slope - error;
  });
  walk_carefully(sweep, lane, [&](std::int64_t k, double slope, double error) {
    if (!(slope + error < least)) challenge<T>(net, sweep.where(k, lane), champion);
  });
  return champion;
}

// The paper's algorithm: all breakpoints times all units, one vector of breakpoints at a time.
template <class T>
static inline Steepest direct(const Network<T>& net) {
  Steepest champion{0, at_minus_infinity(net.units)};
  challenge<T>(net, at_minus_infinity(net.units), champion);
  challenge<T>(net, at_plus_infinity(net.units), champion);
  Proposal proposal{champion.lipschitz, __builtin_inf(), 0, champion.where};
  vec reach{};
  for (std::int64_t i = 0; i < net.units; i += lanes) reach += abs(net.w1(i) * net.w2(i)) * (abs(net.b1(i)) + 1.0);
  for (std::int64_t off = 0; off < 2; ++off)
    for (std::int64_t j = 0; j < net.units; j += lanes) {
      const vec x = -(net.b1(j) + static_cast<double>(off)) / net.w1(j);
      vec slope{};
      for (std::int64_t i = 0; i < net.units; ++i) {
        const double w1 = net.w1_row[i], b1 = net.b1_row[i], w2 = net.w2_row[i];
        slope += w1 * w2 * ramp(w1 * x + b1);
      }
      for (int l = 0; l < lanes && j + l < net.units; ++l)
        if (finite(x[l]) && abs(slope[l]) > proposal.slope)
          proposal.slope = abs(slope[l]), proposal.where = static_cast<std::int32_t>(j + l + off * net.units);
    }
  proposal.error = sum(reach) * (placement + epsilon * static_cast<double>(net.units));
  challenge<T>(net, proposal.where, champion);
  if (!proposal.certain<T>())
    for (std::int64_t where = 0; where < 2 * net.units; ++where) challenge<T>(net, where, champion);
  return champion;
}

}  // namespace elflow::ELFLOW_ISA
