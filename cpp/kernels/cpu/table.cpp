#include "kernels/cpu/table.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"

#define FLASHNEXT_PATH portable
#include "kernels/cpu/tables.h"
#undef FLASHNEXT_PATH

#if defined(FLASHNEXT_HAS_AVX2)
#define FLASHNEXT_PATH avx2
#include "kernels/cpu/tables.h"
#undef FLASHNEXT_PATH
#endif

namespace flashnext::cpu {
namespace {

template <class... Lists>
std::vector<KernelEntry> join(const Lists&... lists) {
  std::vector<KernelEntry> all;
  (all.insert(all.end(), lists.entries, lists.entries + lists.n), ...);
  return all;
}

std::vector<KernelEntry> kernels_of(const std::string& path) {
#if defined(FLASHNEXT_HAS_AVX2)
  if (path == "avx2") {
    using namespace avx2;
    return join(matmul_kernels(), hyper_kernels(), ngram_kernels(), conv_kernels(), delta_kernels(),
                attention_kernels(), index_kernels(), expert_kernels(), row_kernels(), round_kernels(),
                copy_kernels(), draw_kernels(), logprob_kernels(), vision_kernels(), slice_kernels());
  }
#endif
  (void)path;
  using namespace portable;
  return join(matmul_kernels(), hyper_kernels(), ngram_kernels(), conv_kernels(), delta_kernels(),
              attention_kernels(), index_kernels(), expert_kernels(), row_kernels(), round_kernels(),
              copy_kernels(), draw_kernels(), logprob_kernels(), vision_kernels(), slice_kernels());
}

// Kernels whose prompt rows sum in another order have the names of those that they replace, with a prefix;
// they are in a table only where asked for.
std::vector<KernelEntry> with_prompt_order(const std::vector<KernelEntry>& all, bool reversed) {
  constexpr std::string_view kPrefix = "reversed_";
  std::vector<KernelEntry> chosen;
  for (KernelEntry e : all) {
    if (!std::string_view(e.name).starts_with(kPrefix)) chosen.push_back(e);
  }
  for (KernelEntry e : all) {
    if (!reversed || !std::string_view(e.name).starts_with(kPrefix)) continue;
    e.name += kPrefix.size();
    std::erase_if(chosen, [&](const KernelEntry& c) { return std::string_view(c.name) == e.name; });
    chosen.push_back(e);
  }
  return chosen;
}

}  // namespace

std::vector<std::string> available_paths() {
  std::vector<std::string> paths;
#if defined(FLASHNEXT_HAS_AVX2)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) paths.emplace_back("avx2");
#endif
  paths.emplace_back("portable");
  return paths;
}

DeviceRef open(std::string path, const Options& options) {
  const std::vector<std::string> paths = available_paths();
  if (path.empty()) path = paths.front();
  if (std::find(paths.begin(), paths.end(), path) == paths.end()) {
    std::string known;
    for (const std::string& p : paths) known += (known.empty() ? "" : ", ") + p;
    throw InvalidArgument("this processor cannot run the instruction path '" + path +
                          "'; it can run: " + known);
  }
  return open_device(path, with_prompt_order(kernels_of(path), options.reversed_prompts), options);
}

}  // namespace flashnext::cpu
