#include "model/ops/kernel_choice.h"

#include <atomic>

namespace lintel {
namespace {

std::atomic<KernelChoice> of_process{KernelChoice::kAuto};

}  // namespace

const char* to_string(KernelChoice choice) {
  switch (choice) {
    case KernelChoice::kAuto:
      return "auto";
    case KernelChoice::kOwn:
      return "own";
    case KernelChoice::kOneDnn:
      return "onednn";
  }
  return "unknown";
}

std::optional<KernelChoice> kernels_named(std::string_view name) {
  for (const KernelChoice choice : kKernelChoices) {
    if (name == to_string(choice)) return choice;
  }
  return std::nullopt;
}

void choose_kernels(KernelChoice choice) { of_process.store(choice); }
KernelChoice chosen_kernels() { return of_process.load(); }

}  // namespace lintel
