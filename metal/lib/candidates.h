// Candidates in the sampler's order (value descending, then id), a sorted chunk at a time.
//
// A chunk is found without sorting what lies behind it: the place of its last candidate is sought digit by
// digit, by histograms over all ids behind the chunk before; then its candidates are gathered and sorted in
// threadgroup memory. Blocks of ids whose largest value is below a floor are left out.
#pragma once

#include "metal/lib/draw.h"

FLASHNEXT_CONSTANT uint kChunkIds = 1024;
FLASHNEXT_CONSTANT uint kIdBits = 0xffffff;  // ids are below 2^24
FLASHNEXT_CONSTANT uint kPickSimdgroups = kPickThreads / kSimdLanes;

// Ascending where values descend; -0 is 0.
METAL_FUNC uint key_of(float x) {
  const uint u = as_type<uint>(x + 0.0f);
  return u >> 31 ? u : 0x7fffffffu - u;
}
METAL_FUNC float value_of(uint key) { return as_type<float>(key >> 31 ? key : 0x7fffffffu - key); }

struct ChunkMemory {
  threadgroup uint* keys;              // kChunkIds
  threadgroup uint* ids;               // kChunkIds
  threadgroup atomic_uint* histogram;  // 256
  threadgroup uint* parts;             // kPickSimdgroups
  threadgroup uint* chosen;            // 3
  threadgroup atomic_uint* n;          // 1
};

// What is walked: values are Values::of(id), of a block at most Values::most(block); below floor, or NaN,
// they are no candidates.
template <typename Values>
struct Candidates {
  Values values;
  ChunkMemory s;
  float floor;
  uint n_valid, tid, lane, sg;
  uint last_key, last_id;  // the last candidate of the chunk before
  bool begun;

  // Whether an id is a candidate behind the last chunk, and its key.
  METAL_FUNC bool is_left(uint id, thread uint& key) const {
    if (id >= n_valid) return false;
    const float value = values.of(id);
    key = key_of(value);
    return value >= floor && (!begun || key > last_key || (key == last_key && id > last_id));
  }

  // Candidates behind the last chunk whose key and id agree with a prefix, by a digit.
  METAL_FUNC void count(uint key, uint key_mask, uint id, uint id_mask, bool of_key, uint shift) const {
    if (tid < 256) atomic_store_explicit(s.histogram + tid, 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint first = 0; first < n_valid; first += kSamplerBlock) {
      if (!(values.most(first / kSamplerBlock) >= floor)) continue;
      const uint i = first + tid;
      uint k = 0;
      if (!is_left(i, k) || (k & key_mask) != key || (i & id_mask) != id) continue;
      atomic_fetch_add_explicit(s.histogram + ((of_key ? k : i) >> shift & 255), 1u, memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  // The next chunk of at most `most` candidates, sorted in s.keys and s.ids; returns how many, 0 where none
  // are left above the floor. All threads arrive, and find the memory ready.
  METAL_FUNC uint next(uint most) {
    uint key = 0, key_mask = 0, id = 0, id_mask = 0, left = most, n = most;
    for (uint digit = 0; digit < 7; digit++) {
      const bool of_key = digit < 4;
      const uint shift = 8 * (of_key ? 3 - digit : 6 - digit);
      count(key, key_mask, id, id_mask, of_key, shift);
      const uint mine = tid < 256 ? atomic_load_explicit(s.histogram + tid, memory_order_relaxed) : 0;
      const Count c = count_threads(mine, s.parts, lane, sg, kPickSimdgroups);
      if (digit == 0 && c.all <= most) {  // all that there are
        key = key_mask = id = id_mask = 0;
        n = c.all;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        break;
      }
      if (c.before < left && left <= c.before + mine) {
        s.chosen[0] = tid;
        s.chosen[1] = left - c.before;
        s.chosen[2] = mine;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      (of_key ? key : id) |= s.chosen[0] << shift;
      (of_key ? key_mask : id_mask) |= 255u << shift;
      left = s.chosen[1];
      if (left == s.chosen[2]) break;  // the chunk ends with this prefix
    }
    gather(key | ~key_mask, key_mask == ~0u ? id | (~id_mask & kIdBits) : ~0u);
    sort(n);
    if (n) {
      last_key = s.keys[n - 1];
      last_id = s.ids[n - 1];
      begun = true;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return n;
  }

  // All candidates behind the last chunk, up to the end.
  METAL_FUNC void gather(uint end_key, uint end_id) const {
    if (tid == 0) atomic_store_explicit(s.n, 0u, memory_order_relaxed);
    s.keys[tid] = s.ids[tid] = ~0u;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint first = 0; first < n_valid; first += kSamplerBlock) {
      if (!(values.most(first / kSamplerBlock) >= floor)) continue;
      const uint i = first + tid;
      uint k = 0;
      if (!is_left(i, k) || k > end_key || (k == end_key && i > end_id)) continue;
      const uint place = atomic_fetch_add_explicit(s.n, 1u, memory_order_relaxed);
      s.keys[place] = k;
      s.ids[place] = i;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  // Sorts the first n, behind which the memory holds ~0: bitonic, a thread a pair.
  METAL_FUNC void sort(uint n) const {
    uint size = 1;
    while (size < n) size *= 2;
    for (uint run = 2; run <= size; run *= 2) {
      for (uint apart = run / 2; apart > 0; apart /= 2) {
        const uint a = tid / apart * 2 * apart + tid % apart, b = a + apart;
        if (b < size) {
          const uint key_a = s.keys[a], key_b = s.keys[b], id_a = s.ids[a], id_b = s.ids[b];
          const bool wrong = key_a > key_b || (key_a == key_b && id_a > id_b), ascending = (a & run) == 0;
          if (wrong == ascending) {
            s.keys[a] = key_b;
            s.keys[b] = key_a;
            s.ids[a] = id_b;
            s.ids[b] = id_a;
          }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
      }
    }
  }
};

#define FLASHNEXT_CHUNK_MEMORY(name)              \
  threadgroup uint name##_keys[kChunkIds];        \
  threadgroup uint name##_ids[kChunkIds];         \
  threadgroup atomic_uint name##_histogram[256];  \
  threadgroup uint name##_parts[kPickSimdgroups]; \
  threadgroup uint name##_chosen[3];              \
  threadgroup atomic_uint name##_n[1];            \
  const ChunkMemory name = {name##_keys, name##_ids, name##_histogram, name##_parts, name##_chosen, name##_n}
