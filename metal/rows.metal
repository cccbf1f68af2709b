// embed, embed_media, copy_rows: moving rows in and out of the model.
//
// embed: 0 counts, 1 rows Row[R], 2..4 codes, scales, biases [vocab, D], 5 streams T[R, W], 6 EmbedParams.
// Each stream gets the token's embedding row. embed_media: 0 counts, 1 features ulong[R] (address of T[D]; 0:
// none), 2 streams T[R, W], 3 EmbedMediaParams. A row with a feature gets it in each stream. copy_rows: 0
// counts, 1 map int32[N], 2 source T[.., width], 3 out T[N, width], 4 CopyRowsParams.
//
// Grid (rows), kRowThreads threads, a thread an element. No sums; NaN is copied like any value.
#include "metal/lib/product.h"

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kRowThreads)]] void embed(
    device const Counts* counts [[buffer(0)]],
    device const Row* rows [[buffer(1)]],
    device const uchar* codes [[buffer(2)]],
    device const bfloat* scales [[buffer(3)]],
    device const bfloat* biases [[buffer(4)]],
    device T* streams [[buffer(5)]],
    constant EmbedParams& p [[buffer(6)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  if (int(tgid.x) >= counts->n[kCountRows]) return;
  const Stored table = stored(codes, scales, biases, p.format, p.hidden);
  const ulong token = ulong(rows[tgid.x].token);
  device T* out = streams + ulong(tgid.x) * p.hc_count * p.hidden;
  for (uint i = tid; i < p.hidden; i += kRowThreads) {
    const T value = T(weight(table, token, i));
    for (uint s = 0; s < p.hc_count; s++) out[ulong(s) * p.hidden + i] = value;
  }
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kRowThreads)]] void embed_media(
    device const Counts* counts [[buffer(0)]],
    device const ulong* features [[buffer(1)]],
    device T* streams [[buffer(2)]],
    constant EmbedMediaParams& p [[buffer(3)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  if (int(tgid.x) >= counts->n[kCountRows] || features[tgid.x] == 0) return;
  device const T* from = at<const T>(features[tgid.x]);
  device T* out = streams + ulong(tgid.x) * p.hc_count * p.hidden;
  for (uint i = tid; i < p.hidden; i += kRowThreads) {
    const T value = from[i];
    for (uint s = 0; s < p.hc_count; s++) out[ulong(s) * p.hidden + i] = value;
  }
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kRowThreads)]] void copy_rows(
    device const Counts* counts [[buffer(0)]],
    device const int* map [[buffer(1)]],
    device const T* source [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant CopyRowsParams& p [[buffer(4)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  if (int(tgid.x) >= counts->n[p.count]) return;
  device const T* from = source + ulong(map[tgid.x]) * p.width;
  device T* to = out + ulong(tgid.x) * p.width;
  for (uint i = tid; i < p.width; i += kRowThreads) to[i] = from[i];
}

template [[host_name("embed_bf16")]] [[kernel]] decltype(embed<bfloat>) embed<bfloat>;
template [[host_name("embed_f32")]] [[kernel]] decltype(embed<float>) embed<float>;
template [[host_name("embed_media_bf16")]] [[kernel]] decltype(embed_media<bfloat>) embed_media<bfloat>;
template [[host_name("embed_media_f32")]] [[kernel]] decltype(embed_media<float>) embed_media<float>;
template [[host_name("copy_rows_bf16")]] [[kernel]] decltype(copy_rows<bfloat>) copy_rows<bfloat>;
template [[host_name("copy_rows_f32")]] [[kernel]] decltype(copy_rows<float>) copy_rows<float>;
