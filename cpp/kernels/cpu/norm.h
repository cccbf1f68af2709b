// Root-mean-square norm of one row and rotation of one head, shared by several families.
#pragma once

#include "kernels/cpu/simd.h"
#include "metal/params.h"

#include <math.h>

namespace flashnext::cpu::FLASHNEXT_PATH {

inline float inverse_rms(float sum_of_squares, uint32_t n, float eps) {
  return 1.0f / ::sqrtf(sum_of_squares / static_cast<float>(n) + eps);
}

// out = x / sqrt(mean(x^2) + eps) * gamma, n a multiple of kLanes; out may be x.
template <class In, class Out>
inline void rms_norm(const In* x, const float* gamma, uint32_t n, float eps, Out* out) {
  const F inverse = set1(inverse_rms(sum_of_squares(x, n), n, eps));
  for (uint32_t i = 0; i < n; i += kLanes) store(out + i, load(x + i) * inverse * load(gamma + i));
}

// Rotates the first 2 * half values of a head in place, pairing j with j + half.
inline void rotate(float* x, const float* cos, const float* sin, uint32_t half) {
  for (uint32_t j = 0; j < half; ++j) {
    const float a = x[j], b = x[j + half];
    x[j] = a * cos[j] - b * sin[j];
    x[j + half] = b * cos[j] + a * sin[j];
  }
}

// cos and sin of float32(position) * inv_freq, taken as a float32 angle, times the attention factor. Axis of
// frequency j: h where j mod 3 = 1, w where j mod 3 = 2, below three times the axis' section; else t. Source:
// tests/support/reference/rope.py (`Rope`).
inline void rope_row(const int32_t* rotary, const float* inv_freq, uint32_t half, const uint32_t* section,
                     float factor, float* cos, float* sin) {
  for (uint32_t j = 0; j < half; ++j) {
    const uint32_t axis = j % 3 != 0 && j < 3 * section[j % 3] ? j % 3 : 0;
    const float angle = static_cast<float>(rotary[axis]) * inv_freq[j];
    cos[j] = static_cast<float>(::cos(static_cast<double>(angle))) * factor;
    sin[j] = static_cast<float>(::sin(static_cast<double>(angle))) * factor;
  }
}

// A place in the page that holds `position` of a sequence.
template <class T>
inline T* in_page(const Sequence& s, int32_t position, size_t offset_bytes) {
  const auto* table = reinterpret_cast<const uint64_t*>(s.page_table);
  return reinterpret_cast<T*>(table[position / kPageTokens] + offset_bytes);
}

template <class T>
inline T* at(uint64_t address, size_t offset_bytes = 0) {
  return reinterpret_cast<T*>(address + offset_bytes);
}

}  // namespace flashnext::cpu::FLASHNEXT_PATH
