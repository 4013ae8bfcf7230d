// Parallel loops on torch's own threads.
#pragma once

#include <cstdint>
#include <functional>

namespace elflow {

// Calls body(begin, end) on ranges that partition [0, count), on at most `threads` threads.
void parallel_for(std::int64_t count, int threads, const std::function<void(std::int64_t, std::int64_t)>& body);

// The owner of these threads: "torch" or "own".
const char* thread_pool();

}  // namespace elflow
