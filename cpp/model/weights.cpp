#include "model/weights.h"

#include <algorithm>
#include <cstring>

#include "base/dtype.h"
#include "base/error.h"

namespace flashnext {
namespace {

constexpr size_t kCopyBytes = 16 << 20;

std::string text(const std::vector<int64_t>& shape) {
  std::string s = "[";
  for (size_t i = 0; i < shape.size(); ++i) s += (i ? ", " : "") + std::to_string(shape[i]);
  return s + "]";
}

void require_shape(const std::string& name, const TensorView& view, const std::vector<int64_t>& expected) {
  if (view.shape == expected) return;
  throw InvalidArgument("tensor " + name + " has shape " + text(view.shape) + ", expected " + text(expected));
}

}  // namespace

Weights::Weights(DeviceRef device, const std::vector<std::string>& files,
                 std::map<std::string, TensorView> tensors, bool zero_centred)
    : device_(std::move(device)), tensors_(std::move(tensors)), zero_centred_(zero_centred) {
  for (const std::string& path : files) {
    mapped_.push_back(MappedFile::open(path));
    files_.push_back(device_->wrap(mapped_.back()));
  }
}

const TensorView& Weights::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) throw InvalidArgument("tensor " + name + " is missing");
  return it->second;
}

const std::byte* Weights::bytes(const TensorView& view, const std::string& name, size_t size_bytes) const {
  const BufferRef& file = files_.at(static_cast<size_t>(view.file));
  if (view.offset > file->size_bytes() || size_bytes > file->size_bytes() - view.offset) {
    throw InvalidArgument("tensor " + name + " ends beyond its file");
  }
  return file->host() + view.offset;
}

Slice Weights::place(const TensorView& view, const std::string& name, size_t size_bytes, size_t n_own,
                     bool streamed) {
  const std::byte* data = bytes(view, name, size_bytes);
  if (view.offset % device_->limits().tensor_alignment == 0) {
    mapped_bytes_ += n_own;
    if (streamed) {
      streamed_bytes_ += n_own;
      mapped_[static_cast<size_t>(view.file)]->expect_random(view.offset, size_bytes);
    }
    return {files_[static_cast<size_t>(view.file)], view.offset};
  }
  copies_.push_back(device_->allocate(size_bytes));
  const BufferRef& copy = copies_.back();
  for (size_t at = 0; at < size_bytes;
       at += kCopyBytes) {  // in pieces, so that file and copy are never both whole in memory
    const size_t n = std::min(kCopyBytes, size_bytes - at);
    std::memcpy(copy->host() + at, data + at, n);
    mapped_[static_cast<size_t>(view.file)]->release(view.offset + at, n);
  }
  copied_bytes_ += size_bytes;
  return {copy, 0};
}

StoredMatrix Weights::matrix(const std::string& module, int64_t n_out, int64_t n_in, int64_t n_batch,
                             bool streamed) {
  const std::string name = module + ".weight";
  const TensorView& view = find(name);
  StoredMatrix m;
  m.n_out = static_cast<uint32_t>(n_out);
  m.n_in = static_cast<uint32_t>(n_in);
  const size_t n = static_cast<size_t>(n_batch ? n_batch : 1);
  const auto shape = [&](int64_t last) {
    return n_batch ? std::vector<int64_t>{n_batch, n_out, last} : std::vector<int64_t>{n_out, last};
  };
  const auto extent = [&](const TensorView& v, size_t dense) {  // bytes from the first to the last
    return v.batch_stride ? v.batch_stride * (n - 1) + dense : dense * n;
  };
  if (view.dtype == "BF16" || view.dtype == "F32") {
    require_shape(name, view, shape(n_in));
    m.format.bits = view.dtype == "F32" ? 32 : 16;
    const size_t dense = static_cast<size_t>(n_out * n_in) * m.format.bits / 8;
    m.codes = place(view, name, extent(view, dense), dense * n, streamed);
    m.codes_stride = view.batch_stride ? view.batch_stride : dense;
    return m;
  }
  if (view.dtype != "U32")
    throw InvalidArgument("tensor " + name + " has dtype " + view.dtype + ", expected BF16, F32 or U32");
  const TensorView &scales = find(module + ".scales"), &biases = find(module + ".biases");
  if (view.shape.empty() || scales.shape.empty() || scales.shape.back() <= 0) {
    throw InvalidArgument("tensor " + name + " has no columns");
  }
  m.format.bits = static_cast<uint32_t>(view.shape.back() * 32 / n_in);
  m.format.group = static_cast<uint32_t>(n_in / scales.shape.back());
  const uint32_t b = m.format.bits, g = m.format.group;
  if (!(b >= 2 && b <= 8 && b != 7) || (g != 32 && g != 64 && g != 128)) {
    throw InvalidArgument("tensor " + name + " has " + std::to_string(b) + " bits in groups of " +
                          std::to_string(g) +
                          "; supported are 2, 3, 4, 5, 6 and 8 bits in groups of 32, 64 and 128");
  }
  require_shape(name, view, shape(n_in * b / 32));
  require_shape(module + ".scales", scales, shape(n_in / g));
  require_shape(module + ".biases", biases, shape(n_in / g));
  const size_t codes_dense = static_cast<size_t>(n_out * n_in) * b / 8,
               scales_dense = static_cast<size_t>(n_out * n_in / g) * 2;
  m.codes = place(view, name, extent(view, codes_dense), codes_dense * n, streamed);
  m.scales = place(scales, module + ".scales", extent(scales, scales_dense), scales_dense * n, streamed);
  m.biases = place(biases, module + ".biases", extent(biases, scales_dense), scales_dense * n, streamed);
  m.codes_stride = view.batch_stride ? view.batch_stride : codes_dense;
  m.scales_stride = scales.batch_stride ? scales.batch_stride : scales_dense;
  return m;
}

