// Resources of the process, by the names that Prometheus' own clients use.
#pragma once

#include <prometheus/metric_family.h>

#include <vector>

namespace lintel {

// process_cpu_seconds_total, process_resident_memory_bytes, process_virtual_memory_bytes,
// process_open_fds, process_max_fds and process_start_time_seconds, read from /proc; what cannot be
// read is left out.
std::vector<prometheus::MetricFamily> collect_process_metrics();

}  // namespace lintel
