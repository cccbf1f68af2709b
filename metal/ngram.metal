// ngram_ids, ngram_gather, ple_gate: the hashed n-gram embedding and its gate on the streams; ple_conv of
// conv.metal adds it to them.
//
//   row ids: mix_n = xor over s < n of b_s * m_s; head h of order n reads mix_n mod size_h + offset_h
//   k = rms_D(W_key e), q = rms_D(h), s_j = <k_j, q_j> / sqrt(D)
//   a_j = sigmoid(sign(s_j) * sqrt(max(|s_j|, 1e-6))), U = (a_j v), N = rms_D(U)
//
// ngram_ids: 0 counts, 1 sequences, 2 rows, 3 multipliers int64[ngram], 4 sizes, 5 offsets int64[H], 6 ids
// uint32[R, H], 7 NgramIdsParams. Grid (sequences), a thread a row. Settles the token tail, also at marks. 2
// <= ngram <= 8. ngram_gather: 0 counts, 1 ids uint32[R, H], 2 shards uint64[n, 3], 3 out T[R, H *
// row_width], 4 NgramGatherParams. Grid (R), a thread an element. ple_gate: 0 counts, 1 key T[R, W], 2 value
// T[R, D], 3 streams T[R, W], 4 gamma_key, 5 gamma_query, 6 gamma_conv float[W], 7 gated T[R, W], 8 normed
// T[R, W], 9 PleGateParams. Grid (R). Thread t takes values t, t + kRowThreads, ...; then add_threads. A NaN
// reaches U and N of its own row and stream.
//
// kRowThreads threads everywhere.
#include "metal/lib/math.h"
#include "metal/lib/product.h"

FLASHNEXT_CONSTANT int kMaxNgram = 8;

