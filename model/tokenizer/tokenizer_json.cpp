// SPDX-License-Identifier: Apache-2.0
// tokenizer.json, the parts of it that are served: Hugging Face's form of byte-level BPE, BPE with
// byte fallback, and World as WordPiece. All else is refused, since it would mean other tokens.
#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "model/core/errors.h"
#include "model/core/json_reader.h"
#include "model/tokenizer/bpe_tokenizer.h"
#include "model/tokenizer/byte_alphabet.h"
#include "model/tokenizer/json_field.h"
#include "model/tokenizer/limits.h"
#include "model/tokenizer/world.h"

namespace lintel {
namespace {

using nlohmann::json;

// Reads the file event by event. model.vocab and model.merges, nearly all of it, become lists of
// texts; the rest a small tree.
class TokenizerFileReader final : public nlohmann::json_sax<json> {
 public:
  explicit TokenizerFileReader(const std::string& name) : name_(name) {}

  json take_tree() { return std::move(root_); }
  TextList take_texts() { return std::move(texts_); }
  std::vector<std::int32_t> take_ids() { return std::move(ids_); }
  TextList take_merges() { return std::move(merges_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(std::int64_t value) override { return put(value); }
  bool number_float(double value, const std::string&) override { return put(value); }
  bool binary(json::binary_t&) override { return put(nullptr); }
  bool number_unsigned(std::uint64_t value) override {
    if (mode_ != Mode::kVocab) return put(value);
    if (value >= kMostTokens) fail_here(std::to_string(value), kAnId);
    ids_.push_back(static_cast<std::int32_t>(value));
    return true;
  }
  bool string(std::string& value) override {
    if (mode_ == Mode::kMerges) return add_merge(value);
    if (mode_ == Mode::kPair) {
      if (num_in_pair_ == 2 || value.empty()) fail_here(quote(value), kAMerge);
      merges_.add(value);
      ++num_in_pair_;
      return true;
    }
    return put(std::as_const(value));
  }
  bool key(std::string& name) override {
    if (mode_ == Mode::kVocab) {
      if (ids_.size() == kMostTokens) fail_here("more tokens", "at most " + limit(kMostTokens));
      texts_.add(name);
      return true;
    }
    auto& object = open_.back()->get_ref<json::object_t&>();
    const auto [member, is_new] = object.try_emplace(name);
    if (!is_new) throw ModelError(name_ + ": found " + quote(name) + " twice in an object");
    member_ = &member->second;
    path_.resize(open_.size() - 1);
    path_.push_back(name);
    return count();
  }
  bool start_object(std::size_t) override {
    if (is_at("vocab")) {
      mode_ = Mode::kVocab;
      *member_ = "a vocabulary";
      return true;
    }
    return put(json::object()) && open();
  }
  bool start_array(std::size_t) override {
    if (mode_ == Mode::kMerges) {
      check_merges();
      mode_ = Mode::kPair;
      num_in_pair_ = 0;
      return true;
    }
    if (is_at("merges")) {
      mode_ = Mode::kMerges;
      *member_ = "merges";
      return true;
    }
    return put(json::array()) && open();
  }
  bool end_object() override {
    if (mode_ == Mode::kVocab) {
      mode_ = Mode::kTree;
    } else {
      close();
    }
    return true;
  }
  bool end_array() override {
    if (mode_ == Mode::kPair) {
      if (num_in_pair_ != 2) fail_here("a list of other length", kAMerge);
      mode_ = Mode::kMerges;
    } else if (mode_ == Mode::kMerges) {
      mode_ = Mode::kTree;
    } else {
      close();
    }
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception&) override {
    return false;
  }

 private:
  enum class Mode { kTree, kVocab, kMerges, kPair };
  static constexpr const char* kAnId = "an id: an integer from 0 to 1048575";
  static constexpr const char* kAMerge = "a merge: \"LEFT RIGHT\" or [\"LEFT\", \"RIGHT\"]";
  // Besides vocabulary and merges: kMostAddedTokens take so many.
  static constexpr std::size_t kMostValues = 8 * kMostAddedTokens;

  static std::string limit(std::size_t most) { return std::to_string(most); }

  // True if the value model.NAME begins here.
  bool is_at(std::string_view name) const {
    return mode_ == Mode::kTree && open_.size() == 2 && open_.back()->is_object() &&
           path_.size() == 2 && path_[0] == "model" && path_[1] == name;
  }
  [[noreturn]] void fail_here(const std::string& found, const std::string& expected) const {
    std::string place = name_ + ": model.";
    if (mode_ == Mode::kVocab) {
      place += "vocab";
      if (texts_.size() > 0) place += "[" + quote(texts_[texts_.size() - 1]) + "]";
    } else {
      const std::size_t begin = merges_.size() - (mode_ == Mode::kPair ? num_in_pair_ : 0);
      place += "merges[" + std::to_string(begin / 2) + "]";
    }
    throw ModelError(place + ": found " + found + ", expected " + expected);
  }
  void check_merges() const {
    if (merges_.size() / 2 == kMostMerges) {
      fail_here("more merges", "at most " + limit(kMostMerges));
    }
  }
  bool add_merge(const std::string& merge) {
    check_merges();
    const std::size_t space = merge.find(' ');
    const bool is_pair = space != std::string::npos && space > 0 && space + 1 < merge.size() &&
                         merge.find(' ', space + 1) == std::string::npos;
    if (!is_pair) fail_here(quote(merge), kAMerge);
    merges_.add(std::string_view(merge).substr(0, space));
    merges_.add(std::string_view(merge).substr(space + 1));
    return true;
  }
  bool count() {
    if (++num_values_ > kMostValues) {
      throw ModelError(name_ + ": found more than " + limit(kMostValues) +
                       " values outside model.vocab and model.merges, expected fewer");
    }
    return true;
  }
  template <typename Value>
  bool put(const Value& value) {
    if (mode_ == Mode::kVocab) fail_here(json(value).dump(), kAnId);
    if (mode_ != Mode::kTree) fail_here(json(value).dump(), kAMerge);
    count();
    if (open_.empty()) {
      root_ = value;
      last_ = &root_;
    } else if (open_.back()->is_object()) {
      *member_ = value;
      last_ = member_;
      check_type(value);
    } else {
      auto& list = open_.back()->get_ref<json::array_t&>();
      list.push_back(value);
      last_ = &list.back();
    }
    return true;
  }
  // At once: the vocabularies of other models are lists that would fill the tree.
  template <typename Value>
  void check_type(const Value& value) const {
    if (!is_at("type")) return;
    const json type = value;
    if (type == "BPE" || type == "WordPiece") return;
    throw ModelError(name_ + ": model.type: found " +
                     (type.is_string() ? quote(type.get_ref<const std::string&>()) : type.dump()) +
                     ", expected \"BPE\" or \"WordPiece\"");
  }
  bool open() {
    open_.push_back(last_);
    return true;
  }
  void close() {
    open_.pop_back();
    if (path_.size() > open_.size()) path_.resize(open_.size());
  }

  const std::string& name_;
  Mode mode_ = Mode::kTree;
  TextList texts_;
  std::vector<std::int32_t> ids_;
  TextList merges_;
  std::size_t num_in_pair_ = 0;
  json root_;
  std::vector<json*> open_;  // outermost first; none moves while it is open
  json* member_ = nullptr;   // of the innermost object: the value of its last name
  json* last_ = nullptr;
  std::vector<std::string> path_;
  std::size_t num_values_ = 0;
};

// Makes a tokenizer from the tree.
class TokenizerFile {
 public:
  TokenizerFile(const std::string& name, json tree, TextList texts, std::vector<std::int32_t> ids,
                TextList merges)
      : name_(name), tree_(std::move(tree)), root_(tree_, name_) {
    source_.vocab_place = name + ": model.vocab";
    source_.merges_place = name + ": model.merges";
    source_.texts = std::move(texts);
    source_.ids = std::move(ids);
    source_.merges = std::move(merges);
  }

  std::unique_ptr<Tokenizer> make(std::string_view config, const std::string& config_name) {
    root_.only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                "post_processor", "decoder", "model"});
    root_.want("version", "1.0");
    // Settings of the program that wrote the file, which each call of it sets again.
    for (const char* const name : {"truncation", "padding"}) {
      const auto saved = root_.find_value(name);
      if (saved && !saved->is_object()) saved->refuse("null or an object");
    }
    if (const auto added = root_.find_value("added_tokens")) {
      for (const JsonField& token : added->items()) add_token(token);
    }
    if (!config.empty()) complete(config, config_name);
    const JsonField model = root_.at("model");
    if (model.find("type") && model.type() == "WordPiece") return make_wordpiece(model);
    read_model(model);
    if (source_.rules.byte_fallback) {
      read_fallback_rules();
    } else {
      read_byte_level_rules();
    }
    read_post_processor(root_.find_value("post_processor"));
    return make_bpe_tokenizer(std::move(source_));
  }

