// SPDX-License-Identifier: Apache-2.0
// What the campaign's clients ask for, and what an undisturbed server answers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/lib/client.h"

namespace lintel::testing {

// A token as a client sees it.
struct SeenToken {
  std::int64_t position = 0;
  std::int32_t token = 0;
  v1::ValueSource source{};
  std::string log2_probs;  // of the token and of the likeliest ones: their bits
};

// One call as its caller sees it.
struct SeenCall {
  std::vector<SeenToken> tokens;
  std::vector<v1::SampleFinish> finishes;
};

struct ScriptedCall {
  v1::GenerateRequest request;  // all but the session
  SeenCall expected;
};

// Calls of one session, one after another.
struct Script {
  std::string model;
  std::int64_t window = 0;
  std::vector<ScriptedCall> calls;
  std::vector<SeenToken> history;  // after them all; without log-probabilities
};

// Calls, and adds what comes as it does; `repeat` as of Client::generate.
void call(const Client& client, const v1::GenerateRequest& request, const Client::Repeat& repeat,
          SeenCall& seen);
std::vector<SeenToken> read_history(const Client& client, const std::string& session,
                                    std::int64_t from);

// A function of the seed: windows, prompts and none, given tokens, stops, penalties, echoes,
// log-probabilities, messages of one token. The expected answers are the server's, which has to
// stay up; it needs the tiny models "tokens" and "bytes".
Script make_script(const Client& undisturbed, std::uint64_t seed);

// The difference, in words for people; empty: none. `same_past`: the digests of what was before the
// calls are equal, too.
std::string difference(const SeenCall& expected, const SeenCall& seen, bool same_past);
std::string difference(const std::vector<SeenToken>& expected, const std::vector<SeenToken>& seen);

}  // namespace lintel::testing
