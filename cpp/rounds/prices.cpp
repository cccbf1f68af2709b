#include "rounds/prices.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"

namespace flashnext {
namespace {

// Where a device reads its weights from memory a forward costs little more for a few rows than for one, and
// then grows with rows; the draft head is one layer and the vocabulary beside a model of dozens. The defaults
// have that shape. They are on the cheap side on purpose: what seems cheap is tried and its price learned,
// what seems dear never is. Only ratios count until something is timed.
constexpr double kForwardMs = 10, kRowMs = 0.5;
constexpr double kStepMs = 0.6, kStepSequenceMs = 0.04;

constexpr double kGain = 0.1;       // of an error that one round corrects
constexpr double kMostError = 0.3;  // of a logarithm; what lies beyond counts as much
// Of a correction, what other known widths take too: most changes are the machine's and reach all of them.
constexpr double kShared = 0.5;

bool is_time(double ms) { return std::isfinite(ms) && ms > 0; }

}  // namespace

Prices::Prices() {
  for (size_t k = 0; k < kKnots; ++k) {
    forward_.ms[k] = kForwardMs + kRowMs * kWidths[k];
    draft_step_.ms[k] = kStepMs + kStepSequenceMs * kWidths[k];
  }
}

double Prices::round_ms(int rows, std::span<const int> drafting) const {
  double ms = forward_.at(rows);
  for (const int n : drafting) ms += draft_step_.at(n);
  return ms;
}

void Prices::set_measured(int rows, double ms) {
  if (!forward_.any_known() && !draft_step_.any_known() && is_time(ms)) {
    draft_step_.scale(ms / forward_.at(rows));
  }
  forward_.set("forward", rows, ms);
}

void Prices::set_measured_draft_step(int n_sequences, double ms) {
  if (!forward_.any_known() && !draft_step_.any_known() && is_time(ms)) {
    forward_.scale(ms / draft_step_.at(n_sequences));
  }
  draft_step_.set("draft step", n_sequences, ms);
}

void Prices::observe_round(int rows, std::span<const int> drafting, double ms) {
  if (!is_time(ms) || rows <= 0) return;
  double expected = round_ms(rows, drafting);
  if (!forward_.any_known() && !draft_step_.any_known()) {
    const double factor = ms / expected;
    forward_.scale(factor);
    draft_step_.scale(factor);
    expected = ms;
  }
  // A step of the normalized least mean squares over logarithms: the error goes to the knots by what they
  // contribute, so that rounds with and without draft steps come to tell both prices apart.
  std::array<double, kKnots> forward{}, step{};
  forward_.add_parts(rows, forward);
  for (const int n : drafting) draft_step_.add_parts(n, step);
  double squares = 0;
  for (size_t k = 0; k < kKnots; ++k) squares += forward[k] * forward[k] + step[k] * step[k];
  const double error = kGain * std::clamp(std::log(ms / expected), -kMostError, kMostError);
  for (size_t k = 0; k < kKnots; ++k) {
    forward[k] *= expected / squares;
    step[k] *= expected / squares;
  }
  forward_.move(forward, error);
  draft_step_.move(step, error);
}

Prices::Curve::Place Prices::Curve::place(int width) {
  size_t low = 0;
  while (low + 2 < kKnots && width >= kWidths[low + 1]) ++low;
  return {low, double(width - kWidths[low]) / (kWidths[low + 1] - kWidths[low])};
}

double Prices::Curve::at(int width) const {
  if (width <= 0) return 0;
  const auto [low, upper] = place(width);
  return ms[low] + upper * (ms[low + 1] - ms[low]);
}

bool Prices::Curve::any_known() const {
  return std::any_of(known.begin(), known.end(), [](bool k) { return k; });
}

void Prices::Curve::scale(double factor) {
  for (double& m : ms) m *= factor;
}

void Prices::Curve::set(const char* what, int width, double time_ms) {
  const auto at = std::find(kWidths.begin(), kWidths.end(), width);
  if (at == kWidths.end()) {
    throw InvalidArgument(std::string(what) + ": width " + std::to_string(width) +
                          " has no price of its own; time 1, 2, 4, 8, 16, 32 or 64");
  }
  if (!is_time(time_ms)) {
    throw InvalidArgument(std::string(what) + ": " + std::to_string(time_ms) +
                          " ms is no time; expected a positive finite number");
  }
  const auto k = static_cast<size_t>(at - kWidths.begin());
  const double factor = time_ms / ms[k];
  // The unknown widths up to the next known ones go along.
  size_t first = k, last = k;
  while (first > 0 && !known[first - 1]) ms[--first] *= factor;
  while (last + 1 < kKnots && !known[last + 1]) ms[++last] *= factor;
  ms[k] = time_ms;
  known[k] = true;
  straighten(k, k);
}

void Prices::Curve::add_parts(int width, std::array<double, kKnots>& parts) const {
  if (width <= 0) return;
  const auto [low, upper] = place(width);
  const double above = std::min(upper, 1.0);  // beyond the widest knot its slope is taken as it is
  parts[low] += (1 - above) * ms[low];
  parts[low + 1] += above * ms[low + 1];
}

void Prices::Curve::move(const std::array<double, kKnots>& parts, double error) {
  double sum = 0, most = 0, squares = 0;
  for (const double p : parts) {
    sum += p;
    most = std::max(most, p);
    squares += p * p;
  }
  if (sum <= 0) return;
  const double common = std::exp(error * squares / sum);  // what the knots of this curve move by together
  size_t first = kKnots, last = 0;
  for (size_t k = 0; k < kKnots; ++k) {
    if (parts[k] > 0) {
      first = std::min(first, k);
      last = k;
      ms[k] *= std::exp(error * parts[k]);
      known[k] = known[k] || parts[k] > most / 2;
    } else {
      ms[k] *= known[k] ? std::pow(common, kShared) : common;
    }
  }
  straighten(first, last);
}

void Prices::Curve::straighten(size_t first, size_t last) {
  for (size_t k = first + 1; k <= last; ++k) ms[k] = std::max(ms[k], ms[k - 1]);
  for (size_t k = first; k > 0; --k) ms[k - 1] = std::min(ms[k - 1], ms[k]);
  for (size_t k = last + 1; k < kKnots; ++k) ms[k] = std::max(ms[k], ms[k - 1]);
}

}  // namespace flashnext
