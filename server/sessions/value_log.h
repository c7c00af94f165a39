// ValueLog: who remembers the values of a sequence as it takes them.
#pragma once

#include <cstdint>

#include "server/sessions/value_source.h"

namespace lintel {

// Written by the thread that runs the sequence's request, once for every value, in order of
// position. Must not block.
class ValueLog {
 public:
  virtual ~ValueLog() = default;
  virtual void append(std::int32_t value, ValueSource source) = 0;
};

}  // namespace lintel
