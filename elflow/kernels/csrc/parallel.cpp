#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <string>
#endif

namespace elflow {
namespace {

// After a parallel loop the threads of an OpenMP runtime spin for some milliseconds, waiting for the next loop. A second pool
// would compete with them for the cores, so this uses the runtime that torch is linked to. Every OpenMP runtime on Linux
// (GNU, LLVM, Intel) has this entry point.
using Parallel = void (*)(void (*work)(void*), void* data, unsigned threads, unsigned flags);

Parallel find_parallel() {
#if defined(__linux__)
  std::string path;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* found) {
        if (!std::strstr(info->dlpi_name, "libtorch_cpu.so")) return 0;
        *static_cast<std::string*>(found) = info->dlpi_name;
        return 1;
      },
      &path);
  if (!path.empty())
    if (void* torch = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD)) return reinterpret_cast<Parallel>(dlsym(torch, "GOMP_parallel"));
#endif
  return nullptr;
}

Parallel torchs_parallel() {
  static const Parallel parallel = find_parallel();
  return parallel;
}

}  // namespace

void parallel_for(std::int64_t count, int threads, const std::function<void(std::int64_t, std::int64_t)>& body) {
  threads = static_cast<int>(std::min<std::int64_t>(threads, count));
  if (threads <= 1) {
    if (count > 0) body(0, count);
    return;
  }
  // Threads take shares until none are left, so that any number of threads may come, at any time.
  struct Work {
    const std::function<void(std::int64_t, std::int64_t)>& body;
    const std::int64_t count, shares;
    std::atomic<std::int64_t> next{0};
    std::mutex mutex{};
    std::exception_ptr failure{};

    static void run(void* data) {
      Work& w = *static_cast<Work*>(data);
      try {
        for (std::int64_t i; (i = w.next++) < w.shares;) w.body(w.count * i / w.shares, w.count * (i + 1) / w.shares);
      } catch (...) {
        w.next = w.shares;
        const std::lock_guard<std::mutex> lock(w.mutex);
        w.failure = std::current_exception();
      }
    }
  } work{body, count, std::min<std::int64_t>(16 * threads, count)};
  if (torchs_parallel()) {
    torchs_parallel()(Work::run, &work, static_cast<unsigned>(threads), 0);
  } else {
    std::vector<std::thread> others;
    for (int t = 1; t < threads; ++t) others.emplace_back(Work::run, &work);
    Work::run(&work);
    for (std::thread& other : others) other.join();
  }
  if (work.failure) std::rethrow_exception(work.failure);
}

const char* thread_pool() { return torchs_parallel() ? "torch" : "own"; }

}  // namespace elflow
