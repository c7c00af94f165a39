// SPDX-License-Identifier: Apache-2.0
#include "server/chat/reader/tool_types.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/grammar/grammar.h"
#include "server/grammar/pattern.h"
#include "server/grammar/uri_reference.h"

namespace lintel {
namespace {

using Json = nlohmann::json;

TypeSet type_named(std::string_view name) {
  constexpr TypeSet kAnyNumber = kIntegerType | kNumberType;
  constexpr std::pair<std::string_view, TypeSet> kNames[] = {
      {"null", kNullType},    {"boolean", kBooleanType}, {"integer", kIntegerType},
      {"number", kAnyNumber}, {"float", kAnyNumber},     {"object", kObjectType},
      {"array", kArrayType},  {"string", kTextType}};
  for (const auto& [known, type] : kNames) {
    if (known == name) return type;
  }
  return 0;
}

TypeSet type_of(const Json& value) {
  if (value.is_null()) return kNullType;
  if (value.is_boolean()) return kBooleanType;
  if (value.is_number_integer()) return kIntegerType;
  if (value.is_number()) return kNumberType;
  if (value.is_object()) return kObjectType;
  if (value.is_array()) return kArrayType;
  return kTextType;
}

// Types that the keyword `type` of a schema names.
TypeSet types_named(const Json& schema) {
  const auto type = schema.find("type");
  if (type == schema.end()) return kAnyType;
  TypeSet types = 0;
  const auto add = [&types](const Json& one) {
    if (one.is_string()) types |= type_named(one.get_ref<const std::string&>());
  };
  if (!type->is_array()) add(*type);
  if (type->is_array()) std::ranges::for_each(*type, add);
  return types;
}

// Returns the types that both permit.
TypeSet both(TypeSet one, TypeSet other) {
  if ((one & kAnyType) != 0) return other;
  if ((other & kAnyType) != 0) return one;
  return one & other;
}

// Keywords whose members are schemas, that are schemas or lists of them, and that are values.
constexpr std::array<std::string_view, 6> kSchemaMaps = {
    "properties", "$defs", "definitions", "patternProperties", "dependentSchemas", "dependencies"};
constexpr std::array<std::string_view, 12> kSubschemas = {
    "not",   "if",    "then",  "else",        "items",   "additionalItems", "additionalProperties",
    "allOf", "anyOf", "oneOf", "prefixItems", "contains"};
constexpr std::array<std::string_view, 4> kConstantValues = {"const", "enum", "default",
                                                             "examples"};

// Patterns of `patternProperties` that are read for one request, and the work of compiling them.
constexpr std::size_t kMostPatterns = 64;
struct PatternBounds {
  std::size_t patterns = kMostPatterns;
  std::size_t work = 2'000'000;
};

}  // namespace

// The schema of a function's parameters, in which references are resolved as grammars do.
class FunctionSchema {
 public:
  explicit FunctionSchema(Json root) : root_(std::move(root)) { read(); }
  FunctionSchema(const FunctionSchema&) = delete;
  FunctionSchema& operator=(const FunctionSchema&) = delete;

  const Json& root() const { return root_; }

  // Types that a reader has found.
  std::unordered_map<const Json*, TypeSet> types;

  // The schema that `$ref` of a schema names; null: there is none.
  const Json* target(const Json& schema) const {
    const auto reference = schema.find("$ref");
    if (reference == schema.end() || !reference->is_string()) return nullptr;
    const auto& text = reference->get_ref<const std::string&>();
    std::uint32_t resource = resource_of(schema);
    if (!text.empty() && text[0] != '#') {
      const auto found = by_uri_.find(grammar::resolve_uri(resources_[resource].uri, text));
      if (found == by_uri_.end()) return nullptr;
      resource = found->second;
    }
    std::string fragment;
    if (!grammar::read_fragment(text, &fragment)) return nullptr;
    if (!fragment.empty() && fragment[0] != '/') {
      const auto found = anchors_.find({resource, fragment});
      return found == anchors_.end() ? nullptr : found->second;
    }
    try {
      const Json::json_pointer at(fragment);
      const Json& root = *resources_[resource].root;
      return root.contains(at) ? &root.at(at) : nullptr;
    } catch (const Json::exception&) {  // no pointer
      return nullptr;
    }
  }