 private:
  BpeRules& rules() { return source_.rules; }

  void add(AddedToken token, const JsonField& field) {
    if (token.text.empty() || token.text.size() > kMostEntryBytes) {
      field.refuse("from 1 to " + std::to_string(kMostEntryBytes) + " bytes in \"content\"");
    }
    if (source_.added.size() == kMostAddedTokens) {
      field.refuse("at most " + std::to_string(kMostAddedTokens) + " added tokens");
    }
    source_.added.push_back(std::move(token));
    source_.added_places.push_back(field.place());
  }

  void add_token(const JsonField& field) {
    field.only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    for (const char* name : {"single_word", "lstrip", "rstrip"}) field.want_flag(name, false);
    const auto normalized = field.find("normalized");
    add({.text = field.at("content").text(),
         .id = static_cast<std::int32_t>(field.at("id").integer(kMostTokens - 1)),
         .is_special = field.at("special").boolean(),
         .is_normalized = normalized && normalized->boolean()},
        field);
  }

  // Tokens that stand only in added_tokens_decoder of tokenizer_config.json.
  void complete(std::string_view config, const std::string& config_name) {
    const json tree = parse_tokenizer_tree(config, config_name);
    const auto added = JsonField(tree, config_name).find_value("added_tokens_decoder");
    if (!added) return;
    std::map<std::int32_t, std::string> known;
    for (const AddedToken& token : source_.added) known[token.id] = token.text;
    for (const std::string& key : added->names()) {
      const JsonField field = added->at(key);
      std::int32_t id = -1;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size() || id < 0 ||
          static_cast<std::size_t>(id) >= kMostTokens) {
        field.refuse("a name that is an id: an integer from 0 to " +
                     std::to_string(kMostTokens - 1));
      }
      const JsonField content = field.at("content");
      if (const auto found = known.find(id); found != known.end()) {
        if (content.text() != found->second) {
          content.refuse(quote(found->second) + ", as tokenizer.json has it");
        }
        continue;
      }
      field.only({"content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      for (const char* name : {"single_word", "lstrip", "rstrip"}) field.want_flag(name, false);
      const auto special = field.find("special");
      const auto normalized = field.find("normalized");
      add({.text = content.text(),
           .id = id,
           .is_special = special && special->boolean(),
           .is_normalized = normalized && normalized->boolean()},
          field);
    }
  }

  void read_model(const JsonField& model) {
    model.only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
    if (!model.at("vocab").is_string()) model.at("vocab").refuse("an object of ids");
    if (!model.at("merges").is_string()) model.at("merges").refuse("a list");
    model.want_null("dropout");
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (const auto affix = model.find_value(name); affix && !affix->text().empty()) {
        affix->refuse("null or \"\": nothing else is served");
      }
    }
    // Every byte has a token: what is unknown does not occur.
    if (const auto unknown = model.find_value("unk_token")) unknown->text();
    if (const auto fuse = model.find("fuse_unk")) fuse->boolean();
    const auto fallback = model.find("byte_fallback");
    rules().byte_fallback = fallback && fallback->boolean();
    const auto ignore = model.find("ignore_merges");
    rules().ignore_merges = ignore && ignore->boolean();
    if (rules().byte_fallback && rules().ignore_merges) {
      ignore->refuse("false: with byte_fallback nothing else is served");
    }
  }

