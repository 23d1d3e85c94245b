"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const switches = [...document.querySelectorAll("nav input")];
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  // Above the plot there is room for the toolbar, which would else lie on curves.
  const config = { responsive: true, displaylogo: false };

  const shown = () =>
    new Set(switches.filter((one) => one.checked).map((one) => Number(one.value)));

  // A trace is shown while every run it speaks of is: the mean of an experiment
  // disappears with any of its seeds, because it would no longer be their mean.
  const visibility = (chart, runs) =>
    chart.traces.map((trace) => trace.meta.runs.every((run) => runs.has(run)));

  const colour = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function axis(given) {
    const edge = colour("--edge");
    return {
      automargin: true,
      ...given,
      gridcolor: edge,
      linecolor: edge,
      zerolinecolor: edge,
    };
  }

  function layout(chart) {
    return {
      margin: { l: 56, r: 12, t: 36, b: 44 },
      hoverlabel: { namelength: -1 },
      legend: { orientation: "h", yanchor: "bottom", y: 1, x: 0 },
      showlegend: chart.traces.some((trace) => trace.showlegend),
      barmode: "group",
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--text"), family: "inherit", size: 12 },
      xaxis: axis(chart.layout.xaxis),
      yaxis: axis(chart.layout.yaxis),
    };
  }

  const pause = () => new Promise((resume) => setTimeout(resume));
  let latest = 0;

  // One chart at a time, so that the page answers meanwhile; a newer wish goes first.
  async function draw() {
    latest += 1;
    const own = latest;
    const runs = shown();
    for (const [number, chart] of charts.entries()) {
      const visible = visibility(chart, runs);
      const traces = chart.traces.map((trace, i) => ({ ...trace, visible: visible[i] }));
      await Plotly.react(`chart-${number}`, traces, layout(chart), config);
      await pause();
      if (own !== latest) return;
    }
    const drawn = { runs: [...runs].join(" "), theme: dark.matches ? "dark" : "light" };
    Object.assign(document.documentElement.dataset, drawn);
  }

  function update() {
    const runs = shown();
    for (const element of document.querySelectorAll("[data-run]")) {
      element.hidden = !runs.has(Number(element.dataset.run));
    }
    draw();
  }

  function choose(wanted) {
    for (const one of switches) one.checked = wanted(Number(one.value));
    update();
  }

  for (const one of switches) one.addEventListener("change", update);
  for (const button of document.querySelectorAll("nav [data-only]")) {
    const only = Number(button.dataset.only);
    button.addEventListener("click", () => choose((run) => run === only));
  }
  document.getElementById("all").addEventListener("click", () => choose(() => true));
  dark.addEventListener("change", draw);
  update();
})();
