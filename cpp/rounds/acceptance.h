// How often drafts are kept: of one sequence or of all, by source and depth.
#pragma once

#include <array>

#include "metal/params.h"

namespace flashnext {

enum class DraftSource { kHead = 0, kCopy = 1 };
constexpr int kDraftSources = 2;
constexpr int kMaxDrafts = kMaxWindow - 1;

// [d]: the probability that the draft at depth d (from 0) is kept, given that those before it were.
using KeptRates = std::array<double, kMaxDrafts>;

// Counts that forget, so that a rate follows the last few dozen drafts at its depth. A value: to be copied
// and dropped with its sequence.
class Acceptance {
 public:
  // Of one sequence.
  Acceptance() = default;
  // Of all sequences of a model, observed beside each one: what a new sequence starts from.
  static Acceptance of_all();

  // A round verified `proposed` drafts of the source and kept the first `accepted`. To be called for every
  // round of the sequence: with 0 proposed, neither source had a draft in it. Throws InvalidArgument where
  // not 0 <= accepted <= proposed <= kMaxDrafts.
  void observe(DraftSource source, int proposed, int accepted);

  // Rates of the sequence. Where it has few drafts they lean on those of all and on its own at the depth
  // above.
  KeptRates rates(DraftSource source, const Acceptance& all) const;
  // The same over constants. A depth that was not tried yet is expected to be as good as the one above, so
  // that windows grow to where drafts fail.
  KeptRates rates(DraftSource source) const;

  // Whether the source should be tried once more though its rates may not pay: it had no draft for
  // kProbeEvery rounds (kMostWait after a probe in vain, and four times as many where the other source had
  // some); or its last drafts were all kept while its rate says otherwise, so that one that recovers is
  // believed soon.
  bool due(DraftSource source) const;
  static constexpr int kProbeEvery = 16, kMostWait = 32;

 private:
  struct Source {
    std::array<double, kMaxDrafts> tried = {}, kept = {};  // forgetful counts
    int waiting = 0;         // rounds without a draft, by kOwnWait and kOtherWait
    int wait = kProbeEvery;  // rounds after which it is due
    bool all_kept = false;   // of the last drafts
  };
  static constexpr int kOwnWait = 4, kOtherWait = 1;

  static void fade(Source& s);
  // expect: (depth, rate of the depth above) -> what to expect where nothing was seen.
  template <class Expect>
  KeptRates lean(const Source& s, Expect&& expect) const;

  std::array<Source, kDraftSources> sources_;
  double remembered_ = 0.95;  // of a count when the next draft comes: it sums to 20
  double trust_ = 3;          // drafts that the prior counts for
};

}  // namespace flashnext
