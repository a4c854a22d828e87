"use strict";
(() => {
  const SHADES = 8;
  const FEW = 40; // nodes up to which a tree is shown whole
  const narrow = matchMedia("(max-width: 40rem)").matches;
  const STEP = { x: narrow ? 90 : 118, y: 30 };
  const BOX = { width: narrow ? 78 : 100, height: 23 };
  const MARGIN = 10;
  const LETTERS = narrow ? 5 : 8;
  const trace = JSON.parse(document.getElementById("trace").textContent);
  const rounds = trace.rounds;
  const byId = (id) => document.getElementById(id);

  // Everything that a model wrote goes in as text, never as markup.
  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const draw = (tag, attributes = {}, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
  const shade = (count) => `piece n${Math.min(Math.max(count, 1), SHADES)}`;
  const share = (probability) => {
    if (probability < 0.005) return "<.01";
    return probability >= 0.995 ? "1.0" : probability.toFixed(2).replace(/^0/, "");
  };
  const shortened = (text, most) => {
    const letters = Array.from(text);
    return letters.length <= most ? text : letters.slice(0, most - 1).join("") + "…";
  };

  // --- the head and the text

  const showHead = () => {
    const f = trace.figures;
    const parts = [`${plural(f.tokens, "token")} in ${plural(f.rounds, "round")}`];
    if (f.acceptance_length !== null) parts.push(`τ ${f.acceptance_length.toFixed(2)} tokens a round`);
    if (f.tokens_per_second !== null) parts.push(`${f.tokens_per_second.toFixed(1)} tokens/s`);
    parts.push(`ended by ${f.finish_reason}`);
    byId("figures").textContent = parts.join(" · ");
    byId("prompt").textContent = trace.prompt;
  };

  const showText = () => {
    const emissions = [trace.first, ...rounds.map((round) => round.emission)];
    const counts = [...new Set(emissions.map((e) => e.token_ids.length))].sort((a, b) => a - b);
    byId("legend").append("tokens a round:", ...counts.map((n) => make("span", { class: shade(n) }, String(n))));
    emissions.forEach((emission, index) => {
      const count = emission.token_ids.length;
      const where = index === 0 ? "from the prompt" : `round ${index}`;
      const title = `${where}: ${plural(count, "token")}`;
      const piece = make("span", { class: shade(count), "data-round": index, title }, make("sup", {}, String(count)));
      piece.append(emission.text);
      byId("text").append(piece);
    });
    byId("text").addEventListener("click", (event) => {
      const piece = event.target.closest(".piece");
      if (piece && Number(piece.dataset.round) > 0) select(Number(piece.dataset.round));
    });
  };

  // --- the strip of rounds

  const showBars = () => {
    const most = Math.max(...rounds.map((round) => round.emission.token_ids.length));
    const bars = byId("bars");
    bars.setAttribute("viewBox", `0 0 ${rounds.length} ${most}`);
    bars.setAttribute("preserveAspectRatio", "none");
    rounds.forEach((round, index) => {
      const height = round.emission.token_ids.length;
      bars.append(draw("rect", { x: index + 0.1, y: most - height, width: 0.8, height }));
    });
    bars.addEventListener("click", (event) => {
      const box = bars.getBoundingClientRect();
      select(1 + Math.floor(((event.clientX - box.left) / box.width) * rounds.length));
    });
  };

  // --- one round

  const treeOf = (round, most) => {
    const columns = round.nodes;
    const nodes = columns.token_id.map((_, index) => ({
      index,
      text: columns.text[index],
      tokenId: columns.token_id[index],
      depth: columns.depth[index],
      probability: columns.probability[index],
      pathProbability: columns.path_probability[index],
      accepted: columns.accepted[index],
      shown: columns.accepted[index] || columns.rank[index] <= most,
      parent: null,
      children: [],
    }));
    let deepest = nodes[0];
    nodes.forEach((node, index) => {
      if (index > 0) node.parent = nodes[columns.parent[index]];
      if (node.parent && node.shown) node.parent.children.push(node);
      if (node.accepted && node.depth >= deepest.depth) deepest = node;
    });
    const shown = nodes.filter((node) => node.shown);
    if (round.targets_own) {
      const last = round.emission.tokens.length - 1;
      const own = { own: true, parent: deepest, children: [], depth: deepest.depth + 1, probability: null };
      own.text = round.emission.tokens[last];
      own.tokenId = round.emission.token_ids[last];
      deepest.children.push(own);
      shown.push(own);
    }
    return { root: nodes[0], shown, hidden: nodes.length - shown.filter((node) => !node.own).length };
  };

  const place = (root) => {
    let rows = 0;
    const visit = (node) => {
      if (node.children.length === 0) node.row = rows++;
      node.children.forEach(visit);
      if (node.children.length > 0) node.row = node.children[0].row;
    };
    visit(root);
    return rows;
  };

  const kindOf = (node) => (node.own ? "own" : node.accepted ? "accepted" : "");
  const corner = (node) => ({ x: MARGIN + node.depth * STEP.x, y: MARGIN + node.row * STEP.y });

  const drawEdge = (node) => {
    const from = corner(node.parent);
    const to = corner(node);
    const [x1, y1, x2, y2] = [from.x + BOX.width, from.y + BOX.height / 2, to.x, to.y + BOX.height / 2];
    const middle = (x1 + x2) / 2;
    const edge = draw("path", {
      class: `edge ${kindOf(node)}`,
      d: `M${x1},${y1} C${middle},${y1} ${middle},${y2} ${x2},${y2}`,
    });
    if (!kindOf(node)) edge.setAttribute("stroke-width", 1 + 2 * (node.probability ?? 0));
    return edge;
  };

  const tip = (node) => {
    const lines = [`${node.text}  (token ${node.tokenId})`];
    if (node.own) lines.push("the target's own token");
    if (node.probability !== null) lines.push(`given its path: ${node.probability}`);
    if (node.depth > 0 && !node.own && node.pathProbability !== null) lines.push(`the path: ${node.pathProbability}`);
    return lines.join("\n");
  };

  const drawNode = (node) => {
    const { x, y } = corner(node);
    const group = draw("g", { class: `node ${kindOf(node)}`, transform: `translate(${x},${y})` });
    const probability = node.probability === null ? "" : share(node.probability);
    const mark = node.accepted ? "✓" : "";
    const letters = LETTERS + (probability ? 0 : 3);
    group.append(
      draw("title", {}, tip(node)),
      draw("rect", { width: BOX.width, height: BOX.height, rx: 4 }),
      draw("text", { x: 6, y: 16 }, mark + shortened(node.text, letters)),
      draw("text", { x: BOX.width - 5, y: 16, "text-anchor": "end", class: "probability" }, probability),
    );
    return group;
  };

  const drawTree = ({ root, shown }, label) => {
    const rows = place(root);
    const deepest = Math.max(...shown.map((node) => node.depth));
    const width = 2 * MARGIN + deepest * STEP.x + BOX.width;
    const height = 2 * MARGIN + (rows - 1) * STEP.y + BOX.height;
    const svg = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    const marked = (node) => (kindOf(node) ? 1 : 0);
    const edges = shown.filter((node) => node.parent).sort((a, b) => marked(a) - marked(b));
    svg.append(...edges.map(drawEdge), ...shown.map(drawNode));
    return svg;
  };

  const listTree = (node) => {
    const said = [make("code", {}, node.text)];
    if (node.accepted) said.push(" ✓ accepted");
    if (node.own) said.push(" the target's own token");
    if (node.probability !== null) said.push(` probability ${node.probability}, path ${node.pathProbability}`);
    const item = make("li", { class: kindOf(node) }, ...said);
    if (node.children.length > 0) item.append(make("ul", {}, ...node.children.map(listTree)));
    return item;
  };

  const milliseconds = (seconds) => (seconds >= 0.01 ? (1e3 * seconds).toFixed(0) : (1e3 * seconds).toFixed(1));
  let current = 1;

  const showRound = () => {
    const round = rounds[current - 1];
    const count = round.emission.token_ids.length;
    const budget = round.nodes.token_id.length - 1;
    const tree = treeOf(round, byId("all").checked ? Infinity : FEW);
    const said = `${plural(budget, "draft node")}; ${plural(count, "token")} out: ${round.emission.tokens.join("  ")}`;
    byId("summary").textContent = said;
    const spent = Object.entries(round.stage_seconds).filter(([, seconds]) => seconds > 0);
    byId("stages").textContent = spent.map(([stage, s]) => `${stage} ${milliseconds(s)} ms`).join(" · ");
    byId("tree").replaceChildren(drawTree(tree, `Draft tree of round ${current}: ${said}`));
    byId("list").replaceChildren(make("ul", {}, listTree(tree.root)));
    byId("all").disabled = budget <= FEW;
    byId("hidden-nodes").textContent = tree.hidden > 0 ? `${plural(tree.hidden, "unlikely node")} left out` : "";
  };

  const select = (wanted) => {
    current = Math.min(Math.max(wanted, 1), rounds.length);
    const slider = byId("slider");
    slider.value = current;
    slider.setAttribute("aria-valuetext", `round ${current} of ${rounds.length}`);
    byId("where").textContent = `round ${current} of ${rounds.length}`;
    byId("previous").disabled = current === 1;
    byId("next").disabled = current === rounds.length;
    byId("bars").querySelector(".current")?.classList.remove("current");
    byId("bars").children[current - 1].classList.add("current");
    byId("text").querySelector("[aria-current]")?.removeAttribute("aria-current");
    byId("text").children[current].setAttribute("aria-current", "true");
    showRound();
  };

  const listen = () => {
    const slider = byId("slider");
    slider.max = rounds.length;
    slider.addEventListener("input", () => select(Number(slider.value)));
    byId("previous").addEventListener("click", () => select(current - 1));
    byId("next").addEventListener("click", () => select(current + 1));
    byId("all").addEventListener("change", showRound);
    document.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -1, ArrowRight: 1 };
      const taken = event.target.closest?.("input, .tree, .text") || event.altKey || event.ctrlKey || event.metaKey;
      if (event.key in steps && !taken) select(current + steps[event.key]);
    });
  };

  showHead();
  showText();
  if (rounds.length > 0) {
    showBars();
    listen();
    select(1);
  } else {
    byId("rounds").hidden = true;
  }
})();