  // Byte-level.

  // A step of the root. A Sequence of one step is that step, without any it is nothing.
  std::optional<JsonField> find_step(const char* name, const char* list) const {
    std::optional<JsonField> step = root_.find_value(name);
    while (step && step->type() == "Sequence") {
      step->only({"type", list});
      std::vector<JsonField> steps = step->at(list).items();
      if (steps.size() > 1) break;
      step = steps.empty() ? std::nullopt : std::optional(std::move(steps.front()));
    }
    return step;
  }
  std::optional<JsonField> find_normalizer() const {
    return find_step("normalizer", "normalizers");
  }
  std::optional<JsonField> find_splitter() const {
    return find_step("pre_tokenizer", "pretokenizers");
  }
  std::optional<JsonField> find_decoder() const { return find_step("decoder", "decoders"); }
  void read_byte_level_decoder() const {
    const auto decoder = find_decoder();
    if (!decoder || decoder->type() != "ByteLevel") root_.at("decoder").refuse("ByteLevel");
    read_byte_level_flags(*decoder);
  }

  void read_byte_level_rules() {
    if (const auto normalizer = find_normalizer()) {
      if (normalizer->type() != "NFC") normalizer->at("type").refuse("\"NFC\", or no normalizer");
      normalizer->only({"type"});
      rules().nfc = true;
    }
    const auto found = find_splitter();
    if (!found) root_.at("pre_tokenizer").refuse("an object");
    const JsonField& splitter = *found;
    if (splitter.type() == "ByteLevel") {
      if (!read_byte_level(splitter)) {
        splitter.at("use_regex").refuse("true: without a Split nothing else is served");
      }
      rules().split = SplitPattern::kGpt2;
    } else if (splitter.type() == "Sequence") {
      read_split(splitter);
    } else {
      splitter.at("type").refuse("\"ByteLevel\" or \"Sequence\": nothing else is served");
    }
    read_byte_level_decoder();
  }

