// SPDX-License-Identifier: Apache-2.0
// SchemaReader: what a JSON Schema says of each place, with references and applicators resolved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "server/grammar/number_bounds.h"
#include "server/grammar/schema.h"

namespace lintel::grammar {

// Schemas that hold at once: sorted, without equal ones.
using Schemas = std::vector<const JsonValue*>;
// The number of such a set in the reader.
using SetId = std::uint32_t;
inline constexpr SetId kAnything = 0;  // the empty set

// The work of reading a schema and making its nodes: some 50 ms.
inline constexpr std::size_t kMaxSchemaWork = 10'000'000;
// The memory of the document, of what is read of it, and of the nodes made.
inline constexpr std::size_t kMaxSchemaMemory = std::size_t{64} << 20;

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

// Keys that `properties` does not name, and what their values are.
struct KeyClass {
  std::shared_ptr<const Dfa> dfa;  // of keys without their opening quote; null: all
  SetId set = kAnything;
};

// The constraints of schemas that hold at once.
struct Shape {
  std::uint32_t types = kAllTypes;
  std::optional<std::vector<const JsonValue*>> constants;
  std::vector<const JsonValue*> excluded;  // scalars of `not`
  NumberBounds numbers;
  const JsonValue* multiple_schema = nullptr;  // that has a multipleOf of `numbers`
  std::uint32_t min_length = 0, max_length = kUnbounded;
  std::uint32_t min_items = 0, max_items = kUnbounded;
  std::uint32_t min_properties = 0, max_properties = kUnbounded;
  const JsonValue* min_properties_schema = nullptr;  // that has the minProperties, if one does
  std::vector<const JsonValue*> patterns, formats;
  std::vector<const JsonValue*> excluded_patterns;
  std::vector<SetId> prefix;
  SetId items = kAnything;
  std::vector<std::pair<std::string, SetId>> properties;
  std::set<std::string> required;
  // Pairs of names in `properties`: the first demands the second.
  std::vector<std::pair<std::string, std::string>> dependencies;
  std::vector<KeyClass> keys;  // of others; none: there are no others
  // A schema and its keyword that say what others there are, if one does.
  const JsonValue* keys_schema = nullptr;
  const char* keys_keyword = nullptr;
  const JsonValue* properties_schema = nullptr;  // that has `properties`, if one does
  bool is_left_out = false;                      // something of one of the schemas
};

// Reads one document. Used by one thread; the document outlives it. Functions throw GrammarError.
class SchemaReader {
 public:
  SchemaReader(const JsonValue& root, const SchemaOptions& options,
               std::vector<RelaxedKeyword>* relaxed);
  ~SchemaReader();

  // The number of a set of schemas.
  SetId intern(const Schemas& schemas);
  // The sets of which one has to hold where `set` does. Valid as long as the reader.
  const std::vector<SetId>& alternatives(SetId set);
  // The shape of one such set. Valid as long as the reader.
  const Shape& shape_of(SetId set);
  // The bit of a value's type.
  static std::uint32_t type_of(const JsonValue& value);
  // The automaton of a `pattern` or `format` of `schema`; null: it is left out.
  std::shared_ptr<const Dfa> dfa_of(const JsonValue* schema, const JsonValue* text, bool is_pattern,
                                    Spelling spelling);
  // The strings that a shape does not exclude by `not`; null: all. With quotes in kJsonString.
  std::shared_ptr<const Dfa> not_excluded(const Shape& shape, Spelling spelling);
  // Keys of `dfa` but for the names of `shape`: a class without an end could lead to these alone.
  std::shared_ptr<const Dfa> without_names(const std::shared_ptr<const Dfa>& dfa,
                                           const Shape& shape);
  // Leaves a keyword of `place` out, or throws.
  void refuse(const JsonValue* place, const std::string& reason);
  // Records a keyword that is not enforced, also under strict.
  void note(const JsonValue* place, const std::string& reason);
  // Names an object that was closed.
  void note_closed(const JsonValue* place);
  // Counts work of the whole, up to kMaxSchemaWork.
  void spend(std::size_t work);
  // Counts memory that stays until the end, up to kMaxSchemaMemory.
  void hold(std::size_t bytes);
  // The same for memory that is released at once.
  void expect(std::size_t bytes);

