#include "scheduler_sim/report/html/assets.hpp"

namespace loratory::sim::report {

const char* const kPageScript = R"js(
const tip = document.getElementById("tip");
document.addEventListener("pointermove", (event) => {
  const area = event.target.closest("[data-tip]");
  tip.hidden = !area;
  if (!area) return;
  tip.textContent = area.dataset.tip;
  const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 6);
  const top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 6);
  tip.style.left = Math.max(6, left) + "px";
  tip.style.top = Math.max(6, top) + "px";
});
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th");
    const ascending = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const value = (row) => Number(row.children[head.cellIndex].dataset.value);
    const body = head.closest("table").tBodies[0];
    const rows = [...body.rows].sort((a, b) => value(a) - value(b));
    body.append(...(ascending ? rows : rows.reverse()));
  });
}
)js";

}  // namespace loratory::sim::report
