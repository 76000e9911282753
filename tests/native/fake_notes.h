// What a test sets in an emulated runtime and what it finds there: knobs, counts, why calls were refused.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>

namespace fake {

// Knobs that are another in this library: "name=value,...".
extern const char* const kLibraryDefaults;

// CUDA's numbers, which HIP shares.
enum Code : int {
  kOk = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kAlreadyRegistered = 712,
  kNotRegistered = 713,
  kNotPermitted = 800,
  kNotSupported = 801,
};

// Thread-safe. UMBP_FAKE_KNOBS ("eager=1,late_us=200") has other knobs, UMBP_FAKE_LOG a file for every note.
class Notes {
 public:
  Notes() {
    const char* log = std::getenv("UMBP_FAKE_LOG");
    if (log != nullptr) log_.open(log, std::ios::app);
    defaults_ = {{"devices", 2}, {"max_register_bytes", int64_t{256} << 30}};
    read_defaults(kLibraryDefaults);
    const char* knobs = std::getenv("UMBP_FAKE_KNOBS");
    if (knobs != nullptr) read_defaults(knobs);
    knobs_ = defaults_;
  }

  // 0 where nobody set it.
  int64_t knob(const std::string& name) {
    std::lock_guard lock(mutex_);
    const auto found = knobs_.find(name);
    return found == knobs_.end() ? 0 : found->second;
  }
  void set_knob(const std::string& name, int64_t value) {
    std::lock_guard lock(mutex_);
    knobs_[name] = value;
  }

  uint64_t count(const std::string& name) {
    std::lock_guard lock(mutex_);
    return counts_[name];
  }
  // Returns the count with this.
  uint64_t note(const std::string& name, uint64_t number = 1) {
    std::lock_guard lock(mutex_);
    if (log_.is_open()) log_ << name << ' ' << number << std::endl;
    return counts_[name] += number;
  }

  // Why a call was refused, for a person who reads the log; the code.
  int refuse(int code, const std::string& why) {
    std::lock_guard lock(mutex_);
    refusal_ = why;
    ++counts_["refused"];
    if (log_.is_open()) log_ << "refused " << code << ' ' << why << std::endl;
    return code;
  }
  std::string last_refusal() {
    std::lock_guard lock(mutex_);
    return refusal_;
  }

  // All as at the start.
  void reset() {
    std::lock_guard lock(mutex_);
    counts_.clear();
    knobs_ = defaults_;
    refusal_.clear();
  }

 private:
  void read_defaults(const std::string& text) {
    std::istringstream words(text);
    for (std::string word; std::getline(words, word, ',');) {
      const size_t equals = word.find('=');
      if (equals == std::string::npos) abort();
      defaults_[word.substr(0, equals)] = std::stoll(word.substr(equals + 1));
    }
  }

  std::mutex mutex_;
  std::map<std::string, int64_t> knobs_, defaults_;
  std::map<std::string, uint64_t> counts_;
  std::string refusal_;
  std::ofstream log_;
};

}  // namespace fake
