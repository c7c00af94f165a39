// Products by oneDNN, for machines with AMX: its tiles are several times faster than the vectors
// our own kernels use, on batches that fill them.
#pragma once

#include "model/dense/product_library.h"

namespace lintel {

// oneDNN for bf16 and int8. Worthwhile where it uses AMX; ONEDNN_MAX_CPU_ISA can forbid that. It
// allocates a little in every product.
const ProductLibrary& onednn_library();

// Whether oneDNN may use AVX-512 here. ONEDNN_MAX_CPU_ISA makes it behave as on a lesser machine,
// and our own kernels follow it.
bool onednn_has_avx512();

}  // namespace lintel
