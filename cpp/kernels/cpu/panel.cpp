// Decoding of stored weights and the register-tiled products of panel.h.
#include "kernels/cpu/panel.h"

namespace flashnext::cpu::FLASHNEXT_PATH {
namespace {

// Decodes 32 codes of kBits bits (4 * kBits bytes, nothing beyond them is read) to four vectors of whole
// numbers.
template <int kBits>
struct Codes {
#if defined(__AVX2__)
  // Eight codes fill kBits bytes. Where eight bytes from their start would reach past the group, the load
  // ends with them instead.
  template <int kPiece>
  static F piece(const uint8_t* p) {
    constexpr int kBack = kPiece * kBits + 8 > 4 * kBits ? kPiece * kBits + 8 - 4 * kBits : 0;
    uint64_t word;
    std::memcpy(&word, p + kPiece * kBits - kBack, 8);
    const __m256i bytes = _mm256_set1_epi64x(static_cast<long long>(word));
    const auto at = [](int i) { return static_cast<char>(i * kBits / 8 + kBack); };
    const auto next = [](int i) {  // -1 gives zero: a code that ends in its first byte
      return static_cast<char>(i * kBits % 8 + kBits > 8 ? i * kBits / 8 + kBack + 1 : -1);
    };
    const __m256i spread = _mm256_setr_epi8(at(0), next(0), -1, -1, at(1), next(1), -1, -1, at(2), next(2),
                                            -1, -1, at(3), next(3), -1, -1, at(4), next(4), -1, -1, at(5),
                                            next(5), -1, -1, at(6), next(6), -1, -1, at(7), next(7), -1, -1);
    const __m256i shift = _mm256_setr_epi32(0, kBits % 8, 2 * kBits % 8, 3 * kBits % 8, 4 * kBits % 8,
                                            5 * kBits % 8, 6 * kBits % 8, 7 * kBits % 8);
    const __m256i wide = _mm256_srlv_epi32(_mm256_shuffle_epi8(bytes, spread), shift);
    return {_mm256_cvtepi32_ps(_mm256_and_si256(wide, _mm256_set1_epi32((1 << kBits) - 1)))};
  }
  static void unpack(const uint8_t* p, F out[4]) {
    out[0] = piece<0>(p);
    out[1] = piece<1>(p);
    out[2] = piece<2>(p);
    out[3] = piece<3>(p);
  }
#else
  static void unpack(const uint8_t* p, F out[4]) {
    float codes[32];
    for (int i = 0; i < 32; ++i) {
      const int bit = i * kBits, byte = bit / 8;
      uint32_t word = p[byte];
      if (bit % 8 + kBits > 8) word |= uint32_t{p[byte + 1]} << 8;
      codes[i] = static_cast<float>((word >> (bit % 8)) & ((1u << kBits) - 1));
    }
    for (int i = 0; i < 4; ++i) out[i] = load(codes + i * kLanes);
  }
#endif
};

#if defined(__AVX2__)
template <>
struct Codes<4> {  // a word of four bytes holds eight codes
  static void unpack(const uint8_t* p, F out[4]) {
    const __m256i shift = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    for (int i = 0; i < 4; ++i) {
      int32_t word;
      std::memcpy(&word, p + 4 * i, 4);
      const __m256i wide = _mm256_srlv_epi32(_mm256_set1_epi32(word), shift);
      out[i] = {_mm256_cvtepi32_ps(_mm256_and_si256(wide, _mm256_set1_epi32(15)))};
    }
  }
};

template <>
struct Codes<8> {
  static void unpack(const uint8_t* p, F out[4]) {
    for (int i = 0; i < 4; ++i) {
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8 * i));
      out[i] = {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes))};
    }
  }
};
#endif

constexpr uint32_t kGroupsAtOnce = 8;

