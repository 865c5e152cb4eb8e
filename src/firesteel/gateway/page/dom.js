// Elements and lists. Text from outside only ever becomes a text node.

const SVG = "http://www.w3.org/2000/svg";

/** h("p", {class: "note", onclick: f}, "text", node): an element. Properties that begin with `on` are listeners. */
export function h(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

export function s(tag, properties = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

function filled(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Change a text only if it differs: an equal one would still cost a layout. */
export function put(node, text) {
  const value = text === null || text === undefined ? "" : String(text);
  if (node.textContent !== value) node.textContent = value;
}

/** A text in which words between backticks are code. */
export function coded(text) {
  return text.split("`").map((part, at, all) => (at % 2 && at < all.length - 1 ? h("code", {}, part) : at % 2 ? `\`${part}` : part));
}

export function putCoded(node, text) {
  if (node.textContent !== text.replaceAll("`", "")) node.replaceChildren(...coded(text));
}

export function attribute(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? "" : String(value));
}

export function show(node, isShown) {
  if (node.hidden === Boolean(isShown)) node.hidden = !isShown;
}

/** A list whose rows are kept by key: `make(item)` returns {node, update(item)}. */
export class List {
  constructor(parent, key, make) {
    Object.assign(this, { parent, key, make, rows: new Map() });
  }

  set(items) {
    const seen = new Set();
    let at = this.parent.firstChild;
    for (const item of items) {
      const key = this.key(item);
      if (seen.has(key)) continue;
      seen.add(key);
      let row = this.rows.get(key);
      if (!row) this.rows.set(key, (row = this.make(item)));
      row.update(item);
      if (row.node === at) at = at.nextSibling;
      else this.parent.insertBefore(row.node, at);
    }
    for (const [key, row] of this.rows) {
      if (seen.has(key)) continue;
      row.node.remove();
      this.rows.delete(key);
    }
  }
}

/** A table with a caption for screen readers; `columns` are [title, class]. */
export function table(caption, columns, ...classes) {
  const body = h("tbody");
  const heads = columns.map(([title, kind]) => h("th", { scope: "col", class: kind }, title));
  const node = h("table", { class: ["cards", ...classes].join(" ") }, h("caption", {}, caption), h("thead", {}, h("tr", {}, heads)), body);
  return { node: h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, node), body };
}

/** Cells of a row for `table`: the title is repeated, for the cards of small screens. */
export function cells(columns) {
  return columns.map(([title, kind]) => h("td", { class: kind, "data-title": title }));
}

/** A row for `List`; `columns` are [title, class, make]: make(cell, context) fills a cell and returns its update(item). */
export function tableRow(columns, context) {
  const all = cells(columns);
  const updates = columns.map(([, , make], at) => make(all[at], context));
  return { node: h("tr", {}, all), update(item) { for (const update of updates) update(item); } };
}

/** For `tableRow`: a cell that holds the text read(item, context). */
export function textCell(read) {
  return (cell, context) => (item) => put(cell, read(item, context));
}

export function field(label, control) {
  return h("label", { class: "field" }, h("span", {}, label), control);
}

export function select(name, options, onchange) {
  return h("select", { name, onchange }, options.map(([value, text]) => h("option", { value }, text)));
}

/** Options of a select, keeping what is chosen. */
export function options(node, pairs) {
  const wanted = JSON.stringify(pairs);
  if (node.dataset.options === wanted) return;
  const chosen = node.value;
  node.dataset.options = wanted;
  node.replaceChildren(...pairs.map(([value, text]) => h("option", { value }, text)));
  if (pairs.some(([value]) => value === chosen)) node.value = chosen;
}

/** A text to copy, with its button. */
export function copyable(title) {
  const code = h("code");
  const button = h("button", {
    type: "button",
    onclick: async () => {
      await navigator.clipboard.writeText(code.textContent).then(() => put(button, "Copied"), () => selectText(code));
      setTimeout(() => put(button, "Copy"), 2000);
    },
  }, "Copy");
  button.setAttribute("aria-label", `Copy: ${title}`);
  const pre = h("pre", { tabindex: "0", role: "region", "aria-label": title }, code);
  return { node: h("div", { class: "copyable" }, h("div", { class: "row" }, h("span", { class: "small" }, title), button), pre), code };
}

/** Without https the clipboard is not open to pages: the text is selected instead. */
function selectText(node) {
  const range = document.createRange();
  range.selectNodeContents(node);
  const selection = window.getSelection();
  selection.removeAllRanges();
  selection.addRange(range);
}

export function message(kind, text) {
  return h("p", { class: `message ${kind}` }, text);
}
