// Why a key of a batch succeeded or failed. The numbers are stable: results, logs and metrics use them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace umbp {

enum class Status : uint8_t {
  kOk = 0,                // get: every byte asked for was copied; put: stored now
  kExists = 1,            // put: the key was there already with the same size
  kMissing = 2,           // get, remove: no such object
  kSizeMismatch = 3,      // another size is stored than the one named
  kBadRange = 4,          // a range is empty or lies outside the object
  kNotTiled = 5,          // put ranges leave a gap or overlap
  kTooLarge = 6,          // the object is larger than the pool
  kNoSpace = 7,           // nothing could be evicted before the deadline
  kNoSlot = 8,            // every reader slot was busy until the deadline
  kBusy = 9,              // another put of the key did not end before the deadline
  kCleared = 10,          // clear() came between allocation and commit
  kCollision = 11,        // another key has the same 128-bit hash
  kNotPinned = 12,        // the session does not hold this page
  kNoServer = 13,         // the pool's owner is another process, and gone or silent
};

inline constexpr size_t kStatusCount = 14;

constexpr bool succeeded(Status status) { return status <= Status::kExists; }

}  // namespace umbp
