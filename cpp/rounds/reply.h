// What the files of a runner share: a reply as the host keeps it, its rules, sessions that began a pass.
#pragma once

#include <memory>
#include <vector>

#include "rounds/runner.h"

namespace flashnext {

struct Runner::Reply final : Session::Attachment {
  ReplyOptions options;
  BufferRef counts, bias, stops, masks;  // of ReplyState
  bool has_head = false;
  DraftCounts draft_counts;
};

// Writes the numbers that a reply is drawn by; not its bias, and not how many log-probabilities it tells.
void set_rules(ReplyState& state, const Sampling& sampling);

// They fail where the pass is not committed after all.
struct Begun {
  std::vector<SessionRef> sessions;
  ~Begun() {
    for (const SessionRef& s : sessions) s->fail();
  }
};

// The head has absorbed all that it can know before a prompt chunk.
inline bool follows_prompt(const Session& s) { return s.head_length() >= s.length() - 1; }

}  // namespace flashnext
