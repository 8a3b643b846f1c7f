// Evaluated in a page by a test: the facts of the type `Look`.
(() => {
  const page = document.documentElement;
  const all = [...document.body.querySelectorAll("*")];
  const name = (element) =>
    `${element.tagName.toLowerCase()} in ${element.closest("[id]")?.id}: ${element.textContent.trim().slice(0, 60)}`;
  const scrolls = (element) => ["auto", "scroll"].includes(getComputedStyle(element).overflowX);
  const isInScroller = (element) => element !== document.body && (scrolls(element) || isInScroller(element.parentElement));

  const overflow = all
    .filter((element) => !isInScroller(element) && element.getBoundingClientRect().right > page.clientWidth + 1)
    .concat([...document.querySelectorAll("th, td, dd, p")].filter((cell) => cell.scrollWidth > cell.clientWidth + 1))
    .map(name);
  if (page.scrollWidth > page.clientWidth) overflow.push(`the page: ${page.scrollWidth} of ${page.clientWidth}`);

  const background = (element) => {
    const colour = getComputedStyle(element).backgroundColor;
    return colour === "rgba(0, 0, 0, 0)" && element.parentElement ? background(element.parentElement) : colour;
  };
  const texts = all
    .filter((element) => element.tagName !== "METER" && element.checkVisibility())
    .flatMap((element) => {
      const text = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE).map((node) => node.data);
      const style = getComputedStyle(element);
      return text.join("").trim()
        ? [{ text: text.join(""), colour: style.color, background: background(element), size: parseFloat(style.fontSize) }]
        : [];
    });

  const headers = [...document.querySelectorAll("thead th")].map((head) => {
    const { width, height } = head.getBoundingClientRect();
    return { text: head.textContent, width, height };
  });
  const quirks = document.compatMode !== "CSS1Compat";
  return { title: document.title, language: page.lang, quirks, overflow, texts, headers };
})()
