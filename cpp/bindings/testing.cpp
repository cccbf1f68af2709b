// flashnext._core.testing: single kernels on arrays, the sampler and its noise, and the layout of argument
// structs.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include "base/error.h"
#include "base/exact_math.h"
#include "bindings/errors.h"
#include "bindings/testing.h"
#include "device/cpu/cpu_device.h"
#include "device/device.h"
#include "kernels/metal/table.h"
#include "metal/params.h"
#include "rounds/sampler.h"
#include "session/snapshot.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace flashnext {
namespace {

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

#if defined(__SANITIZE_ADDRESS__)
void poison(const void* at, size_t n) { ASAN_POISON_MEMORY_REGION(at, n); }
void unpoison(const void* at, size_t n) { ASAN_UNPOISON_MEMORY_REGION(at, n); }
#else
void poison(const void*, size_t) {}
void unpoison(const void*, size_t) {}
#endif

constexpr size_t kGuardBytes = 256;
constexpr int kGuardValue = 0xa5;

// Runs one kernel. Slots are byte arrays, changed in place; an empty array is an unused slot. Each lies
// behind a guard that the kernel must not touch, in a buffer of its own, or all in one buffer; the last
// n_spare bytes of a slot are a guard too. Under the address sanitizer reading a guard is an error. relocate:
// (slot, byte offset, slot, byte offset): before the run the device address of the second place is written,
// as uint64, at the first.
void run_kernel(const DeviceRef& device, const std::string& name,
                const std::tuple<uint32_t, uint32_t, uint32_t>& grid, const std::vector<Bytes>& slots,
                const nb::bytes& params, const std::vector<std::tuple<int, size_t, int, size_t>>& relocate,
                bool one_buffer, size_t n_spare) {
  std::vector<BufferRef> buffers;
  std::vector<Slice> slices(slots.size());
  const auto room = [](size_t n) { return kGuardBytes + (n + kGuardBytes - 1) / kGuardBytes * kGuardBytes; };
  if (one_buffer) {
    size_t all = 0;
    for (const Bytes& s : slots) all += room(s.size());
    buffers.push_back(device->allocate(all));
  }
  size_t end = 0;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].size() == 0) continue;
    if (!one_buffer) buffers.push_back(device->allocate(room(slots[i].size())));
    slices[i] = {buffers.back(), (one_buffer ? end : 0) + kGuardBytes};
    end += room(slots[i].size());
    std::memset(slices[i].host() - kGuardBytes, kGuardValue, kGuardBytes);
    std::memcpy(slices[i].host(), slots[i].data(), slots[i].size());
  }
  const auto each_guard = [&](auto&& use) {
    for (size_t i = 0; i < slots.size(); ++i) {
      if (slots[i].size() == 0) continue;
      use(slices[i].host() - kGuardBytes, kGuardBytes);
      use(slices[i].host() + slots[i].size() - n_spare, n_spare);
    }
  };
  for (const auto& [slot, at, target, offset] : relocate) {
    const Slice& to = slices.at(static_cast<size_t>(target));
    const uint64_t address = to.address() + offset;
    std::memcpy(slices.at(static_cast<size_t>(slot)).host() + at, &address, sizeof address);
  }
  const Kernel& kernel = device->kernel(name);
  each_guard(poison);
  const std::span<const std::byte> argument(reinterpret_cast<const std::byte*>(params.c_str()),
                                            params.size());
  {
    const nb::gil_scoped_release release;
    const EventRef done = device->event();
    const std::unique_ptr<CommandBuffer> cb = device->command_buffer();
    cb->dispatch(kernel, {std::get<0>(grid), std::get<1>(grid), std::get<2>(grid)}, slices, argument);
    cb->signal(done, 1);
    cb->commit();
    done->wait(1);
  }
  each_guard(unpoison);
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].size() == 0) continue;
    const std::byte* at = slices[i].host();
    if (std::any_of(at - kGuardBytes, at, [](std::byte b) { return b != std::byte{kGuardValue}; })) {
      throw DeviceError(name + ": wrote before the start of slot " + std::to_string(i));
    }
    std::memcpy(slots[i].data(), at, slots[i].size());
  }
}

using Field = std::pair<size_t, size_t>;  // offset, size
using Layout = std::pair<size_t, std::map<std::string, Field>>;

#define FIELD(type, name)                                     \
  {                                                           \
    #name, Field { offsetof(type, name), sizeof(type::name) } \
  }

