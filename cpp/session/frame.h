// Where the rows of a sequence stand on the rotary axes.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace flashnext {

using Axes = std::array<int32_t, 3>;  // t, h and w

// Of a prompt that shows media. Rows behind it stand at their position + delta on all axes. Without a frame a
// row stands at its position. Source: tests/support/reference/media.py (`rope_index`).
class Frame {
 public:
  // rows: of the prompt, from its first on. Throws InvalidArgument for a row that stands before 0 or beyond
  // its own position: media never take more of an axis than they have rows.
  explicit Frame(std::vector<Axes> rows);

  Axes at(int position) const;
  int32_t delta() const { return delta_; }

 private:
  std::vector<Axes> rows_;
  int32_t delta_ = 0;
};

using FrameRef = std::shared_ptr<const Frame>;

// The same for a sequence that may have none.
inline Axes axes_of(const FrameRef& frame, int position) {
  return frame ? frame->at(position) : Axes{position, position, position};
}
inline int32_t delta_of(const FrameRef& frame) { return frame ? frame->delta() : 0; }

}  // namespace flashnext
