#include <dlfcn.h>
#include <fmt/format.h>

#include <array>

#include "check/kernels/memory.hpp"
#include "reference/base/input_error.hpp"

// The CUDA driver API by name, as cuda.h declares it (CUDA 12 and 13): handles are pointers, a
// CUdeviceptr is 64 bits, a CUresult an int whose 0 is success.

namespace loratory::check {
namespace {

using Result = int;
using Address = uint64_t;

struct Driver {
  Result (*init)(unsigned);
  Result (*device_get)(int*, int);
  Result (*device_get_name)(char*, int, int);
  Result (*retain_context)(void**, int);
  Result (*set_context)(void*);
  Result (*synchronize)();
  Result (*allocate)(Address*, size_t);
  Result (*release)(Address);
  Result (*fill)(Address, unsigned char, size_t);
  Result (*write)(Address, const void*, size_t);
  Result (*read)(void*, Address, size_t);
  Result (*stream_create)(void**, unsigned);
  Result (*stream_synchronize)(void*);
  Result (*begin_capture)(void*, int);
  Result (*end_capture)(void*, void**);
  Result (*instantiate)(void**, void*, unsigned long long);
  Result (*graph_launch)(void*, void*);
  Result (*graph_exec_destroy)(void*);
  Result (*graph_destroy)(void*);
  Result (*error_text)(Result, const char**);
};

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) {
    throw InputError("libcuda.so.1", fmt::format("has no {}", name), "update the NVIDIA driver");
  }
}

Driver load_driver() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    throw InputError("", "this kernel is for a CUDA device, and there is no NVIDIA driver here",
                     "run it where nvidia-smi shows a GPU");
  }
  Driver d{};
  find(library, "cuInit", d.init);
  find(library, "cuDeviceGet", d.device_get);
  find(library, "cuDeviceGetName", d.device_get_name);
  find(library, "cuDevicePrimaryCtxRetain", d.retain_context);
  find(library, "cuCtxSetCurrent", d.set_context);
  find(library, "cuCtxSynchronize", d.synchronize);
  find(library, "cuMemAlloc_v2", d.allocate);
  find(library, "cuMemFree_v2", d.release);
  find(library, "cuMemsetD8_v2", d.fill);
  find(library, "cuMemcpyHtoD_v2", d.write);
  find(library, "cuMemcpyDtoH_v2", d.read);
  find(library, "cuStreamCreate", d.stream_create);
  find(library, "cuStreamSynchronize", d.stream_synchronize);
  find(library, "cuStreamBeginCapture_v2", d.begin_capture);
  find(library, "cuStreamEndCapture", d.end_capture);
  find(library, "cuGraphInstantiateWithFlags", d.instantiate);
  find(library, "cuGraphLaunch", d.graph_launch);
  find(library, "cuGraphExecDestroy", d.graph_exec_destroy);
  find(library, "cuGraphDestroy", d.graph_destroy);
  find(library, "cuGetErrorString", d.error_text);
  return d;
}

constexpr Result kOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY

// CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL of cuda.h.
constexpr unsigned kNonBlocking = 1;
constexpr int kThreadLocal = 1;

class DeviceMemory final : public Memory {
 public:
  DeviceMemory() : driver_(load_driver()) {
    int device = 0;
    if (driver_.init(0) != 0 || driver_.device_get(&device, 0) != 0) {
      throw InputError("", "this kernel is for a CUDA device, and the driver finds none",
                       "run it where nvidia-smi shows a GPU");
    }
    std::array<char, 256> text{};
    driver_.device_get_name(text.data(), int(text.size()) - 1, device);
    name_ = text.data();
    void* context = nullptr;
    check(driver_.retain_context(&context, device), "cuDevicePrimaryCtxRetain");
    check(driver_.set_context(context), "cuCtxSetCurrent");
    check(driver_.stream_create(&stream_, kNonBlocking), "cuStreamCreate");
  }
  ~DeviceMemory() override { drop_graph(); }

  void* allocate(size_t bytes) override {
    Address address = 0;
    const Result result = driver_.allocate(&address, bytes);
    if (result == kOutOfMemory) {
      throw NoRoom("", fmt::format("the GPU has no {} bytes left for this case", bytes),
                   "end what else runs on it, or take smaller cases (--max-products)");
    }
    check(result, "cuMemAlloc");
    return reinterpret_cast<void*>(address);
  }
  void* reserve(size_t bytes) override {
    void* const out = allocate(bytes);
    const Result result = driver_.fill(Address(out), 0xFF, bytes);
    if (result != 0) release(out);
    check(result, "cuMemsetD8");
    check(driver_.synchronize(), "cuCtxSynchronize");
    return out;
  }
  void release(void* address) override { driver_.release(Address(address)); }
  // Fills, and copies from pageable memory, may still be on their way when they return, and the
  // kernel's stream does not wait for them.
  void write(void* to, const void* from, size_t bytes) override {
    if (bytes == 0) return;
    check(driver_.write(Address(to), from, bytes), "cuMemcpyHtoD");
    check(driver_.synchronize(), "cuCtxSynchronize");
  }
  void read(void* to, const void* from, size_t bytes) override {
    if (bytes != 0) check(driver_.read(to, Address(from), bytes), "cuMemcpyDtoH");
  }
  const std::byte* host_view(const void*) const override { return nullptr; }
  void* stream() override { return stream_; }
  // The whole context: a kernel may have used streams of its own.
  void synchronize() override {
    check(driver_.stream_synchronize(stream_), "the stream");
    check(driver_.synchronize(), "the device");
  }

  bool can_capture() const override { return true; }
  void begin_capture() override {
    drop_graph();  // now: to free memory during a capture would break it off
    check(driver_.begin_capture(stream_, kThreadLocal), "cuStreamBeginCapture");
  }
  void end_capture() override {
    void* graph = nullptr;
    check(driver_.end_capture(stream_, &graph), "cuStreamEndCapture");
    const Result result = driver_.instantiate(&graph_, graph, 0);
    driver_.graph_destroy(graph);
    check(result, "cuGraphInstantiate");
  }
  void replay() override { check(driver_.graph_launch(graph_, stream_), "cuGraphLaunch"); }
  std::string name() const override { return name_; }

 private:
  void drop_graph() {
    if (graph_ != nullptr) driver_.graph_exec_destroy(graph_);
    graph_ = nullptr;
  }
  void check(Result result, const char* what) const {
    if (result == 0) return;
    const char* text = nullptr;
    driver_.error_text(result, &text);
    throw DeviceError(fmt::format("{}: {} (error {})", what, text == nullptr ? "?" : text, result));
  }

  Driver driver_;
  std::string name_;
  void* stream_ = nullptr;
  void* graph_ = nullptr;
};

}  // namespace

std::unique_ptr<Memory> make_device_memory() { return std::make_unique<DeviceMemory>(); }

}  // namespace loratory::check
