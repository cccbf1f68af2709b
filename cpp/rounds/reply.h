// What the runner's files share: what the host keeps of a reply, and sessions that have begun a pass.
#pragma once

#include <memory>
#include <vector>

#include "rounds/runner.h"

namespace flashnext {

struct Runner::Reply final : Session::Attachment {
  ReplyOptions options;
  BufferRef counts, bias, stops;  // of ReplyState
  bool has_head = false;
  DraftCounts draft_counts;
};

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
