// flashnext._core.Tower: features of pictures and videos.
#include "model/tower.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "bindings/errors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace flashnext {
namespace {

using Patches = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FeatureArray = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

TowerConfig config_from(const nb::dict& d) {
  TowerConfig c;
  const std::pair<const char*, int*> fields[] = {
      {"depth", &c.depth},
      {"hidden_size", &c.hidden_size},
      {"intermediate_size", &c.intermediate_size},
      {"num_heads", &c.n_heads},
      {"in_channels", &c.in_channels},
      {"patch_size", &c.patch_size},
      {"temporal_patch_size", &c.temporal_patch},
      {"spatial_merge_size", &c.merge},
      {"out_hidden_size", &c.out_hidden_size},
      {"num_position_embeddings", &c.n_positions},
  };
  for (const auto& [key, field] : fields) {
    if (!d.contains(key) || !nb::try_cast(d[key], *field)) {
      throw InvalidArgument(std::string("vision_config: ") + key + " is missing or no integer");
    }
  }
  return c;
}

// A pass that lets go of the interpreter's lock wherever it may wait, also where it is given up.
class BoundPass {
 public:
  BoundPass(Tower& tower, const std::vector<MediaGrid>& media) {
    const nb::gil_scoped_release release;
    pass_.emplace(tower, media);
  }
  ~BoundPass() {
    const nb::gil_scoped_release release;
    pass_.reset();
  }
  void put(std::span<const float> patches) {
    const nb::gil_scoped_release release;
    pass_->put(patches);
  }
  std::vector<float> finish() { return pass_->finish(); }

 private:
  std::optional<TowerPass> pass_;
};

FeatureArray features(Tower& tower, const std::vector<std::tuple<int, int, int>>& grids,
                      const nb::typed<nb::iterable, Patches>& patches) {
  std::vector<MediaGrid> media;
  for (const auto& [t, h, w] : grids) media.push_back({t, h, w});
  const size_t width = static_cast<size_t>(tower.config().patch_values()),
               out = static_cast<size_t>(tower.config().out_hidden_size);
  BoundPass pass(tower, media);
  for (const nb::handle part : patches) {
    Patches some;
    if (!nb::try_cast(part, some, false) || some.shape(1) != width) {
      throw InvalidArgument("tower: patches are expected as contiguous float32 arrays (n, " +
                            std::to_string(width) + ")");
    }
    pass.put({some.data(), some.size()});
  }
  auto* all = new std::vector<float>(pass.finish());
  const nb::capsule owner(all, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  return {all->data(), {all->size() / out, out}, owner};
}

}  // namespace

void bind_tower(nb::module_& m) {
  nb::class_<Tower>(m, "Tower", "The vision tower: its weights and the scratch of a pass.")
      .def_prop_ro("weight_bytes", &Tower::weight_bytes,
                   "Mapped and copied; the model's own count has them too from here on.")
      .def_prop_ro("copied_bytes", &Tower::copied_bytes)
      .def_prop_ro("scratch_bytes", &Tower::scratch_bytes)
      .def_prop_ro("max_patches", &Tower::max_patches)
      .def_prop_ro("patch_values", [](const Tower& t) { return t.config().patch_values(); })
      .def_prop_ro("tile_patches", &Tower::tile_patches, "Patches that attention takes together, at most.")
      .def("features", &features, "grids"_a, "patches"_a,
           "Features float32 (tokens, out_hidden_size) of media with grids (t, h, w) in patches, one after "
           "the other. patches: all of them in order, as float32 arrays (n, patch_values) of any lengths; an "
           "iterable, read as there is room. What a picture, or a pair of a video's frames, comes to "
           "depends on it alone. From any thread; one call at a time runs.");
  m.def(
      "load_tower",
      [](const std::shared_ptr<Model>& model, const nb::dict& sizes, int max_patches) {
        const TowerConfig config = config_from(sizes);
        const nb::gil_scoped_release release;
        return std::make_shared<Tower>(model, config, max_patches);
      },
      "model"_a, "sizes"_a, "max_patches"_a,
      "Place the vision tower of the model's checkpoint beside it. sizes: vision_config's integers. "
      "max_patches: of one picture or pair of frames, and of all that go through the tower together.");
}

}  // namespace flashnext
