#include "session/frame.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace flashnext {

Frame::Frame(std::vector<Axes> rows) : rows_(std::move(rows)) {
  int32_t end = 0;
  for (size_t i = 0; i < rows_.size(); ++i) {
    for (const int32_t at : rows_[i]) {
      if (at < 0 || static_cast<size_t>(at) > i) {
        throw InvalidArgument("frame: row " + std::to_string(i) + " stands at " + std::to_string(at) +
                              " on an axis, expected 0 to " + std::to_string(i));
      }
      end = std::max(end, at + 1);
    }
  }
  delta_ = end - static_cast<int32_t>(rows_.size());
}

Axes Frame::at(int position) const {
  if (static_cast<size_t>(position) < rows_.size()) return rows_[static_cast<size_t>(position)];
  const int32_t rotary = position + delta_;
  return {rotary, rotary, rotary};
}

}  // namespace flashnext
