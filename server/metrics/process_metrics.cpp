#include "server/metrics/process_metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace lintel {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

void add(std::vector<MetricFamily>& out, MetricType type, const char* name, const char* help,
         double value) {
  prometheus::ClientMetric metric;
  (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  out.push_back({name, help, type, {metric}});
}

// When the machine was started, in seconds of Unix time; 0 where it cannot be read.
double boot_time() {
  std::ifstream in("/proc/stat");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("btime ")) return std::stod(line.substr(6));
  }
  return 0;
}

// Fields of /proc/self/stat, numbered from 1 as in proc(5).
std::vector<std::string> stat_fields() {
  std::ifstream in("/proc/self/stat");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const std::size_t name_end = text.rfind(')');  // the name may have spaces and brackets
  if (name_end == std::string::npos) return {};
  std::vector<std::string> fields = {"", "", ""};  // 0: none; pid, name
  std::istringstream rest(text.substr(name_end + 1));
  for (std::string field; rest >> field;) fields.push_back(field);
  return fields;
}

// -1 where /proc is not there.
std::int64_t open_descriptors() {
  DIR* const directory = ::opendir("/proc/self/fd");
  if (directory == nullptr) return -1;
  std::int64_t count = -1;  // the directory itself
  while (const dirent* entry = ::readdir(directory)) count += entry->d_name[0] != '.';
  ::closedir(directory);
  return count;
}

}  // namespace

std::vector<MetricFamily> collect_process_metrics() {
  std::vector<MetricFamily> out;
  const auto tick = static_cast<double>(::sysconf(_SC_CLK_TCK));
  if (const std::vector<std::string> stat = stat_fields(); stat.size() > 24) {
    add(out, MetricType::Counter, "process_cpu_seconds_total", "Processor time, user and system",
        (std::stod(stat[14]) + std::stod(stat[15])) / tick);
    add(out, MetricType::Gauge, "process_virtual_memory_bytes", "Addresses that are mapped",
        std::stod(stat[23]));
    add(out, MetricType::Gauge, "process_resident_memory_bytes", "Memory that is held",
        std::stod(stat[24]) * static_cast<double>(::sysconf(_SC_PAGESIZE)));
    // The machine's start is whole seconds: so is this, and it does not move.
    if (const double boot = boot_time(); boot > 0) {
      add(out, MetricType::Gauge, "process_start_time_seconds",
          "When the process was started, as Unix time", boot + std::stod(stat[22]) / tick);
    }
  }
  if (const std::int64_t count = open_descriptors(); count >= 0) {
    add(out, MetricType::Gauge, "process_open_fds", "File descriptors that are open",
        static_cast<double>(count));
  }
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    add(out, MetricType::Gauge, "process_max_fds", "File descriptors there can be",
        static_cast<double>(limit.rlim_cur));
  }
  return out;
}

}  // namespace lintel
