#include "device/cuda/executor.h"

#include <algorithm>
#include <chrono>

#include "metal/host/cuda.h"

namespace flashnext::cuda {
namespace {

using host::Dispatch;
using host::Program;

constexpr size_t kEmptyStamps = 16;
constexpr size_t kMostTraces = 4096;  // kept until somebody takes them

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string text(const char* what, cudaError_t error) {
  return "cuda: " + std::string(what) + ": " + cudaGetErrorString(error);
}

cudaEvent_t make_event(unsigned flags) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, flags), "making an event");
  return event;
}

// Milliseconds between two events that are over.
double between(cudaEvent_t begin, cudaEvent_t end) {
  float ms = 0;
  check(cudaEventElapsedTime(&ms, begin, end), "reading a time");
  return ms;
}

}  // namespace

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw DeviceError(text(what, error));
}

CudaExecutor::CudaExecutor(const Options& options, std::function<void()> before_work)
    : options_(options), before_work_(std::move(before_work)) {
  for (cudaStream_t& s : streams_)
    check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "making a stream");
  fork_ = make_event(cudaEventDisableTiming);
  for (cudaEvent_t& e : joins_) e = make_event(cudaEventDisableTiming);
  landing_thread_ = std::thread([this] { land(); });
  start();
}

CudaExecutor::~CudaExecutor() {
  stop();
  {
    const std::lock_guard lock(mutex_);
    stop_landing_ = true;
  }
  changed_.notify_all();
  landing_thread_.join();
  for (cudaStream_t s : streams_) cudaStreamDestroy(s);
  cudaEventDestroy(fork_);
  for (cudaEvent_t e : joins_) cudaEventDestroy(e);
}

void CudaExecutor::submit(std::unique_ptr<Program> program) {
  {
    const std::lock_guard lock(mutex_);
    auto trace = std::make_shared<Trace>();
    trace->number = ++n_submitted_;
    trace->n_dispatches = program->dispatches.size();
    trace->committed_ns = now_ns();
    committed_.push_back(trace);
    if (traces_.size() < kMostTraces) traces_.push_back(trace);
    // Under the lock, so that programs and traces have one order.
    Executor::submit(std::move(program));
  }
}

void CudaExecutor::idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return n_landed_ == n_submitted_; });
}

std::vector<Trace> CudaExecutor::take_trace() {
  idle();
  const std::lock_guard lock(mutex_);
  std::vector<Trace> out;
  for (const auto& trace : traces_) out.push_back(*trace);
  traces_.clear();
  return out;
}

std::optional<std::string> CudaExecutor::lost() {
  const std::lock_guard lock(mutex_);
  return lost_;
}

// The issuing thread ---------------------------------------------------------------------------------------

void CudaExecutor::await(const Signals& waits) {
  {
    const std::lock_guard lock(mutex_);
    committed_.front()->n_host_waits += waits.size();
  }
  Executor::await(waits);
}

void CudaExecutor::run_segments(const Program& program, size_t first, size_t last) {
  if (const auto why = lost()) return fail(*why);
  try {
    if (before_work_) before_work_();
    next_.begin = make_event(cudaEventBlockingSync);
    check(cudaEventRecord(next_.begin, streams_[0]), "putting an event into a stream");
    if (options_.graph) {
      next_.graph = record([&] { put(program, first, last, false); });
      check(cudaGraphLaunch(next_.graph, streams_[0]), "launching a graph");
    } else {
      put(program, first, last, options_.one_by_one);
    }
  } catch (const Error& e) {
    fail(e.what());
  }
}

// Puts work into streams: what may overlap into several. Between two segments all wait for all.
void CudaExecutor::put(const Program& program, size_t first, size_t last, bool in_order, const Each& before) {
  const char* putting = "putting work into a stream";
  for (size_t s = first; s < last; ++s) {
    const Program::Segment& segment = program.segments[s];
    const Dispatch* dispatches = program.dispatches.data() + segment.first_dispatch;
    const size_t n_streams = in_order ? 1 : std::min<size_t>(segment.n_dispatches, kStreams);
    if (n_streams > 1) check(cudaEventRecord(fork_, streams_[0]), putting);
    for (size_t i = 1; i < n_streams; ++i) check(cudaStreamWaitEvent(streams_[i], fork_, 0), putting);
    for (size_t i = 0; i < segment.n_dispatches; ++i) {
      if (before) before(dispatches[i]);
      put_one(program, dispatches[i], streams_[n_streams > 1 ? i % n_streams : 0]);
    }
    for (size_t i = 1; i < n_streams; ++i) {
      check(cudaEventRecord(joins_[i], streams_[i]), putting);
      check(cudaStreamWaitEvent(streams_[0], joins_[i], 0), putting);
    }
  }
}

