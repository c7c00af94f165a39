// SPDX-License-Identifier: Apache-2.0
// Compiled with -mavx2 where there is such a thing (server/CMakeLists.txt), so that nothing of it
// may be shared with other files: no templates, no inline functions but xxHash's, which are static.
#include "server/sessions/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lintel {

bool digest_avx2_runs_here() {
#ifdef __AVX2__
  return __builtin_cpu_supports("avx2") != 0;
#else
  return false;
#endif
}

void digest_avx2(const void* head, std::size_t head_bytes, const void* body, std::size_t body_bytes,
                 void* digest_of_16_bytes) {
  XXH128_hash_t hash;
  if (head_bytes == 0) {
    hash = XXH3_128bits(body, body_bytes);
  } else {
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, head, head_bytes);
    XXH3_128bits_update(&state, body, body_bytes);
    hash = XXH3_128bits_digest(&state);
  }
  XXH128_canonicalFromHash(static_cast<XXH128_canonical_t*>(digest_of_16_bytes), hash);
}

}  // namespace lintel
