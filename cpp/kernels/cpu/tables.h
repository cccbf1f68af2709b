// The kernel lists of one instruction path, a list a file. Included once for each path, with FLASHNEXT_PATH
// naming it.
#include "device/cpu/task.h"

namespace flashnext::cpu::FLASHNEXT_PATH {

struct KernelList {
  const KernelEntry* entries;
  int n;
};

KernelList matmul_kernels();
KernelList hyper_kernels();
KernelList ngram_kernels();
KernelList conv_kernels();
KernelList delta_kernels();
KernelList attention_kernels();
KernelList index_kernels();
KernelList expert_kernels();
KernelList row_kernels();
KernelList round_kernels();
KernelList copy_kernels();
KernelList draw_kernels();
KernelList logprob_kernels();
KernelList vision_kernels();
KernelList slice_kernels();

}  // namespace flashnext::cpu::FLASHNEXT_PATH
