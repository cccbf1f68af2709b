#include "device/cpu/fault_plan.h"

#include <utility>

namespace flashnext::cpu {

void FaultPlan::fail_dispatch(std::string kernel, uint64_t n, std::string what) {
  const std::lock_guard lock(mutex_);
  kernel_ = std::move(kernel);
  what_ = std::move(what);
  dispatches_left_ = n;
  dispatches_ = n > 0;
}

void FaultPlan::fail_allocation(uint64_t n) {
  const std::lock_guard lock(mutex_);
  allocations_left_ = n;
  allocations_ = n > 0;
}

void FaultPlan::clear() {
  const std::lock_guard lock(mutex_);
  dispatches_ = allocations_ = false;
}

int FaultPlan::n_planted() const { return dispatches_ + allocations_; }

std::optional<std::string> FaultPlan::at_dispatch(std::string_view kernel) {
  const std::lock_guard lock(mutex_);
  if (!dispatches_ || kernel != kernel_ || --dispatches_left_ > 0) return std::nullopt;
  dispatches_ = false;
  return what_;
}

bool FaultPlan::count_allocation() {
  const std::lock_guard lock(mutex_);
  if (!allocations_ || --allocations_left_ > 0) return false;
  allocations_ = false;
  return true;
}

}  // namespace flashnext::cpu
