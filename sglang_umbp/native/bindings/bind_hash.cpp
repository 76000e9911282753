#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>

#include <cstring>
#include <vector>

#include "errors.h"
#include "hash128.h"

namespace nb = nanobind;

namespace umbp {
namespace {

nb::list prf128_of(const nb::bytes& key, nb::sequence messages) {
  Hash128 secret;
  if (key.size() != sizeof secret) throw InvalidBatch("the key must have 16 bytes");
  std::memcpy(&secret, key.c_str(), sizeof secret);
  std::vector<std::string_view> views;
  for (nb::handle message : messages) {
    const auto bytes = nb::cast<nb::bytes>(message);
    views.emplace_back(bytes.c_str(), bytes.size());
  }
  std::vector<Hash128> hashes(views.size());
  prf128_batch(secret, std::span<const std::string_view>(views), hashes.data());
  nb::list digests;
  for (const Hash128& hash : hashes)
    digests.append(nb::bytes(reinterpret_cast<const char*>(&hash), sizeof hash));
  return digests;
}

}  // namespace

void bind_hash(nb::module_& m) {
  m.def("prf128", &prf128_of, nb::arg("key"), nb::arg("messages"),
        "SipHash-2-4-128 of each message (bytes) under a 16-byte key, as 16 bytes. A door for tests.");
}

}  // namespace umbp
