#include "kernels/metal/host.h"

#include "kernels/metal/table.h"

namespace flashnext::metal_host {

DeviceRef open(const Options& options) {
  std::vector<KernelEntry> table;
  for (const mtl::KernelEntry& e : mtl::kernels()) table.push_back({e.name, e.threads, e.tile, e.rows});
  return open_device(table, options);
}

}  // namespace flashnext::metal_host
