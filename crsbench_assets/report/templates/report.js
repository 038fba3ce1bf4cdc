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

  function download(url, name) {
    const link = document.createElement("a");
    link.href = url;
    link.download = name;
    link.click();
  }

  // what is saved stands alone: on white, with its legend
  async function png(plot) {
    const { width, height } = plot.getBoundingClientRect();
    const layout = structuredClone(layouts[plot.dataset.layout]);
    const has_legend = layout.meta.has_legend;
    Object.assign(layout, {
      paper_bgcolor: "#ffffff", plot_bgcolor: "#ffffff", showlegend: has_legend, autosize: false,
      legend: { orientation: "h", yanchor: "bottom", y: 1.02, x: 0 },
      title: { text: escaped(plot.getAttribute("aria-label")), font: { size: 12 }, x: 0.02, xanchor: "left" },
    });
    layout.font.color = "#1c2127";
    layout.margin.t = has_legend ? 90 : 40;
    const wide = Math.max(width, 640);
    return Plotly.toImage(
      { data: traces[plot.dataset.plot], layout }, { format: "png", width: wide, height: height + layout.margin.t, scale: 2 },
    );
  }

  // Plotly reads a few tags in titles
  const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

  function csv(plot) {
    const rows = [layouts[plot.dataset.layout].meta.columns];
    for (const { x, y, z, customdata, meta } of traces[plot.dataset.plot]) {
      (customdata ?? []).forEach((told, i) => rows.push([x[i], y[i], ...told]));
      if (meta?.row) rows.push(meta.row);
      (z ?? []).forEach((line, i) => line.forEach((value, j) => value === null || rows.push([x[j], y[i], value])));
    }
    const field = (value) => (/[",\n]/.test(value ?? "") ? `"${value.replaceAll('"', '""')}"` : (value ?? ""));
    return rows.map((row) => row.map(field).join(",")).join("\n") + "\n";
  }

  document.querySelectorAll("[data-save]").forEach((button) => {
    button.addEventListener("click", async () => {
      const plot = button.closest(".save").previousElementSibling.querySelector(".plot");
      const name = plot.dataset.plot.replaceAll("/", "-");
      if (button.dataset.save === "png") return download(await png(plot), `${name}.png`);
      const url = URL.createObjectURL(new Blob([csv(plot)], { type: "text/csv" }));
      download(url, `${name}.csv`);
      URL.revokeObjectURL(url);
    });
  });

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

  // what a cell is sorted by: unrounded, empty where it is undefined
  const key = (cell) => cell.dataset.sort ?? cell.querySelector("data")?.value ?? cell.textContent.replace(/^–$/, "");

  document.querySelectorAll("[data-choose]").forEach((form) => {
    const rows = [...document.getElementById(form.dataset.choose).tBodies[0].rows];
    const show = () => {
      for (const row of rows) {
        row.hidden = [...form.querySelectorAll("[data-column]")].some((input) => {
          const value = key(row.cells[input.dataset.column]);
          // an undefined error is above every tolerance but the largest
          return input.type === "number" ? input.value < 1 && !(value !== "" && +value <= input.value) : value !== input.value;
        });
      }
      form.querySelector("output").value = `${rows.filter((row) => !row.hidden).length} encoders`;
    };
    form.addEventListener("input", show);
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
          rows.sort((a, b) => compare(key(a.cells[column]), key(b.cells[column]), direction)).forEach((row) => body.append(row));
        }
      });
    });
  });
})();