  // Returns true if the regular expression is used.
  static bool read_byte_level(const JsonField& field) {
    field.want_flag("add_prefix_space", false);
    read_byte_level_flags(field);
    field.at("add_prefix_space");
    const auto regex = field.find("use_regex");
    return !regex || regex->boolean();
  }
  // Flags of a decoder or a post-processor have no effect on tokens.
  static void read_byte_level_flags(const JsonField& field) {
    field.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    for (const char* name : {"add_prefix_space", "trim_offsets", "use_regex"}) {
      if (const auto flag = field.find(name)) flag->boolean();
    }
  }

  void read_split(const JsonField& sequence) {
    sequence.only({"type", "pretokenizers"});
    const JsonField list = sequence.at("pretokenizers");
    const std::vector<JsonField> steps = list.items();
    if (steps.size() != 2 || steps[0].type() != "Split" || steps[1].type() != "ByteLevel") {
      list.refuse("Split and ByteLevel");
    }
    const JsonField& split = steps[0];
    split.only({"type", "pattern", "behavior", "invert"});
    const JsonField pattern = split.at("pattern");
    pattern.only({"Regex"});
    const JsonField regex = pattern.at("Regex");
    const auto known = split_pattern_of(regex.text());
    if (!known) regex.refuse("the pattern of Qwen2, Qwen3.5 or Llama 3: no other is served");
    rules().split = *known;
    split.at("behavior");
    split.want("behavior", "Isolated");
    split.want_flag("invert", false);
    if (read_byte_level(steps[1])) {
      throw ModelError(steps[1].place() + ".use_regex: found true, expected false after a Split");
    }
  }

  // Byte fallback.

  void read_fallback_rules() {
    const auto normalizer = find_normalizer();
    const auto splitter = find_splitter();
    if (normalizer && splitter) {
      splitter->refuse("null: with a normalizer and byte_fallback nothing else is served");
    }
    if (normalizer) {
      read_marks(*normalizer);
    } else if (splitter) {
      read_metaspace(*splitter);
    } else {
      root_.at("pre_tokenizer").refuse("Metaspace, or a normalizer with Prepend and Replace");
    }
    read_fallback_decoder(find_decoder());
  }

