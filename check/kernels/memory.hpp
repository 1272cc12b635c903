#pragma once

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>

#include "reference/base/input_error.hpp"

namespace loratory::check {

/// The device went wrong: an address that is not its own, a launch that failed. Nothing that runs
/// on it afterwards can be believed.
class DeviceError : public std::runtime_error {
  using runtime_error::runtime_error;
};

/// No memory is left for a case, which is no fault of the kernel: it ends the run.
class NoRoom : public InputError {
  using InputError::InputError;
};

/// Throws NoRoom: the host has none.
[[noreturn]] void throw_no_room();

/// Where a plugin's tensors lie, and the stream its work goes to.
class Memory {
 public:
  virtual ~Memory() = default;
  /// Aligned to 256 bytes. Errors: NoRoom.
  virtual void* allocate(size_t bytes) = 0;
  /// Of which little will be touched: zeros on the host, bits of NaN on a device. release() frees
  /// it too. Errors: NoRoom.
  virtual void* reserve(size_t bytes) { return allocate(bytes); }
  virtual void release(void* address) = 0;
  virtual void write(void* to, const void* from, size_t bytes) = 0;
  virtual void read(void* to, const void* from, size_t bytes) = 0;
  /// What this memory holds if the host can read it where it is; else null.
  virtual const std::byte* host_view(const void* address) const = 0;
  virtual void* stream() = 0;
  virtual void synchronize() = 0;

  /// Between begin_capture() and end_capture() the stream records; replay() runs what it recorded
  /// last. On the host there is nothing to record: can_capture() is false.
  virtual bool can_capture() const { return false; }
  virtual void begin_capture() {}
  /// Errors   DeviceError: something was called that cannot be captured.
  virtual void end_capture() {}
  virtual void replay() {}

  virtual std::string name() const = 0;  ///< "host", "NVIDIA H100"
};

std::unique_ptr<Memory> make_host_memory();
/// The first CUDA device, by the driver's own library: no toolkit is needed, and a plugin shares
/// the device's primary context with us.
/// Errors   InputError: no driver, no device, in one line.
std::unique_ptr<Memory> make_device_memory();

}  // namespace loratory::check
