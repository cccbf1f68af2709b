// flashnext._core.testing.draw_rows: the device's sampler over rows of logits, recorded as a round records
// it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"
#include "bindings/testing.h"
#include "device/device.h"
#include "kernels/sampler.h"
#include "rounds/reply.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace flashnext {
namespace {

using LogitRows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Tokens = std::vector<int32_t>;
// Token, its log-probability, the likeliest ids with theirs, hash of the logits.
using DrawnOnDevice = std::tuple<int32_t, float, std::vector<std::pair<int32_t, float>>, uint64_t>;

// A row to draw: rules, position, tokens of the prompt, of the reply as far as counted, and further ones;
// words of the mask, none for no mask.
using RowToDraw = std::tuple<Sampling, int32_t, Tokens, Tokens, Tokens, std::vector<uint32_t>>;

// Device memory that lives as long as this does.
class Memory {
 public:
  explicit Memory(DeviceRef device) : device_(std::move(device)) {}
  template <class T>
  T* take(size_t n, Slice* at) {
    buffers_.push_back(device_->allocate(n * sizeof(T)));
    *at = buffers_.back();
    return at->host<T>();
  }

 private:
  DeviceRef device_;
  std::vector<BufferRef> buffers_;
};

ReplyState reply_of(const Sampling& s, const Tokens& prompt, const Tokens& reply, const Tokens& uncounted,
                    int32_t n_counted, int n_valid, Memory& memory) {
  ReplyState r = {};
  set_rules(r, s);
  r.n_logprobs = s.logprobs;
  Slice at;
  if (!s.bias.empty()) {
    auto* bias = memory.take<BiasEntry>(s.bias.size(), &at);
    for (const auto& [id, value] : s.bias) *bias++ = {id, value};
    r.bias = at.address();
    r.n_bias = static_cast<int32_t>(s.bias.size());
  }
  if (s.penalizes()) {
    const auto n = static_cast<size_t>(n_valid);
    auto* counts = memory.take<int32_t>(2 * n, &at);
    for (const int32_t t : prompt) ++counts[t];
    for (const int32_t t : reply) ++counts[n + static_cast<size_t>(t)];
    r.counts = at.address();
  }
  // Of the text only what no count holds is read.
  std::copy(uncounted.begin(), uncounted.end(), memory.take<int32_t>(uncounted.size(), &at));
  r.text = at.address() - static_cast<uint64_t>(n_counted) * sizeof(int32_t);
  return r;
}

std::vector<DrawnOnDevice> draw_rows(const DeviceRef& device, const LogitRows& logits, int n_valid,
                                     const std::vector<RowToDraw>& rows) {
  const auto L = static_cast<uint32_t>(rows.size());
  const size_t vocab = logits.shape(1);
  if (logits.shape(0) != L || n_valid < 1 || static_cast<size_t>(n_valid) > vocab) {
    throw InvalidArgument("draw_rows: " + std::to_string(logits.shape(0)) + " rows of " +
                          std::to_string(vocab) + " logits for " + std::to_string(L) + " draws of " +
                          std::to_string(n_valid) + " ids");
  }
  Memory memory(device);
  Slice logit_rows, replies, draws, counts, block, tokens, chosen, top_ids, top_values, hashes;
  std::memcpy(memory.take<float>(L * vocab, &logit_rows), logits.data(), L * vocab * sizeof(float));
  auto* reply = memory.take<ReplyState>(L, &replies);
  auto* draw = memory.take<DrawRow>(L, &draws);
  for (size_t i = 0; i < L; ++i) {
    const auto& [sampling, position, prompt, counted, uncounted, mask] = rows[i];
    const Tokens* const known[] = {&prompt, &counted, &uncounted};
    for (const Tokens* of : known) {
      if (std::any_of(of->begin(), of->end(), [&](int32_t t) { return t < 0 || t >= n_valid; })) {
        throw InvalidArgument("draw_rows: row " + std::to_string(i) + " has a token outside the vocabulary");
      }
    }
    sampling.check(n_valid);
    const auto n_counted = position - static_cast<int32_t>(uncounted.size());
    reply[i] = reply_of(sampling, prompt, counted, uncounted, n_counted, n_valid, memory);
    if (const size_t n_words = (static_cast<size_t>(n_valid) + 31) / 32; !mask.empty()) {
      if (mask.size() != n_words) {
        throw InvalidArgument("draw_rows: row " + std::to_string(i) + " has a mask of " +
                              std::to_string(mask.size()) + " words, expected " + std::to_string(n_words));
      }
      Slice masks;
      auto* words = memory.take<uint32_t>(kMaxWindow * n_words, &masks);
      std::copy(mask.begin(), mask.end(), words + static_cast<size_t>(position % kMaxWindow) * n_words);
      reply[i].masks = masks.address();
    }
    draw[i] = {replies.address() + i * sizeof(ReplyState), position, n_counted};
  }
  memory.take<Counts>(1, &counts)->n[kCountLogits] = static_cast<int32_t>(L);
  // A row more than there are, which must be left alone.
  const uint32_t bound = L + 1;
  const auto n = static_cast<uint32_t>(n_valid);
  memory.take<std::byte>(SamplerScratch::size_bytes(bound, n), &block);
  memory.take<int32_t>(bound, &tokens);
  memory.take<float>(bound, &chosen);
  memory.take<int32_t>(bound * size_t{kMaxTop}, &top_ids);
  memory.take<float>(bound * size_t{kMaxTop}, &top_values);
  memory.take<uint64_t>(bound, &hashes);
  Batch batch;
  batch.counts = counts;
  batch.max_logits = bound;
  const DrawParams p = {static_cast<uint32_t>(vocab), n, kCountLogits, 1};
  const SamplerScratch scratch = SamplerScratch::in(block, bound, n);
  {
    const nb::gil_scoped_release release;
    const Launcher launch(*device, DType::kFloat32);
    const EventRef done = device->event();
    const std::unique_ptr<CommandBuffer> cb = device->command_buffer();
    launch.logits_hash(*cb, batch, logit_rows, hashes, p);
    record_draw(*cb, launch, batch, draws, logit_rows, scratch, tokens, p);
    cb->barrier();
    record_logprobs(*cb, launch, batch, draws, logit_rows, scratch, tokens, chosen, top_ids, top_values, p);
    cb->signal(done, 1);
    cb->commit();
    done->wait(1);
  }
  std::vector<DrawnOnDevice> out;
  for (size_t i = 0; i < L; ++i) {
    std::vector<std::pair<int32_t, float>> top;
    for (size_t j = i * kMaxTop; j < (i + 1) * kMaxTop && top_ids.host<int32_t>()[j] >= 0; ++j) {
      top.emplace_back(top_ids.host<int32_t>()[j], top_values.host<float>()[j]);
    }
    out.emplace_back(tokens.host<int32_t>()[i], chosen.host<float>()[i], std::move(top),
                     hashes.host<uint64_t>()[i]);
  }
  if (std::memcmp(logit_rows.host(), logits.data(), L * vocab * sizeof(float)) != 0) {
    throw DeviceError("draw_rows: the logits were changed");
  }
  return out;
}

}  // namespace

void bind_testing_sampler(nb::module_& m) {
  m.def(
      "draw_rows", &draw_rows, "device"_a, "logits"_a, "n_valid"_a, "rows"_a,
      "Draw a token for each row of logits on the device; a row is (sampling, position, prompt, reply as far "
      "as counted, further reply tokens, words of the mask or none). Returns (token, logprob, [(id, "
      "logprob)], hash) of each.");
}

}  // namespace flashnext
