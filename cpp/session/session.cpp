#include "session/session.h"

#include <algorithm>
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
  const auto context = static_cast<size_t>(model_->options().context);
  page_table_ = device.allocate((context / kPageTokens + 2) * sizeof(uint64_t));
  block_ = device.allocate(model_->state_layout().block_bytes);
  for (BufferRef& b : unsettled_) b = device.allocate(model_->state_layout().unsettled_bytes);
  text_ = device.allocate((context + 2 * kMaxWindow) * sizeof(int32_t));
  reply_ = device.allocate(sizeof(ReplyState));
  // The n-gram table reads the segment token where there is nothing before.
  const Config& c = model_->config();
  for (const StateLayout::Ple& p : model_->state_layout().ples) {
    auto* tokens = reinterpret_cast<int32_t*>(block_->host() + p.tokens);
    for (int i = 0; i + 1 < c.ngram_size; ++i) tokens[i] = c.segment_token;
  }
}

Session::~Session() { release(); }

int Session::length() const {
  const std::lock_guard lock(mutex_);
  return length_;
}
int Session::n_pages() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(pages_.size());
}
int Session::most_length() const {
  const std::lock_guard lock(mutex_);
  return length_ + n_ahead_;
}
bool Session::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}
int Session::head_length() const {
  const std::lock_guard lock(mutex_);
  return head_length_;
}
bool Session::settled() const {
  const std::lock_guard lock(mutex_);
  return kept_ == 0;
}

void Session::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  if (n_passes_ == 0) release();
}

void Session::release() {
  closed_ = true;
  for (const int page : pages_) pool_->release(page, Holder::kSession);
  pages_.clear();
  page_table_ = block_ = unsettled_[0] = unsettled_[1] = text_ = reply_ = nullptr;
  attachment_ = nullptr;
}

void Session::landed_pass() {
  if (--n_passes_ == 0 && closed_) release();
}

void Session::fail() {
  const std::lock_guard lock(mutex_);
  broken_ = true;
  landed_pass();
}

size_t Session::size_bytes() const {
  const std::lock_guard lock(mutex_);
  size_t n = 0;
  for (const BufferRef& b : {page_table_, block_, unsettled_[0], unsettled_[1], text_, reply_}) {
    n += b ? b->size_bytes() : 0;
  }
  return n;
}

void Session::require_usable() const {
  if (closed_) throw InvalidArgument("session: used after close");
  if (broken_) throw InvalidArgument("session: a pass over it failed; close it and start again");
}

void Session::set_frame(FrameRef frame) {
  const std::lock_guard lock(mutex_);
  require_usable();
  if (n_passes_) throw InvalidArgument("session: passes over it are in flight");
  if (attachment_) throw InvalidArgument("session: its reply has begun, and where its rows stand is settled");
  frame_ = std::move(frame);
}

FrameRef Session::frame() const {
  const std::lock_guard lock(mutex_);
  return frame_;
}

std::shared_ptr<Session> Session::fork() const {
  const std::lock_guard lock(mutex_);
  require_usable();
  if (kept_ || window_ || n_passes_) {
    throw InvalidArgument("session: only one that stands between prompt passes can be forked");
  }
  const std::span<const int32_t> tokens = {reinterpret_cast<const int32_t*>(text_->host()),
                                           static_cast<size_t>(length_)};
  const std::shared_ptr<Session> other = behind(model_, pool_, block_, pages_, tokens, head_length_);
  other->frame_ = frame_;
  return other;
}

std::shared_ptr<Session> Session::resume(const Snapshot& snapshot, std::span<const int32_t> tokens) {
  const Snapshot::HeldRef held = snapshot.held();
  if (tokens.size() != static_cast<size_t>(held->n)) {
    throw InvalidArgument("session: " + std::to_string(tokens.size()) + " tokens for a snapshot of " +
                          std::to_string(held->n));
  }
  for (const int32_t id : tokens) {
    if (id < 0 || id >= held->model->config().vocab_size) {
      throw InvalidArgument("session: token id " + std::to_string(id) + " is outside the vocabulary of " +
                            std::to_string(held->model->config().vocab_size));
    }
  }
  const int head_length = held->model->has_head() ? held->n - 1 : 0;
  return behind(held->model, held->pool, held->block, held->pages, tokens, head_length);
}

