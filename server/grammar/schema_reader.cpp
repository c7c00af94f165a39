// SPDX-License-Identifier: Apache-2.0
#include "server/grammar/schema_reader.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "server/grammar/dfa.h"
#include "server/grammar/pattern.h"

namespace lintel::grammar {
namespace {

using Type = JsonValue::Type;

constexpr std::size_t kMostRelaxed = 64;
constexpr int kMostNested = 200;  // references and applicators within one another, at one place

constexpr std::array<std::string_view, 12> kIgnored = {
    "title",     "description", "default", "examples", "deprecated",  "readOnly",
    "writeOnly", "$comment",    "$schema", "$defs",    "definitions", "$id"};
constexpr std::array<std::string_view, 24> kServed = {
    "type",    "enum",        "const",    "properties", "required",         "additionalProperties",
    "items",   "prefixItems", "minItems", "maxItems",   "minLength",        "maxLength",
    "pattern", "format",      "minimum",  "maximum",    "exclusiveMinimum", "exclusiveMaximum",
    "anyOf",   "oneOf",       "allOf",    "$ref",       "nullable",         "multipleOf"};
// In the order in which they are reported; others follow by their place in the document.
constexpr std::array<std::string_view, 20> kRefused = {"not",
                                                       "if",
                                                       "then",
                                                       "else",
                                                       "contains",
                                                       "uniqueItems",
                                                       "patternProperties",
                                                       "propertyNames",
                                                       "minProperties",
                                                       "maxProperties",
                                                       "dependentRequired",
                                                       "dependentSchemas",
                                                       "dependencies",
                                                       "unevaluatedProperties",
                                                       "unevaluatedItems",
                                                       "$anchor",
                                                       "$dynamicRef",
                                                       "$dynamicAnchor",
                                                       "$recursiveRef",
                                                       "$recursiveAnchor"};

template <std::size_t N>
bool is_one_of(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

void add_to(Schemas& set, const JsonValue* schema) {
  const auto at = std::ranges::lower_bound(set, schema);
  if (at == set.end() || *at != schema) set.insert(at, schema);
}

}  // namespace

SchemaReader::SchemaReader(const JsonValue& root, const SchemaOptions& options,
                           std::vector<RelaxedKeyword>* relaxed)
    : root_(root), options_(options), relaxed_(relaxed) {
  find_ids();
}

void SchemaReader::spend(std::size_t work) {
  work_ += work;
  if (work_ > kMaxSchemaWork) {
    throw GrammarError(GrammarError::Kind::kTooLarge, "", "takes too much work to compile");
  }
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
  if (relaxed_ == nullptr || relaxed_->size() >= kMostRelaxed) return;
  if (noted_.emplace(place, reason).second) relaxed_->push_back({path_of(place), reason});
}

void SchemaReader::refuse_form(const JsonValue* place, const std::string& reason) const {
  throw GrammarError(GrammarError::Kind::kInvalid, path_of(place), reason);
}

void SchemaReader::find_ids() {
  constexpr std::array<std::string_view, 5> kMaps = {"properties", "$defs", "definitions",
                                                     "patternProperties", "dependentSchemas"};
  constexpr std::array<std::string_view, 4> kConstants = {"const", "enum", "default", "examples"};
  std::vector<const JsonValue*> pending = {&root_};
  while (!pending.empty()) {
    const JsonValue* const value = pending.back();
    pending.pop_back();
    if (!value->is(Type::kObject)) {
      for (const JsonValue& part : value->values) pending.push_back(&part);
      continue;
    }
    for (std::size_t i = 0; i < value->names.size(); ++i) {
      const std::string& name = value->names[i];
      const JsonValue& part = value->values[i];
      if (name == "$id" && part.is(Type::kString)) refuse(value, "$id");
      if (is_one_of(kConstants, name)) continue;
      if (is_one_of(kMaps, name) && part.is(Type::kObject)) {
        for (const JsonValue& schema : part.values) pending.push_back(&schema);
      } else if (!part.values.empty()) {
        pending.push_back(&part);
      }
    }
  }
}

void SchemaReader::check_keywords(const JsonValue* schema) {
  if (!checked_.insert(schema).second) return;
  for (const std::string_view name : kRefused) {
    if (schema->find(name) != nullptr) refuse(schema, std::string(name));
  }
  for (const std::string& name : schema->names) {
    if (!is_one_of(kIgnored, name) && !is_one_of(kServed, name) && !is_one_of(kRefused, name)) {
      refuse(schema, name);
    }
  }
}

const JsonValue* SchemaReader::resolve(const std::string& reference) {
  if (reference.empty() || reference[0] != '#') return nullptr;
  std::string pointer;
  for (std::size_t i = 1; i < reference.size(); ++i) {
    if (reference[i] != '%') {
      pointer += reference[i];
      continue;
    }
    const auto digit = [&](std::size_t at) {
      const char c = at < reference.size() ? reference[at] : '?';
      if (c >= '0' && c <= '9') return c - '0';
      if (c >= 'a' && c <= 'f') return c - 'a' + 10;
      return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    };
    const int high = digit(i + 1), low = digit(i + 2);
    if (high < 0 || low < 0) return nullptr;
    pointer += static_cast<char>(high * 16 + low);
    i += 2;
  }
  const JsonValue* at = &root_;
  if (!pointer.empty() && pointer[0] != '/') return nullptr;
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
  return at->is(Type::kObject) || at->is(Type::kBoolean) ? at : nullptr;
}

void SchemaReader::flatten(const JsonValue* schema, Flat& flat) {
  spend(100);
  if (schema->is(Type::kBoolean)) {
    flat.never = flat.never || !schema->boolean;
    return;
  }
  if (!schema->is(Type::kObject)) refuse_form(schema, "is no schema");
  check_keywords(schema);
  if (active_.size() >= kMostNested) {
    throw GrammarError(GrammarError::Kind::kTooLarge, path_of(schema),
                       "has more than 200 references and allOf within one another");
  }
  active_.push_back(schema);
  if (const JsonValue* const reference = schema->find("$ref")) {
    if (!reference->is(Type::kString)) refuse_form(schema, "$ref");
    const JsonValue* const target = resolve(reference->text);
    if (target == nullptr) {
      refuse(schema, "$ref " + reference->text);
    } else if (std::ranges::find(active_, target) != active_.end()) {
      refuse(schema, "$ref loop");
    } else {
      flatten(target, flat);
    }
  }
  if (const JsonValue* const all = schema->find("allOf")) {
    if (!all->is(Type::kArray)) refuse_form(schema, "allOf");
    for (const JsonValue& part : all->values) flatten(&part, flat);
  }
  for (const char* const name : {"anyOf", "oneOf"}) {
    const JsonValue* const branches = schema->find(name);
    if (branches == nullptr) continue;
    if (!branches->is(Type::kArray)) refuse_form(schema, name);
    flat.groups.push_back({schema, branches, name[0] == 'o', active_});
  }
  add_to(flat.plain, schema);
  active_.pop_back();
}

std::vector<Schemas> SchemaReader::alternatives(const Schemas& set) {
  Flat flat;
  for (const JsonValue* const schema : set) flatten(schema, flat);
  return choose(std::move(flat));
}

std::vector<Schemas> SchemaReader::choose(Flat flat) {
  std::set<Schemas> found;
  std::vector<Schemas> in_order;
  std::vector<Flat> pending = {std::move(flat)};
  while (!pending.empty()) {
    Flat next = std::move(pending.back());
    pending.pop_back();
    spend(100 + next.plain.size());
    if (next.never) continue;
    if (next.groups.empty()) {
      if (found.insert(next.plain).second) in_order.push_back(next.plain);
      continue;
    }
    const Flat::Group group = std::move(next.groups.back());
    next.groups.pop_back();
    if (group.is_one_of) check_branches(group, next.plain);
    for (std::size_t i = group.branches->values.size(); i-- > 0;) {
      pending.push_back(next);
      flatten_branch(group, i, pending.back());
    }
  }
  return in_order;
}

void SchemaReader::flatten_branch(const Flat::Group& group, std::size_t branch, Flat& flat) {
  std::vector<const JsonValue*> others = std::exchange(active_, group.active);
  flatten(&group.branches->values[branch], flat);
  active_ = std::move(others);
}

void SchemaReader::check_branches(const Flat::Group& group, const Schemas& base) {
  if (!checked_groups_.emplace(group.branches, base).second) return;
  std::vector<std::vector<Schemas>> branches;
  for (std::size_t i = 0; i < group.branches->values.size(); ++i) {
    Flat flat;
    flat.plain = base;
    flatten_branch(group, i, flat);
    branches.push_back(choose(std::move(flat)));
    for (const Schemas& one : branches.back()) shape_of(one);
  }
  for (std::size_t i = 0; i < branches.size(); ++i) {
    for (std::size_t j = i + 1; j < branches.size(); ++j) {
      for (const Schemas& one : branches[i]) {
        for (const Schemas& other : branches[j]) {
          if (!excludes(shape_of(one), shape_of(other))) {
            return refuse(group.owner, "oneOf whose branches may both hold");
          }
        }
      }
    }
  }
}

bool SchemaReader::excludes(const Shape& one, const Shape& other) {
  spend(100);
  const std::uint32_t types = one.types & other.types;
  if (types == 0) return true;
  if (one.constants && other.constants) return are_apart(*one.constants, *other.constants);
  if (types != kObjectBit) return false;
  for (const auto& [name, set] : one.properties) {
    if (!one.required.contains(name) || !other.required.contains(name)) continue;
    spend(other.properties.size());
    const auto found =
        std::ranges::find(other.properties, name, &std::pair<std::string, Schemas>::first);
    if (found == other.properties.end()) continue;
    const auto mine = constants_of(set), theirs = constants_of(found->second);
    if (mine && theirs && are_apart(*mine, *theirs)) return true;
  }
  return false;
}

bool SchemaReader::are_apart(const std::vector<const JsonValue*>& some,
                             const std::vector<const JsonValue*>& others) {
  spend(some.size() * others.size());
  for (const JsonValue* const one : some) {
    for (const JsonValue* const other : others) {
      // 1 and 1.0 are one number.
      if (one->is(Type::kNumber) && other->is(Type::kNumber) && one->text != other->text &&
          !(one->integer && other->integer && *one->integer != *other->integer)) {
        return false;
      }
      if (!one->values.empty() && !other->values.empty()) return false;
      if (same_value(*one, *other)) return false;
    }
  }
  return true;
}

std::optional<std::vector<const JsonValue*>> SchemaReader::constants_of(const Schemas& set) {
  std::vector<const JsonValue*> all;
  for (const Schemas& one : alternatives(set)) {
    const Shape& shape = shape_of(one);
    if (!shape.constants) return std::nullopt;
    all.insert(all.end(), shape.constants->begin(), shape.constants->end());
  }
  return all;
}

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
  // In draft 4 a bound is open where its neighbour is true.
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
      shape.constants = std::move(some);
    }
  };
  if (const JsonValue* const value = schema->find("const")) restrict_to({value});
  if (const JsonValue* const values = schema->find("enum")) {
    if (!values->is(Type::kArray)) refuse_form(schema, "enum");
    std::vector<const JsonValue*> some;
    for (const JsonValue& value : values->values) some.push_back(&value);
    restrict_to(std::move(some));
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

const Shape& SchemaReader::shape_of(const Schemas& set) {
  const auto found = shapes_.find(set);
  if (found != shapes_.end()) return found->second;
  Shape shape;
  for (const JsonValue* const schema : set) read_scalars(schema, shape);
  if (shape.constants) {
    std::uint32_t types = 0;
    for (const JsonValue* const value : *shape.constants) types |= type_of(*value);
    // An integer is a number.
    if ((types & kIntegerBit) != 0 && (shape.types & kFractionBit) != 0) shape.types |= kIntegerBit;
    shape.types &= types;
  }
  read_arrays(set, shape);
  read_objects(set, shape);
  const Shape& kept = shapes_.emplace(set, std::move(shape)).first->second;
  if (kept.constants) filter_constants(const_cast<Shape&>(kept));
  return kept;
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
  if (const JsonValue* const pattern = schema->find("pattern")) {
    if (!pattern->is(Type::kString)) refuse_form(schema, "pattern");
    if (dfa_of(schema, pattern, true, Spelling::kJsonString)) shape.patterns.push_back(pattern);
  }
  if (const JsonValue* const format = schema->find("format")) {
    if (!format->is(Type::kString)) refuse_form(schema, "format");
    if (dfa_of(schema, format, false, Spelling::kJsonString)) shape.formats.push_back(format);
  }
}

std::shared_ptr<const Dfa> SchemaReader::dfa_of(const JsonValue* schema, const JsonValue* text,
                                                bool is_pattern, Spelling spelling) {
  const auto key = std::make_tuple(is_pattern, spelling, text->text);
  const auto found = dfas_.find(key);
  if (found != dfas_.end()) return found->second;
  std::shared_ptr<const Dfa> dfa;
  if (is_pattern) {
    try {
      std::size_t work = 0;
      dfa = std::make_shared<const Dfa>(pattern_dfa(text->text, spelling, &work));
      spend(work + dfa->bytes());
    } catch (const GrammarError& error) {
      if (error.kind() != GrammarError::Kind::kUnsupported) throw;
      spend(kMaxSchemaWork / 10);
      refuse(schema, error.reason());
    }
  } else {
    dfa = format_dfa(text->text, spelling);
    if (dfa == nullptr) refuse(schema, "format " + text->text);
  }
  return dfas_[key] = std::move(dfa);
}

void SchemaReader::read_arrays(const Schemas& set, Shape& shape) {
  std::size_t longest = 0;
  for (const JsonValue* const schema : set) {
    if (const JsonValue* const prefix = schema->find("prefixItems")) {
      if (!prefix->is(Type::kArray)) refuse_form(schema, "prefixItems");
      longest = std::max(longest, prefix->values.size());
    }
  }
  spend(longest * set.size() * 10);
  shape.prefix.resize(longest);
  for (const JsonValue* const schema : set) {
    const JsonValue* const prefix = schema->find("prefixItems");
    const JsonValue* const items = schema->find("items");
    if (items != nullptr && !items->is(Type::kObject) && !items->is(Type::kBoolean)) {
      refuse_form(schema, "items");
    }
    const std::size_t size = prefix == nullptr ? 0 : prefix->values.size();
    for (std::size_t i = 0; i < longest; ++i) {
      if (i < size) add_to(shape.prefix[i], &prefix->values[i]);
      if (i >= size && items != nullptr) add_to(shape.prefix[i], items);
    }
    if (items != nullptr) add_to(shape.items, items);
  }
}

void SchemaReader::read_objects(const Schemas& set, Shape& shape) {
  std::map<std::string_view, std::size_t> places;
  const JsonValue* closing = nullptr;  // the schema with additionalProperties
  for (const JsonValue* const schema : set) {
    if (const JsonValue* const properties = schema->find("properties")) {
      if (!properties->is(Type::kObject)) refuse_form(schema, "properties");
      spend(properties->names.size() * 20);
      for (std::size_t i = 0; i < properties->names.size(); ++i) {
        const std::string& name = properties->names[i];
        const auto [place, fresh] = places.emplace(name, shape.properties.size());
        if (fresh) shape.properties.emplace_back(name, Schemas());
        add_to(shape.properties[place->second].second, &properties->values[i]);
      }
    }
    if (const JsonValue* const required = schema->find("required")) {
      if (!required->is(Type::kArray)) refuse_form(schema, "required");
      spend(required->values.size() * 20);
      for (const JsonValue& name : required->values) {
        if (!name.is(Type::kString)) refuse_form(schema, "required");
        shape.required.insert(name.text);
      }
    }
    const JsonValue* const additional = schema->find("additionalProperties");
    if (additional == nullptr || (additional->is(Type::kBoolean) && additional->boolean)) continue;
    if (closing != nullptr) {
      refuse(schema, "allOf with additionalProperties");
      continue;
    }
    closing = schema;
  }
  if (closing != nullptr) {
    const JsonValue* const named = closing->find("properties");
    if (shape.properties.size() > (named == nullptr ? 0 : distinct_names(*named))) {
      refuse(closing, "allOf with additionalProperties");
      closing = nullptr;
    }
  }
  if (closing != nullptr) add_to(shape.additional, closing->find("additionalProperties"));
  for (const std::string& name : shape.required) {
    if (!places.contains(name)) shape.properties.emplace_back(name, shape.additional);
  }
}

std::size_t SchemaReader::distinct_names(const JsonValue& object) {
  return std::set<std::string_view>(object.names.begin(), object.names.end()).size();
}

void SchemaReader::filter_constants(Shape& shape) {
  std::vector<const JsonValue*> kept;
  for (const JsonValue* const value : *shape.constants) {
    if (has_shape(*value, shape)) kept.push_back(value);
  }
  shape.constants = std::move(kept);
}

bool SchemaReader::holds(const JsonValue& value, const Schemas& set) {
  for (const Schemas& one : alternatives(set)) {
    const Shape& shape = shape_of(one);
    if (shape.constants && std::ranges::none_of(*shape.constants, [&](const JsonValue* other) {
          return same_value(value, *other);
        })) {
      continue;
    }
    if (has_shape(value, shape)) return true;
  }
  return false;
}

bool SchemaReader::has_shape(const JsonValue& value, const Shape& shape) {
  spend(20);
  if ((type_of(value) & shape.types) == 0) return false;
  switch (value.type) {
    case Type::kNumber: {
      if (shape.numbers.is_free()) return true;
      const std::optional<Decimal> number = Decimal::parse(value.text);
      spend(value.text.size());
      return number && shape.numbers.holds(*number);
    }
    case Type::kString: {
      const auto length = static_cast<std::size_t>(std::ranges::count_if(
          value.text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
      if (length < shape.min_length || length > shape.max_length) return false;
      const std::string spelt = '"' + json_spelling(value.text) + '"';
      spend(spelt.size() * (shape.patterns.size() + shape.formats.size()));
      const auto matches = [&](const JsonValue* text, bool is_pattern) {
        const auto dfa = dfa_of(text, text, is_pattern, Spelling::kJsonString);
        return dfa == nullptr || dfa->matches(spelt);
      };
      return std::ranges::all_of(shape.patterns, [&](auto* p) { return matches(p, true); }) &&
             std::ranges::all_of(shape.formats, [&](auto* f) { return matches(f, false); });
    }
    case Type::kArray:
      if (value.values.size() < shape.min_items || value.values.size() > shape.max_items) {
        return false;
      }
      for (std::size_t i = 0; i < value.values.size(); ++i) {
        const Schemas& set = i < shape.prefix.size() ? shape.prefix[i] : shape.items;
        if (!set.empty() && !holds(value.values[i], set)) return false;
      }
      return true;
    case Type::kObject:
      for (const std::string& name : shape.required) {
        if (value.find(name) == nullptr) return false;
      }
      for (std::size_t i = 0; i < value.names.size(); ++i) {
        spend(shape.properties.size());
        const auto found = std::ranges::find(shape.properties, value.names[i],
                                             &std::pair<std::string, Schemas>::first);
        const Schemas& set = found == shape.properties.end() ? shape.additional : found->second;
        if (!set.empty() && !holds(value.values[i], set)) return false;
      }
      return true;
    default:
      return true;
  }
}

}  // namespace lintel::grammar