// fp32 copies of up to kGroupsAtOnce scales or biases: converting them together and broadcasting from memory
// costs a quarter of converting each where it is used.
inline void convert(const bfloat16* from, uint32_t n, float* to) {
  if (n == kGroupsAtOnce) {
    for (uint32_t i = 0; i < kGroupsAtOnce; i += kLanes) store(to + i, load(from + i));
  } else {
    for (uint32_t i = 0; i < n; ++i) to[i] = to_float(from[i]);
  }
}

template <int kBits>
void decode_codes(const Matrix& w, uint32_t row, uint32_t k0, uint32_t n, float* out) {
  const uint32_t group = w.format.group;
  const Matrix m = w.from_row(row);
  for (uint32_t k = k0; k < k0 + n;) {
    const F scale = set1(to_float(m.scales[k / group])), bias = set1(to_float(m.biases[k / group]));
    for (const uint32_t end = k + group; k < end; k += 32, out += 32) {
      F codes[4];
      Codes<kBits>::unpack(m.codes + size_t{k} * kBits / 8, codes);
      for (int i = 0; i < 4; ++i) store(out + i * kLanes, fma(scale, codes[i], bias));
    }
  }
}

template <class Stored>
void decode_plain(const Matrix& w, uint32_t row, uint32_t k0, uint32_t n, float* out) {
  to_floats(reinterpret_cast<const Stored*>(w.codes) + size_t{row} * w.n_in + k0, n, out);
}

template <int kBits, int kColumns>
void dot_codes(const Matrix& w, const float* x, float* y) {
  const uint32_t group = w.format.group, n_groups = w.n_in / group;
  const size_t row_bytes = w.row_bytes();
  F acc[kColumns];
  for (int c = 0; c < kColumns; ++c) acc[c] = zero();
  for (uint32_t g0 = 0; g0 < n_groups; g0 += kGroupsAtOnce) {
    const uint32_t n = n_groups - g0 < kGroupsAtOnce ? n_groups - g0 : kGroupsAtOnce;
    float scale[kColumns][kGroupsAtOnce], bias[kColumns][kGroupsAtOnce];
    for (int c = 0; c < kColumns; ++c) {
      convert(w.scales + size_t(c) * n_groups + g0, n, scale[c]);
      convert(w.biases + size_t(c) * n_groups + g0, n, bias[c]);
    }
    for (uint32_t g = 0; g < n; ++g) {
      const uint32_t first = (g0 + g) * group;
      for (uint32_t k = first; k < first + group; k += 32) {
        for (int c = 0; c < kColumns; ++c) {
          const F s = set1(scale[c][g]), b = set1(bias[c][g]);
          F codes[4];
          Codes<kBits>::unpack(w.codes + c * row_bytes + size_t{k} * kBits / 8, codes);
          for (int i = 0; i < 4; ++i) acc[c] = fma(fma(s, codes[i], b), load(x + k + i * kLanes), acc[c]);
        }
      }
    }
  }
  for (int c = 0; c < kColumns; ++c) y[c] = reduce_add(acc[c]);
}

template <class Stored, int kColumns>
void dot_plain(const Matrix& w, const float* x, float* y) {
  const auto* rows = reinterpret_cast<const Stored*>(w.codes);
  F acc[kColumns];
  for (int c = 0; c < kColumns; ++c) acc[c] = zero();
  for (uint32_t k = 0; k < w.n_in; k += kLanes) {
    const F xk = load(x + k);
    for (int c = 0; c < kColumns; ++c) acc[c] = fma(load(rows + size_t(c) * w.n_in + k), xk, acc[c]);
  }
  for (int c = 0; c < kColumns; ++c) y[c] = reduce_add(acc[c]);
}

template <int kBits, int kColumns>
void dot_some(const Matrix& w, const float* x, float* y) {
  if constexpr (kBits == 32) {
    dot_plain<float, kColumns>(w, x, y);
  } else if constexpr (kBits == 16) {
    dot_plain<bfloat16, kColumns>(w, x, y);
  } else {
    dot_codes<kBits, kColumns>(w, x, y);
  }
}

