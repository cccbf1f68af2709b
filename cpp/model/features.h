// What a picture or a video shows the text model: rows that stand in for embeddings.
#pragma once

#include <memory>
#include <span>

#include "model/model.h"

namespace flashnext {

// T[n, D] on the device. Whoever has it read by a pass keeps it until that has landed.
class Features : public std::enable_shared_from_this<Features> {
 public:
  // values: float32[n, D] with n > 0, rounded to the activation type. Throws InvalidArgument for another
  // number of them, or OutOfMemory.
  Features(std::shared_ptr<const Model> model, std::span<const float> values);

  const Model* model() const { return model_.get(); }
  int n() const { return n_; }
  uint64_t address(int row) const;

 private:
  std::shared_ptr<const Model> model_;
  int n_;
  BufferRef rows_;
};

using FeaturesRef = std::shared_ptr<const Features>;

}  // namespace flashnext
