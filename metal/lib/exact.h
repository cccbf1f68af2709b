// exp, log and noise of the sampler, equal to cpp/base/exact_math.h for every bit: plain operations and fma.
#pragma once

#include "metal/lib/math.h"

// e^x for x <= 0, relative error below 2^-22; 0 below -87 and for NaN.
METAL_FUNC float exact_exp(float x) {
  if (!(x >= -87.0)) return 0;
  float n;
  const float p = exponential_part(x, n);
  return p * power_of_two(n);
}

// Natural logarithm of a positive normal number, absolute error below 2^-22 * max(1, |log x|).
METAL_FUNC float exact_log(float x) {
  const uint shifted = as_type<uint>(x) - 0x3f3504f3u;  // bits of sqrt(1/2)
  const float e = float(as_type<int>(shifted) >> 23);
  const float m = as_type<float>((shifted & 0x007fffffu) + 0x3f3504f3u);
  const float s = (m - 1.0) / (m + 1.0), z = s * s;
  float p = 0.1111111111;
  p = fma(p, z, 0.1428571429);
  p = fma(p, z, 0.2);
  p = fma(p, z, 0.3333333333);
  const float log_m = fma(2.0 * s * z, p, 2.0 * s);
  return fma(e, 0.693145751953125, fma(e, 1.42860682030941723212e-6, log_m));
}

METAL_FUNC ulong splitmix64(ulong x) {
  x += 0x9e3779b97f4a7c15ul;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ul;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebul;
  return x ^ (x >> 31);
}

// Noise of a token id at a position: -log(-log u), u = (top 23 bits of a hash + 0.5) * 2^-23. All ids of a
// position share its key.
METAL_FUNC ulong noise_key(ulong seed, int position) {
  return splitmix64(seed ^ splitmix64(ulong(position)));
}
METAL_FUNC float noise(ulong key, uint id) {
  const float u = (float(uint(splitmix64(key ^ ulong(id)) >> 41)) + 0.5) * 1.1920928955078125e-07;
  return -exact_log(-exact_log(u));
}
