// SPDX-License-Identifier: Apache-2.0
// Requests as a fuzzer makes them: of a message's own fields with odd values, and of damaged bytes.
#pragma once

#include <google/protobuf/message.h>

#include <random>
#include <string>
#include <vector>

namespace lintel::testing {

class RandomMessages {
 public:
  // words: what strings are often made of, besides odd ones: names that the server knows.
  RandomMessages(std::uint64_t seed, std::vector<std::string> words)
      : random_(seed), words_(std::move(words)) {}

  // Sets some of the message's fields, its messages' fields too.
  void fill(google::protobuf::Message& message, int depth = 0);
  // Changes a few fields of a message, anywhere in it.
  void change(google::protobuf::Message& message);
  // Cuts, flips, inserts, repeats; makes lengths huge and types of fields wrong.
  std::string damage(std::string bytes);

  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  bool once_in(std::uint64_t times) { return below(times) == 0; }
  template <typename T>
  const T& one_of(const std::vector<T>& all) {
    return all[below(all.size())];
  }
  // Sets the words that strings may hold from now on.
  void set_words(std::vector<std::string> words) { words_ = std::move(words); }

 private:
  std::string text(bool utf8);
  std::int64_t whole_number();
  double number();
  void set(google::protobuf::Message& message, const google::protobuf::FieldDescriptor* field,
           int depth);

  std::mt19937_64 random_;
  std::vector<std::string> words_;
};

}  // namespace lintel::testing
