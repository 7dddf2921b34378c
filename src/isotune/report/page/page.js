"use strict";
(() => {
  const PAPER_WIDTH = 660; // pixels between the margins of A4 and Letter
  const NARROW = 480; // pixels: a narrower place has no room for panels beside each other
  const PANEL = 230, GAP = 95, AROUND = 90; // pixels: of panels under each other
  const root = document.documentElement;
  const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

  // Figures

  const plots = [...document.querySelectorAll(".plot")];
  let isPrinting = false;

  function theme() {
    if (isPrinting) return "light";
    return root.dataset.theme || (systemIsDark.matches ? "dark" : "light");
  }

  function color(name) {
    return getComputedStyle(root).getPropertyValue(`--${theme()}-${name}`).trim();
  }

  function drawing(plot) {
    const id = `${plot.dataset.drawings}-${plot.dataset.choice || 0}`;
    return JSON.parse(document.getElementById(id).textContent);
  }

  // Panels beside each other, with their titles, put under each other.
  function stack(layout) {
    const panels = Object.keys(layout).filter((name) => /^xaxis\d*$/.test(name))
      .map((name) => ({ x: layout[name], y: layout[name.replace("x", "y")] }));
    if (new Set(panels.map(({ x }) => x.domain[0])).size < 2) return;
    panels.sort((a, b) => b.y.domain[1] - a.y.domain[1] || a.x.domain[0] - b.x.domain[0]);
    const total = panels.length * (PANEL + GAP) - GAP;
    panels.forEach(({ x, y }, index) => {
      const top = 1 - index * (PANEL + GAP) / total;
      for (const title of layout.annotations || []) {
        if (title.xref === "paper" && title.x === x.domain[0] && title.y === y.domain[1] && !title.isMoved) {
          Object.assign(title, { x: 0, y: top, isMoved: true });
        }
      }
      x.domain = [0, 1];
      y.domain = [Math.max(0, top - PANEL / total), top];
    });
    for (const title of layout.annotations || []) delete title.isMoved;
    const bar = layout.coloraxis && layout.coloraxis.colorbar;
    if (bar) Object.assign(bar, { lenmode: "pixels", len: PANEL, y: 1, yanchor: "top" });
    layout.height = total + AROUND;
  }

  // The figure in the page's colours and at the width of its place.
  function dressed(plot) {
    const { data, layout } = drawing(plot);
    const ink = color("ink");
    layout.font = { ...layout.font, color: ink };
    layout.autosize = !isPrinting;
    layout.width = isPrinting ? PAPER_WIDTH : undefined;
    layout.dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom"; // a finger scrolls the page
    layout.hoverlabel = { bgcolor: color("card"), bordercolor: color("line"), font: { color: ink } };
    for (const name of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(name)) layout[name] = { ...layout[name], linecolor: color("line"), gridcolor: color("grid") };
    }
    if (!isPrinting && isNarrow(plot)) stack(layout);
    return { data, layout };
  }

  function isNarrow(plot) {
    return plot.clientWidth < NARROW;
  }

  function draw(plot) {
    const { data, layout } = dressed(plot);
    const options = { responsive: !isPrinting, displayModeBar: false, displaylogo: false, scrollZoom: false };
    plot.dataset.state = "drawing";
    plot.dataset.narrow = isNarrow(plot);
    plot.style.height = `${layout.height || plot.clientHeight}px`;
    return Plotly.react(plot, data, layout, options).then(
      () => { plot.dataset.state = "drawn"; },
      (error) => { plot.dataset.state = "failed"; console.error(plot.dataset.name, error); }
    );
  }

  const inView = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      inView.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "300px" });
  for (const plot of plots) inView.observe(plot);

  function isFolded(plot) {
    return plot.closest("details:not([open])") !== null;
  }

  // A folded figure may have no width to be drawn at: it is drawn when it is unfolded.
  function drawAgain(plot) {
    if (!isFolded(plot)) draw(plot);
    else {
      delete plot.dataset.state;
      inView.observe(plot);
    }
  }

  function redraw() {
    for (const plot of plots) if (plot.dataset.state) drawAgain(plot);
  }

  // A phone that is turned has room for panels beside each other.
  addEventListener("resize", () => {
    for (const plot of plots) {
      if (plot.dataset.state === "drawn" && plot.dataset.narrow !== String(isNarrow(plot))) drawAgain(plot);
    }
  });

  // Paper has room for all figures, and is white.
  addEventListener("beforeprint", () => {
    isPrinting = true;
    for (const details of document.querySelectorAll("details:not([open])")) {
      details.dataset.folded = "";
      details.open = true;
    }
    for (const plot of plots) {
      inView.unobserve(plot);
      draw(plot);
    }
  });
  addEventListener("afterprint", () => {
    isPrinting = false;
    for (const details of document.querySelectorAll("details[data-folded]")) {
      delete details.dataset.folded;
      details.open = false;
    }
    redraw();
  });

  for (const figure of document.querySelectorAll("figure")) {
    const plot = figure.querySelector(".plot");
    figure.addEventListener("change", (event) => {
      if (event.target.type !== "radio") return;
      plot.dataset.choice = event.target.value;
      for (const caption of figure.querySelectorAll(".caption")) {
        caption.hidden = caption.dataset.figure !== event.target.value;
        if (!caption.hidden) plot.setAttribute("aria-label", `${figure.querySelector("h4").textContent}. ${caption.textContent}`);
      }
      draw(plot);
    });
    for (const button of figure.querySelectorAll("[data-save]")) {
      button.addEventListener("click", () => {
        const { data, layout } = dressed(plot);
        const paper = { ...layout, paper_bgcolor: color("card"), plot_bgcolor: color("card") };
        const size = { width: plot.clientWidth, height: plot.clientHeight };
        Plotly.downloadImage({ data, layout: paper }, { format: button.dataset.save, filename: plot.dataset.name, ...size });
      });
    }
  }

  // Light and dark

  const themeButton = document.getElementById("theme");
  themeButton.hidden = false;

  // The button says what a click on it does.
  function nameButton() {
    themeButton.textContent = theme() === "dark" ? "Light colours" : "Dark colours";
  }
  nameButton();

  function retheme() {
    nameButton();
    redraw();
  }

  themeButton.addEventListener("click", () => {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("isotune-theme", root.dataset.theme);
    } catch (error) {
      // no storage: the choice lasts as long as the page
    }
    retheme();
  });
  systemIsDark.addEventListener("change", retheme);

  // Lines to paste

  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      getSelection().selectAllChildren(code);
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch (error) {
        button.textContent = "Selected"; // no permission: the reader's own keys copy it
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }

  // The table of runs

  const table = document.getElementById("run-table");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const filters = document.getElementById("run-filters");
  const words = document.getElementById("run-words");
  const counter = document.getElementById("run-count");
  const texts = rows.map((row) => [...row.cells].map((cell) => cell.textContent.toLowerCase()).join(" "));

  function filter() {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const lists = [...filters.querySelectorAll("select")].filter((list) => list.value);
    let shown = 0;
    rows.forEach((row, index) => {
      const isShown = wanted.every((word) => texts[index].includes(word))
        && lists.every((list) => row.cells[list.dataset.column].textContent === list.value);
      row.hidden = !isShown;
      shown += isShown;
    });
    const total = Number(counter.dataset.total);
    counter.textContent = shown === total ? `${total.toLocaleString("en")} runs` : `${shown.toLocaleString("en")} of ${total.toLocaleString("en")} runs`;
  }

  // Numbers by size, words by the alphabet; what has no number comes last either way.
  function compare(a, b, column, sign) {
    const [one, other] = [a.cells[column], b.cells[column]];
    if (one.dataset.value === undefined) return sign * one.textContent.localeCompare(other.textContent, "en");
    if (one.dataset.value === "" || other.dataset.value === "") return (one.dataset.value === "") - (other.dataset.value === "");
    return sign * (Number(one.dataset.value) - Number(other.dataset.value));
  }

  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const isAscending = heading.getAttribute("aria-sort") !== "ascending";
      for (const other of headings) other.setAttribute("aria-sort", "none");
      heading.setAttribute("aria-sort", isAscending ? "ascending" : "descending");
      body.append(...[...body.rows].sort((a, b) => compare(a, b, column, isAscending ? 1 : -1)));
    });
  });
  filters.addEventListener("input", filter);
  filters.addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("run-clear").addEventListener("click", () => {
    filters.reset();
    filter();
  });
})();
