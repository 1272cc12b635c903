#include "scheduler_sim/report/html/markup.hpp"

#include <fmt/format.h>

#include "scheduler_sim/report/html/assets.hpp"
#include "scheduler_sim/report/html/svg.hpp"

namespace loratory::sim::report {
namespace {

// Nothing at all may be fetched: the browser enforces what the page promises.
constexpr std::string_view kPolicy =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

}  // namespace

std::string page_head(std::string_view title) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n<title>{}</title>\n"
      "<style>{}</style>\n</head>\n",
      kPolicy, html_text(title), kPageStyle);
}

std::string markup(const DataTable& table) {
  std::string html = "<div class=\"scroll\"><table><thead><tr>";
  for (const std::string& cell : table.head)
    html += "<th scope=\"col\">" + html_text(cell) + "</th>";
  html += "</tr></thead><tbody>\n";
  for (const auto& row : table.rows) {
    html += "<tr>";
    for (const std::string& cell : row) html += "<td>" + html_text(cell) + "</td>";
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>";
}

std::string markup(const Figure& figure) {
  std::string html = fmt::format(
      "<figure id=\"{0}\"{1}>\n<figcaption><h3>{2}</h3><p>{3}</p></figcaption>\n", figure.id,
      figure.wide ? " class=\"wide\"" : "", html_text(figure.title), html_text(figure.subtitle));
  html += fmt::format(
      "<div class=\"drawing\"><svg viewBox=\"0 0 {1} {2}\" role=\"img\" "
      "aria-labelledby=\"{0}-title {0}-desc\">\n"
      "<title id=\"{0}-title\">{3}</title><desc id=\"{0}-desc\">{4}</desc>\n{5}</svg></div>\n",
      figure.id, coordinate(figure.width), coordinate(figure.height), html_text(figure.title),
      html_text(figure.description), figure.drawing);
  html += figure.legend;
  return html + "<details><summary>Table</summary>" + markup(figure.table) +
         "</details>\n</figure>\n";
}

}  // namespace loratory::sim::report
