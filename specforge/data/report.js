"use strict";
// A header's button sorts its table's rows; pressed again it turns the order round. What has no value goes last.
document.querySelectorAll("table.sortable thead button").forEach((button) => {
  button.addEventListener("click", () => {
    const header = button.closest("th");
    const body = header.closest("table").tBodies[0];
    const column = Number(header.dataset.column);
    const first = header.classList.contains("number") ? "descending" : "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    const order = header.getAttribute("aria-sort") === first ? other : first;
    const sign = order === "ascending" ? 1 : -1;
    const value = (row) => row.cells[column].dataset.value;
    const compare = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
      const numbers = [Number(x), Number(y)];
      if (numbers.every((n) => !Number.isNaN(n))) return sign * (numbers[0] - numbers[1]);
      return sign * x.localeCompare(y, undefined, { numeric: true });
    };
    header.parentElement.querySelectorAll("th[aria-sort]").forEach((th) => th.setAttribute("aria-sort", "none"));
    header.setAttribute("aria-sort", order);
    body.append(...[...body.rows].sort(compare));
  });
});
