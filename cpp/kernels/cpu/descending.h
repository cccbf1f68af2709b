// Candidates in the sampler's order, sorted only as far as they are wanted.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "metal/params.h"

namespace flashnext::cpu::FLASHNEXT_PATH {

// Values in descending order, ties to the lower id: in buckets by the upper bits of their keys, each sorted
// when it is reached.
class Descending {
 public:
  struct Entry {
    uint32_t key;  // ascending where values descend
    int32_t id;
  };

  // memory: worker scratch for kMaxDrawn entries.
  explicit Descending(std::byte* memory)
      : gathered_(reinterpret_cast<Entry*>(memory)),
        sorted_(gathered_ + kMaxDrawn),
        starts_(reinterpret_cast<uint32_t*>(sorted_ + kMaxDrawn)),
        digits_(starts_ + kBuckets + 1) {}

  // Behind it in the worker's scratch.
  std::byte* end() const { return reinterpret_cast<std::byte*>(digits_ + kDigits); }

  void clear() { n_ = 0; }
  uint32_t size() const { return n_; }
  void add(float value, int32_t id) { gathered_[n_++] = {key_of(value), id}; }  // ids ascending

  // All have been added; none is sorted.
  void start() {
    n_sorted_ = bucket_ = 0;
    uint32_t low = ~0u, high = 0;
    for (uint32_t i = 0; i < n_; ++i) {
      low = gathered_[i].key < low ? gathered_[i].key : low;
      high = gathered_[i].key > high ? gathered_[i].key : high;
    }
    low_ = low;
    shift_ = 0;
    if (n_ <= kFew) {  // one bucket
      shift_ = 32;
      n_buckets_ = 1;
      starts_[0] = 0;
      starts_[1] = n_;
      std::memcpy(sorted_, gathered_, n_ * sizeof(Entry));
      return;
    }
    while ((high - low) >> shift_ >= kBuckets) ++shift_;
    n_buckets_ = ((high - low) >> shift_) + 1;
    std::memset(starts_, 0, (n_buckets_ + 1) * sizeof *starts_);
    for (uint32_t i = 0; i < n_; ++i) ++starts_[((gathered_[i].key - low) >> shift_) + 1];
    for (uint32_t b = 1; b < n_buckets_; ++b) starts_[b + 1] += starts_[b];
    for (uint32_t i = 0; i < n_; ++i) sorted_[starts_[(gathered_[i].key - low) >> shift_]++] = gathered_[i];
    std::memmove(starts_ + 1, starts_, n_buckets_ * sizeof *starts_);  // each start has become its end
    starts_[0] = 0;
  }

  // Sorts on until at least n are, or all; returns how many are.
  uint32_t sort_to(uint32_t n) {
    for (; n_sorted_ < n && bucket_ < n_buckets_; ++bucket_) {
      sort(starts_[bucket_], starts_[bucket_ + 1]);
      n_sorted_ = starts_[bucket_ + 1];
    }
    return n_sorted_;
  }

  float value(uint32_t i) const { return value_of(sorted_[i].key); }
  int32_t id(uint32_t i) const { return sorted_[i].id; }

 private:
  static constexpr uint32_t kBuckets = 4096, kDigits = 1024, kDigitBits = 10, kFew = 32;

  static uint32_t key_of(float x) {
    const auto u = std::bit_cast<uint32_t>(x + 0.0f);  // -0 is 0
    return u >> 31 ? u : 0x7fffffffu - u;
  }
  static float value_of(uint32_t key) { return std::bit_cast<float>(key >> 31 ? key : 0x7fffffffu - key); }

  void sort(uint32_t begin, uint32_t end) {
    if (end - begin <= kFew) {
      for (uint32_t i = begin + 1; i < end; ++i) {
        const Entry e = sorted_[i];
        uint32_t j = i;
        for (; j > begin && sorted_[j - 1].key > e.key; --j) sorted_[j] = sorted_[j - 1];
        sorted_[j] = e;
      }
      return;
    }
    // By digits from the lowest, each time stable; what was gathered is not needed any more.
    Entry *from = sorted_ + begin, *to = gathered_ + begin;
    const uint32_t n = end - begin;
    for (uint32_t at = 0; at < shift_; at += kDigitBits) {
      std::memset(digits_, 0, kDigits * sizeof *digits_);
      for (uint32_t i = 0; i < n; ++i) ++digits_[digit(from[i], at)];
      for (uint32_t d = 0, sum = 0; d < kDigits; ++d) {
        const uint32_t here = digits_[d];
        digits_[d] = sum;
        sum += here;
      }
      for (uint32_t i = 0; i < n; ++i) to[digits_[digit(from[i], at)]++] = from[i];
      Entry* const was = from;
      from = to;
      to = was;
    }
    if (from != sorted_ + begin) std::memcpy(sorted_ + begin, from, n * sizeof(Entry));
  }
  uint32_t digit(const Entry& e, uint32_t at) const {
    const uint32_t below = (e.key - low_) & ((1u << shift_) - 1);
    return below >> at & (kDigits - 1);
  }

  Entry *gathered_, *sorted_;
  uint32_t *starts_, *digits_;
  uint32_t n_ = 0, n_sorted_ = 0, n_buckets_ = 0, bucket_ = 0, low_ = 0, shift_ = 0;
};

}  // namespace flashnext::cpu::FLASHNEXT_PATH
