// Plans of eight bytes a piece, for runs of one size.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "device_kernels.h"

namespace umbp {

// How far apart runs may be to be pieces of one even plan.
enum class Reach : uint8_t {
  kWhole,  // as far as pieces can tell
  kHalf,   // half of it, so that others that follow are likely to be, too
};

// What the pieces of an even plan have in common; nothing where the runs are of several sizes or too far apart for their
// alignment.
std::optional<EvenCopy> even_of(std::span<const Run> runs, Reach reach);

// The runs as pieces of an even plan; false if one of them is none, and then what was written means nothing.
bool fill_even(std::span<const Run> runs, const EvenCopy& even, EvenCopyPiece* out);

}  // namespace umbp
