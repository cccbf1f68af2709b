#include "model/features.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace flashnext {

Features::Features(std::shared_ptr<const Model> model, std::span<const float> values)
    : model_(std::move(model)) {
  const auto width = static_cast<size_t>(model_->config().hidden_size);
  if (values.empty() || values.size() % width != 0) {
    throw InvalidArgument("features: " + std::to_string(values.size()) + " values, expected rows of " +
                          std::to_string(width));
  }
  n_ = static_cast<int>(values.size() / width);
  const DType dtype = model_->options().dtype;
  rows_ = model_->device()->allocate(values.size() * size_bytes(dtype));
  if (dtype == DType::kBFloat16) {
    std::transform(values.begin(), values.end(), reinterpret_cast<bfloat16*>(rows_->host()), round_bfloat16);
  } else {
    std::copy(values.begin(), values.end(), reinterpret_cast<float*>(rows_->host()));
  }
}

uint64_t Features::address(int row) const {
  const auto width = static_cast<size_t>(model_->config().hidden_size);
  return rows_->address() + static_cast<size_t>(row) * width * size_bytes(model_->options().dtype);
}

}  // namespace flashnext
