// A device runtime's shared library, opened at run time, and its symbols.
#pragma once

#include <dlfcn.h>

#include <string>

#include "errors.h"

namespace umbp {

// Stays open until the process ends: streams and pinned memory may outlive what opened it, and these
// libraries do not come back after a dlclose.
class DeviceLibrary {
 public:
  // Throws DeviceError with what the loader said.
  explicit DeviceLibrary(const std::string& path)
      : path_(path), handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw DeviceError("cannot load " + path + ": " + dlerror());
  }

  // Null where the library has none.
  void* find(const char* name) const { return dlsym(handle_, name); }

  // Throws DeviceError where the library has none.
  template <class Function>
  void bind(Function*& function, const char* name) const {
    void* symbol = find(name);
    if (symbol == nullptr) throw DeviceError(path_ + " has no " + name);
    function = reinterpret_cast<Function*>(symbol);
  }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  void* handle_;
};

}  // namespace umbp
