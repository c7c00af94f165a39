// SPDX-License-Identifier: Apache-2.0
// llama.cpp beside us: its prebuilt libraries of the npm package @node-llama-cpp/linux-x64.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace lintel::bench {

// Tokens a second.
struct LongContextSpeed {
  double prompt = 0;
  double decode = 0;  // after the prompt
};

// A GGUF loaded by llama.cpp in a process of its own, which computes on request and else waits. One
// thread at a time.
class LlamaPeer {
 public:
  // Throws cli::Failure, with how to install them, where root/node_modules has not the libraries of
  // the version that is expected.
  static void require(const std::filesystem::path& root);
  // root: holds node_modules/@node-llama-cpp/linux-x64. Throws cli::Failure, with what llama.cpp
  // logged last, where the libraries are missing, of another version, or do not load the file.
  // REQUIRES: this process has no other thread, for it is forked.
  LlamaPeer(const std::filesystem::path& root, const std::filesystem::path& gguf);
  ~LlamaPeer();
  LlamaPeer(const LlamaPeer&) = delete;
  LlamaPeer& operator=(const LlamaPeer&) = delete;

  // Tokens a second in steps of a token of each of `sequences`, for about half a second, after two
  // steps that do not count. Throws cli::Failure where the process failed.
  double decode(int sequences, int threads);
  // The same of a prompt of one sequence, with an output for its last token.
  double read_prompt(int tokens, int threads);
  // Both with one sequence: of a prompt of so many tokens, then of steps of a token after it.
  LongContextSpeed read_and_continue(int tokens, int threads);

  double load_seconds() const { return load_seconds_; }
  std::int64_t resident_bytes() const { return resident_bytes_; }  // after loading

 private:
  struct Request;
  struct Answer;
  void stop();
  Answer ask(const Request& request);
  Answer receive();

  int socket_ = -1;
  int process_ = -1;
  double load_seconds_ = 0;
  std::int64_t resident_bytes_ = 0;
};

}  // namespace lintel::bench
