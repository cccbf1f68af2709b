// Checks of the C++ tests: a test is a function named as a claim; the first false check ends the
// program.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

namespace flashnext::test {

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  std::_Exit(1);
}

struct Test {
  const char* name;
  void (*run)();
};

template <int n>
int run_all(const Test (&tests)[n]) {
  for (const Test& t : tests) {
    std::printf("%s\n", t.name);
    std::fflush(stdout);
    t.run();
  }
  return 0;
}

}  // namespace flashnext::test

#define CHECK(condition) \
  if (!(condition)) flashnext::test::fail(__FILE__, __LINE__, "not so: " #condition)

#define CHECK_EQ(found, expected)                                       \
  if (auto f = (found), e = static_cast<decltype(f)>(expected); f != e) \
  flashnext::test::fail(__FILE__, __LINE__,                             \
                        #found " is " + std::to_string(f) + ", expected " + std::to_string(e))

// `statement` throws `error` with `words` in its text.
#define CHECK_THROWS(statement, error, words)                                                \
  try {                                                                                      \
    statement;                                                                               \
    flashnext::test::fail(__FILE__, __LINE__, "no error from " #statement);                  \
  } catch (const error& e) {                                                                 \
    if (std::string(e.what()).find(words) == std::string::npos) {                            \
      flashnext::test::fail(__FILE__, __LINE__, std::string("the error says: ") + e.what()); \
    }                                                                                        \
  }

#define TEST(name) {#name, name}
