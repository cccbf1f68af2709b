// A reply's beginning: its options checked, and its state on the device written.
#include "rounds/reply.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"

namespace flashnext {
namespace {

template <class T>
BufferRef buffer_of(Device& device, const std::vector<T>& values) {
  BufferRef buffer = device.allocate(std::max<size_t>(1, values.size()) * sizeof(T));
  std::copy(values.begin(), values.end(), reinterpret_cast<T*>(buffer->host()));
  return buffer;
}

}  // namespace

void set_rules(ReplyState& r, const Sampling& s) {
  r.seed = s.seed;
  r.temperature = s.temperature;
  r.top_p = s.top_p;
  r.min_p = s.min_p;
  r.presence = s.presence;
  r.frequency = s.frequency;
  r.repetition = s.repetition;
  r.top_k = s.top_k;
}

std::shared_ptr<Runner::Reply> Runner::reply_of(const Session& session) {
  auto reply = std::static_pointer_cast<Reply>(session.attached());
  if (!reply) throw InvalidArgument("session: it has no reply; begin() comes first");
  return reply;
}

void Runner::check_ids(std::span<const int32_t> ids) const {
  for (const int32_t id : ids) {
    if (id < 0 || id >= model_->config().vocab_size) {
      throw InvalidArgument("token id " + std::to_string(id) + " is outside the vocabulary of " +
                            std::to_string(model_->config().vocab_size));
    }
  }
}

void Runner::begin(Session& session, const ReplyOptions& options) {
  options.sampling.check(n_valid_);
  check_ids(options.stop_ids);
  check_ids(options.known);
  const auto reply = std::make_shared<Reply>();
  reply->options = options;
  Device& device = *model_->device();
  const Sampling& s = options.sampling;
  struct Begins {  // keeps the session's memory in place, whoever closes it
    Session& session;
    std::shared_ptr<Reply> reply;
    ~Begins() { session.end_begin(std::move(reply)); }
  };
  ReplyState& r = session.begin_reply();
  Begins begins = {session, nullptr};
  const auto context = model_->options().context;
  r.end = options.end > 0 ? std::min(options.end, context + 1) : context + 1;
  r.known = options.known.empty() ? 0 : options.n_prompt + static_cast<int32_t>(options.known.size());
  if (r.known >= r.end || options.n_prompt < 0) {
    throw InvalidArgument("reply: " + std::to_string(options.n_prompt) + " tokens of prompt and " +
                          std::to_string(options.known.size()) +
                          " known tokens do not stand before its end at " + std::to_string(r.end));
  }
  std::copy(options.known.begin(), options.known.end(), session.text().begin() + options.n_prompt);
  set_rules(r, s);
  r.n_logprobs = s.logprobs < 0 ? -1 : std::min(s.logprobs, kMaxTop);
  std::vector<BiasEntry> bias;
  for (const auto& [id, value] : s.bias) bias.push_back({id, value});
  std::sort(bias.begin(), bias.end(), [](const BiasEntry& a, const BiasEntry& b) { return a.id < b.id; });
  reply->bias = buffer_of(device, bias);
  reply->stops = buffer_of(device, options.stop_ids);
  r.bias = reply->bias->address();
  r.n_bias = static_cast<int32_t>(bias.size());
  r.stops = reply->stops->address();
  r.n_stops = static_cast<int32_t>(options.stop_ids.size());
  if (s.penalizes()) {
    reply->counts = device.allocate(2 * static_cast<size_t>(n_valid_) * sizeof(int32_t));
    r.counts = reply->counts->address();
  } else {
    r.counts = 0;
  }
  if (options.grammar != 0) {
    if (!write_masks_) throw InvalidArgument("reply: it has a grammar, and nobody knows any");
    reply->masks = device.allocate(kMaxWindow * mask_words() * sizeof(uint32_t));
    r.masks = reply->masks->address();
  } else {
    r.masks = 0;
  }
  r.n_drafts = r.copied = r.ended = 0;
  reply->has_head = model_->has_head() && follows_prompt(session);
  r.has_head = reply->has_head;
  begins.reply = reply;
}

// Counts what the session has read, when the pass that reads the last of it is about to be committed.
void Runner::fill_counts(Session& session, const Reply& reply, int n_read) const {
  if (!reply.counts) return;
  auto* counts = reinterpret_cast<int32_t*>(reply.counts->host());
  const std::span<const int32_t> text = session.text();
  for (int at = 0; at < n_read; ++at) {
    const int32_t token = text[static_cast<size_t>(at)];
    if (token < n_valid_) ++counts[(at < reply.options.n_prompt ? 0 : n_valid_) + token];
  }
}

std::vector<int32_t> Runner::drafts(Session& session) const {
  reply_of(session);
  const ReplyState& r = session.reply();
  const auto first = session.text().begin() + r.length + 1;
  return {first, first + r.n_drafts};
}

DraftCounts Runner::draft_counts(const Session& session) const { return reply_of(session)->draft_counts; }

std::optional<ReplyLimits> Runner::limits(const Session& session) const {
  if (session.closed()) return std::nullopt;
  const auto reply = std::static_pointer_cast<Reply>(session.attached());
  if (!reply && session.closed()) return std::nullopt;
  const ReplyOptions& options = reply_of(session)->options;
  return ReplyLimits{options.most,
                     options.known.empty() ? 0 : options.n_prompt + static_cast<int>(options.known.size())};
}

}  // namespace flashnext
