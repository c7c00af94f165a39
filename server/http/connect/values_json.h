// Messages of values as JSON, quickly.
#pragma once

#include <string>

#include "lintel/v1/generation.pb.h"

namespace lintel {

// Who reads the JSON, which shows in its floats alone.
enum class JsonReader {
  kProgram,  // protobuf's spelling: a float's 6 digits, or 9 where those are another float
  kPerson,   // what nlohmann::json makes of that spelling, as the rest of a line of JSON is
};

// A chunk as protobuf's JSON has it. By hand, because protobuf's printer goes by reflection, which
// costs more than all else that happens to a message.
void add_chunk(std::string& json, const v1::Chunk& chunk, JsonReader reader);

// The whole message, as protobuf prints it. REQUIRES: no sample ends with it.
std::string values_json(const v1::GenerateResponse& message);

}  // namespace lintel