  // True if nothing of a schema counts but its `$ref`.
  bool is_reference_alone(const Json& schema) const {
    return is_old_draft_ && schema.contains("$ref");
  }

  // Schemas that hold together with `schema`: the target of a reference, and those of allOf.
  template <typename Visit>
  void for_each_conjunct(const Json& schema, const Visit& visit) const {
    if (const Json* const referred = target(schema)) visit(*referred);
    const auto all = schema.find("allOf");
    if (all == schema.end() || !all->is_array() || is_reference_alone(schema)) return;
    for (const Json& one : *all) visit(one);
  }

  // Reads a pattern for matches().
  void add_pattern(const std::string& pattern, PatternBounds& bounds) {
    if (patterns_.contains(pattern) || bounds.patterns == 0 || bounds.work == 0) return;
    --bounds.patterns;
    std::size_t work = 0;
    try {
      patterns_.emplace(
          pattern, grammar::pattern_dfa(pattern, grammar::Spelling::kUtf8, &work, bounds.work));
    } catch (const grammar::GrammarError&) {  // it matches nothing
    }
    bounds.work -= std::min(bounds.work, work);
  }
  bool matches(const std::string& pattern, const std::string& name) const {
    const auto found = patterns_.find(pattern);
    return found != patterns_.end() && found->second.matches(name);
  }

 private:
  enum class Role { kSchema, kSchemas, kOther, kValue };
  static constexpr std::size_t kMaxUri = 1024;  // longer ones name nothing
  struct Resource {
    std::string uri;
    const Json* root;
  };

  static Role role_of(std::string_view keyword) {
    const auto is_in = [keyword](const auto& names) {
      return std::ranges::find(names, keyword) != names.end();
    };
    if (is_in(kSchemaMaps)) return Role::kSchemas;
    if (is_in(kSubschemas)) return Role::kSchema;
    return is_in(kConstantValues) ? Role::kValue : Role::kOther;
  }

  std::uint32_t resource_of(const Json& schema) const {
    const auto found = resource_of_.find(&schema);
    return found == resource_of_.end() ? 0 : found->second;
  }

  // Finds identifiers and anchors.
  void read() {
    struct Pending {
      const Json* value;
      Role role;
      std::uint32_t resource;
    };
    std::string draft;
    if (root_.is_object() && root_.contains("$schema") && root_["$schema"].is_string()) {
      draft = root_["$schema"].get<std::string>();
    }
    const auto is_draft = [&draft](const char* name) {
      return draft.find(name) != std::string::npos;
    };
    const bool has_plain_id = is_draft("draft-03") || is_draft("draft-04");
    is_old_draft_ = has_plain_id || is_draft("draft-06") || is_draft("draft-07");
    const char* const id_keyword = has_plain_id ? "id" : "$id";
    resources_.push_back({"", &root_});
    std::vector<Pending> pending = {{&root_, Role::kSchema, 0}};
    while (!pending.empty()) {
      Pending next = pending.back();
      pending.pop_back();
      if (next.value->is_array()) {
        for (const Json& part : *next.value) {
          if (part.is_structured()) pending.push_back({&part, next.role, next.resource});
        }
      }
      if (!next.value->is_object()) continue;
      if (next.role == Role::kSchema) read_identity(*next.value, id_keyword, &next.resource);
      if (next.resource != 0) resource_of_.emplace(next.value, next.resource);
      for (const auto& [name, part] : next.value->items()) {
        if (!part.is_structured()) continue;
        const Role role = next.role == Role::kSchemas  ? Role::kSchema
                          : next.role == Role::kSchema ? role_of(name)
                                                       : next.role;
        pending.push_back({&part, role, next.resource});
      }
    }
  }