 private:
  struct Entry {
    Schemas schemas;
    std::vector<SetId> alternatives;
    std::unique_ptr<Shape> shape;
    std::uint32_t found_by = 0;  // the walk that found it last
    bool is_expanded = false;
  };
  struct HashOfSet {
    using is_transparent = void;
    const std::deque<Entry>* entries;
    std::size_t operator()(const Schemas& schemas) const;
    std::size_t operator()(SetId id) const { return (*this)((*entries)[id].schemas); }
  };
  struct EqualSet {
    using is_transparent = void;
    const std::deque<Entry>* entries;
    bool operator()(SetId one, SetId other) const { return one == other; }
    bool operator()(const Schemas& one, SetId id) const { return one == (*entries)[id].schemas; }
    bool operator()(SetId id, const Schemas& other) const {
      return (*entries)[id].schemas == other;
    }
  };

  // A schema with a base address of its own; the first is the document.
  struct Resource {
    std::string uri;
    const JsonValue* root;
  };

  // The applicators that hold at a place, of which branches are chosen one after the other. Lists
  // only grow while a branch is followed, and shrink when it is left.
  struct Walk {
    static constexpr std::uint32_t kNone = 0xFFFFFFFF;
    struct Step {
      const JsonValue* schema;
      std::uint32_t above;  // the step that led here: a way back is a loop
      std::uint32_t depth;
    };
    struct Group {
      const JsonValue* owner;
      const JsonValue* branches;
      std::uint32_t above;  // of its schemas
      std::uint32_t next;   // the group to be chosen from afterwards
      bool is_one_of;
    };
    std::vector<Step> steps;
    std::vector<Group> groups;
    std::uint32_t first = kNone;  // of the groups that are left
    Schemas plain;
    Schemas added;  // of plain, in order
    bool never = false;
    std::size_t held = 0;
  };
  // The branches that may hold together, for each branch of a oneOf.
  struct Overlaps {
    std::vector<std::vector<std::uint32_t>> with;
    bool is_made = false;
  };

  // The pointer to `place` within the document.
  std::string path_of(const JsonValue* place) const;
  [[noreturn]] void refuse_form(const JsonValue* place, const std::string& reason) const;
  // Remembers that `place` takes more than it says.
  void widen(const JsonValue* place);
  void add_note(const JsonValue* place, const std::string& reason, bool is_closed);
  // A pattern or format of `schema` that has no automaton.
  void leave_out(const JsonValue* schema, const JsonValue* text, bool is_pattern);
  void check_keywords(const JsonValue* schema);

  // Finds bases and anchors, and counts the document's memory.
  void read_document();
  void read_identity(const JsonValue* schema, std::uint32_t* resource);
  // Null: there is no such place.
  const JsonValue* resolve(const std::string& reference, const JsonValue* schema);
  const JsonValue* follow(const JsonValue* from, std::string_view pointer);

  void flatten(const JsonValue* schema, std::uint32_t above, Walk& walk);
  void add_plain(const JsonValue* schema, Walk& walk);
  // One branch of each group in every way. is_loose: branches of a oneOf may hold together.
  std::vector<SetId> choose(Walk& walk, bool is_loose);
  void count_walk(Walk& walk);
  std::vector<SetId> loose_alternatives(SetId set);
  const Overlaps& overlaps_of(const Walk::Group& group, const Walk& walk);
  // True: no value has both shapes. False: one may.
  bool excludes(const Shape& one, const Shape& other, int depth);
  bool have_no_common(SetId one, SetId other, int depth);
  bool strings_exclude(const Shape& one, const Shape& other);
  bool objects_exclude(const Shape& one, const Shape& other, int depth);
  bool are_apart(const std::vector<const JsonValue*>& some,
                 const std::vector<const JsonValue*>& others);
  // The set of the values of a key; nothing: it cannot be there.
  std::optional<SetId> set_of_key(const Shape& shape, std::string_view key);

