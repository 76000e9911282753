// What a test calls in either emulated library: see tests/device_runtimes.py. Included once by each.
#pragma once

#include <cstdio>
#include <cstring>
#include <vector>

#include "fake_engine.h"

#define CONTROL __attribute__((used, visibility("default")))

extern "C" {
CONTROL void fake_set(const char* knob, int64_t value) { fake::Engine::get().notes.set_knob(knob, value); }
CONTROL uint64_t fake_count(const char* name) { return fake::Engine::get().notes.count(name); }
CONTROL void fake_reset() { fake::Engine::get().reset(); }
CONTROL uint64_t fake_pending() { return fake::Engine::get().streams.pending(); }
CONTROL uint64_t fake_registered() { return fake::Engine::get().addresses.registered(); }
CONTROL int fake_last_refusal(char* text, uint64_t nbytes) {
  return std::snprintf(text, nbytes, "%s", fake::Engine::get().notes.last_refusal().c_str());
}
CONTROL int fake_peek(uint64_t address, void* to, uint64_t nbytes) {
  return fake::Engine::get().addresses.peek(address, to, nbytes);
}
CONTROL int fake_poke(uint64_t address, const void* from, uint64_t nbytes) {
  return fake::Engine::get().addresses.poke(address, from, nbytes);
}
// A kernel of the test's that writes these bytes when its turn has come; they are copied now.
CONTROL int fake_queue_write(void* handle, uint64_t address, const void* from, uint64_t nbytes) {
  auto& streams = fake::Engine::get().streams;
  const auto stream = streams.stream_of(handle);
  if (stream == nullptr) return fake::kInvalidHandle;
  const auto* first = static_cast<const std::byte*>(from);
  const std::vector<std::byte> bytes(first, first + nbytes);
  streams.submit(stream, [=](const fake::Memory& memory) {
    std::memcpy(memory(address, bytes.size(), true), bytes.data(), bytes.size());
  });
  return fake::kOk;
}
// What the work of a stream finds at this address when its turn has come is kept at `to` (which must stay).
CONTROL int fake_queue_read(void* handle, void* to, uint64_t address, uint64_t nbytes) {
  auto& streams = fake::Engine::get().streams;
  const auto stream = streams.stream_of(handle);
  if (stream == nullptr) return fake::kInvalidHandle;
  streams.submit(stream,
                 [=](const fake::Memory& memory) { std::memcpy(to, memory(address, nbytes, false), nbytes); });
  return fake::kOk;
}
}
