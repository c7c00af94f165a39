// SPDX-License-Identifier: Apache-2.0
// The members of ServerOptions, one by one.
#pragma once

#include <string>
#include <vector>

#include "server/config/server_options.h"

namespace lintel::testing {

struct Field {
  std::string name;  // "models.scheduling.workers"
  const void* address;
  std::string value;  // as text: two that differ have different texts
};

// Every member of the structs that ServerOptions is made of; what is a value to the operator, such
// as an address, is one member. A member that is new does not let this compile before it is named
// here; then the tests want a flag for it, or a word on why it has none.
std::vector<Field> fields_of(ServerOptions& options);

}  // namespace lintel::testing