  void read_marks(const JsonField& normalizer) {
    if (normalizer.type() != "Sequence") normalizer.at("type").refuse("\"Sequence\"");
    normalizer.only({"type", "normalizers"});
    const JsonField list = normalizer.at("normalizers");
    const std::vector<JsonField> steps = list.items();
    if (steps.size() != 2 || steps[0].type() != "Prepend" || steps[1].type() != "Replace") {
      list.refuse("Prepend and Replace");
    }
    steps[0].only({"type", "prepend"});
    steps[0].at("prepend");
    steps[0].want("prepend", kMark);
    read_replace(steps[1], " ", kMark);
    rules().mark = BpeRules::Mark::kEachPart;
    for (std::size_t i = 0; i < source_.added.size(); ++i) {
      if (!source_.added[i].is_normalized) continue;
      throw ModelError(source_.added_places[i] +
                       ": found \"normalized\" true, expected false with this normalizer");
    }
  }

  static void read_replace(const JsonField& field, std::string_view from, std::string_view to) {
    if (field.type() != "Replace") field.at("type").refuse("\"Replace\"");
    field.only({"type", "pattern", "content"});
    const JsonField pattern = field.at("pattern");
    pattern.only({"String"});
    pattern.at("String");
    pattern.want("String", from);
    field.at("content");
    field.want("content", to);
  }

