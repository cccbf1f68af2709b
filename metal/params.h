// Argument structs and table rows that launchers (C++), CPU twins and Metal kernels share.
//
// Plain C++ that Metal's compiler accepts too. Every kernel takes its buffers in slot order, then one struct
// from here; the slots stand above the struct: name, element type, shape. T is the activation type (bfloat16
// or float32), R the rows of the pass, L the rows that want logits, D hidden size, S streams, W = S*D. `in`
// is read, `out` written, `io` both.
#pragma once

#ifdef __METAL_VERSION__
#define FLASHNEXT_CONSTANT constant constexpr
#else
#include <cstdint>
#define FLASHNEXT_CONSTANT constexpr
#endif

namespace flashnext {

FLASHNEXT_CONSTANT int kPageTokens = 64;      // tokens a page holds
FLASHNEXT_CONSTANT int kAttentionSpan = 512;  // absolute positions a partial softmax covers
FLASHNEXT_CONSTANT int kSamplerBlock = 1024;  // token ids a partial sum or maximum of the vocabulary covers
FLASHNEXT_CONSTANT int kMaxWindow = 16;       // rows of a window: the pending token and its drafts
FLASHNEXT_CONSTANT int kMaxDrawn = 252 * kSamplerBlock;  // largest n_valid that tokens are drawn from
FLASHNEXT_CONSTANT int kMaxTop = 20;                     // likeliest ids that log-probabilities list
FLASHNEXT_CONSTANT int kLeastCopy = 3;     // tokens that must agree before what followed is copied as drafts
FLASHNEXT_CONSTANT int kMostMatch = 16;    // of them, beyond which more do not count
FLASHNEXT_CONSTANT int kMaxSliceDim = 96;  // largest head_dim of the vision tower
FLASHNEXT_CONSTANT int kSliceSpan = 128;   // keys of a slice that a partial softmax covers

// How many rows, sequences, logit rows and streams of rows (R*S) the pass really has; grids are upper bounds.
// Index with CountIndex.
enum CountIndex : uint32_t { kCountRows = 0, kCountSequences = 1, kCountLogits = 2, kCountStreams = 3 };
struct Counts {
  int32_t n[4];
};

// One sequence's part of a pass: a prompt chunk or a window.
struct Sequence {
  uint64_t page_table;  // address of uint64 page addresses, one per kPageTokens positions
  uint64_t state;       // address of the recurrent block
  uint64_t kept;        // address of the inputs its window before left unsettled
  uint64_t unsettled;   // address where this window leaves its inputs
  uint64_t marks;       // address of Mark[n_marks], by ascending n_rows
  int32_t first_row;    // its rows are first_row .. first_row + n_rows - 1 of the pass
  int32_t n_rows;       // 0: settle only
  int32_t n_kept;       // rows in `kept` to settle first
  int32_t start;        // position of its first row
  int32_t is_window;    // 1: leave inputs unsettled; 0: a prompt chunk, settle at once
  int32_t n_marks;      // of a prompt chunk; a window has none
};

// A place in a prompt chunk behind which kernels that settle a state also write it to a block of its own, in
// passing: what the chunk reads, leaves and carries on is the same with and without.
struct Mark {
  uint64_t state;  // address of that block, laid out like the sequence's own
  int32_t n_rows;  // behind so many of the sequence's rows, 1 to all of them
  int32_t pad;
};

// One row of a pass.
struct Row {
  int32_t token;
  int32_t sequence;   // index into the sequences
  int32_t position;   // row of its sequence: cache row and page
  int32_t rotary[3];  // rotary position on the t, h and w axes
};

// One reply on the device: how it is drawn, where it stands. The host fills it before the pass that draws the
// first token; from then on the device keeps it, so that a round can be recorded before the one in front of
// it has landed.
struct ReplyState {
  uint64_t page_table;    // as in Sequence
  uint64_t state;         // as in Sequence
  uint64_t unsettled[2];  // by parity of the window
  uint64_t text;          // address of int32[context + 2 * kMaxWindow]: prompt, reply and drafts by position
  uint64_t counts;  // address of int32[2, n_valid]: how often an id occurs in the prompt, in the reply; 0
                    // where nothing is penalized
  uint64_t bias;    // address of BiasEntry[n_bias], by ascending id
  uint64_t stops;   // address of int32[n_stops]: ids that end the reply
  uint64_t masks;   // address of uint32[kMaxWindow, ceil(n_valid / 32)]: the ids that a grammar allows as the
                    // token of position p, in row p modulo kMaxWindow, bit i % 32 of word i / 32; 0: all
  uint64_t seed;
  float temperature;  // as in Sampling (cpp/rounds/sampler.h)
  float top_p, min_p, presence, frequency, repetition;
  int32_t top_k, n_bias, n_stops;
  int32_t n_logprobs;    // -1: none; else how many of the likeliest ids to list
  int32_t end;           // positions of prompt and reply together at which it ends
  int32_t known;         // text below this position is known: drafts come from there first
  int32_t length;        // committed positions; the pending token stands at text[length]
  int32_t parity;        // the unsettled buffer that the next window writes
  int32_t n_kept;        // rows in the other one that the next pass settles
  int32_t n_drafts;      // behind the pending token, in text
  int32_t ended;         // rounds leave it alone
  int32_t has_head;      // the draft head has absorbed all rows but the last
  int32_t copied;        // its drafts are copies of its own text, not the draft head's
  int32_t rotary_delta;  // what its rows' rotary positions, on all axes, are beyond their positions
};
struct BiasEntry {
  int32_t id;
  float value;
};

// A token to draw: the one that takes `position` of a reply. The reply's counts hold the tokens below
// n_counted; those of text[n_counted .. position - 1] count on top of them.
struct DrawRow {
  uint64_t reply;  // address of its ReplyState
  int32_t position, n_counted;
};

// How a matrix [n_out, n_in] is stored: bits 16 is bfloat16 and 32 float32, both without scales and biases
// (those slots are empty); 2, 3, 4, 5, 6, 8 are affine codes in groups of `group` inputs with bfloat16 scales
// and biases.
struct Format {
  uint32_t bits;
  uint32_t group;
};

// embed_T: 0 counts in, 1 rows in Row[R], 2 codes, 3 scales, 4 biases in [vocab, D], 5 streams out T[R, W].
// Grid (R). Each stream gets the token's embedding row.
struct EmbedParams {
  Format format;
  uint32_t hidden, hc_count;
};

// embed_media_T: 0 counts in, 1 features in uint64[R] (address of T[D]; 0: none), 2 streams out T[R, W]. Grid
// (R). A row that shows a picture or a video gets its feature in each stream, in place of its token's
// embedding; the others stay.
struct EmbedMediaParams {
  uint32_t hidden, hc_count;
};

enum Epilogue : uint32_t {
  kStore = 0,     // out T[R, n_out]
  kStoreF32 = 1,  // out float[R, n_out]
  kSilu = 2,      // out T[R, n_out] = silu(alpha * y)
  kSigmoid = 3,   // out float[R, n_out] = beta * sigmoid(alpha * y)
  kResidual = 4,  // io T[R, hc_count * n_out]: stream s += gates[r, s] * round_T(y)
};
// matmul_T: 0 counts in, 1 x in T[R, n_in], 2 codes, 3 scales, 4 biases in [n_out, n_in], 5 out, 6 gates in
// float[R, S] (kResidual only). Grid (ceil(n_out / tile), ceil(R / rows)).
struct MatmulParams {
  Format format;
  uint32_t n_in, n_out;
  uint32_t epilogue;  // Epilogue
  uint32_t count;     // CountIndex
  uint32_t hc_count;  // kResidual
  float alpha, beta;
};

// hc_norm_T: 0 counts in, 1 streams in T[R, W], 2 gamma in float[W], 3 out T[R, W]. Grid (R, S).
struct HcNormParams {
  uint32_t hidden, hc_count;
  uint32_t count;  // CountIndex
  float eps;
};

// hc_mix_T: 0 counts in, 1 low in T[R, rank], 2 codes, 3 scales, 4 biases in [W, rank], 5 normed in T[R, W],
// 6 out T[R, D]. Grid (ceil(D / tile), ceil(R / rows)). out = mean over streams of sigmoid(W_up low) *
// normed.
struct HcMixParams {
  Format format;
  uint32_t hidden, hc_count, rank;
  uint32_t count;  // CountIndex
};

// ngram_ids: 0 counts in, 1 sequences in, 2 rows in, 3 multipliers in int64[ngram], 4 sizes in int64[H], 5
// offsets in int64[H], 6 ids out uint32[R, H], H = (ngram - 1) * heads_per_ngram. Grid (sequences). Settles
// the token tail, also at marks.
struct NgramIdsParams {
  uint32_t ngram, heads_per_ngram;
  int32_t segment_token;
  uint32_t state_offset;      // bytes into the recurrent block: int32[ngram - 1], oldest first
  uint32_t unsettled_offset;  // bytes into the unsettled inputs: int32[rows]
};

// ngram_gather_T: 0 counts in, 1 ids in uint32[R, H], 2 shards in uint64[n_shards, 3] (addresses of codes,
// scales, biases), 3 out T[R, H * row_width]. Grid (R).
struct NgramGatherParams {
  Format format;
  uint32_t n_heads, rows_per_shard, row_width;
  float scale;  // multiplies looked-up rows (1 unless the file says otherwise)
};

// ple_gate_T: 0 counts in, 1 key in T[R, W], 2 value in T[R, D], 3 streams in T[R, W], 4 gamma_key, 5
// gamma_query, 6 gamma_conv in float[W], 7 gated out T[R, W] (U), 8 normed out T[R, W] (N). Grid (R).
struct PleGateParams {
  uint32_t hidden, hc_count;
  float eps;
};

// ple_conv_T: 0 counts in, 1 sequences in, 2 normed in T[R, W], 3 gated in T[R, W], 4 taps in float[n_taps,
// W], 5 streams io T[R, W]. Grid (sequences, ceil(W / tile)). Settles its tail, also at marks: T[(n_taps -
// 1) * dilation, W], oldest first.
struct PleConvParams {
  uint32_t width, n_taps, dilation;
  uint32_t state_offset, unsettled_offset;  // unsettled: T[rows, W]
};

// delta_conv_T: 0 counts in, 1 sequences in, 2 x in T[R, C], 3 taps in float[n_taps, C], 4 out T[R, C] =
// silu(conv). Grid (sequences, ceil(C / tile)). Settles its tail, also at marks: T[n_taps - 1, C], oldest
// first.
struct DeltaConvParams {
  uint32_t channels, n_taps;
  uint32_t state_offset, unsettled_offset;  // unsettled: T[rows, C]
};

// delta_prep_T: 0 counts in, 1 conv in T[R, 2*Hk*Dk + Hv*Dv] (q | k | v), 2 b in float[R, Hv], 3 a in
// float[R, Hv], 4 rate in float[Hv] (exp(A_log)), 5 dt_bias in float[Hv], 6 q out float[R, Hk*Dk], 7 k out
// float[R, Hk*Dk], 8 beta out float[R, Hv], 9 decay out float[R, Hv]. Grid (R).
struct DeltaPrepParams {
  uint32_t k_heads, v_heads, k_dim, v_dim;
};

// delta_rule_T: 0 counts in, 1 sequences in, 2 q, 3 k in float[R, Hk*Dk], 4 conv in T[R, ...] (v is its last
// Hv*Dv columns), 5 beta, 6 decay in float[R, Hv], 7 z in T[R, Hv*Dv], 8 norm in float[Dv], 9 out T[R,
// Hv*Dv]. Grid (sequences, Hv). Settles M, also at marks: float[Hv, Dk, Dv].
struct DeltaRuleParams {
  uint32_t k_heads, v_heads, k_dim, v_dim;
  uint32_t gate_silu;  // 0: sigmoid(z), 1: silu(z)
  float eps;
  uint32_t state_offset;  // bytes into the recurrent block
  // bytes into the unsettled inputs: float[rows, Hk*Dk], T[rows, Hv*Dv], float[rows, Hv], float[rows, Hv]
  uint32_t k_offset, v_offset, beta_offset, decay_offset;
};

// rope: 0 counts in, 1 sequences in, 2 rows in, 3 inv_freq in float[half_dim], 4 cos, 5 sin out float[R,
// half_dim]. Grid (R). Also writes the row's rotary positions into its page: int32[kPageTokens, 3].
struct RopeParams {
  uint32_t half_dim;
  uint32_t section[3];
  float attention_factor;  // multiplies cos and sin (YaRN)
  uint32_t rotary_offset;  // bytes into a page
};

// attention_prep_T: 0 counts in, 1 sequences in, 2 rows in, 3 qg in T[R, H*2*head_dim] (per head: query,
// gate), 4 k in T[R, Hkv*head_dim], 5 v in T[R, Hkv*head_dim], 6 index_qk in T[R, (Hi+1)*index_dim], 7
// gamma_q, 8 gamma_k in float[head_dim], 9 gamma_index_q in float[index_dim], 10 cos, 11 sin in float[R,
// half_dim], 12 q out T[R, H*head_dim], 13 index_q out T[R, Hi*index_dim]. Grid (R). Writes k, v and the raw
// index key into the row's page.
struct AttentionPrepParams {
  uint32_t n_heads, n_kv_heads, head_dim, half_dim;
  uint32_t index_n_heads, index_dim;
  float eps;
  // bytes into a page: T[Hkv, kPageTokens, head_dim] twice, T[kPageTokens, index_dim]
  uint32_t k_offset, v_offset, raw_offset;
};

// index_pool_T: 0 counts in, 1 sequences in, 2 rows in, 3 gamma in float[index_dim], 4 inv_freq in
// float[half_dim]. Grid (R). A row that completes a block of `ratio` positions writes the block's pooled key
// into the page.
struct IndexPoolParams {
  uint32_t index_dim, ratio, half_dim;
  uint32_t section[3];
  float attention_factor, eps;
  uint32_t raw_offset, pooled_offset,
      rotary_offset;  // bytes into a page; pooled: T[kPageTokens / ratio, index_dim]
};

// index_score_T: 0 counts in, 1 sequences in, 2 rows in, 3 index_q in T[R, Hi*index_dim], 4 scores out
// float[G, stride]. Grid (ceil(max_blocks / tile), G): G rows from first_row on. Rows whose blocks all fit
// the budget do nothing.
struct IndexScoreParams {
  uint32_t index_n_heads, index_dim, ratio, budget_blocks;
  uint32_t first_row, stride;
  uint32_t pooled_offset;
};

// index_select: 0 counts in, 1 rows in, 2 scores in float[G, stride], 3 blocks out int32[R, budget_blocks], 4
// n_selected out int32[R]. Grid (G). Blocks come out by ascending id; ties at the cut go to the lower id.
struct IndexSelectParams {
  uint32_t ratio, budget_blocks;
  uint32_t first_row, stride;
};

// attention_T: 0 counts in, 1 sequences in, 2 rows in, 3 q in T[R, H*head_dim], 4 qg in T[R, H*2*head_dim], 5
// blocks in int32[R, budget_blocks], 6 n_selected in int32[R], 7 out T[R, H*head_dim]. Grid (R, Hkv * ceil(H
// / Hkv / tile)); a tile of heads never spans two kv heads.
struct AttentionParams {
  uint32_t n_heads, n_kv_heads, head_dim;
  uint32_t ratio, budget_blocks;
  float scale;
  uint32_t k_offset, v_offset;
};

// router_topk: 0 counts in, 1 logits in float[R, n_experts], 2 ids out int32[R, top_k] ascending, 3 weights
// out float[R, top_k]. Grid (R). Ties at the cut go to the lower id.
struct RouterParams {
  uint32_t n_experts, top_k;
};

// expert_sort: 0 counts in, 1 ids in int32[R, top_k], 2 active out int32[1 + n_experts] (count, then ids
// ascending), 3 starts out int32[n_experts + 1] (of the active ones), 4 pairs out int32[R * top_k] (row *
// top_k + slot, by expert, then row). Grid (1).

// expert_gate_up_T: 0 counts in, 1 active, 2 starts, 3 pairs in, 4 x in T[R, D], 5 gate codes, 6 gate scales,
// 7 gate biases, 8 up codes, 9 up scales, 10 up biases in [n_experts, width, D], 11 act out T[R * top_k,
// width] in pair order = silu(gate) * up. Grid (ceil(width / tile), active experts). glu_T is the same for
// the shared expert: 0 counts in, 1 x in, 2..4 gate, 5..7 up in [width, D], 8 act out T[R, width]. Grid
// (ceil(width / tile), ceil(R / rows)).
struct GluParams {
  Format format;
  uint32_t n_in, width, top_k;
  uint64_t codes_stride, scales_stride;  // bytes from one expert to the next
};

// expert_down_T: 0 counts in, 1 active, 2 starts, 3 pairs in, 4 weights in float[R, top_k], 5 act in T[R *
// top_k, width], 6 codes, 7 scales, 8 biases in [n_experts, D, width], 9 shared act in T[R, shared_width], 10
// shared codes, 11 shared scales, 12 shared biases in [D, shared_width], 13 shared gate in float[R], 14 gates
// in float[R, S], 15 streams io T[R, W]. Grid (ceil(D / tile), ceil(R / rows)). y = experts by ascending id,
// then the shared one, in fp32, rounded once; stream s += gates[r, s] * y.
struct ExpertDownParams {
  Format format, shared_format;
  uint32_t hidden, width, shared_width, top_k, hc_count;
  uint64_t codes_stride, scales_stride;
};

// copy_rows_T: 0 counts in, 1 map in int32[N], 2 source in T[.., width], 3 out T[N, width]; N as `count`
// says. Grid (N).
struct CopyRowsParams {
  uint32_t width;
  uint32_t count;  // CountIndex
};

// One sequence's part of a round: the host fills the first half of it, round_rows the second. For the last
// chunk of a prompt the host fills all: its last row is a window of one row that is settled already.
struct Window {
  uint64_t reply;        // address of its ReplyState
  int32_t most_rows;     // the pending token and as many drafts as there are, but no more rows than this
  int32_t most_drafts;   // that the draft head makes for the round after
  int32_t is_window;     // 0: the last row of a prompt
  int32_t first_row;     // of the pass
  int32_t n_rows;        // 0: the reply has ended
  int32_t first_logits;  // row of the logits that its first row has
  int32_t start;         // position of its first row
  int32_t most_copied;   // drafts that are copied from its own text instead, where there are any
};

// What a window came to.
struct Landed {
  int32_t n_tokens;  // drawn and kept; the rows kept are as many
  int32_t length;    // positions committed after it
  int32_t parity;    // ReplyState, after it
  int32_t ended;
  int32_t n_verified, n_accepted;  // drafts
  int32_t copied;                  // they were copies
  int32_t first_logits;            // row of the logits that the first token was drawn from
  int32_t n_head, n_copied;        // drafts that were made behind it, by the head or as copies
  int32_t tokens[kMaxWindow];      // -1: all logits were NaN, or a grammar allowed no id
};

// round_rows: 0 windows io Window[n_windows], 1 counts out Counts, 2 sequences out Sequence[n_windows], 3
// rows out Row[R], 4 logit rows out int32[R], 5 draws out DrawRow[R]. Grid (1). Packs the windows of the
// replies that have not ended, each its pending token and its drafts; every row wants logits.
struct RoundRowsParams {
  uint32_t n_windows;
};

// verdict: 0 windows in Window[n_windows], 1 drawn in int32[L], 2 landed out Landed[n_windows], 3 replies out
// uint64[n_windows], 4 limits out int32[n_windows], 5 counts out Counts: of copy_drafts. Grid (1). Keeps the
// drafts that are what was drawn and one token more, and moves the replies on.
struct VerdictParams {
  uint32_t n_windows;
  uint32_t n_valid;  // ids that counts are kept of
};

// absorb_rows: 0 windows in Window[n_windows], 1 landed io Landed[n_windows], 2 n_copied in int32[n_windows],
// empty where nothing was; for the draft head, empty without one: 3 counts out Counts[n_steps], 4 sequences
// out Sequence[n_windows], 5 rows out Row[R], 6 sources out int32[R], 7 logit rows out int32[n_windows], 8
// draws out DrawRow[n_windows], 9 replies out uint64[n_windows], 10 last rows out int32[n_windows]. Grid (1).
// Gives the replies their copied drafts, and packs the rows that the head absorbs. Its sequences stand by how
// many tokens they draft, descending, then in order, so that those of a step are the first ones of the step
// before; those with copies draft none.
struct AbsorbRowsParams {
  uint32_t n_windows;
  uint32_t n_steps;   // of the draft head
  uint32_t hc_count;  // streams of a row
};

// keep_streams_T: 0 counts in, 1 replies in uint64[L], 2 last rows in int32[L], 3 streams in T[R, W]. Grid
// (sequences). The streams of the last row of each go to its recurrent block.
struct KeepStreamsParams {
  uint32_t width;
  uint32_t state_offset;  // bytes into the recurrent block
};

// draft_rows: of a step of the draft head: 0 counts in, 1 drafted in int32[L], 2 logit rows in int32[L], 3
// rows in Row[R], 4 sequences in Sequence[L], 5 draws in DrawRow[L], 6 replies in uint64[L]; of the next one,
// empty behind the last: 7 counts in, 8 rows out Row[L], 9 sequences out Sequence[L], 10 sources out
// int32[L], 11 draws out DrawRow[L]. Grid (L). Adds what a sequence drafted to its text; its row of the next
// step holds that token, one position on, and goes on from the streams of the row that drafted it.

// copy_drafts: 0 counts in, 1 replies in uint64[L] (addresses of ReplyState), 2 limits in int32[L], 3
// n_copied out int32[L]; L sequences. Grid (L). Drafts from the reply's own text, whose last token is the
// pending one, text[length]: of the earlier places e where text[e - j] = text[length - j] for all j < m,
// those of the largest m (most_match at most, least_match at least), and of them the latest. text[length + 1
// + j] = text[e
// + 1 + j] for j < min(limit, kMaxWindow - 1), in that order, so that a copy from close by runs on into what
// it has written. No such place, a reply that has ended, or one with known text behind the pending token:
// nothing is written, n_copied is 0. Work: 3 comparisons an earlier position, and most_match more where those
// agree.
struct CopyDraftsParams {
  int32_t least_match;  // >= 2; kLeastCopy
  int32_t most_match;   // >= least_match; kMostMatch
};

// The sampler: what tokens a pass draws, equal to `draw` and `logprobs` of cpp/rounds/sampler.h for every
// bit. L rows of logits, one a DrawRow; B = ceil(n_valid / kSamplerBlock) blocks of ids. A value is a logit
// after bias and penalties, and NaN where a grammar does not allow the id, so that it is never drawn; its
// distance is (value - the row's largest value) / temperature, 0 for the largest. Recorded in this order with
// barriers between (cpp/kernels/sampler.h). Rows are drawn in any mixture.
struct DrawParams {
  uint32_t vocab;    // row stride
  uint32_t n_valid;  // ids at or beyond are never drawn
  uint32_t count;    // CountIndex of L
  uint32_t masked;   // whether masks of grammars apply: not to drafts, whose masks are not known yet
};

// draw_max: 0 counts in, 1 draws in DrawRow[L], 2 logits in float[L, vocab], 3 maxima out BlockMax[L, B].
// Grid (ceil(n_valid / tile), L).
struct BlockMax {
  float value;       // largest of the block; -inf where all are NaN
  float logit;       // largest logit
  int16_t numbers;   // ids whose logit is not NaN
  int16_t drawable;  // and those of them that a grammar allows
  uint32_t changed;  // bit g: bias, penalties or a mask apply to an id of the block's 32 from 32 g on
};

// draw_blocks: 0 counts in, 1 draws in, 2 logits in, 3 maxima in, 4 parts out BlockPart[L, B]. Grid
// (ceil(n_valid / tile), L). Of rows whose temperature is not 0 and whose top_k does not cut; else 0 and id
// -1.
struct BlockPart {
  float sum;    // of e^distance by ascending id where top_p is below 1, else 0
  float value;  // the largest distance plus noise of the ids that min_p keeps, if it is not below that of
                // the row's largest value; else 0
  int32_t id;   // its id, the lower one of equals; else -1
};

// draw_pick: 0 counts in, 1 draws in, 2 logits in, 3 maxima in, 4 parts in, 5 out int32[L]: the token, -1
// where all values are NaN. Grid (L).

// logprob_sums: 0 counts in, 1 draws in, 2 logits in, 3 maxima in, 4 sums out float[L, B]. Grid (ceil(n_valid
// / tile), L). Sum of e^(logit - the row's largest) by ascending id; 0 where the reply asks for no
// log-probabilities.

// token_logprobs: 0 counts in, 1 draws in, 2 logits in, 3 maxima in, 4 sums in, 5 tokens in int32[L], 6
// chosen out float[L], 7 top ids out int32[L, kMaxTop], 8 top values out float[L, kMaxTop]. Grid (L). Under
// the unmodified logits, likeliest first, then the lower id; NaN and id -1 for what was not asked for, and
// all NaN where the largest logit is infinite. A token
// of -1 gives NaN.

// logits_hash: 0 counts in, 1 logits in, 2 out uint64[L]. Grid (L). The sum over ids below n_valid of
// splitmix64(id * 2^32 + bits of the logit), modulo 2^64.

// The vision tower. Its rows are patches, float32 with both activation types. P patches of a pass, D' = the
// tower's hidden size; a slice is one picture, or one pair of a video's frames: patches that attend to each
// other. Grids and params say true counts.

// A patch: its place in its slice, and how many rows and columns of patches the slice has.
struct Patch {
  int32_t row, col, n_rows, n_cols;
};

// Patches first_row .. first_row + n_rows - 1 of a pass, which lie in the slice of first_key .. first_key +
// n_keys - 1.
struct SliceTile {
  int32_t first_row, n_rows, first_key, n_keys;
};

// layer_norm: 0 x in float[R, n], 1 weight, 2 bias in float[n], 3 out float[R, n]. Grid (R). out = (x - mean)
// / sqrt(mean((x - mean)^2) + eps) * weight + bias.
struct LayerNormParams {
  uint32_t width;
  float eps;
};

enum LinearFinish : uint32_t {
  kLinearStore = 0,     // out = y
  kLinearGeluTanh = 1,  // out = y * sigmoid(2 * sqrt(2 / pi) * (y + 0.044715 * y^3))
  kLinearGelu = 2,      // out = y * (1 + erf(y / sqrt(2))) / 2
  kLinearAdd = 3,       // out += y
};
// linear: 0 x in float[R, n_in], 1 weight in [n_out, n_in], 2 bias in float[n_out], 3 out float[R, n_out] (io
// for kLinearAdd). Grid (ceil(n_out / tile), ceil(R / rows)). y = x W^T + bias. n_in a multiple of 16.
struct LinearParams {
  uint32_t n_in, n_out, n_rows;
  uint32_t bits;    // of a weight: 16 is bfloat16, 32 float32
  uint32_t finish;  // LinearFinish
};

// patch_place: 0 patches in Patch[R], 1 table in float[side * side, D'], 2 inv_freq in float[quarter], 3 x io
// float[R, D'], 4 cos, 5 sin out float[R, 2 * quarter]. Grid (R). x += the table, whose corners are those of
// the slice, between its four places around the patch; cos and sin of the angles row * inv_freq, then col *
// inv_freq.
struct PatchPlaceParams {
  uint32_t width, side, quarter;
};

// patch_turn: 0 cos, 1 sin in float[R, half_dim], 2 qkv io float[R, 3 * D'] (q | k | v, each n_heads times 2
// * half_dim). Grid (R). Turns q and k, pairing j with j + half_dim.
struct PatchTurnParams {
  uint32_t n_heads, half_dim;
};

// slice_attention: 0 tiles in SliceTile[n], 1 qkv in float[P, 3 * D'], 2 out float[.., D'], whose first row
// is that of patch `first_row`. Grid (n, n_heads). Every patch attends to all of its slice. A slice's tiles
// start at its first patch and have `tile` patches, the last one perhaps fewer.
struct SliceAttentionParams {
  uint32_t n_heads, head_dim;
  uint32_t first_row;
  float scale;
};

}  // namespace flashnext
