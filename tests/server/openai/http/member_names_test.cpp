// SPDX-License-Identifier: Apache-2.0
// Errors of fields, in every API over HTTP: a client finds the name in its own request.
#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/fields/request_fields.h"
#include "server/ollama/request.h"
#include "tests/server/openai/http/response_server.h"
#include "tests/server/support/service_fixture.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

struct NamingApi {
  std::string path;
  ojson valid;
  // The member for kRequestFields[i]; empty: the API has none.
  std::function<std::string(const RequestField& field)> member;
  const char* max_tokens;
};

FieldName RequestField::*column_of(std::string_view path) {
  if (path == "/v1/completions") return &RequestField::completions;
  if (path == "/v1/responses") return &RequestField::responses;
  return path == "/v1/chat/completions" ? &RequestField::chat : &RequestField::kserve;
}

std::vector<NamingApi> apis_with_names() {
  const ojson messages = ojson::array({{{"role", "user"}, {"content", "Hi"}}});
  const auto by_table = [](std::string path, ojson valid, const char* max_tokens) {
    FieldName RequestField::*const column = column_of(path);
    return NamingApi{
        std::move(path), std::move(valid),
        [column](const RequestField& field) { return std::string((field.*column).text); },
        max_tokens};
  };
  return {
      by_table("/v1/completions", {{"model", "m"}, {"prompt", "a"}, {"max_tokens", 4}},
               "max_tokens"),
      by_table("/v1/chat/completions",
               {{"model", "m"}, {"messages", messages}, {"max_completion_tokens", 4}},
               "max_completion_tokens"),
      by_table("/v1/responses",
               {{"model", "m"},
                {"input", "a"},
                {"max_output_tokens", 4},
                {"include", ojson::array({"message.output_text.logprobs"})}},
               "max_output_tokens"),
      by_table("/v2/models/m/generate", {{"text_input", "a"}, {"max_new_tokens", 4}},
               "max_new_tokens"),
      {"/v1/messages",
       {{"model", "m"}, {"max_tokens", 4}, {"messages", messages}},
       [](const RequestField& field) {
         if (field.name == "stop.strings") return std::string("stop_sequences");
         return field.chat.is_read_by_table() ? std::string(field.chat.text) : std::string();
       },
       "max_tokens"},
      {"/api/chat",
       {{"model", "m"},
        {"stream", false},
        {"messages", messages},
        {"options", {{"num_predict", 4}}}},
       [](const RequestField& field) {
         const std::string name =
             field.chat.text.empty() ? "" : ollama_member(field.name, OllamaRoute::kChat);
         // -2 is the least of these.
         return name.starts_with("options.") && name != "options.num_predict" ? name
                                                                              : std::string();
       },
       "options.num_predict"},
  };
}

ojson with_member(const ojson& body, const std::string& member, const ojson& value) {
  ojson changed = body;
  const std::size_t dot = member.find('.');
  if (dot == std::string::npos) {
    changed[member] = value;
  } else {
    changed[member.substr(0, dot)][member.substr(dot + 1)] = value;
  }
  return changed;
}

// The member that an error names, without an index.
std::string member_named_in(const HttpReply& reply) {
  ojson error = ojson::parse(reply.body)["error"];
  std::string text = error.is_string() ? error : error["message"];
  constexpr std::string_view kParameters = "parameters[";
  if (text.starts_with(kParameters)) {
    text.erase(0, kParameters.size());
    return text.substr(0, text.find(']'));
  }
  return text.substr(0, text.find_first_of(":["));
}

// A value of another type than the field's.
ojson of_wrong_type(const RequestField& field) {
  const bool is_text = field.type == FieldType::kText || field.type == FieldType::kTexts ||
                       field.type == FieldType::kTokens || field.type == FieldType::kBiases ||
                       field.type == FieldType::kSpans || field.type == FieldType::kValues;
  return is_text ? ojson(3) : ojson("x");
}

