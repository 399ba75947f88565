// Draws the generations: text by round, and the tree of the round that is chosen. Text from models only ever becomes
// text nodes, never markup.
"use strict";
(() => {
  const runs = JSON.parse(document.getElementById("generations-data").textContent);
  const place = document.getElementById("answers");
  const SVG = "http://www.w3.org/2000/svg";
  const COLUMN = 132, ROW = 38, BOX = { width: 98, height: 26 };

  const make = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    Object.entries(attributes).forEach(([name, value]) => node.setAttribute(name, value));
    node.append(...children);
    return node;
  };
  const draw = (tag, attributes, text) => {
    const node = document.createElementNS(SVG, tag);
    Object.entries(attributes).forEach(([name, value]) => node.setAttribute(name, value));
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const visible = (word) => word.replace(/ /g, "·").replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "∅";
  const short = (word, most) => ([...word].length > most ? [...word].slice(0, most - 1).join("") + "…" : word);

  function picker(label, names, choose) {
    const select = make("select");
    names.forEach((name, i) => select.append(make("option", { value: i }, name)));
    select.addEventListener("change", () => choose(Number(select.value)));
    return make("label", {}, label, select);
  }

  // The most confident drafted continuation of the accepted path that the target refused. Where the text's end cut the
  // round there is no bonus token, and on what lies deeper there is no verdict.
  function refused({ tree, pieces, accepted }) {
    const missed = [];
    if (pieces.length <= accepted) return missed;
    let node = tree.accepted[tree.accepted.length - 1];
    for (;;) {
      let best = -1;
      tree.parents.forEach((parent, i) => {
        if (parent === node && i > 0 && (best < 0 || tree.log[i] > tree.log[best])) best = i;
      });
      if (best < 0) return missed;
      missed.push(tree.words[best]);
      node = best;
    }
  }

  function layout(tree) {
    const children = tree.parents.map(() => []);
    const depth = tree.parents.map(() => 0);
    tree.parents.forEach((parent, i) => {
      if (parent >= 0) { children[parent].push(i); depth[i] = depth[parent] + 1; }
    });
    const row = tree.parents.map(() => 0);
    let next = 0;
    const settle = (node) => {
      children[node].forEach(settle);
      const below = children[node];
      row[node] = below.length ? (row[below[0]] + row[below[below.length - 1]]) / 2 : next++;
    };
    settle(0);
    return { depth, row, rows: next };
  }

  function drawTree(round) {
    const { tree } = round;
    const { depth, row, rows } = layout(tree);
    const on = new Set(tree.accepted);
    const last = tree.accepted[tree.accepted.length - 1];
    const bonus = round.pieces.slice(round.accepted).join("");
    const hasNext = round.pieces.length > round.accepted;
    const x = (i) => 4 + depth[i] * COLUMN, y = (i) => 18 + row[i] * ROW;
    const deepest = Math.max(...depth, hasNext ? depth[last] + 1 : 0);
    const bottom = 18 + rows * ROW;
    const svg = draw("svg", {
      width: 8 + deepest * COLUMN + BOX.width, height: bottom + (hasNext ? ROW : 0), role: "img",
      "aria-label": "draft tree: " + (tree.parents.length - 1) + " nodes",
    });
    const curve = (x0, y0, x1, y1, kind) => svg.append(draw("path", {
      class: "edge " + kind, d: `M${x0} ${y0}C${x0 + 18} ${y0} ${x1 - 18} ${y1} ${x1} ${y1}`,
    }));
    const box = (at, up, word, kind, sure) => {
      const group = draw("g", { class: "node " + kind });
      group.append(draw("title", {}, word));
      group.append(draw("rect", { x: at, y: up - BOX.height / 2, width: BOX.width, height: BOX.height, rx: 6 }));
      const room = sure ? 8 : 12;
      group.append(draw("text", { x: at + 8, y: up, dy: ".35em" }, short(visible(word), room)));
      if (sure) group.append(draw("text", { class: "sure", x: at + BOX.width - 6, y: up, dy: ".35em", "text-anchor": "end" }, sure));
      svg.append(group);
    };
    tree.parents.forEach((parent, i) => {
      if (parent >= 0 && !on.has(i)) curve(x(parent) + BOX.width, y(parent), x(i), y(i), "");
    });
    tree.parents.forEach((parent, i) => {
      if (parent >= 0 && on.has(i)) curve(x(parent) + BOX.width, y(parent), x(i), y(i), "on");
    });
    if (hasNext) curve(x(last) + BOX.width, y(last), x(last) + COLUMN, bottom, "next");
    tree.parents.forEach((parent, i) => {
      const kind = parent < 0 ? "root" : on.has(i) ? "on" : "off";
      const sure = parent < 0 ? "" : Math.round(100 * Math.exp(tree.log[i] - tree.log[parent])) + "%";
      box(x(i), y(i), tree.words[i], kind, sure);
    });
    if (hasNext) box(x(last) + COLUMN, bottom, bonus, "next", "");
    return make("div", { class: "tree", tabindex: "0" }, svg);
  }

  function showTurn(turn) {
    const text = make("p", { class: "text" });
    const panel = make("div", { class: "panel" });
    const spans = [];
    let chosen = -1;
    const token = (piece, kind) => make("span", { class: "token " + kind }, piece);
    const choose = (at, scroll) => {
      if (at < 0 || at >= turn.rounds.length) return;
      if (chosen >= 0) spans[chosen].classList.remove("chosen");
      chosen = at;
      spans[at].classList.add("chosen");
      if (scroll) spans[at].focus({ preventScroll: false });
      const round = turn.rounds[at];
      const back = make("button", { type: "button", "aria-label": "round before" }, "←");
      const on = make("button", { type: "button", "aria-label": "next round" }, "→");
      back.disabled = at === 0;
      on.disabled = at === turn.rounds.length - 1;
      back.addEventListener("click", () => choose(at - 1));
      on.addEventListener("click", () => choose(at + 1));
      const nodes = round.tree.parents.length - 1;
      const said = ` of ${turn.rounds.length}: ${nodes} nodes verified, ${round.accepted} accepted, ${round.pieces.length} committed`;
      panel.replaceChildren(make("div", { class: "bar" }, back, on, make("span", {}, make("strong", {}, "Round " + (at + 1)), said)));
      panel.append(drawTree(round));
    };
    turn.first.forEach((piece) => text.append(token(piece, "prefill")));
    turn.rounds.forEach((round, at) => {
      const span = make("span", { class: "round", tabindex: "0", role: "button", "aria-label": "round " + (at + 1) });
      round.pieces.slice(0, round.accepted).forEach((piece) => span.append(token(piece, "accepted")));
      refused(round).forEach((word) => span.append(token(word.replace(/\s*\n\s*/g, "⏎"), "rejected")));
      round.pieces.slice(round.accepted).forEach((piece) => span.append(token(piece, "bonus")));
      span.addEventListener("click", () => choose(at));
      span.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(at); }
        if (event.key === "ArrowRight") { event.preventDefault(); choose(at + 1, true); }
        if (event.key === "ArrowLeft") { event.preventDefault(); choose(at - 1, true); }
      });
      spans.push(span);
      text.append(span);
    });
    const card = make("article", { class: "card" });
    if (turn.asked) card.append(make("p", { class: "asked" }, turn.asked));
    card.append(text);
    if (turn.rounds.length) {
      card.append(panel);
      choose(Math.max(0, turn.rounds.findIndex((round) => round.accepted > 1)));
    }
    return card;
  }

  const state = { run: 0, question: 0, method: "" };
  function show() {
    const run = runs[state.run];
    const question = run.questions[state.question];
    const names = Object.keys(question.methods);
    if (!names.includes(state.method)) state.method = names.find((name) => name !== "plain") || names[0];
    const pickers = make("div", { class: "pickers" });
    const add = (label, list, current, set) => {
      const made = picker(label, list, (i) => { set(i); show(); });
      made.querySelector("select").value = current;
      pickers.append(made);
    };
    if (runs.length > 1) add("run", runs.map((each) => each.title), state.run, (i) => { state.run = i; state.question = 0; });
    add("question", run.questions.map((each) => each.title), state.question, (i) => { state.question = i; });
    add("method", names, names.indexOf(state.method), (i) => { state.method = names[i]; });
    const [first, ...later] = question.methods[state.method];
    const fold = (turn, i) => make("details", { class: "card" }, make("summary", {}, "turn " + (i + 2)), showTurn(turn));
    place.replaceChildren(pickers, showTurn(first), ...later.map(fold));
  }
  if (runs.some((run) => run.questions.length)) show();
  else place.replaceChildren(make("p", { class: "note" }, "No generations were kept."));
  // Paper has no clicks: what is folded away is printed too.
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
})();
