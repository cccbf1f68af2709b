// round_rows, verdict, absorb_rows, draft_rows, keep_streams: what a round does between forwards, so that the
// host need not see one land before it records the next. Source: docs/scheduling.md, a round.
#include "kernels/cpu/norm.h"
#include "kernels/cpu/tables.h"
#include "metal/params.h"

namespace flashnext::cpu::FLASHNEXT_PATH {
namespace {

int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }
int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

bool contains(const int32_t* ids, int32_t n, int32_t id) {
  for (int32_t i = 0; i < n; ++i) {
    if (ids[i] == id) return true;
  }
  return false;
}

// Of a row behind a prompt: of text, whose rotary position is the same on all axes.
Row row_of(int32_t token, int32_t sequence, int32_t position, int32_t delta) {
  const int32_t rotary = position + delta;
  return {token, sequence, position, {rotary, rotary, rotary}};
}

void round_rows(const Task& t) {
  const auto& p = t.get<RoundRowsParams>();
  int32_t n_rows = 0;
  for (uint32_t i = 0; i < p.n_windows; ++i) {
    Window& w = t.slot<Window>(0)[i];
    const ReplyState& reply = *at<const ReplyState>(w.reply);
    const auto* text = at<const int32_t>(reply.text);
    w.is_window = 1;
    w.first_row = w.first_logits = n_rows;
    w.start = reply.length;
    const int32_t drafts = larger(reply.n_drafts, reply.known - reply.length - 1);
    w.n_rows = reply.ended ? 0 : smaller(1 + larger(0, drafts), w.most_rows);
    Sequence& s = t.slot<Sequence>(2)[i];
    s = {};
    s.page_table = reply.page_table;
    s.state = reply.state;
    s.kept = reply.unsettled[1 - reply.parity];
    s.unsettled = reply.unsettled[reply.parity];
    s.first_row = n_rows;
    s.n_rows = w.n_rows;
    s.n_kept = w.n_rows ? reply.n_kept : 0;
    s.start = w.start;
    s.is_window = 1;
    for (int32_t r = 0; r < w.n_rows; ++r, ++n_rows) {
      const int32_t position = w.start + r;
      t.slot<Row>(3)[n_rows] = row_of(text[position], static_cast<int32_t>(i), position, reply.rotary_delta);
      t.slot<int32_t>(4)[n_rows] = n_rows;
      t.slot<DrawRow>(5)[n_rows] = {w.reply, position + 1, w.start + 1};
    }
  }
  *t.slot<Counts>(1) = {{n_rows, static_cast<int32_t>(p.n_windows), n_rows, 0}};
}

// Moves a reply on by what its window drew.
void move_on(ReplyState& reply, const Window& w, const int32_t* drawn, uint32_t n_valid, Landed& landed) {
  auto* text = at<int32_t>(reply.text);
  auto* counts = at<int32_t>(reply.counts);
  const auto* stops = at<const int32_t>(reply.stops);
  bool ended = false;
  int32_t n = 0;
  while (!ended && n < w.n_rows && (n == 0 || text[w.start + n] == drawn[n - 1])) {
    const int32_t token = drawn[n];
    landed.tokens[n++] = token;
    ended = token < 0 || w.start + n + 1 >= reply.end || contains(stops, reply.n_stops, token);
    if (token >= 0 && counts) ++counts[n_valid + static_cast<uint32_t>(token)];
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
int32_t most_of(const ReplyState& reply, int32_t most) {
  if (reply.ended || reply.known > reply.length + 1) return 0;
  return larger(0, smaller(most, reply.end - reply.length - 2));
}

void verdict(const Task& t) {
  const auto& p = t.get<VerdictParams>();
  const auto* windows = t.slot<const Window>(0);
  auto* landed = t.slot<Landed>(2);
  for (uint32_t i = 0; i < p.n_windows; ++i) {
    const Window& w = windows[i];
    landed[i] = {};
    landed[i].ended = at<const ReplyState>(w.reply)->ended;
    if (w.n_rows) {
      move_on(*at<ReplyState>(w.reply), w, t.slot<const int32_t>(1) + w.first_logits, p.n_valid, landed[i]);
    }
    t.slot<uint64_t>(3)[i] = w.reply;
    t.slot<int32_t>(4)[i] = landed[i].n_tokens ? most_of(*at<const ReplyState>(w.reply), w.most_copied) : 0;
  }
  *t.slot<Counts>(5) = {{0, static_cast<int32_t>(p.n_windows), 0, 0}};
}

void absorb_rows(const Task& t) {
  const auto& p = t.get<AbsorbRowsParams>();
  const auto* windows = t.slot<const Window>(0);
  auto* landed = t.slot<Landed>(1);
  const auto* n_copied = t.slot<const int32_t>(2);
  for (uint32_t i = 0; n_copied && i < p.n_windows; ++i) {
    if (n_copied[i] == 0) continue;
    auto& reply = *at<ReplyState>(windows[i].reply);
    landed[i].n_copied = reply.n_drafts = n_copied[i];
    reply.copied = 1;
  }
  if (!p.n_steps) return;

  // Those that draft most first: a counting sort, stable.
  auto* counts = t.slot<Counts>(3);
  int32_t n_sequences = 0, n_rows = 0;
  for (uint32_t step = 0; step < p.n_steps; ++step) counts[step] = {};
  for (auto n_drafts = static_cast<int32_t>(p.n_steps); n_drafts >= 0; --n_drafts) {
    for (uint32_t i = 0; i < p.n_windows; ++i) {
      const Window& w = windows[i];
      const ReplyState& reply = *at<const ReplyState>(w.reply);
      const auto* text = at<const int32_t>(reply.text);
      const int32_t n = landed[i].n_tokens;
      if (n == 0 || !reply.has_head || landed[i].tokens[n - 1] < 0) continue;
      const int32_t most = reply.n_drafts ? 0 : most_of(reply, w.most_drafts);
      if (smaller(most, static_cast<int32_t>(p.n_steps)) != n_drafts) continue;
      landed[i].n_head = n_drafts;
      Sequence& s = t.slot<Sequence>(4)[n_sequences];
      s = {};
      s.page_table = reply.page_table;
      s.first_row = n_rows;
      s.n_rows = n;
      s.start = w.start;
      for (int32_t r = 0; r < n; ++r, ++n_rows) {
        t.slot<Row>(5)[n_rows] = row_of(text[w.start + r + 1], n_sequences, w.start + r, reply.rotary_delta);
        t.slot<int32_t>(6)[n_rows] = w.first_row + r;
      }
      t.slot<int32_t>(7)[n_sequences] = n_rows - 1;
      t.slot<DrawRow>(8)[n_sequences] = {w.reply, reply.length + 1, reply.length + 1};
      t.slot<uint64_t>(9)[n_sequences] = w.reply;
      t.slot<int32_t>(10)[n_sequences] = w.first_row + n - 1;
      ++n_sequences;
    }
    // So far all sequences draft at least n_drafts tokens: those of step n_drafts - 1.
    if (n_drafts > 0) {
      const int32_t rows = n_drafts == 1 ? 0 : n_sequences;
      counts[n_drafts - 1] = {{rows, rows, n_sequences, 0}};
    }
  }
  counts[0].n[kCountRows] = n_rows;
  counts[0].n[kCountSequences] = n_sequences;
  counts[0].n[kCountStreams] = n_rows * static_cast<int32_t>(p.hc_count);
  for (uint32_t step = 1; step < p.n_steps; ++step) {
    counts[step].n[kCountStreams] = counts[step].n[kCountRows] * static_cast<int32_t>(p.hc_count);
  }
}

template <class T>
void keep_streams(const Task& t) {
  const auto& p = t.get<KeepStreamsParams>();
  if (int32_t(t.x) >= t.slot<Counts>(0)->n[kCountSequences]) return;
  const ReplyState& reply = *at<const ReplyState>(t.slot<const uint64_t>(1)[t.x]);
  std::memcpy(at<std::byte>(reply.state, p.state_offset),
              t.slot<const T>(3) + size_t(t.slot<const int32_t>(2)[t.x]) * p.width, p.width * sizeof(T));
}

void draft_rows(const Task& t) {
  const int32_t i = static_cast<int32_t>(t.x);
  if (i >= t.slot<Counts>(0)->n[kCountLogits]) return;
  const int32_t token = t.slot<const int32_t>(1)[i];
  ReplyState& reply = *at<ReplyState>(t.slot<const uint64_t>(6)[i]);
  const DrawRow draw = t.slot<const DrawRow>(5)[i];
  // All logits NaN: the verdict on the model's own will tell; any token does as a draft.
  at<int32_t>(reply.text)[draw.position] = token < 0 ? 0 : token;
  ++reply.n_drafts;
  if (!t.slot<Counts>(7) || i >= t.slot<Counts>(7)->n[kCountRows]) return;
  const int32_t from = t.slot<const int32_t>(2)[i];
  const Row before = t.slot<const Row>(3)[from];
  Row& row = t.slot<Row>(8)[i];
  row = {token < 0 ? 0 : token, i, before.position + 1, {}};
  for (int axis = 0; axis < 3; ++axis) row.rotary[axis] = before.rotary[axis] + 1;
  Sequence& s = t.slot<Sequence>(9)[i];
  s = {};
  s.page_table = t.slot<const Sequence>(4)[i].page_table;
  s.first_row = i;
  s.n_rows = 1;
  s.start = row.position;
  t.slot<int32_t>(10)[i] = from;
  t.slot<DrawRow>(11)[i] = {draw.reply, draw.position + 1, draw.n_counted};
}

constexpr KernelEntry kEntries[] = {
    {"round_rows", round_rows, 1},
    {"verdict", verdict, 1},
    {"absorb_rows", absorb_rows, 1},
    {"keep_streams_bf16", keep_streams<bfloat16>, 1},
    {"keep_streams_f32", keep_streams<float>, 1},
    {"draft_rows", draft_rows, 1},
};

}  // namespace

KernelList round_kernels() { return {kEntries, sizeof kEntries / sizeof *kEntries}; }

}  // namespace flashnext::cpu::FLASHNEXT_PATH
