#include "client_list.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "errors.h"

namespace umbp {
namespace {

bool process_ended(int pidfd) {
  pollfd request{pidfd, POLLIN, 0};
  return poll(&request, 1, 0) == 1;
}

template <class F>
void visit(const std::atomic<uint32_t>& n, const std::atomic<uint32_t>* handles, uint32_t capacity,
           const F& f) {
  const uint32_t count = std::min(n.load(std::memory_order_seq_cst), capacity);
  for (uint32_t i = 0; i < count; ++i) f(handles[i].load(std::memory_order_acquire));
}

}  // namespace

ClientList::~ClientList() {
  for (Client& client : clients_)
    if (client.pidfd >= 0) ::close(client.pidfd);
}

Client& ClientList::add(uint32_t chunk_count, const MappingOptions& options) {
  Client client;
  client.memory = Mapping("client area", ClientArea::nbytes(chunk_count), options);
  client.area = ClientArea::at(client.memory.data());
  client.area.head->magic = kHeaderMagic;
  client.area.head->chunk_count = chunk_count;
  client.id = next_id_++;
  clients_.push_back(std::move(client));
  return clients_.back();
}

void ClientList::bind_process(uint32_t id, pid_t pid, int pidfd) {
  for (Client& client : clients_) {
    if (client.id != id) continue;
    const int own = pidfd >= 0 ? fcntl(pidfd, F_DUPFD_CLOEXEC, 0)
                               : static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    if (own < 0)
      throw Error("cannot watch process " + std::to_string(pid) + ": " + std::strerror(errno));
    if (client.pidfd >= 0) ::close(client.pidfd);
    client.pidfd = own;
    client.pid = pid;
    return;
  }
  throw Error("client " + std::to_string(id) + " is not attached");
}

void ClientList::remove(uint32_t id) {
  clients_.remove_if([&](Client& client) {
    if (client.id != id) return false;
    if (client.pidfd >= 0) ::close(client.pidfd);
    return true;
  });
}

void ClientList::reap_dead() {
  clients_.remove_if([](Client& client) {
    if (client.pidfd < 0 || !process_ended(client.pidfd)) return false;
    ::close(client.pidfd);
    return true;
  });
}

void for_each_in_slots(const Client& client, const std::function<void(uint32_t)>& f) {
  const uint32_t slots =
      std::min(client.area.head->slots_used.load(std::memory_order_seq_cst), kSlots);
  for (uint32_t s = 0; s < slots; ++s)
    visit(client.area.slots[s].n, client.area.slots[s].handles, kSlotHandles, f);
}

void for_each_in_sessions(const Client& client, const std::function<void(uint32_t)>& f) {
  const uint32_t limit =
      static_cast<uint32_t>((client.memory.nbytes() - ClientArea::nbytes(0)) / kChunkBytes);
  const uint32_t chunks =
      std::min(client.area.head->chunks_used.load(std::memory_order_seq_cst), limit);
  for (uint32_t c = 0; c < chunks; ++c)
    visit(client.area.chunks[c].n, client.area.chunks[c].handles, kChunkHandles, f);
}

void ClientList::for_each_named(const std::function<void(uint32_t)>& f) const {
  for (const Client& client : clients_) {
    for_each_in_slots(client, f);
    for_each_in_sessions(client, f);
  }
}

void ClientList::drain_rings(const std::function<void(uint32_t)>& f) {
  for (Client& client : clients_) {
    const uint32_t slots =
        std::min(client.area.head->slots_used.load(std::memory_order_seq_cst), kSlots);
    for (uint32_t s = 0; s < slots; ++s) {
      const Slot& slot = client.area.slots[s];
      uint32_t& tail = client.ring_tails[s];
      const uint32_t head = slot.ring_head.load(std::memory_order_acquire);
      if (head - tail > kRingHandles) tail = head - kRingHandles;  // overrun costs recency only
      for (; tail != head; ++tail) f(slot.ring[tail % kRingHandles].load(std::memory_order_relaxed));
    }
  }
}

}  // namespace umbp