std::vector<float> Weights::floats(const std::string& name, int64_t n) const {
  const TensorView& view = find(name);
  int64_t count = 1;
  for (const int64_t d : view.shape) count *= d;
  if (count != n)
    throw InvalidArgument("tensor " + name + " has " + std::to_string(count) + " values, expected " +
                          std::to_string(n));
  std::vector<float> out(static_cast<size_t>(n));
  if (view.dtype == "F32") {
    std::memcpy(out.data(), bytes(view, name, out.size() * 4), out.size() * 4);
  } else if (view.dtype == "BF16") {
    const std::byte* data = bytes(view, name, out.size() * 2);
    for (size_t i = 0; i < out.size(); ++i) {
      bfloat16 x;
      std::memcpy(&x, data + 2 * i, 2);
      out[i] = to_float(x);
    }
  } else {
    throw InvalidArgument("tensor " + name + " has dtype " + view.dtype + ", expected BF16 or F32");
  }
  return out;
}

BufferRef Weights::keep(const std::vector<float>& values) {
  BufferRef b = device_->allocate(values.size() * sizeof(float));
  std::memcpy(b->host(), values.data(), values.size() * sizeof(float));
  copied_bytes_ += b->size_bytes();
  copies_.push_back(b);
  return b;
}

BufferRef Weights::vector(const std::string& name, int64_t n, bool norm) {
  std::vector<float> values = floats(name, n);
  if (norm && zero_centred_) {
    for (float& x : values) x = 1.0f + x;
  }
  return keep(values);
}

BufferRef Weights::taps(const std::string& name, int64_t channels, int64_t n_taps) {
  // [C, 1, K] and [C, K, 1] hold the same bytes.
  const std::vector<float> values = floats(name, channels * n_taps);
  std::vector<float> turned(values.size());
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t j = 0; j < n_taps; ++j)
      turned[static_cast<size_t>(j * channels + c)] = values[static_cast<size_t>(c * n_taps + j)];
  }
  return keep(turned);
}

StoredMatrix Weights::patch_kernel(const std::string& name, int64_t n_out, int64_t channels, int64_t time,
                                   int64_t side) {
  const TensorView& view = find(name);
  if (view.dtype != "BF16" && view.dtype != "F32") {
    throw InvalidArgument("tensor " + name + " has dtype " + view.dtype + ", expected BF16 or F32");
  }
  const size_t value = view.dtype == "F32" ? 4 : 2, n = static_cast<size_t>(time * side * side),
               rows = static_cast<size_t>(n_out), C = static_cast<size_t>(channels),
               size_bytes = rows * C * n * value;
  StoredMatrix m;
  m.format.bits = static_cast<uint32_t>(8 * value);
  m.n_out = static_cast<uint32_t>(n_out);
  m.n_in = static_cast<uint32_t>(C * n);
  if (view.shape == std::vector<int64_t>{n_out, channels, time, side, side}) {
    m.codes = place(view, name, size_bytes, size_bytes, false);
    return m;
  }
  require_shape(name, view, {n_out, time, side, side, channels});
  const std::byte* from = bytes(view, name, size_bytes);
  copies_.push_back(device_->allocate(size_bytes));
  copied_bytes_ += size_bytes;
  std::byte* to = copies_.back()->host();
  for (size_t r = 0; r < rows; ++r) {
    for (size_t i = 0; i < n; ++i) {
      for (size_t c = 0; c < C; ++c) {
        std::memcpy(to + (r * C * n + c * n + i) * value, from + (r * C * n + i * C + c) * value, value);
      }
    }
  }
  m.codes = {copies_.back(), 0};
  return m;
}

float Weights::scalar(const std::string& name, float otherwise) const {
  return has(name) ? floats(name, 1)[0] : otherwise;
}

}  // namespace flashnext
