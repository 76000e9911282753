// The GIL, released for a scope in which the core works.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace umbp {

// nanobind's gil_scoped_release, but for one thing: a daemon thread that comes back from the core while
// the interpreter ends. Before 3.14 Python ends such a thread inside PyEval_RestoreThread by an unwinding
// that must not leave a destructor: the process would abort. Here it sleeps until the process is gone, as
// Python's own threads do from 3.14 on.
class ReleasedGil {
 public:
  ReleasedGil() : thread_(PyEval_SaveThread()) {}
  ~ReleasedGil() {
    try {
      PyEval_RestoreThread(thread_);
    } catch (...) {
      for (;;) pause();
    }
  }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  PyThreadState* thread_;
};

}  // namespace umbp
