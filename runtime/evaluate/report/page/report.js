"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const element = (name, className, ...content) => {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...content);
  return made;
};

// A switched-off format leaves the drawings by layer; tables and fronts keep it.
for (const box of document.querySelectorAll(".switches input")) {
  box.addEventListener("change", () => {
    for (const drawn of document.querySelectorAll(`[data-format="${CSS.escape(box.value)}"]`)) {
      drawn.style.display = box.checked ? "" : "none";
    }
  });
}

// What is pointed at stands out in every drawing and table.
const named = document.querySelectorAll("[data-of], svg [data-format]");
const nameOf = (one) => one.dataset.of ?? one.dataset.format;
const show = (name) => named.forEach((one) => one.classList.toggle("dim", name !== undefined && nameOf(one) !== name));
for (const one of named) {
  one.addEventListener("pointerenter", () => show(nameOf(one)));
  one.addEventListener("pointerleave", () => show());
}

// ---- Tables sort by a column, first the largest; by their first one, by name ----
function sortable(table) {
  table.querySelectorAll("thead th").forEach((head, column) => {
    const button = element("button", "", head.textContent);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const falling = head.ariaSort ? head.ariaSort === "ascending" : column > 0;
      table.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
      head.ariaSort = falling ? "descending" : "ascending";
      const text = (row) => row.cells[column].textContent;
      const number = (row) => { const value = parseFloat(text(row)); return Number.isNaN(value) ? -Infinity : value; };
      const compare = column > 0 ? (a, b) => number(a) - number(b) : (a, b) => text(a).localeCompare(text(b));
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort((a, b) => falling ? compare(b, a) : compare(a, b)));
    });
  });
}
document.querySelectorAll("table.sortable").forEach(sortable);

// ---- Time to the first token over a link, from this machine's speeds; nothing overlaps ----
function links(panel) {
  const tokens = data.prompt_tokens / data.questions, slider = element("input"), label = element("label");
  const bars = element("div", "links");
  Object.assign(slider, {type: "range", min: 7, max: 11, step: .05, value: 9});  // powers of ten, bits a second
  const cached = element("input");
  cached.type = "checkbox";
  const time = (seconds) => seconds >= 1 ? seconds.toFixed(2) + " s" : (seconds * 1e3).toPrecision(3) + " ms";
  const per = (rate) => rate > 0 ? tokens / rate : 0;
  const draw = () => {
    const bits = 10 ** slider.value, [unit, name] = bits >= 1e9 ? [1e9, "Gb/s"] : [1e6, "Mb/s"];
    label.textContent = slider.ariaValueText = `${Number((bits / unit).toPrecision(2))} ${name}`;
    const rows = data.formats.filter((one) => one.bytes_per_token > 0).map((one) => [one.name,
        (cached.checked ? 0 : per(data.producer_tokens_per_s) + per(one.encode_tokens_per_s)) +
        8 * one.bytes_per_token * tokens / bits + per(one.reconstruct_tokens_per_s)]);
    rows.push(["local prefill", per(data.local_tokens_per_s)]);
    rows.sort((a, b) => a[1] - b[1]);
    const longest = rows.at(-1)[1] || 1;
    bars.replaceChildren(...rows.flatMap(([name, seconds]) => {
      const bar = element("div", name === "local prefill" ? "local" : "");
      bar.style.width = 100 * seconds / longest + "%";
      return [element("span", "", name), bar, element("b", "", time(seconds))];
    }));
  };
  slider.ariaLabel = "Link between prefill and decode server";
  slider.addEventListener("input", draw);
  cached.addEventListener("change", draw);
  const held = element("label", "", cached, " the prefill server has the frames cached");
  panel.append(element("p", "", `Estimates for a prompt of ${Math.round(tokens)} tokens: the speeds measured here, one step ` +
                                "after the other, and the bytes at that rate; no queue and no round trips."),
               element("div", "tools", slider, label, held), bars);
  draw();
}
links(document.getElementById("links"));

// ---- Answers beside the oracle's; texts only ever become text ----
const SHOWN = 20;
function examples(panel) {
  if (!data.examples.length) return panel.append("No questions were kept.");
  const choice = element("select"), table = element("table"), more = element("button", "", "Show all");
  data.formats.forEach((one, i) => choice.append(new Option(one.name, i)));
  let shown = SHOWN;
  const draw = () => {
    const of = (example) => example.formats[choice.value];
    const sorted = [...data.examples].sort((a, b) => of(b).kl - of(a).kl);
    const rows = sorted.slice(0, shown).map((example) => {
      const prompt = element("details", "", element("summary", "", `Question ${example.number}`),
                             element("pre", "", example.prompt));
      const f1 = `${example.oracle_f1.toFixed(2)} → ${of(example).f1.toFixed(2)}`;
      return element("tr", "", ...[prompt, of(example).kl.toFixed(3), f1, example.oracle, of(example).text]
          .map((cell) => element("td", "", cell)));
    });
    const heads = ["question", "KL, nats a token", "F1", "local prefill answers", `${data.formats[choice.value].name} answers`];
    table.replaceChildren(element("thead", "", element("tr", "", ...heads.map((name) => element("th", "", name)))),
                          element("tbody", "", ...rows));
    more.hidden = shown >= sorted.length;
  };
  more.type = "button";
  more.addEventListener("click", () => { shown = Infinity; draw(); });
  choice.addEventListener("change", draw);
  panel.append(element("div", "tools", element("label", "", "Format ", choice)), element("div", "table", table), more);
  draw();
}
examples(document.getElementById("examples"));
