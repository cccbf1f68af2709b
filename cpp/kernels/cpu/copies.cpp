// copy_drafts: a reply's next tokens guessed from its own text.
//
//   e = the latest of the places whose tokens up to e agree longest with those up to the pending one
//   drafts = the tokens behind e
#include "kernels/cpu/norm.h"
#include "kernels/cpu/tables.h"
#include "metal/params.h"

namespace flashnext::cpu::FLASHNEXT_PATH {
namespace {

constexpr int32_t kEnds = 64;  // places looked at together

// Whether any of the n places from `ends` on ends like `last` in its tokens 0, 1 and `further` back. Without
// a branch a place, so that compilers make vectors of it.
bool any_alike(const int32_t* ends, int32_t n, const int32_t* last, int32_t further) {
  const int32_t a = last[0], b = last[-1], c = last[-further];
  const int32_t *before = ends - 1, *far = ends - further;
  int32_t alike = 0;
  for (int32_t i = 0; i < n; ++i) alike |= (ends[i] == a) & (before[i] == b) & (far[i] == c);
  return alike != 0;
}

// The place before `last` to copy behind, or -1.
int32_t latest_longest(const int32_t* text, int32_t last, const CopyDraftsParams& p) {
  int32_t found = -1, longest = p.least_match - 1;
  // Backwards, so that of equals the first one met is the latest; a longer match than the longest so far must
  // agree `longest` back, which the search asks for at once.
  for (int32_t end = last; end > longest && longest < p.most_match;) {
    const int32_t begin = end - kEnds > longest ? end - kEnds : longest;
    if (any_alike(text + begin, end - begin, text + last, longest)) {
      for (int32_t e = end - 1; e >= begin && e >= longest && longest < p.most_match; --e) {
        if (text[e] != text[last] || text[e - longest] != text[last - longest]) continue;
        int32_t m = 1;
        while (m < p.most_match && m <= e && text[e - m] == text[last - m]) ++m;
        if (m > longest) longest = m, found = e;
      }
    }
    end = begin;
  }
  return found;
}

void copy_drafts(const Task& t) {
  if (int32_t(t.x) >= t.slot<Counts>(0)->n[kCountSequences]) return;
  const ReplyState& reply = *at<const ReplyState>(t.slot<const uint64_t>(1)[t.x], 0);
  int32_t n = t.slot<const int32_t>(2)[t.x];
  if (n > kMaxWindow - 1) n = kMaxWindow - 1;
  int32_t& n_copied = t.slot<int32_t>(3)[t.x];
  n_copied = 0;
  if (n <= 0 || reply.ended || reply.known > reply.length + 1) return;
  auto* text = at<int32_t>(reply.text, 0);
  const int32_t found = latest_longest(text, reply.length, t.get<CopyDraftsParams>());
  if (found < 0) return;
  // One by one: what is copied may be read again.
  for (int32_t i = 1; i <= n; ++i) text[reply.length + i] = text[found + i];
  n_copied = n;
}

constexpr KernelEntry kEntries[] = {
    {"copy_drafts", copy_drafts, 1},
};

}  // namespace

KernelList copy_kernels() { return {kEntries, sizeof kEntries / sizeof *kEntries}; }

}  // namespace flashnext::cpu::FLASHNEXT_PATH
