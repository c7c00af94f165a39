#include "bench/plot.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "client/cli/console.h"

namespace lintel::bench {
namespace {

std::string quoted(const std::string& text) {
  std::string safe = "'";
  for (const char c : text) safe += c == '\'' ? std::string("''") : std::string(1, c);
  return safe + "'";
}

// Colours that colour-blind readers can tell apart (Okabe and Ito).
constexpr const char* kColors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00"};

// Beyond so many names, they stand beside the axes.
constexpr std::size_t kMostInside = 5;

// Another mark where colours begin again: disc, square, triangle, diamond.
int point_type(std::size_t i) {
  constexpr int kTypes[] = {7, 5, 9, 13};
  return kTypes[i / std::size(kColors) % std::size(kTypes)];
}

void add_plot(std::ostream& out, const Plot& plot, std::size_t index) {
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    out << "$data" << index << "_" << i << " << EOD\n";
    for (const auto& [x, y] : plot.series[i].points) out << x << " " << y << "\n";
    out << "EOD\n";
  }
  out << "set title " << quoted(plot.title) << "\n"
      << "set xlabel " << quoted(plot.x_label) << "\n"
      << "set ylabel " << quoted(plot.y_label) << "\nplot ";
  const char* separator = "";
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    if (plot.series[i].points.empty()) continue;
    out << separator << "$data" << index << "_" << i << " with linespoints lw 2 dt "
        << 1 + i / std::size(kColors) << " pt " << point_type(i) << " ps 0.8 lc rgb '"
        << kColors[i % std::size(kColors)] << "' title " << quoted(plot.series[i].name);
    separator = ", \\\n  ";
  }
  out << "\n";
}

}  // namespace

std::string gnuplot_script(const std::vector<Plot>& plots, const std::string& file) {
  std::size_t most = 0;
  for (const Plot& plot : plots) most = std::max(most, plot.series.size());
  const bool crowded = most > kMostInside;
  std::ostringstream out;
  out.precision(9);
  out << "set terminal pngcairo noenhanced size " << (crowded ? 760 : 620) * plots.size() << ','
      << (crowded ? 520 : 440) << " font 'sans,11'\n"
      << "set output " << quoted(file) << "\n"
      << "set logscale xy\nset format x '10^{%T}'\nset format y '10^{%T}'\n"
      << "set grid lc rgb '#dddddd'\nset border 3\nset tics nomirror\n"
      << "set key " << (crowded ? "outside right center samplen 2" : "top left") << "\n"
      << "set multiplot layout 1," << plots.size() << "\n";
  for (std::size_t i = 0; i < plots.size(); ++i) add_plot(out, plots[i], i);
  out << "unset multiplot\n";
  return out.str();
}

void require_gnuplot() {
  if (std::system("gnuplot --version >/dev/null 2>&1") == 0) return;
  throw cli::Failure("--plot: there is no gnuplot; scripts/setup.sh --bench installs it");
}

void draw(const std::vector<Plot>& plots, const std::string& file) {
  const std::string script = gnuplot_script(plots, file);
  FILE* const pipe = popen("gnuplot -", "w");
  if (pipe == nullptr) throw cli::Failure("--plot " + file + ": gnuplot cannot be started");
  const bool written = std::fwrite(script.data(), 1, script.size(), pipe) == script.size();
  const int status = pclose(pipe);
  if (!written || status != 0) {
    throw cli::Failure("--plot " + file + ": gnuplot failed");
  }
}

}  // namespace lintel::bench
