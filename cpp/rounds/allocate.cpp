#include "rounds/allocate.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace flashnext {
namespace {

constexpr size_t kSteps = kMaxDrafts;
constexpr int kMostPasses = 3;  // over all sequences, to improve an allotment
constexpr size_t kMostDrafts = size_t{kMaxCandidates} * kMaxDrafts;  // of a round

// What the drafts up to each depth bring: [n] for n drafts.
using Gains = std::array<double, kMaxDrafts + 1>;

struct Draft {
  uint16_t key;  // the smaller takes a row before
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
    row_ms_ = room_ ? forward_[1] - forward_[0] : 0;
    for (int k = 2; k <= room_; ++k) {
      row_ms_ = std::min(row_ms_, (forward_[static_cast<size_t>(k)] - forward_[0]) / k);
    }
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
    probe(DraftSource::kCopy, &Candidate::probe_copy);
    probe(DraftSource::kHead, &Candidate::probe_head);
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
        const double head = drafts_value(0, i, steps, worth * (row_ms_ + step_ms_));
        if (head > copied[i]) source[i] = DraftSource::kHead;
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
          if (!(value > 0)) continue;
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

  // What the sweeps take for even (a row's share of the forward, a sequence's of a step) may not be: give
  // each sequence in turn what is best beside what the others have.
  void improve() {
    Total t = total();
    bool better = true;
    for (int pass = 0; better && pass < kMostPasses; ++pass) {
      better = false;
      for (size_t i = 0; i < out_.size(); ++i) {
        Total others = t;
        put(others, i, out_[i], -1);
        Allotment best = out_[i];
        double tokens = t.tokens * (1 + 1e-9), time_ms = ms(t);  // of the best; equals change nothing
        for (size_t s = 0; s < kDraftSources; ++s) {
          const int most = std::min(most_[s][i], room_ - others.rows);
          double steps_ms = others.steps_ms;
          for (int n = 0; n <= most; ++n) {
            if (n > 0 && s == 0) {
              const auto before = static_cast<size_t>(others.drafting[static_cast<size_t>(n) - 1]);
              steps_ms += step_[before + 1] - step_[before];
            }
            const double found = others.tokens + gains_[s][i][static_cast<size_t>(n)];
            const double found_ms = forward_[static_cast<size_t>(others.rows + n)] + steps_ms;
            if (found * time_ms <= tokens * found_ms) continue;
            tokens = found, time_ms = found_ms, best = {n, DraftSource(s)};
          }
        }
        if (best.n_drafts == out_[i].n_drafts && best.source == out_[i].source) continue;
        out_[i] = best;
        put(others, i, best, 1);
        t = others;
        better = true;
      }
    }
  }

  // One draft of the source for each sequence that is to try it, where that would pay if all were kept. They
  // are weighed together, since one step of the head serves them all.
  void probe(DraftSource source, bool Candidate::* due) {
    const auto s = static_cast<size_t>(source);
    const Allotment one = {1, source};
    Total without = total(), with = without;
    std::array<uint8_t, kMaxCandidates> probed;
    size_t n = 0;
    for (size_t i = 0; i < out_.size(); ++i) {
      if (!(candidates_[i].*due) || most_[s][i] == 0) continue;
      if (out_[i].n_drafts && (out_[i].source == source || probes_[i])) continue;
      if (with.rows - out_[i].n_drafts + 1 > room_) continue;
      put(without, i, out_[i], -1);
      put(with, i, out_[i], -1);
      put(with, i, one, 1);
      probed[n++] = static_cast<uint8_t>(i);
    }
    if (n == 0 || (without.tokens + static_cast<double>(n)) * ms(without) <= without.tokens * ms(with))
      return;
    for (size_t j = 0; j < n; ++j) {
      out_[probed[j]] = one;
      probes_[probed[j]] = true;
    }
  }

  std::span<const Candidate> candidates_;
  std::span<Allotment> out_;
  int n_, room_ = 0;  // pending tokens, rows for drafts
  bool both_ = false;
  std::array<bool, kMaxCandidates> probes_ = {};  // has a draft of a probe
  std::array<std::array<Gains, kMaxCandidates>, kDraftSources> gains_;
  std::array<std::array<int, kMaxCandidates>, kDraftSources> most_;
  std::array<double, kMostDrafts + 1> forward_;  // ms by drafts
  std::array<double, kMaxCandidates + 1> step_;  // ms by sequences
  double row_ms_, step_ms_;                      // of one more: where rows are cheapest, on average
  double best_ratio_ = 0;                        // tokens a millisecond
  std::array<Draft, 2 * kMostDrafts> drafts_, unsorted_;
  size_t n_drafts_ = 0;
};

}  // namespace

Candidate Candidate::of(const Acceptance& own, const Acceptance& all, int most_head, int most_copied) {
  Candidate c;
  c.most_head = most_head;
  c.most_copied = most_copied;
  if (most_head > 0) c.head = own.rates(DraftSource::kHead, all);
  if (most_copied > 0) c.copy = own.rates(DraftSource::kCopy, all);
  c.probe_head = own.due(DraftSource::kHead);
  c.probe_copy = own.due(DraftSource::kCopy);
  return c;
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
