#include "rounds/allocate.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace flashnext {
namespace {

constexpr size_t kSteps = kMaxDrafts;
constexpr int kMostPasses = 4;  // over all sequences, to improve an allotment
constexpr size_t kMostDrafts = size_t{kMaxCandidates} * kMaxDrafts;  // of a round

// What the drafts up to each depth bring: [n] for n drafts.
using Gains = std::array<double, kMaxDrafts + 1>;

struct Draft {
  uint16_t key;  // greater: takes a row before
  uint8_t sequence, depth;
  DraftSource source;
};

class Allocation {
 public:
  Allocation(std::span<const Candidate> candidates, const Prices& prices, int row_limit,
             std::span<Allotment> out)
      : candidates_(candidates), out_(out), n_(static_cast<int>(candidates.size())) {
    int most = 0;
    for (size_t i = 0; i < candidates.size(); ++i) {
      const Candidate& c = candidates[i];
      most_[0][i] = std::clamp(c.most_head, 0, kMaxDrafts);
      most_[1][i] = std::clamp(c.most_copied, 0, kMaxDrafts);
      most += std::max(most_[0][i], most_[1][i]);
      both_ = both_ || (most_[0][i] && most_[1][i]);
      sum_up(c.head, gains_[0][i]);
      sum_up(c.copy, gains_[1][i]);
    }
    room_ = std::clamp(row_limit - n_, 0, most);
    for (int k = 0; k <= room_; ++k) forward_[static_cast<size_t>(k)] = prices.forward_ms(n_ + k);
    for (int k = 0; k <= n_; ++k) step_[static_cast<size_t>(k)] = prices.draft_step_ms(k);
    row_ms_ = room_ ? (forward_[static_cast<size_t>(room_)] - forward_[0]) / room_ : 0;
    step_ms_ = n_ > 1 ? (step_[static_cast<size_t>(n_)] - step_[1]) / (n_ - 1) : 0;
  }

  void run() {
    std::fill(out_.begin(), out_.end(), Allotment{});
    if (n_ == 0 || room_ == 0) return;
    best_ratio_ = n_ / forward_[0];
    // What a millisecond is worth decides between the sources and how much less a draft of the head is than
    // a copied one; it is known when a first allotment is.
    sweep();
    if (both_ || step_ms_ > 0) sweep();
    improve();
    probe();
  }

 private:
  static void sum_up(const KeptRates& rates, Gains& gains) {
    double product = 1;
    gains[0] = 0;
    for (size_t d = 0; d < rates.size(); ++d) {
      product *= std::clamp(rates[d], 0.0, 1.0);
      gains[d + 1] = gains[d] + product;
    }
  }

  // The best number of drafts for each greatest number of draft steps. For a given one the steps' fixed costs
  // are spent, so rows go to the drafts that bring most, and scanning all row counts finds the best of any
  // shape of the forward's price.
  void sweep() {
    const double worth = best_ratio_;
    collect(worth);
    // Of each sequence the source that is worth more, copies first; more steps may turn it to the head.
    std::array<double, kMaxCandidates> copied;
    std::array<DraftSource, kMaxCandidates> source;
    int most_steps = 0;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      copied[i] = copy_value(i, worth);
      source[i] = most_[1][i] ? DraftSource::kCopy : DraftSource::kHead;
      most_steps = std::max(most_steps, most_[0][i]);
    }
    for (int steps = 0; steps <= most_steps; ++steps) {
      for (size_t i = 0; i < candidates_.size(); ++i) {
        if (steps > most_[0][i]) continue;
        if (drafts_value(0, i, steps, worth * (row_ms_ + step_ms_)) > copied[i])
          source[i] = DraftSource::kHead;
      }
      std::array<int, kSteps> drafting = {};
      double tokens = n_, steps_ms = 0;
      int rows = 0, best_rows = -1;
      for (size_t j = 0; j < n_drafts_ && rows < room_; ++j) {
        const Draft& d = drafts_[j];
        if (d.source != source[d.sequence]) continue;
        if (d.source == DraftSource::kHead) {
          if (d.depth >= steps) continue;
          const auto before = static_cast<size_t>(drafting[d.depth]++);
          steps_ms += step_[before + 1] - step_[before];
        }
        tokens += gain(d.source, d.sequence, d.depth);
        ++rows;
        const double ratio = tokens / (forward_[static_cast<size_t>(rows)] + steps_ms);
        if (ratio > best_ratio_) best_ratio_ = ratio, best_rows = rows;
      }
      if (best_rows >= 0) take(best_rows, steps, source);
    }
  }

