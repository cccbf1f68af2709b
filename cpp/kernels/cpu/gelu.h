// Both forms of GELU, on vectors and on single values.
#pragma once

#include "kernels/cpu/simd.h"

namespace flashnext::cpu::FLASHNEXT_PATH {

// x * (1 + tanh u) / 2 = x * sigmoid(2 u), u = sqrt(2 / pi) * (x + 0.044715 x^3).
inline F gelu_tanh(F x) {
  const F cubic = fma(x * x * x, set1(0.044715f), x);
  return x * sigmoid(cubic * set1(1.59576912160573071176f));
}

// The normal distribution's share below x, within 8 * 2^-24; its tail is e^(-t^2 / 2) h(k), k = 1 / (1 + t /
// 4), h / k a polynomial fitted to relative 10^-8 over 0 <= t <= 14.5.
inline F normal_share(F x) {
  const F t = max(zero() - x, x);
  const F k = set1(1.0f) / fma(t, set1(0.25f), set1(1.0f));
  F h = set1(0.0171899032f);
  h = fma(h, k, set1(-0.066144146f));
  h = fma(h, k, set1(0.0596352331f));
  h = fma(h, k, set1(0.0176365096f));
  h = fma(h, k, set1(0.0218405612f));
  h = fma(h, k, set1(0.08166565f));
  h = fma(h, k, set1(0.0737616345f));
  h = fma(h, k, set1(0.095128879f));
  h = fma(h, k, set1(0.0995404124f));
  h = fma(h, k, set1(0.099745363f));
  const F tail = exp(t * t * set1(-0.5f)) * (h * k);
  return tail + keep_ge(x, zero(), set1(1.0f) - (tail + tail));
}
inline F gelu(F x) { return x * normal_share(x); }

inline float gelu_tanh(float x) { return first(gelu_tanh(set1(x))); }
inline float gelu(float x) { return first(gelu(set1(x))); }

}  // namespace flashnext::cpu::FLASHNEXT_PATH