std::map<std::string, Layout> params_layout() {
  return {
      {"Counts", {sizeof(Counts), {FIELD(Counts, n)}}},
      {"Sequence",
       {sizeof(Sequence),
        {FIELD(Sequence, page_table), FIELD(Sequence, state), FIELD(Sequence, kept),
         FIELD(Sequence, unsettled), FIELD(Sequence, first_row), FIELD(Sequence, n_rows),
         FIELD(Sequence, n_kept), FIELD(Sequence, start), FIELD(Sequence, is_window), FIELD(Sequence, marks),
         FIELD(Sequence, n_marks)}}},
      {"Mark", {sizeof(Mark), {FIELD(Mark, state), FIELD(Mark, n_rows)}}},
      {"Row",
       {sizeof(Row), {FIELD(Row, token), FIELD(Row, sequence), FIELD(Row, position), FIELD(Row, rotary)}}},
      {"Format", {sizeof(Format), {FIELD(Format, bits), FIELD(Format, group)}}},
      {"EmbedParams",
       {sizeof(EmbedParams),
        {FIELD(EmbedParams, format), FIELD(EmbedParams, hidden), FIELD(EmbedParams, hc_count)}}},
      {"EmbedMediaParams",
       {sizeof(EmbedMediaParams), {FIELD(EmbedMediaParams, hidden), FIELD(EmbedMediaParams, hc_count)}}},
      {"MatmulParams",
       {sizeof(MatmulParams),
        {FIELD(MatmulParams, format), FIELD(MatmulParams, n_in), FIELD(MatmulParams, n_out),
         FIELD(MatmulParams, epilogue), FIELD(MatmulParams, count), FIELD(MatmulParams, hc_count),
         FIELD(MatmulParams, alpha), FIELD(MatmulParams, beta)}}},
      {"HcNormParams",
       {sizeof(HcNormParams),
        {FIELD(HcNormParams, hidden), FIELD(HcNormParams, hc_count), FIELD(HcNormParams, count),
         FIELD(HcNormParams, eps)}}},
      {"HcMixParams",
       {sizeof(HcMixParams),
        {FIELD(HcMixParams, format), FIELD(HcMixParams, hidden), FIELD(HcMixParams, hc_count),
         FIELD(HcMixParams, rank), FIELD(HcMixParams, count)}}},
      {"NgramIdsParams",
       {sizeof(NgramIdsParams),
        {FIELD(NgramIdsParams, ngram), FIELD(NgramIdsParams, heads_per_ngram),
         FIELD(NgramIdsParams, segment_token), FIELD(NgramIdsParams, state_offset),
         FIELD(NgramIdsParams, unsettled_offset)}}},
      {"NgramGatherParams",
       {sizeof(NgramGatherParams),
        {FIELD(NgramGatherParams, format), FIELD(NgramGatherParams, n_heads),
         FIELD(NgramGatherParams, rows_per_shard), FIELD(NgramGatherParams, row_width),
         FIELD(NgramGatherParams, scale)}}},
      {"PleGateParams",
       {sizeof(PleGateParams),
        {FIELD(PleGateParams, hidden), FIELD(PleGateParams, hc_count), FIELD(PleGateParams, eps)}}},
      {"PleConvParams",
       {sizeof(PleConvParams),
        {FIELD(PleConvParams, width), FIELD(PleConvParams, n_taps), FIELD(PleConvParams, dilation),
         FIELD(PleConvParams, state_offset), FIELD(PleConvParams, unsettled_offset)}}},
      {"DeltaConvParams",
       {sizeof(DeltaConvParams),
        {FIELD(DeltaConvParams, channels), FIELD(DeltaConvParams, n_taps),
         FIELD(DeltaConvParams, state_offset), FIELD(DeltaConvParams, unsettled_offset)}}},
      {"DeltaPrepParams",
       {sizeof(DeltaPrepParams),
        {FIELD(DeltaPrepParams, k_heads), FIELD(DeltaPrepParams, v_heads), FIELD(DeltaPrepParams, k_dim),
         FIELD(DeltaPrepParams, v_dim)}}},
      {"DeltaRuleParams",
       {sizeof(DeltaRuleParams),
        {FIELD(DeltaRuleParams, k_heads), FIELD(DeltaRuleParams, v_heads), FIELD(DeltaRuleParams, k_dim),
         FIELD(DeltaRuleParams, v_dim), FIELD(DeltaRuleParams, gate_silu), FIELD(DeltaRuleParams, eps),
         FIELD(DeltaRuleParams, state_offset), FIELD(DeltaRuleParams, k_offset),
         FIELD(DeltaRuleParams, v_offset), FIELD(DeltaRuleParams, beta_offset),
         FIELD(DeltaRuleParams, decay_offset)}}},
      {"RopeParams",
       {sizeof(RopeParams),
        {FIELD(RopeParams, half_dim), FIELD(RopeParams, section), FIELD(RopeParams, attention_factor),
         FIELD(RopeParams, rotary_offset)}}},
      {"AttentionPrepParams",
       {sizeof(AttentionPrepParams),
        {FIELD(AttentionPrepParams, n_heads), FIELD(AttentionPrepParams, n_kv_heads),
         FIELD(AttentionPrepParams, head_dim), FIELD(AttentionPrepParams, half_dim),
         FIELD(AttentionPrepParams, index_n_heads), FIELD(AttentionPrepParams, index_dim),
         FIELD(AttentionPrepParams, eps), FIELD(AttentionPrepParams, k_offset),
         FIELD(AttentionPrepParams, v_offset), FIELD(AttentionPrepParams, raw_offset)}}},
      {"IndexPoolParams",
       {sizeof(IndexPoolParams),
        {FIELD(IndexPoolParams, index_dim), FIELD(IndexPoolParams, ratio), FIELD(IndexPoolParams, half_dim),
         FIELD(IndexPoolParams, section), FIELD(IndexPoolParams, attention_factor),
         FIELD(IndexPoolParams, eps), FIELD(IndexPoolParams, raw_offset),
         FIELD(IndexPoolParams, pooled_offset), FIELD(IndexPoolParams, rotary_offset)}}},
      {"IndexScoreParams",
       {sizeof(IndexScoreParams),
        {FIELD(IndexScoreParams, index_n_heads), FIELD(IndexScoreParams, index_dim),
         FIELD(IndexScoreParams, ratio), FIELD(IndexScoreParams, budget_blocks),
         FIELD(IndexScoreParams, first_row), FIELD(IndexScoreParams, stride),
         FIELD(IndexScoreParams, pooled_offset)}}},
      {"IndexSelectParams",
       {sizeof(IndexSelectParams),
        {FIELD(IndexSelectParams, ratio), FIELD(IndexSelectParams, budget_blocks),
         FIELD(IndexSelectParams, first_row), FIELD(IndexSelectParams, stride)}}},
      {"AttentionParams",
       {sizeof(AttentionParams),
        {FIELD(AttentionParams, n_heads), FIELD(AttentionParams, n_kv_heads),
         FIELD(AttentionParams, head_dim), FIELD(AttentionParams, ratio),
         FIELD(AttentionParams, budget_blocks), FIELD(AttentionParams, scale),
         FIELD(AttentionParams, k_offset), FIELD(AttentionParams, v_offset)}}},
      {"RouterParams", {sizeof(RouterParams), {FIELD(RouterParams, n_experts), FIELD(RouterParams, top_k)}}},
      {"GluParams",
       {sizeof(GluParams),
        {FIELD(GluParams, format), FIELD(GluParams, n_in), FIELD(GluParams, width), FIELD(GluParams, top_k),
         FIELD(GluParams, codes_stride), FIELD(GluParams, scales_stride)}}},
      {"ExpertDownParams",
       {sizeof(ExpertDownParams),
        {FIELD(ExpertDownParams, format), FIELD(ExpertDownParams, shared_format),
         FIELD(ExpertDownParams, hidden), FIELD(ExpertDownParams, width),
         FIELD(ExpertDownParams, shared_width), FIELD(ExpertDownParams, top_k),
         FIELD(ExpertDownParams, hc_count), FIELD(ExpertDownParams, codes_stride),
         FIELD(ExpertDownParams, scales_stride)}}},
      {"CopyRowsParams",
       {sizeof(CopyRowsParams), {FIELD(CopyRowsParams, width), FIELD(CopyRowsParams, count)}}},
      {"ReplyState",
       {sizeof(ReplyState),
        {FIELD(ReplyState, page_table),  FIELD(ReplyState, state),       FIELD(ReplyState, unsettled),
         FIELD(ReplyState, text),        FIELD(ReplyState, counts),      FIELD(ReplyState, bias),
         FIELD(ReplyState, stops),       FIELD(ReplyState, masks),       FIELD(ReplyState, seed),
         FIELD(ReplyState, temperature), FIELD(ReplyState, top_p),       FIELD(ReplyState, min_p),
         FIELD(ReplyState, presence),    FIELD(ReplyState, frequency),   FIELD(ReplyState, repetition),
         FIELD(ReplyState, top_k),       FIELD(ReplyState, n_bias),      FIELD(ReplyState, n_stops),
         FIELD(ReplyState, n_logprobs),  FIELD(ReplyState, end),         FIELD(ReplyState, known),
         FIELD(ReplyState, length),      FIELD(ReplyState, parity),      FIELD(ReplyState, n_kept),
         FIELD(ReplyState, n_drafts),    FIELD(ReplyState, ended),       FIELD(ReplyState, has_head),
         FIELD(ReplyState, copied),      FIELD(ReplyState, rotary_delta)}}},
      {"DrawRow",
       {sizeof(DrawRow), {FIELD(DrawRow, reply), FIELD(DrawRow, position), FIELD(DrawRow, n_counted)}}},
      {"Window",
       {sizeof(Window),
        {FIELD(Window, reply), FIELD(Window, most_rows), FIELD(Window, most_drafts), FIELD(Window, is_window),
         FIELD(Window, first_row), FIELD(Window, n_rows), FIELD(Window, first_logits), FIELD(Window, start),
         FIELD(Window, most_copied)}}},
      {"Landed",
       {sizeof(Landed),
        {FIELD(Landed, n_tokens), FIELD(Landed, length), FIELD(Landed, parity), FIELD(Landed, ended),
         FIELD(Landed, n_verified), FIELD(Landed, n_accepted), FIELD(Landed, copied),
         FIELD(Landed, first_logits), FIELD(Landed, n_head), FIELD(Landed, n_copied),
         FIELD(Landed, tokens)}}},
      {"RoundRowsParams", {sizeof(RoundRowsParams), {FIELD(RoundRowsParams, n_windows)}}},
      {"VerdictParams",
       {sizeof(VerdictParams), {FIELD(VerdictParams, n_windows), FIELD(VerdictParams, n_valid)}}},
      {"AbsorbRowsParams",
       {sizeof(AbsorbRowsParams),
        {FIELD(AbsorbRowsParams, n_windows), FIELD(AbsorbRowsParams, n_steps),
         FIELD(AbsorbRowsParams, hc_count)}}},
      {"KeepStreamsParams",
       {sizeof(KeepStreamsParams),
        {FIELD(KeepStreamsParams, width), FIELD(KeepStreamsParams, state_offset)}}},
      {"CopyDraftsParams",
       {sizeof(CopyDraftsParams),
        {FIELD(CopyDraftsParams, least_match), FIELD(CopyDraftsParams, most_match)}}},
      {"BiasEntry", {sizeof(BiasEntry), {FIELD(BiasEntry, id), FIELD(BiasEntry, value)}}},
      {"DrawParams",
       {sizeof(DrawParams),
        {FIELD(DrawParams, vocab), FIELD(DrawParams, n_valid), FIELD(DrawParams, count),
         FIELD(DrawParams, masked)}}},
      {"BlockMax",
       {sizeof(BlockMax),
        {FIELD(BlockMax, value), FIELD(BlockMax, logit), FIELD(BlockMax, numbers), FIELD(BlockMax, drawable),
         FIELD(BlockMax, changed)}}},
      {"Patch",
       {sizeof(Patch), {FIELD(Patch, row), FIELD(Patch, col), FIELD(Patch, n_rows), FIELD(Patch, n_cols)}}},
      {"SliceTile",
       {sizeof(SliceTile),
        {FIELD(SliceTile, first_row), FIELD(SliceTile, n_rows), FIELD(SliceTile, first_key),
         FIELD(SliceTile, n_keys)}}},
      {"LayerNormParams",
       {sizeof(LayerNormParams), {FIELD(LayerNormParams, width), FIELD(LayerNormParams, eps)}}},
      {"LinearParams",
       {sizeof(LinearParams),
        {FIELD(LinearParams, n_in), FIELD(LinearParams, n_out), FIELD(LinearParams, n_rows),
         FIELD(LinearParams, bits), FIELD(LinearParams, finish)}}},
      {"PatchPlaceParams",
       {sizeof(PatchPlaceParams),
        {FIELD(PatchPlaceParams, width), FIELD(PatchPlaceParams, side), FIELD(PatchPlaceParams, quarter)}}},
      {"PatchTurnParams",
       {sizeof(PatchTurnParams), {FIELD(PatchTurnParams, n_heads), FIELD(PatchTurnParams, half_dim)}}},
      {"SliceAttentionParams",
       {sizeof(SliceAttentionParams),
        {FIELD(SliceAttentionParams, n_heads), FIELD(SliceAttentionParams, head_dim),
         FIELD(SliceAttentionParams, first_row), FIELD(SliceAttentionParams, scale)}}},
      {"BlockPart",
       {sizeof(BlockPart), {FIELD(BlockPart, sum), FIELD(BlockPart, value), FIELD(BlockPart, id)}}},
  };
}

