// LoRA adapters of a model, as `lintel model` shows them.
#pragma once

#include <string>

#include "client/cli/json_writer.h"
#include "client/lib/client.h"

namespace lintel::cli {

// "thin-strokes: rank 8, 12 modules, 147456 bytes, fingerprint 0123456789ab"
std::string adapter_text(const v1::Adapter& adapter);
void write_adapter(JsonWriter& json, const v1::Adapter& adapter);

}  // namespace lintel::cli
