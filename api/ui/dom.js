// Elements, and lists of them that keep their nodes: what has focus keeps it when figures change.

/**
 * An element: `el("td.num", { role: "cell" }, "12")`.
 * Attributes that are null, undefined or false are left out; those that begin with `on` are listeners.
 */
export function el(spec, attributes = {}, ...children) {
  const [tag, ...classes] = spec.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child != null));
  return node;
}

/** Sets a text where it differs. */
export function setText(node, value) {
  if (node.textContent !== value) node.textContent = value;
}

/** Sets a `data-` attribute where it differs. */
export function setData(node, name, value) {
  if (node.dataset[name] !== value) node.dataset[name] = value;
}

const listed = new WeakMap();

/**
 * Brings the children of `parent` to one for each item, in order.
 * `make(item)` gives `{ node, update }` of an item whose key is new; `update(item)` is called on every change.
 */
export function keyed(parent, items, keyOf, make) {
  const before = listed.get(parent) ?? new Map();
  const after = new Map();
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    const row = before.get(key) ?? make(item);
    row.update(item);
    after.set(key, row);
    if (row.node === place) place = place.nextSibling;
    else parent.insertBefore(row.node, place);
  }
  for (const [key, row] of before) if (!after.has(key)) row.node.remove();
  listed.set(parent, after);
}

/**
 * A table that becomes one card a row where there is no room.
 * `columns` are `{ name, kind }`; each cell carries its column's name for the card. Roles are said, because a table
 * that is laid out otherwise is no longer one to a screen reader.
 */
export function table(caption, columns) {
  const heads = columns.map(({ name, kind }) =>
    el(kind ? `th.${kind}` : "th", { role: "columnheader", scope: "col" }, name));
  const body = el("tbody", { role: "rowgroup" });
  const node = el("table.cards", { role: "table", "aria-label": caption },
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, heads)), body);
  return { node, body };
}

/** A cell of `table`. */
export function cell({ name, kind }, ...children) {
  return el(kind ? `td.${kind}` : "td", { role: "cell", "data-name": name }, ...children);
}

/** A bar of parts, for the eye alone: the figures stand beside it. */
export function bar() {
  const node = el("span.bar", { "aria-hidden": "true" });
  const update = (parts) =>
    keyed(node, parts, (part) => part.key, (part) => {
      const piece = el("span");
      piece.dataset.color = part.color;
      return {
        node: piece,
        update: ({ share }) => piece.style.setProperty("width", `${(100 * Math.max(0, Math.min(1, share))).toFixed(2)}%`),
      };
    });
  return { node, update };
}

/** Shows a dialog whose `data-close` buttons close it; resolves when it is closed. */
export function show(dialog) {
  for (const button of dialog.querySelectorAll("[data-close]")) button.onclick = () => dialog.close();
  const closed = new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  dialog.showModal();
  return closed;
}

/** Asks whether a change is meant; resolves to true if its button was pressed. */
export async function confirmed(title, lines, name) {
  const dialog = document.getElementById("confirm"), yes = document.getElementById("confirm-yes");
  setText(document.getElementById("confirm-title"), title);
  setText(yes, name);
  document.getElementById("confirm-list").replaceChildren(...lines.map((line) => el("li", {}, line)));
  let isMeant = false;
  yes.onclick = () => {
    isMeant = true;
    dialog.close();
  };
  await show(dialog);
  return isMeant;
}
