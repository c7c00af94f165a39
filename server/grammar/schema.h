// SPDX-License-Identifier: Apache-2.0
// JSON Schema as a grammar. The language is narrower than the schema and never wider, but for equal
// keys that `properties` does not name: integers have no fraction or exponent, constants are spelt
// as in the schema, and objects, arrays and white space are bounded.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/grammar/grammar.h"
#include "server/grammar/json_value.h"

namespace lintel::grammar {

// The keyword, without a path, that ends a list of which more was left out than it names.
inline constexpr const char* kMoreRelaxed = "...";

// A keyword that was left out of a schema, or an object that was closed.
struct RelaxedKeyword {
  std::string path;        // a JSON pointer
  std::string keyword;     // as GrammarError::reason(); `properties` of an object that was closed
  bool is_closed = false;  // by SchemaOptions::closed_objects
};

struct SchemaOptions {
  // Keywords that are not served are left out, at the price of a wider language. What is no schema,
  // too large, or met by no text is refused all the same.
  bool relaxed = false;
  // true, false and null may be True, False and None.
  bool python_literals = false;
  // An object has no members but those of its `properties`, where it has that keyword and neither
  // the schema nor what was left out of it can say which others there are: additionalProperties,
  // patternProperties, propertyNames, a minProperties that needs others.
  bool closed_objects = false;
  // The whole is an object; what else the schema permits is left out.
  bool objects_only = false;
};

// The spelling of arguments that are no JSON object.
struct MemberStyle {
  std::string first_prefix, later_prefix;  // before the name of the first and of further members
  std::string name_end;                    // after it
  std::string value_end;                   // after each value
  std::string first_end, later_end;        // the end of a list without members, and of others
  // If these are set, values that may be texts are written without quotes: `plain_value` accepts a
  // text that ends with `value_end`, `plain_inside` one without that. `counted_value` accepts what
  // `plain_value` does of UTF-8; `value_counts` counts its characters and those of `value_end`.
  // `is_plain`: whether a text that `enum` or `const` gives can be written so.
  std::shared_ptr<const Dfa> plain_value, plain_inside, counted_value;
  std::shared_ptr<const CharacterCounts> value_counts;
  bool (*is_plain)(std::string_view text) = nullptr;
  // Characters that no name has. Members of other names, and of an empty one, are left out.
  std::string not_in_names;
  // Names that `properties` need not have, with a quote after them in place of `name_end`. Those
  // with a quote or a backslash are left out.
  std::shared_ptr<const Dfa> other_name;
  std::shared_ptr<const Dfa> other_name_end;  // the same with `name_end`
};

// Adds the texts that `schema` describes to `grammar`. `relaxed`: what was left out is appended,
// and what is not enforced, 64 keywords at most, then kMoreRelaxed, and objects that were closed,
// likewise. Bounds: 10,000 nodes, 64 MiB of
// memory, and work that takes some 50 ms. Throws GrammarError.
NodeId add_schema(Grammar& grammar, const JsonValue& schema, const SchemaOptions& options,
                  std::vector<RelaxedKeyword>* relaxed);

// The same for an object whose members are spelt in another way. Members that `properties` does not
// name are left out where a schema has `properties` and says nothing of others; at most 16 names of
// a class are each taken once.
NodeId add_schema_members(Grammar& grammar, const JsonValue& schema, const MemberStyle& style,
                          const SchemaOptions& options, std::vector<RelaxedKeyword>* relaxed);

// A schema as a grammar of its own. Throws GrammarError.
std::shared_ptr<const Grammar> compile_schema(std::string_view schema,
                                              const SchemaOptions& options = {},
                                              std::vector<RelaxedKeyword>* relaxed = nullptr);

}  // namespace lintel::grammar
