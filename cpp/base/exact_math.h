// exp and log in plain operations and explicit fma, so that every device and the reference sampler give equal
// bits; and the noise of a draw, which is made of them.
//
// Everything here is static: kernel files are compiled for several instruction paths, and a function that
// they shared by name would be linked once, from any of them.
#pragma once

#include <math.h>

#include <bit>
#include <cstdint>

#include "base/hash.h"

namespace flashnext {

// e^x, relative error below 2^-22; 0 below -87, NaN for NaN. x <= 0 is all the sampler needs.
static inline float exact_exp(float x) {
  if (!(x >= -87.0f)) return x != x ? x : 0.0f;
  const float n = ::nearbyintf(x * 1.44269504088896341f);
  float r = ::fmaf(n, -0.693145751953125f, x);
  r = ::fmaf(n, -1.42860682030941723212e-6f, r);
  float p = 1.9841270e-4f;
  p = ::fmaf(p, r, 1.3888889e-3f);
  p = ::fmaf(p, r, 8.3333333e-3f);
  p = ::fmaf(p, r, 4.1666667e-2f);
  p = ::fmaf(p, r, 1.6666667e-1f);
  p = ::fmaf(p, r, 0.5f);
  p = ::fmaf(p, r, 1.0f);
  p = ::fmaf(p, r, 1.0f);
  return p * std::bit_cast<float>(static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23);
}

// Natural logarithm of a positive normal number, absolute error below 2^-22 * max(1, |log x|).
// x = m * 2^e with m in [sqrt(1/2), sqrt(2)); log m = 2 * atanh((m - 1) / (m + 1)) as an odd polynomial.
static inline float exact_log(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t shifted = u - 0x3f3504f3u;  // bits of sqrt(1/2)
  const auto e = static_cast<float>(static_cast<int32_t>(shifted) >> 23);
  const float m = std::bit_cast<float>((shifted & 0x007fffffu) + 0x3f3504f3u);
  const float s = (m - 1.0f) / (m + 1.0f), z = s * s;
  float p = 0.1111111111f;
  p = ::fmaf(p, z, 0.1428571429f);
  p = ::fmaf(p, z, 0.2f);
  p = ::fmaf(p, z, 0.3333333333f);
  const float log_m = ::fmaf(2.0f * s * z, p, 2.0f * s);
  return ::fmaf(e, 0.693145751953125f, ::fmaf(e, 1.42860682030941723212e-6f, log_m));
}

// Noise of a token id at a position: -log(-log u), u = (top 23 bits of a hash + 0.5) * 2^-23. All ids of a
// position share its key.
static inline uint64_t noise_key(uint64_t seed, int64_t position) {
  return splitmix64(seed ^ splitmix64(static_cast<uint64_t>(position)));
}
static inline float noise(uint64_t key, int32_t id) {
  const uint64_t h = splitmix64(key ^ static_cast<uint64_t>(static_cast<uint32_t>(id)));
  const float u = (static_cast<float>(h >> 41) + 0.5f) * 0x1p-23f;
  return -exact_log(-exact_log(u));
}

}  // namespace flashnext
