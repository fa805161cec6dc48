"""Text with too little contrast against its background."""

from __future__ import annotations

from playwright.async_api import Page

LEAST, LEAST_LARGE = 4.5, 3.0
"""Ratios for text, and for text of at least 24 px or bold of 18.66 px. Source: WCAG 2.2, 1.4.3, level AA."""

_FIND = """([least, leastLarge]) => {
  const parse = (color) => {
    const [r, g, b, a = 1] = color.match(/[\\d.]+/g).map(Number);
    return { rgb: [r, g, b], a };
  };
  const luminance = ({ rgb }) => {
    const [r, g, b] = rgb.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.a === 1) return color;
    }
    return { rgb: [255, 255, 255], a: 1 };
  };
  const found = [];
  let looked = 0;
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const node = text.parentElement;
    if (!text.data.trim() || !node.checkVisibility({ visibilityProperty: true }) || node.closest(":disabled")) continue;
    looked += 1;
    const style = getComputedStyle(node);
    const [a, b] = [luminance(parse(style.color)), luminance(behind(node))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (ratio < (isLarge ? leastLarge : least)) found.push(`${ratio.toFixed(2)}: ${text.data.trim().slice(0, 40)}`);
  }
  return { looked, found };
}"""


async def hard_to_read(page: Page) -> tuple[int, list[str]]:
    """Return the number of texts examined, and `ratio: text` of each with too little contrast."""
    answer = await page.evaluate(_FIND, [LEAST, LEAST_LARGE])
    return answer["looked"], answer["found"]