  void read_identity(const Json& schema, const char* id_keyword, std::uint32_t* resource) {
    if (is_reference_alone(schema)) return;
    const auto id = schema.find(id_keyword);
    if (id != schema.end() && id->is_string() && !id->get_ref<const std::string&>().empty()) {
      const auto& text = id->get_ref<const std::string&>();
      std::string uri = grammar::resolve_uri(resources_[*resource].uri, text);
      if (uri.size() > kMaxUri) uri.clear();
      if (text[0] == '#') {
        anchors_.emplace(std::make_pair(*resource, text.substr(1)), &schema);
      } else if (&schema == &root_) {
        by_uri_.emplace(uri, 0);
        resources_[0].uri = std::move(uri);
      } else {
        *resource = static_cast<std::uint32_t>(resources_.size());
        by_uri_.emplace(uri, *resource);
        resources_.push_back({std::move(uri), &schema});
      }
    }
    const auto anchor = schema.find("$anchor");
    if (!is_old_draft_ && anchor != schema.end() && anchor->is_string()) {
      anchors_.emplace(std::make_pair(*resource, anchor->get<std::string>()), &schema);
    }
  }

  const Json root_;
  bool is_old_draft_ = false;
  std::vector<Resource> resources_;
  std::unordered_map<std::string, std::uint32_t> by_uri_;
  std::unordered_map<const Json*, std::uint32_t> resource_of_;  // of those not of the first
  std::map<std::pair<std::uint32_t, std::string>, const Json*> anchors_;
  std::map<std::string, grammar::Dfa> patterns_;
};

namespace {

// Reads the types of one function. References are followed within the bounds; where they end a
// schema has no type. Time is linear in the schema, for each is read once.
class SchemaTypes {
 public:
  explicit SchemaTypes(FunctionSchema& document) : document_(document) {}

  ToolTypes::Parameters parameters() {
    ToolTypes::Parameters found;
    add_properties(document_.root(), 0, found);
    return found;
  }
  // `patternProperties` that add_properties() has seen, and whether any schema has them or a schema
  // as `additionalProperties`.
  const std::set<std::string>& patterns() const { return patterns_; }
  bool has_others() const { return has_others_; }

 private:
  static constexpr int kMaxDepth = 200;  // of references and combined schemas within one another
  static constexpr std::size_t kMaxVisits = 100'000;

  TypeSet types_of(const Json& schema, int depth) {
    if (!schema.is_object() || depth > kMaxDepth) return kAnyType;
    const auto [known, is_new] = document_.types.emplace(&schema, kAnyType);  // within itself: any
    if (!is_new) return known->second;
    const bool is_alone = document_.is_reference_alone(schema);
    TypeSet types = is_alone ? kAnyType : own_types(schema);
    document_.for_each_conjunct(
        schema, [&](const Json& one) { types = both(types, types_of(one, depth + 1)); });
    if (is_alone) return document_.types[&schema] = types;
    for (const char* const key : {"anyOf", "oneOf"}) {
      const auto branches = schema.find(key);
      if (branches == schema.end() || !branches->is_array() || branches->empty()) continue;
      TypeSet either = 0;
      for (const Json& one : *branches) either |= types_of(one, depth + 1);
      types = both(types, either);
    }
    const auto nullable = schema.find("nullable");
    if (nullable != schema.end() && *nullable == true && types != kAnyType) types |= kNullType;
    document_.types[&schema] = types;
    return types;
  }

