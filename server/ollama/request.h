// SPDX-License-Identifier: Apache-2.0
// OllamaRequest: the body of /api/chat or /api/generate (https://docs.ollama.com/api), read into
// what lintel.v1 runs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "model/core/json_reader.h"
#include "server/openai/chat_request.h"

namespace lintel {

enum class OllamaRoute { kChat, kGenerate };

struct OllamaRequest {
  std::string model;        // as the client wrote it; empty: the one that is served
  bool streams = true;      // in lines
  bool is_empty = false;    // without messages or a prompt: asks for the model to be there
  bool keep_alive = true;   // false: 0 seconds, which with an empty request unloads
  bool raw = false;         // of kGenerate: the prompt is what the model reads
  bool has_system = false;  // of kGenerate
  // The conversation; of kGenerate its last message is the prompt, for models with a template. Of
  // an empty request it has no messages. ignored: with names as "options.NAME".
  std::unique_ptr<ChatRequest> chat = std::make_unique<ChatRequest>();
};

// Reads a body, and charges request.chat with the tree that it becomes. request.chat->status: the
// error, with names of lintel.v1 or of OpenAI's API (ollama_member()), or request_memory_refusal().
// is_cancelled: empty: never. Returns why it is not JSON.
JsonFailure read_ollama_request(OllamaRoute route, std::string_view text, const std::string& caller,
                                const std::function<bool()>& is_cancelled, OllamaRequest& request);

// "NAME" of "NAME:latest".
std::string without_latest(std::string name);

// The member of Ollama's requests that lintel.v1 or OpenAI's API calls `field`, or of which that is
// a part: "options.repeat_penalty" of "sampling.repetition_penalty".
std::string ollama_member(std::string_view field, OllamaRoute route);

}  // namespace lintel
