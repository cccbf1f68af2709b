// copy_drafts: a reply's next tokens guessed from its own text.
//
//   e = the latest of the places whose tokens up to e agree longest with those up to the pending one
//   drafts = the tokens behind e
//
// 0 counts, 1 replies uint64[L], 2 limits int32[L], 3 n_copied int32[L], 4 CopyDraftsParams. Grid (L),
// kRowThreads threads: each looks at places tid, tid + kRowThreads, ... and keeps its best; longest, then
// latest wins over all. Whole numbers only. 2 <= least_match <= most_match.
#include "metal/lib/sums.h"

[[kernel, max_total_threads_per_threadgroup(kRowThreads)]] void copy_drafts(
    device const Counts* counts [[buffer(0)]],
    device const ulong* replies [[buffer(1)]],
    device const int* limits [[buffer(2)]],
    device int* n_copied [[buffer(3)]],
    constant CopyDraftsParams& p [[buffer(4)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  constexpr int n_sg = kRowThreads / kSimdLanes;
  threadgroup int longest[n_sg];
  threadgroup int latest[n_sg];
  if (int(tgid.x) >= counts->n[kCountSequences]) return;
  device const ReplyState& reply = *at<const ReplyState>(replies[tgid.x]);
  const int n = smaller(limits[tgid.x], kMaxWindow - 1);
  if (n <= 0 || reply.ended || reply.known > reply.length + 1) {
    if (tid == 0) n_copied[tgid.x] = 0;
    return;
  }
  device int* text = at<int>(reply.text);
  const int last = reply.length;
  int best = 0, place = -1;
  for (int e = int(tid); e < last; e += kRowThreads) {
    if (text[e] != text[last]) continue;
    int m = 1;
    while (m < p.most_match && m <= e && text[e - m] == text[last - m]) m++;
    if (m >= p.least_match && m >= best) {
      best = m;
      place = e;
    }
  }
  const int most = simd_max(best);
  const int at_most = simd_max(best == most ? place : -1);
  if (lane == 0) {
    longest[sg] = most;
    latest[sg] = at_most;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid > 0) return;
  for (int i = 0; i < n_sg; i++) {
    if (longest[i] > best || (longest[i] == best && latest[i] > place)) {
      best = longest[i];
      place = latest[i];
    }
  }
  n_copied[tgid.x] = place < 0 ? 0 : n;
  // One by one: what is copied may be read again.
  for (int i = 1; place >= 0 && i <= n; i++) text[last + i] = text[place + i];
}
