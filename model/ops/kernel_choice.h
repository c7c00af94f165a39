// Who multiplies matrices: our own kernels, or oneDNN.
#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace lintel {

enum class KernelChoice {
  kAuto,    // for each weight type what is faster on this machine, by a table: ProductLibrary
  kOwn,     // our own kernels alone
  kOneDnn,  // oneDNN wherever its rows are independent of each other, else our own
};

inline constexpr std::array kKernelChoices = {KernelChoice::kAuto, KernelChoice::kOwn,
                                              KernelChoice::kOneDnn};

const char* to_string(KernelChoice choice);  // "auto", "own", "onednn"
std::optional<KernelChoice> kernels_named(std::string_view name);

// Of the process: the default for layers that are made from now on. kAuto at first.
void choose_kernels(KernelChoice choice);
KernelChoice chosen_kernels();

}  // namespace lintel
