#include "base/dtype.h"

namespace flashnext {

std::string suffix(DType t) {
  switch (t) {
    case DType::kBFloat16: return "bf16";
    case DType::kFloat32: return "f32";
    case DType::kUInt32: return "u32";
    case DType::kInt32: return "i32";
    case DType::kInt64: return "i64";
    case DType::kUInt8: return "u8";
  }
  return "";
}

}  // namespace flashnext
