// round_rows, verdict, absorb_rows, draft_rows, keep_streams: what a round does between forwards, so that the
// host need not see one land before it records the next. Slots and structs: metal/params.h.
//
// round_rows, verdict, absorb_rows: grid (1), kRoundThreads threads, a thread a window; absorb_rows takes up
// to kMostWindows of them. keep_streams: grid (sequences), kRowThreads threads, a thread an element.
// draft_rows: grid (L), one simdgroup of which one thread works. Whole numbers only; what is placed by a sum
// is placed by the index of its window, so the order of threads does not matter.
#include "metal/lib/sums.h"

FLASHNEXT_CONSTANT int kMostWindows = 1024;
FLASHNEXT_CONSTANT uint kRoundSimdgroups = kRoundThreads / kSimdLanes;

METAL_FUNC bool contains(device const int* ids, int n, int id) {
  for (int i = 0; i < n; i++) {
    if (ids[i] == id) return true;
  }
  return false;
}

METAL_FUNC void put_row(device Row& row, int token, int sequence, int position, int rotary) {
  row.token = token;
  row.sequence = sequence;
  row.position = position;
  for (int axis = 0; axis < 3; axis++) row.rotary[axis] = rotary;
}

METAL_FUNC void put_draw(device DrawRow& draw, ulong reply, int position, int n_counted) {
  draw.reply = reply;
  draw.position = position;
  draw.n_counted = n_counted;
}

METAL_FUNC void put_counts(device Counts& counts, int rows, int sequences, int logits, int streams) {
  counts.n[kCountRows] = rows;
  counts.n[kCountSequences] = sequences;
  counts.n[kCountLogits] = logits;
  counts.n[kCountStreams] = streams;
}

// A sequence without a recurrent state, as the draft head's are.
METAL_FUNC void put_sequence(device Sequence& s, ulong page_table, int first_row, int n_rows, int start) {
  s.page_table = page_table;
  s.state = s.kept = s.unsettled = s.marks = 0;
  s.first_row = first_row;
  s.n_rows = n_rows;
  s.n_kept = 0;
  s.start = start;
  s.is_window = s.n_marks = 0;
}