  void take(int rows, int steps, const std::array<DraftSource, kMaxCandidates>& source) {
    std::fill(out_.begin(), out_.end(), Allotment{});
    for (size_t j = 0; rows > 0; ++j) {
      const Draft& d = drafts_[j];
      if (d.source != source[d.sequence]) continue;
      if (d.source == DraftSource::kHead && d.depth >= steps) continue;
      out_[d.sequence] = {d.depth + 1, d.source};
      --rows;
    }
  }

  // All drafts that may be worth their row, by what they bring less what their share of a step is worth;
  // equal ones by index, then depth. Two passes of a counting sort over 16 bits.
  void collect(double worth) {
    std::array<std::array<uint16_t, 257>, 2> starts = {};
    size_t n = 0;
    for (int d = 0; d < std::min(kMaxDrafts, room_); ++d) {
      for (size_t i = 0; i < candidates_.size(); ++i) {
        for (size_t s = 0; s < kDraftSources; ++s) {
          if (d >= most_[s][i]) continue;
          const double value = gain(DraftSource(s), i, d) - (s == 0 ? worth * step_ms_ : 0);
          if (value <= 0) continue;
          const auto key = static_cast<uint16_t>(0xffff - static_cast<int>(value * 0xffff));
          ++starts[0][(key & 0xff) + 1u];
          ++starts[1][(key >> 8) + 1u];
          unsorted_[n++] = {key, static_cast<uint8_t>(i), static_cast<uint8_t>(d), DraftSource(s)};
        }
      }
    }
    n_drafts_ = n;
    for (auto& s : starts) {
      for (size_t k = 1; k < s.size(); ++k) s[k] = static_cast<uint16_t>(s[k] + s[k - 1]);
    }
    for (size_t j = 0; j < n; ++j) drafts_[starts[0][unsorted_[j].key & 0xff]++] = unsorted_[j];
    for (size_t j = 0; j < n; ++j) unsorted_[starts[1][drafts_[j].key >> 8]++] = drafts_[j];
    std::swap(unsorted_, drafts_);
  }

  // What the best number of copied drafts of a sequence brings beyond what its rows are worth.
  double copy_value(size_t i, double worth) const {
    double best = 0;
    for (int n = 1; n <= most_[1][i]; ++n) best = std::max(best, drafts_value(1, i, n, worth * row_ms_));
    return best;
  }
  double drafts_value(size_t source, size_t i, int n, double cost) const {
    return gains_[source][i][static_cast<size_t>(n)] - cost * n;
  }

  double gain(DraftSource source, size_t i, int depth) const {
    const Gains& g = gains_[static_cast<size_t>(source)][i];
    return g[static_cast<size_t>(depth) + 1] - g[static_cast<size_t>(depth)];
  }

