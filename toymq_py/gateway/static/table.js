// A table of texts that is drawn anew as a whole.

import { el, fill } from "./dom.js";

/** A table of texts; its first column names the row. On a small screen each cell has its head beside it. It says that it has none when it was drawn. */
export class Table {
  constructor(label, heads, none) {
    this.heads = heads;
    this.body = el("tbody");
    this.none = el("p.muted", { hidden: true }, none);
    const columns = heads.map(([head, kind]) => el(kind ? `th.${kind}` : "th", { scope: "col" }, head));
    this.table = el("div.scroller", { tabindex: 0, role: "region", "aria-label": label, hidden: true }, el("table.consumers.listing", {}, el("thead", {}, el("tr", {}, columns)), this.body));
    this.element = el("div", {}, this.table, this.none);
  }

  draw(rows) {
    const made = rows.map(([name, ...cells]) =>
      el("tr", {}, el("th", { scope: "row" }, name), cells.map((cell, i) => {
        const [head, kind] = this.heads[i + 1];
        return el(`td.${kind}`, { "data-label": head }, cell);
      })));
    fill(this.body, made);
    this.table.hidden = rows.length === 0;
    this.none.hidden = rows.length > 0;
  }
}
