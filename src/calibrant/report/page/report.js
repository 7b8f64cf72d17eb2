"use strict";
// Picks stored numbers, sorts, filters, switches colours. It computes no statistic: Python did.
(function () {
  const stored = JSON.parse(document.getElementById("points").textContent);
  const plain = (v, digits) => {
    let text = (100 * v).toFixed(digits);
    while (v < 1 && Number(text) >= 100 && digits < 12) text = (100 * v).toFixed(++digits);  // never round up to certainty
    return text;
  };
  const percent = (v, digits = 1) => plain(v, digits) + "%";
  const span = (low, high, digits) => "95% interval " + plain(low, digits) + "\u00a0…\u00a0" + percent(high, digits);
  const sign = (v) => (v < 0 ? "−" : "+") + Math.abs(100 * v).toFixed(2);
  const count = (v) => v.toLocaleString("en-US");

  function operating(box) {
    const p = stored[box.dataset.points];
    const last = p.threshold.length - 1;
    const at = (name) => box.querySelector("." + name);
    const slider = at("slider"), threshold = at("threshold"), goal = at("goal"), sure = at("sure"), answer = at("answer");
    const command = at("command"), copied = at("copied");
    const svg = at("marked") && at("marked").querySelector("svg");
    const move = svg ? marker(svg) : () => {};
    const say = (name, text) => { box.querySelector('[data-out="' + name + '"]').textContent = text; };

    function show(i, keepTyped) {
      const n = p.accepted[i], accuracy = p.correct[i] / n, coverage = n / p.n, gap = p.confidence[i] - accuracy;
      slider.value = i;
      if (!keepTyped) threshold.value = p.threshold[i];
      slider.setAttribute("aria-valuetext", "threshold " + p.threshold[i] + ", accepts " + percent(coverage) + ", of which " + percent(accuracy) + " are right");
      say("coverage", percent(coverage));
      say("coverageInterval", span(p.coverageLow[i], p.coverageHigh[i], 1));
      say("coverageWords", count(n) + " of " + count(p.n) + " items; " + count(p.n - n) + " are handed to a person.");
      say("accuracy", percent(accuracy, 2));
      say("accuracyInterval", span(p.accuracyLow[i], p.accuracyHigh[i], 2));
      say("accuracyWords", count(n - p.correct[i]) + " of the accepted are wrong.");
      say("gap", sign(gap) + "%");
      const low = p.confidence[i] - p.accuracyHigh[i], high = p.confidence[i] - p.accuracyLow[i];
      say("gapInterval", "95% interval " + sign(low) + "\u00a0…\u00a0" + sign(high) + "%");
      say("gapWords", "Says " + percent(p.confidence[i]) + " on average: " + (low > 0 ? "too sure." : high < 0 ? "not sure enough." : "within noise of being right."));
      say("ece", percent(p.ece[i], 2));
      say("chance", "chance alone: " + percent(p.chance[i], 2));
      command.textContent = "calibrant decide CALIBRATION --threshold " + p.threshold[i] + " -o rule";
      copied.textContent = "";
      move(coverage, accuracy);
    }

    function find() {
      const wanted = Number(goal.value) / 100;
      const [promised, at] = p.sure.find(([target]) => target >= wanted - 1e-12) || [null, null];
      let best = -1;
      if (sure.checked) best = at === null ? -1 : at;
      else for (let i = 0; i <= last; i++) {
        if (p.correct[i] / p.accepted[i] >= wanted - 1e-12 && (best < 0 || p.accepted[i] > p.accepted[best])) best = i;
      }
      if (!(wanted > 0 && wanted <= 1)) answer.textContent = "Ask for an accuracy between 0 and 100%.";
      else if (best < 0) answer.textContent = "No threshold " + (sure.checked ? "is 95% certain to reach " : "reaches ") + goal.value + "% on these items.";
      else {
        show(best);
        answer.textContent = "Accept at a confidence of " + p.threshold[best] + " or more: " + percent(p.accepted[best] / p.n) + " of the items" +
          (sure.checked ? ", at least " + percent(promised) + " of them right, with 95% certainty." : ", of which " + percent(p.correct[best] / p.accepted[best], 2) + " are right here.");
      }
    }

    slider.addEventListener("input", () => { answer.textContent = ""; show(Number(slider.value)); });
    threshold.addEventListener("input", () => {
      const t = Number(threshold.value);
      if (threshold.value === "" || !(t >= 0 && t <= 1)) return;
      let near = 0;
      for (let i = 1; i <= last; i++) if (Math.abs(p.threshold[i] - t) < Math.abs(p.threshold[near] - t)) near = i;
      answer.textContent = p.threshold[near] === t ? "" : "Shown: " + p.threshold[near] + ", the nearest stored threshold.";
      show(near, true);
    });
    threshold.addEventListener("change", () => show(Number(slider.value)));
    at("find").addEventListener("click", find);
    goal.addEventListener("change", find);
    sure.addEventListener("change", find);
    at("copy").addEventListener("click", () => {
      getSelection().selectAllChildren(command);
      copied.textContent = document.execCommand("copy") ? "copied" : "selected: press Ctrl+C";
    });
    show(Number(slider.value));
  }

  function marker(svg) {
    const [left, top, right, bottom, x0, x1, y0, y1] = svg.dataset.frame.split(" ").map(Number);
    const make = (name, attributes) => {
      const e = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const key in attributes) e.setAttribute(key, attributes[key]);
      return svg.appendChild(e);
    };
    const line = make("line", { y1: top, y2: bottom, class: "mark" });
    const dot = make("circle", { r: 4.5, class: "mark" });
    return (x, y) => {
      const px = left + (x - x0) / (x1 - x0) * (right - left);
      const py = Math.max(top, Math.min(bottom, bottom - (y - y0) / (y1 - y0) * (bottom - top)));
      line.setAttribute("x1", px); line.setAttribute("x2", px);
      dot.setAttribute("cx", px); dot.setAttribute("cy", py);
    };
  }

  function sortable(table) {
    const heads = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    const number = (text) => { const v = parseFloat(text.replace(/[,%<>\s]/g, "").replace("−", "-")); return isNaN(v) ? null : v; };
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const rows = [...body.rows].map((row) => [row.cells[column].textContent.trim(), row]);
      const values = rows.map(([text]) => (column === 0 && !/^\d+$/.test(text) ? text : number(text)));
      const textual = column === 0 && values.some((v) => typeof v === "string");
      // numbers start with the largest, names with the first; what does not exist stays last
      const down = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") !== "descending" : column !== 0;
      const order = rows.map((_, i) => i).sort((i, j) => {
        if (textual) return (down ? -1 : 1) * rows[i][0].localeCompare(rows[j][0], "en", { numeric: true });
        if (values[i] === null || values[j] === null) return (values[i] === null) - (values[j] === null);
        return (down ? -1 : 1) * (values[i] - values[j]);
      });
      body.append(...order.map((i) => rows[i][1]));
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
    }));
  }

  function filter(input) {
    const table = document.getElementById(input.dataset.table);
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase();
      for (const row of table.tBodies[0].rows) row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
    });
  }

  function copied(button, source) {
    button.addEventListener("click", () => {
      source.focus();
      source.select();
      button.textContent = document.execCommand("copy") ? "Copied" : "Press Ctrl+C";
    });
  }

  // what a cell is about: its column's own explanation, or the names of its column and row
  function explain(event) {
    const cell = event.target.closest && event.target.closest("tbody td");
    if (!cell || cell.title || cell.querySelector("[title]") || cell.cellIndex === 0) return;
    const table = cell.closest("table"), head = table.tHead && table.tHead.rows[0].cells[cell.cellIndex];
    if (head) cell.title = head.title || head.textContent.trim() + " of " + cell.parentNode.cells[0].textContent.trim();
  }

  function theme(button) {
    const root = document.documentElement;
    const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    const name = () => { button.querySelector("span").textContent = dark() ? "light" : "dark"; };
    button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
    name();
  }

  document.querySelectorAll(".operating").forEach(operating);
  document.querySelectorAll("table.sortable").forEach(sortable);
  document.querySelectorAll("input.filter").forEach(filter);
  document.querySelectorAll("#copy").forEach((button) => copied(button, document.getElementById("markdown")));
  document.addEventListener("mouseover", explain);
  theme(document.getElementById("theme"));
})();