  // Tokens and cost of what stands in `out`.
  struct Total {
    double tokens;
    int rows;
    std::array<int, kSteps> drafting;
    double steps_ms;
  };
  Total total() const {
    Total t = {static_cast<double>(n_), 0, {}, 0};
    for (size_t i = 0; i < out_.size(); ++i) put(t, i, out_[i], 1);
    return t;
  }
  // Adds (1) or takes away (-1) the drafts of a sequence.
  void put(Total& t, size_t i, const Allotment& a, int sign) const {
    t.tokens += sign * gains_[static_cast<size_t>(a.source)][i][static_cast<size_t>(a.n_drafts)];
    t.rows += sign * a.n_drafts;
    if (a.source != DraftSource::kHead) return;
    for (int d = 0; d < a.n_drafts; ++d) {
      int& n = t.drafting[static_cast<size_t>(d)];
      t.steps_ms -= step_[static_cast<size_t>(n)];
      n += sign;
      t.steps_ms += step_[static_cast<size_t>(n)];
    }
  }
  double ms(const Total& t) const { return forward_[static_cast<size_t>(t.rows)] + t.steps_ms; }

  // Where steps are priced unevenly by sequences, one draft more or less of a sequence may still pay.
  void improve() {
    Total t = total();
    double ratio = t.tokens / ms(t);
    bool better = true;
    for (int pass = 0; better && pass < kMostPasses; ++pass) {
      better = false;
      for (size_t i = 0; i < out_.size(); ++i) {
        for (const int change : {-1, 1}) {
          const Allotment was = out_[i], now = {was.n_drafts + change, was.source};
          if (now.n_drafts < 0 || now.n_drafts > most_[static_cast<size_t>(was.source)][i]) continue;
          if (t.rows + change > room_) continue;
          Total other = t;
          put(other, i, was, -1);
          put(other, i, now, 1);
          const double found = other.tokens / ms(other);
          if (found <= ratio * (1 + 1e-9)) continue;
          t = other, ratio = found, out_[i] = now, better = true;
        }
      }
    }
  }

  void probe() {
    Total t = total();
    for (size_t i = 0; i < out_.size(); ++i) {
      const Candidate& c = candidates_[i];
      const bool copy = c.probe_copy && most_[1][i];
      if (!copy && !(c.probe_head && most_[0][i])) continue;
      const Allotment was = out_[i], now = {1, copy ? DraftSource::kCopy : DraftSource::kHead};
      if (was.n_drafts && was.source == now.source) continue;
      Total without = t;
      put(without, i, was, -1);
      Total with = without;
      put(with, i, now, 1);
      if (with.rows > room_) continue;
      if ((without.tokens + 1) / ms(with) <= without.tokens / ms(without)) continue;
      t = with;
      out_[i] = now;
    }
  }

  std::span<const Candidate> candidates_;
  std::span<Allotment> out_;
  int n_, room_ = 0;  // pending tokens, rows for drafts
  bool both_ = false;
  std::array<std::array<Gains, kMaxCandidates>, kDraftSources> gains_;
  std::array<std::array<int, kMaxCandidates>, kDraftSources> most_;
  std::array<double, kMostDrafts + 1> forward_;  // ms by drafts
  std::array<double, kMaxCandidates + 1> step_;  // ms by sequences
  double row_ms_, step_ms_;                      // of one more, on average
  double best_ratio_ = 0;                        // tokens a millisecond
  std::array<Draft, 2 * kMostDrafts> drafts_, unsorted_;
  size_t n_drafts_ = 0;
};

}  // namespace

Candidate Candidate::of(const Acceptance& own, const Acceptance& all, int most_head, int most_copied) {
  return {own.rates(DraftSource::kHead, all), own.rates(DraftSource::kCopy, all), most_head, most_copied,
          own.due(DraftSource::kHead),        own.due(DraftSource::kCopy)};
}

void allocate(std::span<const Candidate> candidates, const Prices& prices, int row_limit,
              std::span<Allotment> out) {
  if (candidates.size() > kMaxCandidates || out.size() != candidates.size()) {
    throw InvalidArgument("allocate: " + std::to_string(candidates.size()) + " sequences and " +
                          std::to_string(out.size()) + " allotments; expected as many of both, at most " +
                          std::to_string(kMaxCandidates));
  }
  Allocation(candidates, prices, row_limit, out).run();
}

}  // namespace flashnext
