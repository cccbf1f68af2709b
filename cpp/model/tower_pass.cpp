// The plan of a pass through the vision tower.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "model/tower.h"

namespace flashnext {
namespace {

constexpr float kEps = 1e-6f;  // of the tower's norms
constexpr const char* kPart = "vision tower";

uint32_t u(int x) { return static_cast<uint32_t>(x); }
size_t bytes(size_t rows, int width) { return rows * static_cast<size_t>(width) * sizeof(float); }

}  // namespace

TowerPass::TowerPass(Tower& tower, std::span<const MediaGrid> media)
    : t_(tower), done_(tower.model_->device()->event()) {
  const int merge = t_.config_.merge;
  for (size_t i = 0; i < media.size(); ++i) {
    const MediaGrid& g = media[i];
    const std::string what = "media " + std::to_string(i) + ": a grid of " + std::to_string(g.t) + " x " +
                             std::to_string(g.h) + " x " + std::to_string(g.w) + " patches";
    if (g.t < 1 || g.h < 1 || g.w < 1 || g.h % merge != 0 || g.w % merge != 0) {
      throw InvalidArgument(what + ", expected sides of " + std::to_string(merge) + " patches a token");
    }
    if (int64_t{g.h} * g.w > t_.max_patches_) {
      throw InvalidArgument(what + " has larger slices than the " + std::to_string(t_.max_patches_) +
                            " patches that the tower has room for");
    }
    slices_.insert(slices_.end(), static_cast<size_t>(g.t), Extent{g.h, g.w});
    n_left_ += static_cast<size_t>(g.t) * static_cast<size_t>(g.h * g.w);
  }
  const size_t n_tokens = n_left_ / static_cast<size_t>(merge * merge);
  out_.reserve(n_tokens * static_cast<size_t>(t_.config_.out_hidden_size));
  lock_ = std::unique_lock(t_.in_use_);
  if (n_left_) begin_pass();
}

TowerPass::~TowerPass() {
  try {
    done_->wait(n_committed_);
  } catch (...) {  // whoever waited for the work that failed has it
  }
}

std::unique_ptr<CommandBuffer> TowerPass::command_buffer() const {
  std::unique_ptr<CommandBuffer> cb = t_.model_->device()->command_buffer();
  cb->part(kPart);
  return cb;
}

void TowerPass::commit(CommandBuffer& cb) {
  cb.signal(done_, n_committed_ + 1);
  cb.commit();
  ++n_committed_;
  done_->wait(n_committed_ - 1);
}

// Takes as many slices as there is room for, and writes their tables.
void TowerPass::begin_pass() {
  const int merge = t_.config_.merge;
  const uint32_t most = t_.launch_.tile_patches();
  auto* patch = t_.patches_.host<Patch>();
  auto* tile = t_.tiles_.host<SliceTile>();
  n_patches_ = n_filled_ = 0;
  steps_.clear();
  uint32_t n_tiles = 0;
  uint64_t n_pairs = 0;  // of patches that the attention of the last step joins
  for (; next_slice_ < slices_.size(); ++next_slice_) {
    const Extent& s = slices_[next_slice_];
    const uint32_t first = n_patches_, size = s.size();
    if (first + size > u(t_.max_patches_)) break;
    for (int row = 0; row < s.h; row += merge) {  // the patches of a token stand together
      for (int col = 0; col < s.w; col += merge) {
        for (int i = 0; i < merge * merge; ++i) *patch++ = {row + i / merge, col + i % merge, s.h, s.w};
      }
    }
    for (uint32_t at = 0; at < size; at += most) {
      const uint32_t n_rows = std::min(most, size - at);
      n_pairs += uint64_t{n_rows} * size;
      if (steps_.empty() || steps_.back().n_rows + n_rows > Tower::kChunk || n_pairs > Tower::kChunkPairs) {
        steps_.push_back({n_tiles, 0, first + at, 0});
        n_pairs = uint64_t{n_rows} * size;
      }
      ++steps_.back().n_tiles;
      steps_.back().n_rows += n_rows;
      tile[n_tiles++] = {static_cast<int32_t>(first + at), static_cast<int32_t>(n_rows),
                         static_cast<int32_t>(first), static_cast<int32_t>(size)};
    }
    n_patches_ += size;
  }
}

void TowerPass::put(std::span<const float> patches) {
  const size_t width = static_cast<size_t>(t_.config_.patch_values());
  size_t n = patches.size() / width;
  if (patches.size() % width != 0) {
    throw InvalidArgument("tower: " + std::to_string(patches.size()) + " values are no whole patches of " +
                          std::to_string(width));
  }
  if (n > n_left_) {
    throw InvalidArgument("tower: " + std::to_string(n) + " patches came where the grids leave " +
                          std::to_string(n_left_));
  }
  n_left_ -= n;
  while (n > 0) {
    const size_t some =
        std::min({n, size_t{n_patches_ - n_filled_}, size_t{std::min(Tower::kChunk, u(t_.max_patches_))}});
    embed(patches.first(some * width));
    patches = patches.subspan(some * width);
    n -= some;
    if (n_filled_ == n_patches_) {
      run_blocks();
      run_merger();
      if (next_slice_ < slices_.size()) begin_pass();
    }
  }
}

void TowerPass::embed(std::span<const float> patches) {
  const TowerConfig& c = t_.config_;
  const uint32_t n = static_cast<uint32_t>(patches.size() / static_cast<size_t>(c.patch_values()));
  const int half = c.head_dim() / 2;
  const Slice incoming = t_.incoming_[n_committed_ % 2];  // what is in flight reads the other one
  std::memcpy(incoming.host(), patches.data(), patches.size_bytes());
  const std::unique_ptr<CommandBuffer> cb = command_buffer();
  const Slice x = t_.x_ + bytes(n_filled_, c.hidden_size);
  t_.launch_.linear(*cb, incoming, t_.embed_.weight, t_.embed_.bias, x, n);
  cb->barrier();
  t_.launch_.patch_place(*cb, t_.patches_ + n_filled_ * sizeof(Patch), t_.positions_, t_.inv_freq_, x,
                         t_.cos_ + bytes(n_filled_, half), t_.sin_ + bytes(n_filled_, half), n,
                         {u(c.hidden_size), u(c.side()), u(half / 2)});
  commit(*cb);
  n_filled_ += n;
}

void TowerPass::run_blocks() {
  const TowerConfig& c = t_.config_;
  const VisionLauncher& launch = t_.launch_;
  const int d = c.hidden_size, half = c.head_dim() / 2;
  const LayerNormParams norm = {u(d), kEps};
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim())));
  for (const Tower::Block& b : t_.blocks_) {
    for (const Step& s : steps_) {
      const std::unique_ptr<CommandBuffer> cb = command_buffer();
      const Slice qkv = t_.qkv_ + bytes(s.first_row, 3 * d);
      launch.layer_norm(*cb, t_.x_ + bytes(s.first_row, d), b.norm1.weight, b.norm1.bias, t_.rows_, s.n_rows,
                        norm);
      cb->barrier();
      launch.linear(*cb, t_.rows_, b.qkv.weight, b.qkv.bias, qkv, s.n_rows);
      cb->barrier();
      launch.patch_turn(*cb, t_.cos_ + bytes(s.first_row, half), t_.sin_ + bytes(s.first_row, half), qkv,
                        s.n_rows, {u(c.n_heads), u(half)});
      commit(*cb);
    }
    for (const Step& s : steps_) {
      const std::unique_ptr<CommandBuffer> cb = command_buffer();
      const Slice x = t_.x_ + bytes(s.first_row, d);
      launch.slice_attention(*cb, t_.tiles_ + s.first_tile * sizeof(SliceTile), t_.qkv_, t_.rows_, s.n_tiles,
                             {u(c.n_heads), u(c.head_dim()), s.first_row, scale});
      cb->barrier();
      launch.linear(*cb, t_.rows_, b.proj.weight, b.proj.bias, x, s.n_rows, kLinearAdd);
      cb->barrier();
      launch.layer_norm(*cb, x, b.norm2.weight, b.norm2.bias, t_.rows_, s.n_rows, norm);
      cb->barrier();
      launch.linear(*cb, t_.rows_, b.fc1.weight, b.fc1.bias, t_.inner_, s.n_rows, kLinearGeluTanh);
      cb->barrier();
      launch.linear(*cb, t_.inner_, b.fc2.weight, b.fc2.bias, x, s.n_rows, kLinearAdd);
      commit(*cb);
    }
  }
}