void CudaExecutor::put_one(const Program& program, const Dispatch& d, cudaStream_t stream) {
  std::string wrong;
  void* const* slots = program.slots.data() + d.first_slot;
  if (d.kernel) {
    const auto& kernel = static_cast<const CudaKernel&>(*d.kernel);
    wrong = msl_cuda::launch(
        {static_cast<const msl_cuda::Kernel*>(kernel.compiled()),
         {d.grid.x, d.grid.y, d.grid.z},
         kernel.threads(),
         {slots, d.n_slots},
         {reinterpret_cast<const std::byte*>(program.params.data() + d.params), d.params_bytes}},
        stream);
  } else {
    const cudaError_t error =
        cudaMemcpyAsync(slots[1], slots[0], program.copy_bytes(d), cudaMemcpyDefault, stream);
    if (error != cudaSuccess) wrong = text("a copy", error);
  }
  if (wrong.empty() && options_.one_by_one) {
    const cudaError_t error = cudaStreamSynchronize(stream);
    if (error != cudaSuccess)
      wrong = (d.kernel ? std::string(d.kernel->name()) : "a copy") + ": " + cudaGetErrorString(error);
  }
  if (!wrong.empty()) throw DeviceError(named(d, wrong));
}

cudaGraphExec_t CudaExecutor::record(const std::function<void()>& work) {
  check(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeThreadLocal), "recording a graph");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(streams_[0], &graph);
    if (graph) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(streams_[0], &graph), "recording a graph");
  cudaGraphExec_t made = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&made, graph, 0);
  cudaGraphDestroy(graph);
  check(error, "making a graph");
  return made;
}

void CudaExecutor::finish(const Signals& signals, const std::optional<std::string>& failure) {
  Landing landing = std::exchange(next_, {});
  landing.signals = signals;
  landing.failure = failure;
  if (landing.begin && !failure) {
    landing.end = make_event(cudaEventBlockingSync);
    const cudaError_t error = cudaEventRecord(landing.end, streams_[0]);
    if (error != cudaSuccess) landing.failure = text("putting an event into a stream", error);
  }
  push(std::move(landing));
}

void CudaExecutor::retire(std::unique_ptr<Program> program) {
  if (options_.device_memory) last_ = std::move(program);
  Landing end;
  end.last = true;
  push(std::move(end));
}

void CudaExecutor::push(Landing landing) {
  {
    const std::lock_guard lock(mutex_);
    landing.trace = committed_.front();
    if (landing.last) {
      landing.trace->issued_ns = now_ns();
      committed_.pop_front();
    }
    landings_.push_back(std::move(landing));
  }
  changed_.notify_all();
}

// The landing thread ---------------------------------------------------------------------------------------

void CudaExecutor::land() {
  for (;;) {
    Landing landing;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_landing_ || !landings_.empty(); });
      if (landings_.empty()) return;
      landing = std::move(landings_.front());
      landings_.pop_front();
    }
    land_one(landing);
  }
}

void CudaExecutor::land_one(Landing& landing) {
  if (landing.end) {
    const cudaError_t error = cudaEventSynchronize(landing.end);
    if (error != cudaSuccess) {
      landing.failure = "cuda: a kernel failed: " + std::string(cudaGetErrorString(error)) +
                        "; open the device with path 'one by one' to hear which one";
      const std::lock_guard lock(mutex_);
      lost_ = landing.failure;
    } else {
      busy_ns_ += static_cast<uint64_t>(between(landing.begin, landing.end) * 1e6);
    }
  } else if (landing.begin) {
    cudaStreamSynchronize(streams_[0]);  // what was put there before the failure
  }
  if (landing.begin) cudaEventDestroy(landing.begin);
  if (landing.end) cudaEventDestroy(landing.end);
  if (landing.graph) cudaGraphExecDestroy(landing.graph);
  for (const auto& [event, value] : landing.signals) {
    landing.failure ? event->fail(value, *landing.failure) : event->signal(value);
  }
  {
    const std::lock_guard lock(mutex_);
    landing.trace->n_host_signals += landing.signals.size();
    if (landing.last) {
      landing.trace->landed_ns = now_ns();
      ++n_landed_;
    }
  }
  changed_.notify_all();
}

