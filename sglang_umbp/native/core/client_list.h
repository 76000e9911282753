// The owner's view of its clients: whose names a pass reads, whose rings carry recency.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>

#include "mapping.h"
#include "shared_layout.h"

namespace umbp {

// One attached client. `pidfd` is -1 for the owner itself, which needs no proof of death.
struct Client {
  uint32_t id = 0;
  pid_t pid = 0;
  int pidfd = -1;
  Mapping memory;
  ClientArea area;
  std::array<uint32_t, kSlots> ring_tails{};
};

// Calls f(handle) for each handle in the client's slots, or in its session chunks; one may come more
// than once.
void for_each_in_slots(const Client& client, const std::function<void(uint32_t)>& f);
void for_each_in_sessions(const Client& client, const std::function<void(uint32_t)>& f);

// Not thread-safe: the owner's mutex guards it.
class ClientList {
 public:
  ~ClientList();
  // A new zeroed area in the list; it is scanned from now on. Throws OutOfMemory.
  Client& add(uint32_t chunk_count, const MappingOptions& options);
  // Ties a client to a process: when that ends, everything it named is free. pidfd: of that process,
  // duplicated; -1: opened here, by its number. Throws Error.
  void bind_process(uint32_t id, pid_t pid, int pidfd);
  void remove(uint32_t id);
  size_t size() const { return clients_.size(); }

  // Forgets clients whose process has ended. No decision by time: only the kernel's word counts.
  void reap_dead();
  // Calls f(client) for each.
  void for_each(const std::function<void(const Client&)>& f) const {
    for (const Client& client : clients_) f(client);
  }
  // Calls f(handle) for each handle that any client names.
  void for_each_named(const std::function<void(uint32_t)>& f) const;
  // Calls f(handle) for what was read since the last drain, oldest first within a slot.
  void drain_rings(const std::function<void(uint32_t)>& f);

 private:
  std::list<Client> clients_;
  uint32_t next_id_ = 0;
};

}  // namespace umbp
