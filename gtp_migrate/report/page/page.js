"use strict";
// Everything here is made from the data of the JSON report. Texts become text nodes, never markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const files = new Map(data.files.map((file) => [file.path, file]));
  const tip = document.getElementById("tip");
  const MOST_RANKS = 2048;
  const HUES = [212, 32, 148, 282, 352, 178, 62, 318];

  function make(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
    return node;
  }

  // A name that may be broken where it has joints.
  const soft = (text) => text.split(/(?<=[/._])/).flatMap((part, n) => (n ? [make("wbr"), part] : [part]));

  // -- the table: filter, sort, open ------------------------------------------------------------

  const table = document.getElementById("table");
  const bodies = table ? [...table.tBodies] : [];
  const rows = bodies.map((body, number) => {
    const run = data.runs[number];
    const layouts = run.models.filter((model) => model.layout !== null).map((model) => data.layouts[model.layout]);
    return {
      body, run, layouts,
      text: [run.recipe, ...run.layers, ...run.models.map((model) => model.name)].join("\n").toLowerCase(),
      hasGtp: run.models.some((model) => model.is_on && model.has_gtp),
      isUnfit: layouts.some((layout) => layout.warning),
    };
  });
  const byBody = new Map(rows.map((row) => [row.body, row]));

  // As many as a browser lays out at once; more where somebody asks.
  const most = table ? Number(table.dataset.most) : 0;
  let limit = most;
  let order = rows;

  function filter() {
    const words = document.getElementById("words").value.toLowerCase().split(/\s+/).filter(Boolean);
    const state = document.getElementById("state").value;
    const gtp = document.getElementById("gtp").checked;
    const unfit = document.getElementById("unfit").checked;
    let found = 0;
    for (const row of order) {
      const fits = words.every((word) => row.text.includes(word)) && (!state || row.run.state === state)
        && (!gtp || row.hasGtp) && (!unfit || row.isUnfit);
      found += fits;
      const isShown = fits && found <= limit;
      if (row.body.hidden === isShown) row.body.hidden = !isShown;
    }
    const count = (number) => number.toLocaleString("en");
    const runs = `${count(rows.length)} run${rows.length === 1 ? "" : "s"}`;
    document.getElementById("shown").textContent = found === rows.length ? runs : `${count(found)} of ${runs}`;
    const more = document.getElementById("more");
    more.hidden = found <= limit;
    more.textContent = `Show all ${count(found)} (${count(Math.min(limit, found))} are shown)`;
  }

  const STATES = ["not proven", "left", "proven", "same"];
  const least = (values) => Math.min(...values.map((value) => (typeof value === "number" ? value : Infinity)), Infinity);
  function sortKey(column) {
    if (column === "recipe") return (row) => row.run.recipe;
    if (column === "state") return (row) => STATES.indexOf(row.run.state);
    if (column === "fit") return (row) => (row.isUnfit ? 0 : row.layouts.some((layout) => layout.gpus) ? 1 : 2);
    const number = { gpus: "gpus", copies: "copies", lanes: "data_lanes" }[column];
    if (number) return (row) => least(row.layouts.map((layout) => layout[number]));
    const [side, size] = column.split(".");
    return (row) => least(row.run.models.map((model) => model[side] && model[side][size]));
  }

  function sort(button) {
    const header = button.closest("th");
    const down = header.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.querySelectorAll("[aria-sort]")) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const of = sortKey(button.dataset.sort);
    const keyed = rows.map((row, number) => ({ row, number, key: of(row) }));
    keyed.sort((a, b) => {
      if (a.key === b.key) return a.number - b.number;
      // What is not known comes last, whichever way.
      if (a.key === Infinity || b.key === Infinity) return a.key === Infinity ? 1 : -1;
      return (a.key < b.key ? -1 : 1) * (down ? -1 : 1);
    });
    order = keyed.map(({ row }) => row);
    table.append(...order.map((row) => row.body));
    filter();
  }

  function toggle(body, open) {
    const button = body.querySelector(".open");
    const details = body.querySelector(":scope > .details");
    const isOpen = button.getAttribute("aria-expanded") === "true";
    if (open === isOpen) return;
    button.setAttribute("aria-expanded", String(!isOpen));
    if (details) details.hidden = isOpen;
    else body.append(make("tr", { class: "details" }, make("td", { colspan: "15" },
      make("div", { class: "panel" }, ...detailsOf(byBody.get(body).run)))));
  }

  // -- one recipe -------------------------------------------------------------------------------

  function detailsOf(run) {
    const parts = [
      make("p", { class: "hint" }, make("a", { href: "#recipe=" + encodeURIComponent(run.recipe) }, "Link to this recipe")),
    ];
    if (run.problems.length) {
      parts.push(make("h3", {}, "Needs a person"), make("div", { class: "problems" }, make("ul", {}, ...run.problems.map((number) => {
        const problem = data.problems[number];
        return make("li", {}, make("code", { class: "place" }, placeOf(problem)), make("span", {}, problem.what), "; ",
          make("span", { class: "todo" }, problem.todo));
      }))));
    }
    parts.push(make("h3", {}, "Where it comes from"), inheritance(run));
    run.models.forEach((model) => {
      const title = run.models.length > 1 ? `Layout of ${model.name}` : "Layout";
      parts.push(make("h3", {}, title), model.layout === null
        ? make("p", {}, `No layout to show: ${model.no_layout}${placesOfOpen(model)}.`)
        : picture(data.layouts[model.layout], model));
    });
    if (run.changed.length) {
      parts.push(make("h3", {}, run.changed.length > 1 ? "Changes in its files" : "Change"));
      parts.push(...run.changed.map((path) => diff(files.get(path))));
    }
    return parts;
  }

  const placeOf = (place) => place.path + (place.line ? `:${place.line}` + (place.column ? `:${place.column}` : "") : "");
  // Where the sizes stand that come with the run.
  const isOpen = (model, size) => Boolean(model.before && model.before[size] === "open");
  function placesOfOpen(model) {
    const places = ["tp", "etp"].filter((size) => isOpen(model, size) && model.from[size]);
    return places.length ? ` (${places.map((size) => placeOf(model.from[size])).join(", ")})` : "";
  }
  const NAMES = { tp: "TP", etp: "ETP", gtp: "GTP", expert_gtp: "expert GTP" };

  function inheritance(run) {
    const tags = new Map();
    for (const model of run.models) {
      for (const [size, place] of Object.entries(model.from)) {
        if (!place) continue;
        const known = tags.get(place.path) || tags.set(place.path, new Set()).get(place.path);
        const isKnown = model.before && model.before[size] !== null;
        const value = isOpen(model, size) ? (size === "tp" || size === "etp" ? " comes with the run" : "") : isKnown ? ` ${model.before[size]}` : "";
        const whose = run.models.length > 1 ? ` of ${model.name}` : "";
        known.add(`${NAMES[size]}${value}${whose}: line ${place.line}`);
      }
    }
    const changed = new Set(run.changed);
    function item(path, seen, line) {
      const file = files.get(path);
      const parents = file && file.defaults && !seen.has(path) ? file.defaults.parents : [];
      const inner = new Set(seen).add(path);
      return make("li", {},
        make("code", {}, make("bdi", {}, path)),
        line ? make("span", { class: "hint" }, ` by defaults: in line ${line}`) : null,
        ...(changed.has(path) ? [" ", make("span", { class: "tag new" }, "changed")] : []),
        ...[...(tags.get(path) || [])].flatMap((text) => [" ", make("span", { class: "tag" }, text)]),
        parents.length ? make("ul", {}, ...parents.map((parent) => item(parent, inner, file.defaults.line))) : null);
    }
    const own = run.layers.length ? run.layers[run.layers.length - 1] : run.recipe;
    return make("ul", { class: "tree" }, item(own, new Set(), null));
  }

  function diff(file) {
    const cells = (side, isOld, isChanged) => {
      const kind = side ? (isChanged ? (isOld ? "old" : "new") : "") : "none";
      const pieces = side ? side.pieces : [];
      const text = make("td", { class: kind }, ...pieces.map((piece, n) => (n % 2 ? make(isOld ? "del" : "ins", {}, piece) : piece)));
      // What is wrapped goes on a bit right of where the line begins.
      text.style.setProperty("--indent", Math.min(pieces.join("").search(/\S|$/) + 2, 16));
      return [make("td", { class: `line ${kind}` }, side ? String(side.line) : ""), text];
    };
    return make("table", { class: "diff" },
      make("caption", {}, make("code", {}, make("bdi", {}, file.path))),
      make("colgroup", {}, make("col", { class: "line" }), make("col"), make("col", { class: "line" }), make("col")),
      ...file.hunks.map((hunk) => make("tbody", {}, ...hunk.map((row) =>
        make("tr", { class: row.changed ? null : "same" }, ...cells(row.before, true, row.changed), ...cells(row.after, false, row.changed))))));
  }

  // -- the picture of a layout ------------------------------------------------------------------

  const digit = (rank, dimension) => Math.floor(rank / dimension.stride) % dimension.size;

  // The ranks of a rank's group along some dimensions: those that differ in these digits alone.
  function group(dimensions, names, rank) {
    let ranks = [rank];
    for (const each of dimensions.filter((dimension) => names.includes(dimension.name))) {
      ranks = ranks.flatMap((other) =>
        Array.from({ length: each.size }, (_, n) => other + (n - digit(rank, each)) * each.stride));
    }
    return ranks.sort((a, b) => a - b);
  }

  function list(ranks) {
    const ranges = [];
    for (const rank of ranks) {
      const last = ranges[ranges.length - 1];
      if (last && rank === last[1] + 1) last[1] = rank;
      else ranges.push([rank, rank]);
    }
    const texts = ranges.map(([a, b]) => (a === b ? `${a}` : b === a + 1 ? `${a}, ${b}` : `${a}–${b}`));
    return texts.length > 12 ? `${texts.slice(0, 12).join(", ")} … (${ranks.length} in all)` : texts.join(", ");
  }

  const VIEWS = {
    dense: { whole: ["TP", "GTP", "CP", "PP"], row: "TP", shade: "GTP", hue: "copies", two: "GTP", three: "copies" },
    expert: { whole: ["ETP", "EP", "expert GTP", "PP"], row: "ETP", shade: "expert GTP", hue: "expert copies", two: "expert GTP", three: "EP" },
  };

  // Without experts their sizes come out as the dense ones, or as 1: groups that say nothing.
  const hasExperts = (layout) => layout.expert.length && (layout.ep > 1 || layout.expert_gtp > 1 || layout.etp !== layout.tp);

  function groupsOf(layout, rank) {
    const perNode = layout.gpus_per_node || layout.ranks;
    const at = (dimensions, name) => dimensions.find((dimension) => dimension.name === name);
    const one = (dimensions, name) => `${digit(rank, at(dimensions, name))} (${at(dimensions, name).size} in all)`;
    const { dense, expert } = layout;
    const lane = digit(rank, at(dense, "copies")) * at(dense, "GTP").size + digit(rank, at(dense, "GTP"));
    const parts = [[`rank ${rank}: node ${Math.floor(rank / perNode)}, GPU ${rank % perNode}`, null], ["Dense weights", [
      ["TP group", list(group(dense, ["TP"], rank))],
      ["GTP peers", list(group(dense, ["GTP"], rank))],
      ["copy", `${one(dense, "copies")}: ranks ${list(group(dense, VIEWS.dense.whole, rank))}`],
      ["data lane", `${lane} (${at(dense, "copies").size * at(dense, "GTP").size} in all)`],
      ...(layout.cp > 1 ? [["context-parallel rank", `${one(dense, "CP")}: ranks ${list(group(dense, ["CP"], rank))}`]] : []),
      ...(layout.pp > 1 ? [["pipeline stage", `${one(dense, "PP")}: ranks ${list(group(dense, ["PP"], rank))}`]] : []),
    ]]];
    if (hasExperts(layout)) {
      parts.push(["Experts", [
        ["ETP group", list(group(expert, ["ETP"], rank))],
        ["EP group", list(group(expert, ["EP"], rank))],
        ["expert GTP peers", list(group(expert, ["expert GTP"], rank))],
        ["copy of the experts", one(expert, "expert copies")],
      ]]);
    }
    return parts;
  }

  const spoken = (parts) =>
    parts.map(([title, lines]) => (lines ? `${title}: ${lines.map((pair) => pair.join(" ")).join("; ")}` : title)).join(". ");

  function show(cell, layout, rank) {
    const parts = groupsOf(layout, rank);
    tip.replaceChildren(...parts.flatMap(([title, lines]) => [make("b", {}, title),
      lines ? make("dl", {}, ...lines.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)])) : null]).filter(Boolean));
    tip.hidden = false;
    const box = cell.getBoundingClientRect();
    const below = box.bottom + 10 + tip.offsetHeight < window.innerHeight || box.top < tip.offsetHeight + 10;
    tip.style.left = `${Math.max(8, Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 12)) + window.scrollX}px`;
    tip.style.top = `${(below ? box.bottom + 10 : box.top - tip.offsetHeight - 10) + window.scrollY}px`;
    cell.setAttribute("aria-label", spoken(parts));
  }

  const count = (number, one, many) => `${number} ${number === 1 ? one : many || one + "s"}`;

  // Which part of the model, and of its sequences, a rank has, where that is not all: short and in words.
  function partOf(layout, rank) {
    const parts = [];
    for (const [name, letter, words] of [["PP", "P", "pipeline stage"], ["CP", "C", "context-parallel rank"]]) {
      const dimension = layout.dense.find((each) => each.name === name);
      if (dimension && dimension.size > 1) {
        const at = digit(rank, dimension);
        parts.push({ short: `${letter}${at}`, long: `${words} ${at} (${dimension.size} in all)`, words, letter, dimension });
      }
    }
    return parts;
  }

  function caption(layout, model) {
    const parts = [];
    if (layout.gpus === null) parts.push(`GPUs are not given: one copy on ${count(layout.ranks, "GPU")}.`);
    else parts.push(`${count(layout.gpus, "GPU")}${layout.gpus_per_node ? `, ${layout.gpus_per_node} a node` : ""}.`);
    const copy = `TP ${layout.tp} × GTP ${layout.gtp === null ? "?" : layout.gtp} × CP ${layout.cp} × PP ${layout.pp} = ${count(layout.gpus_per_copy, "GPU")} a copy`;
    if (layout.warning) parts.push(`${copy}.`);
    else if (layout.gpus !== null) parts.push(`${copy}: ${count(layout.copies, "copy", "copies")}, ${count(layout.data_lanes, "data lane")}.`);
    else parts.push(`${copy}.`);
    if (model.shards) parts.push(`${count(model.shards, "shard")} per weight.`);
    if (model.expert_shards) parts.push(`${count(model.expert_shards, "shard")} per expert weight.`);
    const node = make("figcaption", {}, parts.join(" "));
    if (layout.warning) node.append(make("span", { class: "unfit" }, " It " + layout.warning + "."));
    return node;
  }

  function picture(layout, model) {
    const figure = make("figure", { class: "picture" }, caption(layout, model));
    const all = layout.ranks || layout.gpus || 0;
    const drawn = Math.min(all, MOST_RANKS);
    const shares = layout.ranks ? partOf(layout, 0) : [];
    const perNode = Math.min(layout.gpus_per_node || all, all);
    const cells = [];
    const nodes = make("div", { class: "nodes", role: "group", "aria-label": "GPUs by node. Arrow keys go from rank to rank." });
    for (let first = 0; first < drawn; first += perNode) {
      const gpus = make("div", { class: shares.length > 1 ? "gpus wide" : "gpus" });
      gpus.style.gridTemplateColumns = `repeat(${Math.min(perNode, 8)}, ${shares.length > 1 ? 52 : 38}px)`;
      for (let rank = first; rank < Math.min(first + perNode, drawn); rank++) {
        const cell = make("button", { type: "button", class: "gpu", "data-rank": rank, tabindex: rank ? "-1" : "0" }, String(rank),
          shares.length ? make("small", {}, partOf(layout, rank).map((part) => part.short).join(" ")) : null);
        cells.push(cell);
        gpus.append(cell);
      }
      nodes.append(make("div", { class: "node" }, make("b", {}, layout.gpus_per_node ? `node ${first / perNode}` : "GPUs"), gpus));
    }
    if (drawn < all) nodes.append(make("p", { class: "hint" }, `… and ${all - drawn} more ranks, laid out alike`));
    const key = make("ul", { class: "key" });
    if (!layout.ranks) {
      for (const cell of cells) { cell.classList.add("idle"); cell.disabled = true; }
      figure.append(nodes);
      return figure;
    }
    let view = "dense";
    const paint = () => {
      const names = VIEWS[view];
      const dimensions = layout[view];
      const at = (name) => dimensions.find((dimension) => dimension.name === name);
      const row = at(names.row), shade = at(names.shade), hue = at(names.hue);
      cells.forEach((cell, rank) => {
        cell.style.setProperty("--hue", HUES[digit(rank, hue) % HUES.length]);
        cell.style.setProperty("--shade", shade.size > 1 ? digit(rank, shade) / (shade.size - 1) : 0);
        cell.classList.toggle("first", digit(rank, row) === 0);
        cell.classList.toggle("last", digit(rank, row) === row.size - 1);
      });
      const swatch = (hue, shade) => {
        const box = make("i", {});
        box.style.setProperty("--hue", HUES[hue % HUES.length]);
        box.style.setProperty("--shade", shade);
        return box;
      };
      const copies = Math.min(hue.size, 4);
      key.replaceChildren(
        make("li", {}, ...Array.from({ length: copies }, (_, n) => swatch(n, 0)), `colour: ${count(hue.size, hue.name.replace(/copies$/, "copy"), hue.name)}`),
        make("li", {}, ...Array.from({ length: Math.min(shade.size, 8) }, (_, n) => swatch(0, shade.size > 1 ? n / (shade.size - 1) : 0)), `shade: ${shade.name} ${shade.size}`),
        make("li", {}, `joined: ${row.name} group of ${row.size}`),
        ...shares.map((part) => make("li", {}, `${part.letter}0–${part.letter}${part.dimension.size - 1}: ${part.words}`)),
        make("li", {}, "on a rank: ", make("i", { class: "gpu one" }), `${row.name} group `, make("i", { class: "gpu two" }), `${names.two} peers `, make("i", { class: "gpu three" }), names.three === "copies" ? "same part in other copies" : `${names.three} group`));
    };
    const light = (rank) => {
      const names = VIEWS[view];
      nodes.classList.toggle("lit", rank !== null);
      for (const cell of cells) cell.classList.remove("self", "one", "two", "three");
      if (rank === null) return;
      for (const [mark, dimension] of [["one", names.row], ["two", names.two], ["three", names.three]]) {
        for (const other of group(layout[view], [dimension], rank)) {
          if (other !== rank && cells[other]) cells[other].classList.add(mark);
        }
      }
      cells[rank].classList.add("self");
    };
    const visit = (cell) => { const rank = Number(cell.dataset.rank); light(rank); show(cell, layout, rank); };
    const leave = () => { light(null); tip.hidden = true; };
    const cellOf = (event) => event.target.closest(".gpu");
    nodes.addEventListener("pointerover", (event) => { const cell = cellOf(event); if (cell) visit(cell); else leave(); });
    nodes.addEventListener("pointerleave", leave);
    nodes.addEventListener("focusin", (event) => { const cell = cellOf(event); if (cell) visit(cell); });
    nodes.addEventListener("focusout", leave);
    nodes.addEventListener("keydown", (event) => {
      const cell = cellOf(event);
      if (!cell) return;
      if (event.key === "Escape") return leave();
      const columns = Math.min(perNode, 8);
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -Infinity, End: Infinity }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      const next = cells[Math.max(0, Math.min(cells.length - 1, Number(cell.dataset.rank) + step))];
      cell.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    });
    if (hasExperts(layout)) {
      const buttons = ["dense", "expert"].map((name) => {
        const button = make("button", { type: "button", "aria-pressed": String(name === view) }, name === "dense" ? "dense weights" : "experts");
        button.addEventListener("click", () => {
          view = name;
          buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
          paint();
        });
        return button;
      });
      figure.append(make("div", { class: "views", role: "group", "aria-label": "Coloured by" }, "Coloured by", ...buttons));
    }
    paint();
    cells.forEach((cell, rank) => cell.setAttribute("aria-label", [`rank ${rank}`, ...partOf(layout, rank).map((part) => part.long)].join(", ")));
    figure.append(nodes, key);
    return figure;
  }

  // -- changed files, links, print --------------------------------------------------------------

  const details = [...document.querySelectorAll("details.file")];
  const fill = (node) => { if (!node.querySelector("table")) node.append(diff(files.get(node.dataset.path))); };
  for (const node of details) node.addEventListener("toggle", () => { if (node.open) fill(node); });
  const all = document.getElementById("all");
  if (all) {
    all.addEventListener("click", () => {
      const open = details.some((node) => !node.open);
      for (const node of details) node.open = open;
      all.textContent = open ? "Close all" : "Open all";
    });
  }
  const settings = document.querySelector(".all-settings");
  const code = (text) => make("code", {}, make("bdi", {}, ...soft(text)));
  function fillSettings() {
    const body = settings.querySelector("tbody");
    if (body.rows.length || !settings.open) return;
    body.append(...data.settings.map((each) => make("tr", {}, ...[
      code(placeOf(each)), make("bdi", {}, ...soft(each.mapping)), code(each.old), code(each.new),
      make("bdi", {}, ...soft(each.parallel))].map((cell) => make("td", {}, cell)))));
  }
  if (settings) {
    settings.addEventListener("toggle", fillSettings);
    fillSettings();
  }
  let openedToPrint = [];
  window.addEventListener("beforeprint", () => {
    const changed = details.filter((node) => !node.open).slice(0, 300);
    changed.forEach(fill);
    openedToPrint = [...document.querySelectorAll(".rest:not([open])"), ...changed];
    for (const node of openedToPrint) node.open = true;
    if (table) { limit = Infinity; filter(); }
  });
  window.addEventListener("afterprint", () => {
    for (const node of openedToPrint) node.open = false;
    if (table) { limit = most; filter(); }
  });

  function follow() {
    let hash;
    try { hash = decodeURIComponent(location.hash.slice(1)); } catch { return; }
    const row = rows.find(({ run }) => "recipe=" + run.recipe === hash);
    if (!row) return;
    row.body.hidden = false;
    toggle(row.body, true);
    row.body.scrollIntoView({ block: "start" });
    row.body.querySelector(".open").focus({ preventScroll: true });
  }

  if (table) {
    for (const id of ["words", "state", "gtp", "unfit"]) {
      document.getElementById(id).addEventListener("input", () => { limit = most; filter(); });
    }
    document.getElementById("more").addEventListener("click", () => { limit = Infinity; filter(); });
    document.querySelector(".filter").addEventListener("submit", (event) => event.preventDefault());
    table.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button && button.dataset.sort) sort(button);
      else if (button && button.classList.contains("open")) toggle(button.closest("tbody"));
    });
    window.addEventListener("hashchange", follow);
    // A reload keeps what was typed.
    filter();
    // The browser's own way to the row ends when all is loaded.
    window.addEventListener("load", follow);
  }
})();
