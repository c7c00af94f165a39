// SPDX-License-Identifier: Apache-2.0
// The tiles of AMX: whether this process has them, and how long a thread keeps them.
#pragma once

namespace lintel {

// True if the processor has tiles, with products of int8 and of bf16, and the system lets this
// process use them. Asked once: a thread that uses tiles has 8 KiB more to be saved.
bool amx_available();

// A thread's tiles are configured by the first product within a scope and released at the end of
// the outermost one: a thread that sleeps with tiles in use keeps its core from resting, and has
// them saved at every switch. Around the products of a step; costs nothing where there are no
// tiles.
class TileScope {
 public:
  TileScope();
  ~TileScope();
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

// Eight tiles of 16 rows of 64 bytes, unless this thread has them. REQUIRES: amx_available(), and a
// TileScope of this thread.
void configure_tiles();
// Another library has used the tiles of this thread and released them.
void forget_tiles();

}  // namespace lintel
