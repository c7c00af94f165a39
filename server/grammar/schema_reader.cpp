// SPDX-License-Identifier: Apache-2.0
#include "server/grammar/schema_reader.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "server/grammar/dfa.h"
#include "server/grammar/pattern.h"
#include "server/grammar/uri_reference.h"

namespace lintel::grammar {
namespace {

using Type = JsonValue::Type;

constexpr std::size_t kMostRelaxed = 64;
constexpr std::uint32_t kMostNested = 200;  // references and applicators within one another
constexpr int kMostCompared = 4;            // places within one another that tell branches apart
constexpr int kMostNegated = 16;            // schemas within one another, of `not`
constexpr std::uint32_t kMostTaken = 1000;  // schemas within one another, of a constant
constexpr std::size_t kMostCopied = 2000;   // values of a schema within `not`
constexpr std::size_t kMostKeyClasses = 64;
constexpr std::size_t kMostWays = 256;  // to take one branch of a oneOf without the others
// Memory of an automaton while it is made.
constexpr std::size_t kDfaMemory = std::size_t{12} << 20;

// Ordered as they are reported. Other keywords that are not served say nothing.
constexpr std::array<std::string_view, 12> kRefused = {"if",
                                                       "then",
                                                       "else",
                                                       "contains",
                                                       "uniqueItems",
                                                       "dependentSchemas",
                                                       "unevaluatedProperties",
                                                       "unevaluatedItems",
                                                       "$dynamicRef",
                                                       "$dynamicAnchor",
                                                       "$recursiveRef",
                                                       "$recursiveAnchor"};
// The formats of JSON Schema. Others say nothing.
constexpr std::array<std::string_view, 19> kKnownFormats = {"date-time",
                                                            "date",
                                                            "time",
                                                            "duration",
                                                            "email",
                                                            "idn-email",
                                                            "hostname",
                                                            "idn-hostname",
                                                            "ipv4",
                                                            "ipv6",
                                                            "uri",
                                                            "uri-reference",
                                                            "iri",
                                                            "iri-reference",
                                                            "uuid",
                                                            "uri-template",
                                                            "regex",
                                                            "json-pointer",
                                                            "relative-json-pointer"};

// Keywords by what they hold: schemas by name, one schema or a list, values.
constexpr std::array<std::string_view, 6> kMaps = {
    "properties", "$defs", "definitions", "patternProperties", "dependentSchemas", "dependencies"};
constexpr std::array<std::string_view, 17> kSchemas = {"not",
                                                       "if",
                                                       "then",
                                                       "else",
                                                       "items",
                                                       "additionalItems",
                                                       "additionalProperties",
                                                       "allOf",
                                                       "anyOf",
                                                       "oneOf",
                                                       "prefixItems",
                                                       "contains",
                                                       "propertyNames",
                                                       "unevaluatedItems",
                                                       "unevaluatedProperties",
                                                       "contentSchema",
                                                       "extends"};
constexpr std::array<std::string_view, 4> kValues = {"const", "enum", "default", "examples"};

const JsonValue kNeverSchema = [] {
  JsonValue value;
  value.type = Type::kBoolean;
  return value;
}();

template <std::size_t N>
bool is_one_of(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// True for a schema that every value meets: true or {}.
bool takes_all(const JsonValue& schema) {
  return schema.is(Type::kBoolean) ? schema.boolean
                                   : schema.is(Type::kObject) && schema.values.empty();
}

// True for a keyword of kRefused in `schema` with a value that permits everything.
bool says_nothing(const JsonValue& schema, std::string_view name) {
  const JsonValue& value = *schema.find(name);
  if (name == "unevaluatedProperties" || name == "unevaluatedItems") return takes_all(value);
  if (name == "uniqueItems") return value.is(Type::kBoolean) && !value.boolean;
  if (name == "if") return schema.find("then") == nullptr && schema.find("else") == nullptr;
  if (name == "then" || name == "else") return schema.find("if") == nullptr;
  if (name == "dependentSchemas") {
    return value.is(Type::kObject) && std::ranges::all_of(value.values, takes_all);
  }
  if (name == "$recursiveAnchor") return value.is(Type::kBoolean) && !value.boolean;
  if (name == "contains") {
    const JsonValue* const least = schema.find("minContains");
    return least != nullptr && least->is(Type::kNumber) && least->integer == 0 &&
           schema.find("maxContains") == nullptr;
  }
  return false;
}

bool add_to(Schemas& set, const JsonValue* schema) {
  const auto at = std::ranges::lower_bound(set, schema);
  if (at != set.end() && *at == schema) return false;
  set.insert(at, schema);
  return true;
}

std::size_t bytes_of(const JsonValue& value) {
  std::size_t bytes =
      value.values.capacity() * sizeof(JsonValue) + value.names.capacity() * sizeof(std::string);
  for (const std::string& name : value.names) {
    if (name.size() > 15) bytes += name.capacity() + 17;
  }
  if (value.text.size() > 15) bytes += value.text.capacity() + 17;
  return bytes;
}

// Values of `value`, itself included, up to `most`.
std::size_t count_values(const JsonValue& value, std::size_t most) {
  std::size_t count = 1;
  for (const JsonValue& part : value.values) {
    if (count >= most) break;
    count += count_values(part, most - count);
  }
  return count;
}

JsonValue text_value(std::string_view text) {
  JsonValue value;
  value.type = Type::kString;
  value.text = text;
  return value;
}

JsonValue number_value(std::uint32_t number) {
  JsonValue value;
  value.type = Type::kNumber;
  value.text = std::to_string(number);
  value.integer = number;
  return value;
}

JsonValue list_value(std::vector<JsonValue> items) {
  JsonValue value;
  value.type = Type::kArray;
  value.values = std::move(items);
  return value;
}

void add_member(JsonValue& object, std::string_view name, JsonValue value) {
  object.type = Type::kObject;
  object.names.emplace_back(name);
  object.values.push_back(std::move(value));
}

JsonValue object_value(std::string_view name, JsonValue value) {
  JsonValue object;
  add_member(object, name, std::move(value));
  return object;
}

// A schema of values of that type that meet a keyword.
JsonValue typed_schema(const char* type, std::string_view name, JsonValue value) {
  JsonValue schema = object_value("type", text_value(type));
  add_member(schema, name, std::move(value));
  return schema;
}

// True for a schema of `not` with one keyword, of which shapes can say the opposite.
bool is_simple(const JsonValue& excluded) {
  constexpr std::array<std::string_view, 4> kSimple = {"type", "enum", "const", "pattern"};
  return excluded.is(Type::kObject) && excluded.names.size() == 1 &&
         is_one_of(kSimple, excluded.names[0]);
}

std::size_t length_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

std::size_t SchemaReader::HashOfSet::operator()(const Schemas& schemas) const {
  std::size_t hash = schemas.size();
  for (const JsonValue* const schema : schemas) {
    hash = (hash ^ reinterpret_cast<std::uintptr_t>(schema)) * 0xD6E8FEB86659FD93u;
    hash ^= hash >> 32;
  }
  return hash;
}

SchemaReader::SchemaReader(const JsonValue& root, const SchemaOptions& options,
                           std::vector<RelaxedKeyword>* relaxed)
    : root_(root),
      options_(options),
      relaxed_(relaxed),
      ids_(16, HashOfSet{&entries_}, EqualSet{&entries_}) {
  entries_.emplace_back();  // kAnything
  ids_.insert(kAnything);
  read_document();
}

SchemaReader::~SchemaReader() = default;

void SchemaReader::spend(std::size_t work) {
  work_ += work;
  if (work_ > kMaxSchemaWork) {
    throw GrammarError(GrammarError::Kind::kTooLarge, "", "takes too much work to compile");
  }
}

void SchemaReader::hold(std::size_t bytes) {
  memory_ += bytes;
  if (memory_ > kMaxSchemaMemory) {
    throw GrammarError(GrammarError::Kind::kTooLarge, "",
                       "takes more than 64 MiB of memory to compile");
  }
}

void SchemaReader::expect(std::size_t bytes) {
  hold(bytes);
  memory_ -= bytes;
}

SetId SchemaReader::intern(const Schemas& schemas) {
  const auto found = ids_.find(schemas);
  if (found != ids_.end()) return *found;
  spend(100 + 2 * schemas.size());
  // The entry and its place in the table of numbers.
  hold(sizeof(Entry) + 48 + schemas.size() * sizeof(const JsonValue*));
  const auto id = static_cast<SetId>(entries_.size());
  entries_.emplace_back().schemas = schemas;
  ids_.insert(id);
  return id;
}

std::string SchemaReader::path_of(const JsonValue* place) const {
  struct Step {
    const JsonValue* value;
    std::size_t next = 0;
  };
  std::vector<Step> steps = {{&root_}};
  while (!steps.empty()) {
    Step& step = steps.back();
    if (step.value == place) break;
    if (step.next == step.value->values.size()) {
      steps.pop_back();
    } else {
      steps.push_back({&step.value->values[step.next++]});
    }
  }
  std::string path = "#";
  for (std::size_t i = 0; i + 1 < steps.size(); ++i) {
    const std::size_t at = steps[i].next - 1;
    path += '/';
    if (!steps[i].value->is(Type::kObject)) {
      path += std::to_string(at);
      continue;
    }
    for (const char c : steps[i].value->names[at]) {
      path += c == '~' ? std::string("~0") : c == '/' ? std::string("~1") : std::string(1, c);
    }
  }
  return path;
}

void SchemaReader::refuse(const JsonValue* place, const std::string& reason) {
  if (!options_.relaxed) {
    throw GrammarError(GrammarError::Kind::kUnsupported, path_of(place), reason);
  }
  widen(place);
  note(place, reason);
}

void SchemaReader::widen(const JsonValue* place) {
  if (left_out_.insert(place).second) hold(32);
}

void SchemaReader::note(const JsonValue* place, const std::string& reason) {
  add_note(place, reason, /*is_closed=*/false);
}

void SchemaReader::note_closed(const JsonValue* place) {
  add_note(place, "properties", /*is_closed=*/true);
}

void SchemaReader::add_note(const JsonValue* place, const std::string& reason, bool is_closed) {
  std::size_t& count = is_closed ? num_closed_ : num_relaxed_;
  if (relaxed_ == nullptr || count > kMostRelaxed) return;
  if (!noted_.emplace(place, reason).second) return;
  if (count < kMostRelaxed) {
    relaxed_->push_back({path_of(place), reason, is_closed});
  } else {
    relaxed_->push_back({"", kMoreRelaxed, is_closed});
  }
  ++count;
}

void SchemaReader::refuse_form(const JsonValue* place, const std::string& reason) const {
  throw GrammarError(GrammarError::Kind::kMalformed, path_of(place), reason);
}

void SchemaReader::read_document() {
  enum class Role { kSchema, kSchemas, kOther, kValue };
  struct Pending {
    const JsonValue* value;
    Role role;
    std::uint32_t resource;
  };
  const JsonValue* const draft = root_.find("$schema");
  if (draft != nullptr && draft->is(Type::kString)) {
    for (const char* const old : {"draft-03", "draft-04", "draft-06", "draft-07"}) {
      is_old_draft_ = is_old_draft_ || draft->text.find(old) != std::string::npos;
    }
    if (draft->text.find("draft-03") != std::string::npos ||
        draft->text.find("draft-04") != std::string::npos) {
      id_keyword_ = "id";
    }
  }
  resources_.push_back({"", &root_});
  std::size_t bytes = sizeof(JsonValue);
  std::vector<Pending> pending = {{&root_, Role::kSchema, 0}};
  while (!pending.empty()) {
    Pending next = pending.back();
    pending.pop_back();
    const JsonValue& value = *next.value;
    bytes += bytes_of(value);
    if (!value.is(Type::kObject)) {
      for (const JsonValue& part : value.values) {
        if (!part.values.empty()) pending.push_back({&part, next.role, next.resource});
        if (part.values.empty()) bytes += bytes_of(part);
      }
      continue;
    }
    if (next.role == Role::kSchema) {
      read_identity(&value, &next.resource);
      has_dynamic_references_ = has_dynamic_references_ || value.find("$dynamicRef") != nullptr;
    }
    if (next.resource != 0 && next.role != Role::kValue) {
      resource_of_.emplace(&value, next.resource);
    }
    for (std::size_t i = 0; i < value.names.size(); ++i) {
      const JsonValue& part = value.values[i];
      if (part.values.empty()) {
        bytes += bytes_of(part);
        continue;
      }
      Role role = next.role == Role::kSchemas ? Role::kSchema : next.role;
      if (next.role == Role::kSchema) {
        role = is_one_of(kMaps, value.names[i])      ? Role::kSchemas
               : is_one_of(kSchemas, value.names[i]) ? Role::kSchema
               : is_one_of(kValues, value.names[i])  ? Role::kValue
                                                     : Role::kOther;
      }
      pending.push_back({&part, role, next.resource});
    }
  }
  hold(bytes + resource_of_.size() * 64);
}

void SchemaReader::read_identity(const JsonValue* schema, std::uint32_t* resource) {
  const JsonValue* const reference = schema->find("$ref");
  if (is_old_draft_ && reference != nullptr && reference->is(Type::kString)) return;
  const JsonValue* const id = schema->find(id_keyword_);
  if (id != nullptr && id->is(Type::kString) && !id->text.empty()) {
    if (id->text[0] == '#') {
      anchors_.emplace(std::make_pair(*resource, id->text.substr(1)), schema);
      hold(128 + id->text.size());
    } else {
      const std::string uri = resolve_uri(resources_[*resource].uri, id->text);
      if (schema == &root_) {
        resources_[0].uri = uri;
      } else {
        hold(128 + uri.size());
        resources_.push_back({uri, schema});
        *resource = static_cast<std::uint32_t>(resources_.size() - 1);
      }
    }
  }
  const JsonValue* const anchor = is_old_draft_ ? nullptr : schema->find("$anchor");
  if (anchor != nullptr && anchor->is(Type::kString)) {
    anchors_.emplace(std::make_pair(*resource, anchor->text), schema);
    hold(128 + anchor->text.size());
  }
}

void SchemaReader::check_keywords(const JsonValue* schema) {
  if (!checked_.insert(schema).second) return;
  hold(32);
  for (const std::string_view name : kRefused) {
    if (schema->find(name) == nullptr || says_nothing(*schema, name)) continue;
    if (name == "$dynamicAnchor" && !has_dynamic_references_) continue;
    refuse(schema, std::string(name));
  }
}

const JsonValue* SchemaReader::resolve(const std::string& reference, const JsonValue* schema) {
  std::uint32_t resource = 0;
  if (resources_.size() > 1) {
    const auto found = resource_of_.find(schema);
    if (found != resource_of_.end()) resource = found->second;
  }
  if (!reference.empty() && reference[0] != '#') {
    const std::string uri = resolve_uri(resources_[resource].uri, reference);
    spend(resources_.size() * 10);
    const auto found = std::ranges::find(resources_, uri, &Resource::uri);
    if (found == resources_.end()) return nullptr;
    resource = static_cast<std::uint32_t>(found - resources_.begin());
  }
  std::string fragment;
  if (!read_fragment(reference, &fragment)) return nullptr;
  const JsonValue* target = nullptr;
  if (fragment.empty() || fragment[0] == '/') {
    target = follow(resources_[resource].root, fragment);
  } else {
    const auto found = anchors_.find(std::make_pair(resource, fragment));
    if (found != anchors_.end()) target = found->second;
  }
  if (target == nullptr) return nullptr;
  return target->is(Type::kObject) || target->is(Type::kBoolean) ? target : nullptr;
}

const JsonValue* SchemaReader::follow(const JsonValue* at, std::string_view pointer) {
  for (std::size_t begin = 0; begin < pointer.size();) {
    const std::size_t end = std::min(pointer.find('/', begin + 1), pointer.size());
    std::string name;
    for (std::size_t i = begin + 1; i < end; ++i) {
      const char next = i + 1 < end ? pointer[i + 1] : '?';
      if (pointer[i] == '~' && (next == '0' || next == '1')) {
        name += next == '0' ? '~' : '/';
        ++i;
      } else {
        name += pointer[i];
      }
    }
    spend(at->values.size() + 1);
    if (at->is(Type::kObject)) {
      at = at->find(name);
    } else if (at->is(Type::kArray) && !name.empty() && name.size() < 7 &&
               name.find_first_not_of("0123456789") == std::string::npos) {
      const auto i = static_cast<std::size_t>(std::stoul(name));
      at = i < at->values.size() ? &at->values[i] : nullptr;
    } else {
      at = nullptr;
    }
    if (at == nullptr) return nullptr;
    begin = end;
  }
  return at;
}

// --- applicators

void SchemaReader::add_plain(const JsonValue* schema, Walk& walk) {
  if (add_to(walk.plain, schema)) walk.added.push_back(schema);
}

void SchemaReader::flatten(const JsonValue* schema, std::uint32_t above, Walk& walk) {
  spend(100);
  if (schema->is(Type::kBoolean)) {
    walk.never = walk.never || !schema->boolean;
    return;
  }
  if (!schema->is(Type::kObject)) refuse_form(schema, "is no schema");
  const std::uint32_t depth = above == Walk::kNone ? 0 : walk.steps[above].depth + 1;
  if (depth >= kMostNested) {
    throw GrammarError(GrammarError::Kind::kTooLarge, path_of(schema),
                       "has more than 200 references and allOf within one another");
  }
  const auto at = static_cast<std::uint32_t>(walk.steps.size());
  walk.steps.push_back({schema, above, depth});
  const JsonValue* const reference = schema->find("$ref");
  const bool is_alone = is_old_draft_ && reference != nullptr;
  if (!is_alone) check_keywords(schema);
  if (reference != nullptr) {
    if (!reference->is(Type::kString)) refuse_form(schema, "$ref");
    const JsonValue* const target = resolve(reference->text, schema);
    bool is_loop = false;
    for (std::uint32_t i = at; i != Walk::kNone && !is_loop; i = walk.steps[i].above) {
      is_loop = walk.steps[i].schema == target;
    }
    if (target == nullptr) {
      refuse(schema, "$ref " + reference->text);
    } else if (is_loop) {
      refuse(schema, "$ref loop");
    } else {
      flatten(target, at, walk);
    }
    if (is_alone) return;
  }
  if (const JsonValue* const all = schema->find("allOf")) {
    if (!all->is(Type::kArray)) refuse_form(schema, "allOf");
    for (const JsonValue& part : all->values) flatten(&part, at, walk);
  }
  for (const char* const name : {"anyOf", "oneOf"}) {
    const JsonValue* const branches = schema->find(name);
    if (branches == nullptr) continue;
    if (!branches->is(Type::kArray)) refuse_form(schema, name);
    walk.groups.push_back({schema, branches, at, walk.first, name[0] == 'o'});
    walk.first = static_cast<std::uint32_t>(walk.groups.size() - 1);
  }
  if (const JsonValue* const excluded = schema->find("not")) {
    if (!excluded->is(Type::kObject) && !excluded->is(Type::kBoolean)) refuse_form(schema, "not");
    if (!is_simple(*excluded)) {
      const JsonValue* const rest = negated(excluded);
      if (rest == nullptr) {
        refuse(schema, "not");
      } else {
        flatten(rest, at, walk);
      }
    }
  }
  add_plain(schema, walk);
}

void SchemaReader::count_walk(Walk& walk) {
  const std::size_t bytes =
      walk.steps.capacity() * sizeof(Walk::Step) + walk.groups.capacity() * sizeof(Walk::Group) +
      (walk.plain.capacity() + walk.added.capacity()) * sizeof(const JsonValue*);
  if (bytes <= walk.held) return;
  // A list that grows is held twice for a while.
  hold(2 * (bytes - walk.held));
  walk.held = bytes;
}

const std::vector<SetId>& SchemaReader::alternatives(SetId set) {
  Entry& entry = entries_[set];
  if (!entry.is_expanded) {
    Walk walk;
    for (const JsonValue* const schema : entry.schemas) flatten(schema, Walk::kNone, walk);
    entry.alternatives = choose(walk, false);
    hold(entry.alternatives.size() * sizeof(SetId));
    entry.is_expanded = true;
  }
  return entry.alternatives;
}

std::vector<SetId> SchemaReader::loose_alternatives(SetId set) {
  Walk walk;
  for (const JsonValue* const schema : entries_[set].schemas) {
    flatten(schema, Walk::kNone, walk);
  }
  return choose(walk, true);
}

std::vector<SetId> SchemaReader::choose(Walk& walk, bool is_loose) {
  // A group that is being chosen from, and the sizes of lists before its branch.
  struct Open {
    Walk::Group group;
    const Overlaps* overlaps;
    std::size_t next, steps, groups, added;
  };
  const std::uint32_t number = ++walks_;
  std::vector<SetId> found;
  std::vector<Open> open;
  while (true) {
    count_walk(walk);
    spend(100 + walk.plain.size());
    if (!walk.never && walk.first == Walk::kNone) {
      const SetId set = intern(walk.plain);
      if (std::exchange(entries_[set].found_by, number) != number) found.push_back(set);
    } else if (!walk.never) {
      const Walk::Group group = walk.groups[walk.first];
      const Overlaps* const overlaps =
          group.is_one_of && !is_loose ? &overlaps_of(group, walk) : nullptr;
      // Charged before the list grows, as for the other lists.
      expect((open.capacity() + 1) * 3 * sizeof(Open));
      open.push_back(
          {group, overlaps, 0, walk.steps.size(), walk.groups.size(), walk.added.size()});
    }
    while (!open.empty() && open.back().next == open.back().group.branches->values.size()) {
      open.pop_back();
    }
    if (open.empty()) break;
    Open& at = open.back();
    walk.steps.resize(at.steps);
    walk.groups.resize(at.groups);
    while (walk.added.size() > at.added) {
      walk.plain.erase(std::ranges::lower_bound(walk.plain, walk.added.back()));
      walk.added.pop_back();
    }
    walk.never = false;
    walk.first = at.group.next;
    const std::size_t branch = at.next++;
    flatten(&at.group.branches->values[branch], at.group.above, walk);
    if (at.overlaps == nullptr || at.overlaps->with.empty()) continue;
    for (const std::uint32_t other : at.overlaps->with[branch]) {
      flatten(negated(&at.group.branches->values[other]), at.group.above, walk);
    }
  }
  memory_ -= 2 * walk.held;
  walk.held = 0;
  return found;
}

const SchemaReader::Overlaps& SchemaReader::overlaps_of(const Walk::Group& group,
                                                        const Walk& walk) {
  const auto [place, fresh] =
      overlaps_.emplace(std::make_pair(group.branches, intern(walk.plain)), Overlaps());
  Overlaps& overlaps = place->second;
  if (!fresh) {
    // A schema of keys that leads back here, of which no more is known.
    if (!overlaps.is_made) refuse(group.owner, "oneOf whose branches may both hold");
    return overlaps;
  }
  hold(128);
  const std::vector<JsonValue>& branches = group.branches->values;
  std::vector<std::vector<const Shape*>> shapes;
  std::vector<Walk::Step> steps;
  for (std::uint32_t i = group.above; i != Walk::kNone; i = walk.steps[i].above) {
    steps.push_back(walk.steps[i]);
  }
  std::ranges::reverse(steps);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    steps[i].above = i == 0 ? Walk::kNone : static_cast<std::uint32_t>(i - 1);
  }
  for (const JsonValue& branch : branches) {
    Walk inner;
    inner.plain = walk.plain;
    inner.steps = steps;
    flatten(&branch, static_cast<std::uint32_t>(steps.size() - 1), inner);
    shapes.emplace_back();
    for (const SetId set : choose(inner, true)) shapes.back().push_back(&shape_of(set));
    expect(shapes.back().size() * sizeof(void*) * branches.size());
  }
  const auto may_both_hold = [&](std::size_t i, std::size_t j) {
    for (const Shape* const one : shapes[i]) {
      for (const Shape* const other : shapes[j]) {
        if (!excludes(*one, *other, 0)) return true;
      }
    }
    return false;
  };
  // Counts the ways in which a branch can be left out.
  const auto ways_of = [](const JsonValue& schema) {
    const JsonValue* const options = schema.find("anyOf");
    return options == nullptr ? std::size_t{1} : options->values.size();
  };
  std::vector<std::size_t> ways(branches.size(), 1);
  std::vector<std::vector<std::uint32_t>> made(branches.size());
  for (std::size_t i = 0; i < branches.size(); ++i) {
    for (std::size_t j = i + 1; j < branches.size(); ++j) {
      if (!may_both_hold(i, j)) continue;
      const JsonValue* const not_one = negated(&branches[i]);
      const JsonValue* const not_other = negated(&branches[j]);
      bool is_small = not_one != nullptr && not_other != nullptr;
      if (is_small) {
        ways[i] *= ways_of(*not_other);
        ways[j] *= ways_of(*not_one);
        is_small = std::max(ways[i], ways[j]) <= kMostWays;
      }
      if (!is_small) {
        refuse(group.owner, "oneOf whose branches may both hold");
        overlaps.is_made = true;
        return overlaps;
      }
      hold(2 * sizeof(std::uint32_t));
      made[i].push_back(static_cast<std::uint32_t>(j));
      made[j].push_back(static_cast<std::uint32_t>(i));
    }
  }
  hold(made.size() * sizeof(made[0]));
  overlaps.with = std::move(made);
  overlaps.is_made = true;
  return overlaps;
}

// --- what no value has

bool SchemaReader::excludes(const Shape& one, const Shape& other, int depth) {
  spend(100);
  const std::uint32_t types = one.types & other.types;
  if (types == 0) return true;
  if (one.constants && other.constants) return are_apart(*one.constants, *other.constants);
  for (const auto& [some, rest] : {std::pair(&one, &other), std::pair(&other, &one)}) {
    // Constants are checked by the schema: the automaton of a format may accept fewer texts than
    // it.
    if (some->constants) {
      return std::ranges::none_of(*some->constants, [&](const JsonValue* value) {
        return has_shape(*value, *rest, false);
      });
    }
  }
  if ((types & (kNullBit | kBooleanBit)) != 0) return false;
  if ((types & (kIntegerBit | kFractionBit)) != 0 && !one.numbers.excludes(other.numbers)) {
    return false;
  }
  if ((types & kStringBit) != 0 && !strings_exclude(one, other)) return false;
  if ((types & kArrayBit) != 0) {
    bool apart = one.min_items > other.max_items || other.min_items > one.max_items;
    for (std::uint32_t i = 0; i < std::min(std::max(one.min_items, other.min_items), 8u); ++i) {
      if (apart) break;
      const auto set_of = [i](const Shape& s) {
        return i < s.prefix.size() ? s.prefix[i] : s.items;
      };
      apart = have_no_common(set_of(one), set_of(other), depth + 1);
    }
    if (!apart) return false;
  }
  return (types & kObjectBit) == 0 || objects_exclude(one, other, depth);
}

bool SchemaReader::strings_exclude(const Shape& one, const Shape& other) {
  if (one.min_length > other.max_length || other.min_length > one.max_length) return true;
  for (const JsonValue* const some : one.patterns) {
    for (const JsonValue* const more : other.patterns) {
      const auto a = dfa_of(some, some, true, Spelling::kJsonString);
      const auto b = dfa_of(more, more, true, Spelling::kJsonString);
      if (a == nullptr || b == nullptr) continue;
      std::size_t work = 0;
      try {
        expect(kDfaMemory);
        const bool apart = intersection(*a, *b, &work).start() == Dfa::kDead;
        spend(work);
        if (apart) return true;
      } catch (const TooLarge&) {
        spend(kMaxSchemaWork / 10);
      }
    }
  }
  return false;
}

bool SchemaReader::objects_exclude(const Shape& one, const Shape& other, int depth) {
  if (one.min_properties > other.max_properties || other.min_properties > one.max_properties) {
    return true;
  }
  for (const auto& [some, rest] : {std::pair(&one, &other), std::pair(&other, &one)}) {
    for (const auto& [name, set] : some->properties) {
      if (!some->required.contains(name)) continue;
      const std::optional<SetId> more = set_of_key(*rest, name);
      if (!more || have_no_common(set, *more, depth + 1)) return true;
    }
  }
  return false;
}

bool SchemaReader::have_no_common(SetId one, SetId other, int depth) {
  if (one == other || one == kAnything || other == kAnything || depth > kMostCompared) {
    return false;
  }
  const std::vector<SetId> some = loose_alternatives(one), more = loose_alternatives(other);
  for (const SetId a : some) {
    for (const SetId b : more) {
      if (!excludes(shape_of(a), shape_of(b), depth)) return false;
    }
  }
  return true;
}

bool SchemaReader::are_apart(const std::vector<const JsonValue*>& some,
                             const std::vector<const JsonValue*>& others) {
  spend(some.size() * others.size());
  for (const JsonValue* const one : some) {
    for (const JsonValue* const other : others) {
      if (same_value(*one, *other)) return false;
    }
  }
  return true;
}

std::optional<SetId> SchemaReader::set_of_key(const Shape& shape, std::string_view key) {
  spend(shape.properties.size());
  for (const auto& [name, set] : shape.properties) {
    if (name == key) return set;
  }
  if (shape.keys.empty()) return std::nullopt;
  const std::string spelt = json_spelling(key) + '"';
  for (const KeyClass& keys : shape.keys) {
    spend(spelt.size());
    if (keys.dfa == nullptr || keys.dfa->matches(spelt)) return keys.set;
  }
  return std::nullopt;
}

// --- the opposite of a schema

const JsonValue* SchemaReader::negated(const JsonValue* schema) {
  const auto found = negated_.find(schema);
  if (found != negated_.end()) return found->second;
  hold(64);
  JsonValue made;
  if (!negate(*schema, 0, &made)) return negated_[schema] = nullptr;
  std::vector<const JsonValue*> pending = {&made};
  std::size_t bytes = sizeof(JsonValue);
  while (!pending.empty()) {
    const JsonValue* const next = pending.back();
    pending.pop_back();
    bytes += bytes_of(*next);
    for (const JsonValue& part : next->values) pending.push_back(&part);
  }
  hold(bytes);
  return negated_[schema] = &made_.emplace_back(std::move(made));
}

bool SchemaReader::negate(const JsonValue& schema, int depth, JsonValue* made) {
  spend(100);
  if (depth > kMostNegated) return false;
  if (schema.is(Type::kBoolean)) {
    made->type = Type::kBoolean;
    made->boolean = !schema.boolean;
    return true;
  }
  if (!schema.is(Type::kObject)) refuse_form(&schema, "is no schema");
  const JsonValue* const reference = schema.find("$ref");
  std::vector<JsonValue> options;
  for (std::size_t i = 0; i < schema.names.size(); ++i) {
    if (is_old_draft_ && reference != nullptr && &schema.values[i] != reference) continue;
    if (!negate_keyword(schema, i, depth, options)) return false;
  }
  if (options.size() == 1) {
    *made = std::move(options[0]);
  } else if (options.empty()) {
    *made = kNeverSchema;
  } else {
    *made = object_value("anyOf", list_value(std::move(options)));
  }
  return true;
}

// Appends what breaks one keyword; every option breaks it.
bool SchemaReader::negate_keyword(const JsonValue& schema, std::size_t keyword, int depth,
                                  std::vector<JsonValue>& options) {
  const std::string& name = schema.names[keyword];
  const JsonValue& value = schema.values[keyword];
  const bool is_copied = count_values(value, kMostCopied) < kMostCopied;
  const auto add = [&](JsonValue option) {
    options.push_back(std::move(option));
    return true;
  };
  const auto add_negated = [&](const JsonValue& part, auto wrap) {
    JsonValue rest;
    if (!negate(part, depth + 1, &rest)) return false;
    if (!rest.is(Type::kBoolean) || rest.boolean) add(wrap(std::move(rest)));
    return true;
  };
  const auto plain = [](JsonValue rest) { return rest; };
  const auto bound = [&](const char* type, const char* opposite, int step) {
    const std::uint32_t count = read_count(&schema, value, name.c_str());
    if (step < 0 && count == 0) return true;
    return add(
        typed_schema(type, opposite, number_value(count + static_cast<std::uint32_t>(step))));
  };
  if (name == "type" || name == "enum" || name == "const" || name == "pattern") {
    if (const JsonValue* const nullable = schema.find("nullable");
        name == "type" && nullable != nullptr && nullable->is(Type::kBoolean) &&
        nullable->boolean) {
      return false;
    }
    return is_copied && add(object_value("not", object_value(name, value)));
  }
  if (name == "$ref") {
    if (!value.is(Type::kString)) refuse_form(&schema, "$ref");
    const JsonValue* const target = resolve(value.text, &schema);
    return target != nullptr && add_negated(*target, plain);
  }
  if (name == "not") return is_copied && resources_.size() == 1 && add(value);
  if (name == "allOf" || name == "anyOf") {
    if (!value.is(Type::kArray)) refuse_form(&schema, name);
    std::vector<JsonValue> parts;
    for (const JsonValue& part : value.values) {
      JsonValue rest;
      if (!negate(part, depth + 1, &rest)) return false;
      parts.push_back(std::move(rest));
    }
    return add(object_value(name == "allOf" ? "anyOf" : "allOf", list_value(std::move(parts))));
  }
  if (name == "required") {
    if (!value.is(Type::kArray)) refuse_form(&schema, "required");
    for (const JsonValue& key : value.values) {
      if (!key.is(Type::kString)) refuse_form(&schema, "required");
      add(typed_schema("object", "properties", object_value(key.text, kNeverSchema)));
    }
    return value.values.size() < kMostCopied;
  }
  if (name == "properties") {
    if (!value.is(Type::kObject)) refuse_form(&schema, "properties");
    for (std::size_t i = 0; i < value.names.size(); ++i) {
      const bool done = add_negated(value.values[i], [&](JsonValue rest) {
        JsonValue option =
            typed_schema("object", "properties", object_value(value.names[i], std::move(rest)));
        add_member(option, "required", list_value({text_value(value.names[i])}));
        return option;
      });
      if (!done) return false;
    }
    return true;
  }
  if (name == "minimum" || name == "maximum" || name == "exclusiveMinimum" ||
      name == "exclusiveMaximum") {
    if (!value.is(Type::kNumber)) return false;
    const JsonValue* const strict =
        schema.find(name == "minimum" ? "exclusiveMinimum" : "exclusiveMaximum");
    if (name[0] == 'm' && strict != nullptr && strict->is(Type::kBoolean)) return false;
    const char* const opposite = name == "minimum"            ? "exclusiveMaximum"
                                 : name == "maximum"          ? "exclusiveMinimum"
                                 : name == "exclusiveMinimum" ? "maximum"
                                                              : "minimum";
    return add(typed_schema("number", opposite, value));
  }
  if (name == "minLength") return bound("string", "maxLength", -1);
  if (name == "maxLength") return bound("string", "minLength", 1);
  if (name == "minItems") return bound("array", "maxItems", -1);
  if (name == "maxItems") return bound("array", "minItems", 1);
  if (name == "minProperties") return bound("object", "maxProperties", -1);
  if (name == "maxProperties") return bound("object", "minProperties", 1);
  if (name == "items" || name == "additionalItems" || name == "additionalProperties") {
    return value.is(Type::kBoolean) && value.boolean;
  }
  if (name == "format") {
    return value.is(Type::kString) && !is_one_of(kKnownFormats, value.text);
  }
  if (name == "nullable") return true;  // looked at with the type
  constexpr std::array<std::string_view, 7> kOthers = {
      "multipleOf",

      "oneOf",         "prefixItems",  "patternProperties",
      "propertyNames", "dependencies", "dependentRequired"};
  if (is_one_of(kRefused, name)) {
    return says_nothing(schema, name) || (name == "$dynamicAnchor" && !has_dynamic_references_);
  }
  return !is_one_of(kOthers, name);
}

// --- keywords of one place

std::uint32_t SchemaReader::read_types(const JsonValue* schema, const JsonValue& type) const {
  std::uint32_t types = 0;
  const auto add = [&](const JsonValue& name) {
    constexpr std::array<std::pair<std::string_view, std::uint32_t>, 8> kNames = {
        {{"null", kNullBit},
         {"boolean", kBooleanBit},
         {"integer", kIntegerBit},
         {"number", kIntegerBit | kFractionBit},
         {"float", kIntegerBit | kFractionBit},  // no type of JSON Schema, but of many tools
         {"string", kStringBit},
         {"array", kArrayBit},
         {"object", kObjectBit}}};
    for (const auto& [known, bits] : kNames) {
      if (name.is(Type::kString) && name.text == known) {
        types |= bits;
        return;
      }
    }
    refuse_form(schema, "type");
  };
  if (!type.is(Type::kArray)) add(type);
  if (type.is(Type::kArray)) {
    for (const JsonValue& name : type.values) add(name);
  }
  return types;
}

std::uint32_t SchemaReader::read_count(const JsonValue* schema, const JsonValue& value,
                                       const char* keyword) const {
  if (!value.is(Type::kNumber) || !value.integer || *value.integer < 0) {
    refuse_form(schema, std::string(keyword) + " is no count");
  }
  return static_cast<std::uint32_t>(std::min<Integer>(*value.integer, kUnbounded - 1));
}

void SchemaReader::read_numbers(const JsonValue* schema, Shape& shape) {
  const auto read = [&](const char* name, const JsonValue& value) -> std::optional<Decimal> {
    if (!value.is(Type::kNumber)) refuse_form(schema, name);
    spend(value.text.size());
    std::optional<Decimal> number = Decimal::parse(value.text);
    if (!number) refuse(schema, name);
    return number;
  };
  // Draft 4 opens a bound by a neighbour that is true.
  const auto is_open = [&](const char* exclusive) {
    const JsonValue* const value = schema->find(exclusive);
    return value != nullptr && value->is(Type::kBoolean) && value->boolean;
  };
  const auto read_bound = [&](const char* name, bool open, auto add) {
    const JsonValue* const value = schema->find(name);
    if (value == nullptr || (name[0] == 'e' && value->is(Type::kBoolean))) return;
    if (const auto number = read(name, *value)) (shape.numbers.*add)(*number, open);
  };
  read_bound("minimum", is_open("exclusiveMinimum"), &NumberBounds::add_least);
  read_bound("maximum", is_open("exclusiveMaximum"), &NumberBounds::add_most);
  read_bound("exclusiveMinimum", true, &NumberBounds::add_least);
  read_bound("exclusiveMaximum", true, &NumberBounds::add_most);
  if (const JsonValue* const value = schema->find("multipleOf")) {
    const auto number = read("multipleOf", *value);
    if (!number) return;
    if (number->is_zero() || number->is_negative()) refuse_form(schema, "multipleOf");
    if (!shape.numbers.add_multiple_of(*number)) return refuse(schema, "multipleOf");
    shape.multiple_schema = schema;
  }
}

void SchemaReader::add_constants(const JsonValue* schema, Shape& shape) {
  const auto restrict_to = [&](std::vector<const JsonValue*> some) {
    spend(some.size());
    if (shape.constants) {
      spend(some.size() * shape.constants->size());
      std::erase_if(*shape.constants, [&](const JsonValue* value) {
        return std::ranges::none_of(
            some, [&](const JsonValue* other) { return same_value(*value, *other); });
      });
    } else {
      hold(some.size() * sizeof(const JsonValue*));
      shape.constants = std::move(some);
    }
  };
  if (const JsonValue* const value = schema->find("const")) restrict_to({value});
  if (const JsonValue* const values = schema->find("enum")) {
    if (!values->is(Type::kArray)) refuse_form(schema, "enum");
    std::vector<const JsonValue*> some;
    some.reserve(values->values.size());
    for (const JsonValue& value : values->values) some.push_back(&value);
    restrict_to(std::move(some));
  }
}

// A `not` of one simple keyword; flatten() has seen to others.
void SchemaReader::read_not(const JsonValue* schema, const JsonValue& excluded, Shape& shape) {
  if (!is_simple(excluded)) return;
  const std::string& name = excluded.names[0];
  const JsonValue& value = excluded.values[0];
  const auto exclude = [&](const JsonValue& constant) {
    spend(20);
    hold(sizeof(const JsonValue*));
    shape.excluded.push_back(&constant);
  };
  if (name == "type") {
    shape.types &= ~read_types(schema, value);
  } else if (name == "const") {
    exclude(value);
  } else if (name == "enum") {
    if (!value.is(Type::kArray)) refuse_form(schema, "enum");
    for (const JsonValue& constant : value.values) exclude(constant);
  } else {
    if (!value.is(Type::kString)) refuse_form(schema, "pattern");
    shape.types &= kStringBit;
    if (dfa_of(schema, &value, true, Spelling::kJsonString)) {
      shape.excluded_patterns.push_back(&value);
    }
  }
}

std::uint32_t SchemaReader::type_of(const JsonValue& value) {
  switch (value.type) {
    case Type::kNull:
      return kNullBit;
    case Type::kBoolean:
      return kBooleanBit;
    case Type::kNumber:
      return value.integer ? kIntegerBit : kFractionBit;
    case Type::kString:
      return kStringBit;
    case Type::kArray:
      return kArrayBit;
    case Type::kObject:
      return kObjectBit;
  }
  return 0;
}

const Shape& SchemaReader::shape_of(SetId id) {
  if (entries_[id].shape != nullptr) return *entries_[id].shape;
  spend(400);
  hold(sizeof(Shape) + 16);
  entries_[id].shape = std::make_unique<Shape>();
  // Readers of this set see the part that is known so far while it is read.
  Shape& shape = *entries_[id].shape;
  const Schemas set = entries_[id].schemas;
  for (const JsonValue* const schema : set) read_scalars(schema, shape);
  if (shape.constants) {
    std::uint32_t types = 0;
    for (const JsonValue* const value : *shape.constants) types |= type_of(*value);
    shape.types &= types;
  }
  exclude_containers(shape);
  read_arrays(set, shape);
  read_objects(set, shape);
  if (shape.constants) filter_constants(shape);
  return shape;
}

// Excludes values of `not` that are lists or objects. Only those without members can be left out.
void SchemaReader::exclude_containers(Shape& shape) {
  if (shape.constants) return;
  for (const JsonValue* const value : shape.excluded) {
    if ((type_of(*value) & shape.types & (kArrayBit | kObjectBit)) == 0) continue;
    if (!value->values.empty()) {
      refuse(value, "not");
    } else {
      std::uint32_t& least = value->is(Type::kArray) ? shape.min_items : shape.min_properties;
      least = std::max(least, 1u);
    }
  }
}

void SchemaReader::read_scalars(const JsonValue* schema, Shape& shape) {
  std::uint32_t types = kAllTypes;
  if (const JsonValue* const type = schema->find("type")) types = read_types(schema, *type);
  if (const JsonValue* const nullable = schema->find("nullable")) {
    if (!nullable->is(Type::kBoolean)) refuse_form(schema, "nullable");
    if (nullable->boolean) types |= kNullBit;
  }
  shape.types &= types;
  add_constants(schema, shape);
  if (const JsonValue* const excluded = schema->find("not")) read_not(schema, *excluded, shape);
  read_numbers(schema, shape);
  const auto at_least = [&](const char* name, std::uint32_t& bound) {
    if (const JsonValue* const value = schema->find(name)) {
      bound = std::max(bound, read_count(schema, *value, name));
    }
  };
  const auto at_most = [&](const char* name, std::uint32_t& bound) {
    if (const JsonValue* const value = schema->find(name)) {
      bound = std::min(bound, read_count(schema, *value, name));
    }
  };
  at_least("minLength", shape.min_length);
  at_most("maxLength", shape.max_length);
  at_least("minItems", shape.min_items);
  at_most("maxItems", shape.max_items);
  const std::uint32_t least_before = shape.min_properties;
  at_least("minProperties", shape.min_properties);
  if (shape.min_properties > least_before) shape.min_properties_schema = schema;
  at_most("maxProperties", shape.max_properties);
  if (const JsonValue* const pattern = schema->find("pattern")) {
    if (!pattern->is(Type::kString)) refuse_form(schema, "pattern");
    if (dfa_of(schema, pattern, true, Spelling::kJsonString)) shape.patterns.push_back(pattern);
  }
  if (const JsonValue* const format = schema->find("format")) {
    if (!format->is(Type::kString)) refuse_form(schema, "format");
    if (dfa_of(schema, format, false, Spelling::kJsonString)) shape.formats.push_back(format);
  }
}

std::shared_ptr<const Dfa> SchemaReader::keep(Dfa dfa, std::size_t work) {
  spend(work + dfa.bytes());
  hold(dfa.bytes());
  return std::make_shared<const Dfa>(std::move(dfa));
}

std::shared_ptr<const Dfa> SchemaReader::dfa_of(const JsonValue* schema, const JsonValue* text,
                                                bool is_pattern, Spelling spelling) {
  const auto key = std::make_tuple(is_pattern, spelling, text->text);
  const auto found = dfas_.find(key);
  if (found != dfas_.end()) {
    if (found->second == nullptr) leave_out(schema, text, is_pattern);
    return found->second;
  }
  std::shared_ptr<const Dfa> dfa;
  if (is_pattern) {
    hold(128 + text->text.size());
    expect(kDfaMemory);
    std::size_t work = 0;
    try {
      // A part of what is left: further patterns are read after one that takes too much.
      Dfa made = pattern_dfa(text->text, spelling, &work, (kMaxSchemaWork - work_) / 4);
      dfa = keep(std::move(made), work);
    } catch (const GrammarError& error) {
      if (error.kind() != GrammarError::Kind::kUnsupported) throw;
      spend(work + kMaxSchemaWork / 20);
    }
  } else {
    dfa = format_dfa(text->text, spelling);
  }
  if (dfa == nullptr) leave_out(schema, text, is_pattern);
  return dfas_[key] = std::move(dfa);
}

void SchemaReader::leave_out(const JsonValue* schema, const JsonValue* text, bool is_pattern) {
  if (is_pattern) {
    refuse(schema, "pattern " + text->text);
  } else if (is_one_of(kKnownFormats, text->text)) {
    widen(schema);
    note(schema, "format " + text->text);
  }
}

std::shared_ptr<const Dfa> SchemaReader::not_excluded(const Shape& shape, Spelling spelling) {
  const bool has_texts = std::ranges::any_of(
      shape.excluded, [](const JsonValue* value) { return value->is(Type::kString); });
  if (!has_texts && shape.excluded_patterns.empty()) return nullptr;
  const JsonValue* last = nullptr;
  expect(kDfaMemory);
  try {
    std::size_t work = 0;
    Dfa rest = pattern_dfa("", spelling, &work);
    if (has_texts) {
      Nfa nfa;
      const Nfa::State start = nfa.add_state(), end = nfa.add_state();
      const std::string quote = spelling == Spelling::kJsonString ? "\"" : "";
      for (const JsonValue* const value : shape.excluded) {
        if (!value->is(Type::kString)) continue;
        last = value;
        const std::string spelt =
            spelling == Spelling::kJsonString ? json_spelling(value->text) : value->text;
        nfa.add_empty(nfa.add_bytes(start, quote + spelt + quote), end);
      }
      rest = difference(rest, nfa.determinize(start, end, &work), &work);
    }
    for (const JsonValue* const pattern : shape.excluded_patterns) {
      last = pattern;
      rest = difference(rest, *dfa_of(pattern, pattern, true, spelling), &work);
    }
    return keep(std::move(rest), work);
  } catch (const TooLarge&) {
    spend(kMaxSchemaWork / 10);
    refuse(last, "not");
    return nullptr;
  }
}

// --- arrays

void SchemaReader::read_arrays(const Schemas& set, Shape& shape) {
  struct Tuple {
    const JsonValue* prefix = nullptr;
    const JsonValue* items = nullptr;
  };
  // Drafts before 2020-12 have the list in `items`, and what follows in `additionalItems`.
  const auto tuple_of = [&](const JsonValue* schema) {
    Tuple tuple{schema->find("prefixItems"), schema->find("items")};
    if (tuple.prefix == nullptr && tuple.items != nullptr && tuple.items->is(Type::kArray)) {
      tuple.prefix = std::exchange(tuple.items, schema->find("additionalItems"));
    }
    if (tuple.prefix != nullptr && !tuple.prefix->is(Type::kArray)) {
      refuse_form(schema, "prefixItems");
    }
    if (tuple.items != nullptr && !tuple.items->is(Type::kObject) &&
        !tuple.items->is(Type::kBoolean)) {
      refuse_form(schema, "items");
    }
    return tuple;
  };
  std::vector<Tuple> tuples;
  std::size_t longest = 0;
  for (const JsonValue* const schema : set) {
    const Tuple tuple = tuple_of(schema);
    if (tuple.prefix == nullptr && tuple.items == nullptr) continue;
    tuples.push_back(tuple);
    if (tuple.prefix != nullptr) longest = std::max(longest, tuple.prefix->values.size());
  }
  if (tuples.empty()) return;
  spend(longest * tuples.size() * 10);
  hold(longest * sizeof(SetId));
  Schemas rest;
  for (std::size_t i = 0; i < longest; ++i) {
    Schemas here;
    for (const auto& [prefix, items] : tuples) {
      const bool is_named = prefix != nullptr && i < prefix->values.size();
      if (is_named) add_to(here, &prefix->values[i]);
      if (!is_named && items != nullptr) add_to(here, items);
    }
    shape.prefix.push_back(intern(here));
  }
  for (const auto& [prefix, items] : tuples) {
    if (items != nullptr) add_to(rest, items);
  }
  shape.items = intern(rest);
}

// --- objects

// The keywords of a set's objects while they are read.
struct SchemaReader::Objects {
  std::vector<Owner> owners;
  std::vector<std::string> names;  // of keys that are named anywhere
  std::unordered_map<std::string_view, std::size_t> places;
  std::vector<const JsonValue*> patterns;        // of keys, each once
  std::vector<std::shared_ptr<const Dfa>> dfas;  // theirs
  Schemas of_names;                              // propertyNames
};

void SchemaReader::read_objects(const Schemas& set, Shape& shape) {
  Objects objects;
  for (const JsonValue* const schema : set) read_owner(schema, objects, shape);
  // Names stay where they are from here on.
  std::vector<Schemas> sets(objects.names.size());
  spend(objects.names.size() * (60 + 20 * objects.owners.size()));
  hold(objects.names.size() * (sizeof(shape.properties[0]) + 32));
  std::vector<const JsonValue*> own;
  for (const Owner& owner : objects.owners) {
    own.assign(objects.names.size(), nullptr);
    if (owner.properties != nullptr) {
      for (std::size_t i = 0; i < owner.properties->names.size(); ++i) {
        own[objects.places.at(owner.properties->names[i])] = &owner.properties->values[i];
      }
    }
    for (std::size_t i = 0; i < own.size(); ++i) {
      bool is_matched = own[i] != nullptr;
      if (is_matched) add_to(sets[i], own[i]);
      for (const auto& [pattern, schema] : owner.patterns) {
        spend(objects.names[i].size());
        if (!objects.dfas[pattern]->matches(json_spelling(objects.names[i]) + '"')) continue;
        add_to(sets[i], schema);
        is_matched = true;
      }
      if (!is_matched && owner.additional != nullptr) add_to(sets[i], owner.additional);
    }
  }
  for (std::size_t i = 0; i < sets.size(); ++i) {
    for (const JsonValue* const schema : objects.of_names) {
      if (takes(schema, text_value(objects.names[i]))) continue;
      add_to(sets[i], &kNeverSchema);
      break;
    }
    shape.properties.emplace_back(std::move(objects.names[i]), intern(sets[i]));
  }
  if ((shape.types & kObjectBit) != 0) add_keys(objects, shape);
}

void SchemaReader::read_owner(const JsonValue* schema, Objects& objects, Shape& shape) {
  shape.is_left_out = shape.is_left_out || left_out_.contains(schema);
  Owner owner{schema, schema->find("properties"), schema->find("additionalProperties"), {}};
  const auto add_name = [&](const std::string& name) {
    spend(20);
    if (objects.places.contains(name)) return;
    objects.places.emplace(name, objects.names.size());
    objects.names.push_back(name);
    expect(objects.names.size() * 3 * (sizeof(std::string) + 64));
  };
  for (const char* const keyword : {"patternProperties", "propertyNames", "additionalProperties"}) {
    if (shape.keys_schema != nullptr || schema->find(keyword) == nullptr) continue;
    shape.keys_schema = schema;
    shape.keys_keyword = keyword;
  }
  if (owner.properties != nullptr) {
    shape.properties_schema = schema;
    if (!owner.properties->is(Type::kObject)) refuse_form(schema, "properties");
    for (const std::string& name : owner.properties->names) add_name(name);
  }
  if (const JsonValue* const patterns = schema->find("patternProperties")) {
    if (!patterns->is(Type::kObject)) refuse_form(schema, "patternProperties");
    for (std::size_t i = 0; i < patterns->names.size(); ++i) {
      std::shared_ptr<const Dfa> dfa = key_dfa(schema, patterns->names[i]);
      if (dfa == nullptr) {
        // Keys that the pattern would name are not additional.
        owner.additional = nullptr;
        continue;
      }
      spend(objects.dfas.size());
      const auto found = std::ranges::find(objects.dfas, dfa);
      owner.patterns.emplace_back(found - objects.dfas.begin(), &patterns->values[i]);
      if (found == objects.dfas.end()) objects.dfas.push_back(std::move(dfa));
    }
  }
  if (const JsonValue* const required = schema->find("required")) {
    if (!required->is(Type::kArray)) refuse_form(schema, "required");
    for (const JsonValue& name : required->values) {
      if (!name.is(Type::kString)) refuse_form(schema, "required");
      add_name(name.text);
      if (shape.required.insert(name.text).second) hold(80 + name.text.size());
    }
  }
  for (const char* const keyword : {"dependentRequired", "dependencies"}) {
    const JsonValue* const dependent = schema->find(keyword);
    if (dependent == nullptr) continue;
    if (!dependent->is(Type::kObject)) refuse_form(schema, keyword);
    for (std::size_t i = 0; i < dependent->names.size(); ++i) {
      if (!dependent->values[i].is(Type::kArray)) {
        if (keyword[8] == 'R') refuse_form(schema, keyword);
        refuse(schema, keyword);
        continue;
      }
      for (const JsonValue& name : dependent->values[i].values) {
        if (!name.is(Type::kString)) refuse_form(schema, keyword);
        add_name(dependent->names[i]);
        add_name(name.text);
        hold(2 * sizeof(std::string) + 2 * (dependent->names[i].size() + name.text.size()));
        shape.dependencies.emplace_back(dependent->names[i], name.text);
      }
    }
  }
  if (const JsonValue* const names = schema->find("propertyNames")) {
    if (!names->is(Type::kObject) && !names->is(Type::kBoolean)) {
      refuse_form(schema, "propertyNames");
    }
    add_to(objects.of_names, names);
  }
  if (owner.additional != nullptr && owner.additional->is(Type::kBoolean) &&
      owner.additional->boolean) {
    owner.additional = nullptr;
  }
  if (owner.properties != nullptr || owner.additional != nullptr || !owner.patterns.empty()) {
    objects.owners.push_back(std::move(owner));
  }
}

// The automaton of keys, without the opening quote.
std::shared_ptr<const Dfa> SchemaReader::key_dfa(const JsonValue* schema,
                                                 const std::string& pattern) {
  const auto found = key_dfas_.find(pattern);
  if (found != key_dfas_.end() && found->second != nullptr) return found->second;
  hold(128 + pattern.size());
  const JsonValue text = text_value(pattern);
  const auto quoted = dfa_of(schema, &text, true, Spelling::kJsonString);
  std::shared_ptr<const Dfa> dfa;
  if (quoted != nullptr) dfa = keep(behind(*quoted, '"'), 0);
  return key_dfas_[pattern] = std::move(dfa);
}

// The keys that one shape of `propertyNames` takes; null: all.
std::shared_ptr<const Dfa> SchemaReader::key_dfa(const Shape& shape) {
  std::size_t work = 0;
  std::optional<Dfa> dfa;
  const auto add = [&](const Dfa& quoted) {
    const Dfa more = behind(quoted, '"');
    dfa = dfa ? intersection(*dfa, more, &work) : more;
  };
  expect(kDfaMemory);
  if (shape.constants) {
    Nfa nfa;
    const Nfa::State start = nfa.add_state(), end = nfa.add_state();
    for (const JsonValue* const value : *shape.constants) {
      if (!value->is(Type::kString)) continue;
      nfa.add_empty(nfa.add_bytes(start, json_spelling(value->text) + '"'), end);
    }
    return keep(nfa.determinize(start, end, &work), work);
  }
  for (const JsonValue* const text : shape.patterns) {
    add(*dfa_of(text, text, true, Spelling::kJsonString));
  }
  for (const JsonValue* const text : shape.formats) {
    add(*dfa_of(text, text, false, Spelling::kJsonString));
  }
  if (const auto rest = not_excluded(shape, Spelling::kJsonString)) add(*rest);
  if (shape.min_length > 0 || shape.max_length != kUnbounded) {
    dfa = with_lengths(dfa ? *dfa : json_key()->dfa, *json_key(), shape.min_length,
                       shape.max_length, &work);
  }
  return dfa ? keep(std::move(*dfa), work) : nullptr;
}

void SchemaReader::add_keys(Objects& objects, Shape& shape) {
  const JsonValue* place = nullptr;
  const char* keyword = "patternProperties";
  try {
    std::vector<std::shared_ptr<const Dfa>> begins = {nullptr};
    if (!objects.of_names.empty()) {
      place = objects.of_names[0];
      keyword = "propertyNames";
      begins.clear();
      for (const SetId set : alternatives(intern(objects.of_names))) {
        const Shape& names = shape_of(set);
        if ((names.types & kStringBit) != 0) begins.push_back(key_dfa(names));
      }
      keyword = "patternProperties";
    }
    for (const Owner& owner : objects.owners) {
      if (!owner.patterns.empty()) place = owner.schema;
    }
    std::vector<bool> matched(objects.dfas.size(), false);
    for (const auto& dfa : begins) split_keys(objects, 0, dfa, matched, shape);
  } catch (const TooLarge&) {
    spend(kMaxSchemaWork / 10);
    refuse(place, keyword);
    // All that they would say of other keys is left out.
    shape.keys = {KeyClass()};
  }
  hold(shape.keys.size() * sizeof(KeyClass));
}

// Appends the classes of the keys of `dfa`, of which `matched` says whether they match the patterns
// before `pattern`.
void SchemaReader::split_keys(const Objects& objects, std::size_t pattern,
                              const std::shared_ptr<const Dfa>& dfa, std::vector<bool>& matched,
                              Shape& shape) {
  spend(100);
  if (dfa != nullptr && dfa->start() == Dfa::kDead) return;
  const bool is_last = pattern + 1 >= objects.dfas.size();
  const auto may_be = [&] {
    const Schemas& set = entries_[set_of_keys(objects, matched)].schemas;
    return std::ranges::none_of(
        set, [](const JsonValue* s) { return s->is(Type::kBoolean) && !s->boolean; });
  };
  if (pattern == objects.dfas.size()) {
    if (!may_be()) return;
    const std::shared_ptr<const Dfa> others = dfa == nullptr ? nullptr : without_names(dfa, shape);
    if (others != nullptr && others->start() == Dfa::kDead) return;
    if (shape.keys.size() >= kMostKeyClasses) throw TooLarge("has too many classes of keys");
    shape.keys.push_back({others, set_of_keys(objects, matched)});
    return;
  }
  const Dfa& all = dfa == nullptr ? json_key()->dfa : *dfa;
  const Dfa& some = *objects.dfas[pattern];
  expect(kDfaMemory);
  for (const bool matches : {true, false}) {
    matched[pattern] = matches;
    // Keys that cannot be there need no automaton.
    if (!is_last || may_be()) {
      std::size_t work = 0;
      std::shared_ptr<const Dfa> part;
      if (matches && dfa == nullptr) {
        part = objects.dfas[pattern];
      } else if (matches) {
        part = keep(intersection(all, some, &work), work);
      } else {
        part = keep(difference(all, some, &work), work);
      }
      split_keys(objects, pattern + 1, part, matched, shape);
    }
  }
  matched[pattern] = false;
}

std::shared_ptr<const Dfa> SchemaReader::without_names(const std::shared_ptr<const Dfa>& dfa,
                                                       const Shape& shape) {
  Nfa nfa;
  const Nfa::State start = nfa.add_state(), end = nfa.add_state();
  bool has_names = false;
  for (const auto& [name, unused] : shape.properties) {
    const std::string spelt = json_spelling(name) + '"';
    spend(spelt.size());
    if (!dfa->matches(spelt)) continue;
    nfa.add_empty(nfa.add_bytes(start, spelt), end);
    has_names = true;
  }
  if (!has_names) return dfa;
  expect(kDfaMemory);
  std::size_t work = 0;
  Dfa rest = difference(*dfa, nfa.determinize(start, end, &work), &work);
  return keep(std::move(rest), work);
}

SetId SchemaReader::set_of_keys(const Objects& objects, const std::vector<bool>& matched) {
  Schemas set;
  for (const Owner& owner : objects.owners) {
    bool is_matched = false;
    for (const auto& [pattern, schema] : owner.patterns) {
      if (!matched[pattern]) continue;
      add_to(set, schema);
      is_matched = true;
    }
    if (!is_matched && owner.additional != nullptr) add_to(set, owner.additional);
  }
  return intern(set);
}

// --- values that schemas name

void SchemaReader::filter_constants(Shape& shape) {
  std::vector<const JsonValue*> kept;
  for (const JsonValue* const value : *shape.constants) {
    if (has_shape(*value, shape)) kept.push_back(value);
  }
  shape.constants = std::move(kept);
}

bool SchemaReader::holds(const JsonValue& value, SetId set) {
  const Schemas schemas = entries_[set].schemas;
  return std::ranges::all_of(schemas,
                             [&](const JsonValue* schema) { return takes(schema, value); });
}

bool SchemaReader::takes(const JsonValue* schema, const JsonValue& value) {
  spend(100);
  struct Depth {
    explicit Depth(std::uint32_t& count) : count_(count) { ++count_; }
    ~Depth() { --count_; }
    std::uint32_t& count_;
  };
  const Depth depth(taking_);
  if (taking_ > kMostTaken) {
    throw GrammarError(GrammarError::Kind::kTooLarge, path_of(schema),
                       "is followed more than 1000 times for one constant");
  }
  if (schema->is(Type::kBoolean)) return schema->boolean;
  if (!schema->is(Type::kObject)) refuse_form(schema, "is no schema");
  if (const JsonValue* const reference = schema->find("$ref")) {
    if (!reference->is(Type::kString)) refuse_form(schema, "$ref");
    const JsonValue* const target = resolve(reference->text, schema);
    if (target == nullptr) {
      refuse(schema, "$ref " + reference->text);
    } else if (!takes(target, value)) {
      return false;
    }
    if (is_old_draft_) {
      is_unsure_ = is_unsure_ || left_out_.contains(schema);
      return true;
    }
  }
  check_keywords(schema);
  for (const char* const name : {"allOf", "anyOf", "oneOf"}) {
    const JsonValue* const branches = schema->find(name);
    if (branches == nullptr) continue;
    if (!branches->is(Type::kArray)) refuse_form(schema, name);
    std::size_t sure = 0, unsure = 0;
    for (const JsonValue& branch : branches->values) {
      const Taken result = taken(&branch, value);
      sure += result == Taken::kYes ? 1 : 0;
      unsure += result == Taken::kPerhaps ? 1 : 0;
    }
    if (name[1] == 'l') {
      if (sure + unsure != branches->values.size()) return false;
      is_unsure_ = is_unsure_ || unsure > 0;
    } else {
      if (sure + unsure == 0 || (name[0] == 'o' && sure > 1)) return false;
      is_unsure_ = is_unsure_ || sure == 0;
      // A branch that holds for want of what is left out rules no other one out.
      if (name[0] == 'o' && sure + unsure > 1) refuse(schema, "oneOf whose branches may both hold");
    }
  }
  if (const JsonValue* const excluded = schema->find("not")) {
    const Taken result = taken(excluded, value);
    if (result == Taken::kYes) return false;
    if (result == Taken::kPerhaps) refuse(schema, "not");
  }
  const Shape& shape = shape_of(intern({schema}));
  if (shape.constants && std::ranges::none_of(*shape.constants, [&](const JsonValue* other) {
        return same_value(value, *other);
      })) {
    return false;
  }
  if (!has_shape(value, shape)) return false;
  // Names of keys that take too many states are left out of their own schema.
  const JsonValue* const names = schema->find("propertyNames");
  is_unsure_ = is_unsure_ || left_out_.contains(schema) || left_out_.contains(names);
  return true;
}

SchemaReader::Taken SchemaReader::taken(const JsonValue* schema, const JsonValue& value) {
  const bool was_unsure = std::exchange(is_unsure_, false);
  const bool is_taken = takes(schema, value);
  const bool is_sure = !std::exchange(is_unsure_, was_unsure);
  return !is_taken ? Taken::kNo : is_sure ? Taken::kYes : Taken::kPerhaps;
}

bool SchemaReader::has_shape(const JsonValue& value, const Shape& shape, bool with_formats) {
  spend(60 + shape.excluded.size());
  // An integer is a number, too.
  const std::uint32_t type = type_of(value);
  if ((type & shape.types) == 0) return false;
  if (std::ranges::any_of(shape.excluded,
                          [&](const JsonValue* other) { return same_value(value, *other); })) {
    return false;
  }
  switch (value.type) {
    case Type::kNumber: {
      if (shape.numbers.is_free()) return true;
      const std::optional<Decimal> number = Decimal::parse(value.text);
      spend(value.text.size());
      return number && shape.numbers.holds(*number);
    }
    case Type::kString: {
      const std::size_t length = length_of(value.text);
      if (length < shape.min_length || length > shape.max_length) return false;
      const std::string spelt = '"' + json_spelling(value.text) + '"';
      spend(spelt.size() *
            (shape.patterns.size() + shape.formats.size() + shape.excluded_patterns.size()));
      const auto matches = [&](const JsonValue* text, bool is_pattern, bool otherwise) {
        const auto dfa = dfa_of(text, text, is_pattern, Spelling::kJsonString);
        return dfa == nullptr ? otherwise : dfa->matches(spelt);
      };
      return std::ranges::all_of(shape.patterns, [&](auto* p) { return matches(p, true, true); }) &&
             std::ranges::none_of(shape.excluded_patterns,
                                  [&](auto* p) { return matches(p, true, false); }) &&
             (!with_formats ||
              std::ranges::all_of(shape.formats, [&](auto* f) { return matches(f, false, true); }));
    }
    case Type::kArray:
      if (value.values.size() < shape.min_items || value.values.size() > shape.max_items) {
        return false;
      }
      for (std::size_t i = 0; i < value.values.size(); ++i) {
        const SetId set = i < shape.prefix.size() ? shape.prefix[i] : shape.items;
        if (!holds(value.values[i], set)) return false;
      }
      return true;
    case Type::kObject:
      return has_members(value, shape);
    default:
      return true;
  }
}

bool SchemaReader::has_members(const JsonValue& value, const Shape& shape) {
  const std::size_t count =
      std::set<std::string_view>(value.names.begin(), value.names.end()).size();
  spend(count * 20);
  if (count < shape.min_properties || count > shape.max_properties) return false;
  for (const std::string& name : shape.required) {
    if (value.find(name) == nullptr) return false;
  }
  for (const auto& [name, needed] : shape.dependencies) {
    if (value.find(name) != nullptr && value.find(needed) == nullptr) return false;
  }
  for (std::size_t i = 0; i < value.names.size(); ++i) {
    const std::optional<SetId> set = set_of_key(shape, value.names[i]);
    if (!set || !holds(value.values[i], *set)) return false;
  }
  return true;
}

}  // namespace lintel::grammar
