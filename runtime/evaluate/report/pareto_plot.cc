#include "runtime/evaluate/report/pareto_plot.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/evaluate/report/plot.h"
#include "runtime/tool/html_page.h"

namespace aludel {
namespace {

constexpr double kWidth = 620, kHeight = 430;
constexpr double kLeft = 60, kRight = 604, kTop = 12, kBottom = 380;
constexpr double kZeroSlot = 44;  // between the frame and the start of a logarithmic axis
constexpr double kRadius = 4.5;
constexpr double kCharacter = 6.4, kLine = 14;  // of a label, roughly

struct Box {
  double x0, y0, x1, y1;
  bool Overlaps(const Box& other) const {
    return x0 < other.x1 && other.x0 < x1 && y0 < other.y1 && other.y0 < y1;
  }
};

class Drawing {
 public:
  explicit Drawing(const ParetoPlot& plot) : plot_(plot) {
    std::vector<double> bytes, values;
    for (const PlotPoint& point : plot.points) {
      bytes.push_back(point.bytes);
      values.insert(values.end(), {point.value, point.ci95.low, point.ci95.high});
    }
    if (plot.reference) {
      values.insert(values.end(),
                    {plot.reference->value, plot.reference->ci95.low, plot.reference->ci95.high});
    }
    x_ = LogAxis(bytes);
    y_ = plot.log_value ? LogAxis(values) : TenthsAxis(values);
    const auto zero = [](double value) { return value <= 0; };
    x_.zero = kLeft + kZeroSlot / 3;
    x_.begin = std::any_of(bytes.begin(), bytes.end(), zero) ? kLeft + kZeroSlot : kLeft;
    x_.end = kRight;
    y_.zero = kBottom - kZeroSlot / 3;
    y_.begin =
        plot.log_value && std::any_of(values.begin(), values.end(), zero) ? kBottom - kZeroSlot : kBottom;
    y_.end = kTop;
  }

  std::string Svg() {
    absl::StrAppendFormat(&svg_, "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"%s\">\n", kWidth,
                          kHeight, EscapeHtml(plot_.title));
    Frame();
    if (plot_.reference) Reference();
    Front();
    Points();
    Labels();
    return svg_ + "</svg>\n";
  }

 private:
  void Line(double x0, double y0, double x1, double y1, const char* style) {
    absl::StrAppendFormat(&svg_, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x0,
                          y0, x1, y1, style);
  }
  void Text(double x, double y, const char* anchor, const char* style, const std::string& text) {
    absl::StrAppendFormat(&svg_, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">%s</text>\n", x,
                          y, anchor, style, EscapeHtml(text));
  }

  void Frame() {
    for (const double tick : x_.ticks) {
      Line(x_.At(tick), kTop, x_.At(tick), kBottom, "grid");
      Text(x_.At(tick), kBottom + 18, "middle", "tick", absl::StrFormat("%g", tick));
    }
    for (const double tick : y_.ticks) {
      Line(kLeft, y_.At(tick), kRight, y_.At(tick), "grid");
      Text(kLeft - 8, y_.At(tick) + 4, "end", "tick", absl::StrFormat("%g", tick));
    }
    if (x_.begin > kLeft) Text(x_.zero, kBottom + 18, "middle", "tick", "0");
    if (y_.begin < kBottom) Text(kLeft - 8, y_.zero + 4, "end", "tick", "0");
    Line(kLeft, kBottom, kRight, kBottom, "axis");
    Line(kLeft, kTop, kLeft, kBottom, "axis");
    Text((kLeft + kRight) / 2, kBottom + 42, "middle", "name", "bytes per prompt token");
    absl::StrAppendFormat(&svg_,
                          "<text transform=\"translate(16 %.1f) rotate(-90)\" text-anchor=\"middle\" "
                          "class=\"name\">%s</text>\n",
                          (kTop + kBottom) / 2, EscapeHtml(plot_.value_name));
  }

  void Reference() {
    const PlotPoint& level = *plot_.reference;
    const double high = y_.At(level.ci95.high), low = y_.At(level.ci95.low);
    absl::StrAppendFormat(&svg_,
                          "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"band\"/>\n",
                          kLeft, high, kRight - kLeft, low - high);
    Line(kLeft, y_.At(level.value), kRight, y_.At(level.value), "level");
    Text(kRight - 4, y_.At(level.value) - 5, "end", "label", level.label);
    const double width = kCharacter * static_cast<double>(level.label.size());
    taken_.push_back({kRight - 4 - width, y_.At(level.value) - 5 - kLine, kRight, y_.At(level.value)});
  }

