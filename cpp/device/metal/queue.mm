#include "device/metal/queue.h"

#include <algorithm>

#include "base/error.h"

namespace flashnext::mtl {
namespace {

constexpr size_t kLeastSetBytes = size_t{1} << 30;

// After these the system takes no more work of this process.
bool is_loss(NSError* error) {
  const NSInteger code = [error code];
  return [[error domain] isEqualToString:MTLCommandBufferErrorDomain] &&
         (code == MTLCommandBufferErrorAccessRevoked || code == MTLCommandBufferErrorDeviceRemoved);
}

// Metal's words, and the label of the encoder that they are about.
std::string describe(NSError* error) {
  std::string what = "metal: " + text(error);
  NSArray* encoders = [[error userInfo] objectForKey:MTLCommandBufferEncoderInfoErrorKey];
  for (id<MTLCommandBufferEncoderInfo> encoder in encoders) {
    if ([encoder errorState] != MTLCommandEncoderErrorStateFaulted) continue;
    const std::string label = text([encoder label]);
    if (!label.empty()) return label + ": " + what;
  }
  return what;
}

}  // namespace

Queue::Queue(id<MTLDevice> device, IdleTimes idle)
    : device_(Owned<id<MTLDevice>>::retain(device)),
      queue_(Owned<id<MTLCommandQueue>>::adopt([device newCommandQueue])),
      fence_(Owned<id<MTLFence>>::adopt([device newFence])) {
  if (!queue_ || !fence_) throw DeviceError("metal: the system gives no command queue");
  const size_t set_bytes = std::max<size_t>([device recommendedMaxWorkingSetSize] / 16, kLeastSetBytes);
  residency_ = std::make_shared<Residency>(device, queue_.get(), set_bytes);
  ticker_ = std::make_unique<Ticker>(
      idle, IdleActions{[this] { beat(); }, [this](bool on) { awake_.set(on); }}, [this] {
        const std::lock_guard lock(mutex_);
        return n_in_flight_ > 0;
      });
}

Queue::~Queue() { ticker_.reset(); }

Owned<id<MTLCommandBuffer>> Queue::command_buffer() const {
  const Pool pool;
  auto descriptor = Owned<MTLCommandBufferDescriptor*>::adopt([[MTLCommandBufferDescriptor alloc] init]);
  // Whoever commits keeps the buffers until the work has run.
  [descriptor.get() setRetainedReferences:NO];
  [descriptor.get() setErrorOptions:MTLCommandBufferErrorOptionEncoderExecutionStatus];
  auto buffer =
      Owned<id<MTLCommandBuffer>>::retain([queue_.get() commandBufferWithDescriptor:descriptor.get()]);
  if (!buffer) throw DeviceError("metal: the queue gives no command buffer");
  return buffer;
}

void Queue::commit(id<MTLCommandBuffer> buffer, Committed committed) {
  if (const std::string why = lost(); !why.empty()) {
    for (const auto& [event, value] : committed.signals) event->landed(value, why);
    return;
  }
  residency_->settle();
  {
    const std::lock_guard lock(mutex_);
    ++n_in_flight_;
  }
  const std::shared_ptr<Queue> self = shared_from_this();
  const auto told = std::make_shared<const Committed>(std::move(committed));
  [buffer addCompletedHandler:^(id<MTLCommandBuffer> done) {
    self->landed(done, *told);
  }];
  [buffer commit];
  ticker_->used();
}

// On a thread of Metal's, in the order of commits.
void Queue::landed(id<MTLCommandBuffer> buffer, const Committed& committed) {
  {
    const Pool pool;
    std::string error;
    if ([buffer status] == MTLCommandBufferStatusError) {
      error = describe([buffer error]);
      if (is_loss([buffer error])) {
        error += "; the GPU takes no more work of this process: start it again";
        const std::lock_guard lock(mutex_);
        lost_ = error;
      }
    }
    count(buffer);
    // Work behind a wait for what failed ran on what was not there.
    for (const auto& [event, value] : committed.waits) {
      if (error.empty()) error = event->failure(value);
    }
    for (const auto& [event, value] : committed.signals) event->landed(value, error);
  }
  {
    const std::lock_guard lock(mutex_);
    --n_in_flight_;
  }
  changed_.notify_all();
}

// The next one's time may have begun while it waited for this one.
void Queue::count(id<MTLCommandBuffer> buffer) {
  const double begin = [buffer GPUStartTime], end = [buffer GPUEndTime];
  const std::lock_guard lock(mutex_);
  if (end > std::max(begin, busy_until_)) {
    busy_ns_ += static_cast<uint64_t>((end - std::max(begin, busy_until_)) * 1e9);
  }
  busy_until_ = std::max(busy_until_, end);
}

void Queue::beat() {
  if (!lost().empty()) return;
  try {
    residency_->renew();
    const auto buffer = command_buffer();
    const Pool pool;
    id<MTLBlitCommandEncoder> encoder = [buffer.get() blitCommandEncoder];
    [encoder waitForFence:fence()];
    [encoder updateFence:fence()];
    [encoder endEncoding];
    const std::shared_ptr<Queue> self = shared_from_this();
    [buffer.get() addCompletedHandler:^(id<MTLCommandBuffer>) {
      {
        const std::lock_guard lock(self->mutex_);
        --self->n_beats_;
      }
      self->changed_.notify_all();
    }];
    {
      const std::lock_guard lock(mutex_);
      ++n_beats_;
    }
    [buffer.get() commit];
  } catch (const Error&) {  // the next work tells
  }
}

std::string Queue::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

void Queue::drain() {
  ticker_.reset();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return n_in_flight_ + n_beats_ == 0; });
}

}  // namespace flashnext::mtl
