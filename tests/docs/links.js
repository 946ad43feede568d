/* Where the links of a page lead, and what they may lead to in it. */
(() => ({
  links: [...document.querySelectorAll("a[href]")].map(a => [a.href, a.textContent.trim().slice(0, 40)]),
  anchors: [...document.querySelectorAll("[id], a[name]")].map(e => e.id || e.name),
}))()