// Measuring ------------------------------------------------------------------------------------------------

// Milliseconds that work in the first stream took.
double CudaExecutor::timed(const std::function<void()>& work) {
  const cudaEvent_t begin = make_event(cudaEventDefault), end = make_event(cudaEventDefault);
  check(cudaEventRecord(begin, streams_[0]), "timing");
  work();
  check(cudaEventRecord(end, streams_[0]), "timing");
  check(cudaEventSynchronize(end), "timing");
  const double ms = between(begin, end);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return ms;
}

double CudaExecutor::copy_bandwidth(size_t size_bytes) {
  idle();
  void *from = nullptr, *to = nullptr;
  check(cudaMalloc(&from, size_bytes), "memory to copy");
  const cudaError_t error = cudaMalloc(&to, size_bytes);
  if (error != cudaSuccess) cudaFree(from);
  check(error, "memory to copy");
  double best_ms = 0;
  for (int i = 0; i < 6; ++i) {
    const double ms = timed([&] {
      check(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDeviceToDevice, streams_[0]), "a copy");
    });
    if (best_ms == 0 || ms < best_ms) best_ms = ms;
  }
  cudaFree(from);
  cudaFree(to);
  return 2.0 * static_cast<double>(size_bytes) / (best_ms * 1e-3);
}

Replay CudaExecutor::replay(int n) {
  idle();
  if (!last_) {
    throw InvalidArgument(
        "cuda: there is no work to run again; open the device with path 'device memory' and commit some");
  }
  const Program& program = *last_;
  const size_t all = program.segments.size();
  cudaStream_t stream = streams_[0];
  Replay out;
  cudaGraphExec_t graph = record([&] { put(program, 0, all, false); });
  check(cudaGraphUpload(graph, stream), "timing");
  for (int i = 0; i < n; ++i)
    out.graph_ms.push_back(timed([&] { check(cudaGraphLaunch(graph, stream), "launching a graph"); }));
  cudaGraphExecDestroy(graph);
  for (int i = 0; i < n; ++i) out.launch_ms.push_back(timed([&] { put(program, 0, all, false); }));

  // The GPU itself takes the stamps, in a graph, so that how fast the host launches counts nothing.
  std::vector<cudaEvent_t> stamps;
  const auto stamp = [&] {
    stamps.push_back(make_event(cudaEventDefault));
    check(cudaEventRecordWithFlags(stamps.back(), stream, cudaEventRecordExternal), "a time stamp");
  };
  graph = record([&] {
    put(program, 0, all, true, [&](const Dispatch& d) {
      stamp();
      const auto* params = reinterpret_cast<const std::byte*>(program.params.data() + d.params);
      out.dispatches.push_back({d.part ? d.part : "",
                                d.kernel ? std::string(d.kernel->name()) : "",
                                d.grid,
                                {params, params + d.params_bytes},
                                0});
    });
    for (size_t i = 0; i <= kEmptyStamps; ++i) stamp();
  });
  check(cudaGraphLaunch(graph, stream), "launching a graph");
  check(cudaStreamSynchronize(stream), "running a graph");
  std::vector<double> us;
  for (size_t i = 0; i + 1 < stamps.size(); ++i) us.push_back(between(stamps[i], stamps[i + 1]) * 1e3);
  // What a stamp takes itself is what passes between two that have nothing between them.
  const auto empty = us.end() - static_cast<std::ptrdiff_t>(kEmptyStamps);
  std::nth_element(empty, empty + kEmptyStamps / 2, us.end());
  for (size_t i = 0; i < out.dispatches.size(); ++i)
    out.dispatches[i].us = std::max(0.0, us[i] - empty[kEmptyStamps / 2]);
  cudaGraphExecDestroy(graph);
  for (cudaEvent_t e : stamps) cudaEventDestroy(e);
  return out;
}

}  // namespace flashnext::cuda