  static TypeSet own_types(const Json& schema) {
    const TypeSet types = types_named(schema);
    TypeSet constants = kAnyType;
    if (const auto list = schema.find("enum"); list != schema.end() && list->is_array()) {
      constants = 0;
      for (const Json& one : *list) constants |= type_of(one);
    }
    if (const auto one = schema.find("const"); one != schema.end()) constants = type_of(*one);
    const TypeSet found = both(types, constants);
    // An integer may be spelt as 2.0 where a constant is.
    const bool is_integer = (types & (kAnyType | kIntegerType)) == kIntegerType;
    return is_integer && (constants & kNumberType) != 0 ? found | kNumberType : found;
  }

  // Adds the properties of the whole; those that come twice are of both types.
  void add_properties(const Json& schema, int depth, ToolTypes::Parameters& found) {
    if (!schema.is_object() || depth > kMaxDepth || ++visits_ > kMaxVisits) return;
    const auto add = [&found](const std::string& key, TypeSet types) {
      const auto [known, is_new] = found.emplace(key, types);
      if (!is_new) known->second = both(known->second, types);
    };
    document_.for_each_conjunct(schema,
                                [&](const Json& one) { add_properties(one, depth + 1, found); });
    if (document_.is_reference_alone(schema)) return;
    const auto properties = schema.find("properties");
    if (properties != schema.end() && properties->is_object()) {
      for (const auto& [key, property] : properties->items()) add(key, types_of(property, 0));
    }
    const auto patterns = schema.find("patternProperties");
    if (patterns != schema.end() && patterns->is_object()) {
      has_others_ = true;
      visits_ += patterns->size();
      for (const auto& [pattern, property] : patterns->items()) {
        types_of(property, 0);
        if (patterns_.size() < kMostPatterns) patterns_.insert(pattern);
      }
    }
    const auto additional = schema.find("additionalProperties");
    if (additional != schema.end() && additional->is_object()) {
      has_others_ = true;
      types_of(*additional, 0);
    }
    for (const char* const key : {"anyOf", "oneOf"}) {
      const auto branches = schema.find(key);
      if (branches == schema.end() || !branches->is_array()) continue;
      ToolTypes::Parameters either;
      for (const Json& one : *branches) {
        ToolTypes::Parameters of_branch;
        add_properties(one, depth + 1, of_branch);
        for (const auto& [name, types] : of_branch) either[name] |= types;
      }
      for (const auto& [name, types] : either) add(name, types);
    }
  }

  FunctionSchema& document_;
  std::size_t visits_ = 0;
  std::set<std::string> patterns_;
  bool has_others_ = false;
};

// The types of a parameter that no `properties` name.
class OtherTypes {
 public:
  explicit OtherTypes(const FunctionSchema& document) : document_(document) {}

  // The types of a parameter; nothing: none are known.
  std::optional<TypeSet> of(const Json& schema, const std::string& name, int depth) {
    if (!schema.is_object() || depth > kMaxDepth || ++visits_ > kMaxVisits) return std::nullopt;
    std::optional<TypeSet> found;
    const auto add = [&found](TypeSet types) { found = found ? both(*found, types) : types; };
    document_.for_each_conjunct(schema, [&](const Json& one) {
      if (const auto types = of(one, name, depth + 1)) add(*types);
    });
    if (document_.is_reference_alone(schema)) return found;
    bool is_listed = false;
    const auto patterns = schema.find("patternProperties");
    if (patterns != schema.end() && patterns->is_object()) {
      visits_ += patterns->size();
      for (const auto& [pattern, property] : patterns->items()) {
        if (!document_.matches(pattern, name)) continue;
        is_listed = true;
        add(known(property));
      }
    }
    const auto additional = schema.find("additionalProperties");
    if (!is_listed && additional != schema.end() && additional->is_object()) {
      add(known(*additional));
    }
    for (const char* const key : {"anyOf", "oneOf"}) {
      const auto branches = schema.find(key);
      if (branches == schema.end() || !branches->is_array()) continue;
      TypeSet either = 0;
      for (const Json& one : *branches) either |= of(one, name, depth + 1).value_or(0);
      if (either != 0) add(either);
    }
    return found;
  }