  // Stairs, because nothing between two formats has been shown.
  void Front() {
    std::string path;
    for (const size_t i : ParetoFront(plot_)) {
      const double x = x_.At(plot_.points[i].bytes), y = y_.At(plot_.points[i].value);
      absl::StrAppend(
          &path, path.empty() ? absl::StrFormat("M%.1f %.1f", x, y) : absl::StrFormat("H%.1fV%.1f", x, y));
    }
    if (!path.empty()) absl::StrAppendFormat(&svg_, "<path d=\"%sH%.1f\" class=\"front\"/>\n", path, kRight);
  }

  void Points() {
    std::vector<std::string> labels;
    for (const PlotPoint& point : plot_.points) labels.push_back(point.label);
    const std::vector<SeriesStyle> styles = StyleSeries(labels);
    for (size_t i = 0; i < plot_.points.size(); ++i) {
      const PlotPoint& point = plot_.points[i];
      const double x = x_.At(point.bytes), y = y_.At(point.value);
      const double low = y_.At(point.ci95.low), high = y_.At(point.ci95.high);
      absl::StrAppendFormat(&svg_, "<g data-of=\"%s\" color=\"%s\">", EscapeHtml(point.label),
                            styles[i].color);
      Line(x, low, x, high, "whisker");
      Line(x - 3, low, x + 3, low, "whisker");
      Line(x - 3, high, x + 3, high, "whisker");
      absl::StrAppendFormat(
          &svg_, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"><title>%s</title></circle></g>\n", x, y, kRadius,
          EscapeHtml(absl::StrFormat("%s: %.1f bytes/token, %s %.4g [%.4g, %.4g]", point.label, point.bytes,
                                     plot_.value_name, point.value, point.ci95.low, point.ci95.high)));
      taken_.push_back({x - kRadius, y - kRadius, x + kRadius, y + kRadius});
    }
  }

  // Beside the point where that is free, else further and further above or below.
  void Labels() {
    const Box frame{kLeft, kTop - 8, kRight + 12, kBottom};
    for (const PlotPoint& point : plot_.points) {
      const double x = x_.At(point.bytes), y = y_.At(point.value);
      const double width = kCharacter * static_cast<double>(point.label.size());
      Box best{x + 8, y - 2 - kLine, x + 8 + width, y - 2};
      bool found = false;
      for (int step = 0; step < 16 && !found; ++step) {
        const int lines = (step + 1) / 2 * (step % 2 == 0 ? 1 : -1);
        const double middle = y - 8 + lines * 8.0;
        for (const double left : {x + 8, x - 8 - width}) {
          const Box box{left, middle - kLine / 2, left + width, middle + kLine / 2};
          const bool inside =
              box.x0 >= frame.x0 && box.x1 <= frame.x1 && box.y0 >= frame.y0 && box.y1 <= frame.y1;
          found = inside && std::none_of(taken_.begin(), taken_.end(),
                                         [&](const Box& other) { return box.Overlaps(other); });
          if (!found) continue;
          best = box;
          break;
        }
      }
      taken_.push_back(best);
      Text(best.x0, best.y1 - 3, "start", "label", point.label);
    }
  }

  const ParetoPlot& plot_;
  PlotAxis x_, y_;
  std::vector<Box> taken_;  // by points and labels
  std::string svg_;
};

}  // namespace

std::vector<size_t> ParetoFront(const ParetoPlot& plot) {
  std::vector<size_t> order(plot.points.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto gain = [&plot](size_t i) {
    return plot.higher_is_better ? plot.points[i].value : -plot.points[i].value;
  };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (plot.points[a].bytes != plot.points[b].bytes) return plot.points[a].bytes < plot.points[b].bytes;
    return gain(a) > gain(b);
  });
  std::vector<size_t> front;
  for (const size_t i : order) {
    if (front.empty() || gain(i) > gain(front.back())) front.push_back(i);
  }
  return front;
}

std::string ParetoSvg(const ParetoPlot& plot) { return Drawing(plot).Svg(); }

}  // namespace aludel
