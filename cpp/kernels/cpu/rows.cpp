// embed, embed_media, copy_rows: moving rows in and out of the model.
#include "kernels/cpu/norm.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/tables.h"

namespace flashnext::cpu::FLASHNEXT_PATH {
namespace {

template <class T>
void embed(const Task& t) {
  const auto& p = t.get<EmbedParams>();
  if (int32_t(t.x) >= t.slot<Counts>(0)->n[kCountRows]) return;
  const Matrix table = matrix(t.slots[2], t.slots[3], t.slots[4], p.format, p.hidden);
  auto* row = reinterpret_cast<PanelScratch*>(t.scratch)->f.row;
  decode(table, static_cast<uint32_t>(t.slot<const Row>(1)[t.x].token), 0, p.hidden, row);
  T* out = t.slot<T>(5) + size_t{t.x} * p.hc_count * p.hidden;
  for (uint32_t s = 0; s < p.hc_count; ++s) {
    for (uint32_t i = 0; i < p.hidden; i += kLanes) store(out + size_t{s} * p.hidden + i, load(row + i));
  }
}

template <class T>
void embed_media(const Task& t) {
  const auto& p = t.get<EmbedMediaParams>();
  if (int32_t(t.x) >= t.slot<Counts>(0)->n[kCountRows]) return;
  const uint64_t feature = t.slot<const uint64_t>(1)[t.x];
  if (!feature) return;
  T* out = t.slot<T>(2) + size_t{t.x} * p.hc_count * p.hidden;
  for (uint32_t s = 0; s < p.hc_count; ++s) {
    std::memcpy(out + size_t{s} * p.hidden, at<const T>(feature), p.hidden * sizeof(T));
  }
}

template <class T>
void copy_rows(const Task& t) {
  const auto& p = t.get<CopyRowsParams>();
  if (int32_t(t.x) >= t.slot<Counts>(0)->n[p.count]) return;
  std::memcpy(t.slot<T>(3) + size_t{t.x} * p.width,
              t.slot<const T>(2) + size_t(t.slot<const int32_t>(1)[t.x]) * p.width, p.width * sizeof(T));
}

constexpr KernelEntry kEntries[] = {
    {"embed_bf16", embed<bfloat16>, 1},
    {"embed_f32", embed<float>, 1},
    {"embed_media_bf16", embed_media<bfloat16>, 1},
    {"embed_media_f32", embed_media<float>, 1},
    {"copy_rows_bf16", copy_rows<bfloat16>, 1},
    {"copy_rows_f32", copy_rows<float>, 1},
};

}  // namespace

KernelList row_kernels() { return {kEntries, sizeof kEntries / sizeof *kEntries}; }

}  // namespace flashnext::cpu::FLASHNEXT_PATH
