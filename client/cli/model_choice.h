// Which model a command is about, where --model does not say.
#pragma once

#include <string>

#include "client/cli/console.h"
#include "client/lib/client.h"

namespace lintel::cli {

// The model `name`. Without a name: the only one that is loaded, or of several the only one of
// `modality`, where one is needed ("image", "bytes"; empty: any will do, so several are too many).
// Throws UsageError where several are left, else what the server said.
v1::Model choose_model(const Client& client, const std::string& name, const std::string& modality,
                       Cancellation& cancellation);

// `error`, or where the server knows the model and has not loaded it, one that says which command
// loads it.
CallError load_hint(const Client& client, Cancellation& cancellation, const CallError& error);

// What `call` returns; a CallError is as load_hint has it.
template <typename Call>
auto with_load_hint(const Client& client, Cancellation& cancellation, const Call& call) {
  try {
    return call();
  } catch (const CallError& error) {
    throw load_hint(client, cancellation, error);
  }
}

}  // namespace lintel::cli
