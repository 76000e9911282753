// What the core throws. The bindings turn each type into the Python class of the same meaning (errors.py).
#pragma once

#include <stdexcept>
#include <string>

namespace umbp {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A malformed batch or argument: nothing was moved.
struct InvalidBatch : Error {
  using Error::Error;
};

// An address range that no registered region covers.
struct UnregisteredMemory : InvalidBatch {
  using InvalidBatch::InvalidBatch;
};

// A registration that cannot be: overlap, zero size, wrap-around, unknown base.
struct RegionError : Error {
  using Error::Error;
};

struct PoolClosed : Error {
  using Error::Error;
};

// A call in a forked child, which does not own its parent's pool.
struct ForkedPool : Error {
  using Error::Error;
};

// Memory for the arena or the index could not be had.
struct OutOfMemory : Error {
  using Error::Error;
};

// A device runtime is missing or a call of it failed; names the call and what the runtime said.
struct DeviceError : Error {
  using Error::Error;
};

}  // namespace umbp