// A value that has the field's type, and is beyond its limits; nothing: there is none.
std::optional<ojson> beyond_limits(const RequestField& field) {
  const std::vector<std::pair<std::string_view, ojson>> values = {
      {"sampling.temperature", -1},
      {"sampling.top_p", 0},
      {"sampling.min_p", 2},
      {"sampling.repetition_penalty", 0},
      {"sampling.presence_penalty", 2000},
      {"sampling.frequency_penalty", 2000},
      {"sampling.penalty_window", 70'000},
      {"sampling.logit_bias", ojson{{"99999999", 1}}},
      {"stop.strings", ojson::array({std::string(300, 'a')})},
      {"stop.token_ids", ojson::array({99'999'999})},
      {"stop.min_tokens", 1'000'000},
      {"num_samples", 1'000'000},
      {"top_log2_probs", 1'000'000},
      {"particles", 1'000'000},
      {"window", 3}};
  for (const auto& [name, value] : values) {
    if (field.name == name) return value;
  }
  return std::nullopt;
}

TEST_CASE("an error of a field names the member that was sent, in each API") {
  const ResponseServer server;
  for (const NamingApi& api : apis_with_names()) {
    CAPTURE(api.path);
    const auto named = [&](const std::string& member, const ojson& value) {
      const HttpReply reply =
          post(server.port(), api.path, with_member(api.valid, member, value).dump());
      INFO(value.dump() << " " << reply.body);
      CHECK(reply.status >= 400);
      return reply.status < 400 ? "" : member_named_in(reply);
    };
    REQUIRE(post(server.port(), api.path, api.valid.dump()).status == 200);
    for (const RequestField& field : kRequestFields) {
      const std::string member = api.member(field);
      if (member.empty()) continue;
      CAPTURE(member);
      // Of KServe's stop strings, an input, the tensor is named.
      const bool is_tensor = api.path.starts_with("/v2") && field.name == "stop.strings";
      if (!is_tensor) CHECK(named(member, of_wrong_type(field)) == member);
      const std::optional<ojson> value = beyond_limits(field);
      if (value) CHECK(named(member, *value) == member);
    }
    CHECK(named(api.max_tokens, "x") == api.max_tokens);
  }
}

TEST_CASE("a member that is not served is named as it was sent, in each API") {
  const ResponseServer server;
  const std::pair<const char*, std::vector<const char*>> kinds[] = {
      {"/v1/completions", {"max_new_tokens", "num_predict"}},
      {"/v1/chat/completions", {"max_new_tokens", "num_predict"}},
      {"/v1/responses", {"max_new_tokens", "num_predict"}},
      {"/v1/messages", {"stop", "max_new_tokens", "max_completion_tokens", "response_format"}}};
  for (const NamingApi& api : apis_with_names()) {
    for (const auto& [path, members] : kinds) {
      if (api.path != path) continue;
      for (const char* const member : members) {
        CAPTURE(path, member);
        const HttpReply reply =
            post(server.port(), path, with_member(api.valid, member, {{"a", 1}}).dump());
        CHECK(reply.status == 400);
        CHECK(member_named_in(reply) == member);
      }
    }
  }
}

TEST_CASE("an error of a field with two names in an API has the one that was sent") {
  const ResponseServer server;
  const auto named = [&](const char* path, const ojson& body) {
    const HttpReply reply = post(server.port(), path, body.dump());
    INFO(reply.body);
    CHECK(reply.status >= 400);
    return member_named_in(reply);
  };
  for (const char* const name : {"max_tokens", "max_completion_tokens"}) {
    const ojson messages = ojson::array({{{"role", "user"}, {"content", "Hi"}}});
    CHECK(named("/v1/chat/completions",
                {{"model", "m"}, {"messages", messages}, {name, 100'000'000}}) == name);
  }
  for (const char* const name : {"max_tokens", "max_new_tokens"}) {
    CHECK(named("/v2/models/m/generate", {{"text_input", "a"}, {name, 100'000'000}}) == name);
  }
  CHECK(named("/v1/completions", {{"prompt", "a"}, {"max_tokens", 4}, {"best_of", 1'000'000}}) ==
        "best_of");
  CHECK(named("/v1/completions", {{"prompt", "a"}, {"max_tokens", 4}, {"n", 1'000'000}}) == "n");
}

}  // namespace
}  // namespace lintel::testing