#undef FIELD

using Logits = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

}  // namespace

void bind_testing(nb::module_& parent) {
  nb::module_ m =
      parent.def_submodule("testing", "Single kernels, the sampler and the argument structs, for tests.");
  m.def("run_kernel", &run_kernel, "device"_a, "name"_a, "grid"_a, "slots"_a, "params"_a,
        "relocate"_a = std::vector<std::tuple<int, size_t, int, size_t>>(), "one_buffer"_a = false,
        "n_spare"_a = 0,
        "Run one kernel over uint8 arrays, which are changed in place; relocate writes device addresses of "
        "slots into slots.");
  m.def("kernel_names", [](const DeviceRef& d) { return d->kernel_names(); }, "device"_a);
  m.def(
      "kernel_tile", [](const DeviceRef& d, const std::string& name) { return d->kernel(name).tile(); },
      "device"_a, "name"_a);
  m.def(
      "kernel_rows", [](const DeviceRef& d, const std::string& name) { return d->kernel(name).rows(); },
      "device"_a, "name"_a);
  m.def(
      "metal_kernels",
      [] {
        std::map<std::string, uint32_t> threads;
        for (const mtl::KernelEntry& e : mtl::kernels()) threads[e.name] = e.threads;
        return threads;
      },
      "Kernels that a Metal device is handed -> threads of a threadgroup.");
  m.def(
      "fail_dispatch",
      [](const DeviceRef& d, std::string kernel, uint64_t n, std::string what) {
        cpu::fault_plan(*d).fail_dispatch(std::move(kernel), n, std::move(what));
      },
      "device"_a, "kernel"_a, "n"_a = 1, "what"_a = "planted",
      "Let the n-th dispatch of a kernel from now on fail with a text, once.");
  m.def(
      "fail_allocation", [](const DeviceRef& d, uint64_t n) { cpu::fault_plan(*d).fail_allocation(n); },
      "device"_a, "n"_a = 1, "Let the n-th allocation from now on fail, once.");
  m.def(
      "clear_faults", [](const DeviceRef& d) { cpu::fault_plan(*d).clear(); }, "device"_a,
      "Let nothing fail any more that has not yet.");
  m.def(
      "n_faults", [](const DeviceRef& d) { return cpu::fault_plan(*d).n_planted(); }, "device"_a,
      "Planted failures that have not happened.");
  m.def(
      "write_page",
      [](const Snapshot& snapshot, int index, const Bytes& bytes) {
        const Snapshot::HeldRef held = snapshot.held();
        if (bytes.size() != held->pool->page_bytes()) throw InvalidArgument("write_page: not a page's bytes");
        std::memcpy(held->pool->host(held->pages.at(static_cast<size_t>(index))), bytes.data(), bytes.size());
      },
      "snapshot"_a, "index"_a, "bytes"_a,
      "Overwrite a page of a snapshot, for all who share it. Nothing may be in flight.");
  m.def("params_layout", &params_layout, "Struct name -> (size, {field: (offset, size)}) of metal/params.h.");
  m.def(
      "draw",
      [](const Logits& logits, int n_valid, const Sampling& s, int64_t position,
         const std::vector<int32_t>& prompt, const std::vector<int32_t>& reply) {
        TokenCounts counts;
        counts.prompt.resize(static_cast<size_t>(n_valid));
        counts.reply.resize(static_cast<size_t>(n_valid));
        for (const int32_t t : prompt) ++counts.prompt.at(static_cast<size_t>(t));
        for (const int32_t t : reply) ++counts.reply.at(static_cast<size_t>(t));
        return draw({logits.data(), logits.size()}, n_valid, s, &counts, position);
      },
      "logits"_a, "n_valid"_a, "sampling"_a, "position"_a, "prompt"_a = std::vector<int32_t>(),
      "reply"_a = std::vector<int32_t>(), "The reference sampler's draw.");
  m.def(
      "logprobs",
      [](const Logits& logits, int n_valid, int32_t token, int n_top) {
        const Logprobs l = logprobs({logits.data(), logits.size()}, n_valid, token, n_top);
        return std::pair(l.chosen, l.top);
      },
      "logits"_a, "n_valid"_a, "token"_a, "n_top"_a);
  m.def("gumbel", &gumbel, "seed"_a, "position"_a, "id"_a);
  m.def("choice_seed", &choice_seed, "seed"_a, "choice"_a);
  m.def("exact_exp", &exact_exp, "x"_a);
  m.def("exact_log", &exact_log, "x"_a);
  bind_testing_cuda(m);
  bind_testing_rounds(m);
  bind_testing_sampler(m);
}

}  // namespace flashnext
