// What the core was built from and by.
#pragma once

namespace flashnext {

// A hash of the sources that bits can depend on, then compiler, processor and flags. Written at build time by
// build_id.cmake.
extern const char* const kBuildId;

}  // namespace flashnext
