// The cluster that this broker leads: how many copies are in sync, how far each follower is behind, and its groups.

import { el, fill, say } from "./dom.js";
import { bytes, duration, plural } from "./format.js";

export class Cluster {
  constructor() {
    this.words = el("p.muted", { role: "status" });
    this.followers = el("ul.followers", { "aria-label": "Followers" });
    this.groups = el("ul.followers", { "aria-label": "Groups" });
    this.element = el("section.cluster", { hidden: true, "aria-label": "The cluster" }, el("h2", {}, "Cluster"), this.words, this.followers, this.groups);
  }

  /** Show what STATS says of it; nothing of a broker that is in none. `away`: what does not answer. */
  draw(cluster, away) {
    this.element.hidden = !cluster;
    if (!cluster) return;
    const copies = `${plural(cluster.in_sync, "copy", "copies")} in sync`;
    const damage = cluster.damaged_segments ? ` · ${plural(cluster.damaged_segments, "damaged segment")} here` : "";
    say(this.words, `This node leads epoch ${cluster.epoch} · ${copies}${damage}`);
    const rows = cluster.followers.map(({ name, lag_bytes: behind, lag_s: since }) =>
      el("li", {}, el("strong", {}, name), ` ${behind ? `${bytes(behind)} behind, for ${duration(since)}` : "has everything"}`));
    fill(this.followers, rows.length ? rows : el("li.muted", {}, "No follower is connected."));
    const silent = away.map(({ place }) => place);
    fill(this.groups, (cluster.groups ?? []).map(({ name, topics, messages_s: load }) =>
      el("li", {}, "Group ", el("strong", {}, name), ` has ${plural(topics, "topic")}`, silent.includes(`group ${name}`) ? [" and ", el("span.slow", {}, "does not answer")] : `, ${load} messages/s`)));
  }
}

/** What to warn of, "" when nothing is wrong. */
export function alone(cluster) {
  return cluster && cluster.in_sync < 2 ? "One copy is in sync: this one. Lose its disk, and what is published now is lost. Start the other nodes." : "";
}
