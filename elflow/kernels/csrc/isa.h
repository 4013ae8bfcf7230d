// The instruction sets that this build holds.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace elflow {

struct InstructionSet {
  std::string name;
  bool (*supported)();
  const Kernels &float32, &float64;
  const MixtureKernels& mixture;
};

// From the most capable to the least; the last one runs everywhere.
const std::vector<InstructionSet>& instruction_sets();

}  // namespace elflow
