"use strict";
(() => {
  const { layouts, traces } = JSON.parse(document.getElementById("plots").textContent);
  const config = { displayModeBar: false, responsive: true };
  const drawn = new Set();

  const ink = () => getComputedStyle(document.documentElement).getPropertyValue("--soft").trim();

  function draw(plot) {
    if (drawn.has(plot)) return;
    drawn.add(plot);
    const own = structuredClone(layouts[plot.dataset.layout]);
    own.font.color = ink();
    Plotly.newPlot(plot, traces[plot.dataset.plot], own, config);
  }

  // a page of a hundred plots opens at once when only those near the window are drawn
  const observer = new IntersectionObserver(
    (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target)),
    { rootMargin: "600px" },
  );
  document.querySelectorAll(".plot").forEach((plot) => observer.observe(plot));
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("[data-condition]:not([hidden]) .plot").forEach(draw);
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    drawn.forEach((plot) => Plotly.relayout(plot, { "font.color": ink() }));
  });

  document.querySelectorAll(".conditions").forEach((control) => {
    const show = () => {
      const chosen = control.querySelector("input:checked").value;
      control.closest("section").querySelectorAll("[data-condition]").forEach((block) => {
        block.hidden = block.dataset.condition !== chosen;
      });
    };
    control.addEventListener("change", show);
    show(); // a browser may remember the choice of the last visit
  });

  document.querySelectorAll("select[data-labels]").forEach((select) => {
    const show = () => {
      select.closest("section").querySelectorAll("table.labels tbody").forEach((body) => {
        body.hidden = body.dataset.encoder !== select.value;
      });
    };
    select.addEventListener("change", show);
    show();
  });

  const sign = { ascending: 1, descending: -1 };

  function compare(first, second, direction) {
    if (first === "" || second === "") return (first === "") - (second === ""); // undefined last, either way
    const difference = Number(first) - Number(second);
    return sign[direction] * (Number.isNaN(difference) ? first.localeCompare(second) : difference);
  }

  document.querySelectorAll("table.sortable").forEach((table) => {
    const headers = [...table.tHead.rows[0].cells];
    headers.forEach((header, column) => {
      header.querySelector("button").addEventListener("click", () => {
        const { first } = header.dataset;
        const other = first === "ascending" ? "descending" : "ascending";
        const direction = header.getAttribute("aria-sort") === first ? other : first;
        headers.forEach((one) => one.setAttribute("aria-sort", one === header ? direction : "none"));
        for (const body of table.tBodies) {
          const rows = [...body.rows].filter((row) => !row.classList.contains("group"));
          const key = (row) => row.cells[column].dataset.sort;
          rows.sort((a, b) => compare(key(a), key(b), direction)).forEach((row) => body.append(row));
        }
      });
    });
  });
})();