// The patches of a token stand together, so that their rows are one row of the merger.
void TowerPass::run_merger() {
  const TowerConfig& c = t_.config_;
  const uint32_t token = u(c.merge * c.merge), most = std::min(Tower::kChunk, u(t_.max_patches_)) / token;
  for (uint32_t first = 0; first < n_patches_ / token; first += most) {
    const uint32_t n = std::min(most, n_patches_ / token - first);
    const std::unique_ptr<CommandBuffer> cb = command_buffer();
    t_.launch_.layer_norm(*cb, t_.x_ + bytes(first, c.merged()), t_.merge_norm_.weight, t_.merge_norm_.bias,
                          t_.rows_, n * token, {u(c.hidden_size), kEps});
    cb->barrier();
    t_.launch_.linear(*cb, t_.rows_, t_.merge1_.weight, t_.merge1_.bias, t_.inner_, n, kLinearGelu);
    cb->barrier();
    t_.launch_.linear(*cb, t_.inner_, t_.merge2_.weight, t_.merge2_.bias, t_.features_, n);
    commit(*cb);
    done_->wait(n_committed_);
    const auto* from = t_.features_.host<const float>();
    out_.insert(out_.end(), from, from + size_t{n} * u(c.out_hidden_size));
  }
}

std::vector<float> TowerPass::finish() {
  if (n_left_)
    throw InvalidArgument("tower: " + std::to_string(n_left_) + " patches of the grids did not come");
  return std::move(out_);
}

}  // namespace flashnext