std::shared_ptr<Session> Session::behind(std::shared_ptr<const Model> model, std::shared_ptr<PagePool> pool,
                                         const BufferRef& block, std::span<const int> pages,
                                         std::span<const int32_t> tokens, int head_length) {
  const auto other = std::make_shared<Session>(std::move(model), std::move(pool));
  const auto n = static_cast<int>(tokens.size());
  other->length_ = n;
  other->head_length_ = head_length;
  std::memcpy(other->block_->host(), block->host(), block->size_bytes());
  std::copy(tokens.begin(), tokens.end(), other->text().begin());
  if (n == 0) return other;
  // The page of the last position is still written: the next rows, and the draft head's row of that position.
  const int n_shared = (n - 1) / kPageTokens, first = n_shared * kPageTokens;
  auto* table = reinterpret_cast<uint64_t*>(other->page_table_->host());
  PagePool& shared = *other->pool_;
  for (const int page : pages.first(static_cast<size_t>(n_shared))) {
    shared.share(page, Holder::kSession);
    table[other->pages_.size()] = shared.address(page);
    other->pages_.push_back(page);
  }
  other->take_pages(n);
  other->model_->page_layout().copy_rows(shared.host(pages[static_cast<size_t>(n_shared)]), n - first,
                                         std::clamp(head_length - first, 0, kPageTokens),
                                         shared.host(other->pages_.back()));
  return other;
}

SnapshotRef Session::snapshot() const {
  const std::lock_guard lock(mutex_);
  require_usable();
  const bool head_follows = !model_->has_head() || head_length_ >= length_ - 1;
  if (kept_ || window_ || n_passes_ || length_ == 0 || !head_follows) {
    throw InvalidArgument(
        "session: a snapshot wants one that has read something, with nothing unsettled or in flight and with "
        "a draft head that has followed");
  }
  SnapshotRef made = Snapshot::make(model_, pool_, length_, pages_);
  std::memcpy(made->held()->block->host(), block_->host(), block_->size_bytes());
  return made;
}

SnapshotRef Session::tap(int n) const {
  const std::lock_guard lock(mutex_);
  return Snapshot::make(model_, pool_, n, pages_);
}

