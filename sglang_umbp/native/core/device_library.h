// A device runtime's shared library, opened at run time, and its functions.
#pragma once

#include <dlfcn.h>

#include <string>

#include "errors.h"

namespace umbp {

// A function of a library: null where it has none; and what messages call it.
template <class Function>
struct Entry {
  Function* function = nullptr;
  std::string name;
};

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
  void* find(const char* symbol) const { return dlsym(handle_, symbol); }

  // Throws DeviceError where the library has none. The name is the symbol without its version (cuMemFree_v2).
  template <class Function>
  void bind(Entry<Function>& entry, const std::string& symbol) const {
    entry.function = reinterpret_cast<Function*>(find(symbol.c_str()));
    if (entry.function == nullptr) throw DeviceError(path_ + " has no " + symbol);
    entry.name = symbol.substr(0, symbol.rfind("_v"));
  }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  void* handle_;
};

}  // namespace umbp
