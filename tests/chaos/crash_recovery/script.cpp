// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/crash_recovery/script.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

namespace lintel::testing {
namespace {

void append_bits(std::string& bits, float value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  bits.append(bytes, sizeof bytes);
}

void append(std::vector<SeenToken>& tokens, const v1::Chunk& chunk) {
  for (int i = 0; i < chunk.tokens_size(); ++i) {
    SeenToken token{chunk.first_position() + i, chunk.tokens(i), chunk.source(), ""};
    if (i < chunk.log2_probs_size()) append_bits(token.log2_probs, chunk.log2_probs(i));
    if (i < chunk.top_size()) {
      for (const float likely : chunk.top(i).log2_probs()) append_bits(token.log2_probs, likely);
    }
    tokens.push_back(std::move(token));
  }
}

std::string text_of(const SeenToken& token) {
  return "position " + std::to_string(token.position) + ": " + std::to_string(token.token) + " (" +
         v1::ValueSource_Name(token.source) + ")";
}

// The fields of a finish that do not depend on its time or on how often the call was started.
std::string account_of(v1::SampleFinish finish, bool with_digest) {
  if (!with_digest) finish.clear_digest();
  finish.clear_timings();
  finish.clear_replayed_tokens();
  finish.clear_reused_tokens();
  finish.clear_drafted_tokens();
  finish.clear_accepted_tokens();
  finish.clear_cached_tokens();
  return finish.ShortDebugString();
}

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}
  std::int64_t from_to(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool one_in(int n) { return from_to(1, n) == 1; }
  std::uint64_t seed() { return random_(); }

 private:
  std::mt19937_64 random_;
};

// `position`: where the session stands.
v1::GenerateRequest make_call(Dice& dice, bool is_text, bool is_first, std::int64_t position) {
  const auto token = [&] { return static_cast<std::int32_t>(dice.from_to(1, 49)); };
  v1::GenerateRequest request;
  std::vector<std::int32_t> prompt;
  if (is_first || dice.one_in(2)) {
    for (auto size = dice.from_to(1, 20); size > 0; --size) prompt.push_back(token());
    *request.mutable_prompt() = token_values(prompt);
  }
  const auto count = dice.from_to(4, 40);
  request.set_max_new_tokens(static_cast<std::uint32_t>(count));
  request.mutable_sampling()->set_seed(dice.seed());
  if (dice.one_in(3)) request.mutable_sampling()->set_repetition_penalty(1.3f);
  if (dice.one_in(4)) request.mutable_sampling()->set_temperature(0.5f);
  const auto first_new = position + static_cast<std::int64_t>(prompt.size());
  if (dice.one_in(2)) {
    v1::GivenSpan& span = *request.add_given();
    span.set_position(first_new + dice.from_to(1, 5));
    std::vector<std::int32_t> given;
    for (auto size = dice.from_to(1, 6); size > 0; --size) given.push_back(token());
    *span.mutable_values() = token_values(given);
  }
  if (dice.one_in(3)) {
    request.mutable_stop()->add_token_ids(token());
    request.mutable_stop()->set_include_in_output(dice.one_in(2));
  }
  // Two letters of 256 twice in a row are not what a random model says: given ones may be.
  if (is_text && dice.one_in(2)) {
    request.mutable_stop()->add_strings("ab");
    v1::GivenSpan& span = *request.add_given();
    span.set_position(first_new + 12);
    *span.mutable_values() = text_values(dice.one_in(2) ? "ab" : "aab");
  }
  request.set_log2_probs(!dice.one_in(3));
  if (request.log2_probs() && dice.one_in(3)) request.set_top_log2_probs(2);
  request.set_echo_prompt(dice.one_in(3));
  if (dice.one_in(2)) request.set_max_tokens_per_message(1);
  return request;
}

}  // namespace

void call(const Client& client, const v1::GenerateRequest& request, const Client::Repeat& repeat,
          SeenCall& seen) {
  // The server holds fewer sessions than there are, and on a slow disk the one that is to make room
  // may be on its way out still: then a call that has not started is refused with a retry time. A
  // server that never made room would be noticed.
  const auto patience =
      std::chrono::steady_clock::now() + repeat.patience.value_or(std::chrono::milliseconds(0));
  for (;;) {
    try {
      client.generate(
          request, [&seen](const v1::Chunk& chunk) { append(seen.tokens, chunk); },
          [&seen](const v1::SampleFinish& finish) { seen.finishes.push_back(finish); }, repeat);
      return;
    } catch (const CallError& error) {
      const bool has_no_room =
          error.code() == grpc::StatusCode::RESOURCE_EXHAUSTED && error.retry_delay().has_value();
      if (!has_no_room || !seen.tokens.empty()) throw;
      if (std::chrono::steady_clock::now() >= patience) throw;
      std::this_thread::sleep_for(*error.retry_delay());
    }
  }
}

std::vector<SeenToken> read_history(const Client& client, const std::string& session,
                                    std::int64_t from) {
  std::vector<SeenToken> tokens;
  v1::ReadHistoryRequest request;
  request.set_id(session);
  request.set_from_position(from);
  client.read_history(request, [&tokens](const v1::Chunk& chunk) { append(tokens, chunk); });
  return tokens;
}

Script make_script(const Client& undisturbed, std::uint64_t seed) {
  Dice dice(seed);
  Script script;
  const bool is_text = dice.one_in(2);
  script.model = is_text ? "bytes" : "tokens";
  if (dice.one_in(3)) script.window = 2 * dice.from_to(4, 40);
  v1::CreateSessionRequest create;
  create.set_model(script.model);
  create.set_window(script.window);
  const std::string session = undisturbed.create_session(create).id();
  std::int64_t position = 0;
  const auto count = dice.from_to(2, 4);
  for (std::int64_t i = 0; i < count; ++i) {
    ScriptedCall next;
    next.request = make_call(dice, is_text, i == 0, position);
    v1::GenerateRequest request = next.request;
    request.set_session_id(session);
    call(undisturbed, request, {.patience = std::chrono::milliseconds(0)}, next.expected);
    position = next.expected.finishes.at(0).position();
    script.calls.push_back(std::move(next));
  }
  script.history = read_history(undisturbed, session, 0);
  undisturbed.delete_session(session);
  return script;
}

std::string difference(const std::vector<SeenToken>& expected, const std::vector<SeenToken>& seen) {
  const std::size_t both = std::min(expected.size(), seen.size());
  for (std::size_t i = 0; i < both; ++i) {
    if (expected[i].position != seen[i].position || expected[i].token != seen[i].token ||
        expected[i].source != seen[i].source) {
      return "token " + std::to_string(i) + " is " + text_of(seen[i]) + ", not " +
             text_of(expected[i]);
    }
    if (expected[i].log2_probs != seen[i].log2_probs) {
      return text_of(seen[i]) + " has other log-probabilities";
    }
  }
  if (expected.size() == seen.size()) return "";
  return std::to_string(seen.size()) + " tokens, not " + std::to_string(expected.size());
}

std::string difference(const SeenCall& expected, const SeenCall& seen, bool same_past) {
  std::string text = difference(expected.tokens, seen.tokens);
  if (!text.empty()) return text;
  if (seen.finishes.size() != 1) return std::to_string(seen.finishes.size()) + " finishes";
  const std::string wanted = account_of(expected.finishes[0], same_past);
  const std::string got = account_of(seen.finishes[0], same_past);
  return wanted == got ? "" : "it ended as " + got + ", not as " + wanted;
}

}  // namespace lintel::testing
