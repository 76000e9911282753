// Where a put into another process's pool copies from.
#pragma once

#include <cstdint>
#include <vector>

#include "arguments.h"
#include "pool.h"
#include "released_gil.h"

namespace umbp {

// Where a client's put copies from: arguments read once, so that what was checked before the owner
// reserved anything is what is copied.
class PutSource {
 public:
  virtual ~PutSource() = default;
  virtual bool fill(Pool& pool, const FillTargets& targets, const CopyOrder& after) const = 0;
  size_t size() const { return statuses_.size(); }
  const std::vector<Status>& statuses() const { return statuses_; }
  uint64_t nbytes(size_t i) const { return object_bytes(i); }

 protected:
  virtual uint64_t object_bytes(size_t i) const = 0;
  std::vector<Status> statuses_;
};

class PageSource : public PutSource {
 public:
  PageSource(Pool& pool, const ComponentLayout& layout, nb::handle rows)
      : layout_(layout.layout), rows_(rows) {
    statuses_.assign(rows_.size(), Status::kOk);
    const ReleasedGil no_gil;
    pool.check_put_pages(layout_, rows_.span());
  }
  bool fill(Pool& pool, const FillTargets& targets, const CopyOrder& after) const override {
    return pool.fill_pages(layout_, rows_.span(), targets, after);
  }

 private:
  uint64_t object_bytes(size_t) const override { return layout_.object_bytes(); }

  PageLayout layout_;
  Rows rows_;
};

class RangeSource : public PutSource {
 public:
  // Whole objects of one range each.
  RangeSource(Pool& pool, nb::handle addresses, nb::handle sizes)
      : object_bytes_(sizes, "sizes"), ranges_(addresses, sizes) {
    check(pool);
  }
  RangeSource(Pool& pool, nb::handle object_sizes, nb::handle addresses, nb::handle sizes,
              nb::handle offsets, nb::handle starts)
      : object_bytes_(object_sizes, "object_sizes"), ranges_(addresses, sizes, offsets, starts) {
    check(pool);
  }
  bool fill(Pool& pool, const FillTargets& targets, const CopyOrder& after) const override {
    return pool.fill_ranges(object_bytes_.data(), ranges_.batch(), targets, after);
  }

 private:
  uint64_t object_bytes(size_t i) const override { return object_bytes_.data()[i]; }
  void check(Pool& pool) {
    object_bytes_.check_size(ranges_.batch().keys);
    statuses_.resize(ranges_.batch().keys);
    const ReleasedGil no_gil;
    pool.check_put_ranges(object_bytes_.data(), ranges_.batch(), statuses_.data());
  }

  Integers object_bytes_;
  Ranges ranges_;
};

}  // namespace umbp