 private:
  static constexpr int kMaxDepth = 200;
  static constexpr std::size_t kMaxVisits = 1'000;

  TypeSet known(const Json& schema) const {
    const auto found = document_.types.find(&schema);
    return found == document_.types.end() ? kAnyType : found->second;
  }

  const FunctionSchema& document_;
  std::size_t visits_ = 0;
};

// Compares values with schemas. Where the bounds of work end, a value is taken.
class ValueCheck {
 public:
  explicit ValueCheck(const FunctionSchema& document) : document_(document) {}

  // True if an object may have a member.
  bool member(const Json& schema, const std::string& name, const Json& value, int depth) {
    return holds(schema, depth, [&](const Json& one, int at) {
      return one.is_boolean() || own_member(one, name, value, at);
    });
  }

 private:
  static constexpr int kMaxDepth = 200;
  static constexpr std::size_t kMaxVisits = 10'000;

  bool takes(const Json& schema, const Json& value, int depth) {
    return holds(schema, depth, [&](const Json& one, int at) {
      return one.is_boolean() ? one.get<bool>() : own(one, value, at);
    });
  }

  // True if `self` takes the schema without those that it combines, and these hold as well.
  template <typename Self>
  bool holds(const Json& schema, int depth, const Self& self) {
    if (depth > kMaxDepth || ++visits_ > kMaxVisits) return true;
    if (schema.is_boolean()) return self(schema, depth);
    if (!schema.is_object()) return true;
    bool all = true;
    document_.for_each_conjunct(schema,
                                [&](const Json& one) { all = all && holds(one, depth + 1, self); });
    if (!all || document_.is_reference_alone(schema)) return all;
    for (const char* const key : {"anyOf", "oneOf"}) {
      const auto branches = schema.find(key);
      if (branches == schema.end() || !branches->is_array() || branches->empty()) continue;
      if (std::ranges::none_of(*branches,
                               [&](const Json& one) { return holds(one, depth + 1, self); })) {
        return false;
      }
    }
    return self(schema, depth);
  }

  bool own_member(const Json& schema, const std::string& name, const Json& value, int depth) {
    const auto properties = schema.find("properties");
    if (properties != schema.end() && properties->is_object()) {
      const auto property = properties->find(name);
      if (property != properties->end()) return takes(*property, value, depth + 1);
    }
    const auto additional = schema.find("additionalProperties");
    return schema.contains("patternProperties") || additional == schema.end() ||
           !additional->is_object() || takes(*additional, value, depth + 1);
  }

  bool own(const Json& schema, const Json& value, int depth) {
    const auto nullable = schema.find("nullable");
    if (value.is_null() && nullable != schema.end() && *nullable == true) return true;
    const TypeSet types = types_named(schema);
    if (types != 0 && (types & (kAnyType | type_of(value))) == 0) {
      const bool is_whole = value.is_number() && value == std::trunc(value.get<double>());
      if (!is_whole || (types & kIntegerType) == 0) return false;
    }
    const auto constant = schema.find("const");
    if (constant != schema.end() && *constant != value) return false;
    const auto list = schema.find("enum");
    if (list != schema.end() && list->is_array()) {
      visits_ += list->size();
      if (std::ranges::find(*list, value) == list->end()) return false;
    }
    if (value.is_number()) return is_in_bounds(schema, value.get<long double>());
    if (value.is_array()) {
      const auto items = schema.find("items");
      return items == schema.end() || std::ranges::all_of(value, [&](const Json& item) {
               return takes(*items, item, depth + 1);
             });
    }
    return !value.is_object() || has_members(schema, value, depth);
  }

