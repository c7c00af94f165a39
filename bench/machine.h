// The machine and the program that measured: without them a number says nothing.
#pragma once

#include <cstdint>
#include <string>

namespace lintel::bench {

struct Machine {
  std::string cpu;             // model name
  int cores = 0;               // processors this process may run on
  std::string instructions;    // what the matrix products run on, e.g. "f32 highway (AVX3), ..."
  std::uint64_t l3_bytes = 0;  // 0: not known
  std::uint64_t memory_bytes = 0;
  std::string pages;  // "4 KiB pages, huge pages (2 MiB) on madvise"
  std::string compiler;
  std::string build;  // "Release"; assertions and lower optimisation are said

  bool operator==(const Machine&) const = default;
};

Machine this_machine();

// "AMD EPYC (family 26, model 2), 2 cores, ..."
std::string to_string(const Machine& machine);

std::string date_and_time();  // UTC, "2026-11-21 11:38"

}  // namespace lintel::bench