template <int kBits>
void dot_columns(const Matrix& w, uint32_t col0, uint32_t n_cols, const float* x, float* y) {
  uint32_t c = 0;
  for (; c + 4 <= n_cols; c += 4) dot_some<kBits, 4>(w.from_row(col0 + c), x, y + c);
  for (; c < n_cols; ++c) dot_some<kBits, 1>(w.from_row(col0 + c), x, y + c);
}

// kR rows times kC columns in registers.
template <int kR, int kC>
void multiply_tile(const float* x, const float* w, uint32_t n, float* sums) {
  F acc[kR][kC];
  for (int r = 0; r < kR; ++r) {
    for (int c = 0; c < kC; ++c) acc[r][c] = load(sums + (r * kPanelColumns + c) * kLanes);
  }
  for (uint32_t k = 0; k < n; k += kLanes) {
    F wk[kC];
    for (int c = 0; c < kC; ++c) wk[c] = load(w + c * kPanelInputs + k);
    for (int r = 0; r < kR; ++r) {
      const F xk = load(x + r * kPanelInputs + k);
      for (int c = 0; c < kC; ++c) acc[r][c] = fma(wk[c], xk, acc[r][c]);
    }
  }
  for (int r = 0; r < kR; ++r) {
    for (int c = 0; c < kC; ++c) store(sums + (r * kPanelColumns + c) * kLanes, acc[r][c]);
  }
}

template <int kR>
void multiply_rows(const float* x, const float* w, uint32_t n_cols, uint32_t n, float* sums) {
  uint32_t c = 0;
  for (; c + 3 <= n_cols; c += 3) multiply_tile<kR, 3>(x, w + c * kPanelInputs, n, sums + c * kLanes);
  for (; c < n_cols; ++c) multiply_tile<kR, 1>(x, w + c * kPanelInputs, n, sums + c * kLanes);
}

}  // namespace

void decode(const Matrix& w, uint32_t row, uint32_t k0, uint32_t n, float* out) {
  switch (w.format.bits) {
    case 2: return decode_codes<2>(w, row, k0, n, out);
    case 3: return decode_codes<3>(w, row, k0, n, out);
    case 4: return decode_codes<4>(w, row, k0, n, out);
    case 5: return decode_codes<5>(w, row, k0, n, out);
    case 6: return decode_codes<6>(w, row, k0, n, out);
    case 8: return decode_codes<8>(w, row, k0, n, out);
    case 16: return decode_plain<bfloat16>(w, row, k0, n, out);
    default: return decode_plain<float>(w, row, k0, n, out);
  }
}

void dot_row(const Matrix& w, uint32_t col0, uint32_t n_cols, const float* x, float* y) {
  switch (w.format.bits) {
    case 2: return dot_columns<2>(w, col0, n_cols, x, y);
    case 3: return dot_columns<3>(w, col0, n_cols, x, y);
    case 4: return dot_columns<4>(w, col0, n_cols, x, y);
    case 5: return dot_columns<5>(w, col0, n_cols, x, y);
    case 6: return dot_columns<6>(w, col0, n_cols, x, y);
    case 8: return dot_columns<8>(w, col0, n_cols, x, y);
    case 16: return dot_columns<16>(w, col0, n_cols, x, y);
    default: return dot_columns<32>(w, col0, n_cols, x, y);
  }
}

void multiply_panel(const float* x, uint32_t n_rows, const float* weights, uint32_t n_cols, uint32_t n,
                    float* sums) {
  uint32_t r = 0;
  for (; r + 4 <= n_rows; r += 4) {
    multiply_rows<4>(x + r * kPanelInputs, weights, n_cols, n, sums + size_t{r} * kPanelColumns * kLanes);
  }
  for (; r < n_rows; ++r) {
    multiply_rows<1>(x + r * kPanelInputs, weights, n_cols, n, sums + size_t{r} * kPanelColumns * kLanes);
  }
}

}  // namespace flashnext::cpu::FLASHNEXT_PATH
