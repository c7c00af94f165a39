// SPDX-License-Identifier: Apache-2.0
// What a fuzzer feeds: one input to one parser, with the promises of the parser checked.
#pragma once

#include <string_view>

namespace lintel::fuzz {

// Returns whether the parser took the input. A refusal is a ModelError with a short, printable
// text; accepted input keeps the parser's promises. Anything else leaves as an exception of another
// type.
bool try_config(std::string_view bytes);
bool try_safetensors(std::string_view bytes);
bool try_gguf(std::string_view bytes);
bool try_adapter_config(std::string_view bytes);
bool try_tokenizer_json(std::string_view bytes);
bool try_world_vocabulary(std::string_view bytes);
// A refusal is a GrammarError; what is taken makes texts that it accepts.
bool try_schema(std::string_view bytes);
bool try_relaxed_schema(std::string_view bytes);
bool try_gbnf(std::string_view bytes);
// A refusal is a SnapshotError. In one piece and in several the outcome is the same.
bool try_snapshot(std::string_view bytes);
// A model's output, read as its first byte says: mode, dialect, whether calls are parallel, how it
// ends. True: it has a call. In one piece and in several the outcome is the same.
bool try_reader(std::string_view bytes);

}  // namespace lintel::fuzz
