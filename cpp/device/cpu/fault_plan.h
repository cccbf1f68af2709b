// Tests: failures that are planted in a CPU device.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace flashnext::cpu {

// Of each kind at most one failure is planted; it happens once. Any thread may plant and ask. While nothing
// is planted, asking is one load.
class FaultPlan {
 public:
  // The n-th dispatch of this kernel from now on (1: the next) fails with this text instead of running.
  void fail_dispatch(std::string kernel, uint64_t n, std::string what);
  // The n-th allocation from now on fails.
  void fail_allocation(uint64_t n);
  // Nothing fails any more.
  void clear();
  // What is planted and has not happened.
  int n_planted() const;

  bool any_dispatch() const { return dispatches_.load(std::memory_order_relaxed); }
  // Counts a dispatch; the text with which it fails.
  std::optional<std::string> at_dispatch(std::string_view kernel);
  // Counts an allocation; whether it fails.
  bool at_allocation() { return allocations_.load(std::memory_order_relaxed) && count_allocation(); }

 private:
  bool count_allocation();

  std::atomic<bool> dispatches_{false}, allocations_{false};  // whether one is planted
  mutable std::mutex mutex_;
  std::string kernel_, what_;
  uint64_t dispatches_left_ = 0, allocations_left_ = 0;
};

}  // namespace flashnext::cpu
