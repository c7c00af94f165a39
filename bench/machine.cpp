#include "bench/machine.h"

#include <sched.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <map>

#include "model/ops/dense.h"

namespace lintel::bench {
namespace {

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// "key : value" lines of the first processor.
std::map<std::string, std::string> cpu_facts() {
  std::map<std::string, std::string> facts;
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line) && !line.empty();) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    facts[trimmed(line.substr(0, colon))] = trimmed(line.substr(colon + 1));
  }
  return facts;
}

std::string cpu_name() {
  auto facts = cpu_facts();
  const std::string name = facts["model name"];
  if (name.empty()) return "unknown processor";
  // Virtual machines often hide the model behind a bare brand.
  return name + " (family " + facts["cpu family"] + ", model " + facts["model"] + ")";
}

// From the kernel: what the C library computes from CPUID may be the host's.
std::uint64_t l3_bytes() {
  std::ifstream in("/sys/devices/system/cpu/cpu0/cache/index3/size");
  std::uint64_t kib = 0;
  char unit = 0;
  if (!(in >> kib >> unit) || unit != 'K') return 0;
  return kib << 10;
}

std::string first_line(const char* path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// The mode of transparent huge pages stands in brackets: "always [madvise] never".
std::string page_sizes() {
  std::string text = std::to_string(sysconf(_SC_PAGE_SIZE) >> 10) + " KiB pages";
  const std::string modes = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  const std::size_t open = modes.find('['), close = modes.find(']');
  if (open == std::string::npos || close == std::string::npos) return text;
  const std::string bytes = first_line("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
  text += ", huge pages";
  if (!bytes.empty()) text += " (" + std::to_string(std::stoull(bytes) >> 20) + " MiB)";
  const std::string mode = modes.substr(open + 1, close - open - 1);
  return text + (mode == "madvise" ? " on madvise" : " " + mode);
}

int allowed_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return CPU_COUNT(&set);
}

std::string compiler_name() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

std::string build_name() {
  std::string name = LINTEL_BUILD_TYPE;
#ifndef NDEBUG
  name += ", with assertions";
#endif
  return name;
}

}  // namespace

Machine this_machine() {
  return {.cpu = cpu_name(),
          .cores = allowed_cores(),
          .instructions = dense_kernels_description(),
          .l3_bytes = l3_bytes(),
          .memory_bytes = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                          static_cast<std::uint64_t>(sysconf(_SC_PAGE_SIZE)),
          .pages = page_sizes(),
          .compiler = compiler_name(),
          .build = build_name()};
}

std::string to_string(const Machine& machine) {
  const auto in = [](std::uint64_t bytes, int shift) {
    return std::to_string(std::lround(static_cast<double>(bytes) / std::pow(2.0, shift)));
  };
  std::string text = machine.cpu + ", " + std::to_string(machine.cores) +
                     (machine.cores == 1 ? " core" : " cores") + ", " + machine.instructions;
  if (machine.l3_bytes > 0) text += ", " + in(machine.l3_bytes, 20) + " MiB L3";
  text += ", " + in(machine.memory_bytes, 30) + " GiB memory, " + machine.pages + ", " +
          machine.compiler + ", " + machine.build;
  return text;
}

std::string date_and_time() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M", &utc);
  return text;
}

}  // namespace lintel::bench
