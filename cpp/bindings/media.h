// How Python says which rows of a chunk show media.
#pragma once

#include <memory>
#include <tuple>
#include <vector>

#include "rounds/runner.h"

namespace flashnext {

// first row, features, first of them, how many
using ShownTuple = std::tuple<int, std::shared_ptr<Features>, int, int>;

inline std::vector<Shown> shown_of(const std::vector<ShownTuple>& media) {
  std::vector<Shown> shown;
  for (const auto& [first, features, from, n] : media) shown.push_back({first, n, features, from});
  return shown;
}

}  // namespace flashnext
