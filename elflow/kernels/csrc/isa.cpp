#include "isa.h"

namespace elflow {

#define ELFLOW_DECLARE(isa)                                  \
  namespace isa {                                            \
  extern const Kernels float32_kernels, float64_kernels;     \
  extern const MixtureKernels mixture_kernels;               \
  }
#if defined(ELFLOW_WITH_AVX512)
ELFLOW_DECLARE(avx512)
static bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif
#if defined(ELFLOW_WITH_AVX2)
ELFLOW_DECLARE(avx2)
static bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#endif
ELFLOW_DECLARE(baseline)
static bool always() { return true; }

const std::vector<InstructionSet>& instruction_sets() {
  static const std::vector<InstructionSet> sets{
#if defined(ELFLOW_WITH_AVX512)
      {"avx512", has_avx512, avx512::float32_kernels, avx512::float64_kernels, avx512::mixture_kernels},
#endif
#if defined(ELFLOW_WITH_AVX2)
      {"avx2", has_avx2, avx2::float32_kernels, avx2::float64_kernels, avx2::mixture_kernels},
#endif
      {"baseline", always, baseline::float32_kernels, baseline::float64_kernels, baseline::mixture_kernels},
  };
  return sets;
}

}  // namespace elflow
