// ---- A model's Markdown as elements: its text only ever becomes text, and nothing in it can be followed or loaded ----
const LONGEST_LINE = 4000;  // characters; longer ones stay as they are, as patterns may take their square
const SPAN = /(`+)(.+?)\1|\*\*(?=\S)(.+?)\*\*|\*(?=[^\s*])(.+?)\*|(?<!\w)_(?=\S)(.+?)_(?!\w)/;

function spans(text, depth = 0) {
  const found = depth < 4 && text.length <= LONGEST_LINE && SPAN.exec(text);
  if (!found) return [text];
  const [all, , code, strong, starred, underscored] = found;
  const made = code !== undefined ? element("code", "", code.trim() || code)
      : strong !== undefined ? element("strong", "", ...spans(strong, depth + 1))
      : element("em", "", ...spans(starred ?? underscored, depth + 1));
  const nodes = [text.slice(0, found.index), made];
  for (let rest = text.slice(found.index + all.length); rest;) {
    const next = SPAN.exec(rest);
    if (!next) { nodes.push(rest); break; }
    nodes.push(rest.slice(0, next.index), ...spans(next[0], depth + 1));
    rest = rest.slice(next.index + next[0].length);
  }
  return nodes.filter((one) => one !== "");
}

// Paragraphs, headings, lists, quotations and fenced code; everything else as it was written.
function markdown(text) {
  const blocks = [];
  let list = null, paragraph = null, code = null;
  for (const line of text.split("\n")) {
    if (code) {
      if (/^\s*(```|~~~)\s*$/.test(line)) code = null;
      else code.append(line + "\n");
      continue;
    }
    const fence = /^\s*(```|~~~)/.test(line), heading = /^(#{1,6})\s+(.*)/.exec(line), quote = /^>\s?(.*)/.exec(line);
    const bullet = /^\s*[-*+]\s+(.*)/.exec(line), number = /^\s*(\d{1,9})[.)]\s+(.*)/.exec(line);
    if (bullet || number) {
      const kind = bullet ? "UL" : "OL";
      if (list?.tagName !== kind) {
        blocks.push(list = element(kind));
        if (number) list.start = Number(number[1]);
      }
      list.append(element("li", "", ...spans(bullet ? bullet[1] : number[2])));
      paragraph = null;
      continue;
    }
    list = null;
    if (fence || heading || quote || !line.trim()) paragraph = null;
    if (fence) blocks.push(element("pre", "", code = element("code")));
    else if (heading) blocks.push(element("h" + Math.min(6, heading[1].length + 2), "", ...spans(heading[2])));
    else if (quote) blocks.push(element("blockquote", "", ...spans(quote[1])));
    else if (paragraph) paragraph.append("\n", ...spans(line));
    else if (line.trim()) blocks.push(paragraph = element("p", "", ...spans(line)));
  }
  return blocks;
}
