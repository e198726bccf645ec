for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, column) => {
    const text = row.cells[column].dataset.value;
    const number = Number(text);
    return text !== "" && !Number.isNaN(number) ? number : text === "inf" ? Infinity : text;
  };
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((one, other) => {
        const [a, b] = [value(one, column), value(other, column)];
        const order = typeof a === "number" && typeof b === "number" ? (a > b) - (a < b) : String(a).localeCompare(String(b));
        return up ? order : -order;
      });
      table.tBodies[0].append(...rows);
    });
  });
}
