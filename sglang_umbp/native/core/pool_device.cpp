// Devices in the pool's life: the runtime, regions, the pinned arena.
#include <utility>

#include "pool.h"
#include "pool_call.h"

namespace umbp {

void Pool::use_devices(std::shared_ptr<DeviceApi> api, DeviceHooks hooks) {
  Call call(*this);
  if (call.lost()) return;
  std::lock_guard lock(ending_mutex_);
  if (devices() != nullptr) throw Error("the pool has its device runtime already");
  const uint64_t nbytes = reader_->index().arena_bytes;
  read_pins_ = std::make_shared<ArenaPins>(api, nbytes, config_.pin_chunk_bytes);
  // An owner has one map. HIP cannot register one that is read-only: there devices read the writable one.
  const bool one_map = owner_ != nullptr || std::string_view(api->name()) == "hip";
  write_pins_ =
      one_map ? read_pins_ : std::make_shared<ArenaPins>(api, nbytes, config_.pin_chunk_bytes);
  own_devices_ =
      std::make_unique<DeviceMemory>(std::move(api), std::move(hooks), config_.staging_bytes);
  devices_.store(own_devices_.get(), std::memory_order_release);
}

uint64_t Pool::pin_arena(int device, bool writing) {
  Call call(*this);
  if (call.lost() || devices() == nullptr) return 0;
  const bool read_only = !writing && write_pins_ != read_pins_;
  ArenaPins& pins = read_only ? *read_pins_ : *write_pins_;
  std::byte* base = const_cast<std::byte*>(reader_->index().arena);
  if (!owner_ && !read_only) base = writable().data();
  return pins.pin(device, base, read_only, [this] { return closed() || lost(); });
}

void Pool::add_region(uint64_t base, uint64_t nbytes, bool grow) {
  Call call(*this);
  DeviceMemory* const known = devices();
  if (known == nullptr) return regions_.add({base, nbytes}, grow);
  const Region region = known->describe(base, nbytes);
  regions_.add(region, grow);
  if (region.kind == MemoryKind::kDevice) known->want_arena(region.device, false);
}

void Pool::remove_region(uint64_t base) {
  Call call(*this);
  const uint64_t nbytes = regions_.remove(base);
  if (devices() != nullptr) devices()->forget(base, nbytes);
}

std::vector<Region> Pool::regions() {
  Call call(*this);
  return regions_.list();
}

void Pool::await(const CopyOrder& after) {
  if (devices() == nullptr)
    throw InvalidBatch("a stream or an event is given, and the pool has no device runtime");
  devices()->await(after);
}

ArenaMap Pool::readable_map() const {
  return {reinterpret_cast<uint64_t>(reader_->index().arena), *read_pins_};
}

ArenaMap Pool::writable_map() {
  if (owner_) return {reinterpret_cast<uint64_t>(owner_->arena()), *write_pins_};
  return {reinterpret_cast<uint64_t>(writable().data()), *write_pins_};
}

void Pool::unpin() noexcept {
  if (read_pins_) read_pins_->unpin();
  if (write_pins_) write_pins_->unpin();
}

void Pool::let_go_of_devices() noexcept {
  unpin();
  devices_.store(nullptr, std::memory_order_release);
  own_devices_.reset();
}

void Pool::abandon_devices() noexcept {
  static_cast<void>(own_devices_.release());
  if (read_pins_) static_cast<void>(new std::shared_ptr<ArenaPins>(std::move(read_pins_)));
  if (write_pins_) static_cast<void>(new std::shared_ptr<ArenaPins>(std::move(write_pins_)));
}

}  // namespace umbp
