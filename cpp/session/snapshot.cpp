#include "session/snapshot.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"

namespace flashnext {
namespace {

size_t n_pages_of(int n) { return static_cast<size_t>((n + kPageTokens - 1) / kPageTokens); }

void require_size(const char* what, size_t found, size_t expected) {
  if (found != expected) {
    throw InvalidArgument(std::string("snapshot: a ") + what + " has " + std::to_string(found) +
                          " bytes, expected " + std::to_string(expected));
  }
}

}  // namespace

Snapshot::Held::Held(std::shared_ptr<const Model> m, std::shared_ptr<PagePool> p, int length)
    : model(std::move(m)),
      pool(std::move(p)),
      n(length),
      block(model->device()->allocate(model->state_layout().block_bytes)) {
  pages.reserve(n_pages_of(n));
  pool->add_block(block->size_bytes());
}

Snapshot::Held::~Held() {
  for (const int page : pages) pool->release(page, Holder::kSnapshot);
  pool->remove_block(block->size_bytes());
}

std::pair<int, int> Snapshot::Held::rows(size_t index) const {
  const int first = static_cast<int>(index) * kPageTokens;
  return {std::clamp(n - first, 0, kPageTokens), std::clamp(n - 1 - first, 0, kPageTokens)};
}

SnapshotRef Snapshot::make(std::shared_ptr<const Model> model, std::shared_ptr<PagePool> pool, int n,
                           std::span<const int> pages) {
  const auto held = std::make_shared<Held>(std::move(model), std::move(pool), n);
  for (const int page : pages.first(n_pages_of(n))) {
    held->pool->share(page, Holder::kSnapshot);
    held->pages.push_back(page);
  }
  return SnapshotRef(new Snapshot(held));
}

SnapshotRef Snapshot::restore(std::shared_ptr<const Model> model, std::shared_ptr<PagePool> pool, int n,
                              std::span<const std::byte> block, std::span<const PageSource> pages) {
  const size_t page_bytes = pool->page_bytes();
  if (n < 1 || n > model->options().context || pages.size() != n_pages_of(n)) {
    throw InvalidArgument("snapshot: " + std::to_string(pages.size()) + " pages of " + std::to_string(n) +
                          " positions; 1 to " + std::to_string(model->options().context) +
                          " positions are allowed, each " + std::to_string(kPageTokens) +
                          " of them with a page");
  }
  require_size("block", block.size(), model->state_layout().block_bytes);
  const auto held = std::make_shared<Held>(std::move(model), std::move(pool), n);
  std::memcpy(held->block->host(), block.data(), block.size());
  for (const PageSource& source : pages) {
    if (const auto* bytes = std::get_if<std::span<const std::byte>>(&source)) {
      require_size("page", bytes->size(), page_bytes);
      held->pages.push_back(held->pool->take(Holder::kSnapshot));
      std::memcpy(held->pool->host(held->pages.back()), bytes->data(), page_bytes);
      continue;
    }
    const auto [other, index] = std::get<std::pair<const Snapshot*, int>>(source);
    const HeldRef theirs = other->held();
    if (theirs->pool != held->pool || index < 0 || static_cast<size_t>(index) >= theirs->pages.size()) {
      throw InvalidArgument("snapshot: page " + std::to_string(index) + " of another one with " +
                            std::to_string(theirs->pages.size()) + " pages cannot be shared");
    }
    const int page = theirs->pages[static_cast<size_t>(index)];
    held->pool->share(page, Holder::kSnapshot);
    held->pages.push_back(page);
  }
  return SnapshotRef(new Snapshot(held));
}

std::vector<int> Snapshot::page_ids() const {
  const std::lock_guard lock(mutex_);
  return held_ ? held_->pages : std::vector<int>();
}

void Snapshot::close() {
  HeldRef dropped;  // freed without the lock
  const std::lock_guard lock(mutex_);
  dropped.swap(held_);
}

Snapshot::HeldRef Snapshot::held() const {
  const std::lock_guard lock(mutex_);
  if (!held_) throw InvalidArgument("snapshot: used after close");
  return held_;
}

void Snapshot::read_block(std::span<std::byte> out) const {
  const HeldRef held = this->held();
  require_size("block", out.size(), held->block->size_bytes());
  std::memcpy(out.data(), held->block->host(), out.size());
}

void Snapshot::read_page(int index, std::span<std::byte> out) const {
  const HeldRef held = this->held();
  if (index < 0 || static_cast<size_t>(index) >= held->pages.size()) {
    throw InvalidArgument("snapshot: page " + std::to_string(index) + " of " +
                          std::to_string(held->pages.size()));
  }
  require_size("page", out.size(), held->pool->page_bytes());
  const auto at = static_cast<size_t>(index);
  const auto [n_rows, n_head] = held->rows(at);
  held->model->page_layout().copy_rows(held->pool->host(held->pages[at]), n_rows, n_head, out.data());
}

}  // namespace flashnext