  void read_metaspace(const JsonField& field) {
    if (field.type() != "Metaspace") {
      field.at("type").refuse("\"Metaspace\": with byte_fallback nothing else is served");
    }
    field.only({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
    field.at("replacement");
    for (const char* name : {"replacement", "str_rep"}) field.want(name, kMark);
    field.at("split");
    field.want_flag("split", false);
    field.want_flag("add_prefix_space", true);
    const auto scheme = field.find("prepend_scheme");
    const std::string which = scheme ? scheme->text() : "always";
    if (which == "always") {
      rules().mark = BpeRules::Mark::kWhereNone;
    } else if (which == "first") {
      rules().mark = BpeRules::Mark::kFirstWhereNone;
    } else if (which == "never") {
      rules().mark = BpeRules::Mark::kNone;
    } else {
      scheme->refuse("\"always\", \"first\" or \"never\"");
    }
  }

  void read_fallback_decoder(const std::optional<JsonField>& decoder) const {
    if (!decoder || decoder->type() != "Sequence") root_.at("decoder").refuse("Sequence");
    const JsonField list = decoder->at("decoders");
    const std::vector<JsonField> steps = list.items();
    const bool fits = steps.size() == 4 && steps[1].type() == "ByteFallback" &&
                      steps[2].type() == "Fuse" && steps[3].type() == "Strip";
    if (!fits) list.refuse("Replace, ByteFallback, Fuse and Strip");
    read_replace(steps[0], kMark, " ");
    steps[1].only({"type"});
    steps[2].only({"type"});
    const JsonField& strip = steps[3];
    strip.only({"type", "content", "start", "stop"});
    strip.at("content");
    strip.want("content", " ");
    if (strip.at("start").integer(1) != 1) strip.at("start").refuse("1");
    strip.at("stop").integer(0);
  }

  // Tokens before and after a text.

  void read_post_processor(const std::optional<JsonField>& field) {
    if (!field) return;
    if (field->type() == "Sequence") {
      field->only({"type", "processors"});
      int templates = 0;
      for (const JsonField& step : field->at("processors").items()) {
        if (step.type() == "TemplateProcessing" && ++templates > 1) {
          step.refuse("one TemplateProcessing");
        }
        if (step.type() == "Sequence") step.refuse("ByteLevel or TemplateProcessing");
        read_post_processor(step);
      }
    } else if (field->type() == "TemplateProcessing") {
      read_template(*field);
    } else if (field->type() == "ByteLevel") {
      read_byte_level_flags(*field);
    } else {
      field->at("type").refuse("\"ByteLevel\", \"TemplateProcessing\" or \"Sequence\"");
    }
  }

  void read_template(const JsonField& field) {
    field.only({"type", "single", "pair", "special_tokens"});
    const JsonField tokens = field.at("special_tokens");
    const JsonField single = field.at("single");
    int texts = 0;
    for (const JsonField& step : single.items()) {
      step.only({"SpecialToken", "Sequence"});
      if (const auto text = step.find("Sequence")) {
        text->at("id");
        text->want("id", "A");
        ++texts;
        continue;
      }
      const JsonField name = step.at("SpecialToken").at("id");
      std::vector<std::int32_t>& ids = texts == 0 ? rules().before : rules().after;
      for (const JsonField& id : tokens.at(name.text()).at("ids").items()) {
        ids.push_back(static_cast<std::int32_t>(id.integer(kMostTokens - 1)));
      }
      if (ids.size() > kMostAround) {
        single.refuse("at most " + std::to_string(kMostAround) + " tokens around a text");
      }
    }
    if (texts != 1) single.refuse("one Sequence");
  }

  // World, as transformers' RWKV-7 has it: each key is the bytes of an entry in the letters of
  // byte-level vocabularies.
  std::unique_ptr<Tokenizer> make_wordpiece(const JsonField& model) {
    if (find_normalizer()) root_.want_null("normalizer");
    root_.want_null("post_processor");
    model.only(
        {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
    if (!model.at("vocab").is_string()) model.at("vocab").refuse("an object of ids");
    model.at("continuing_subword_prefix");
    model.want("continuing_subword_prefix", "");
    constexpr std::size_t kNoLimit = 2147483647;
    if (model.at("max_input_chars_per_word").integer(kNoLimit) != kNoLimit) {
      model.at("max_input_chars_per_word").refuse("2147483647: the whole text is one word");
    }
    const auto splitter = find_splitter();
    if (!splitter || splitter->type() != "ByteLevel") {
      root_.at("pre_tokenizer").refuse("ByteLevel");
    }
    if (read_byte_level(*splitter)) {
      throw ModelError(splitter->place() + ".use_regex: found true, expected false with WordPiece");
    }
    read_byte_level_decoder();
    const std::vector<AddedToken>& added = source_.added;
    if (added.size() != 1 || added[0].id != 0 || !added[0].is_special) {
      root_.at("added_tokens").refuse("one special token, of id 0");
    }
    model.at("unk_token");
    model.want("unk_token", added[0].text);
    return make_world_tokenizer(world_entries(), added, name_);
  }

  std::vector<std::string> world_entries() const {
    std::vector<std::string> entries;
    std::set<std::int32_t> used;
    std::string bytes;
    for (std::size_t i = 0; i < source_.ids.size(); ++i) {
      const auto id = static_cast<std::size_t>(source_.ids[i]);
      const std::string_view key = source_.texts[i];
      const auto fail = [&](const std::string& expected) {
        throw ModelError(source_.vocab_place + "[" + quote(key) + "]: found id " +
                         std::to_string(id) + ", expected " + expected);
      };
      if (!used.insert(source_.ids[i]).second) fail("an id that no other token has");
      if (id >= entries.size()) entries.resize(id + 1);
      const bool is_added = key == source_.added[0].text;
      if (is_added != (id == 0)) fail("id 0 for the added token alone");
      // Ids between private characters are reserved: letters of no byte.
      if (is_added || !read_byte_letters(key, bytes)) continue;
      if (bytes.empty() || bytes.size() > kMostEntryBytes) {
        fail("a token of 1 to " + std::to_string(kMostEntryBytes) + " bytes");
      }
      entries[id] = bytes;
    }
    if (entries.empty()) entries.resize(1);
    check_world_bytes(entries, source_.vocab_place);
    return entries;
  }

  static constexpr std::string_view kMark = "\xE2\x96\x81";  // U+2581
  static constexpr std::size_t kMostAround = 16;

  std::string name_;
  json tree_;
  JsonField root_;
  BpeSource source_;
};

}  // namespace

std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view text, const std::string& name,
                                                std::string_view config,
                                                const std::string& config_name) {
  TokenizerFileReader reader(name);
  JsonFailure failure;
  if (!read_json_events(text, {.max_depth = 32}, reader, failure)) {
    const bool is_json = failure.kind != JsonFailure::Kind::kNotJson;
    throw ModelError(name + ": " + (is_json ? "" : "is not JSON: ") + failure.what);
  }
  json tree = reader.take_tree();
  TokenizerFile file(name, std::move(tree), reader.take_texts(), reader.take_ids(),
                     reader.take_merges());
  return file.make(config, config_name);
}

}  // namespace lintel
