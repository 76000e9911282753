#include "put_item.h"

namespace umbp {

std::vector<PutItem> make_items(uint32_t component, const Hash128& component_key,
                                std::span<const Hash128> digests,
                                std::span<const std::string_view> keys,
                                std::optional<uint32_t> depth) {
  std::vector<PutItem> items(digests.size());
  std::vector<Hash128> hashes(digests.size());
  prf128_batch(component_key, digests, hashes.data());
  for (size_t i = 0; i < items.size(); ++i) {
    items[i].hash = hashes[i];
    items[i].key = keys[i];
    items[i].component = component;
    if (depth) items[i].depth = *depth + static_cast<uint32_t>(i);
  }
  return items;
}

}  // namespace umbp
