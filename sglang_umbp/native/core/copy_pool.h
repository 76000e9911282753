// Copies one call's runs with several threads.
#pragma once

#include <cstddef>
#include <memory>

#include "host_copy.h"
#include "phases.h"
#include "planner.h"

namespace umbp {

// Persistent helper threads beside the calling ones. Any number of threads may call copy() at once;
// each takes the helpers that are free at that moment. copy() takes no mutex and never waits for a
// helper of another call: a helper is claimed by one compare-and-swap, and one that has not begun
// when the caller is through is taken back.
class CopyPool {
 public:
  // threads: how many may copy one call, its caller included (1: no helpers; 0 counts as 1). The
  // copier is copied. Throws Error if a helper cannot be started; those already running are then
  // stopped.
  CopyPool(const HostCopier& copier, unsigned threads);
  // Ends the helpers. No copy() may be running. Not in a forked child: see abandon().
  ~CopyPool();
  CopyPool(const CopyPool&) = delete;
  CopyPool& operator=(const CopyPool&) = delete;

  // Copies all runs; returns when every byte is there, ordered before this thread's later stores.
  // `timer`, if given, is told the caller's own copies (submit) apart from its wait for helpers.
  void copy(const Run* runs, size_t n, PhaseTimer* timer = nullptr);

  // Ends the helpers; copy() then works alone. No copy() may be running. Twice is a no-op.
  void stop();

  // For a forked child, where the helpers do not exist: forgets them (their bookkeeping leaks).
  // copy() then works alone, and destruction touches nothing.
  void abandon();

  const char* isa() const { return copier_.isa(); }
  unsigned threads() const { return helper_count_ + 1; }

 private:
  struct Job;
  struct Helper;

  void start_helpers();
  void stop_helpers();
  void run_helper(Helper& self) const;
  void work_on(Job& job) const;
  unsigned claim_helpers(Job& job, unsigned wanted, Helper** claimed);
  static void release_helper(Helper& helper);

  HostCopier copier_;
  unsigned helper_count_;
  std::unique_ptr<Helper[]> helpers_;
};

}  // namespace umbp