[[kernel, max_total_threads_per_threadgroup(kRowThreads)]] void ngram_ids(
    device const Counts* counts [[buffer(0)]],
    device const Sequence* sequences [[buffer(1)]],
    device const Row* rows [[buffer(2)]],
    device const long* multipliers [[buffer(3)]],
    device const long* sizes [[buffer(4)]],
    device const long* offsets [[buffer(5)]],
    device uint* ids [[buffer(6)]],
    constant NgramIdsParams& p [[buffer(7)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  threadgroup int tail[kMaxNgram];  // the settled one, oldest first
  if (int(tgid.x) >= counts->n[kCountSequences]) return;
  device const Sequence& seq = sequences[tgid.x];
  device const Row* own = rows + seq.first_row;
  const int n_back = int(p.ngram) - 1, n_rows = seq.n_rows;
  device int* state = at<int>(seq.state, p.state_offset);
  if (int(tid) < n_back) {
    const int from = int(tid) + seq.n_kept;
    tail[tid] = from < n_back ? state[from] : at<const int>(seq.kept, p.unsettled_offset)[from - n_back];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
  for (int r = int(tid); r < n_rows; r += kRowThreads) {
    ulong mix = ulong(own[r].token) * ulong(multipliers[0]);
    device uint* out = ids + ulong(seq.first_row + r) * (n_back * p.heads_per_ngram);
    bool stopped = false;
    for (int s = 1; s <= n_back; s++) {
      const int token = r >= s ? own[r - s].token : tail[n_back + r - s];
      stopped = stopped || token == p.segment_token;
      mix ^= ulong(stopped ? p.segment_token : token) * ulong(multipliers[s]);
      for (uint h = (s - 1) * p.heads_per_ngram; h < s * p.heads_per_ngram; h++) {
        out[h] = uint(mix % ulong(sizes[h]) + ulong(offsets[h]));
      }
    }
    if (seq.is_window) at<int>(seq.unsettled, p.unsettled_offset)[r] = own[r].token;
  }
  if (int(tid) >= n_back) return;
  device const Mark* marks = at<const Mark>(seq.marks);
  for (int m = 0; m <= seq.n_marks; m++) {
    const bool is_mark = m < seq.n_marks;
    // The sequence's own tail a window leaves settled, a prompt chunk moved on.
    const int from = int(tid) + (is_mark ? marks[m].n_rows : seq.is_window ? 0 : n_rows);
    device int* to = is_mark ? at<int>(marks[m].state, p.state_offset) : state;
    to[tid] = from < n_back ? tail[from] : own[from - n_back].token;
  }
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kRowThreads)]] void ngram_gather(
    device const Counts* counts [[buffer(0)]],
    device const uint* ids [[buffer(1)]],
    device const ulong* shards [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant NgramGatherParams& p [[buffer(4)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  if (int(tgid.x) >= counts->n[kCountRows]) return;
  const ulong first = ulong(tgid.x) * p.n_heads;
  for (uint i = tid; i < p.n_heads * p.row_width; i += kRowThreads) {
    const uint id = ids[first + i / p.row_width];
    device const ulong* shard = shards + ulong(id / p.rows_per_shard) * 3;
    const Stored table = stored(at<const uchar>(shard[0]), at<const bfloat>(shard[1]),
                                at<const bfloat>(shard[2]), p.format, p.row_width);
    out[first * p.row_width + i] = T(weight(table, id % p.rows_per_shard, i % p.row_width) * p.scale);
  }
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kRowThreads)]] void ple_gate(
    device const Counts* counts [[buffer(0)]],
    device const T* key [[buffer(1)]],
    device const T* value [[buffer(2)]],
    device const T* streams [[buffer(3)]],
    device const float* gamma_key [[buffer(4)]],
    device const float* gamma_query [[buffer(5)]],
    device const float* gamma_conv [[buffer(6)]],
    device T* gated [[buffer(7)]],
    device T* normed [[buffer(8)]],
    constant PleGateParams& p [[buffer(9)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  constexpr uint n_sg = kRowThreads / kSimdLanes;
  threadgroup float parts[4][n_sg];
  if (int(tgid.x) >= counts->n[kCountRows]) return;
  const uint D = p.hidden;
  device const T* v = value + ulong(tgid.x) * D;
  for (uint s = 0; s < p.hc_count; s++) {
    const ulong here = (ulong(tgid.x) * p.hc_count + s) * D, of_stream = ulong(s) * D;
    const float k2 = add_threads(squares(key + here, D, tid, kRowThreads), parts[0], lane, sg, n_sg);
    const float q2 = add_threads(squares(streams + here, D, tid, kRowThreads), parts[1], lane, sg, n_sg);
    const float inverse_k = inverse_rms(k2, D, p.eps), inverse_q = inverse_rms(q2, D, p.eps);
    float product = 0;
    for (uint i = tid; i < D; i += kRowThreads) {
      const float k = float(key[here + i]) * inverse_k * gamma_key[of_stream + i];
      const float q = float(streams[here + i]) * inverse_q * gamma_query[of_stream + i];
      product = fma(k, q, product);
    }
    const float score = add_threads(product, parts[2], lane, sg, n_sg) / precise::sqrt(float(D));
    const float magnitude = fabs(score);
    const float root = precise::sqrt(magnitude > 1e-6 ? magnitude : isnan(score) ? score : 1e-6);
    const float gate = sigmoid(score > 0 ? root : score < 0 ? -root : score == 0 ? 0.0 : score);
    float square = 0;
    for (uint i = tid; i < D; i += kRowThreads) {
      const float u = gate * float(v[i]);
      gated[here + i] = T(u);
      square = fma(u, u, square);
    }
    const float inverse = inverse_rms(add_threads(square, parts[3], lane, sg, n_sg), D, p.eps);
    for (uint i = tid; i < D; i += kRowThreads) {
      normed[here + i] = T(gate * float(v[i]) * inverse * gamma_conv[of_stream + i]);
    }
  }
}

template [[host_name("ngram_gather_bf16")]] [[kernel]] decltype(ngram_gather<bfloat>) ngram_gather<bfloat>;
template [[host_name("ngram_gather_f32")]] [[kernel]] decltype(ngram_gather<float>) ngram_gather<float>;
template [[host_name("ple_gate_bf16")]] [[kernel]] decltype(ple_gate<bfloat>) ple_gate<bfloat>;
template [[host_name("ple_gate_f32")]] [[kernel]] decltype(ple_gate<float>) ple_gate<float>;
