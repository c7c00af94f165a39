// SPDX-License-Identifier: Apache-2.0
#include "bench/conversations.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <utility>

#include "client/cli/console.h"
#include "client/cli/flags.h"
#include "model/core/errors.h"

namespace lintel::bench {
namespace {

using RecordedJson = nlohmann::ordered_json;

// Streams of draws that belong to no conversation, whose own are 0, 1, 2, ...
constexpr std::int64_t kArrivalStream = -1;
constexpr std::int64_t kSharedStream = -2;

constexpr double kMostMedians = 16;
constexpr std::size_t kBytesPerToken = 4;

// The words of drawn texts: common ones of English, most of which are one token.
constexpr std::array<std::string_view, 256> kWords = {
    "the",      "be",      "to",      "of",     "and",     "in",     "that",     "have",   "it",
    "for",      "not",     "on",      "with",   "he",      "as",     "you",      "do",     "at",
    "this",     "but",     "his",     "by",     "from",    "they",   "we",       "say",    "her",
    "she",      "or",      "an",      "will",   "my",      "one",    "all",      "would",  "there",
    "their",    "what",    "so",      "up",     "out",     "if",     "about",    "who",    "get",
    "which",    "go",      "me",      "when",   "make",    "can",    "like",     "time",   "no",
    "just",     "him",     "know",    "take",   "people",  "into",   "year",     "your",   "good",
    "some",     "could",   "them",    "see",    "other",   "than",   "then",     "now",    "look",
    "only",     "come",    "its",     "over",   "think",   "also",   "back",     "after",  "use",
    "two",      "how",     "our",     "work",   "first",   "well",   "way",      "even",   "new",
    "want",     "because", "any",     "these",  "give",    "day",    "most",     "us",     "great",
    "between",  "need",    "large",   "often",  "hand",    "high",   "place",    "hold",   "turn",
    "where",    "much",    "before",  "move",   "right",   "old",    "too",      "same",   "tell",
    "does",     "set",     "three",   "air",    "play",    "small",  "end",      "put",    "home",
    "read",     "port",    "spell",   "add",    "land",    "here",   "must",     "big",    "such",
    "follow",   "act",     "why",     "ask",    "men",     "change", "went",     "light",  "kind",
    "off",      "house",   "picture", "try",    "again",   "animal", "point",    "mother", "world",
    "near",     "build",   "self",    "earth",  "father",  "head",   "stand",    "own",    "page",
    "should",   "country", "found",   "answer", "school",  "grow",   "study",    "still",  "learn",
    "plant",    "cover",   "food",    "sun",    "four",    "state",  "keep",     "eye",    "never",
    "last",     "let",     "thought", "city",   "tree",    "cross",  "farm",     "hard",   "start",
    "might",    "story",   "saw",     "far",    "sea",     "draw",   "left",     "late",   "run",
    "while",    "press",   "close",   "night",  "real",    "life",   "few",      "north",  "book",
    "carry",    "took",    "science", "eat",    "room",    "friend", "began",    "idea",   "fish",
    "mountain", "stop",    "once",    "base",   "hear",    "horse",  "cut",      "sure",   "watch",
    "color",    "face",    "wood",    "main",   "open",    "seem",   "together", "next",   "white",
    "children", "begin",   "got",     "walk",   "example", "ease",   "paper",    "group",  "always",
    "music",    "those",   "both",    "mark",   "letter",  "until",  "mile",     "river",  "car",
    "feet",     "care",    "second",  "enough"};

std::string drawn_words(DrawStream& draws, std::int64_t count) {
  std::string text;
  for (std::int64_t i = 0; i < count; ++i) {
    if (i > 0) text += ' ';
    text += kWords[static_cast<std::size_t>(draws.below(kWords.size()))];
  }
  return text;
}

[[noreturn]] void refuse_conversation(const std::string& where, const std::string& why) {
  throw cli::Failure("--conversations " + where + ": " + why);
}

const RecordedJson* member_of(const RecordedJson& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string text_member(const RecordedJson& object, const char* name, const std::string& where) {
  const RecordedJson* const found = member_of(object, name);
  if (found == nullptr) return {};
  if (!found->is_string()) refuse_conversation(where, std::string(name) + " is no text");
  return found->get<std::string>();
}

std::optional<std::int64_t> length_member(const RecordedJson& object, const char* name,
                                          const std::string& where) {
  const RecordedJson* const found = member_of(object, name);
  if (found == nullptr) return std::nullopt;
  const bool is_length = found->is_number_integer() && *found >= 1 && *found <= Lengths::kMost;
  if (!is_length) {
    refuse_conversation(where, std::string(name) + " is " + found->dump() + ", expected " +
                                   whole_number_text(1, Lengths::kMost));
  }
  return found->get<std::int64_t>();
}

void add_turns(const RecordedJson& turns, const std::string& where, RecordedConversation& to) {
  for (const RecordedJson& turn : turns) {
    if (!turn.is_object()) refuse_conversation(where, "a turn is no object");
    RecordedConversation::Turn added{.text = text_member(turn, "user", where)};
    const auto words = length_member(turn, "user_words", where);
    if (added.text.empty() != words.has_value()) {
      refuse_conversation(where, "a turn has either user, a text, or user_words");
    }
    added.words = words.value_or(0);
    added.answer_tokens = length_member(turn, "answer_tokens", where);
    to.turns.push_back(std::move(added));
  }
}

// Adds messages of either form. Texts of one speaker in a row are joined.
void add_messages(const RecordedJson& messages, const char* speaker, const char* content,
                  const std::string& where, RecordedConversation& to) {
  bool after_answer = true;
  for (const RecordedJson& message : messages) {
    if (!message.is_object()) refuse_conversation(where, "a message is no object");
    const std::string who = text_member(message, speaker, where);
    const std::string text = text_member(message, content, where);
    if (text.empty()) continue;
    if (who == "system") {
      to.system += (to.system.empty() ? "" : "\n\n") + text;
    } else if (who == "user" || who == "human") {
      if (after_answer) {
        to.turns.push_back({.text = text});
      } else {
        to.turns.back().text += "\n\n" + text;
      }
      after_answer = false;
    } else if (!to.turns.empty()) {  // an answer
      std::optional<std::int64_t>& tokens = to.turns.back().answer_tokens;
      const auto more =
          static_cast<std::int64_t>((text.size() + kBytesPerToken - 1) / kBytesPerToken);
      tokens = std::min(tokens.value_or(0) + more, Lengths::kMost);
      after_answer = true;
    }
  }
}

RecordedConversation conversation_of(const RecordedJson& given, const std::string& where) {
  if (!given.is_object()) refuse_conversation(where, "expected an object");
  RecordedConversation conversation{.system = text_member(given, "system", where)};
  const auto list = [&](const char* name) -> const RecordedJson* {
    const RecordedJson* const found = member_of(given, name);
    if (found != nullptr && !found->is_array()) {
      refuse_conversation(where, std::string(name) + " is no array");
    }
    return found;
  };
  if (const RecordedJson* const turns = list("turns")) {
    add_turns(*turns, where, conversation);
  } else if (const RecordedJson* const messages = list("messages")) {
    add_messages(*messages, "role", "content", where, conversation);
  } else if (const RecordedJson* const said = list("conversations")) {
    add_messages(*said, "from", "value", where, conversation);
  } else {
    refuse_conversation(where, "expected turns, messages or conversations");
  }
  return conversation;
}

RecordedJson parsed_conversation(std::string_view text, const std::string& where) {
  try {
    return RecordedJson::parse(text);
  } catch (const nlohmann::json::exception& error) {
    refuse_conversation(where, std::string("no JSON: ") + error.what());
  }
}

}  // namespace

double DrawStream::exponential(double mean) { return -mean * std::log(uniform()); }

double DrawStream::normal() {
  const double radius = std::sqrt(-2 * std::log(uniform()));
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

std::int64_t DrawStream::below(std::int64_t count) {
  return std::min(static_cast<std::int64_t>(uniform() * static_cast<double>(count)), count - 1);
}

std::vector<double> poisson_arrivals(double rate, double seconds, std::uint64_t seed) {
  DrawStream draws(seed, kArrivalStream);
  std::vector<double> times;
  for (double time = draws.exponential(1 / rate); time < seconds;
       time += draws.exponential(1 / rate)) {
    times.push_back(time);
  }
  return times;
}

Lengths Lengths::parse(std::string_view flag, std::string_view text) {
  const auto refuse_lengths = [&](const std::string& why) { cli::refuse_flag(flag, text, why); };
  const auto length = [&](std::string_view number) {
    const std::int64_t parsed = cli::parse_int64(flag, number);
    if (parsed < 1 || parsed > kMost) {
      refuse_lengths("expected lengths from 1 to " + std::to_string(kMost));
    }
    return parsed;
  };
  constexpr std::string_view kLogNormal = "lognormal:";
  Lengths lengths;
  lengths.text_ = text;
  if (text.starts_with(kLogNormal)) {
    const std::string_view numbers = text.substr(kLogNormal.size());
    const std::size_t comma = numbers.find(',');
    if (comma == std::string_view::npos) refuse_lengths("expected lognormal:MEDIAN,SIGMA");
    lengths.median_ = static_cast<double>(length(numbers.substr(0, comma)));
    lengths.sigma_ = cli::parse_double(flag, numbers.substr(comma + 1));
    if (lengths.sigma_ < 0 || lengths.sigma_ > 4) refuse_lengths("expected a SIGMA from 0 to 4");
    return lengths;
  }
  const std::size_t dash = text.find('-', 1);
  lengths.least_ = length(text.substr(0, dash));
  lengths.most_ = dash == std::string_view::npos ? lengths.least_ : length(text.substr(dash + 1));
  if (lengths.most_ < lengths.least_) refuse_lengths("the range runs backwards");
  return lengths;
}

std::int64_t Lengths::draw(DrawStream& draws) const {
  if (median_ == 0) return least_ + draws.below(most_ - least_ + 1);
  const double drawn = median_ * std::exp(sigma_ * draws.normal());
  const double most = std::min(kMostMedians * median_, static_cast<double>(kMost));
  return std::llround(std::clamp(drawn, 1.0, most));
}

std::vector<RecordedConversation> read_conversations(std::string_view text,
                                                     const std::string& file) {
  std::vector<RecordedConversation> conversations;
  const auto add = [&](const RecordedJson& given, const std::string& where) {
    RecordedConversation conversation = conversation_of(given, where);
    if (!conversation.turns.empty()) conversations.push_back(std::move(conversation));
  };
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && text[first] == '[') {
    const RecordedJson all = parsed_conversation(text, file);
    std::size_t entry = 0;
    for (const RecordedJson& given : all) add(given, file + ", entry " + std::to_string(++entry));
  } else {
    for (std::size_t line = 1; !text.empty(); ++line) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      const std::string_view given = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      if (given.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      const std::string where = file + ", line " + std::to_string(line);
      add(parsed_conversation(given, where), where);
    }
  }
  if (conversations.empty()) refuse_conversation(file, "no conversation has a turn of a user");
  return conversations;
}

ConversationSource::ConversationSource(Options options)
    : options_(std::move(options)), shared_([this] {
        DrawStream draws(options_.seed, kSharedStream);
        return drawn_words(draws, options_.shared_words);
      }()) {}

PlannedConversation ConversationSource::at(std::int64_t index) const {
  DrawStream draws(options_.seed, index);
  PlannedConversation planned;
  const auto add = [&](std::string text, std::int64_t answer_tokens) {
    if (planned.turns.empty() && !shared_.empty()) text = shared_ + "\n\n" + text;
    planned.turns.push_back({std::move(text), answer_tokens});
  };
  if (!options_.recorded.empty()) {
    const auto count = static_cast<std::int64_t>(options_.recorded.size());
    const RecordedConversation& recorded =
        options_.recorded[static_cast<std::size_t>(index % count)];
    planned.system = recorded.system;
    for (const RecordedConversation::Turn& turn : recorded.turns) {
      std::string text = turn.text.empty() ? drawn_words(draws, turn.words) : turn.text;
      add(std::move(text),
          turn.answer_tokens ? *turn.answer_tokens : options_.answer_tokens.draw(draws));
    }
    return planned;
  }
  const std::int64_t turns = options_.turns.draw(draws);
  for (std::int64_t turn = 0; turn < turns; ++turn) {
    const Lengths& words = turn == 0 ? options_.first_words : options_.words;
    const std::int64_t count = words.draw(draws);
    std::string text = drawn_words(draws, count);
    add(std::move(text), options_.answer_tokens.draw(draws));
  }
  return planned;
}

}  // namespace lintel::bench
