/* What sticks out of a page: {page: bool, elements: [{problem, element, by}]}. */
(() => {
  const width = document.documentElement.clientWidth
  const name = element => {
    const attributes = element.id ? `#${element.id}` : [...element.classList].map(c => `.${c}`).join("")
    const text = element.textContent.trim().replace(/\s+/g, " ").slice(0, 60)
    return `<${element.tagName.toLowerCase()}${attributes}> "${text}"`
  }
  const overflow = element => getComputedStyle(element).overflowX
  const found = []
  for (const element of document.body.querySelectorAll("*")) {
    const box = element.getBoundingClientRect()
    if (box.width <= 1 || box.height <= 1 || getComputedStyle(element).visibility === "hidden") continue
    // The theme's own bars shorten their texts, on purpose.
    const inContent = !element.closest(".md-header, .md-tabs, .md-sidebar, .md-footer, .md-search")
    const hidden = element.scrollWidth - element.clientWidth
    if (inContent && hidden > 1 && element.clientWidth > 1 && overflow(element) !== "visible") {
      const scrolls = ["auto", "scroll"].includes(overflow(element))
      found.push({ problem: scrolls ? "scrolls" : "is cut off", element: name(element), by: hidden })
    }
  }
  // An element that is wider than the window matters only where the window itself scrolls.
  const beyond = document.documentElement.scrollWidth - width
  if (beyond > 0) {
    const boxed = element => {
      for (let e = element.parentElement; e && e !== document.body; e = e.parentElement)
        if (overflow(e) !== "visible") return true
      return false
    }
    const culprits = [...document.body.querySelectorAll("*")].filter(
      e => e.getBoundingClientRect().right > width + 0.5 && !boxed(e))
    const innermost = culprits.filter(e => !culprits.some(other => other !== e && e.contains(other)))
    for (const element of innermost.length ? innermost : [document.body])
      found.push({ problem: "is wider than the page", element: name(element), by: beyond })
  }
  return found
})()
