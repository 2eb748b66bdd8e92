#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/replay_stats.h"
#include "kernels/tensor.h"

namespace aludel {

class Device;
class Ops;

// A block of device memory, freed with its last owner. Movable, not copyable. Must not outlive its Device.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device* device, void* data, size_t size) : device_(device), data_(data), size_(size) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  void* data() const { return data_; }
  size_t size() const { return size_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  size_t size_ = 0;
};

// An ordered queue of device work. On the CPU every call has finished when it returns, so the handle is null;
// on CUDA it is the backend's own stream object and null is a stream of the device. Not thread-safe: one
// thread enqueues on a stream at a time.
struct Stream {
  void* handle = nullptr;
};

// Names work that comes again and again, see Device::Replay.
struct ReplayKey {
  // Whatever decides which ops are called, with which shapes, numbers and device addresses; a hash will do.
  uint64_t calls = 0;
  // Every sequence given to an op ends before this position.
  int64_t positions = 0;
};

// Memory, streams and the operations of one device. The factory is OpenDevice. Thread-safe for Allocate and
// Free; everything that takes a Stream follows the stream's rule.
class Device {
 public:
  virtual ~Device() = default;

  // "cpu" or "cuda:0", for logs and errors.
  virtual std::string name() const = 0;

  // Memory is 64-byte aligned and not initialized. ResourceExhausted names the size asked for.
  virtual absl::StatusOr<Buffer> Allocate(size_t bytes) = 0;
  virtual void Free(void* data) = 0;

  // Gives what was freed back to whoever else wants memory (FreeDeviceMemory counts it from then on); waits for the work that
  // uses it still. Without it a device may keep that for later allocations.
  virtual void ReleaseFreed() {}

  virtual absl::StatusOr<Stream> CreateStream() = 0;
  virtual void DestroyStream(Stream stream) = 0;
  // Host memory must stay alive until Synchronize(stream) has returned.
  virtual void CopyToDevice(void* device, const void* host, size_t bytes, Stream stream) = 0;
  virtual void CopyToHost(void* host, const void* device, size_t bytes, Stream stream) = 0;
  // Within the device; the ranges do not overlap.
  virtual void Copy(void* to, const void* from, size_t bytes, Stream stream) = 0;
  virtual absl::Status Synchronize(Stream stream) = 0;
  // Whether all that was enqueued has run, so that Synchronize would not wait. True where work runs at once.
  virtual bool Finished(Stream stream) {
    static_cast<void>(stream);
    return true;
  }
  // What is enqueued on `later` from now on runs behind what is on `earlier` now.
  virtual void Follow(Stream later, Stream earlier) { static_cast<void>(later), static_cast<void>(earlier); }

  // Copies to and from these bytes of host memory are the fastest, and truly asynchronous, until Unpin gets
  // the same bytes. An error is one of speed alone.
  virtual absl::Status Pin(absl::Span<uint8_t> host) {
    static_cast<void>(host);
    return absl::OkStatus();
  }
  virtual void Unpin(absl::Span<uint8_t> host) { static_cast<void>(host); }

  // Runs `work`, which calls ops on `stream` and nothing else of this device. What a key's work enqueues may
  // be remembered and enqueued as one from then on: from one Replay to the next nothing should differ under a
  // key but what host arrays hold, and how long block lists are. Work that differs otherwise is noticed, and
  // enqueued call by call. `work` may be run more than once, so it does nothing but call ops; the host arrays
  // that it passes stay as they are until Replay returns.
  virtual void Replay(const ReplayKey& key, Stream stream, absl::FunctionRef<void()> work) {
    static_cast<void>(key), static_cast<void>(stream);
    work();
  }
  virtual ReplayStats replay_stats(Stream stream) const {
    static_cast<void>(stream);
    return {};
  }

  // Cache of a core that an intermediate should fit, where operations over few rows at a time cost no more
  // than over many. 0: go over as many rows at a time as there are.
  virtual size_t cache_bytes() const { return 0; }

  // Whether ops choose how to multiply many rows by timing it when they first meet about as many (RowClass).
  virtual bool times_products() const { return false; }

  // Owned by the device.
  virtual Ops& ops() = 0;
};

}  // namespace aludel
