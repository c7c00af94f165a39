// Where a value came from, as the wire has it.
#pragma once

#include "lintel/v1/generation.pb.h"
#include "server/sessions/value_source.h"

namespace lintel {

inline v1::ValueSource wire_source(ValueSource source) {
  switch (source) {
    case ValueSource::kSampled:
      return v1::VALUE_SOURCE_SAMPLED;
    case ValueSource::kGiven:
      return v1::VALUE_SOURCE_GIVEN;
    case ValueSource::kPrompt:
      return v1::VALUE_SOURCE_PROMPT;
  }
  return v1::VALUE_SOURCE_UNSPECIFIED;
}

}  // namespace lintel
