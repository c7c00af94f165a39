// SPDX-License-Identifier: Apache-2.0
// Products by oneDNN, for who asks for them (KernelChoice).
#pragma once

#include "model/ops/dense_kernels.h"
#include "model/ops/product_library.h"

namespace lintel {

// oneDNN in every weight type that it has on this machine; ONEDNN_MAX_CPU_ISA can make that a
// lesser one. It allocates a little in every product.
const ProductLibrary& onednn_library();

// The highest instruction set that oneDNN may use here.
InstructionSet onednn_instruction_set();

}  // namespace lintel