Sequence Session::begin(int n_rows, bool is_window) {
  const std::lock_guard lock(mutex_);
  require_usable();
  if (n_ahead_) throw InvalidArgument("session: rounds over it are in flight");
  const int context = model_->options().context;
  if (length_ + n_rows > context) {
    throw InvalidArgument("session: " + std::to_string(length_) + " + " + std::to_string(n_rows) +
                          " positions exceed the context of " + std::to_string(context));
  }
  const size_t had = pages_.size();
  try {
    take_pages(length_ + n_rows);
  } catch (...) {
    while (pages_.size() > had) {
      pool_->release(pages_.back(), Holder::kSession);
      pages_.pop_back();
    }
    throw;
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
  ++n_passes_;
  return s;
}

void Session::take_pages(int end) {
  const auto wanted = static_cast<size_t>((end + kPageTokens - 1) / kPageTokens);
  while (pages_.size() < wanted) {
    pages_.push_back(pool_->take(Holder::kSession));
    reinterpret_cast<uint64_t*>(page_table_->host())[pages_.size() - 1] = pool_->address(pages_.back());
  }
}

int Session::reserve(int end) {
  const std::lock_guard lock(mutex_);
  return reserve_pages(0, end);
}

int Session::reserve_pages(int least, int end) {
  const int context = model_->options().context;
  const auto reach = [&] { return std::min(static_cast<int>(pages_.size()) * kPageTokens, context); };
  try {
    take_pages(std::min(end, context));
  } catch (const OutOfPages&) {  // what there is has been taken
  } catch (const OutOfMemory&) {
    if (reach() < least) throw;
  }
  return reach();
}

Sequence Session::head_sequence() const {
  Sequence s = {};
  s.page_table = page_table_->address();
  return s;
}

void Session::end_head(int length) {
  const std::lock_guard lock(mutex_);
  head_length_ = length;
}

void Session::end(int n_rows, bool is_window) {
  const std::lock_guard lock(mutex_);
  kept_ = 0;
  window_ = 0;
  if (is_window) {
    window_ = n_rows;
  } else {
    length_ += n_rows;
  }
  if (reply_) reinterpret_cast<ReplyState*>(reply_->host())->n_kept = 0;
  landed_pass();
}

void Session::keep(int n) {
  const std::lock_guard lock(mutex_);
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

std::span<int32_t> Session::text() {
  if (!text_) throw InvalidArgument("session: used after close");
  return {reinterpret_cast<int32_t*>(text_->host()), text_->size_bytes() / sizeof(int32_t)};
}

std::shared_ptr<Session::Attachment> Session::attached() const {
  const std::lock_guard lock(mutex_);
  return attachment_;
}

bool Session::failed() const {
  const std::lock_guard lock(mutex_);
  return broken_;
}

const ReplyState& Session::reply() const {
  if (!reply_) throw InvalidArgument("session: used after close");
  return *reinterpret_cast<const ReplyState*>(reply_->host());
}

void Session::end_begin(std::shared_ptr<Attachment> attachment) {
  const std::lock_guard lock(mutex_);
  if (attachment) attachment_ = std::move(attachment);
  landed_pass();
}

ReplyState& Session::begin_reply() {
  const std::lock_guard lock(mutex_);
  require_usable();
  if (n_passes_) throw InvalidArgument("session: passes over it are in flight");
  ++n_passes_;
  auto& r = *reinterpret_cast<ReplyState*>(reply_->host());
  r.page_table = page_table_->address();
  r.state = block_->address();
  for (int i = 0; i < 2; ++i) r.unsettled[i] = unsettled_[i]->address();
  r.text = text_->address();
  r.parity = parity_;
  r.n_kept = kept_;
  r.rotary_delta = delta_of(frame_);
  return r;
}

Session::Ready Session::try_begin_round(int& n_rows, int& n_ahead) {
  const std::lock_guard lock(mutex_);
  if (closed_) return Ready::kClosed;
  require_usable();
  if (!attachment_)
    throw InvalidArgument("round: the session has no pending token; its prompt is not read yet");
  // Rounds in flight have committed up to n_ahead_ positions that the host does not know of yet.
  const int at = length_ + n_ahead_, context = model_->options().context;
  const int reach = reserve_pages(std::min(at + 1, context), at + n_rows + n_ahead);
  // A reply whose end is in flight may seem to stand at the end of the context already: its round is empty.
  if (reach <= at && at < context) return Ready::kNoPages;
  n_rows = std::clamp(reach - at, 1, n_rows);
  n_ahead = std::clamp(reach - at - n_rows, 0, n_ahead);
  n_ahead_ += n_rows;
  ++n_passes_;
  return Ready::kYes;
}

void Session::end_round(int n_rows, const Landed& landed, bool with_head) {
  const std::lock_guard lock(mutex_);
  n_ahead_ -= n_rows;
  if (landed.n_tokens) {
    length_ = landed.length;
    kept_ = landed.n_tokens;
    parity_ = landed.parity;
    if (with_head) head_length_ = length_;
  }
  landed_pass();
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
  const std::lock_guard lock(mutex_);
  require_usable();
  // The streams lie last; they are the draft head's.
  const StateLayout& state = model_->state_layout();
  const size_t n = model_->has_head() ? state.streams : state.block_bytes;
  return cache_hash(hash_bytes(block_->host(), n, kHashSeed), model_->page_layout().layers, length_);
}

uint64_t Session::head_hash(int n) const {
  const std::lock_guard lock(mutex_);
  require_usable();
  if (!model_->has_head() || n < 0 || n > head_length_) {
    throw InvalidArgument("session: the draft head has absorbed " + std::to_string(head_length_) +
                          " positions, cannot hash " + std::to_string(n));
  }
  return cache_hash(kHashSeed, {&*model_->page_layout().head, 1}, n);
}

}  // namespace flashnext
