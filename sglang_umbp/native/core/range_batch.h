// Raw ranges of a batch, in offset form: key i owns the ranges starts[i] .. starts[i + 1].
#pragma once

#include <cstdint>
#include <span>

#include "status.h"

namespace umbp {

struct RangeBatch {
  const uint64_t* addresses = nullptr;
  const uint64_t* nbytes = nullptr;
  const uint64_t* offsets = nullptr;  // in the object; nullptr: one range a key, the whole object
  const uint64_t* starts = nullptr;   // keys + 1; nullptr: one range a key
  uint64_t keys = 0;
  uint64_t ranges = 0;

  bool whole() const { return offsets == nullptr; }
  uint64_t begin(uint64_t key) const { return starts == nullptr ? key : starts[key]; }
  uint64_t end(uint64_t key) const { return starts == nullptr ? key + 1 : starts[key + 1]; }
  uint64_t offset(uint64_t range) const { return offsets == nullptr ? 0 : offsets[range]; }

  // Throws InvalidBatch: starts that do not ascend from 0 to `ranges`, or an address that wraps.
  void check_shape() const;
  // Throws InvalidBatch naming two ranges that share a byte. Empty ranges are passed over.
  void check_disjoint() const;
  // Whether the ranges of one key cover [0, object_bytes) once, in any order.
  bool tiles(uint64_t key, uint64_t object_bytes) const;
  // Whether the key has ranges, none is empty, and all lie inside the object.
  bool inside(uint64_t key, uint64_t object_bytes) const;
  // For a put: kOk, kBadRange unless inside(), kNotTiled unless tiles().
  Status check_object(uint64_t key, uint64_t object_bytes) const;
  uint64_t bytes_of(uint64_t key) const;
};

}  // namespace umbp
