// The module flashnext._core: devices, models, sessions and passes. Blocking calls release the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "base/error.h"
#include "bindings/errors.h"
#include "kernels/cpu/table.h"
#if defined(FLASHNEXT_HAS_CUDA)
#include "kernels/metal/cuda.h"
#endif
#if defined(FLASHNEXT_HAS_METAL_HOST)
#include "kernels/metal/host.h"
#endif
#if defined(FLASHNEXT_HAS_METAL)
#include "kernels/metal/open.h"
#endif
#include "bindings/media.h"
#include "rounds/runner.h"
#include "session/page_pool.h"
#include "session/session.h"
#include "session/snapshot.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace flashnext {
namespace {

using Tokens = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatRows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using AxisRows = nb::ndarray<const int32_t, nb::shape<-1, 3>, nb::c_contig, nb::device::cpu>;
using View = std::tuple<int, uint64_t, std::string, std::vector<int64_t>, uint64_t>;

template <class T>
T get(const nb::dict& d, const char* key) {
  if (!d.contains(key)) throw InvalidArgument(std::string("config: ") + key + " is missing");
  try {
    return nb::cast<T>(d[key]);
  } catch (const nb::cast_error&) {
    throw InvalidArgument(std::string("config: ") + key + " has the wrong type");
  }
}

Config config_from(const nb::dict& d) {
  Config c;
  const std::pair<const char*, int*> numbers[] = {
      {"vocab_size", &c.vocab_size},
      {"hidden_size", &c.hidden_size},
      {"n_layers", &c.n_layers},
      {"n_heads", &c.n_heads},
      {"n_kv_heads", &c.n_kv_heads},
      {"head_dim", &c.head_dim},
      {"rotary_dim", &c.rotary_dim},
      {"index_n_heads", &c.index_n_heads},
      {"index_head_dim", &c.index_head_dim},
      {"index_budget", &c.index_budget},
      {"index_ratio", &c.index_ratio},
      {"linear_k_heads", &c.linear_k_heads},
      {"linear_v_heads", &c.linear_v_heads},
      {"linear_k_dim", &c.linear_k_dim},
      {"linear_v_dim", &c.linear_v_dim},
      {"linear_conv", &c.linear_conv},
      {"n_experts", &c.n_experts},
      {"top_k", &c.top_k},
      {"moe_width", &c.moe_width},
      {"shared_width", &c.shared_width},
      {"hc_count", &c.hc_count},
      {"hc_rank", &c.hc_rank},
      {"ple_dim", &c.ple_dim},
      {"ple_conv", &c.ple_conv},
      {"ngram_size", &c.ngram_size},
      {"heads_per_ngram", &c.heads_per_ngram},
      {"ngram_shards", &c.ngram_shards},
      {"segment_token", &c.segment_token},
  };
  for (const auto& [key, field] : numbers) *field = get<int>(d, key);
  c.attention_layers = get<std::vector<bool>>(d, "attention_layers");
  c.mrope_section = get<std::vector<int>>(d, "mrope_section");
  c.output_gate = get<std::string>(d, "output_gate");
  c.ple_layers = get<std::vector<int>>(d, "ple_layers");
  c.rms_eps = get<float>(d, "rms_eps");
  c.has_draft_head = get<int>(d, "n_mtp_layers") > 0;
  if (static_cast<int>(c.attention_layers.size()) != c.n_layers || c.mrope_section.size() != 3) {
    throw InvalidArgument("config: attention_layers needs n_layers entries and mrope_section three");
  }
  using Rows = std::vector<std::vector<int64_t>>;
  const auto multipliers = get<Rows>(d, "ngram_multipliers"), sizes = get<Rows>(d, "ngram_sizes"),
             offsets = get<Rows>(d, "ngram_offsets");
  const auto rows = get<std::vector<int64_t>>(d, "ngram_rows");
  for (size_t i = 0; i < c.ple_layers.size(); ++i) {
    c.ngram.push_back({multipliers.at(i), sizes.at(i), offsets.at(i), rows.at(i)});
  }
  return c;
}

DType dtype_from(const std::string& name) {
  if (name == "bfloat16") return DType::kBFloat16;
  if (name == "float32") return DType::kFloat32;
  throw InvalidArgument("dtype is '" + name + "', expected bfloat16 or float32");
}

std::vector<std::string> device_kinds() {
  std::vector<std::string> kinds = {"cpu"};
#if defined(FLASHNEXT_HAS_METAL_HOST)
  kinds.emplace_back("metal-host");
#endif
#if defined(FLASHNEXT_HAS_CUDA)
  kinds.emplace_back("cuda");
#endif
#if defined(FLASHNEXT_HAS_METAL)
  if (mtl::unavailable().empty()) kinds.emplace_back("metal");
#endif
  return kinds;
}

// A simulated GPU is nobody's choice but by name.
std::string default_kind() {
#if defined(FLASHNEXT_HAS_METAL) && !defined(FLASHNEXT_SIM_METAL)
  if (mtl::unavailable().empty()) return "metal";
#endif
  return "cpu";
}

DeviceRef open_metal(const std::string& path) {
#if defined(FLASHNEXT_HAS_METAL)
  if (!path.empty()) throw InvalidArgument("metal: the device has no path '" + path + "', expected none");
  return mtl::open();
#else
  (void)path;
  throw InvalidArgument(
      "this build has no metal device: a Mac with Apple Silicon and macOS 15 or later has, where pip "
      "installs a wheel for it or builds flashnext");
#endif
}

DeviceRef open_metal_host(int threads, const std::string& path, uint64_t seed) {
#if defined(FLASHNEXT_HAS_METAL_HOST)
  constexpr std::string_view kUnchecked = ", unchecked";
  metal_host::Options options;
  options.seed = seed;
  options.threads = threads;
  options.checked = !path.ends_with(kUnchecked);
  if (!path.empty())
    options.schedule = path.substr(0, path.size() - (options.checked ? 0 : kUnchecked.size()));
  return metal_host::open(options);
#else
  (void)threads, (void)path, (void)seed;
  throw InvalidArgument(
      "this build has no metal-host device, which is for tests: pip install . "
      "--config-settings=cmake.define.FLASHNEXT_METAL_HOST=ON makes one that has");
#endif
}

DeviceRef open_cuda(const std::string& path) {
#if defined(FLASHNEXT_HAS_CUDA)
  return cuda::open(cuda::options_of(path));
#else
  (void)path;
  throw InvalidArgument(
      "this build has no cuda device, which is for tests of the Metal kernels: where nvcc is, pip install . "
      "--config-settings=cmake.define.FLASHNEXT_CUDA=ON makes one that has");
#endif
}

std::pair<size_t, int> memory_of(const Device& device) {
#if defined(FLASHNEXT_HAS_METAL)
  const mtl::MemoryState state = mtl::memory_of(device);
  return {state.footprint_bytes, static_cast<int>(state.pressure)};
#else
  (void)device;
  return {0, 0};
#endif
}

DeviceRef open_device(const std::string& name, int threads, const std::string& path, uint64_t shuffle_seed,
                      const std::string& prompt_order) {
  if (threads < 0)
    throw InvalidArgument("threads is " + std::to_string(threads) + ", expected 0 (all) or more");
  const std::string kind = name == "auto" ? default_kind() : name;
  if (kind == "metal") return open_metal(path);
  if (kind == "metal-host") return open_metal_host(threads, path, shuffle_seed);
  if (kind == "cuda") return open_cuda(path);
  if (kind != "cpu") {
    throw InvalidArgument("device is '" + kind + "', expected auto, cpu, metal, metal-host or cuda");
  }
  if (prompt_order != "as windows" && prompt_order != "reversed") {
    throw InvalidArgument("prompt_order is '" + prompt_order + "', expected 'as windows' or 'reversed'");
  }
  return cpu::open(path, {threads, shuffle_seed, prompt_order == "reversed"});
}

std::shared_ptr<Model> make_model(const DeviceRef& device, const nb::dict& config,
                                  const std::vector<std::filesystem::path>& files,
                                  const std::map<std::string, View>& tensors, bool zero_centred,
                                  const std::string& dtype, const Floats& inv_freq, float attention_factor,
                                  int context, int max_chunk, int max_window, int max_round,
                                  int max_sequences, bool streamed_table) {
  Config c = config_from(config);
  ModelOptions options;
  options.dtype = dtype_from(dtype);
  options.inv_freq.assign(inv_freq.data(), inv_freq.data() + inv_freq.size());
  options.attention_factor = attention_factor;
  options.context = context;
  options.max_chunk = max_chunk;
  options.max_window = max_window;
  options.max_round = max_round;
  options.max_sequences = max_sequences;
  options.streamed_table = streamed_table;
  std::map<std::string, TensorView> views;
  for (const auto& [name, view] : tensors) {
    const auto& [file, offset, type, shape, stride] = view;
    if (file < 0 || static_cast<size_t>(file) >= files.size())
      throw InvalidArgument("tensor " + name + " names no file");
    views[name] = {file, offset, type, shape, stride};
  }
  const std::vector<std::string> paths(files.begin(), files.end());
  const nb::gil_scoped_release release;
  auto weights = std::make_unique<Weights>(device, paths, std::move(views), zero_centred);
  return std::make_shared<Model>(device, std::move(c), std::move(weights), std::move(options));
}

std::span<const int32_t> span_of(const Tokens& t) { return {t.data(), t.size()}; }

std::span<const std::byte> bytes_of(const Bytes& b) {
  return {reinterpret_cast<const std::byte*>(b.data()), b.size()};
}

// An array that `fill` writes without the interpreter's lock.
template <class Fill>
nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> bytes_from(size_t size_bytes, Fill fill) {
  auto data = std::make_unique_for_overwrite<uint8_t[]>(size_bytes);
  {
    const nb::gil_scoped_release release;
    fill(std::span(reinterpret_cast<std::byte*>(data.get()), size_bytes));
  }
  const nb::capsule owner(data.get(), [](void* p) noexcept { delete[] static_cast<uint8_t*>(p); });
  return {data.release(), {size_bytes}, owner};
}

nb::list forward(Runner& runner, const Model& model,
                 const std::vector<std::tuple<Session*, Tokens, bool>>& parts,
                 const std::vector<std::vector<ShownTuple>>& media) {
  if (!media.empty() && media.size() != parts.size()) {
    throw InvalidArgument("forward: media of " + std::to_string(media.size()) + " parts, expected of all " +
                          std::to_string(parts.size()));
  }
  std::vector<std::vector<Shown>> shown;
  for (const auto& of_part : media) shown.push_back(shown_of(of_part));
  shown.resize(parts.size());
  std::vector<Part> list;
  for (const auto& [session, tokens, is_window] : parts)
    list.push_back({session, span_of(tokens), is_window, shown[list.size()]});
  std::vector<float> logits;
  {
    const nb::gil_scoped_release release;
    logits = runner.forward(list);
  }
  nb::list out;
  const size_t vocab = static_cast<size_t>(model.config().vocab_size);
  const float* from = logits.data();
  for (const Part& p : list) {
    const size_t n = p.tokens.size() * vocab;
    auto* data = new float[n];
    std::copy_n(from, n, data);
    from += n;
    const nb::capsule owner(data, [](void* d) noexcept { delete[] static_cast<float*>(d); });
    out.append(nb::ndarray<nb::numpy, float>(data, {p.tokens.size(), vocab}, owner));
  }
  return out;
}

// A runner and the model it runs, so that Python needs to hold neither.
struct BoundRunner {
  std::shared_ptr<Model> model;
  Runner runner;
};

void bind_model(nb::module_& m) {
  nb::class_<Limits>(m, "Limits", "What a device can hold and how its arithmetic behaves.")
      .def_ro("working_set_bytes", &Limits::working_set_bytes)
      .def_ro("max_buffer_bytes", &Limits::max_buffer_bytes)
      .def_ro("tensor_alignment", &Limits::tensor_alignment)
      .def_ro("workers", &Limits::workers)
      .def_ro("prompt_equals_window", &Limits::prompt_equals_window);
  nb::class_<Device>(m, "Device", "A device that models run on; opened once and handed down.")
      .def_prop_ro("name", &Device::name)
      .def_prop_ro("identity", &Device::identity, "What the bits of its results depend on.")
      .def_prop_ro("limits", &Device::limits, nb::rv_policy::reference_internal)
      .def_prop_ro("busy_ns", &Device::busy_ns,
                   "Nanoseconds in which the device ran work since it was opened; waits are not in it.")
      .def_prop_ro(
          "memory", &memory_of,
          "(bytes held against the process, 0 where unknown; memory pressure: 0 normal, 1 warning, 2 "
          "critical), as the system tells a Metal device.");
  m.def(
      "open_device", &open_device, "kind"_a = "cpu", "threads"_a = 0, "path"_a = "", "shuffle_seed"_a = 0,
      "prompt_order"_a = "as windows",
      "Open a device: one of device_kinds(), or 'auto': metal where there is such a GPU, else cpu. path: '' "
      "for the best instruction path, or one of "
      "instruction_paths(); of metal-host the order of threads: 'forward' (the default), 'reverse', or "
      "'random' by shuffle_seed, and ', unchecked' behind it for kernels whose accesses nobody looks at; of "
      "cuda nothing, or some of 'graph', 'one by one' and 'device memory', with ', ' between. "
      "prompt_order: "
      "'as windows', or, for tests, 'reversed': attention of prompt rows sums in another order, so that "
      "prompts and rounds differ.");
  m.def("device_kinds", &device_kinds, "Kinds of devices that this build has.");
  m.def("instruction_paths", &cpu::available_paths, "Instruction paths this processor can run, best first.");

  nb::class_<Model>(m, "Model", "The loaded model: weights, scratch and the layer plan.")
      .def_prop_ro("weight_bytes", &Model::weight_bytes)
      .def_prop_ro("streamed_bytes", &Model::streamed_bytes)
      .def_prop_ro("copied_bytes", &Model::copied_bytes)
      .def_prop_ro("scratch_bytes", &Model::scratch_bytes)
      .def_prop_ro("vocab_size", [](const Model& x) { return x.config().vocab_size; })
      .def_prop_ro("context", [](const Model& x) { return x.options().context; })
      .def_prop_ro("page_bytes", [](const Model& x) { return x.page_layout().size_bytes; })
      .def_prop_ro(
          "snapshot_bytes", [](const Model& x) { return x.state_layout().block_bytes; },
          "Of a session's recurrent block.")
      .def_prop_ro("identity", &Model::identity,
                   "What the bits of a state and where they lie depend on, the checkpoint aside, in words.");
  m.def("load_model", &make_model, "device"_a, "config"_a, "files"_a, "tensors"_a, "zero_centred"_a,
        "dtype"_a, "inv_freq"_a, "attention_factor"_a, "context"_a, "max_chunk"_a = 512, "max_window"_a = 16,
        "max_round"_a = 64, "max_sequences"_a = 64, "streamed_table"_a = false,
        "Place a checkpoint's tensors on the device. tensors: name -> (file index, offset, dtype, shape, "
        "batch stride).");
}

void bind_sessions(nb::module_& m) {
  nb::class_<PagePool>(m, "PagePool",
                       "Pages of 64 positions that hold the attention caches of all sequences.")
      .def(nb::new_([](const std::shared_ptr<Model>& model, int n_pages) {
             return std::make_shared<PagePool>(model->device(), model->page_layout().size_bytes, n_pages);
           }),
           "model"_a, "n_pages"_a)
      .def_prop_ro("free", &PagePool::n_free)
      .def_prop_ro("total", &PagePool::n_pages)
      .def_prop_ro("page_bytes", &PagePool::page_bytes)
      .def_prop_ro("allocated_bytes", &PagePool::allocated_bytes)
      .def("trim", &PagePool::trim, "n_pages"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Give back memory that no page in use lies in, until at most so many pages are allocated.")
      .def_prop_ro("of_snapshots", &PagePool::n_of_snapshots, "Pages that snapshots have and no session.")
      .def_prop_ro("block_bytes", &PagePool::block_bytes, "What the recurrent blocks of snapshots take.");

  nb::class_<Snapshot>(m, "Snapshot", "Where a session stood behind n tokens; others go on from there.")
      .def_static(
          "restore",
          [](const std::shared_ptr<Model>& model, const std::shared_ptr<PagePool>& pool, int n,
             const Bytes& block, const std::vector<std::variant<Bytes, std::pair<SnapshotRef, int>>>& pages) {
            std::vector<Snapshot::PageSource> sources;
            for (const auto& page : pages) {
              if (const auto* bytes = std::get_if<Bytes>(&page)) {
                sources.emplace_back(bytes_of(*bytes));
              } else {
                const auto& [snapshot, index] = std::get<std::pair<SnapshotRef, int>>(page);
                if (!snapshot) throw InvalidArgument("snapshot: a page of None");
                sources.emplace_back(std::pair<const Snapshot*, int>(snapshot.get(), index));
              }
            }
            const nb::gil_scoped_release release;
            return Snapshot::restore(model, pool, n, bytes_of(block), sources);
          },
          "model"_a, "pool"_a, "n"_a, "block"_a, "pages"_a,
          "A snapshot of what read_block and read_page gave; each page as bytes, or as (snapshot, index).")
      .def_prop_ro("n", &Snapshot::n, "Positions that it covers.")
      .def_prop_ro(
          "page_ids", [](const Snapshot& s) { return nb::tuple(nb::cast(s.page_ids())); },
          nb::sig("def page_ids(self) -> tuple[int, ...]"), "Of its pages, by position; none after close().")
      .def(
          "read_block",
          [](const Snapshot& s) {
            return bytes_from(s.held()->block->size_bytes(),
                              [&](std::span<std::byte> out) { s.read_block(out); });
          },
          "A copy of the recurrent block.")
      .def(
          "read_page",
          [](const Snapshot& s, int index) {
            return bytes_from(s.held()->pool->page_bytes(),
                              [&](std::span<std::byte> out) { s.read_page(index, out); });
          },
          "index"_a, "A copy of a page; what the snapshot does not cover is zero.")
      .def("close", &Snapshot::close, nb::call_guard<nb::gil_scoped_release>(),
           "Give block and pages back; idempotent, from any thread.");

  nb::class_<Features>(m, "Features", "Rows of a picture or a video that stand in for embeddings.",
                       nb::is_weak_referenceable())
      .def(nb::new_([](const std::shared_ptr<Model>& model, const FloatRows& values) {
             const std::span<const float> span = {values.data(), values.size()};
             if (static_cast<int>(values.shape(1)) != model->config().hidden_size) {
               throw InvalidArgument("features: rows of " + std::to_string(values.shape(1)) +
                                     " values, expected " + std::to_string(model->config().hidden_size));
             }
             const nb::gil_scoped_release release;
             return std::make_shared<Features>(model, span);
           }),
           "model"_a, "values"_a, "values: (n, hidden) float32; kept in the activations' type.")
      .def_prop_ro("n", &Features::n, "Rows.");

  nb::class_<Session>(m, "Session", "What one sequence owns on the device.")
      .def(nb::new_([](const std::shared_ptr<Model>& model, std::shared_ptr<PagePool> pool) {
             return std::make_shared<Session>(model, std::move(pool));
           }),
           "model"_a, "pool"_a)
      .def_prop_ro("length", &Session::length, "Committed positions.")
      .def_prop_ro("head_length", &Session::head_length, "Positions the draft head has absorbed.")
      .def_prop_ro("n_pages", &Session::n_pages)
      .def_prop_ro("size_bytes", &Session::size_bytes)
      .def_prop_ro(
          "rotary_delta", [](const Session& s) { return delta_of(s.frame()); },
          "What the rotary positions of rows behind its prompt are beyond their positions.")
      .def(
          "set_frame",
          [](Session& s, const AxisRows& rows) {
            std::vector<Axes> axes(rows.shape(0));
            for (size_t i = 0; i < axes.size(); ++i) {
              axes[i] = {rows(i, 0), rows(i, 1), rows(i, 2)};
            }
            s.set_frame(axes.empty() ? nullptr : std::make_shared<const Frame>(std::move(axes)));
          },
          "rows"_a,
          "Say where the rows of its prompt stand on the rotary axes, (n, 3); rows behind them go on from "
          "there, alike on all axes. Without, rows stand at their positions. A session that was resumed or "
          "forked is given the same for the rows that it has; before its reply begins.")
      .def("keep", &Session::keep, "n"_a, "Commit the first n rows of the last window.")
      .def("fork", &Session::fork, nb::call_guard<nb::gil_scoped_release>(),
           "A session with the same committed positions, which shares all pages but the last; between prompt "
           "passes only.")
      .def_static(
          "resume",
          [](const Snapshot& snapshot, const Tokens& tokens) {
            const nb::gil_scoped_release release;
            return Session::resume(snapshot, span_of(tokens));
          },
          "snapshot"_a, "tokens"_a,
          "A session that stands where the snapshot was taken, of the tokens that it was made of.")
      .def("close", &Session::close, nb::call_guard<nb::gil_scoped_release>(),
           "Give pages and memory back; idempotent.");

  nb::class_<Sampling>(m, "Sampling", "How tokens are drawn; see cpp/rounds/sampler.h.")
      .def(
          "__init__",
          [](Sampling* self, float temperature, int top_k, float top_p, float min_p, uint64_t seed,
             float presence, float frequency, float repetition, const std::map<int32_t, float>& bias,
             int logprobs) {
            new (self) Sampling{temperature, top_k,      top_p,
                                min_p,       seed,       presence,
                                frequency,   repetition, {bias.begin(), bias.end()},
                                logprobs};
          },
          "temperature"_a = 1.0, "top_k"_a = 0, "top_p"_a = 1.0, "min_p"_a = 0.0, "seed"_a = 0,
          "presence"_a = 0.0, "frequency"_a = 0.0, "repetition"_a = 1.0,
          "bias"_a = std::map<int32_t, float>(), "logprobs"_a = -1)
      .def("check", &Sampling::check, "n_valid"_a,
           "Raise InvalidArgument naming the first value out of range.");
}

void bind_runner(nb::module_& m) {
  nb::class_<Drawn>(m, "Drawn", "A token that was drawn.")
      .def_ro("token", &Drawn::token)
      .def_prop_ro(
          "logprob", [](const Drawn& d) { return d.logprobs.chosen; },
          "Its log-probability, where the sampling asks for it.")
      .def_prop_ro(
          "top", [](const Drawn& d) { return d.logprobs.top; },
          "[(id, log-probability), ...] of the likeliest ids.")
      .def_ro("logits_hash", &Drawn::logits_hash, "Of the row it was drawn from, where hashes are kept.");
  nb::class_<BoundRunner>(m, "Runner", "Runs prompt chunks and rounds over the sessions of one model.")
      .def(
          "__init__",
          [](BoundRunner* self, const std::shared_ptr<Model>& model, int n_valid) {
            new (self) BoundRunner{model, Runner(model, n_valid > 0 ? n_valid : model->config().vocab_size)};
          },
          "model"_a, "n_valid"_a = 0)
      .def_prop_ro("max_chunk", [](const BoundRunner& r) { return r.runner.max_chunk(); })
      .def(
          "keep_hashes", [](BoundRunner& r, bool keep) { r.runner.keep_hashes(keep); }, "keep"_a,
          "Tests: whether tokens carry a hash of the logits that they were drawn from.")
      .def(
          "prompt",
          [](BoundRunner& r, const SessionRef& session, const Tokens& tokens, bool last,
             const Sampling& sampling, int n_drafts, const std::vector<ShownTuple>& media) {
            const std::vector<Shown> shown = shown_of(media);
            const nb::gil_scoped_release release;
            return r.runner.prompt(session, span_of(tokens), last, sampling, n_drafts, shown);
          },
          "session"_a, "tokens"_a, "last"_a, "sampling"_a, "n_drafts"_a = 0,
          "media"_a = std::vector<ShownTuple>(),
          "Read one prompt chunk; with last, draw the first reply token and up to n_drafts drafts. media: "
          "(first row, features, first of them, how many) of the rows that show some.")
      .def(
          "round",
          [](BoundRunner& r, const std::vector<SessionRef>& sessions, std::vector<int> n_drafts) {
            const nb::gil_scoped_release release;
            if (n_drafts.empty()) n_drafts.resize(sessions.size());
            return r.runner.round(sessions, n_drafts);
          },
          "sessions"_a, "n_drafts"_a = std::vector<int>(),
          "Feed each session's pending token and drafts; return what was drawn, one token or more each. "
          "n_drafts: most drafts of each one's next round, by default none.")
      .def(
          "drafts", [](const BoundRunner& r, Session& session) { return r.runner.drafts(session); },
          "session"_a, "The drafts that the session's next round verifies.")
      .def(
          "draft_counts",
          [](const BoundRunner& r, const Session& session) {
            const DraftCounts c = r.runner.draft_counts(session);
            return std::pair(c.proposed, c.accepted);
          },
          "session"_a, "Drafts of the reply so far: (verified, kept).")
      .def(
          "snapshot",
          [](BoundRunner& r, Session& session) {
            const nb::gil_scoped_release release;
            return r.runner.snapshot(session);
          },
          "session"_a, "Settle, then take a snapshot of where the session stands.")
      .def(
          "settle",
          [](BoundRunner& r, Session& session) {
            const nb::gil_scoped_release release;
            r.runner.settle(session);
          },
          "session"_a, "Apply what the last window kept.")
      .def(
          "state_hash",
          [](BoundRunner& r, Session& session) {
            const nb::gil_scoped_release release;
            r.runner.settle(session);
            return session.state_hash();
          },
          "session"_a,
          "Settle, then hash the recurrent block and the committed cache rows of the model's layers.")
      .def(
          "head_hash", [](const BoundRunner&, const Session& s, int n) { return s.head_hash(n); },
          "session"_a, "n"_a, "Hash of the draft head's first n cache rows.")
      .def(
          "forward",
          [](BoundRunner& r, const std::vector<std::tuple<Session*, Tokens, bool>>& parts,
             const std::vector<std::vector<ShownTuple>>& media) {
            return forward(r.runner, *r.model, parts, media);
          },
          "parts"_a, "media"_a = std::vector<std::vector<ShownTuple>>(),
          "One pass over [(session, tokens, is_window), ...]; returns logits (rows, vocab) float32 of each "
          "part. media: of each part, as prompt() takes them.");
}

}  // namespace
}  // namespace flashnext

NB_MODULE(_core, m) {
  m.doc() = "The compiled core of flashnext.";
  nanobind::set_leak_warnings(false);
  flashnext::bind_errors(m);
  flashnext::bind_model(m);
  flashnext::bind_sessions(m);
  flashnext::bind_runner(m);
  flashnext::bind_driver(m);
  flashnext::bind_tower(m);
  flashnext::bind_testing(m);
}
