// The calls of the past, on the console's page. As in console.js, text only ever becomes a text node. A search is asked
// for by a press, and its rows stay as they are until the next one.
"use strict";

(() => {
  const AGES = [["", "any time"], ["900", "15 minutes"], ["3600", "an hour"], ["86400", "a day"], ["604800", "a week"]];
  const FIELDS = ["caller", "client", "server", "tool", "verdict", "outcome"];
  const PAGE = 50;
  const SLOW = 1000; // ms for which a search, which may take seconds, holds up an answer to a confirmation
  let searches = 0; // one at a time: the answer to another one is not shown
  let asked = {}; // for the calls that are shown, as older ones are asked for

  const size = (count) => (count === null ? "–" : bytes(count));
  const duration = (seconds) => (seconds === null ? "–" : seconds < 10 ? `${(seconds * 1000).toFixed(1)} ms` : `${seconds.toFixed(1)} s`);

  function moment(text) {
    const at = Date.parse(text);
    return Number.isNaN(at) ? foreign(text) : time(at / 1000);
  }

  function wanted() {
    const body = { limit: PAGE };
    for (const name of FIELDS) {
      const value = $(`past-${name}`).value.trim();
      if (value) body[name] = value;
    }
    const age = Number($("past-since").value);
    if (age) body.since = Date.now() / 1000 - age;
    return body;
  }

  /** The caller: its name, or what else is known; the client's own words are marked as such. */
  function who(c) {
    const says = c.agent && h("span", { class: "sub" }, "calls itself ", foreign(c.agent));
    const program = c.program && h("span", { class: "sub" }, "program ", foreign(c.program, "mono"));
    const view = c.view && h("span", { class: "sub" }, "view ", foreign(c.view));
    return [foreign(c.caller || c.client || "a client without a token", c.caller ? "strong" : undefined), says, program, view];
  }

  function ended(c) {
    if (c.pending) return h("span", { class: "soft" }, "no outcome yet");
    const text = c.tool_error ? "tool error" : c.outcome || "not sent";
    return [foreign(text, text === "answered" ? undefined : "strong"), c.count > 1 && ` × ${c.count}`];
  }

  function row(c) {
    const panel = h("tr", { class: "explain", hidden: true }, h("td", { colspan: "6" }));
    const more = button("Record", "quiet tiny", () => {
      panel.hidden = !panel.hidden;
      more.setAttribute("aria-expanded", String(!panel.hidden));
      if (!panel.hidden && !panel.firstChild.childNodes.length) records(c, panel.firstChild);
    }, { "aria-expanded": "false", "aria-label": `The record of ${c.item || c.what}` });
    return [h("tr", {},
      h("th", { scope: "row" }, moment(c.time), h("span", { class: "sub" }, who(c))),
      h("td", { "data-label": "Entry" }, foreign(c.item, "name mono"), h("span", { class: "sub" }, kindName(c.kind), c.server && [" of ", foreign(c.server)])),
      h("td", { "data-label": "Verdict" }, c.verdict && verdictBadge(c.verdict), h("span", { class: "sub" }, foreign(c.rule, "mono"))),
      h("td", { "data-label": "Outcome" }, ended(c)),
      h("td", { "data-label": "Duration" }, duration(c.seconds), h("span", { class: "sub" }, `${size(c.sent)} in, ${size(c.received)} out`)),
      h("td", { class: "last" }, more)), panel];
  }

  /** Arguments and result, as far as the records have them, each in a box of its own. */
  function contents(id, found) {
    return found.flatMap((each) => [["Arguments", each.args], ["Result", each.result]].flatMap(([name, kept]) => {
      if (!kept || typeof kept !== "object") return [];
      const how = ["json", "redacted", "left_out"].find((each) => typeof kept[each] === "string");
      const label = { json: name, redacted: `${name}, redacted`, left_out: `${name}, left out` }[how];
      return how ? [h("p", { class: "soft" }, label), textBox(label, `${name}-${id}`, foreign(kept[how]))] : [];
    }));
  }

  async function records(c, box) {
    try {
      const answer = await post("/api/v1/history/call", { id: c.id, place: c.place }, SLOW);
      if (secret === null) return;
      if (!answer.ok) { box.replaceChildren(h("p", { class: "warn" }, foreign(answer.error))); return; }
      const found = answer.said.records || [];
      box.replaceChildren(
        h("p", { class: "soft" }, "Call ", foreign(c.id, "mono"), c.file && [", record ", String(c.seq), " of ", foreign(c.file, "mono")]),
        ...contents(c.id, found),
        ...found.map((each, at) => textBox(`Record ${at + 1} of this call in the audit`, `record-${at}-${c.id}`, foreign(JSON.stringify(each, null, 2)))),
        found.length ? "" : h("p", { class: "warn" }, "Its record is not in the audit any more."));
    } catch { box.replaceChildren(h("p", { class: "warn" }, "The host cannot be reached.")); }
  }

  async function search(beyond) {
    const mine = ++searches;
    const list = $("history-list");
    const request = beyond === undefined ? wanted() : { ...asked, beyond };
    const whose = secret;
    let answer;
    try {
      answer = await post("/api/v1/history/list", request, SLOW);
    } catch { answer = { ok: false, error: "The host cannot be reached." }; }
    if (secret !== whose || mine !== searches) return; // somebody else may have signed in meanwhile
    if (!answer.ok) { list.replaceChildren(h("p", { class: "warn" }, foreign(answer.error))); return; }
    const { calls = [], missing = [] } = answer.said;
    if (beyond === undefined) {
      asked = request;
      list.replaceChildren(table());
    }
    const body = list.querySelector("tbody");
    const old = body.childNodes.length;
    body.append(...calls.map(row).flat());
    list.querySelectorAll(":scope > p, :scope > button").forEach((each) => each.remove());
    list.append(...missing.map((each) => h("p", { class: "warn" }, foreign(each))));
    if (!body.childNodes.length) list.append(h("p", { class: "soft" }, "No call fits."));
    if (calls.length === PAGE) list.append(button("Older calls", "plain", () => search(calls[calls.length - 1].place)));
    say(plural(calls.length, "call"));
    if (beyond !== undefined && body.childNodes[old]) body.childNodes[old].querySelector("button").focus();
  }

  const table = () => h("table", { class: "past" }, h("caption", { class: "unseen" }, "Calls of the past, the newest first"),
    h("thead", {}, h("tr", {}, ["When and who", "Entry", "Verdict", "Outcome", "Took", ""].map((text) => h("th", { scope: "col" }, text || h("span", { class: "unseen" }, "Record"))))),
    h("tbody", {}));

  fillChoice($("past-since"), AGES);
  $("past-search").addEventListener("click", () => search());
  $("past").addEventListener("keydown", (event) => { if (event.key === "Enter" && event.target.matches("input")) search(); });
})();
