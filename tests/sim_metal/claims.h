// Claims about the simulated Metal and about the Metal device over it. Behind each all objects are freed, and
// every misuse that was noted was looked for.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "check.h"
#include "device/metal/metal_device.h"
#include "simulated.h"

namespace flashnext::test {

struct Claim {
  Claim(const char* name, void (*run)());
};

// A folder with the texts of metal/, and one that is empty when a claim begins.
std::string kernels_folder();
std::string empty_folder();

// The device with a few kernels, and nothing in its cache.
DeviceRef open_metal(mtl::IdleTimes idle = {}, const std::string& cache = "");

// Some misuse that was noted has these words; forgets all of them.
void require_noted(const std::string& words, const char* file, int line);

}  // namespace flashnext::test

#define CLAIM(name)                                              \
  static void name();                                            \
  static const flashnext::test::Claim claim_##name(#name, name); \
  static void name()

#define CHECK_NOTED(words) flashnext::test::require_noted(words, __FILE__, __LINE__)

// `statement` is refused, in these words.
#define CHECK_REFUSED(statement, words)                                      \
  do {                                                                       \
    try {                                                                    \
      statement;                                                             \
      flashnext::test::fail(__FILE__, __LINE__, "not refused: " #statement); \
    } catch (const sim::Misuse&) {                                           \
    }                                                                        \
    CHECK_NOTED(words);                                                      \
  } while (false)
