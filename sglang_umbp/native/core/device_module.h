// The compiled copy kernels of one device.
#pragma once

#include <cstddef>
#include <span>

#include "device_handles.h"
#include "device_kernels.h"

namespace umbp {

// The module of one device with its functions; none without an image.
class DeviceModule {
 public:
  DeviceModule(DeviceApi& api, int device, std::span<const std::byte> image) : api_(api), device_(device) {
    if (image.empty()) return;
    module_ = api_.load_module(device_, image);
    try {
      find_functions();
    } catch (...) {
      unload();
      throw;
    }
  }
  ~DeviceModule() { unload(); }
  DeviceModule(const DeviceModule&) = delete;
  DeviceModule& operator=(const DeviceModule&) = delete;

  FunctionHandle small() const { return small_; }
  FunctionHandle plain() const { return plain_; }
  FunctionHandle even() const { return even_; }
  FunctionHandle bulk() const { return bulk_; }  // null where the device has no bulk copies

 private:
  void find_functions() {
    small_ = api_.find_function(module_, kSmallKernel);
    plain_ = api_.find_function(module_, kPlainKernel);
    even_ = api_.find_function(module_, kEvenKernel);
    if (api_.properties(device_).major < kBulkFromMajor) return;
    end_quietly([this] {  // one kernel less is no reason to do without the others
      const FunctionHandle found = api_.find_function(module_, kBulkKernel);
      api_.allow_shared_bytes(found, kBulkSharedBytes);
      bulk_ = found;
    });
  }
  void unload() {
    if (module_ != nullptr) end_quietly([this] { api_.unload_module(device_, module_); });
  }

  DeviceApi& api_;
  int device_;
  ModuleHandle module_ = nullptr;
  FunctionHandle small_ = nullptr;
  FunctionHandle plain_ = nullptr;
  FunctionHandle even_ = nullptr;
  FunctionHandle bulk_ = nullptr;
};

}  // namespace umbp