  bool has_members(const Json& schema, const Json& value, int depth) {
    visits_ += value.size();
    const auto required = schema.find("required");
    if (required != schema.end() && required->is_array()) {
      for (const Json& name : *required) {
        if (name.is_string() && !value.contains(name.get_ref<const std::string&>())) return false;
      }
    }
    const auto properties = schema.find("properties");
    const auto additional = schema.find("additionalProperties");
    const bool is_closed =
        additional != schema.end() && *additional == false && !schema.contains("patternProperties");
    for (const auto& [name, part] : value.items()) {
      if (!own_member(schema, name, part, depth)) return false;
      if (is_closed && (properties == schema.end() || !properties->contains(name))) return false;
    }
    return true;
  }

  // A keyword of a bound is a number, or says whether another one belongs to its range.
  static bool is_in_bounds(const Json& schema, long double value) {
    const auto number = [&schema](const char* keyword) -> std::optional<long double> {
      const auto found = schema.find(keyword);
      if (found == schema.end() || !found->is_number()) return std::nullopt;
      return found->get<long double>();
    };
    const auto is_true = [&schema](const char* keyword) {
      const auto found = schema.find(keyword);
      return found != schema.end() && *found == true;
    };
    const auto least = number("minimum"), most = number("maximum");
    if (least && (value < *least || (value == *least && is_true("exclusiveMinimum")))) return false;
    if (most && (value > *most || (value == *most && is_true("exclusiveMaximum")))) return false;
    const auto above = number("exclusiveMinimum"), below = number("exclusiveMaximum");
    return (!above || value > *above) && (!below || value < *below);
  }

  const FunctionSchema& document_;
  std::size_t visits_ = 0;
};

// True if a value of a parameter may be a text or something else.
bool is_ambiguous(TypeSet types) {
  return (types & (kTextType | kAnyType)) != 0 && types != kTextType;
}

}  // namespace

template <typename Tools>
void ToolTypes::read(const Tools& tools) {
  if (!tools.is_array()) return;
  PatternBounds bounds;
  for (const Tools& tool : tools) {
    if (!tool.is_object()) continue;
    const auto nested = tool.find("function");
    const Tools& function = nested != tool.end() && nested->is_object() ? *nested : tool;
    const auto name = function.find("name");
    if (name == function.end() || !name->is_string()) continue;
    Function& made = functions_[name->template get_ref<const std::string&>()];
    const auto parameters = function.find("parameters");
    if (parameters == function.end()) continue;
    const auto schema = std::make_shared<FunctionSchema>(Json(*parameters));
    SchemaTypes types(*schema);
    made = {types.parameters(), nullptr};
    const bool is_any_ambiguous = std::ranges::any_of(
        made.parameters, [](const auto& parameter) { return is_ambiguous(parameter.second); });
    if (!types.has_others() && !is_any_ambiguous) continue;
    for (const std::string& pattern : types.patterns()) schema->add_pattern(pattern, bounds);
    made.schema = schema;
  }
}

ToolTypes::ToolTypes(const nlohmann::json& tools) { read(tools); }
ToolTypes::ToolTypes(const nlohmann::ordered_json& tools) { read(tools); }

const ToolTypes::Parameters* ToolTypes::find(std::string_view function) const {
  const auto found = functions_.find(function);
  return found == functions_.end() ? nullptr : &found->second.parameters;
}

TypeSet ToolTypes::types(std::string_view function, const std::string& parameter) const {
  const auto found = functions_.find(function);
  if (found == functions_.end()) return 0;
  const auto declared = found->second.parameters.find(parameter);
  if (declared != found->second.parameters.end()) return declared->second;
  if (found->second.schema == nullptr) return 0;
  const FunctionSchema& schema = *found->second.schema;
  return OtherTypes(schema).of(schema.root(), parameter, 0).value_or(0);
}

bool ToolTypes::takes(std::string_view function, const std::string& parameter,
                      const nlohmann::json& value) const {
  const auto found = functions_.find(function);
  if (found == functions_.end() || found->second.schema == nullptr) return true;
  const FunctionSchema& schema = *found->second.schema;
  return ValueCheck(schema).member(schema.root(), parameter, value, 0);
}

}  // namespace lintel
