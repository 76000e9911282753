#include "put_item.h"

namespace umbp {

void append_items(std::vector<PutItem>& items, uint32_t component, const Hash128& component_key,
                  std::span<const Hash128> digests, std::span<const std::string_view> keys,
                  std::optional<uint32_t> depth) {
  std::vector<Hash128> hashes(digests.size());
  prf128_batch(component_key, digests, hashes.data());
  const size_t first = items.size();
  items.resize(first + digests.size());
  for (size_t i = 0; i < digests.size(); ++i) {
    PutItem& item = items[first + i];
    item.hash = hashes[i];
    item.key = keys[i];
    item.component = component;
    if (depth) item.depth = *depth + static_cast<uint32_t>(i);
  }
}

std::vector<PutItem> make_items(uint32_t component, const Hash128& component_key,
                                std::span<const Hash128> digests,
                                std::span<const std::string_view> keys,
                                std::optional<uint32_t> depth) {
  std::vector<PutItem> items;
  append_items(items, component, component_key, digests, keys, depth);
  return items;
}

}  // namespace umbp
