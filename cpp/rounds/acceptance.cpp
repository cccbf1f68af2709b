#include "rounds/acceptance.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace flashnext {
namespace {

// Before anything was seen. Head: what trained heads of this kind reach on prose, so that they are tried.
// Copy: of docs and sources replayed behind the bundled tokenizer, copies behind three equal tokens keep
// their first draft in 45 % (prose) and 62 % (code) of cases, and a kept one is followed by another in three
// of four.
constexpr double kHeadRate = 0.7, kFirstCopyRate = 0.55, kCopyRate = 0.75;

// While a source waits its past counts for less, down to this many drafts, so that it can recover.
constexpr double kFade = 0.97, kLeastTried = 8;

size_t index(DraftSource source) { return static_cast<size_t>(source); }

}  // namespace

Acceptance Acceptance::of_all() {
  Acceptance a;
  a.remembered_ = 0.998;
  a.trust_ = 8;
  return a;
}

void Acceptance::observe(DraftSource source, int proposed, int accepted) {
  if (proposed < 0 || proposed > kMaxDrafts || accepted < 0 || accepted > proposed) {
    throw InvalidArgument("acceptance: " + std::to_string(accepted) + " of " + std::to_string(proposed) +
                          " drafts kept; expected 0 <= kept <= drafts <= " + std::to_string(kMaxDrafts));
  }
  for (size_t i = 0; i < sources_.size(); ++i) {
    Source& s = sources_[i];
    if (proposed == 0) {
      s.waiting = std::min(s.waiting + kOwnWait, kOwnWait * kMostWait);
      fade(s);
    } else if (i != index(source)) {
      s.waiting = std::min(s.waiting + kOtherWait, kOwnWait * kMostWait);
    }
  }
  if (proposed == 0) return;
  Source& s = sources_[index(source)];
  if (accepted > 0) {
    s.wait = kProbeEvery;
  } else if (s.waiting >= kOwnWait * s.wait) {
    s.wait = std::min(2 * s.wait, kMostWait);
  }
  s.waiting = 0;
  s.all_kept = accepted == proposed;
  // The draft behind the last kept one was refused; what came behind that was not tried.
  for (int d = 0; d < std::min(accepted + 1, proposed); ++d) {
    const auto at = static_cast<size_t>(d);
    s.tried[at] = s.tried[at] * remembered_ + 1;
    s.kept[at] = s.kept[at] * remembered_ + (d < accepted);
  }
}

void Acceptance::fade(Source& s) {
  for (size_t d = 0; d < s.tried.size(); ++d) {
    if (s.tried[d] <= kLeastTried) continue;
    const double left = std::max(kFade, kLeastTried / s.tried[d]);
    s.tried[d] *= left;
    s.kept[d] *= left;
  }
}

template <class Expect>
KeptRates Acceptance::lean(const Source& s, Expect&& expect) const {
  KeptRates rates;
  for (size_t d = 0; d < rates.size(); ++d) {
    const double expected = expect(d, d == 0 ? 0 : rates[d - 1]);
    rates[d] = (s.kept[d] + trust_ * expected) / (s.tried[d] + trust_);
  }
  return rates;
}

KeptRates Acceptance::rates(DraftSource source) const {
  return lean(sources_[index(source)], [source](size_t d, double above) {
    if (source == DraftSource::kHead) return std::max(kHeadRate, above);
    return d == 0 ? kFirstCopyRate : std::max(kCopyRate, above);
  });
}

KeptRates Acceptance::rates(DraftSource source, const Acceptance& all) const {
  const KeptRates prior = all.rates(source);
  return lean(sources_[index(source)],
              [&](size_t d, double above) { return d == 0 ? prior[d] : (prior[d] + above) / 2; });
}

bool Acceptance::due(DraftSource source) const {
  const Source& s = sources_[index(source)];
  return s.waiting >= kOwnWait * s.wait || (s.all_kept && s.kept[0] < 0.5 * s.tried[0]);
}

}  // namespace flashnext
