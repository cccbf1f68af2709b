// The last rows of a sequence, which several kernels keep in its recurrent block.
#pragma once

#include "kernels/cpu/simd.h"

namespace flashnext::cpu::FLASHNEXT_PATH {

// The last rows of a tail followed by `n_new` rows, as many as the tail has, into `out`, which may be the
// tail itself. Rows have `width` values, of which `n` from `first` are touched.
template <class T>
inline void last_rows(T* out, const T* tail, uint32_t n_tail, const T* rows, uint32_t n_new, size_t width,
                      uint32_t first, uint32_t n) {
  for (uint32_t i = 0; i < n_tail; ++i) {
    const uint32_t from = i + n_new;  // of tail rows followed by new rows
    const T* source = from < n_tail ? tail + from * width : rows + size_t{from - n_tail} * width;
    std::memmove(out + i * width + first, source + first, n * sizeof(T));
  }
}

}  // namespace flashnext::cpu::FLASHNEXT_PATH
