#include "parallel.h"

#include <algorithm>
#include <atomic>
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

// After a parallel loop the threads of an OpenMP runtime spin for some milliseconds, waiting for the next one. A second pool
// would fight with them for the cores, so this asks the very runtime that torch is linked to. Every OpenMP runtime on
// Linux (GNU, LLVM, Intel) has this entry point.
using Fork = void (*)(void (*work)(void*), void* data, unsigned threads, unsigned flags);

Fork find_fork() {
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
    if (void* torch = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD)) return reinterpret_cast<Fork>(dlsym(torch, "GOMP_parallel"));
#endif
  return nullptr;
}

Fork torch_fork() {
  static const Fork fork = find_fork();
  return fork;
}

}  // namespace

void parallel_for(std::int64_t count, int threads, const std::function<void(std::int64_t, std::int64_t)>& body) {
  threads = static_cast<int>(std::min<std::int64_t>(threads, count));
  if (threads <= 1) {
    if (count > 0) body(0, count);
    return;
  }
  // Shares are taken, not dealt: it does not matter how many threads come, nor when.
  struct Work {
    const std::function<void(std::int64_t, std::int64_t)>& body;
    const std::int64_t count, shares;
    std::atomic<std::int64_t> next{0};

    static void run(void* data) {
      Work& w = *static_cast<Work*>(data);
      for (std::int64_t i; (i = w.next++) < w.shares;) w.body(w.count * i / w.shares, w.count * (i + 1) / w.shares);
    }
  } work{body, count, std::min<std::int64_t>(16 * threads, count)};
  if (torch_fork()) return torch_fork()(Work::run, &work, static_cast<unsigned>(threads), 0);
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(Work::run, &work);
  Work::run(&work);
  for (std::thread& other : others) other.join();
}

const char* thread_pool() { return torch_fork() ? "torch" : "own"; }

}  // namespace elflow