  // A schema of what `schema` does not take; null: it cannot be said.
  const JsonValue* negated(const JsonValue* schema);
  bool negate(const JsonValue& schema, int depth, JsonValue* made);
  bool negate_keyword(const JsonValue& schema, std::size_t keyword, int depth,
                      std::vector<JsonValue>& options);

  std::uint32_t read_types(const JsonValue* schema, const JsonValue& type) const;
  std::uint32_t read_count(const JsonValue* schema, const JsonValue& value,
                           const char* keyword) const;
  void read_numbers(const JsonValue* schema, Shape& shape);
  void add_constants(const JsonValue* schema, Shape& shape);
  void read_not(const JsonValue* schema, const JsonValue& excluded, Shape& shape);
  void read_scalars(const JsonValue* schema, Shape& shape);
  void exclude_containers(Shape& shape);
  void read_arrays(const Schemas& set, Shape& shape);

  // The keywords of objects in one schema of a set.
  struct Owner {
    const JsonValue* schema;
    const JsonValue* properties;
    const JsonValue* additional;                                     // null: it says nothing
    std::vector<std::pair<std::size_t, const JsonValue*>> patterns;  // number of the automaton
  };
  struct Objects;
  void read_objects(const Schemas& set, Shape& shape);
  void read_owner(const JsonValue* schema, Objects& objects, Shape& shape);
  void add_keys(Objects& objects, Shape& shape);
  void split_keys(const Objects& objects, std::size_t pattern,
                  const std::shared_ptr<const Dfa>& dfa, std::vector<bool>& matched, Shape& shape);
  SetId set_of_keys(const Objects& objects, const std::vector<bool>& matched);
  std::shared_ptr<const Dfa> key_dfa(const JsonValue* schema, const std::string& pattern);
  std::shared_ptr<const Dfa> key_dfa(const Shape& shape);

  void filter_constants(Shape& shape);
  bool holds(const JsonValue& value, SetId set);
  // False: `schema` does not take it. True: it does, but for what is left out, if is_unsure_ is
  // set.
  bool takes(const JsonValue* schema, const JsonValue& value);
  enum class Taken { kNo, kPerhaps, kYes };
  // The same, with what is_unsure_ was before.
  Taken taken(const JsonValue* schema, const JsonValue& value);
  // Checks a value against all of a shape but its constants. As deep as the value is.
  bool has_shape(const JsonValue& value, const Shape& shape, bool with_formats = true);
  bool has_members(const JsonValue& value, const Shape& shape);

  std::shared_ptr<const Dfa> keep(Dfa dfa, std::size_t work);

  const JsonValue& root_;
  const SchemaOptions options_;
  std::vector<RelaxedKeyword>* relaxed_;
  std::size_t work_ = 0;
  std::size_t memory_ = 0;
  bool is_old_draft_ = false;  // draft 3 to 7: neighbours of $ref do not count
  bool has_dynamic_references_ = false;
  std::string_view id_keyword_ = "$id";
  std::vector<Resource> resources_;
  std::map<std::pair<std::uint32_t, std::string>, const JsonValue*> anchors_;
  std::unordered_map<const JsonValue*, std::uint32_t> resource_of_;  // but for the first one

  std::deque<Entry> entries_;
  std::unordered_set<SetId, HashOfSet, EqualSet> ids_;
  std::uint32_t walks_ = 0;
  std::uint32_t taking_ = 0;  // calls of takes() within one another
  bool is_unsure_ = false;    // takes() returned true for want of what is left out
  std::unordered_set<const JsonValue*> left_out_;  // schemas of which something is left out
  std::set<std::pair<const JsonValue*, std::string>> noted_;
  std::size_t num_relaxed_ = 0, num_closed_ = 0;  // of this document in *relaxed_
  std::unordered_set<const JsonValue*> checked_;
  std::map<std::pair<const JsonValue*, SetId>, Overlaps> overlaps_;
  std::map<std::tuple<bool, Spelling, std::string>, std::shared_ptr<const Dfa>> dfas_;
  std::map<std::string, std::shared_ptr<const Dfa>> key_dfas_;
  std::unordered_map<const JsonValue*, const JsonValue*> negated_;
  std::deque<JsonValue> made_;  // schemas that the document does not have
};

}  // namespace lintel::grammar
