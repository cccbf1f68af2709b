#include "session/session.h"

#include <cstring>

#include "base/error.h"

namespace flashnext {
namespace {

constexpr uint64_t kHashSeed = 0xcbf29ce484222325u;

// 64-bit FNV-1a over 8-byte words; sizes here are multiples of 4 and often of 8.
uint64_t hash_bytes(const std::byte* data, size_t n, uint64_t h) {
  for (size_t i = 0; i < n; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, data + i, n - i < 8 ? n - i : 8);
    h = (h ^ word) * 0x100000001b3u;
    h ^= h >> 29;
  }
  return h;
}

}  // namespace

Session::Session(std::shared_ptr<const Model> model, std::shared_ptr<PagePool> pool)
    : model_(std::move(model)), pool_(std::move(pool)) {
  if (pool_->page_bytes() != model_->page_layout().size_bytes) {
    throw InvalidArgument("session: the page pool was made for another model");
  }
  Device& device = *model_->device();
  const size_t max_pages = static_cast<size_t>(model_->options().context) / kPageTokens + 2;
  page_table_ = device.allocate(max_pages * sizeof(uint64_t));
  block_ = device.allocate(model_->state_layout().block_bytes);
  for (BufferRef& b : unsettled_) b = device.allocate(model_->state_layout().unsettled_bytes);
  // The n-gram table reads the segment token where there is nothing before.
  const Config& c = model_->config();
  for (const StateLayout::Ple& p : model_->state_layout().ples) {
    auto* tokens = reinterpret_cast<int32_t*>(block_->host() + p.tokens);
    for (int i = 0; i + 1 < c.ngram_size; ++i) tokens[i] = c.segment_token;
  }
}

Session::~Session() { close(); }

void Session::close() {
  if (closed_) return;
  closed_ = true;
  for (const int page : pages_) pool_->release(page);
  pages_.clear();
  page_table_ = block_ = unsettled_[0] = unsettled_[1] = nullptr;
}

size_t Session::size_bytes() const {
  size_t n = 0;
  for (const BufferRef& b : {page_table_, block_, unsettled_[0], unsettled_[1]}) n += b ? b->size_bytes() : 0;
  return n;
}

void Session::require_usable() const {
  if (closed_) throw InvalidArgument("session: used after close");
  if (broken_) throw InvalidArgument("session: a pass over it failed; close it and start again");
}

Sequence Session::begin(int n_rows, bool is_window) {
  require_usable();
  const int context = model_->options().context;
  if (length_ + n_rows > context) {
    throw InvalidArgument("session: " + std::to_string(length_) + " + " + std::to_string(n_rows) +
                          " positions exceed the context of " + std::to_string(context));
  }
  // Windows take pages two windows ahead, so that rounds may be recorded before the one in front has landed.
  const int ahead = is_window && n_rows ? 2 * model_->options().max_window : 0;
  const size_t had = pages_.size();
  try {
    take_pages(std::min(length_ + n_rows + ahead, context));
  } catch (const OutOfPages&) {
    const auto needed = static_cast<size_t>((length_ + n_rows + kPageTokens - 1) / kPageTokens);
    if (pages_.size() < needed) {  // the pages ahead are a courtesy, these are not
      while (pages_.size() > had) {
        pool_->release(pages_.back());
        pages_.pop_back();
      }
      throw;
    }
  }
  Sequence s = {};
  s.page_table = page_table_->address();
  s.state = block_->address();
  s.kept = unsettled_[1 - parity_]->address();
  s.unsettled = unsettled_[parity_]->address();
  s.n_rows = n_rows;
  s.n_kept = kept_;
  s.start = length_;
  s.is_window = is_window;
  return s;
}

void Session::take_pages(int end) {
  const auto wanted = static_cast<size_t>((end + kPageTokens - 1) / kPageTokens);
  while (pages_.size() < wanted) {
    pages_.push_back(pool_->take());
    reinterpret_cast<uint64_t*>(page_table_->host())[pages_.size() - 1] = pool_->address(pages_.back());
  }
}

int Session::reserve(int end) {
  require_usable();
  end = std::min(end, model_->options().context);
  try {
    take_pages(end);
  } catch (const OutOfPages&) {  // what there is has been taken
  }
  return std::min(end, static_cast<int>(pages_.size()) * kPageTokens);
}

Sequence Session::head_sequence() const {
  require_usable();
  Sequence s = {};
  s.page_table = page_table_->address();
  return s;
}

void Session::end(int n_rows, bool is_window) {
  kept_ = 0;
  window_ = 0;
  if (is_window) {
    window_ = n_rows;
  } else {
    length_ += n_rows;
  }
}

void Session::keep(int n) {
  require_usable();
  if (n < 0 || n > window_) {
    throw InvalidArgument("session: cannot keep " + std::to_string(n) + " rows of a window of " +
                          std::to_string(window_));
  }
  length_ += n;
  kept_ = n;
  window_ = 0;
  parity_ = 1 - parity_;
}

uint64_t Session::cache_hash(uint64_t h, std::span<const PageLayout::Layer> layers, int n_rows) const {
  const Config& c = model_->config();
  const PageLayout& page = model_->page_layout();
  const size_t t = flashnext::size_bytes(model_->options().dtype);
  for (int at = 0; at < n_rows; ++at) {
    const std::byte* base = pool_->host(pages_[static_cast<size_t>(at / kPageTokens)]);
    const auto in_page = static_cast<size_t>(at % kPageTokens);
    h = hash_bytes(base + page.rotary + in_page * 12, 12, h);
    const size_t head = static_cast<size_t>(c.head_dim) * t, key = static_cast<size_t>(c.index_head_dim) * t;
    for (const PageLayout::Layer& layer : layers) {
      for (int kv = 0; kv < c.n_kv_heads; ++kv) {
        const size_t row = (static_cast<size_t>(kv) * kPageTokens + in_page) * head;
        h = hash_bytes(base + layer.k + row, head, h);
        h = hash_bytes(base + layer.v + row, head, h);
      }
      h = hash_bytes(base + layer.raw + in_page * key, key, h);
      if ((at + 1) % c.index_ratio == 0) {
        h = hash_bytes(base + layer.pooled + in_page / static_cast<size_t>(c.index_ratio) * key, key, h);
      }
    }
  }
  return h;
}

uint64_t Session::state_hash() const {
  require_usable();
  // The streams lie last; they are the draft head's.
  const StateLayout& state = model_->state_layout();
  const size_t n = model_->has_head() ? state.streams : state.block_bytes;
  return cache_hash(hash_bytes(block_->host(), n, kHashSeed), model_->page_layout().layers, length_);
}

uint64_t Session::head_hash(int n) const {
  require_usable();
  if (!model_->has_head() || n < 0 || n > head_length_) {
    throw InvalidArgument("session: the draft head has absorbed " + std::to_string(head_length_) +
                          " positions, cannot hash " + std::to_string(n));
  }
  return cache_hash(kHashSeed, {&*model_->page_layout().head, 1}, n);
}

}  // namespace flashnext
