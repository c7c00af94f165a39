// SPDX-License-Identifier: Apache-2.0
// SchemaReader: what a JSON Schema says of each place, with references and applicators resolved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "server/grammar/number_bounds.h"
#include "server/grammar/schema.h"

namespace lintel::grammar {

// Schemas that hold at once, each an object of the document: sorted, without equal ones.
using Schemas = std::vector<const JsonValue*>;

// Of reading a schema and making its nodes: some 50 ms.
inline constexpr std::size_t kMaxSchemaWork = 10'000'000;

// Types of a value, as bits. Every integer is a number, too.
enum JsonTypeBits : std::uint32_t {
  kNullBit = 1,
  kBooleanBit = 2,
  kIntegerBit = 4,
  kFractionBit = 8,  // a number that may be no integer
  kStringBit = 16,
  kArrayBit = 32,
  kObjectBit = 64,
  kAllTypes = 127,
};

// What schemas that hold at once say together.
struct Shape {
  std::uint32_t types = kAllTypes;
  std::optional<std::vector<const JsonValue*>> constants;
  NumberBounds numbers;
  const JsonValue* multiple_schema = nullptr;  // that has a multipleOf of `numbers`
  std::uint32_t min_length = 0, max_length = kUnbounded;
  std::uint32_t min_items = 0, max_items = kUnbounded;
  std::vector<const JsonValue*> patterns, formats;
  std::vector<Schemas> prefix;
  Schemas items;
  std::vector<std::pair<std::string, Schemas>> properties;
  std::set<std::string> required;
  Schemas additional;
};

// Reads one document. Used by one thread; the document outlives it. Functions throw GrammarError.
class SchemaReader {
 public:
  SchemaReader(const JsonValue& root, const SchemaOptions& options,
               std::vector<RelaxedKeyword>* relaxed);

  // The sets of which one has to hold where `set` does.
  std::vector<Schemas> alternatives(const Schemas& set);
  // Of one such set. Valid as long as the reader.
  const Shape& shape_of(const Schemas& set);
  // The bit of a value's type.
  static std::uint32_t type_of(const JsonValue& value);
  // The automaton of a `pattern` or `format` of `schema`; null: it is left out.
  std::shared_ptr<const Dfa> dfa_of(const JsonValue* schema, const JsonValue* text, bool is_pattern,
                                    Spelling spelling);
  // Leaves a keyword of `place` out, or throws.
  void refuse(const JsonValue* place, const std::string& reason);
  // Counts work of the whole, up to kMaxSchemaWork.
  void spend(std::size_t work);

 private:
  // The pointer to `place` within the document.
  std::string path_of(const JsonValue* place) const;
  [[noreturn]] void refuse_form(const JsonValue* place, const std::string& reason) const;
  // Schemas with a name of their own are refused wherever they are: a reference may mean them.
  void find_ids();
  void check_keywords(const JsonValue* schema);
  // Null: there is no such place.
  const JsonValue* resolve(const std::string& reference);

  // What holds at a place, the applicators of several branches apart.
  struct Flat {
    Schemas plain;
    struct Group {
      const JsonValue* owner;
      const JsonValue* branches;
      bool is_one_of;
      std::vector<const JsonValue*> active;  // schemas that led here: a way back is a loop
    };
    std::vector<Group> groups;  // to be chosen from
    bool never = false;
  };

  void flatten(const JsonValue* schema, Flat& flat);
  // One branch of each group in every way.
  std::vector<Schemas> choose(Flat flat);
  void flatten_branch(const Flat::Group& group, std::size_t branch, Flat& flat);
  // That no two branches of a oneOf hold for one value.
  void check_branches(const Flat::Group& group, const Schemas& base);
  // Whether no value has both shapes, as far as types and constants of required properties say.
  bool excludes(const Shape& one, const Shape& other);
  bool are_apart(const std::vector<const JsonValue*>& some,
                 const std::vector<const JsonValue*>& others);
  std::optional<std::vector<const JsonValue*>> constants_of(const Schemas& set);
  std::uint32_t read_types(const JsonValue* schema, const JsonValue& type) const;
  std::uint32_t read_count(const JsonValue* schema, const JsonValue& value,
                           const char* keyword) const;
  void read_numbers(const JsonValue* schema, Shape& shape);
  void add_constants(const JsonValue* schema, Shape& shape);
  void read_scalars(const JsonValue* schema, Shape& shape);
  void read_arrays(const Schemas& set, Shape& shape);
  void read_objects(const Schemas& set, Shape& shape);
  static std::size_t distinct_names(const JsonValue& object);
  void filter_constants(Shape& shape);
  bool holds(const JsonValue& value, const Schemas& set);
  // But for constants. As deep as the value is.
  bool has_shape(const JsonValue& value, const Shape& shape);

  const JsonValue& root_;
  const SchemaOptions options_;
  std::vector<RelaxedKeyword>* relaxed_;
  std::size_t work_ = 0;
  std::set<std::pair<const JsonValue*, std::string>> noted_;
  std::set<const JsonValue*> checked_;
  std::set<std::pair<const JsonValue*, Schemas>> checked_groups_;
  std::vector<const JsonValue*> active_;  // being flattened
  std::map<Schemas, Shape> shapes_;
  std::map<std::tuple<bool, Spelling, std::string>, std::shared_ptr<const Dfa>> dfas_;
};

}  // namespace lintel::grammar
