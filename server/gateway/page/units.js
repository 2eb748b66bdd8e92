"use strict";
// ---- Elements and units ----
const $ = (id) => document.getElementById(id);
const element = (name, className, ...content) => {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...content);
  return made;
};
const button = (label, act) => {
  const made = element("button", "", label);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
};
const time = (seconds) => seconds >= 1 ? seconds.toFixed(2) + " s" : (seconds * 1e3).toFixed(seconds < .01 ? 2 : 1) + " ms";
const bytes = (count) => count < 1024 ? count + " B" : count < 1048576 ? (count / 1024).toFixed(1) + " KiB"
                                                                       : (count / 1048576).toFixed(2) + " MiB";
const each = (count) => count < 10 ? count.toFixed(1) : Math.round(count).toLocaleString("en");
const rate = (bits) => {
  const [unit, name] = bits >= 1e9 ? [1e9, "Gb/s"] : bits >= 1e6 ? [1e6, "Mb/s"] : [1e3, "kb/s"];
  return Number((bits / unit).toPrecision(2)) + " " + name;
};
const times = (ratio) => (ratio < 10 ? ratio.toFixed(1) : Math.round(ratio)) + "×";