[[kernel, max_total_threads_per_threadgroup(kRoundThreads)]] void round_rows(
    device Window* windows [[buffer(0)]],
    device Counts* counts [[buffer(1)]],
    device Sequence* sequences [[buffer(2)]],
    device Row* rows [[buffer(3)]],
    device int* logit_rows [[buffer(4)]],
    device DrawRow* draws [[buffer(5)]],
    constant RoundRowsParams& p [[buffer(6)]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup uint parts[2][kRoundSimdgroups];
  uint n_all = 0, parity = 0;
  for (uint first = 0; first < p.n_windows; first += kRoundThreads) {
    const uint i = first + tid;
    int n = 0;
    if (i < p.n_windows) {
      device const ReplyState& reply = *at<const ReplyState>(windows[i].reply);
      const int drafts = larger(reply.n_drafts, reply.known - reply.length - 1);
      n = reply.ended ? 0 : smaller(1 + larger(0, drafts), windows[i].most_rows);
    }
    const Count place = count_threads(uint(n), parts[parity], lane, sg, kRoundSimdgroups);
    if (i < p.n_windows) {
      device Window& w = windows[i];
      device const ReplyState& reply = *at<const ReplyState>(w.reply);
      const int row = int(n_all + place.before);
      w.is_window = 1;
      w.first_row = w.first_logits = row;
      w.start = reply.length;
      w.n_rows = n;
      device Sequence& s = sequences[i];
      put_sequence(s, reply.page_table, row, n, reply.length);
      s.state = reply.state;
      s.kept = reply.unsettled[1 - reply.parity];
      s.unsettled = reply.unsettled[reply.parity];
      s.n_kept = n ? reply.n_kept : 0;
      s.is_window = 1;
      device const int* text = at<const int>(reply.text);
      for (int r = 0; r < n; r++) {
        const int position = reply.length + r;
        put_row(rows[row + r], text[position], int(i), position, position + reply.rotary_delta);
        logit_rows[row + r] = row + r;
        put_draw(draws[row + r], w.reply, position + 1, reply.length + 1);
      }
    }
    n_all += place.all;
    parity ^= 1;
  }
  if (tid == 0) put_counts(*counts, int(n_all), int(p.n_windows), int(n_all), 0);
}

// Moves a reply on by what its window drew.
METAL_FUNC void move_on(device ReplyState& reply,
                        device const Window& w,
                        device const int* drawn,
                        uint n_valid,
                        device Landed& landed) {
  device int* text = at<int>(reply.text);
  device const int* stops = at<const int>(reply.stops);
  bool ended = false;
  int n = 0;
  while (!ended && n < w.n_rows && (n == 0 || text[w.start + n] == drawn[n - 1])) {
    const int token = drawn[n];
    landed.tokens[n++] = token;
    ended = token < 0 || w.start + n + 1 >= reply.end || contains(stops, reply.n_stops, token);
    if (token >= 0 && reply.counts) at<int>(reply.counts)[n_valid + uint(token)] += 1;
  }
  reply.length = w.start + n;
  text[reply.length] = landed.tokens[n - 1];
  landed.copied = reply.copied;
  reply.n_drafts = reply.copied = 0;
  reply.n_kept = w.is_window ? n : 0;
  if (w.is_window) reply.parity = 1 - reply.parity;
  reply.ended = ended;
  landed.n_tokens = n;
  landed.length = reply.length;
  landed.parity = reply.parity;
  landed.ended = ended;
  landed.n_verified = w.n_rows - 1;
  landed.n_accepted = n - 1;
  landed.first_logits = w.first_logits;
}

// Most drafts behind a window: none past the end of the reply, and none where text is known.
METAL_FUNC int most_drafts(device const ReplyState& reply, int most) {
  if (reply.ended || reply.known > reply.length + 1) return 0;
  return larger(0, smaller(most, reply.end - reply.length - 2));
}

[[kernel, max_total_threads_per_threadgroup(kRoundThreads)]] void verdict(
    device const Window* windows [[buffer(0)]],
    device const int* drawn [[buffer(1)]],
    device Landed* landed [[buffer(2)]],
    device ulong* replies [[buffer(3)]],
    device int* limits [[buffer(4)]],
    device Counts* counts [[buffer(5)]],
    constant VerdictParams& p [[buffer(6)]],
    uint tid [[thread_index_in_threadgroup]]) {
  for (uint i = tid; i < p.n_windows; i += kRoundThreads) {
    device const Window& w = windows[i];
    device ReplyState& reply = *at<ReplyState>(w.reply);
    device int* words = reinterpret_cast<device int*>(landed + i);
    for (uint j = 0; j < sizeof(Landed) / sizeof(int); j++) words[j] = 0;
    landed[i].ended = reply.ended;
    if (w.n_rows) move_on(reply, w, drawn + w.first_logits, p.n_valid, landed[i]);
    replies[i] = w.reply;
    limits[i] = landed[i].n_tokens ? most_drafts(reply, w.most_copied) : 0;
  }
  if (tid == 0) put_counts(*counts, 0, int(p.n_windows), 0, 0);
}

[[kernel, max_total_threads_per_threadgroup(kRoundThreads)]] void absorb_rows(
    device const Window* windows [[buffer(0)]],
    device Landed* landed [[buffer(1)]],
    device const int* n_copied [[buffer(2)]],
    device Counts* counts [[buffer(3)]],
    device Sequence* sequences [[buffer(4)]],
    device Row* rows [[buffer(5)]],
    device int* sources [[buffer(6)]],
    device int* logit_rows [[buffer(7)]],
    device DrawRow* draws [[buffer(8)]],
    device ulong* replies [[buffer(9)]],
    device int* last_rows [[buffer(10)]],
    constant AbsorbRowsParams& p [[buffer(11)]],
    uint tid [[thread_index_in_threadgroup]]) {
  threadgroup int drafts[kMostWindows];  // of a window; -1 where nothing is absorbed
  threadgroup int tokens[kMostWindows];
  const int n_windows = int(p.n_windows), n_steps = int(p.n_steps);
  for (int i = int(tid); i < n_windows; i += kRoundThreads) {
    device ReplyState& reply = *at<ReplyState>(windows[i].reply);
    if (n_copied && n_copied[i]) {
      landed[i].n_copied = reply.n_drafts = n_copied[i];
      reply.copied = 1;
    }
    if (!n_steps) continue;
    const int n = landed[i].n_tokens;
    const bool absorbed = n > 0 && reply.has_head && landed[i].tokens[n - 1] >= 0;
    const int most = !absorbed || reply.n_drafts ? 0 : most_drafts(reply, windows[i].most_drafts);
    drafts[i] = absorbed ? smaller(most, n_steps) : -1;
    tokens[i] = absorbed ? n : 0;
    if (absorbed) landed[i].n_head = drafts[i];
  }
  if (!n_steps) return;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = int(tid); i < n_windows; i += kRoundThreads) {
    const int own = drafts[i], n = tokens[i];
    if (own < 0) continue;
    int place = 0, row = 0;  // behind those that draft more, and equal ones before it
    for (int j = 0; j < n_windows; j++) {
      const int other = drafts[j];
      const bool before = other > own || (other == own && j < i);
      place += before ? 1 : 0;
      row += before ? tokens[j] : 0;
    }
    device const Window& w = windows[i];
    device const ReplyState& reply = *at<const ReplyState>(w.reply);
    device const int* text = at<const int>(reply.text);
    put_sequence(sequences[place], reply.page_table, row, n, w.start);
    for (int r = 0; r < n; r++) {
      const int position = w.start + r;
      put_row(rows[row + r], text[position + 1], place, position, position + reply.rotary_delta);
      sources[row + r] = w.first_row + r;
    }
    logit_rows[place] = row + n - 1;
    put_draw(draws[place], w.reply, reply.length + 1, reply.length + 1);
    replies[place] = w.reply;
    last_rows[place] = w.first_row + n - 1;
  }
  for (int step = int(tid); step < n_steps; step += kRoundThreads) {
    int n_absorbed = 0, n_rows = 0, n_drafting = 0;
    for (int j = 0; j < n_windows; j++) {
      n_absorbed += drafts[j] >= 0 ? 1 : 0;
      n_rows += tokens[j];
      n_drafting += drafts[j] > step ? 1 : 0;
    }
    const int of_step = step == 0 ? n_rows : n_drafting;
    put_counts(counts[step], of_step, step == 0 ? n_absorbed : n_drafting, n_drafting,
               of_step * int(p.hc_count));
  }
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kRowThreads)]] void keep_streams(
    device const Counts* counts [[buffer(0)]],
    device const ulong* replies [[buffer(1)]],
    device const int* last_rows [[buffer(2)]],
    device const T* streams [[buffer(3)]],
    constant KeepStreamsParams& p [[buffer(4)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  if (int(tgid.x) >= counts->n[kCountSequences]) return;
  device T* to = at<T>(at<const ReplyState>(replies[tgid.x])->state, p.state_offset);
  device const T* from = streams + ulong(last_rows[tgid.x]) * p.width;
  for (uint i = tid; i < p.width; i += kRowThreads) to[i] = from[i];
}

[[kernel, max_total_threads_per_threadgroup(kSimdLanes)]] void draft_rows(
    device const Counts* counts [[buffer(0)]],
    device const int* drafted [[buffer(1)]],
    device const int* logit_rows [[buffer(2)]],
    device const Row* rows [[buffer(3)]],
    device const Sequence* sequences [[buffer(4)]],
    device const DrawRow* draws [[buffer(5)]],
    device const ulong* replies [[buffer(6)]],
    device const Counts* next_counts [[buffer(7)]],
    device Row* next_rows [[buffer(8)]],
    device Sequence* next_sequences [[buffer(9)]],
    device int* next_sources [[buffer(10)]],
    device DrawRow* next_draws [[buffer(11)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int i = int(tgid.x);
  if (i >= counts->n[kCountLogits] || lane > 0) return;
  const int token = larger(drafted[i], 0);  // all NaN: the verdict on the model's own draw will tell
  device ReplyState& reply = *at<ReplyState>(replies[i]);
  at<int>(reply.text)[draws[i].position] = token;
  reply.n_drafts += 1;
  if (!next_counts || i >= next_counts->n[kCountRows]) return;
  const int from = logit_rows[i];
  put_row(next_rows[i], token, i, rows[from].position + 1, 0);
  for (int axis = 0; axis < 3; axis++) next_rows[i].rotary[axis] = rows[from].rotary[axis] + 1;
  put_sequence(next_sequences[i], sequences[i].page_table, i, 1, rows[from].position + 1);
  next_sources[i] = from;
  put_draw(next_draws[i], draws[i].reply, draws[i].position + 1, draws[i].n_counted);
}

template [[host_name("keep_streams_bf16")]] [[kernel]] decltype(keep_streams<bfloat>) keep_streams<bfloat>;
template [[host_name("keep_streams_f32")]] [[kernel]] decltype(keep_streams<float>) keep_streams<float>;
