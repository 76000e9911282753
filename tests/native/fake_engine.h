// What the emulated CUDA and HIP libraries have in common: devices whose memory the host cannot touch, streams
// whose work is done by another thread and only when somebody waits for it, and the rules that real
// runtimes enforce late, or by a crash, enforced at once.
#pragma once

#include <cstring>
#include <memory>
#include <mutex>

#include "fake_addresses.h"
#include "fake_kernels.h"
#include "fake_notes.h"
#include "fake_streams.h"

namespace fake {

// One for the process.
struct Engine {
  Notes notes;
  Addresses addresses{notes};
  Streams streams{notes, addresses};

  static Engine& get() {
    static auto* engine = new Engine;  // never destroyed: its thread runs until the process is gone
    return *engine;
  }

  int device_count() { return static_cast<int>(notes.knob("devices")); }

  // Of ranges that a copy may name, unless they go before its turn has come.
  Work copy(uint64_t dst, uint64_t src, uint64_t nbytes) {
    return [this, dst, src, nbytes](const Memory&) {
      std::byte* to = addresses.resolve(dst, nbytes, true, true);
      const std::byte* from = addresses.resolve(src, nbytes, false, true);
      if (to == nullptr || from == nullptr) throw Fault{};
      std::memmove(to, from, nbytes);  // without a lock: a test that frees it meanwhile is to crash
    };
  }
  // Whether an asynchronous copy may name them: device memory, or host memory that is registered.
  bool may_copy(uint64_t dst, uint64_t src, uint64_t nbytes) {
    return addresses.resolve(dst, nbytes, false, true) != nullptr &&
           addresses.resolve(src, nbytes, false, true) != nullptr;
  }

  // Frees wait for all work, as the real ones do.
  int free_device(uint64_t address) {
    streams.wait_for_all();
    return addresses.release(address) ? kOk : kInvalidValue;
  }
  int free_host(uint64_t base) {
    streams.wait_for_all();
    return addresses.free_host(base);
  }

  void reset() {
    streams.reset();
    notes.reset();
  }
};

}  // namespace fake
