// What states depend on, in words: what differs in it can share no state.
#include <bit>
#include <cstdio>
#include <span>

#include "base/build_id.h"
#include "model/model.h"

namespace flashnext {
namespace {

void add(std::string& out, const char* name, std::span<const uint64_t> values) {
  out += name;
  for (const uint64_t v : values) out.append(1, ' ').append(std::to_string(v));
  out += "\n";
}

// Of a float its bits.
uint64_t bits(float x) { return std::bit_cast<uint32_t>(x); }

}  // namespace

std::string Model::identity() const {
  std::string out = std::string("build ") + kBuildId + "\ndevice " + device_->identity() + "\n";
  out += options_.dtype == DType::kBFloat16 ? "bfloat16\n" : "float32\n";
  std::vector<uint64_t> angles = {bits(options_.attention_factor)};
  for (const float f : options_.inv_freq) angles.push_back(bits(f));
  add(out, "angles", angles);
  std::vector<uint64_t> page = {kPageTokens, page_.size_bytes, page_.rotary};
  const auto add_layer = [&](const PageLayout::Layer& l) {
    page.insert(page.end(), {l.k, l.v, l.raw, l.pooled});
  };
  for (const PageLayout::Layer& layer : page_.layers) add_layer(layer);
  if (page_.head) add_layer(*page_.head);
  add(out, page_.head ? "page with head" : "page", page);
  std::vector<uint64_t> block = {state_.block_bytes, state_.streams};
  for (const StateLayout::Delta& d : state_.deltas) block.insert(block.end(), {d.state, d.conv});
  for (const StateLayout::Ple& p : state_.ples) block.insert(block.end(), {p.tokens, p.conv});
  add(out, "block", block);
  return out;
}

}  // namespace flashnext
