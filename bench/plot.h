// Plots as PNG, drawn by gnuplot.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace lintel::bench {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x, y; both > 0
};

// One pair of logarithmic axes.
struct Plot {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<Series> series;  // those without points are left out
};

// The script that draws the plots side by side into `file`.
std::string gnuplot_script(const std::vector<Plot>& plots, const std::string& file);

// Throws cli::Failure where draw() could not start gnuplot.
void require_gnuplot();

// Runs gnuplot. Throws cli::Failure when there is none or it fails.
void draw(const std::vector<Plot>& plots, const std::string& file);

}  // namespace lintel::bench
