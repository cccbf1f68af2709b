// Element types of stored tensors and the conversions between them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

namespace flashnext {

enum class DType : uint8_t { kBFloat16, kFloat32, kUInt32, kInt32, kInt64, kUInt8 };

constexpr size_t size_bytes(DType t) {
  switch (t) {
    case DType::kBFloat16: return 2;
    case DType::kInt64: return 8;
    case DType::kUInt8: return 1;
    default: return 4;
  }
}

// Suffix of kernel names: "bf16", "f32".
std::string suffix(DType t);

// The upper half of a float32.
struct bfloat16 {
  uint16_t bits;
};

inline float to_float(bfloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
inline float to_float(float x) { return x; }

// Round to nearest, ties to even; NaN stays NaN (quiet).
inline bfloat16 round_bfloat16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

}  // namespace flashnext
