// Both forms of GELU.
#pragma once

#include "metal/lib/math.h"

// x * (1 + tanh u) / 2 = x * sigmoid(2 u), u = sqrt(2 / pi) * (x + 0.044715 x^3).
METAL_FUNC float gelu_tanh(float x) {
  const float cubic = fma(x * x * x, 0.044715, x);
  return x * sigmoid(cubic * 1.59576912160573071176);
}

// The normal distribution's share below x, within 8 * 2^-24; its tail is e^(-t^2 / 2) h(k), k = 1 / (1 + t /
// 4), h / k a polynomial fitted to relative 10^-8 over 0 <= t <= 14.5.
METAL_FUNC float normal_share(float x) {
  const float t = x < 0.0 ? -x : x;
  const float k = 1.0 / fma(t, 0.25, 1.0);
  float h = 0.0171899032;
  h = fma(h, k, -0.066144146);
  h = fma(h, k, 0.0596352331);
  h = fma(h, k, 0.0176365096);
  h = fma(h, k, 0.0218405612);
  h = fma(h, k, 0.08166565);
  h = fma(h, k, 0.0737616345);
  h = fma(h, k, 0.095128879);
  h = fma(h, k, 0.0995404124);
  h = fma(h, k, 0.099745363);
  const float tail = exponential(t * t * -0.5) * (h * k);
  return x < 0.0 ? tail : 1.0 - tail;
}
METAL_FUNC float gelu(float x) { return x * normal_share(x); }
